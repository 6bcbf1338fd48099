// The link over gRPC: how calls and orders meet at the coordinator's end, call by call; then the
// client, with coordinators that die, come back, and lose replies.
#include "lib/io/link_grpc.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "proto/sync.pb-c.h"
#include "tests/unit/io/wait.h"

struct world;

struct coordinator {
    struct world *world;
    struct td_rpc_server *server;
    struct td_link_server *link;
    char address[64], text[256]; // the reports that it got
    int reports, stopped;
    const char *orders; // given for each report, unless NULL
    bool dies;          // in its next report
};

struct world {
    struct td_loop *loop;
    struct td_rpc *rpc;
    struct coordinator coordinators[2];
    struct td_rpc_channel *channel; // to the first, for calls by hand
    struct td_link_client *client;
    char text[256]; // the orders that the client got
    int orders;
    bool frees_client;
};

static void note(char *text, size_t size, const uint8_t *bytes, size_t n) {
    size_t len = strlen(text);
    snprintf(text + len, size - len, "%.*s ", (int)n, (const char *)bytes);
}

// ---- coordinators ----

static void on_report(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    struct coordinator *c = user;
    note(c->text, sizeof c->text, bytes, n);
    c->reports++;
    if (c->orders) {
        td_link_server_orders(c->link, member, c->orders, strlen(c->orders));
    }
    if (c->dies) {
        td_rpc_server_free(c->server);
        c->server = NULL;
        c->dies = false;
    }
}

// Turns for so long.
static void pass_time(struct td_loop *loop, int64_t ms) {
    int never = 0;
    struct wait wait = {loop, NULL, &never, 1, td_clock_ms() + ms};
    wait.timer = td_timer_new(loop, wait_check, &wait);
    td_timer_start(wait.timer, 0);
    td_loop_run(loop);
    td_timer_close(wait.timer);
}

// Starts the server of a coordinator, again at the address that it had.
static void start(struct coordinator *c) {
    struct td_err err = {0};
    struct td_rpc_method method = td_link_server_method(c->link);
    struct td_rpc_server_opts opts = {.rpc = c->world->rpc, .methods = &method, .method_count = 1};
    assert_int_equal(td_rpc_server_new(&opts, &c->server, &err), TD_OK);
    int port = 0;
    bool again = c->address[0] != '\0';
    enum td_rc rc = TD_ECONFLICT; // until the old server has closed its port
    for (int i = 0; i < 1000 && rc == TD_ECONFLICT; i++) {
        pass_time(c->world->loop, 1);
        rc = td_rpc_server_listen(c->server, again ? c->address : "127.0.0.1:0", &port, &err);
    }
    if (rc != TD_OK) {
        fail_msg("%s", err.msg);
    }
    snprintf(c->address, sizeof c->address, "127.0.0.1:%d", port);
    td_rpc_server_start(c->server);
}

static void stop(struct coordinator *c) {
    td_rpc_server_free(c->server);
    c->server = NULL;
}

// ---- calls by hand ----

struct call {
    struct td_rpc_request *request;
    enum td_rpc_status status;
    char text[256]; // the orders, or the error
    int done;
};

static void on_done(void *user, const struct td_rpc_outcome *outcome) {
    struct call *call = user;
    call->done++;
    call->status = outcome->status;
    snprintf(call->text, sizeof call->text, "%s", outcome->text);
    if (outcome->message) {
        const Tandem__Sync__SyncReply *reply = (const Tandem__Sync__SyncReply *)outcome->message;
        snprintf(call->text, sizeof call->text, "%.*s", (int)reply->orders.len,
                 reply->orders.len ? (const char *)reply->orders.data : "");
    }
}

// report "": a call that waits.
static void sync(struct world *world, struct call *call, uint64_t member, const char *report,
                 uint32_t hold_ms) {
    Tandem__Sync__SyncRequest request = TANDEM__SYNC__SYNC_REQUEST__INIT;
    request.protocol = TD_LINK_PROTOCOL;
    request.member = member;
    request.report = (ProtobufCBinaryData){strlen(report), (uint8_t *)report};
    request.hold_ms = hold_ms;
    *call = (struct call){0};
    call->request = td_rpc_request(
        world->channel, &(struct td_rpc_request_opts){.path = "/tandem.sync.Sync/Sync",
                                                      .request = &request.base,
                                                      .out = &tandem__sync__sync_reply__descriptor,
                                                      .deadline_ms = -1,
                                                      .done = on_done,
                                                      .user = call});
}

// Waits until the server has seen every call. Calls that wait for the connection go out in any
// order, and so do those that are more than the server expects at once.
static void settle(struct world *world) {
    struct call call;
    sync(world, &call, 0, "", 0); // refused
    wait_until(world->loop, &call.done, 1);
}

static void begin(struct world *world, int coordinators) {
    *world = (struct world){.loop = new_loop()};
    assert_int_equal(td_rpc_new(world->loop, &world->rpc, NULL), TD_OK);
    for (int i = 0; i < coordinators; i++) {
        struct coordinator *c = &world->coordinators[i];
        c->world = world;
        c->link = td_link_server_new(world->loop, on_report, c);
        start(c);
    }
    assert_int_equal(
        td_rpc_channel_new(world->rpc, world->coordinators[0].address, NULL, &world->channel, NULL),
        TD_OK);
    settle(world); // from here on calls go out in the order of their making
}

static void end(struct world *world) {
    td_link_client_free(world->client);
    td_link_client_free(NULL);
    td_rpc_channel_free(world->channel);
    for (int i = 0; i < 2; i++) {
        td_rpc_server_free(world->coordinators[i].server);
        td_link_server_free(world->coordinators[i].link);
    }
    td_link_server_free(NULL);
    td_rpc_free(world->rpc);
    td_loop_free(world->loop);
}

static void expect(struct world *world, struct call *call, const char *orders) {
    wait_until(world->loop, &call->done, 1);
    assert_int_equal(call->status, TD_RPC_OK);
    assert_string_equal(call->text, orders);
}

static void give(struct world *world, uint64_t member, const char *orders) {
    td_link_server_orders(world->coordinators[0].link, member, orders, strlen(orders));
}

// Makes the member known.
static void report_now(struct world *world, uint64_t member) {
    struct call call;
    sync(world, &call, member, "r", 0);
    expect(world, &call, "");
}

enum { LONG = 50000 };

static void test_link_grpc_report_is_answered_by_its_orders(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct call report, wait;
    sync(&world, &wait, 7, "", LONG);
    world.coordinators[0].orders = "do";
    sync(&world, &report, 7, "a", LONG);
    expect(&world, &report, "do");
    assert_string_equal(world.coordinators[0].text, "a ");
    assert_int_equal(wait.done, 0);
    world.coordinators[0].orders = NULL;
    sync(&world, &report, 7, "b", LONG); // answered later
    wait_until(world.loop, &world.coordinators[0].reports, 2);
    give(&world, 7, "first");
    give(&world, 7, "second");
    give(&world, 7, "third");
    give(&world, 7, "fourth");
    expect(&world, &report, "first");
    expect(&world, &wait, "second");
    sync(&world, &wait, 7, "", LONG);
    expect(&world, &wait, "fourth"); // of those without a call only the newest was kept
    sync(&world, &wait, 7, "", 20);
    expect(&world, &wait, "");
    end(&world);
}

static void test_link_grpc_holds_end(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct call report, waits[3];
    sync(&world, &waits[0], 1, "", 60);
    sync(&world, &waits[1], 2, "", 20);
    sync(&world, &report, 2, "a", 40);
    sync(&world, &waits[2], 3, "", LONG);
    for (int i = 0; i < 2; i++) {
        expect(&world, &waits[i], "");
    }
    expect(&world, &report, "");
    assert_int_equal(waits[2].done, 0);
    end(&world);
}

static void test_link_grpc_newer_call_replaces_the_older(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct call waits[2], reports[2];
    for (int i = 0; i < 2; i++) {
        sync(&world, &waits[i], 7, "", LONG);
        sync(&world, &reports[i], 7, "a", LONG);
        settle(&world);
    }
    expect(&world, &waits[0], "");
    expect(&world, &reports[0], "");
    assert_int_equal(waits[1].done + reports[1].done, 0);
    struct call other;
    sync(&world, &other, 8, "", LONG); // of another member: not touched, touches nothing
    settle(&world);
    give(&world, 7, "x");
    give(&world, 7, "y");
    expect(&world, &reports[1], "x");
    expect(&world, &waits[1], "y");
    assert_int_equal(other.done, 0);
    end(&world);
}

static void test_link_grpc_kept_orders(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct call call;
    give(&world, 7, "lost"); // nobody knows the member
    report_now(&world, 7);
    give(&world, 7, "kept");
    sync(&world, &call, 7, "a", LONG);
    expect(&world, &call, "kept");
    give(&world, 7, "old");
    world.coordinators[0].orders = "new";
    sync(&world, &call, 7, "b", LONG);
    expect(&world, &call, "new");
    sync(&world, &call, 7, "", 20);
    expect(&world, &call, ""); // "old" is gone
    end(&world);
}

static void test_link_grpc_caller_that_is_gone(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct call wait;
    sync(&world, &wait, 7, "", LONG);
    settle(&world);
    td_rpc_cancel(wait.request);
    wait_until(world.loop, &wait.done, 1);
    do { // until the server has heard of it
        settle(&world);
        give(&world, 7, "x");
        sync(&world, &wait, 7, "", 0);
        wait_until(world.loop, &wait.done, 1);
    } while (strcmp(wait.text, "x") != 0);
    end(&world);
}

static void expect_error(struct world *world, struct call *call, enum td_rpc_status status) {
    wait_until(world->loop, &call->done, 1);
    assert_int_equal(call->status, status);
}

static void test_link_grpc_refuses(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct call call = {0};
    Tandem__Sync__SyncRequest request = TANDEM__SYNC__SYNC_REQUEST__INIT;
    request.protocol = 26;
    request.member = 7;
    td_rpc_request(world.channel,
                   &(struct td_rpc_request_opts){.path = "/tandem.sync.Sync/Sync",
                                                 .request = &request.base,
                                                 .out = &tandem__sync__sync_reply__descriptor,
                                                 .deadline_ms = -1,
                                                 .done = on_done,
                                                 .user = &call});
    expect_error(&world, &call, TD_RPC_FAILED_PRECONDITION);
    assert_non_null(strstr(call.text, "26"));
    assert_non_null(strstr(call.text, "1:"));
    sync(&world, &call, 0, "", LONG);
    expect_error(&world, &call, TD_RPC_INVALID_ARGUMENT);
    char *report = td_alloc(TD_LINK_BYTES_MAX + 2);
    memset(report, 'x', TD_LINK_BYTES_MAX + 1);
    sync(&world, &call, 7, report, LONG);
    td_free(report);
    expect_error(&world, &call, TD_RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(world.coordinators[0].reports, 0);
    end(&world);
}

static void test_link_grpc_has_room_for_so_many_members(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    static struct call calls[TD_LINK_MEMBERS_MAX];
    for (uint64_t i = 0; i < TD_LINK_MEMBERS_MAX; i++) {
        sync(&world, &calls[i], 100 + i, "", LONG);
        settle(&world);
    }
    struct call more;
    sync(&world, &more, 1, "", LONG);
    expect_error(&world, &more, TD_RPC_RESOURCE_EXHAUSTED);
    give(&world, 100 + 5, "x"); // the call ends, so the member may be forgotten
    expect(&world, &calls[5], "x");
    sync(&world, &more, 1, "", LONG);
    report_now(&world, 100);
    give(&world, 1, "y");
    expect(&world, &more, "y");
    end(&world);
}

static void on_stopped(void *user) {
    ((struct coordinator *)user)->stopped++;
}

static void test_link_grpc_close_lets_the_server_stop(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct coordinator *c = &world.coordinators[0];
    struct call report, wait;
    sync(&world, &wait, 7, "", LONG);
    sync(&world, &report, 7, "a", LONG);
    settle(&world);
    wait_until(world.loop, &c->reports, 1);
    td_link_server_close(c->link);
    expect(&world, &wait, "");
    expect(&world, &report, "");
    sync(&world, &wait, 7, "", LONG);
    expect_error(&world, &wait, TD_RPC_UNAVAILABLE);
    td_rpc_server_stop(c->server, 600000, on_stopped, c);
    wait_until(world.loop, &c->stopped, 1);
    end(&world);
}

// ---- the client ----

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    struct world *world = user;
    note(world->text, sizeof world->text, bytes, n);
    world->orders++;
    if (world->frees_client) {
        td_link_client_free(world->client);
        world->client = NULL;
    }
}

static void connect_client(struct world *world, size_t count) {
    const char *addresses[] = {world->coordinators[0].address, world->coordinators[1].address};
    struct td_link_client_opts opts = {.loop = world->loop,
                                       .rpc = world->rpc,
                                       .addresses = addresses,
                                       .count = count,
                                       .member = 7,
                                       .on_orders = on_orders,
                                       .user = world};
    assert_int_equal(td_link_client_new(&opts, &world->client, NULL), TD_OK);
}

static void wait_connected(struct world *world, size_t i, bool connected) {
    int64_t deadline = td_clock_ms() + WAIT_MS;
    while (td_link_client_state(world->client, i).connected != connected) {
        assert_true(td_clock_ms() < deadline);
        pass_time(world->loop, 5);
    }
}

static void test_link_grpc_client_speaks_to_all(void **state) {
    (void)state;
    struct world world;
    begin(&world, 2);
    connect_client(&world, 2);
    td_link_client_report(world.client, "a", 1);
    for (int i = 0; i < 2; i++) {
        wait_until(world.loop, &world.coordinators[i].reports, 1);
        assert_string_equal(world.coordinators[i].text, "a ");
        wait_connected(&world, (size_t)i, true);
        struct td_link_client_state s = td_link_client_state(world.client, (size_t)i);
        assert_string_equal(s.address, world.coordinators[i].address);
        assert_string_equal(s.error, "");
        assert_true(s.since_ms <= td_clock_ms());
    }
    td_link_server_orders(world.coordinators[1].link, 7, "pushed", 6);
    wait_until(world.loop, &world.orders, 1);
    world.coordinators[0].orders = "caused";
    td_link_client_report(world.client, "b", 1);
    wait_until(world.loop, &world.orders, 2);
    assert_string_equal(world.text, "pushed caused ");
    end(&world);
}

static void test_link_grpc_client_sends_the_newest(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    connect_client(&world, 1);
    td_link_client_report(world.client, "1", 1);
    td_link_client_report(world.client, "2", 1);
    td_link_client_report(world.client, "3", 1);
    wait_until(world.loop, &world.coordinators[0].reports, 2);
    assert_string_equal(world.coordinators[0].text, "1 3 ");
    end(&world);
}

static void test_link_grpc_one_of_two_dies_and_returns(void **state) {
    (void)state;
    struct world world;
    begin(&world, 2);
    connect_client(&world, 2);
    td_link_client_report(world.client, "a", 1);
    for (size_t i = 0; i < 2; i++) {
        wait_until(world.loop, &world.coordinators[i].reports, 1);
        wait_connected(&world, i, true);
    }
    struct coordinator *dead = &world.coordinators[0], *alive = &world.coordinators[1];
    stop(dead);
    wait_connected(&world, 0, false);
    struct td_link_client_state s = td_link_client_state(world.client, 0);
    assert_int_equal(strncmp(s.error, "UNAVAILABLE: ", 13), 0);
    alive->orders = "on";
    for (int i = 1; i <= 5; i++) {
        td_link_client_report(world.client, "b", 1);
        wait_until(world.loop, &world.orders, i);
    }
    assert_true(td_link_client_state(world.client, 1).connected);
    assert_int_equal(dead->reports, 1);
    start(dead);
    wait_until(world.loop, &dead->reports, 2); // the newest that it has missed
    assert_string_equal(dead->text, "a b ");
    wait_connected(&world, 0, true);
    end(&world);
}

// The report had its effect, the answer never came: it is sent again.
static void test_link_grpc_lost_reply(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct coordinator *c = &world.coordinators[0];
    connect_client(&world, 1);
    wait_connected(&world, 0, true);
    c->orders = "do";
    c->dies = true;
    td_link_client_report(world.client, "a", 1);
    wait_until(world.loop, &c->reports, 1);
    assert_null(c->server);
    start(c);
    wait_until(world.loop, &world.orders, 1);
    assert_string_equal(world.text, "do ");
    assert_true(c->reports >= 1);
    end(&world);
}

static void test_link_grpc_client_before_the_coordinator(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    struct coordinator *c = &world.coordinators[0];
    stop(c);
    connect_client(&world, 1);
    td_link_client_report(world.client, "a", 1);
    int64_t deadline = td_clock_ms() + WAIT_MS;
    while (td_link_client_state(world.client, 0).error[0] == '\0') {
        assert_true(td_clock_ms() < deadline);
        pass_time(world.loop, 5);
    }
    assert_false(td_link_client_state(world.client, 0).connected);
    start(c);
    wait_until(world.loop, &c->reports, 1);
    wait_connected(&world, 0, true);
    end(&world);
}

static void test_link_grpc_two_clients_of_one_member(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    connect_client(&world, 1);
    struct td_link_client *first = world.client;
    connect_client(&world, 1);
    pass_time(world.loop, 200); // they take each other's place, in peace
    td_link_client_report(world.client, "b", 1);
    td_link_client_report(first, "a", 1);
    wait_until(world.loop, &world.coordinators[0].reports, 2);
    td_link_client_free(first);
    end(&world);
}

static void test_link_grpc_client_may_be_freed_by_orders(void **state) {
    (void)state;
    struct world world;
    begin(&world, 2);
    connect_client(&world, 2);
    world.frees_client = true;
    world.coordinators[0].orders = "go";
    td_link_client_report(world.client, "a", 1);
    wait_until(world.loop, &world.orders, 1);
    assert_null(world.client);
    end(&world);
}

static void test_link_grpc_client_options(void **state) {
    (void)state;
    struct world world;
    begin(&world, 1);
    const char *addresses[TD_LINK_COORDINATORS_MAX + 1];
    for (int i = 0; i <= TD_LINK_COORDINATORS_MAX; i++) {
        addresses[i] = world.coordinators[0].address;
    }
    struct td_rpc_tls tls = {.ca_file = "/nowhere/ca.pem"};
    struct td_link_client_opts opts = {.loop = world.loop,
                                       .rpc = world.rpc,
                                       .addresses = addresses,
                                       .count = TD_LINK_COORDINATORS_MAX + 1,
                                       .member = 7,
                                       .on_orders = on_orders,
                                       .user = &world};
    struct td_err err;
    assert_int_equal(td_link_client_new(&opts, &world.client, &err), TD_ELIMIT);
    opts.count = 2;
    opts.tls = &tls;
    assert_int_equal(td_link_client_new(&opts, &world.client, &err), TD_EINVAL);
    assert_non_null(strstr(err.msg, "/nowhere/ca.pem"));
    end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_grpc_report_is_answered_by_its_orders),
        cmocka_unit_test(test_link_grpc_holds_end),
        cmocka_unit_test(test_link_grpc_newer_call_replaces_the_older),
        cmocka_unit_test(test_link_grpc_kept_orders),
        cmocka_unit_test(test_link_grpc_caller_that_is_gone),
        cmocka_unit_test(test_link_grpc_refuses),
        cmocka_unit_test(test_link_grpc_has_room_for_so_many_members),
        cmocka_unit_test(test_link_grpc_close_lets_the_server_stop),
        cmocka_unit_test(test_link_grpc_client_speaks_to_all),
        cmocka_unit_test(test_link_grpc_client_sends_the_newest),
        cmocka_unit_test(test_link_grpc_one_of_two_dies_and_returns),
        cmocka_unit_test(test_link_grpc_lost_reply),
        cmocka_unit_test(test_link_grpc_client_before_the_coordinator),
        cmocka_unit_test(test_link_grpc_two_clients_of_one_member),
        cmocka_unit_test(test_link_grpc_client_may_be_freed_by_orders),
        cmocka_unit_test(test_link_grpc_client_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
