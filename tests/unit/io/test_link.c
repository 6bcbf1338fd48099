// The local link: later turns, the newest message wins, members come and go, snapshots.
#include "lib/io/link.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static int memory_file(const char *text) {
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    return fd;
}

struct pulled {
    int count, fd;
};

static void on_pulled(void *user, int fd) {
    struct pulled *p = user;
    p->count++;
    p->fd = fd;
}

// The descriptor that a pull ends with.
static int pull(struct world *world, int link, const struct td_link_snapshot *key,
                int64_t wait_ms) {
    struct pulled p = {0};
    td_link_pull_snapshot(world->links[link], key, wait_ms, on_pulled, &p);
    assert_int_equal(p.count, 0); // in a later turn
    wait_until(world->loop, &p.count, 1);
    return p.fd;
}

static void test_link_pull_waits_for_an_offer(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    struct td_link_snapshot key = {1, 2, 3, 4}, other = {1, 2, 3, 5};
    struct pulled first = {0}, second = {0}, none = {0};
    td_link_pull_snapshot(world.links[1], &key, 60000, on_pulled, &first);
    td_link_pull_snapshot(world.links[1], &other, 60000, on_pulled, &none);
    td_link_pull_snapshot(world.links[1], &key, 60000, on_pulled, &second);
    int fd = memory_file("weights");
    assert_int_equal(td_link_offer_snapshot(world.links[0], &key, fd, NULL), TD_OK);
    close(fd);
    wait_until(world.loop, &first.count, 1);
    wait_until(world.loop, &second.count, 1);
    assert_true(first.fd >= 0 && second.fd >= 0 && first.fd != second.fd);
    close(first.fd);
    close(second.fd);
    assert_int_equal(none.count, 0);
    td_link_free(world.links[1]);
    world.links[1] = NULL;
    assert_int_equal(none.count, 1);
    assert_int_equal(none.fd, -1);
    end(&world);
}

static void test_link_snapshots(void **state) {
    (void)state;
    struct world world;
    begin(&world);
    struct td_link_snapshot key = {1, 2, 3, 4}, other = {1, 2, 3, 5};
    struct td_err err;
    int fd = memory_file("weights");
    assert_int_equal(td_link_offer_snapshot(world.links[0], &key, -1, &err), TD_EIO);
    assert_int_equal(td_link_offer_snapshot(world.links[0], &key, fd, &err), TD_OK);
    assert_int_equal(td_link_offer_snapshot(world.links[0], &key, fd, &err), TD_OK); // again
    close(fd);
    assert_int_equal(pull(&world, 1, &other, 1), -1);
    int got = pull(&world, 1, &key, 60000);
    char text[8] = {0};
    assert_int_equal(pread(got, text, 7, 0), 7);
    assert_string_equal(text, "weights");
    close(got);
    td_link_withdraw_snapshot(world.links[1], &key); // not its offer
    got = pull(&world, 1, &key, 60000);
    assert_true(got >= 0);
    close(got);
    td_link_free(world.links[0]); // a member takes its offers along
    world.links[0] = NULL;
    assert_int_equal(pull(&world, 1, &key, 1), -1);
    fd = memory_file("x");
    for (uint64_t i = 0; i < TD_LINK_SNAPSHOTS_MAX; i++) {
        key.step = i;
        assert_int_equal(td_link_offer_snapshot(world.links[1], &key, fd, &err), TD_OK);
    }
    key.step = TD_LINK_SNAPSHOTS_MAX;
    assert_int_equal(td_link_offer_snapshot(world.links[1], &key, fd, &err), TD_ELIMIT);
    close(fd);
    end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_delivers_the_newest_in_a_later_turn),
        cmocka_unit_test(test_link_answers_within_a_report),
        cmocka_unit_test(test_link_member_may_leave_in_a_callback),
        cmocka_unit_test(test_link_snapshots),
        cmocka_unit_test(test_link_pull_waits_for_an_offer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
