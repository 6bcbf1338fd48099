// `tandem up`, `down` and `logs` with a real redis-server and daemons that only register.
#include "tests/unit/cli/command.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/cluster.h"
#include "cli/process.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { PROGRAM_MAX = 1 << 28, DEADLINE_MS = 60000 };

static char root[] = "/tmp/tandem-up-XXXXXX";

static void copy_program(const char *from, const char *to) {
    struct td_buf bytes = {0};
    struct td_err err;
    if (link(from, to) == 0) {
        return;
    }
    assert_int_equal(td_file_read(from, PROGRAM_MAX, &bytes, &err), TD_OK);
    assert_int_equal(td_file_write(to, bytes.data, bytes.len, &err), TD_OK);
    assert_int_equal(chmod(to, 0755), 0);
    td_buf_fini(&bytes);
}

static int enter_dir(void **state) {
    struct td_err err = {0};
    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(chdir(root), 0);
    assert_int_equal(td_make_dirs("bin", &err), TD_OK);
    assert_int_equal(td_make_dirs("alone", &err), TD_OK);
    copy_program(TD_TEST_TANDEM, "bin/tandem");
    copy_program(TD_TEST_TANDEM, "alone/tandem");
    copy_program(TD_TEST_FAKE_DAEMON, "bin/tandem-coordinator");
    copy_program(TD_TEST_FAKE_DAEMON, "bin/tandem-rollout");
    copy_program(TD_TEST_FAKE_DAEMON, "bin/tandem-train");
    unsetenv("TANDEM_ADDRESS");
    unsetenv("TANDEM_DIR");
    return 0;
}

static struct run tandem(const char *const *args) {
    return command_end(command_start_of("bin/tandem", args));
}

// A test that failed may have left a cluster.
static int leave_dir(void **state) {
    static const char *const names[] = {"d", "m", "r", "n", "k", "z"};
    struct td_err err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *const args[] = {"down", "--dir", names[i], "--grace", "1", NULL};
        struct run r = tandem(args);
        run_fini(&r);
    }
    return td_remove_tree(root, &err) == TD_OK ? 0 : -1;
}

// out and err: pieces that must be there; NULL: nothing is looked at.
static void expect(const char *const *args, int status, const char *out, const char *err) {
    struct run r = tandem(args);
    if (r.status != status || !strstr(td_buf_str(&r.out), out ? out : "") ||
        !strstr(td_buf_str(&r.err), err ? err : "")) {
        fail_msg("%s %s: status %d\n%s\n%s", args[0], args[1] ? args[1] : "", r.status,
                 td_buf_str(&r.out), td_buf_str(&r.err));
    }
    run_fini(&r);
}
#define EXPECT(status, out, err, ...)                                                              \
    expect((const char *const[]){__VA_ARGS__, NULL}, status, out, err)

static void read_cluster(const char *dir, struct td_cluster *c) {
    struct td_err err;
    if (td_cluster_read(dir, c, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

static pid_t worker_of(const char *dir, const char *name) {
    struct td_buf text = {0};
    struct td_err err;
    char *path = td_asprintf("%s/%s/worker", dir, name);
    assert_int_equal(td_file_read(path, 64, &text, &err), TD_OK);
    pid_t pid = (pid_t)strtol(td_buf_str(&text), NULL, 10);
    td_buf_fini(&text);
    td_free(path);
    return pid;
}

static void tell(const char *dir, const char *name, const char *what) {
    struct td_err err;
    char *folder = td_asprintf("%s/%s", dir, name), *path = td_asprintf("%s/%s", folder, what);
    assert_int_equal(td_make_dirs(folder, &err), TD_OK);
    assert_int_equal(td_file_write(path, "", 0, &err), TD_OK);
    td_free(path);
    td_free(folder);
}

static void wait_dead(pid_t pid, uint64_t start) {
    int64_t until_ms = td_clock_ms() + DEADLINE_MS;
    while (td_process_alive(pid, start) && td_clock_ms() < until_ms) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_false(td_process_alive(pid, start));
}

static int sockets_in(const char *dir) {
    int n = 0;
    struct stat st;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *path = td_asprintf("%s/%s", dir, e->d_name);
        n += lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
        td_free(path);
    }
    if (d) {
        closedir(d);
    }
    return n;
}

// Nothing runs, and no socket is left.
static void assert_down(const char *dir, const struct td_cluster *was) {
    for (size_t i = 0; i < was->count; i++) {
        const struct td_cluster_process *p = &was->processes[i];
        char *workers = td_asprintf("%s/%s/jobs/7", dir, p->name);
        char *redis = td_asprintf("%s/redis", dir);
        assert_false(td_cluster_alive(p));
        assert_int_equal(sockets_in(workers) + sockets_in(redis), 0);
        if (td_cluster_is(p, "rollout") || td_cluster_is(p, "train")) {
            assert_int_equal(td_process_start(worker_of(dir, p->name)), 0);
        }
        td_free(redis);
        td_free(workers);
    }
}

static void test_up_down(void **state) {
    struct td_cluster c, again;
    (void)state;
    EXPECT(0, "cluster in d: up\n", NULL, "up", "--dir", "d", "--fast");
    read_cluster("d", &c);
    assert_int_equal(c.count, 6); // redis, two coordinators, three controllers
    for (size_t i = 0; i < c.count; i++) {
        assert_true(td_cluster_alive(&c.processes[i]));
        assert_int_equal(getsid(c.processes[i].pid), c.processes[i].pid);
    }
    EXPECT(0, "rollout-0 serves\n", NULL, "logs", "rollout-0", "--dir", "d");
    EXPECT(0, "==> rollout-1 <==\nrollout-1 serves\n", NULL, "logs", "--dir", "d");
    EXPECT(3, NULL, "no rollout-7 here; there are redis coordinator-0", "logs", "rollout-7",
           "--dir", "d");
    EXPECT(0, "rollout", NULL, "get", "controllers", "--dir", "d");
    EXPECT(0, "was up already", NULL, "up", "--dir", "d");
    EXPECT(2, NULL, "keeps its logs in files", "up", "--dir", "d", "--kafka");
    EXPECT(2, NULL, "changes after `tandem down`", "up", "--dir", "d", "--train-workers", "3");
    EXPECT(0, "cluster in d: down\n", NULL, "down", "--dir", "d");
    assert_down("d", &c);
    EXPECT(0, "was down already", NULL, "down", "--dir", "d");
    EXPECT(4, NULL, "no coordinator runs in d", "get", "jobs", "--dir", "d");
    // As it was told the first time.
    EXPECT(0, "cluster in d: up\n", NULL, "up", "--dir", "d");
    read_cluster("d", &again);
    assert_int_equal(again.count, 6);
    assert_true(again.shape.fast);
    EXPECT(0, "files removed", NULL, "down", "--dir", "d", "--purge");
    assert_false(td_file_exists("d"));
    td_cluster_fini(&c);
    td_cluster_fini(&again);
}

// What died is started, what lives is let be.
static void test_up_starts_what_is_missing(void **state) {
    static const char *const victims[] = {"redis", "coordinator-0", "rollout-1"};
    struct td_cluster c, again;
    (void)state;
    EXPECT(0, "up\n", NULL, "up", "--dir", "m");
    read_cluster("m", &c);
    for (size_t i = 0; i < 3; i++) {
        struct td_cluster_process *p = td_cluster_find(&c, victims[i]);
        assert_true(td_process_signal(p->pid, p->start, SIGKILL));
        wait_dead(p->pid, p->start);
    }
    EXPECT(0, "cluster in m: up\n", NULL, "up", "--dir", "m", "--rollout", "3");
    read_cluster("m", &again);
    assert_int_equal(again.count, 7);
    for (size_t i = 0; i < c.count; i++) {
        const struct td_cluster_process *p = &c.processes[i];
        const struct td_cluster_process *q = td_cluster_find(&again, p->name);
        bool victim = false;
        for (size_t k = 0; k < 3; k++) {
            victim = victim || strcmp(victims[k], p->name) == 0;
        }
        assert_non_null(q);
        assert_true(td_cluster_alive(q));
        assert_true((q->pid == p->pid && q->start == p->start) == !victim);
        assert_true(!p->http || strcmp(p->http, q->http) == 0);
    }
    EXPECT(0, "down\n", NULL, "down", "--dir", "m");
    assert_down("m", &again);
    td_cluster_fini(&c);
    td_cluster_fini(&again);
}

static void test_up_daemon_refuses(void **state) {
    struct td_cluster c;
    (void)state;
    tell("r", "rollout-1", "refuse");
    EXPECT(1, NULL, "rollout-1 ended with exit status 1\nthe end of ", "up", "--dir", "r");
    read_cluster("r", &c);
    for (size_t i = 0; i < c.count; i++) {
        assert_int_equal(c.processes[i].pid, 0);
    }
    EXPECT(0, NULL, NULL, "down", "--dir", "r");
    td_cluster_fini(&c);
}

// A controller that does not register: the wait ends, the processes go on; SIGINT takes them along.
static void test_up_not_ready(void **state) {
    struct td_cluster c;
    (void)state;
    tell("n", "train-0", "silent");
    EXPECT(4, NULL, "of 1 train controllers 0", "up", "--dir", "n", "--timeout", "1");
    read_cluster("n", &c);
    assert_true(td_cluster_alive(td_cluster_find(&c, "train-0")));
    EXPECT(0, "down\n", NULL, "down", "--dir", "n");
    td_cluster_fini(&c);

    const char *const args[] = {"up", "--dir", "n", NULL};
    pid_t pid = command_start_of("bin/tandem", args);
    int64_t until_ms = td_clock_ms() + DEADLINE_MS;
    bool all = false;
    while (!all && td_clock_ms() < until_ms) {
        struct td_cluster_process *train;
        struct td_err err;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        if (td_cluster_read("n", &c, &err) == TD_OK) {
            train = td_cluster_find(&c, "train-0");
            all = train && td_cluster_alive(train);
            if (!all) {
                td_cluster_fini(&c);
            }
        }
    }
    assert_true(all);
    assert_int_equal(kill(pid, SIGINT), 0);
    struct run r = command_end(pid);
    assert_int_equal(r.status, 130);
    for (size_t i = 0; i < c.count; i++) {
        assert_false(td_cluster_alive(&c.processes[i]));
    }
    run_fini(&r);
    td_cluster_fini(&c);
}

// One that does not end is killed, one that stands still too, and so are the workers they leave.
static void test_down_kills(void **state) {
    struct td_cluster c;
    (void)state;
    tell("k", "rollout-0", "stubborn");
    EXPECT(0, "up\n", NULL, "up", "--dir", "k");
    read_cluster("k", &c);
    struct td_cluster_process *p = td_cluster_find(&c, "train-0");
    assert_true(td_process_signal(p->pid, p->start, SIGSTOP));
    assert_true(td_process_start(worker_of("k", "rollout-0")) != 0);
    EXPECT(0, "down\n", "1 processes did not end within 0 s and were killed", "down", "--dir", "k",
           "--grace", "0.4");
    assert_down("k", &c);
    td_cluster_fini(&c);
}

static void test_up_refuses(void **state) {
    char deep[100];
    (void)state;
    memset(deep, 'x', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    EXPECT(2, NULL, "limits to 107, so at most 60; name a shorter one", "up", "--dir", deep);
    EXPECT(2, NULL, "at least one coordinator", "up", "--dir", "z", "--coordinators", "0");
    EXPECT(2, NULL, "are too many for one machine", "up", "--dir", "z", "--rollout", "90");
    EXPECT(2, NULL, "takes options only, not now", "up", "now");
    EXPECT(2, NULL, "--rollout needs a whole number", "up", "--rollout", "-1");
    EXPECT(3, NULL, "there is no cluster in nowhere", "down", "--dir", "nowhere");
    EXPECT(3, NULL, "there is no cluster in nowhere", "logs", "--dir", "nowhere");
    EXPECT(3, NULL, "there is no cluster in bin", "down", "--dir", "bin");
    assert_int_equal(access("bin/lock", F_OK), -1); // no cluster's folder stays as it was
    const char *const args[] = {"up", "--dir", "z", NULL};
    struct run r = command_end(command_start_of("alone/tandem", args));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(td_buf_str(&r.err), "tandem-coordinator, which belongs beside"));
    run_fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_up_down),           cmocka_unit_test(test_up_starts_what_is_missing),
        cmocka_unit_test(test_up_daemon_refuses), cmocka_unit_test(test_up_not_ready),
        cmocka_unit_test(test_down_kills),        cmocka_unit_test(test_up_refuses),
    };
    return cmocka_run_group_tests(tests, enter_dir, leave_dir);
}
