// The local link: later turns, the newest message wins, members come and go.
#include "lib/io/link.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/io/wait.h"

struct world {
    struct td_loop *loop;
    struct td_link_hub *hub;
    struct td_link *links[3];
    char text[256]; // what was heard, in order
    int heard;
    bool answer, drop;
};

static void on_report(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    struct world *world = user;
    char line[64];
    snprintf(line, sizeof line, "%d<%.*s ", (int)member, (int)n, (const char *)bytes);
    strncat(world->text, line, sizeof world->text - strlen(world->text) - 1);
    world->heard++;
    if (world->answer) {
        td_link_orders(world->hub, member, "do", 2);
    }
    if (world->drop) {
        td_link_free(world->links[1]);
        world->links[1] = NULL;
    }
}

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    struct world *world = user;
    char line[64];
    snprintf(line, sizeof line, ">%.*s ", (int)n, (const char *)bytes);
    strncat(world->text, line, sizeof world->text - strlen(world->text) - 1);
    world->heard++;
}

static void begin(struct world *world) {
    *world = (struct world){.loop = new_loop()};
    world->hub = td_link_hub_new_local(world->loop, on_report, world);
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(td_link_new(world->hub, i, on_orders, world, &world->links[i], NULL),
                         TD_OK);
    }
}

static void end(struct world *world) {
    for (int i = 0; i < 3; i++) {
        td_link_free(world->links[i]);
    }
    td_link_hub_free(world->hub);
    td_link_hub_free(NULL);
    td_loop_free(world->loop);
}

static void test_link_delivers_the_newest_in_a_later_turn(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    td_link_report(world.links[0], "old", 3);
    td_link_report(world.links[0], "new", 3);
    td_link_report(world.links[2], "", 0);
    td_link_orders(world.hub, 1, "go", 2);
    td_link_orders(world.hub, 77, "lost", 4);
    assert_int_equal(world.heard, 0);
    wait_until(world.loop, &world.heard, 3);
    assert_string_equal(world.text, "0<new >go 2< ");
    end(&world);
}

static void test_link_answers_within_a_report(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    world.answer = true;
    td_link_report(world.links[0], "a", 1);
    td_link_report(world.links[1], "b", 1);
    wait_until(world.loop, &world.heard, 4);
    assert_string_equal(world.text, "0<a 1<b >do >do "); // orders only in the turn after
    end(&world);
}

static void test_link_member_may_leave_in_a_callback(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    world.drop = true;
    td_link_report(world.links[0], "a", 1);
    td_link_report(world.links[1], "b", 1);
    td_link_orders(world.hub, 2, "c", 1);
    wait_until(world.loop, &world.heard, 2);
    assert_string_equal(world.text, "0<a >c ");
    world.drop = false;
    assert_int_equal(td_link_new(world.hub, 1, on_orders, &world, &world.links[1], NULL), TD_OK);
    struct td_link *twin = NULL;
    assert_int_equal(td_link_new(world.hub, 1, on_orders, &world, &twin, NULL), TD_ECONFLICT);
    end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_delivers_the_newest_in_a_later_turn),
        cmocka_unit_test(test_link_answers_within_a_report),
        cmocka_unit_test(test_link_member_may_leave_in_a_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
