// The pool before workers that behave otherwise, and td_pool_end_strangers.
#include <sys/wait.h>

#include "tests/unit/common/pool_rig.h"
#include "tests/unit/worker/client.h"

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

// ---- a process that listens like a worker and answers Attach with one frame ----

typedef void answer_fn(td_frame *f);

static void answer_no_status(td_frame *f) {
    static Tandem__Worker__Attached m = TANDEM__WORKER__ATTACHED__INIT;
    f->body_case = TANDEM__WORKER__FRAME__BODY_ATTACHED;
    f->attached = &m;
}
static void answer_other_request(td_frame *f) {
    static Tandem__Worker__Done m = TANDEM__WORKER__DONE__INIT;
    f->reply_to += 100;
    f->body_case = TANDEM__WORKER__FRAME__BODY_DONE;
    f->done = &m;
}
static void answer_refused(td_frame *f) {
    static Tandem__Worker__Error m = TANDEM__WORKER__ERROR__INIT;
    m.code = TD_ECONFLICT;
    m.message = (char *)"worker belongs to job 1, not 77";
    f->body_case = TANDEM__WORKER__FRAME__BODY_ERROR;
    f->error = &m;
}
static void answer_broken(td_frame *f) {
    answer_refused(f);
    f->reply_to = 0;
    f->error->code = TD_EIO;
}
static void answer_nothing(td_frame *f) {
    f->body_case = TANDEM__WORKER__FRAME__BODY__NOT_SET;
}

static _Noreturn void pretend(const char *path, answer_fn *answer) {
    int listener = -1;
    struct td_err err;
    struct td_ipc_conn *conn = NULL;
    if (td_ipc_listen(path, &listener, &err) != TD_OK) {
        _exit(1);
    }
    while (td_ipc_accept(listener, &conn, &err) == TD_ETIMEOUT) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        (void)poll(&p, 1, 1000);
    }
    for (;;) {
        td_frame *f = NULL;
        int fds[TD_FRAME_FDS_MAX];
        if (td_ipc_recv(conn, &f, fds, &err) != TD_OK) {
            poll(NULL, 0, 60000); // it does not end by itself
            _exit(2);
        }
        if (f) {
            td_frame reply = TANDEM__WORKER__FRAME__INIT;
            reply.reply_to = f->seq;
            answer(&reply);
            if (td_ipc_send(conn, &reply, NULL, 0, &err) != TD_OK) {
                _exit(3);
            }
        }
        td_frame_free(f);
        struct pollfd p = {.fd = td_ipc_fd(conn), .events = POLLIN};
        (void)poll(&p, 1, 1000);
    }
}

// It is ended, though it is nobody's child here, and a real one comes in its place.
static void test_pool_replaces_pretenders(void **state) {
    (void)state;
    static answer_fn *const answers[] = {answer_no_status, answer_other_request, answer_refused,
                                         answer_broken, answer_nothing};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct rig r;
        rig_init(&r, &job, 1);
        char *path = td_asprintf("%s/train-0.sock", r.dir);
        pid_t pid = fork();
        if (pid == 0) {
            pretend(path, answers[i]);
        }
        for (int k = 0; !td_file_exists(path) && k < 5000; k++) {
            (void)poll(NULL, 0, 2);
        }
        r.config.start_ms = 6000;
        rig_start(&r);
        wait_until(r.loop, &r.up, 1);
        int status = 0;
        assert_true(r.pid[0] != pid && r.failed == 0 && r.down == 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        td_free(path);
        rig_fini(&r);
    }
}

// A worker that serves another controller is not ended: its state is not ours to lose. Once that
// one has gone it is attached.
static void test_pool_spares_a_served_worker(void **state) {
    (void)state;
    struct rig r;
    struct client c;
    rig_init(&r, &job, 1);
    client_start_at(&c, &job, "workers/train-0.sock", 60);
    client_attach(&c);
    client_setup(&c, "actor", 1);
    rig_start(&r);
    rig_run(&r, 1200);
    assert_true(is_alive(c.pid) && r.up == 0);
    assert_true(client_attach(&c)->set_up); // undisturbed
    client_disconnect(&c);
    wait_until(r.loop, &r.up, 1);
    assert_int_equal(r.pid[0], c.pid);
    rig_stop(&r);
    client_expect_exit(&c, 0);
    client_end(&c);
    rig_fini(&r);
}

// For ever served elsewhere: told, not waited for in silence.
static void test_pool_tells_of_a_served_worker(void **state) {
    (void)state;
    struct rig r;
    struct client c;
    rig_init(&r, &job, 1);
    client_start_at(&c, &job, "workers/train-0.sock", 60);
    client_attach(&c);
    rig_start(&r);
    wait_until(r.loop, &r.failed, 1);
    assert_non_null(strstr(r.err.msg, "serves another controller"));
    rig_stop(&r);
    client_end(&c); // by its own controller
    rig_fini(&r);
}

// ---- strangers ----

static void test_strangers_are_ended(void **state) {
    (void)state;
    struct client asked, served, stopped;
    char *dir = tiny_job_path(&job, "workers"), *dead = tiny_job_path(&job, "workers/dead.sock");
    char *other = tiny_job_path(&job, "workers/notes");
    char *weights = tiny_job_path(&job, "workers/dead.sock" TD_IPC_WEIGHTS_SUFFIX);
    struct td_err err;
    int fd = -1;
    assert_int_equal(td_make_dirs(dir, &err), TD_OK);
    client_start_at(&asked, &job, "workers/train-0.sock", 60);
    client_disconnect(&asked);
    client_start_at(&served, &job, "workers/train-1.sock", 60);
    client_attach(&served);
    client_setup(&served, "actor", 1); // it serves its weights when it is killed
    client_start_at(&stopped, &job, "workers/rollout-0.sock", 60);
    client_disconnect(&stopped);
    kill(stopped.pid, SIGSTOP);
    assert_int_equal(td_ipc_listen(dead, &fd, &err), TD_OK);
    close(fd);
    assert_int_equal(td_ipc_listen(weights, &fd, &err), TD_OK);
    close(fd);
    assert_int_equal(td_file_write(other, "x", 1, &err), TD_OK);

    td_pool_end_strangers(dir, 1500);
    client_expect_exit(&asked, 0);
    client_expect_exit(&served, SIGKILL);
    client_expect_exit(&stopped, SIGKILL);
    assert_false(td_file_exists(dead) || td_file_exists(weights));
    assert_true(td_file_exists(other));
    client_end(&asked);
    client_end(&served);
    client_end(&stopped);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(rmdir(dir), 0);
    td_pool_end_strangers(dir, 1500); // no folder: nothing to end
    td_free(dir);
    td_free(dead);
    td_free(other);
    td_free(weights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_replaces_pretenders),
        cmocka_unit_test(test_pool_spares_a_served_worker),
        cmocka_unit_test(test_pool_tells_of_a_served_worker),
        cmocka_unit_test(test_strangers_are_ended),
    };
    return cmocka_run_group_tests(tests, make_job, remove_job);
}
