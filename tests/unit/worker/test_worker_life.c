// A worker's life, as the real process: who may attach, what it does without a controller, how it
// ends.
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
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

static td_frame *attach_frame(Tandem__Worker__Attach *m, td_frame *f) {
    tandem__worker__attach__init(m);
    m->protocol = TD_IPC_PROTOCOL;
    m->controller = 1;
    m->job = TINY_JOB_ID;
    tandem__worker__frame__init(f);
    f->body_case = TANDEM__WORKER__FRAME__BODY_ATTACH;
    f->attach = m;
    return f;
}

// The peer has closed; frames that came before are passed over.
static void expect_closed(struct td_ipc_conn *conn) {
    int64_t until = td_clock_ms() + CLIENT_WAIT_MS;
    enum td_rc rc = TD_OK;
    while (rc == TD_OK) {
        td_frame *f = NULL;
        int fds[TD_FRAME_FDS_MAX];
        struct td_err err;
        rc = td_ipc_recv(conn, &f, fds, &err);
        td_frame_free(f);
        assert_true(td_clock_ms() < until);
        struct pollfd p = {.fd = td_ipc_fd(conn), .events = POLLIN};
        (void)poll(&p, 1, 20);
    }
    assert_int_equal(rc, TD_ECLOSED);
}

static void test_worker_attach_and_stop(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    const Tandem__Worker__Status *s = client_attach(&c);
    assert_int_equal(s->pid, c.pid);
    assert_true(s->worker != 0 && !s->set_up && s->job == 0);
    assert_string_equal(s->device, "cpu");
    assert_true(strlen(s->build) > 0);
    assert_int_equal(s->ref_offset, -1);
    client_end(&c);
}

static void test_worker_stop_as_first_frame(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    client_end(&c);
}

static void test_worker_needs_attach_and_setup(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    Tandem__Worker__Digest digest = TANDEM__WORKER__DIGEST__INIT;
    Tandem__Worker__Setup setup = TANDEM__WORKER__SETUP__INIT;
    client_refused(&c, FRAME(digest, DIGEST, &digest), -1, TD_ECONFLICT, "must be Attach");
    client_refused(&c, FRAME(setup, SETUP, &setup), -1, TD_ECONFLICT, "must be Attach");
    client_attach(&c);
    client_refused(&c, FRAME(digest, DIGEST, &digest), -1, TD_ECONFLICT, "no Setup yet");
    client_end(&c);
}

static void test_worker_refuses_bad_setup(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    client_attach(&c);
    char *model = tiny_job_path(&job, "model");
    struct bad {
        const char *role, *model;
        uint64_t job;
        uint32_t threads;
        size_t spec_bytes;
        enum td_rc code;
        const char *part;
    } cases[] = {
        {"critic", model, TINY_JOB_ID, 1, job.canonical.len, TD_EUNSUPPORTED, "\"critic\""},
        {"actor", model, TINY_JOB_ID, 0, job.canonical.len, TD_EINVAL, "threads 0"},
        {"actor", model, TINY_JOB_ID, 4096, job.canonical.len, TD_EINVAL, "threads 4096"},
        {"actor", model, TINY_JOB_ID + 1, 1, job.canonical.len, TD_ECONFLICT, "attached for"},
        {"actor", model, TINY_JOB_ID, 1, job.canonical.len - 3, TD_ECORRUPT, "job settings"},
        {"actor", job.dir, TINY_JOB_ID, 1, job.canonical.len, TD_ENOENT, "config.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Tandem__Worker__Setup m = TANDEM__WORKER__SETUP__INIT;
        m.job = cases[i].job;
        m.spec.data = job.canonical.data;
        m.spec.len = cases[i].spec_bytes;
        m.role = (char *)cases[i].role;
        m.threads = cases[i].threads;
        m.size = 1;
        m.model_dir = (char *)cases[i].model;
        client_refused(&c, FRAME(setup, SETUP, &m), -1, cases[i].code, cases[i].part);
    }
    td_free(model);
    client_setup(&c, "actor", 1); // none of them left anything behind
    client_setup(&c, "actor", 1); // again: Done at once
    Tandem__Worker__Setup other = TANDEM__WORKER__SETUP__INIT;
    other.job = TINY_JOB_ID;
    other.role = (char *)"rollout";
    client_refused(&c, FRAME(setup, SETUP, &other), -1, TD_ECONFLICT, "has the seat actor");
    const Tandem__Worker__Status *s = client_attach(&c);
    assert_true(s->set_up && s->job == TINY_JOB_ID);
    assert_string_equal(s->role, "actor");
    client_end(&c);
}

// While the first lives a second one is refused; after its end it is served.
static void test_worker_second_controller(void **state) {
    (void)state;
    struct client c;
    struct td_ipc_conn *second = NULL;
    struct td_err err;
    client_start(&c, &job, 60);
    client_attach(&c);
    assert_int_equal(td_ipc_connect(c.socket, &second, &err), TD_OK);
    struct td_ipc_conn *first = c.conn;
    c.conn = second;
    uint64_t seq = c.seq;
    c.seq = 0; // the refusal answers the connection: a frame might find it closed already
    const td_frame *reply = client_reply(&c);
    assert_int_equal(reply->body_case, TANDEM__WORKER__FRAME__BODY_ERROR);
    assert_int_equal(reply->error->code, TD_ECONFLICT);
    expect_closed(second);
    client_disconnect(&c);
    c.conn = first;
    c.seq = seq;
    client_attach(&c); // undisturbed
    client_disconnect(&c);
    client_connect(&c);
    client_attach(&c);
    client_end(&c);
}

// An Attach that is refused ends its connection: it must not keep the right one out.
static void test_worker_refused_attach(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    client_attach(&c);
    client_setup(&c, "actor", 1);
    Tandem__Worker__Attach m;
    td_frame f;
    for (int i = 0; i < 2; i++) {
        client_disconnect(&c);
        client_connect(&c);
        attach_frame(&m, &f);
        m.job += i == 0;
        m.protocol += i == 1;
        client_refused(&c, &f, -1, i ? TD_EUNSUPPORTED : TD_ECONFLICT, i ? "protocol" : "job");
        expect_closed(c.conn);
    }
    client_disconnect(&c);
    client_connect(&c);
    assert_true(client_attach(&c)->set_up);
    client_end(&c);
}

// A connection that never attaches neither blocks a controller nor keeps the worker alive.
static void test_worker_silent_connection(void **state) {
    (void)state;
    struct client c;
    struct td_ipc_conn *silent = NULL;
    struct td_err err;
    client_start(&c, &job, 3);
    client_attach(&c);
    client_disconnect(&c);
    assert_int_equal(td_ipc_connect(c.socket, &silent, &err), TD_OK);
    client_connect(&c);
    client_attach(&c);
    expect_closed(silent);
    td_ipc_conn_free(silent);
    client_disconnect(&c);
    assert_int_equal(td_ipc_connect(c.socket, &silent, &err), TD_OK);
    client_expect_exit(&c, 0);
    td_ipc_conn_free(silent);
    client_end(&c);
}

static void test_worker_grace_time(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 1);
    client_attach(&c);
    client_wait_beats(&c, 3); // attached for longer than the grace time
    client_disconnect(&c);
    int64_t left = td_clock_ms();
    client_expect_exit(&c, 0);
    assert_true(td_clock_ms() - left >= 900);
    client_end(&c);
}

// Two were started for one place: the first cannot be found any more and ends, without taking the
// sockets of the second away.
static void test_worker_replaced(void **state) {
    (void)state;
    struct client first, second;
    client_start(&first, &job, 60);
    client_disconnect(&first);
    client_start(&second, &job, 60);
    client_disconnect(&second); // perhaps it came before the second listened
    int found = -1;
    int64_t until = td_clock_ms() + CLIENT_WAIT_MS;
    while (waitpid(first.pid, &found, WNOHANG) == 0) {
        assert_true(td_clock_ms() < until);
        (void)poll(NULL, 0, 5);
    }
    first.pid = 0;
    assert_int_equal(found, 0);
    client_connect(&second);
    client_attach(&second);
    client_end(&first);
    client_end(&second);
}

static void test_worker_never_attached(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 1);
    client_disconnect(&c);
    client_expect_exit(&c, 0);
    client_end(&c);
}

static void test_worker_sigterm(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    client_attach(&c);
    kill(c.pid, SIGINT); // of a terminal: the controller decides
    client_attach(&c);
    kill(c.pid, SIGTERM);
    client_expect_exit(&c, 0);
    client_end(&c);
}

// Bytes that are no frame end the connection, not the worker.
static void test_worker_garbage(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    client_attach(&c);
    uint8_t bytes[64];
    memset(bytes, 0xee, sizeof bytes);
    assert_int_equal(write(td_ipc_fd(c.conn), bytes, sizeof bytes), sizeof bytes);
    expect_closed(c.conn);
    client_disconnect(&c);
    client_connect(&c);
    client_attach(&c);
    td_frame empty = TANDEM__WORKER__FRAME__INIT; // a body this worker does not know
    client_refused(&c, &empty, -1, TD_ECONFLICT, "no Setup");
    client_setup(&c, "actor", 1);
    client_refused(&c, &empty, -1, TD_EUNSUPPORTED, "takes no frame");
    client_end(&c);
}

// ---- a busy command thread: a ring whose second rank never answers ----

static int mute_fd = -1;
static char mute_address[32];

static int make_mute(void **state) {
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    mute_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(mute_fd, (struct sockaddr *)&at, n), 0);
    assert_int_equal(listen(mute_fd, 8), 0);
    assert_int_equal(getsockname(mute_fd, (struct sockaddr *)&at, &n), 0);
    snprintf(mute_address, sizeof mute_address, "127.0.0.1:%d", ntohs(at.sin_port));
    return 0;
}

static int close_mute(void **state) {
    (void)state;
    close(mute_fd);
    return 0;
}

static void send_ring(struct client *c, uint64_t deadline_ms) {
    client_setup(c, "actor", 2);
    const Tandem__Worker__Status *s = client_attach(c);
    assert_true(strlen(s->ring_address) > 0);
    char *own = td_strdup(s->ring_address);
    char *addresses[] = {own, mute_address};
    Tandem__Worker__Ring m = TANDEM__WORKER__RING__INIT;
    m.generation = 1;
    m.addresses = addresses;
    m.n_addresses = 2;
    m.deadline_ms = deadline_ms;
    client_send(c, FRAME(ring, RING, &m), -1);
    td_free(own);
}

static void test_worker_beats_while_busy(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    client_attach(&c);
    send_ring(&c, 3500);
    c.beats = 0;
    const td_frame *f = client_reply(&c);
    assert_int_equal(f->body_case, TANDEM__WORKER__FRAME__BODY_ERROR);
    assert_int_equal(f->error->code, TD_ETIMEOUT);
    assert_true(c.beats >= 2);
    assert_string_equal(c.doing, "ring");
    client_wait_beats(&c, 1);
    assert_string_equal(c.doing, "idle");
    client_end(&c);
}

// The controller dies while the worker is busy: the next one waits and is served, though the grace
// time passes meanwhile.
static void test_worker_busy_is_attached_again(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 1);
    client_attach(&c);
    send_ring(&c, 4000);
    client_wait_beats(&c, 1);
    client_disconnect(&c);
    client_connect(&c);
    const Tandem__Worker__Status *s = client_attach(&c);
    assert_true(s->set_up && s->generation == 0);
    client_end(&c);
}

// SIGTERM while it is busy: it ends as soon as it can, with its socket.
static void test_worker_busy_sigterm(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 60);
    client_attach(&c);
    send_ring(&c, 1500);
    client_wait_beats(&c, 1);
    kill(c.pid, SIGTERM);
    client_expect_exit(&c, 0);
    client_end(&c);
}

// Nobody comes back: it ends in the middle of its work.
static void test_worker_busy_ends_after_grace(void **state) {
    (void)state;
    struct client c;
    client_start(&c, &job, 1);
    client_attach(&c);
    send_ring(&c, 600000);
    client_wait_beats(&c, 1);
    client_disconnect(&c);
    client_expect_exit(&c, 0);
    client_end(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_attach_and_stop),
        cmocka_unit_test(test_worker_stop_as_first_frame),
        cmocka_unit_test(test_worker_needs_attach_and_setup),
        cmocka_unit_test(test_worker_refuses_bad_setup),
        cmocka_unit_test(test_worker_second_controller),
        cmocka_unit_test(test_worker_refused_attach),
        cmocka_unit_test(test_worker_silent_connection),
        cmocka_unit_test(test_worker_grace_time),
        cmocka_unit_test(test_worker_replaced),
        cmocka_unit_test(test_worker_never_attached),
        cmocka_unit_test(test_worker_sigterm),
        cmocka_unit_test(test_worker_garbage),
        cmocka_unit_test_setup_teardown(test_worker_beats_while_busy, make_mute, close_mute),
        cmocka_unit_test_setup_teardown(test_worker_busy_is_attached_again, make_mute, close_mute),
        cmocka_unit_test_setup_teardown(test_worker_busy_sigterm, make_mute, close_mute),
        cmocka_unit_test_setup_teardown(test_worker_busy_ends_after_grace, make_mute, close_mute),
    };
    return cmocka_run_group_tests(tests, make_job, remove_job);
}
