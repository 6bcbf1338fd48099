// The file log and its writers' deaths: killed before every step and at random moments, two at
// once, one stopped inside an append. Whatever was acknowledged is there, in one order that every
// reader sees, and the log goes on. Set TD_SEED to repeat a run.
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/map.h"
#include "lib/base/rng.h"
#include "tests/unit/io/logs.h"

enum { SEGMENT_BYTES = 400, WINDOW = 5, LIVES_MAX = 1000 };

struct ack { // child → parent, through a pipe
    uint32_t life, number;
    int64_t offset;
};

// ---- the child

struct plan {
    int left, signum; // steps until the signal; never when negative
    bool trims;
};

static int count_step(void *user, const char *name) {
    (void)name;
    struct plan *plan = user;
    if (plan->left >= 0 && plan->left-- == 0) {
        raise(plan->signum);
    }
    return 0;
}

struct writer {
    struct td_loop *loop;
    struct td_log *log;
    int acks_fd, answered;
    uint32_t life, next, count;
    bool trims;
    struct ack sent[WINDOW];
};

static void send_more(struct writer *writer);

static void on_answer(void *user, const struct td_log_result *result) {
    struct writer *writer = user;
    struct ack *ack = &writer->sent[writer->answered % WINDOW];
    if (result->outcome != TD_LOG_APPENDED) {
        _exit(2);
    }
    ack->offset = result->offset;
    if (write(writer->acks_fd, ack, sizeof *ack) != sizeof *ack) {
        _exit(3);
    }
    writer->answered++;
    if (writer->trims &&
        writer->answered % 7 == 0) { // trims now and then, up to what it wrote itself
        td_log_trim(writer->log, 0, result->offset - 3 > 0 ? result->offset - 3 : 0, NULL, NULL);
    }
    send_more(writer);
}

static void send_more(struct writer *writer) {
    while (writer->next < writer->count && (int)writer->next - writer->answered < WINDOW) {
        writer->sent[writer->next % WINDOW] = (struct ack){writer->life, writer->next, -1};
        char text[64];
        int pad = (int)(writer->next * 13 % 40);
        int n = snprintf(text, sizeof text, "%u.%u.%*s", writer->life, writer->next, pad, "");
        struct td_log_append append = {0,         text,  (size_t)n, writer->next % 11 == 10,
                                       on_answer, writer};
        if (td_log_append(writer->log, &append, NULL) != TD_OK) {
            _exit(4);
        }
        writer->next++;
    }
}

static _Noreturn void write_life(const char *folder, uint32_t life, uint32_t count, int acks_fd,
                                 struct plan *plan) {
    struct td_log_hooks hooks = {count_step, plan};
    struct td_log_file_opts opts = {
        .folder = folder, .segment_bytes_max = SEGMENT_BYTES, .hooks = &hooks};
    struct writer writer = {
        .loop = new_loop(), .acks_fd = acks_fd, .life = life, .count = count, .trims = plan->trims};
    if (td_log_file_open(writer.loop, &opts, &writer.log, NULL) != TD_OK) {
        _exit(5);
    }
    send_more(&writer);
    wait_until(writer.loop, &writer.answered, (int)count);
    close_log(writer.loop, writer.log);
    _exit(0);
}

// ---- the parent

struct history {
    char *folder;
    int acks[2]; // pipe
    struct ack *got;
    size_t got_count, got_cap;
    uint32_t life;
    uint64_t seed;
};

static int begin(void **state) {
    struct history *h = td_alloc(sizeof *h);
    h->folder = new_folder();
    const char *seed = getenv("TD_SEED");
    h->seed = seed ? strtoull(seed, NULL, 10) : (uint64_t)td_clock_ns();
    print_message("TD_SEED=%" PRIu64 "\n", h->seed);
    assert_int_equal(pipe2(h->acks, O_CLOEXEC | O_NONBLOCK), 0);
    struct td_log_file_opts opts = {.folder = h->folder, .id = 9, .partitions = 1};
    assert_int_equal(td_log_file_create(&opts, NULL), TD_OK);
    *state = h;
    return 0;
}

static int end(void **state) {
    struct history *h = *state;
    drop_folder(h->folder);
    close(h->acks[0]);
    close(h->acks[1]);
    td_free(h->got);
    td_free(h);
    return 0;
}

static pid_t start_life(struct history *h, uint32_t count, struct plan plan) {
    uint32_t life = ++h->life;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        write_life(h->folder, life, count, h->acks[1], &plan);
    }
    return pid;
}

static int end_of(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void take_acks(struct history *h) {
    struct ack ack;
    while (read(h->acks[0], &ack, sizeof ack) == sizeof ack) {
        TD_GROW(h->got, h->got_cap, h->got_count + 1);
        h->got[h->got_count++] = ack;
    }
}

struct check {
    struct history *h;
    int64_t first, next;
    int records;
    uint32_t numbers[LIVES_MAX]; // next number expected of each life, 0: none seen yet
    struct td_map *at;           // offset → (life, number)
};

static void check_record(void *user, const struct td_log_record *record) {
    struct check *check = user;
    if (check->records++ == 0) {
        check->first = record->offset;
    } else {
        assert_int_equal(record->offset, check->next);
    }
    check->next = record->offset + 1;
    uint32_t life = 0, number = 0;
    assert_int_equal(sscanf((const char *)record->bytes, "%u.%u.", &life, &number), 2);
    assert_true(life < LIVES_MAX);
    if (check->numbers[life]) {
        assert_int_equal(number, check->numbers[life]); // none twice, none left out
    }
    check->numbers[life] = number + 1;
    uint64_t who = (uint64_t)life << 32 | number;
    assert_true(td_map_put(check->at, &record->offset, sizeof record->offset, who));
}

static void check_gap(void *user, int64_t start) {
    fail_msg("gap to %lld: %p", (long long)start, user);
}

static void check_error(void *user, const struct td_err *err) {
    (void)user;
    fail_msg("%s", err->msg);
}

static const struct td_log_reader_fns check_fns = {check_record, check_gap, NULL, check_error};

// Opens the log, reads all of it, compares it with what was acknowledged, appends one more.
static void check_history(struct history *h) {
    take_acks(h);
    struct td_loop *loop = new_loop();
    struct td_log *log = NULL;
    struct td_err err;
    struct td_log_file_opts opts = {.folder = h->folder, .segment_bytes_max = SEGMENT_BYTES};
    if (td_log_file_open(loop, &opts, &log, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    uint32_t life = ++h->life;
    char text[32];
    snprintf(text, sizeof text, "%u.0.", life);
    int64_t last = append_ok(loop, log, text);
    struct bounds bounds = bounds_of(loop, log, 0);
    assert_int_equal(bounds.end, last + 1);
    struct check *check = td_alloc(sizeof *check);
    check->h = h;
    check->at = td_map_new();
    struct td_log_reader *reader = td_log_read(log, 0, TD_LOG_FROM_START, &check_fns, check);
    wait_until(loop, &check->records, (int)(bounds.end - bounds.start));
    assert_int_equal(check->first, bounds.start);
    assert_int_equal(check->next, bounds.end);
    for (size_t i = 0; i < h->got_count; i++) {
        const struct ack *ack = &h->got[i];
        uint64_t who = 0;
        if (ack->offset >= bounds.start) {
            assert_true(td_map_get(check->at, &ack->offset, sizeof ack->offset, &who));
            assert_int_equal(who, (uint64_t)ack->life << 32 | ack->number);
        }
    }
    td_map_free(check->at);
    td_free(check);
    td_log_reader_close(reader);
    close_log(loop, log);
    td_loop_free(loop);
}

static void test_log_crash_before_every_step(void **state) {
    struct history *h = *state;
    for (int steps = 0;; steps++) {
        pid_t pid = start_life(h, 24, (struct plan){steps, SIGKILL, true});
        int status = end_of(pid);
        check_history(h);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            assert_true(steps > 20); // else the hooks are dead
            print_message("%d steps, %zu acknowledged\n", steps, h->got_count);
            return;
        }
        assert_int_equal(WTERMSIG(status), SIGKILL);
    }
}

static void test_log_crash_at_random_moments(void **state) {
    struct history *h = *state;
    struct td_rng rng = {h->seed};
    for (int i = 0; i < 60; i++) {
        pid_t pid = start_life(h, 1 << 30, (struct plan){-1, 0, true});
        // The first moments of a life are the most interesting ones.
        poll(NULL, 0, (int)td_rng_below(&rng, i % 2 ? 6 : 25));
        kill(pid, SIGKILL);
        int status = end_of(pid);
        assert_true(WIFSIGNALED(status));
        check_history(h);
    }
    print_message("%zu acknowledged\n", h->got_count);
}

// Two processes append at once, and are tailed meanwhile; then one of them is killed.
static void test_log_crash_two_writers(void **state) {
    struct history *h = *state;
    struct td_rng rng = {h->seed};
    for (int i = 0; i < 12; i++) {
        bool dies = i % 2;
        pid_t a = start_life(h, 60, (struct plan){-1, 0, true});
        pid_t b = start_life(
            h, 60, (struct plan){dies ? (int)td_rng_below(&rng, 60) : -1, SIGKILL, false});
        int status = end_of(a);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        status = end_of(b);
        assert_true(dies || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
        check_history(h);
    }
}

struct tail {
    int64_t next;
    int records, gaps;
};

static void tail_record(void *user, const struct td_log_record *record) {
    struct tail *tail = user;
    assert_int_equal(record->offset, tail->next);
    tail->next++;
    tail->records++;
}

static void tail_gap(void *user, int64_t start) {
    struct tail *tail = user;
    assert_true(start > tail->next);
    tail->next = start;
    tail->gaps++;
}

static const struct td_log_reader_fns tail_fns = {tail_record, tail_gap, NULL, check_error};

// A reader in this process follows writers in two others: in order, with gaps only where trimmed.
static void tail_two_writers(struct history *h, bool trims) {
    pid_t a = start_life(h, 300, (struct plan){-1, 0, false});
    pid_t b = start_life(h, 300, (struct plan){-1, 0, trims});
    struct td_loop *loop = new_loop();
    struct td_log *log = NULL;
    struct td_log_file_opts opts = {.folder = h->folder};
    assert_int_equal(td_log_file_open(loop, &opts, &log, NULL), TD_OK);
    struct tail tail = {0};
    struct td_log_reader *reader = td_log_read(log, 0, 0, &tail_fns, &tail);
    int64_t deadline = td_clock_ms() + WAIT_MS;
    while (tail.next < 600 && td_clock_ms() < deadline) {
        wait_until(loop, &tail.records, tail.records + 1);
    }
    assert_int_equal(tail.next, 600);
    assert_true(trims || (tail.records == 600 && tail.gaps == 0));
    td_log_reader_close(reader);
    close_log(loop, log);
    td_loop_free(loop);
    assert_int_equal(end_of(a), 0);
    assert_int_equal(end_of(b), 0);
    check_history(h);
}

static void test_log_crash_tailed_while_written(void **state) {
    tail_two_writers(*state, false);
}

static void test_log_crash_tailed_while_trimmed(void **state) {
    tail_two_writers(*state, true);
}

// A process stopped inside an append blocks the log; its id is known, and it may go on.
static void test_log_crash_stopped_inside_an_append(void **state) {
    struct history *h = *state;
    pid_t pid = start_life(h, 3, (struct plan){1, SIGSTOP, false});
    int status = 0;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    struct td_loop *loop = new_loop();
    struct td_log *log = NULL;
    struct td_log_file_opts opts = {.folder = h->folder};
    assert_int_equal(td_log_file_open(loop, &opts, &log, NULL), TD_OK);
    struct appended appended = {0};
    append_begin(log, 0, "500.0.", false, &appended);
    int64_t deadline = td_clock_ms() + WAIT_MS;
    while (td_log_waits_for(log) != pid && td_clock_ms() < deadline) {
        int turns = 0;
        td_loop_defer(loop, on_closed, &turns);
        wait_until(loop, &turns, 1);
    }
    assert_int_equal(td_log_waits_for(log), pid);
    assert_int_equal(appended.count, 0);
    kill(pid, SIGCONT);
    wait_until(loop, &appended.count, 1);
    assert_int_equal(appended.outcome, TD_LOG_APPENDED);
    assert_int_equal(end_of(pid), 0);
    close_log(loop, log);
    td_loop_free(loop);
    check_history(h);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        ONE(test_log_crash_before_every_step),    ONE(test_log_crash_at_random_moments),
        ONE(test_log_crash_two_writers),          ONE(test_log_crash_tailed_while_written),
        ONE(test_log_crash_tailed_while_trimmed), ONE(test_log_crash_stopped_inside_an_append),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
