// One connection, two threads that send and one that receives: a worker's command thread and its
// heartbeat. Meant for ThreadSanitizer as well.
#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/ipc/pair.h"

enum { SENDERS = 2, FRAMES = 4000 };

struct sender {
    struct td_ipc_conn *conn;
    uint64_t base;
    atomic_int *failures;
};

static void *send_all(void *arg) {
    const struct sender *s = arg;
    for (uint64_t i = 0; i < FRAMES; i++) {
        Tandem__Worker__Open body = TANDEM__WORKER__OPEN__INIT;
        body.sequence = s->base + i;
        td_frame frame = TANDEM__WORKER__FRAME__INIT;
        frame.body_case = TANDEM__WORKER__FRAME__BODY_OPEN;
        frame.open = &body;
        struct td_err err;
        if (td_ipc_send(s->conn, &frame, NULL, 0, &err) != TD_OK) {
            atomic_fetch_add(s->failures, 1);
        }
    }
    return NULL;
}

// Every frame arrives whole, those of one thread in order.
static void test_conn_threads_send(void **state) {
    (void)state;
    struct pair p = pair_new();
    atomic_int failures = 0;
    pthread_t threads[SENDERS];
    struct sender senders[SENDERS];
    for (uint64_t i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){p.a, i * FRAMES, &failures};
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    }
    uint64_t next[SENDERS] = {0};
    for (int i = 0; i < SENDERS * FRAMES; i++) {
        int fds[TD_FRAME_FDS_MAX];
        enum td_rc rc;
        struct td_err err;
        td_frame *f = recv_frame(p.b, p.a, fds, &rc, &err);
        assert_non_null(f);
        uint64_t who = f->open->sequence / FRAMES;
        assert_true(who < SENDERS);
        assert_int_equal(f->open->sequence % FRAMES, next[who]);
        next[who]++;
        td_frame_free(f);
    }
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(atomic_load(&failures), 0);
    pair_free(&p);
}

// The peer goes away while both send: errors, no signal, no crash.
static void test_conn_threads_peer_gone(void **state) {
    (void)state;
    struct pair p = pair_new();
    atomic_int failures = 0;
    pthread_t threads[SENDERS];
    struct sender senders[SENDERS];
    for (uint64_t i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){p.a, i * FRAMES, &failures};
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    }
    int fds[TD_FRAME_FDS_MAX];
    enum td_rc rc;
    struct td_err err;
    td_frame *f = recv_frame(p.b, p.a, fds, &rc, &err);
    assert_non_null(f);
    td_frame_free(f);
    td_ipc_conn_free(p.b);
    p.b = NULL;
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_null(recv_frame(p.a, NULL, fds, &rc, &err));
    assert_int_equal(rc, TD_ECLOSED);
    pair_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conn_threads_send),
        cmocka_unit_test(test_conn_threads_peer_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
