// A controller daemon: told to stop, or to give a job up, while it reads the job's files.
#include "controllers/common/member.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/link_grpc.h"
#include "tests/unit/cmocka_all.h"
#include "tests/unit/job/tiny_job.h"

enum { LOOK_MS = 2, DEADLINE_MS = 60000 };

// Has a loop of its own, on a thread.
struct coordinator {
    const struct tiny_job *job;
    const char *address, *fifo;
    struct td_loop *loop;
    struct td_link_server *link;
    struct td_timer *timer;
    int64_t deadline_ms;
    int writer; // holds the reader of the job's files up; −1: it has not come there yet
    bool asked;
    const char
        *socket; // of a dead worker of job 1, which is to be served for a while; NULL: no job
    int reports; // since the job is wanted no more
    bool ended;  // the read
};

static void give_orders(struct coordinator *c, uint64_t member, Tandem__Sync__Orders *orders) {
    uint8_t packed[16384];
    orders->journal_id = orders->term = 1;
    td_assert(tandem__sync__orders__get_packed_size(orders) <= sizeof packed);
    td_link_server_orders(c->link, member, packed, tandem__sync__orders__pack(orders, packed));
}

static void order_to_serve(struct coordinator *c, uint64_t member) {
    Tandem__Sync__Orders orders = TANDEM__SYNC__ORDERS__INIT;
    Tandem__Sync__Serve serve = TANDEM__SYNC__SERVE__INIT;
    serve.job = 1;
    serve.spec.data = c->job->canonical.data;
    serve.spec.len = c->job->canonical.len;
    c->reports += c->writer >= 0;
    orders.serve = c->writer < 0 ? &serve : NULL;
    give_orders(c, member, &orders);
}

static void on_report(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    struct coordinator *c = user;
    Tandem__Sync__Attempt attempt = TANDEM__SYNC__ATTEMPT__INIT;
    Tandem__Sync__Index index = TANDEM__SYNC__INDEX__INIT, *list[] = {&index};
    Tandem__Sync__Orders orders = TANDEM__SYNC__ORDERS__INIT;
    (void)bytes;
    (void)n;
    if (c->socket) {
        order_to_serve(c, member);
        return;
    }
    if (c->asked) {
        return;
    }
    c->asked = true;
    attempt.term = attempt.n = 1;
    index.request_id = "a request";
    index.spec.data = c->job->canonical.data;
    index.spec.len = c->job->canonical.len;
    index.attempt = &attempt;
    orders.n_index = 1;
    orders.index = list;
    give_orders(c, member, &orders);
}

static bool has_thread(const char *name) {
    bool found = false;
    DIR *d = opendir("/proc/self/task");
    td_assert(d);
    for (struct dirent *e; !found && (e = readdir(d));) {
        char *path = td_asprintf("/proc/self/task/%s/comm", e->d_name);
        struct td_buf text = {0};
        found = td_file_read(path, 64, &text, NULL) == TD_OK &&
                strncmp(td_buf_str(&text), name, strlen(name)) == 0;
        td_buf_fini(&text);
        td_free(path);
    }
    closedir(d);
    return found;
}

// The member knows that the job is wanted no more when the read ends: nothing of it may stay.
static bool given_up(struct coordinator *c) {
    if (c->reports > 2 && !c->ended) {
        c->ended = true;
        close(c->writer);
    }
    if (td_file_exists(c->socket)) {
        return false;
    }
    kill(getpid(), SIGTERM);
    td_loop_stop(c->loop);
    return true;
}

// The member is stopped while its thread reads, and the read ends when the queue that is freed
// before the reader's is gone.
static void on_timer(void *user) {
    struct coordinator *c = user;
    td_assert(td_clock_ms() < c->deadline_ms);
    if (c->writer < 0) {
        c->writer = open(c->fifo, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (c->writer >= 0 && !c->socket) {
            kill(getpid(), SIGTERM);
        }
    } else if (c->socket) {
        if (given_up(c)) {
            return;
        }
    } else if (!has_thread("td-work")) {
        close(c->writer);
        td_loop_stop(c->loop);
        return;
    }
    td_timer_start(c->timer, LOOK_MS);
}

static void *run_coordinator(void *user) {
    struct coordinator *c = user;
    struct td_rpc *rpc = NULL;
    struct td_rpc_server *server = NULL;
    td_assert(td_loop_new(&c->loop, NULL) == TD_OK && td_rpc_new(c->loop, &rpc, NULL) == TD_OK);
    c->link = td_link_server_new(c->loop, on_report, c);
    struct td_rpc_method method = td_link_server_method(c->link);
    struct td_rpc_server_opts opts = {.rpc = rpc, .methods = &method, .method_count = 1};
    td_assert(td_rpc_server_new(&opts, &server, NULL) == TD_OK &&
              td_rpc_server_listen(server, c->address, NULL, NULL) == TD_OK);
    td_rpc_server_start(server);
    c->timer = td_timer_new(c->loop, on_timer, c);
    td_timer_start(c->timer, LOOK_MS);
    td_loop_run(c->loop);
    td_timer_close(c->timer);
    td_rpc_server_free(server);
    td_link_server_free(c->link);
    td_rpc_free(rpc);
    td_loop_free(c->loop);
    return NULL;
}

// A member in DIR/member of a job whose tokenizer can be held up.
static void run(struct tiny_job *job, const char *socket) {
    static const struct td_member_role role = {.program = "tandem-test",
                                               .kind = TANDEM__SYNC__MEMBER_KIND__ROLLOUT};
    char *fifo = tiny_job_path(job, "model/tokenizer.json");
    char *address = td_asprintf("unix:%s/coordinator", job->dir);
    char *dir = tiny_job_path(job, "member"), *shared = tiny_job_path(job, "shared");
    assert_int_equal(unlink(fifo), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    struct coordinator c = {.job = job,
                            .address = address,
                            .fifo = fifo,
                            .deadline_ms = td_clock_ms() + DEADLINE_MS,
                            .writer = -1,
                            .socket = socket};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_coordinator, &c), 0);
    const char *addresses[] = {address};
    struct td_daemon_settings settings = {.dir = dir,
                                          .host = "127.0.0.1",
                                          .shared_dir = shared,
                                          .coordinators = {addresses, 1},
                                          .workers = 1,
                                          .threads = 1};
    struct td_err err;
    assert_int_equal(td_member_daemon(&settings, &role, &err), TD_OK);
    pthread_join(thread, NULL);
    td_free(fifo);
    td_free(address);
    td_free(dir);
    td_free(shared);
    tiny_job_free(job);
}

static void test_member_stops_while_it_reads(void **state) {
    (void)state;
    struct tiny_job job;
    tiny_job_new(&job, TD_JOB_SFT, NULL);
    run(&job, NULL);
}

// What a worker left that died with an earlier process of this member.
static void test_member_leaves_no_socket_of_a_job_it_did_not_begin(void **state) {
    (void)state;
    struct tiny_job job;
    tiny_job_new(&job, TD_JOB_SFT, NULL);
    char *folder = tiny_job_path(&job, "member/jobs/1");
    assert_int_equal(td_make_dirs(folder, NULL), TD_OK);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s/rollout-0.sock", folder);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
    close(fd);
    run(&job, name.sun_path);
    td_free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member_stops_while_it_reads),
        cmocka_unit_test(test_member_leaves_no_socket_of_a_job_it_did_not_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
