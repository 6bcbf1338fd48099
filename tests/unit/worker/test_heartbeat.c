// The heartbeat thread beside a command thread that is busy. Meant for ThreadSanitizer as well.
#include "workers/heartbeat.h"

#include <string.h>
#include <unistd.h>

#include "tests/unit/ipc/pair.h"

enum { GRACE_MS = 600000 };

struct seen {
    char doing[32];
    uint64_t progress, tokens, since_ms;
    uint32_t open;
};

// Takes one beat from c, reporting progress meanwhile as a command thread does.
static struct seen next_beat(struct td_heartbeat *h, struct td_ipc_conn *c, uint64_t *tokens) {
    int64_t until = td_clock_ms() + PAIR_WAIT_MS;
    td_frame *f = NULL;
    int fds[TD_FRAME_FDS_MAX];
    struct td_err err;
    while (!f) {
        assert_true(td_clock_ms() < until);
        assert_int_equal(td_ipc_recv(c, &f, fds, &err), TD_OK);
        td_heartbeat_progress(h, ++*tokens, 3);
        struct pollfd p = {.fd = td_ipc_fd(c), .events = POLLIN};
        (void)poll(&p, 1, 1);
    }
    assert_int_equal(f->body_case, TANDEM__WORKER__FRAME__BODY_HEARTBEAT);
    const Tandem__Worker__Heartbeat *m = f->heartbeat;
    struct seen s = {.progress = m->progress,
                     .tokens = m->generated_tokens,
                     .since_ms = m->since_ms,
                     .open = m->open_sequences};
    strncpy(s.doing, m->doing, sizeof s.doing - 1);
    td_frame_free(f);
    return s;
}

static void test_heartbeat_tells(void **state) {
    (void)state;
    struct pair p = pair_new();
    struct td_heartbeat *h = td_heartbeat_start(GRACE_MS, "/nowhere/w.sock", -1);
    uint64_t tokens = 0;
    td_heartbeat_doing(h, TD_DOING_STEP);
    td_heartbeat_attach(h, p.a);
    struct seen one = next_beat(h, p.b, &tokens), two = next_beat(h, p.b, &tokens);
    assert_string_equal(one.doing, "step");
    assert_true(two.progress > one.progress && two.tokens > one.tokens && two.open == 3);
    assert_true(two.since_ms == one.since_ms && one.since_ms <= (uint64_t)td_clock_ms());
    td_heartbeat_doing(h, TD_DOING_GENERATE);
    struct seen three = next_beat(h, p.b, &tokens);
    assert_string_equal(three.doing, "generate");
    assert_true(three.since_ms >= one.since_ms);
    td_heartbeat_stop(h);
    pair_free(&p);
}

// Controllers come and go; a connection is not touched after it was taken away.
static void test_heartbeat_attach_and_detach(void **state) {
    (void)state;
    struct td_heartbeat *h = td_heartbeat_start(GRACE_MS, "/nowhere/w.sock", -1);
    uint64_t tokens = 0;
    for (int turn = 0; turn < 200; turn++) {
        struct pair p = pair_new();
        td_heartbeat_attach(h, p.a);
        if (turn % 100 == 50) {
            next_beat(h, p.b, &tokens);
        }
        if (turn % 2) { // the peer goes first
            td_ipc_conn_free(p.b);
            p.b = NULL;
        }
        td_heartbeat_doing(h, (enum td_doing)(turn % TD_DOING_COUNT));
        td_heartbeat_attach(h, NULL);
        pair_free(&p);
    }
    td_heartbeat_stop(h);
    td_heartbeat_stop(NULL);
}

// A peer that is gone while the command thread is busy: the beats fail, and that is all.
static void test_heartbeat_peer_gone(void **state) {
    (void)state;
    struct pair p = pair_new();
    struct td_heartbeat *h = td_heartbeat_start(GRACE_MS, "/nowhere/w.sock", -1);
    uint64_t tokens = 0;
    td_heartbeat_attach(h, p.a);
    next_beat(h, p.b, &tokens);
    td_ipc_conn_free(p.b);
    int64_t until = td_clock_ms() + 2500;
    while (td_clock_ms() < until) {
        td_heartbeat_progress(h, ++tokens, 0);
        (void)poll(NULL, 0, 1);
    }
    td_frame *f = NULL;
    int fds[TD_FRAME_FDS_MAX];
    struct td_err err;
    assert_int_equal(td_ipc_recv(p.a, &f, fds, &err), TD_ECLOSED);
    td_heartbeat_stop(h);
    td_ipc_conn_free(p.a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heartbeat_tells),
        cmocka_unit_test(test_heartbeat_attach_and_detach),
        cmocka_unit_test(test_heartbeat_peer_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
