// The ring with ranks as threads and as processes: sums, equal bits, and every way a peer can fail.
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "workers/comm/comm.h"

#include "tests/unit/cmocka_all.h"

enum { RANKS_MAX = 5, LONG_MS = 20000, SOON_MS = 10000 };

// What one rank is told to do, and what came of it.
struct rank {
    struct td_comm_listener *listener;
    const char *const *addresses;
    int rank, size;
    uint64_t key;
    int64_t form_ms, call_ms;
    size_t n; // length of the all-reduce
    void *out;
    enum td_rc rc;
    struct td_err err;
    struct td_comm *comm;
};

struct group {
    struct rank ranks[RANKS_MAX];
    char *addresses[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    int size;
};

static void group_open(struct group *g, int size) {
    memset(g, 0, sizeof *g);
    g->size = size;
    for (int i = 0; i < size; i++) {
        struct td_err err;
        struct rank *r = &g->ranks[i];
        *r = (struct rank){.rank = i, .size = size, .key = 77};
        r->addresses = (const char *const *)g->addresses;
        r->form_ms = r->call_ms = LONG_MS;
        assert_int_equal(td_comm_listen("127.0.0.1", &r->listener, &g->addresses[i], &err), TD_OK);
    }
}

static void group_close(struct group *g) {
    for (int i = 0; i < g->size; i++) {
        td_comm_free(g->ranks[i].comm);
        td_comm_listener_free(g->ranks[i].listener);
        td_free(g->addresses[i]);
        td_free(g->ranks[i].out);
    }
}

static void group_run(struct group *g, void *(*body)(void *)) {
    for (int i = 0; i < g->size; i++) {
        assert_int_equal(pthread_create(&g->threads[i], NULL, body, &g->ranks[i]), 0);
    }
    for (int i = 0; i < g->size; i++) {
        assert_int_equal(pthread_join(g->threads[i], NULL), 0);
    }
}

static void form(struct rank *r) {
    struct td_comm_place place = {r->addresses, r->rank, r->size, r->key};
    r->rc = td_comm_tcp_new(r->listener, &place, td_clock_ms() + r->form_ms, &r->comm, &r->err);
}

static void *form_body(void *arg) {
    form(arg);
    return NULL;
}

// Summands whose sum depends on the order of additions.
static double summand(int rank, size_t i) {
    struct td_philox p = td_philox4x32(9, (uint32_t)i, (uint32_t)rank, 0, 0);
    return (p.v[0] / 4294967296.0 - 0.5) * (1 << (p.v[1] % 20));
}

static void *reduce_f32_body(void *arg) {
    struct rank *r = arg;
    float *x = r->out = td_alloc_array(r->n + 1, sizeof *x);
    for (size_t i = 0; i < r->n; i++) {
        x[i] = (float)summand(r->rank, i);
    }
    int64_t deadline = td_clock_ms() + r->call_ms;
    r->rc = r->comm->ops->all_reduce_f32(r->comm, x, r->n, deadline, &r->err);
    return NULL;
}

static void *reduce_f64_body(void *arg) {
    struct rank *r = arg;
    double *x = r->out = td_alloc_array(r->n + 1, sizeof *x);
    for (size_t i = 0; i < r->n; i++) {
        x[i] = summand(r->rank, i);
    }
    int64_t deadline = td_clock_ms() + r->call_ms;
    r->rc = r->comm->ops->all_reduce_f64(r->comm, x, r->n, deadline, &r->err);
    return NULL;
}

static void *barrier_body(void *arg) {
    struct rank *r = arg;
    r->rc = r->comm->ops->barrier(r->comm, td_clock_ms() + r->call_ms, &r->err);
    return NULL;
}

static void all_ok(const struct group *g) {
    for (int i = 0; i < g->size; i++) {
        if (g->ranks[i].rc != TD_OK) {
            fail_msg("rank %d: %s", i, g->ranks[i].err.msg);
        }
    }
}

static void group_form(struct group *g, int size) {
    group_open(g, size);
    group_run(g, form_body);
    all_ok(g);
}

// The documented order: a chunk starts at its own rank, the following ranks add theirs.
static double expected_f64(int size, size_t n, size_t i) {
    size_t each = n / (size_t)size, more = n % (size_t)size, big = (each + 1) * more;
    int c = (int)(i < big ? i / (each + 1) : more + (i - big) / each);
    double sum = summand(c, i);
    for (int k = 1; k < size; k++) {
        sum = summand((c + k) % size, i) + sum;
    }
    return sum;
}

static float expected_f32(int size, size_t n, size_t i) {
    size_t each = n / (size_t)size, more = n % (size_t)size, big = (each + 1) * more;
    int c = (int)(i < big ? i / (each + 1) : more + (i - big) / each);
    float sum = (float)summand(c, i);
    for (int k = 1; k < size; k++) {
        sum = (float)summand((c + k) % size, i) + sum;
    }
    return sum;
}

static void check_sums(struct group *g, size_t n, bool wide) {
    size_t width = wide ? sizeof(double) : sizeof(float);
    for (int i = 0; i < g->size; i++) {
        g->ranks[i].n = n;
    }
    group_run(g, wide ? reduce_f64_body : reduce_f32_body);
    all_ok(g);
    for (int i = 1; i < g->size; i++) {
        assert_memory_equal(g->ranks[i].out, g->ranks[0].out, n * width);
    }
    for (size_t i = 0; i < n; i++) {
        if (wide) {
            assert_true(((double *)g->ranks[0].out)[i] == expected_f64(g->size, n, i));
        } else {
            assert_true(((float *)g->ranks[0].out)[i] == expected_f32(g->size, n, i));
        }
    }
    for (int i = 0; i < g->size; i++) {
        td_free(g->ranks[i].out);
        g->ranks[i].out = NULL;
    }
}

static void test_comm_all_reduce_fixed_order(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 5};
    static const size_t lengths[] = {0, 1, 2, 4, 5, 7, 1000, 65537, 400001};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct group g;
        group_form(&g, sizes[s]);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            check_sums(&g, lengths[k], false);
            check_sums(&g, lengths[k], true);
        }
        group_run(&g, barrier_body);
        all_ok(&g);
        group_close(&g);
    }
}

// A rank that finishes and closes at once must not break those still reading.
static void *reduce_and_leave_body(void *arg) {
    struct rank *r = arg;
    reduce_f32_body(r);
    td_comm_free(r->comm);
    r->comm = NULL;
    return NULL;
}

static void test_comm_leaving_early_harms_nobody(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct group g;
        group_form(&g, 3);
        for (int i = 0; i < g.size; i++) {
            g.ranks[i].n = 30001;
        }
        group_run(&g, reduce_and_leave_body);
        all_ok(&g);
        group_close(&g);
    }
}

static void test_comm_listener_serves_the_next_generation(void **state) {
    (void)state;
    struct group g;
    group_form(&g, 3);
    for (int i = 0; i < g.size; i++) {
        td_comm_free(g.ranks[i].comm);
        g.ranks[i].comm = NULL;
        g.ranks[i].key++;
    }
    group_run(&g, form_body);
    all_ok(&g);
    check_sums(&g, 100, false);
    group_close(&g);
}

static void test_comm_refuses_bad_arguments(void **state) {
    (void)state;
    struct td_err err;
    struct td_comm *c = NULL;
    struct td_comm_listener *l = NULL;
    char *address = NULL;
    static const struct td_comm_place bad[] = {{NULL, 2, 2, 1}, {NULL, -1, 2, 1}, {NULL, 0, 0, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(td_comm_tcp_new(NULL, &bad[i], 0, &c, &err), TD_EINVAL);
    }
    assert_int_equal(td_comm_listen("0.0.0.0", &l, &address, &err), TD_EINVAL);
    assert_int_equal(td_comm_listen("::", &l, &address, &err), TD_EINVAL);
    assert_int_equal(td_comm_listen("not a host", &l, &address, &err), TD_EINVAL);
    assert_int_equal(td_comm_listen("127.0.0.1", &l, &address, &err), TD_OK);
    assert_int_equal(strncmp(address, "127.0.0.1:", 10), 0);
    const char *addresses[] = {address, "nowhere"};
    struct td_comm_place place = {addresses, 0, 2, 1};
    assert_int_equal(td_comm_tcp_new(l, &place, td_clock_ms() + 100, &c, &err), TD_EINVAL);
    assert_non_null(strstr(err.msg, "'nowhere'"));
    td_free(address);
    td_comm_listener_free(l);
    td_comm_free(NULL);
    td_comm_listener_free(NULL);
}

// Two ranks that do not belong together.
static void test_comm_refuses_strange_peers(void **state) {
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct group g;
        group_open(&g, 2);
        g.ranks[0].form_ms = g.ranks[1].form_ms = 800;
        if (what == 0) {
            g.ranks[1].key++;
        } else if (what == 1) {
            g.ranks[1].size = 3; // would talk to rank 2, at our address
            g.addresses[2] = g.addresses[0];
        } else {
            g.ranks[1].rank = 0; // both claim rank 0
        }
        group_run(&g, form_body);
        g.addresses[2] = NULL;
        int conflicts = 0;
        for (int i = 0; i < 2; i++) {
            assert_int_not_equal(g.ranks[i].rc, TD_OK);
            conflicts += g.ranks[i].rc == TD_ECONFLICT;
        }
        assert_true(conflicts > 0);
        group_close(&g);
    }
}

static int connect_to(const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    a.sin_port = htons((uint16_t)strtol(strrchr(address, ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void test_comm_garbage_on_the_port_is_refused(void **state) {
    (void)state;
    struct group g;
    group_open(&g, 2);
    int fds[24];
    uint64_t seed = (uint64_t)td_clock_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct td_rng rng = {seed};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) { // before the ring forms, in its way
        fds[i] = connect_to(g.addresses[i % 2]);
        uint8_t bytes[40];
        for (size_t k = 0; k < sizeof bytes; k++) {
            bytes[k] = (uint8_t)td_rng_next(&rng);
        }
        size_t n = i % 4 == 0 ? 0 : 1 + td_rng_below(&rng, sizeof bytes - 1); // some say nothing
        assert_int_equal(send(fds[i], bytes, n, MSG_NOSIGNAL), n);
    }
    group_run(&g, form_body);
    all_ok(&g);
    check_sums(&g, 999, false);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        struct pollfd p = {.fd = fds[i], .events = POLLIN};
        assert_int_equal(poll(&p, 1, SOON_MS), 1); // closed on the other side
        close(fds[i]);
    }
    group_close(&g);
}

static void test_comm_forming_without_a_peer(void **state) {
    (void)state;
    struct group g; // rank 1 never comes
    group_open(&g, 2);
    g.ranks[0].form_ms = 200;
    form(&g.ranks[0]);
    assert_int_equal(g.ranks[0].rc, TD_ETIMEOUT);
    assert_non_null(strstr(g.ranks[0].err.msg, "rank 1 did not"));
    td_comm_listener_free(g.ranks[1].listener); // nobody listens
    g.ranks[1].listener = NULL;
    g.ranks[0].form_ms = LONG_MS;
    form(&g.ranks[0]);
    assert_int_equal(g.ranks[0].rc, TD_ECLOSED);
    assert_non_null(strstr(g.ranks[0].err.msg, "rank 1 at "));
    td_comm_listener_free(g.ranks[0].listener);
    g.ranks[0].listener = NULL;
    td_free(g.addresses[0]);
    td_free(g.addresses[1]);
}

static void *wait_body(void *arg) { // ranks but the last wait in a barrier
    struct rank *r = arg;
    return r->rank == r->size - 1 ? NULL : barrier_body(r);
}

static void *abort_body(void *arg) {
    struct rank *r = arg;
    (void)poll(NULL, 0, 50); // the barrier is likely under way; either order must work
    r->comm->ops->abort(r->comm);
    return NULL;
}

static void test_comm_abort_from_another_thread(void **state) {
    (void)state;
    for (int size = 2; size <= RANKS_MAX; size += 3) {
        struct group g;
        group_form(&g, size);
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, abort_body, &g.ranks[0]), 0);
        int64_t start = td_clock_ms();
        group_run(&g, wait_body);
        assert_true(td_clock_ms() - start < SOON_MS);
        assert_int_equal(pthread_join(other, NULL), 0);
        for (int i = 0; i < size - 1; i++) {
            assert_int_equal(g.ranks[i].rc, TD_ECLOSED);
            assert_non_null(strstr(g.ranks[i].err.msg, "rank 0"));
            barrier_body(&g.ranks[i]); // later calls fail at once
            assert_int_equal(g.ranks[i].rc, TD_ECLOSED);
        }
        group_close(&g);
    }
}

static void *late_body(void *arg) { // the last rank lives but does not enter the call
    struct rank *r = arg;
    r->call_ms = 600;
    return wait_body(r);
}

static void test_comm_names_the_rank_that_stays_away(void **state) {
    (void)state;
    struct group g;
    group_form(&g, 5);
    group_run(&g, late_body);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(g.ranks[i].rc, TD_ETIMEOUT);
        assert_non_null(strstr(g.ranks[i].err.msg, "rank 4 is silent"));
    }
    group_close(&g);
}

// ---- ranks as processes

struct report {
    int rank;
    enum td_rc rc;
    char msg[200];
};

struct family {
    struct group g;
    pid_t pids[RANKS_MAX];
    int pipe[2];
};

// Reduces again and again; says when the first one is through, and how it ended.
static void child_main(struct family *f, int i, int64_t call_ms) {
    struct rank *r = &f->g.ranks[i];
    struct report report = {.rank = i};
    bool said = false;
    float x[70000];
    form(r);
    while (r->rc == TD_OK) {
        for (size_t k = 0; k < 70000; k++) {
            x[k] = 1;
        }
        int64_t deadline = td_clock_ms() + call_ms;
        r->rc = r->comm->ops->all_reduce_f32(r->comm, x, 70000, deadline, &r->err);
        for (size_t k = 0; r->rc == TD_OK && k < 70000; k++) {
            if (x[k] != (float)r->size) {
                r->rc = td_fail(&r->err, TD_ECORRUPT, "wrong sum");
            }
        }
        if (r->rc == TD_OK && !said) {
            said = write(f->pipe[1], &report, sizeof report) == sizeof report;
        }
    }
    report.rc = r->rc;
    snprintf(report.msg, sizeof report.msg, "%.190s", r->err.msg);
    bool told = write(f->pipe[1], &report, sizeof report) == sizeof report;
    td_comm_free(r->comm);
    _exit(told ? 0 : 1);
}

static struct report next_report(struct family *f) {
    struct report report;
    struct pollfd p = {.fd = f->pipe[0], .events = POLLIN};
    assert_int_equal(poll(&p, 1, LONG_MS), 1);
    assert_int_equal(read(f->pipe[0], &report, sizeof report), sizeof report);
    return report;
}

static void family_start(struct family *f, int size, int64_t call_ms) {
    group_open(&f->g, size);
    assert_int_equal(pipe(f->pipe), 0);
    for (int i = 0; i < size; i++) {
        f->pids[i] = fork();
        assert_true(f->pids[i] >= 0);
        if (f->pids[i] == 0) {
            child_main(f, i, call_ms);
        }
    }
    for (int i = 0; i < size; i++) {
        struct report report = next_report(f);
        if (report.rc != TD_OK) {
            fail_msg("rank %d: %s", report.rank, report.msg);
        }
    }
}

static void family_end(struct family *f) {
    for (int i = 0; i < f->g.size; i++) {
        kill(f->pids[i], SIGKILL);
        assert_int_equal(waitpid(f->pids[i], NULL, 0), f->pids[i]);
    }
    close(f->pipe[0]);
    close(f->pipe[1]);
    group_close(&f->g);
}

static void check_victim(int size, int victim, int sig, enum td_rc want, int64_t call_ms) {
    struct family f;
    family_start(&f, size, call_ms);
    int64_t start = td_clock_ms();
    assert_int_equal(kill(f.pids[victim], sig), 0);
    char name[40];
    snprintf(name, sizeof name, "rank %d is", victim);
    for (int i = 0; i < size - 1; i++) {
        struct report report = next_report(&f);
        assert_int_equal(report.rc, want);
        if (!strstr(report.msg, name)) {
            fail_msg("rank %d of %d says '%s', not '%s'", report.rank, size, report.msg, name);
        }
    }
    assert_true(td_clock_ms() - start < call_ms + SOON_MS);
    family_end(&f);
}

static void test_comm_killed_rank_is_named(void **state) {
    (void)state;
    for (int size = 2; size <= RANKS_MAX; size++) {
        check_victim(size, size / 2, SIGKILL, TD_ECLOSED, LONG_MS);
    }
    check_victim(5, 0, SIGKILL, TD_ECLOSED, LONG_MS);
}

static void test_comm_stopped_rank_is_named(void **state) {
    (void)state;
    check_victim(2, 1, SIGSTOP, TD_ETIMEOUT, 600);
    check_victim(3, 0, SIGSTOP, TD_ETIMEOUT, 600);
    check_victim(5, 3, SIGSTOP, TD_ETIMEOUT, 600);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_all_reduce_fixed_order),
        cmocka_unit_test(test_comm_leaving_early_harms_nobody),
        cmocka_unit_test(test_comm_listener_serves_the_next_generation),
        cmocka_unit_test(test_comm_refuses_bad_arguments),
        cmocka_unit_test(test_comm_refuses_strange_peers),
        cmocka_unit_test(test_comm_garbage_on_the_port_is_refused),
        cmocka_unit_test(test_comm_forming_without_a_peer),
        cmocka_unit_test(test_comm_abort_from_another_thread),
        cmocka_unit_test(test_comm_names_the_rank_that_stays_away),
        cmocka_unit_test(test_comm_killed_rank_is_named),
        cmocka_unit_test(test_comm_stopped_rank_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
