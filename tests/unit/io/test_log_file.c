// The file log with nothing killed: reopening, segments, torn tails of every length, flipped bits
// at every byte, faults of every step, full disk, permissions, a lock that somebody holds.
#include "lib/io/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/io/log_frame.h"
#include "tests/unit/io/logs.h"

enum { LOG_ID = 0xabcd };

struct place {
    struct td_loop *loop;
    char *folder;
    struct td_log_file_opts opts;
};

static int begin(void **state) {
    struct place *place = td_alloc(sizeof *place);
    place->loop = new_loop();
    place->folder = new_folder();
    place->opts = (struct td_log_file_opts){.folder = place->folder, .id = LOG_ID, .partitions = 1};
    *state = place;
    return 0;
}

static int end(void **state) {
    struct place *place = *state;
    td_loop_free(place->loop);
    drop_folder(place->folder);
    td_free(place);
    return 0;
}

static struct td_log *open_log(struct place *place) {
    struct td_log *log = NULL;
    struct td_err err;
    if (td_log_file_open(place->loop, &place->opts, &log, &err) != TD_OK) {
        fail_msg("open: %s", err.msg);
    }
    return log;
}

static struct td_log *create_log(struct place *place, uint32_t segment_bytes_max) {
    struct td_err err;
    place->opts.segment_bytes_max = segment_bytes_max;
    if (td_log_file_create(&place->opts, &err) != TD_OK) {
        fail_msg("create: %s", err.msg);
    }
    return open_log(place);
}

static char *path_of(const struct place *place, const char *name) {
    return td_asprintf("%s/%s", place->folder, name);
}

static void expect(struct place *place, struct td_log *log, int news, bool lenient,
                   const char *want) {
    struct seen seen;
    read_news(place->loop, log, 0, news, lenient, &seen);
    assert_string_equal(td_buf_str(&seen.text), want);
    seen_fini(&seen);
}

static void test_log_file_reopens_and_knows_its_id(void **state) {
    struct place *place = *state;
    struct td_err err;
    struct td_log *log = NULL;
    assert_int_equal(td_log_file_open(place->loop, &place->opts, &log, &err), TD_ENOENT);
    assert_non_null(strstr(err.msg, place->folder));
    log = create_log(place, 0);
    append_ok(place->loop, log, "one");
    close_log(place->loop, log);
    assert_int_equal(td_log_file_create(&place->opts, &err), TD_ECONFLICT);
    assert_non_null(strstr(err.msg, "000000000000abcd"));
    place->opts.id = 0x1234;
    assert_int_equal(td_log_file_open(place->loop, &place->opts, &log, &err), TD_ECONFLICT);
    assert_non_null(strstr(err.msg, "000000000000abcd"));
    assert_non_null(strstr(err.msg, "0000000000001234"));
    place->opts.id = 0; // any
    log = open_log(place);
    assert_int_equal(td_log_id(log), LOG_ID);
    assert_int_equal(append_ok(place->loop, log, "two"), 1);
    expect(place, log, 2, false, "0=one 1=two ");
    close_log(place->loop, log);
}

static int count_segments(const struct place *place, int64_t upto) {
    int count = 0;
    for (int64_t base = 0; base <= upto; base++) {
        char *path = td_asprintf("%s/0/%020lld.seg", place->folder, (long long)base);
        count += td_file_exists(path);
        td_free(path);
    }
    return count;
}

static void test_log_file_rolls_and_trims_whole_segments(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 64 + 2 * (32 + 4)); // two records a segment
    for (int i = 0; i < 7; i++) {
        append_ok(place->loop, log, "4444");
    }
    assert_int_equal(count_segments(place, 9), 4);
    struct appended appended = append_text(place->loop, log, 0, "STATE", true);
    assert_int_equal(appended.offset, 7);
    appended = append_text(place->loop, log, 0, "STATE", true); // not in a fresh one again
    assert_int_equal(appended.offset, 8);
    assert_int_equal(count_segments(place, 9), 6);
    char big[200];
    memset(big, 'b', sizeof big);
    big[sizeof big - 1] = 0; // longer than a segment: one of its own
    assert_int_equal(append_ok(place->loop, log, big), 9);
    assert_int_equal(trim_log(place->loop, log, 7), TD_OK);
    assert_int_equal(count_segments(place, 6), 0);
    assert_int_equal(trim_log(place->loop, log, 10), TD_OK);
    assert_int_equal(count_segments(place, 10), 1); // the last one stays
    close_log(place->loop, log);
    log = open_log(place);
    struct bounds bounds = bounds_of(place->loop, log, 0);
    assert_true(bounds.start == 10 && bounds.end == 10);
    assert_int_equal(append_ok(place->loop, log, "next"), 10);
    expect(place, log, 2, false, "gap10 10=next ");
    close_log(place->loop, log);
}

// A reader that is behind while the log is trimmed hears of the gap, in the middle as well.
static void test_log_file_trim_while_read(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 64 + 2 * (32 + 4)), *other = open_log(place);
    struct seen seen = {.pause_at = 1};
    for (int i = 0; i < 600; i++) {
        append_ok(place->loop, log, "4444");
    }
    seen.reader = td_log_read(other, 0, 0, &strict_fns, &seen);
    wait_until(place->loop, &seen.news, 1);
    assert_int_equal(trim_log(place->loop, log, 598), TD_OK);
    td_log_reader_pause(seen.reader, false);
    wait_until(place->loop, &seen.gaps, 1);
    wait_until(place->loop, &seen.news, seen.records + 1 + 2 - (int)(seen.next - 598));
    const char *tail = strstr(td_buf_str(&seen.text), "gap598 ");
    assert_non_null(tail);
    assert_string_equal(tail, "gap598 598=4444 599=4444 ");
    assert_int_equal(seen.errors, 0);
    seen_fini(&seen);
    close_log(place->loop, other);
    close_log(place->loop, log);
}

static void test_log_file_two_handles_tail_each_other(void **state) {
    struct place *place = *state;
    struct td_log *a = create_log(place, 150), *b = open_log(place);
    struct seen seen = {0};
    seen.reader = td_log_read(b, 0, 0, &strict_fns, &seen);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(append_ok(place->loop, i % 3 ? a : b, "r"), i);
    }
    wait_until(place->loop, &seen.news, 10);
    assert_string_equal(td_buf_str(&seen.text), "0=r 1=r 2=r 3=r 4=r 5=r 6=r 7=r 8=r 9=r ");
    seen_fini(&seen);
    close_log(place->loop, a);
    close_log(place->loop, b);
}

// The last record is written but not published, as after a kill, and cut to every length.
static void test_log_file_torn_tails_of_every_length(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    append_ok(place->loop, log, "first");
    append_ok(place->loop, log, "second");
    char *marks_path = path_of(place, "0/marks"),
         *path = path_of(place, "0/00000000000000000000.seg");
    struct td_buf marks = {0}, whole = {0};
    assert_int_equal(td_file_read(marks_path, 1000, &marks, NULL), TD_OK);
    size_t tail = 64 + 32 + 5 + 32 + 6;
    append_ok(place->loop, log, "third");
    close_log(place->loop, log);
    assert_int_equal(td_file_read(path, 1000, &whole, NULL), TD_OK);
    assert_int_equal(whole.len, tail + 32 + 5);
    for (size_t n = tail; n <= whole.len; n++) {
        assert_int_equal(td_file_write(marks_path, marks.data, marks.len, NULL), TD_OK);
        assert_int_equal(td_file_write(path, whole.data, n, NULL), TD_OK);
        log = open_log(place);
        bool is_whole = n == whole.len;
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, is_whole ? n : tail); // cut
        struct bounds bounds = bounds_of(place->loop, log, 0);
        assert_int_equal(bounds.end, is_whole ? 3 : 2);
        assert_int_equal(append_ok(place->loop, log, "next"), bounds.end);
        expect(place, log, is_whole ? 4 : 3, false,
               is_whole ? "0=first 1=second 2=third 3=next " : "0=first 1=second 2=next ");
        close_log(place->loop, log);
    }
    td_buf_fini(&marks);
    td_buf_fini(&whole);
    td_free(marks_path);
    td_free(path);
}

// Readers stop at an unpublished tail and do not call it damage.
static void test_log_file_readers_stop_at_the_published_end(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    append_ok(place->loop, log, "first");
    char *path = path_of(place, "0/00000000000000000000.seg");
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_int_equal(write(fd, "torn", 4), 4);
    struct seen seen;
    read_news(place->loop, log, 0, 1, false, &seen);
    assert_int_equal(bounds_of(place->loop, log, 0).end, 1);
    assert_int_equal(append_ok(place->loop, log, "second"),
                     1); // cuts it, though it did not write it
    wait_until(place->loop, &seen.news, 2);
    assert_string_equal(td_buf_str(&seen.text), "0=first 1=second ");
    seen_fini(&seen);
    close(fd);
    close_log(place->loop, log);
    td_free(path);
}

// ---- damage

struct copy { // of a folder with three segments, to flip bits in
    const char *names[5];
    struct td_buf bytes[5];
};

static const char *const texts[] = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta"};
enum { TEXTS = 6 };

// Whatever was delivered is right, in order, and what is missing was told.
static void check_damaged(struct place *place, const char *name, size_t byte) {
    struct td_log *log = NULL;
    struct td_err err;
    enum td_rc rc = td_log_file_open(place->loop, &place->opts, &log, &err);
    if (rc != TD_OK) {
        // Damage in a segment does not keep anyone from opening the log.
        if (rc != TD_ECORRUPT || !strstr(err.msg, "damaged") || strstr(name, ".seg")) {
            fail_msg("%s byte %zu: %s", name, byte, err.msg);
        }
        return;
    }
    struct seen seen = {0};
    seen.reader = td_log_read(log, 0, 0, &lenient_fns, &seen);
    wait_until(place->loop, &seen.news, TEXTS);
    struct td_buf want = {0};
    for (int i = 0; i < TEXTS; i++) {
        char bad[16];
        snprintf(bad, sizeof bad, "bad%d ", i);
        if (strstr(td_buf_str(&seen.text), bad)) {
            td_buf_puts(&want, bad);
        } else {
            td_buf_printf(&want, "%d=%s ", i, texts[i]);
        }
    }
    if (strcmp(td_buf_str(&want), td_buf_str(&seen.text)) != 0 || seen.bad < 1) {
        fail_msg("%s byte %zu: read %s", name, byte, td_buf_str(&seen.text));
    }
    assert_non_null(strstr(seen.err.msg, "damaged at offset"));
    assert_int_equal(append_ok(place->loop, log, "more"), TEXTS); // the log goes on
    wait_until(place->loop, &seen.news, TEXTS + 1);
    assert_non_null(strstr(td_buf_str(&seen.text), "6=more "));
    seen_fini(&seen);
    td_buf_fini(&want);
    close_log(place->loop, log);
}

static void load_copy(struct place *place, struct copy *copy) {
    static const char *const names[] = {"log", "0/marks", "0/00000000000000000000.seg",
                                        "0/00000000000000000002.seg", "0/00000000000000000004.seg"};
    struct td_log *log = create_log(place, 64 + 2 * (32 + 7));
    for (int i = 0; i < TEXTS; i++) {
        append_ok(place->loop, log, texts[i]);
    }
    close_log(place->loop, log);
    for (int i = 0; i < 5; i++) {
        copy->names[i] = names[i];
        char *path = path_of(place, names[i]);
        assert_int_equal(td_file_read(path, 1000, &copy->bytes[i], NULL), TD_OK);
        td_free(path);
    }
}

static void put_file(struct place *place, const char *name, const struct td_buf *bytes) {
    char *path = path_of(place, name);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0666);
    assert_int_equal(write(fd, bytes->data, bytes->len), (ssize_t)bytes->len);
    close(fd);
    td_free(path);
}

static void restore(struct place *place, const struct copy *copy) {
    for (int i = 0; i < 5; i++) {
        put_file(place, copy->names[i], &copy->bytes[i]);
    }
    char *path = path_of(place, "0/00000000000000000006.seg"); // that a check may have begun
    unlink(path);
    td_free(path);
}

static void test_log_file_flipped_bits_at_every_byte(void **state) {
    struct place *place = *state;
    struct copy copy = {0};
    load_copy(place, &copy);
    for (int i = 0; i < 5; i++) {
        struct td_buf *bytes = &copy.bytes[i];
        for (size_t k = 0; k < bytes->len; k++) {
            restore(place, &copy);
            uint8_t mask = (uint8_t)(1 << (k % 8));
            bytes->data[k] ^= mask;
            put_file(place, copy.names[i], bytes);
            bytes->data[k] ^= mask;
            check_damaged(place, copy.names[i], k);
        }
    }
    for (int i = 0; i < 5; i++) {
        td_buf_fini(&copy.bytes[i]);
    }
}

// A strict reader (the journal's) delivers what is before the damage, then stops and names it.
static void test_log_file_strict_reader_stops_at_damage(void **state) {
    struct place *place = *state;
    struct copy copy = {0};
    load_copy(place, &copy);
    copy.bytes[3].data[64 + 32 + 5 + 32] ^= 1; // the second record's bytes in the second segment
    put_file(place, copy.names[3], &copy.bytes[3]);
    struct td_log *log = open_log(place);
    struct seen seen;
    read_news(place->loop, log, 0, 4, false, &seen);
    assert_string_equal(td_buf_str(&seen.text), "0=alpha 1=beta 2=gamma error ");
    assert_int_equal(seen.err.code, TD_ECORRUPT);
    assert_non_null(strstr(seen.err.msg, "00000000000000000002.seg: damaged at offset 3"));
    struct td_buf out = {0};
    struct td_err err;
    uint32_t crc = td_crc32c(0, "delta", 5);
    assert_int_equal(td_log_read_one(log, 0, 3, crc, &out, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "damaged at offset 3"));
    crc = td_crc32c(0, "epsilon", 7);
    assert_int_equal(td_log_read_one(log, 0, 4, crc, &out, &err), TD_OK);
    td_buf_fini(&out);
    seen_fini(&seen);
    close_log(place->loop, log);
    for (int i = 0; i < 5; i++) {
        td_buf_fini(&copy.bytes[i]);
    }
}

static void test_log_file_missing_segment_is_damage(void **state) {
    struct place *place = *state;
    struct copy copy = {0};
    load_copy(place, &copy);
    char *path = path_of(place, copy.names[3]);
    unlink(path);
    struct td_log *log = open_log(place);
    expect(place, log, TEXTS, true, "0=alpha 1=beta bad2 bad3 4=epsilon 5=zeta ");
    close_log(place->loop, log);
    for (int i = 0; i < 5; i++) {
        td_buf_fini(&copy.bytes[i]);
    }
    td_free(path);
}

// The published end lies behind, as after a power cut, and a record before later segments is bad:
// that is no torn tail.
static void test_log_file_damage_behind_a_stale_end(void **state) {
    struct place *place = *state;
    struct copy copy = {0};
    load_copy(place, &copy);
    struct td_buf *marks = &copy.bytes[1], *segment = &copy.bytes[2];
    uint64_t word = td_mark_encode(LOG_ID, 0, 1, 1);
    memcpy(marks->data + 64 + 8, &word, sizeof word);
    put_file(place, copy.names[1], marks);
    struct td_log *log = open_log(place); // all is found again
    assert_int_equal(bounds_of(place->loop, log, 0).end, TEXTS);
    close_log(place->loop, log);
    put_file(place, copy.names[1], marks);
    segment->data[segment->len - 1] ^= 1;
    put_file(place, copy.names[2], segment);
    struct td_err err;
    assert_int_equal(td_log_file_open(place->loop, &place->opts, &log, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "damaged at offset 1"));
    for (int i = 0; i < 5; i++) {
        td_buf_fini(&copy.bytes[i]);
    }
}

// Two neighbours have lost their frames; looked up one by one, only they are bad.
static void test_log_file_finds_records_behind_damage(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    for (int i = 0; i < 6; i++) {
        append_ok(place->loop, log, "r");
    }
    close_log(place->loop, log);
    char *path = path_of(place, "0/00000000000000000000.seg");
    struct td_buf bytes = {0};
    assert_int_equal(td_file_read(path, 1000, &bytes, NULL), TD_OK);
    bytes.data[64 + 33 + 4] ^= 1;     // length of record 1
    bytes.data[64 + 2 * 33 + 4] ^= 1; // and of record 2
    put_file(place, "0/00000000000000000000.seg", &bytes);
    log = open_log(place);
    static const enum td_rc want[] = {TD_OK, TD_ECORRUPT, TD_ECORRUPT, TD_OK, TD_OK, TD_OK};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(td_log_read_one(log, 0, i, td_crc32c(0, "r", 1), &bytes, NULL), want[i]);
    }
    td_buf_fini(&bytes);
    close_log(place->loop, log);
    td_free(path);
}

// ---- faults

struct fault {
    const char *step; // fails with errnum when it comes for the nth time
    int nth, errnum;
};

static int fail_step(void *user, const char *name) {
    struct fault *fault = user;
    return strcmp(name, fault->step) == 0 && fault->nth-- == 0 ? fault->errnum : 0;
}

static void test_log_file_failed_steps(void **state) {
    struct place *place = *state;
    static const struct {
        const char *step, *want; // what is read afterwards
        int nth;
        enum td_log_outcome outcomes[3];
        enum td_rc rc;
    } rows[] = {
        {"write", "0=a ", 0, {TD_LOG_FAILED, TD_LOG_FAILED, TD_LOG_FAILED}, TD_ENOSPC},
        {"write", "0=a 1=x ", 1, {TD_LOG_APPENDED, TD_LOG_FAILED, TD_LOG_FAILED}, TD_ENOSPC},
        {"create", "0=a 1=x ", 0, {TD_LOG_APPENDED, TD_LOG_FAILED, TD_LOG_FAILED}, TD_ENOSPC},
        {"publish",
         "0=a 1=x 2=y 3=z ",
         0,
         {TD_LOG_UNKNOWN, TD_LOG_APPENDED, TD_LOG_APPENDED},
         TD_ENOSPC},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_log *log = create_log(place, 64 + 2 * (32 + 1));
        append_ok(place->loop, log, "a");
        close_log(place->loop, log);
        struct fault fault = {rows[i].step, rows[i].nth, ENOSPC};
        struct td_log_hooks hooks = {fail_step, &fault};
        place->opts.hooks = &hooks;
        log = open_log(place);
        struct appended appended[3] = {0};
        const char *const three[] = {"x", "y", "z"};
        struct bounds bounds = {0}; // while this is under way the appends gather
        td_log_bounds(log, 0, on_bounds, &bounds);
        for (int k = 0; k < 3; k++) {
            append_begin(log, 0, three[k], false, &appended[k]);
        }
        wait_until(place->loop, &appended[2].count, 1);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(appended[k].outcome, rows[i].outcomes[k]);
            if (rows[i].outcomes[k] != TD_LOG_APPENDED) {
                assert_int_equal(appended[k].err.code, rows[i].rc);
            }
        }
        place->opts.hooks = NULL;
        append_ok(place->loop, log, "end"); // the fault is over
        struct td_buf want = {0};
        int records = 0;
        for (const char *p = rows[i].want; *p; p++) {
            records += *p == ' ';
        }
        td_buf_printf(&want, "%s%d=end ", rows[i].want, records);
        expect(place, log, records + 1, false, td_buf_str(&want));
        td_buf_fini(&want);
        close_log(place->loop, log);
        assert_int_equal(td_remove_tree(place->folder, NULL), TD_OK);
    }
    assert_int_equal(mkdir(place->folder, 0777), 0);
}

// What another writer left: a record that it could not publish, a segment that it only began.
static void test_log_file_goes_on_behind_another_writers_fault(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    append_ok(place->loop, log, "a");
    static const struct {
        const char *step;
        bool roll;
        enum td_log_outcome outcome;
        int64_t next;
    } rows[] = {{"publish", false, TD_LOG_UNKNOWN, 2},
                {"write", true, TD_LOG_FAILED, 3},
                {"publish", true, TD_LOG_UNKNOWN, 5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fault fault = {rows[i].step, 0, EIO};
        struct td_log_hooks hooks = {fail_step, &fault};
        place->opts.hooks = &hooks;
        struct td_log *other = open_log(place);
        struct appended appended = append_text(place->loop, other, 0, "other", rows[i].roll);
        assert_int_equal(appended.outcome, rows[i].outcome);
        assert_int_equal(append_ok(place->loop, log, "mine"), rows[i].next);
        close_log(place->loop, other);
    }
    place->opts.hooks = NULL;
    struct td_log *fresh = open_log(place);
    expect(place, fresh, 6, false, "0=a 1=other 2=mine 3=mine 4=other 5=mine ");
    close_log(place->loop, fresh);
    close_log(place->loop, log);
}

// Runs in a child: an fsync that fails must end the process, after telling the callback.
static void on_fatal(void *user, const struct td_err *err) {
    _exit(strstr(err->msg, "fsync") && *(int *)user == 5 ? 42 : 1);
}

static int wait_child(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_log_file_failed_fsync_ends_the_process(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    close_log(place->loop, log);
    for (int told = 0; told <= 1; told++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct fault fault = {"fsync", 0, EIO};
            struct td_log_hooks hooks = {fail_step, &fault};
            int five = 5;
            place->opts.hooks = &hooks;
            place->opts.fatal = told ? on_fatal : NULL;
            place->opts.user = &five;
            close(STDERR_FILENO);
            struct rlimit none = {0};
            setrlimit(RLIMIT_CORE, &none);
            signal(SIGABRT, SIG_DFL);
            struct td_loop *loop = new_loop();
            place->loop = loop;
            append_text(loop, open_log(place), 0, "x", false);
            _exit(0);
        }
        int status = wait_child(pid);
        assert_true(told ? WIFEXITED(status) && WEXITSTATUS(status) == 42
                         : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

// A file size limit stands for a full disk: part of the record is written before it fails.
static void test_log_file_full_disk(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    append_ok(place->loop, log, "first");
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (rlim_t limit = 64 + 37 + 1; limit < 64 + 37 + 32 + 6; limit += 5) {
        small = (struct rlimit){limit, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        struct appended appended = append_text(place->loop, log, 0, "second", false);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(appended.outcome, TD_LOG_FAILED);
        assert_int_equal(appended.err.code, TD_ENOSPC);
        assert_non_null(strstr(appended.err.msg, place->folder));
    }
    assert_int_equal(append_ok(place->loop, log, "second"), 1);
    expect(place, log, 2, false, "0=first 1=second ");
    close_log(place->loop, log);
}

static void test_log_file_no_permission(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    close_log(place->loop, log);
    if (geteuid() == 0) { // as nobody, in a child, because root may do anything
        pid_t pid = fork();
        if (pid == 0) {
            struct td_err err;
            struct td_loop *loop = new_loop();
            if (setgid(65534) != 0 || setuid(65534) != 0) {
                _exit(3);
            }
            enum td_rc opened = td_log_file_open(loop, &place->opts, &log, &err);
            bool named = strstr(err.msg, place->folder) != NULL;
            place->opts.folder = "/proc/1/x";
            enum td_rc created = td_log_file_create(&place->opts, &err);
            _exit(opened == TD_EPERM && named && created != TD_OK ? 0 : 4);
        }
        int status = wait_child(pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    } else {
        char *path = path_of(place, "0/marks");
        struct td_err err;
        assert_int_equal(chmod(path, 0), 0);
        assert_int_equal(td_log_file_open(place->loop, &place->opts, &log, &err), TD_EPERM);
        td_free(path);
    }
}

struct waiting {
    struct td_loop *loop;
    struct td_log *log;
    struct td_timer *timer;
    int known;
};

static void look(void *user) {
    struct waiting *waiting = user;
    waiting->known = td_log_waits_for(waiting->log) != 0;
    td_timer_start(waiting->timer, 1);
}

static void test_log_file_names_who_holds_the_lock(void **state) {
    struct place *place = *state;
    struct td_log *log = create_log(place, 0);
    append_ok(place->loop, log, "mine"); // writes this process's id
    char *path = path_of(place, "lock");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(pwrite(fd, "4242       \n", 12, 0), 12);
    struct appended first = {0}, second = {0};
    append_begin(log, 0, "waits", false, &first);
    struct waiting waiting = {.loop = place->loop, .log = log};
    waiting.timer = td_timer_new(place->loop, look, &waiting);
    look(&waiting);
    wait_until(place->loop, &waiting.known, 1);
    td_timer_close(waiting.timer);
    assert_int_equal(td_log_waits_for(log), 4242);
    assert_int_equal(first.count, 0);
    struct td_err err;
    assert_int_equal(td_log_file_create(&place->opts, &err), TD_ECONFLICT);
    assert_non_null(strstr(err.msg, "4242"));
    struct td_log *other = open_log(place); // opening does not wait
    close_log(place->loop, other);
    flock(fd, LOCK_UN);
    wait_until(place->loop, &first.count, 1);
    assert_int_equal(first.outcome, TD_LOG_APPENDED);
    assert_int_equal(td_log_waits_for(log), 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    append_begin(log, 0, "never", false, &second);
    close_log(place->loop, log); // does not wait for the lock
    assert_int_equal(second.outcome, TD_LOG_FAILED);
    assert_int_equal(second.err.code, TD_ESTOPPED);
    close(fd);
    td_free(path);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        ONE(test_log_file_reopens_and_knows_its_id),
        ONE(test_log_file_rolls_and_trims_whole_segments),
        ONE(test_log_file_trim_while_read),
        ONE(test_log_file_two_handles_tail_each_other),
        ONE(test_log_file_torn_tails_of_every_length),
        ONE(test_log_file_readers_stop_at_the_published_end),
        ONE(test_log_file_flipped_bits_at_every_byte),
        ONE(test_log_file_strict_reader_stops_at_damage),
        ONE(test_log_file_missing_segment_is_damage),
        ONE(test_log_file_damage_behind_a_stale_end),
        ONE(test_log_file_finds_records_behind_damage),
        ONE(test_log_file_goes_on_behind_another_writers_fault),
        ONE(test_log_file_failed_steps),
        ONE(test_log_file_failed_fsync_ends_the_process),
        ONE(test_log_file_full_disk),
        ONE(test_log_file_no_permission),
        ONE(test_log_file_names_who_holds_the_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
