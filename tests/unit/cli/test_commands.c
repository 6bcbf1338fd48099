// Commands against coordinators of canned answers: what they print, their exit status, and what
// they do while nobody leads.
#include "tests/unit/cli/command.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "tests/unit/cli/fake.h"

#define JOB                                                                                        \
    "data: {train_files: [t.jsonl, /abs/u.jsonl], train_batch_size: 256}\n"                        \
    "actor_rollout_ref: {model: {path: models/m}, rollout: {n: 4}}\n"

enum { DEADLINE_MS = 60000 };

static char dir[] = "/tmp/tandem-commands-XXXXXX";

static int enter_dir(void **state) {
    (void)state;
    unsetenv("TANDEM_ADDRESS");
    unsetenv("TANDEM_DIR");
    return enter_folder(dir, JOB);
}

static int leave_dir(void **state) {
    (void)state;
    return td_remove_tree(dir, NULL) == TD_OK ? 0 : -1;
}

struct row {
    const char *args[ARGS_MAX];
    int status;
    const char *out, *err; // pieces that must be there; NULL: nothing is
};

static void check_row(const struct row *row, size_t i) {
    struct run r = run(row->args);
    const char *out = td_buf_str(&r.out), *err = td_buf_str(&r.err);
    if (r.status != row->status || !strstr(out, row->out ? row->out : "") ||
        !strstr(err, row->err ? row->err : "") || (!row->out && *out) || (!row->err && *err)) {
        fail_msg("row %zu (%s): status %d\n%s\n%s", i, row->args[0], r.status, out, err);
    }
    run_fini(&r);
}

static void await_piece(const char *file, const char *piece) {
    struct td_buf out = {0};
    int64_t deadline_ms = td_clock_ms() + DEADLINE_MS;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        read_back(file, &out);
    } while (!strstr(td_buf_str(&out), piece) && td_clock_ms() < deadline_ms);
    if (!strstr(td_buf_str(&out), piece)) {
        fail_msg("no '%s' in '%s'", piece, td_buf_str(&out));
    }
    td_buf_fini(&out);
}

static void test_commands_answers(void **state) {
    static const struct row rows[] = {
        {{"get", "jobs"},
         0,
         "7    grpo   RUNNING     2/5    0.500    0.750      0.2500   group 3",
         NULL},
        {{"get", "jobs", "2"}, 0, "2    grpo   FAILED   5/5 ", NULL},
        {{"get", "job/2", "-o", "json"}, 2, NULL, "get what?"},
        {{"get", "job", "2", "-o", "json"}, 0, "\"cause\": \"the loss is not finite\"", NULL},
        {{"get", "job", "2", "-ojson"}, 0, "\"state\": \"FAILED\"", NULL},
        {{"get", "job", "9"}, 3, NULL, "tandem get: no such job\n"},
        {{"get", "job", "5"}, 5, NULL, "PERMISSION_DENIED: not yours\n"},
        {{"get", "job", "6"}, 1, NULL, "INTERNAL: out of order\n"},
        {{"get", "job", "x"}, 2, NULL, "'x' is no job"},
        {{"get", "job", "0"}, 2, NULL, "'0' is no job"},
        {{"get", "rounds", "7"},
         0,
         "1       committed   8        1234     2            0000000000000abc   0000000000000def   "
         "-\n"
         "2       open        0        0        -            -                  -                  "
         "groups (1s)\n",
         NULL},
        {{"get", "rounds", "-o=json"}, 0, "\"weight_digest\": \"0000000000000abc\"", NULL},
        {{"get", "controllers"}, 0, "00000000000000a1   rollout   here   127.0.0.1:80", NULL},
        {{"get", "workers"},
         0,
         "00000000000000a1   rollout   here   cpu      0      4321   ready   generate (2s)   -\n"
         "00000000000000a1   rollout   here   cpu      1      -      -       -               -\n",
         NULL},
        {{"get", "workers", "7"}, 2, NULL, "listed all at once"},
        {{"get", "jobs", "-o", "yaml"}, 2, NULL, "--output is table or json"},
        {{"describe", "job", "7"}, 0, "Waits for:      group 3 of rollout-1, for 1m5s\n", NULL},
        {{"describe", "7"}, 0, "Weights:        fedcba9876543210\n", NULL},
        {{"describe", "job/7"}, 0, "critic/score/mean                        0.5\n", NULL},
        {{"describe"}, 2, NULL, "which job? give one number\n"},
        {{"wait", "1"}, 0, "job 1 SUCCEEDED: step 5/5\n", NULL},
        {{"wait", "2"}, 1, "job 2 FAILED: step 5/5; the loss is not finite\n", NULL},
        {{"wait", "3"}, 6, "job 3 CANCELLED", NULL},
        {{"wait", "9"}, 3, NULL, "no such job"},
        {{"wait", "7", "--wait-timeout", "0.5"}, 124, NULL, "job 7 has not ended within 0.5 s\n"},
        {{"cancel", "7"}, 0, "job 7 cancelled\n", NULL},
        {{"cancel", "1"}, 0, "job 1 had ended before: SUCCEEDED\n", NULL},
        {{"cancel", "9"}, 3, NULL, "no such job"},
        {{"watch", "2"}, 1, "job 2 FAILED", NULL},
        {{"submit"}, 2, NULL, "which job? give -f JOB.yaml\n"},
        {{"submit", "-f", "none.yaml"}, 2, NULL, "none.yaml: No such file"},
        {{"submit", "-f", "job.yaml", "trainer.save_freq=x"},
         2,
         NULL,
         "command line: trainer.save_freq"},
        {{"submit", "-f", "job.yaml", "--request-id", "refused"},
         2,
         NULL,
         "data.train_files: no such file\n"},
        {{"submit", "-f", "job.yaml", "--timeout", "soon"}, 2, NULL, "needs a number of seconds"},
        {{"submit", "-f", "job.yaml", "--wait=1"}, 2, NULL, "--wait takes no value"},
        {{"submit", "-f", "job.yaml", "--no"}, 2, NULL, "there is no option --no;"},
        {{"submit", "-f"}, 2, NULL, "--file needs a value"},
        {{"submit", "--help"}, 0, "usage: tandem submit -f JOB.yaml", NULL},
    };
    struct fake fake;
    (void)state;
    fake_start(&fake, &(struct fake_opts){0});
    setenv("TANDEM_ADDRESS", fake.address, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], i);
    }
    unsetenv("TANDEM_ADDRESS");
    fake_stop(&fake);
}

static void test_commands_empty_cluster(void **state) {
    struct fake fake;
    (void)state;
    fake_start(&fake, &(struct fake_opts){.empty = true});
    const struct row rows[] = {
        {{"get", "jobs", "--address", fake.address}, 0, "ID   KIND", "there are no jobs"},
        {{"get", "jobs", "-o", "json", "--address", fake.address}, 0, "\"jobs\": []", NULL},
        {{"get", "rounds", "--address", fake.address}, 3, NULL, "there are no jobs"},
        {{"get", "controllers", "--address", fake.address}, 0, "ID   KIND", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], i);
    }
    fake_stop(&fake);
}

// The text goes as it is; relative paths go as absolute ones.
static void test_commands_submit_sends(void **state) {
    struct fake fake;
    struct td_buf sent = {0};
    (void)state;
    fake_start(&fake, &(struct fake_opts){.submitted = "sent"});
    const struct row row = {{"submit", "-f", "job.yaml", "data.seed=3", "--request-id", "mine",
                             "trainer.default_local_dir=out", "--address", fake.address},
                            0,
                            "job 4 submitted\n",
                            NULL};
    check_row(&row, 0);
    read_back("sent", &sent);
    char here[256];
    assert_non_null(getcwd(here, sizeof here));
    char *expected = td_asprintf("request_id mine\nname job.yaml\noverride data.seed=3\n"
                                 "override trainer.default_local_dir=out\n"
                                 "override data.train_files=[\"%s/t.jsonl\", \"/abs/u.jsonl\"]\n"
                                 "override actor_rollout_ref.model.path=\"%s/models/m\"\n"
                                 "override trainer.default_local_dir=\"%s/out\"\n%s",
                                 here, here, here, JOB);
    assert_string_equal(td_buf_str(&sent), expected);
    td_free(expected);
    // Without one a request id is random: two submissions are two jobs.
    const struct row again = {
        {"submit", "-f", "job.yaml", "--address", fake.address}, 0, "job 4 submitted\n", NULL};
    char ids[2][48];
    for (int i = 0; i < 2; i++) {
        check_row(&again, 1);
        read_back("sent", &sent);
        assert_int_equal(sscanf(td_buf_str(&sent), "request_id %47s", ids[i]), 1);
        assert_int_equal(strlen(ids[i]), 32);
    }
    assert_string_not_equal(ids[0], ids[1]);
    td_buf_fini(&sent);
    fake_stop(&fake);
}

static void test_commands_submit_follows(void **state) {
    struct fake fake;
    (void)state;
    fake_start(&fake, &(struct fake_opts){0});
    const struct row rows[] = {
        {{"submit", "-f", "job.yaml", "--watch", "--address", fake.address},
         0,
         "job 4 RUNNING: step 1/5  reward 0.500  accuracy 0.750  KL 0.2500; waits for: group 3 of "
         "rollout-1\njob 4 RUNNING: step 2/5",
         NULL},
        {{"submit", "-f", "job.yaml", "--wait", "--address", fake.address},
         0,
         "job 4 submitted\njob 4 SUCCEEDED: step 5/5\n",
         NULL},
        {{"submit", "-f", "job.yaml", "--watch", "-o", "json", "--address", fake.address},
         0,
         "\"state\":\"SUCCEEDED\"",
         NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], i);
    }
    fake_stop(&fake);
}

// The first address is a standby's, the second refuses connections: the third answers.
static void test_commands_find_the_leader(void **state) {
    struct fake standby, dead, leader;
    (void)state;
    fake_start(&standby, &(struct fake_opts){.standby_calls = -1});
    fake_start(&dead, &(struct fake_opts){0});
    fake_start(&leader, &(struct fake_opts){0});
    fake_stop(&dead);
    char *addresses = td_asprintf("%s,%s,%s", standby.address, dead.address, leader.address);
    const struct row row = {{"get", "jobs", "--address", addresses}, 0, "RUNNING", NULL};
    check_row(&row, 0);
    td_free(addresses);
    fake_stop(&standby);
    fake_stop(&leader);
}

static void test_commands_failover(void **state) {
    struct fake later, dead;
    (void)state;
    fake_start(&later, &(struct fake_opts){.standby_calls = 3});
    fake_start(&dead, &(struct fake_opts){0});
    fake_stop(&dead);
    char *addresses = td_asprintf("%s,%s", dead.address, later.address);
    const struct row rows[] = {
        // Three refusals, then it leads.
        {{"get", "jobs", "--address", addresses}, 0, "RUNNING", "no coordinator leads ("},
        {{"get", "jobs", "--address", dead.address, "--timeout", "0.3"},
         4,
         NULL,
         ": Connection refused)\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], i);
    }
    td_free(addresses);
    fake_stop(&later);
}

// The leader dies in the middle of a watch; a standby takes over and the watch goes on to the end.
static void test_commands_watch_resumes(void **state) {
    struct fake first, second;
    (void)state;
    fake_start(&first, &(struct fake_opts){.dies_at_step = 3});
    fake_start(&second, &(struct fake_opts){.standby_calls = 2, .first_step = 2});
    char *addresses = td_asprintf("%s,%s", first.address, second.address);
    const char *args[] = {"watch", "4", "--address", addresses, NULL};
    struct run r = run(args);
    if (r.status != 0) {
        fail_msg("status %d\n%s\n%s", r.status, td_buf_str(&r.out), td_buf_str(&r.err));
    }
    // Each step once, whoever told it.
    const char *at = td_buf_str(&r.out);
    for (int step = 1; step <= FAKE_STEPS; step++) {
        char piece[32];
        snprintf(piece, sizeof piece, "step %d/5", step);
        at = strstr(at, piece);
        assert_non_null(at);
        assert_null(strstr(at + 1, piece));
    }
    assert_non_null(strstr(td_buf_str(&r.err), "leads"));
    run_fini(&r);
    td_free(addresses);
    fake_stop(&first);
    fake_stop(&second);
}

static void test_commands_interrupt(void **state) {
    struct fake fake;
    (void)state;
    fake_start(&fake, &(struct fake_opts){0});
    const char *args[] = {"watch", "7", "--address", fake.address, NULL};
    pid_t pid = command_start(args);
    await_piece("out", "RUNNING");
    assert_int_equal(kill(pid, SIGINT), 0);
    struct run r = command_end(pid);
    assert_int_equal(r.status, 130);
    assert_non_null(strstr(td_buf_str(&r.err), "job 7 goes on"));
    run_fini(&r);
    fake_stop(&fake);
}

// On a terminal: a screen that is drawn again until the job has ended.
static void test_commands_view(void **state) {
    struct fake fake;
    (void)state;
    fake_start(&fake, &(struct fake_opts){.first_step = 3});
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    assert_int_equal(ioctl(master, TIOCSWINSZ, &(struct winsize){.ws_row = 30, .ws_col = 60}), 0);
    const char *terminal = ptsname(master);
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = {"tandem", "watch", "4", "--address", fake.address, NULL};
        int fd = open(terminal, O_RDWR);
        setenv("TERM", "xterm", 1);
        if (dup2(fd, 1) == 1 && dup2(fd, 2) == 2) {
            execv(TD_TEST_TANDEM, argv);
        }
        _exit(127);
    }
    struct td_buf got = {0};
    for (ssize_t n = 1; n > 0 || (n < 0 && waitpid(pid, NULL, WNOHANG) == 0);) {
        n = read(master, td_buf_room(&got, 4096), 4096); // an error while nobody has it open
        got.len += n > 0 ? (size_t)n : 0;
    }
    (void)td_buf_room(&got, 0);
    const char *text = td_buf_str(&got), *screen = strstr(text, "\033[H");
    assert_non_null(screen);
    assert_non_null(strstr(screen, "job 4 RUNNING: step 4/5  reward 0.500"));
    assert_non_null(strstr(screen, "00000000000000a1   rollout   here   127.0.0.1:80"));
    assert_null(strstr(screen, "rollout-1\033")); // cut at the width
    screen = strstr(screen + 1, "\033[H");
    assert_non_null(screen);
    assert_non_null(strstr(screen, "4    grpo   SUCCEEDED   5/5"));
    td_buf_fini(&got);
    close(master);
    fake_stop(&fake);
}

static void put_line(const char *file, const char *line, int flags) {
    struct td_err err;
    int fd = open(file, O_WRONLY | O_CREAT | flags, 0600);
    assert_int_equal(td_write_all(fd, line, strlen(line), &err), TD_OK);
    close(fd);
}

static void test_commands_logs_follow(void **state) {
    static const char cluster[] =
        "{\"name\": \"n\", \"shape\": {\"coordinators\": 1, \"rollout\": 1, \"train\": 1, "
        "\"rollout_workers\": 1, \"train_workers\": 1, \"threads\": 0, \"kafka\": false, \"fast\": "
        "false}, \"processes\": [{\"name\": \"a-0\", \"pid\": 0, \"start\": 0, \"log\": \"a.log\", "
        "\"argv\": []}, {\"name\": \"b-0\", \"pid\": 0, \"start\": 0, \"log\": \"b.log\", "
        "\"argv\": []}]}";
    static const struct row rows[] = {
        {{"logs", "a-0", "--dir", "l"}, 0, "one\ntwo\nthree\n", NULL},
        {{"logs", "a-0", "--dir", "l", "--tail", "2"}, 0, "two\nthree\n", NULL},
        {{"logs", "b-0", "--dir", "l"}, 0, "", NULL},
        {{"logs", "--dir", "l", "--tail", "1"}, 0, "==> a-0 <==\nthree\n", NULL},
        {{"logs", "a-0", "b-0", "--dir", "l"}, 2, NULL, "one name, or none"},
    };
    struct td_err err;
    (void)state;
    assert_int_equal(td_make_dirs("l", &err), TD_OK);
    assert_int_equal(td_file_write("l/cluster.json", cluster, strlen(cluster), &err), TD_OK);
    put_line("a.log", "one\ntwo\nthree\n", 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], i);
    }
    // The other log is made later; the first is begun anew.
    const char *args[] = {"logs", "-f", "--tail", "1", "--dir", "l", NULL};
    pid_t pid = command_start(args);
    await_piece("out", "==> a-0 <==\nthree\n");
    put_line("b.log", "here I am\n", 0);
    await_piece("out", "\n==> b-0 <==\nhere I am\n");
    put_line("b.log", "again\n", O_APPEND);
    await_piece("out", "here I am\nagain\n");
    put_line("a.log", "anew\n", O_TRUNC);
    await_piece("out", "\n==> a-0 <==\nanew\n");
    assert_int_equal(kill(pid, SIGINT), 0);
    struct run r = command_end(pid);
    assert_int_equal(r.status, 130);
    assert_null(strstr(td_buf_str(&r.out), "two"));
    run_fini(&r);
}

static void test_commands_tls(void **state) {
    static const struct td_rpc_tls tls = {
        .ca_file = "certs/ca.pem", .cert_file = "certs/server.pem", .key_file = "certs/server.key"};
    struct td_err err;
    struct fake fake;
    (void)state;
    assert_int_equal(td_make_dirs("certs", &err), TD_OK);
    pid_t pid = fork();
    if (pid == 0) {
        put_line("out", "", O_TRUNC);
        (void)dup2(open("out", O_WRONLY | O_CREAT, 0600), 2);
        execlp("sh", "sh", TD_TEST_SOURCE_DIR "/tests/unit/io/certificates.sh", "certs", NULL);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        skip(); // no openssl
    }
    assert_int_equal(status, 0);
    fake_start(&fake, &(struct fake_opts){.tls = &tls});
    setenv("TANDEM_ADDRESS", fake.address, 1);
    static const struct row rows[] = {
        {{"get", "jobs", "--tls-ca", "certs/ca.pem", "--tls-cert", "certs/member-7.pem",
          "--tls-key", "certs/member-7.key"},
         0,
         "RUNNING",
         NULL},
        {{"get", "jobs", "--timeout", "0.2"}, 4, NULL, "no coordinator leads"},
        {{"get", "jobs", "--timeout", "0.2", "--tls-ca", "certs/ca.pem"},
         4,
         NULL,
         "no coordinator"},
        {{"get", "jobs", "--timeout", "0.2", "--tls-ca", "certs/other-ca.pem", "--tls-cert",
          "certs/member-7.pem", "--tls-key", "certs/member-7.key"},
         4,
         NULL,
         "no coordinator leads"},
        {{"get", "jobs", "--tls-ca", "certs/text.pem"}, 2, NULL, "certs/text.pem"},
        {{"get", "jobs", "--tls-ca", "certs/ca.pem", "--tls-cert", "certs/member-7.pem"},
         2,
         NULL,
         "key"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], i);
    }
    unsetenv("TANDEM_ADDRESS");
    fake_stop(&fake);
}

static void test_commands_where_the_cluster_is(void **state) {
    static const struct row rows[] = {
        {{"get", "jobs"}, 4, NULL, "there is no cluster in tandem-cluster; `tandem up` makes one"},
        {{"get", "jobs", "--dir", "broken"}, 1, NULL, "not written by `tandem up`"},
        {{"get", "jobs", "--dir", "ended"}, 4, NULL, "no coordinator runs in ended"},
        {{"get", "jobs", "--address", ","}, 2, NULL, "the list of addresses is empty"},
        {{"get", "jobs", "--address", "here"}, 2, NULL, "here"},
        {{"get", "jobs", "--address", "a:1", "--tls-ca", "none.pem"}, 2, NULL, "none.pem"},
    };
    static const char ended[] =
        "{\"name\": \"n\", \"shape\": {\"coordinators\": 1, \"rollout\": 1, \"train\": 1, "
        "\"rollout_workers\": 1, \"train_workers\": 1, \"threads\": 0, \"kafka\": false, \"fast\": "
        "false}, \"processes\": [{\"name\": \"coordinator-0\", \"pid\": 1, \"start\": 1, \"log\": "
        "\"l\", \"address\": \"127.0.0.1:1\", \"argv\": []}]}";
    struct td_err err;
    (void)state;
    assert_int_equal(td_make_dirs("broken", &err), TD_OK);
    assert_int_equal(td_make_dirs("ended", &err), TD_OK);
    assert_int_equal(td_file_write("broken/cluster.json", "{}", 2, &err), TD_OK);
    assert_int_equal(td_file_write("ended/cluster.json", ended, strlen(ended), &err), TD_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands_answers),
        cmocka_unit_test(test_commands_empty_cluster),
        cmocka_unit_test(test_commands_submit_sends),
        cmocka_unit_test(test_commands_submit_follows),
        cmocka_unit_test(test_commands_find_the_leader),
        cmocka_unit_test(test_commands_failover),
        cmocka_unit_test(test_commands_watch_resumes),
        cmocka_unit_test(test_commands_interrupt),
        cmocka_unit_test(test_commands_view),
        cmocka_unit_test(test_commands_logs_follow),
        cmocka_unit_test(test_commands_tls),
        cmocka_unit_test(test_commands_where_the_cluster_is),
    };
    return cmocka_run_group_tests(tests, enter_dir, leave_dir);
}
