// The pool with real workers: they come up, are replaced when they die or fall silent, and nothing
// of them is left.
#include <sys/un.h>

#include "tests/unit/common/pool_rig.h"

static struct tiny_job job;

static int make_job(void **state) {
    (void)state;
    tiny_job_new(&job, TD_JOB_SFT, NULL);
    return 0;
}

static int remove_job(void **state) {
    (void)state;
    tiny_job_free(&job);
    return 0;
}

static void test_pool_up_and_stop(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 2);
    r.config.host = "localhost";
    rig_start(&r);
    assert_false(td_pool_is_up(r.pool, 0));
    wait_until(r.loop, &r.up, 2);
    assert_non_null(strstr(r.weights, ".sock.weights tcp:localhost:"));
    for (int i = 0; i < 2; i++) {
        assert_true(td_pool_is_up(r.pool, i) && r.set_up[i] && is_alive(r.pid[i]));
        rig_ask(&r, i);
    }
    wait_until(r.loop, &r.replies, 2);
    assert_int_equal(r.nulls, 0);
    rig_stop(&r);
    assert_true(!is_alive(r.pid[0]) && !is_alive(r.pid[1]));
    assert_true(r.failed == 0 && r.up == 2);
    rig_fini(&r);
}

// Stopped before a worker has come up, at different moments.
static void test_pool_stop_at_once(void **state) {
    (void)state;
    for (int ms = 0; ms <= 60; ms += 12) {
        struct rig r;
        rig_init(&r, &job, 2);
        rig_start(&r);
        rig_run(&r, ms);
        rig_fini(&r);
        assert_int_equal(r.failed, 0);
    }
}

// A request under way gets NULL, down is told, another process comes up.
static void test_pool_killed_worker(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 2);
    rig_start(&r);
    wait_until(r.loop, &r.up, 2);
    pid_t old = r.pid[0], other = r.pid[1];
    kill(old, SIGSTOP);
    rig_ask(&r, 0);
    kill(old, SIGKILL);
    wait_until(r.loop, &r.down, 1);
    assert_true(r.replies == 1 && r.nulls == 1);
    assert_false(td_pool_is_up(r.pool, 0));
    rig_ask(&r, 0);
    assert_int_equal(r.replies, 1); // not within the call
    wait_until(r.loop, &r.nulls, 2);
    wait_until(r.loop, &r.up, 3);
    assert_true(r.pid[0] != old && r.pid[1] == other && !is_alive(old));
    rig_ask(&r, 0);
    wait_until(r.loop, &r.replies, 3);
    assert_int_equal(r.nulls, 2);
    rig_fini(&r);
}

static void test_pool_silent_worker(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 1);
    r.config.silent_ms = 4000;
    rig_start(&r);
    wait_until(r.loop, &r.up, 1);
    pid_t old = r.pid[0];
    kill(old, SIGSTOP);
    wait_until(r.loop, &r.up, 2);
    assert_true(r.down == 1 && strstr(r.cause, "no heartbeat") && r.pid[0] != old);
    assert_false(is_alive(old)); // before another one worked at its place
    rig_fini(&r);
}

static void test_pool_unanswered_request(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 1);
    r.config.request_ms = 3000;
    rig_start(&r);
    wait_until(r.loop, &r.up, 1);
    kill(r.pid[0], SIGSTOP); // as long as it is shorter than silent_ms
    rig_ask(&r, 0);
    wait_until(r.loop, &r.down, 1);
    assert_non_null(strstr(r.cause, "no answer"));
    assert_int_equal(r.nulls, 1);
    rig_fini(&r);
}

// When this process could not listen, or the machine slept, the workers were not silent.
static void test_pool_own_stall(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 2);
    r.config.silent_ms = 3000;
    rig_start(&r);
    wait_until(r.loop, &r.up, 2);
    for (int asleep = 0; asleep < 2; asleep++) {
        for (int i = 0; i < 2; i++) {
            kill(r.pid[i], asleep ? SIGSTOP : SIGCONT);
        }
        for (int64_t until = td_clock_ms() + 5000; td_clock_ms() < until;) {
            poll(NULL, 0, 50); // SIGCHLD of the stop ends it early
        }
        rig_run(&r, 300); // asleep: they are not awake yet
        for (int i = 0; i < 2; i++) {
            kill(r.pid[i], SIGCONT);
        }
        rig_run(&r, 1500);
    }
    assert_true(r.down == 0 && r.up == 2);
    rig_fini(&r);
}

// A worker that is told to stop but does not is killed.
static void test_pool_stop_of_a_stopped_worker(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 2);
    rig_start(&r);
    wait_until(r.loop, &r.up, 2);
    kill(r.pid[1], SIGSTOP);
    rig_stop(&r);
    assert_false(is_alive(r.pid[1]));
    rig_fini(&r);
}

// td_pool_kill is called within effects: down must not be told before they are carried out.
static void test_pool_kill_is_told_later(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 1);
    rig_start(&r);
    wait_until(r.loop, &r.up, 1);
    pid_t old = r.pid[0];
    rig_ask(&r, 0);
    td_pool_kill(r.pool, 0, "the test says so");
    td_pool_kill(r.pool, 0, "again");
    assert_true(r.down == 0 && r.replies == 0);
    wait_until(r.loop, &r.up, 2);
    assert_int_equal(r.down, 1);
    assert_string_equal(r.cause, "the test says so");
    assert_true(r.replies == 1 && r.pid[0] != old && !is_alive(old));
    rig_fini(&r);
}

// ---- what cannot work is told once, clearly ----

static void test_pool_failing_setup(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 1);
    r.setup.model_dir = (char *)"/no/such/model";
    rig_start(&r);
    wait_until(r.loop, &r.failed, 1);
    assert_int_equal(r.err.code, TD_ENOENT);
    assert_non_null(strstr(r.err.msg, "worker train-0: "));
    assert_non_null(strstr(r.err.msg, "/no/such/model/config.json"));
    rig_run(&r, 1500);
    assert_true(r.failed == 1 && r.up == 0);
    rig_fini(&r);
}

static void test_pool_program_missing(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 1);
    r.config.program = "/no/such/tandem-worker";
    rig_start(&r);
    wait_until(r.loop, &r.failed, 1);
    assert_int_equal(r.err.code, TD_ENOENT);
    assert_non_null(strstr(r.err.msg, "/no/such/tandem-worker"));
    rig_run(&r, 1000);
    assert_int_equal(r.failed, 1);
    rig_fini(&r);
}

static void test_pool_program_ends_at_once(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 1);
    r.config.program = "/bin/false";
    rig_start(&r);
    wait_until(r.loop, &r.failed, 1);
    assert_non_null(strstr(r.err.msg, "worker train-0 failed 6 times in a row, at last: it ended"));
    rig_run(&r, 1000);
    assert_int_equal(r.failed, 1);
    rig_fini(&r);
}

static void test_pool_path_too_long(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 1);
    char deep[sizeof((struct sockaddr_un *)0)->sun_path];
    memset(deep, 'd', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    r.config.dir = deep;
    rig_start(&r);
    wait_until(r.loop, &r.failed, 1);
    assert_int_equal(r.err.code, TD_ELIMIT);
    assert_non_null(strstr(r.err.msg, "socket path has"));
    assert_int_equal(td_children_count(r.children), 0); // nothing was started that cannot work
    rig_fini(&r);
}

// ---- workers that outlive their controller ----

static void test_pool_attaches_again(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r, &job, 2);
    rig_start(&r);
    wait_until(r.loop, &r.up, 2);
    pid_t old[2] = {r.pid[0], r.pid[1]};
    kill(old[1], SIGSTOP);
    rig_ask(&r, 1); // never answered by this worker
    td_pool_free(r.pool);
    r.pool = NULL;
    assert_true(r.nulls == 1 && r.down == 0);
    kill(old[1], SIGCONT);
    rig_start(&r);
    wait_until(r.loop, &r.up, 4);
    assert_true(r.pid[0] == old[0] && r.pid[1] == old[1] && r.set_up[0] && r.set_up[1]);
    rig_ask(&r, 0);
    td_pool_free(r.pool); // its answer comes to nobody
    r.pool = NULL;
    rig_start(&r);
    wait_until(r.loop, &r.up, 6);
    rig_fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_up_and_stop),
        cmocka_unit_test(test_pool_stop_at_once),
        cmocka_unit_test(test_pool_killed_worker),
        cmocka_unit_test(test_pool_silent_worker),
        cmocka_unit_test(test_pool_unanswered_request),
        cmocka_unit_test(test_pool_own_stall),
        cmocka_unit_test(test_pool_stop_of_a_stopped_worker),
        cmocka_unit_test(test_pool_kill_is_told_later),
        cmocka_unit_test(test_pool_failing_setup),
        cmocka_unit_test(test_pool_program_missing),
        cmocka_unit_test(test_pool_program_ends_at_once),
        cmocka_unit_test(test_pool_path_too_long),
        cmocka_unit_test(test_pool_attaches_again),
    };
    return cmocka_run_group_tests(tests, make_job, remove_job);
}
