// What every kind of the record log promises: the same tests over memory and file, and over Kafka
// when TD_KAFKA=HOST:PORT names a broker (tests/integration/logs.py).
#include "lib/io/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/io/logs.h"
#include "tests/unit/io/logs.h"

enum kind { MEMORY, ON_FILE, ON_KAFKA };

struct fixture {
    enum kind kind;
    struct td_loop *loop;
    struct td_log *log;
    char *folder;
    struct td_logs logs; // ON_KAFKA
};

static void open_on_kafka(struct fixture *f) {
    struct td_err err;
    if (td_logs_open(f->loop, &f->logs, "journal", 77, &f->log, &err) != TD_OK) {
        fail_msg("open: %s", err.msg);
    }
}

static int open_fixture(void **state, enum kind kind) {
    struct fixture *f = td_alloc(sizeof *f);
    f->kind = kind;
    f->loop = new_loop();
    if (kind == ON_KAFKA) {
        struct td_err err;
        f->logs = (struct td_logs){.kind = TD_LOGS_KAFKA,
                                   .brokers = getenv("TD_KAFKA"),
                                   .prefix = "test_log",
                                   .timeout_ms = 20000};
        assert_int_equal(td_logs_delete(&f->logs, "journal", NULL), TD_OK);
        if (td_logs_create(&f->logs, "journal", 77, 2, &err) != TD_OK) {
            fail_msg("create: %s", err.msg);
        }
        open_on_kafka(f);
    } else if (kind == ON_FILE) {
        f->folder = new_folder();
        struct td_log_file_opts opts = {.folder = f->folder, .id = 77, .partitions = 2};
        opts.segment_bytes_max = 200;
        assert_int_equal(td_log_file_create(&opts, NULL), TD_OK);
        assert_int_equal(td_log_file_open(f->loop, &opts, &f->log, NULL), TD_OK);
    } else {
        f->log = td_log_memory_new(f->loop, 77, 2);
    }
    *state = f;
    return 0;
}

static int open_memory(void **state) {
    return open_fixture(state, MEMORY);
}

static int open_file(void **state) {
    return open_fixture(state, ON_FILE);
}

static int open_kafka(void **state) {
    return open_fixture(state, ON_KAFKA);
}

static int close_fixture(void **state) {
    struct fixture *f = *state;
    close_log(f->loop, f->log);
    td_loop_free(f->loop);
    if (f->kind == ON_FILE) {
        drop_folder(f->folder);
    } else if (f->kind == ON_KAFKA) {
        assert_int_equal(td_logs_delete(&f->logs, "journal", NULL), TD_OK);
    }
    td_free(f);
    return 0;
}

static void test_log_appends_in_order_and_reads_back(void **state) {
    struct fixture *f = *state;
    assert_int_equal(td_log_id(f->log), 77);
    assert_int_equal(td_log_partitions(f->log), 2);
    struct bounds bounds = bounds_of(f->loop, f->log, 0);
    assert_int_equal(bounds.rc, TD_OK);
    assert_true(bounds.start == 0 && bounds.end == 0);
    struct appended a[3] = {0};
    append_begin(f->log, 0, "a", false, &a[0]);
    append_begin(f->log, 1, "x", false, &a[1]);
    append_begin(f->log, 0, "", false, &a[2]);
    assert_int_equal(a[0].count, 0); // a later turn
    wait_until(f->loop, &a[2].count, 1);
    assert_true(a[0].count == 1 && a[1].count == 1);
    assert_true(a[0].offset == 0 && a[1].offset == 0 && a[2].offset == 1);
    bounds = bounds_of(f->loop, f->log, 0);
    assert_true(bounds.start == 0 && bounds.end == 2);
    struct seen seen;
    read_news(f->loop, f->log, 0, 2, false, &seen);
    assert_int_equal(append_ok(f->loop, f->log, "later"), 2); // a reader goes on for ever
    wait_until(f->loop, &seen.news, 3);
    assert_string_equal(td_buf_str(&seen.text), "0=a 1= 2=later ");
    assert_int_equal(td_log_reader_next(seen.reader), 3);
    seen_fini(&seen);
    assert_int_equal(td_log_waits_for(f->log), 0);
}

static void test_log_many_records_come_once_in_order(void **state) {
    struct fixture *f = *state;
    enum { COUNT = 700 };
    struct appended appended = {0};
    struct td_buf want = {0};
    struct seen seen = {0};
    seen.reader = td_log_read(f->log, 0, 0, &strict_fns, &seen);
    for (int i = 0; i < COUNT; i++) {
        char text[16];
        snprintf(text, sizeof text, "r%d", i);
        if (i - appended.count >= 100) {
            wait_until(f->loop, &appended.count, i - 50);
        }
        append_begin(f->log, 0, text, i % 97 == 0, &appended);
        td_buf_printf(&want, "%d=%s ", i, text);
    }
    wait_until(f->loop, &seen.news, COUNT);
    assert_string_equal(td_buf_str(&seen.text), td_buf_str(&want));
    seen_fini(&seen);
    read_news(f->loop, f->log, TD_LOG_FROM_START, COUNT, false, &seen);
    assert_string_equal(td_buf_str(&seen.text), td_buf_str(&want));
    seen_fini(&seen);
    td_buf_fini(&want);
    wait_until(f->loop, &appended.count, COUNT);
}

static void test_log_trim_moves_the_start(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < 6; i++) {
        append_ok(f->loop, f->log, "r");
    }
    struct seen late, from_start, beyond;
    assert_int_equal(trim_log(f->loop, f->log, 4), TD_OK);
    assert_int_equal(trim_log(f->loop, f->log, 2), TD_OK); // nothing to do
    assert_int_equal(trim_log(f->loop, f->log, 7), TD_EINVAL);
    struct bounds bounds = bounds_of(f->loop, f->log, 0);
    assert_true(bounds.start == 4 && bounds.end == 6);
    read_news(f->loop, f->log, 1, 3, false, &late);
    assert_string_equal(td_buf_str(&late.text), "gap4 4=r 5=r ");
    read_news(f->loop, f->log, TD_LOG_FROM_START, 2, false, &from_start);
    assert_string_equal(td_buf_str(&from_start.text), "4=r 5=r ");
    read_news(f->loop, f->log, 9, 3, false, &beyond);
    assert_string_equal(td_buf_str(&beyond.text), "gap4 4=r 5=r ");
    seen_fini(&late);
    seen_fini(&from_start);
    seen_fini(&beyond);
    assert_int_equal(trim_log(f->loop, f->log, 6), TD_OK); // empty, and goes on
    bounds = bounds_of(f->loop, f->log, 0);
    assert_true(bounds.start == 6 && bounds.end == 6);
    assert_int_equal(append_ok(f->loop, f->log, "next"), 6);
    read_news(f->loop, f->log, 0, 2, false, &late);
    assert_string_equal(td_buf_str(&late.text), "gap6 6=next ");
    seen_fini(&late);
}

static void test_log_reader_pauses_and_closes_within_callbacks(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < 5; i++) {
        append_ok(f->loop, f->log, "r");
    }
    struct seen paused = {.pause_at = 2}, closed = {.close_at = 3}, other;
    paused.reader = td_log_read(f->log, 0, 0, &strict_fns, &paused);
    closed.reader = td_log_read(f->log, 0, 0, &strict_fns, &closed);
    wait_until(f->loop, &closed.news, 3);
    wait_until(f->loop, &paused.news, 2);
    read_news(f->loop, f->log, 0, 5, false, &other);
    append_ok(f->loop, f->log, "more");
    wait_until(f->loop, &other.news, 6);
    assert_int_equal(paused.news, 2);
    assert_int_equal(closed.news, 3);
    td_log_reader_pause(paused.reader, false);
    wait_until(f->loop, &paused.news, 6);
    assert_string_equal(td_buf_str(&paused.text), td_buf_str(&other.text));
    seen_fini(&paused);
    seen_fini(&closed);
    seen_fini(&other);
    struct seen idle; // paused when there is nothing, then something comes
    read_news(f->loop, f->log, 5, 1, false, &idle);
    td_log_reader_pause(idle.reader, true);
    append_ok(f->loop, f->log, "unseen");
    assert_int_equal(idle.news, 1);
    td_log_reader_pause(idle.reader, false);
    wait_until(f->loop, &idle.news, 2);
    seen_fini(&idle);
}

static void test_log_reads_one_record(void **state) {
    struct fixture *f = *state;
    append_ok(f->loop, f->log, "first");
    append_ok(f->loop, f->log, "second");
    struct td_buf out = {0};
    struct td_err err;
    uint32_t crc = td_crc32c(0, "second", 6);
    assert_int_equal(td_log_read_one(f->log, 0, 1, crc, &out, &err), TD_OK);
    assert_string_equal(td_buf_str(&out), "second");
    assert_int_equal(td_log_read_one(f->log, 0, 0, crc, &out, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "expected"));
    assert_int_equal(td_log_read_one(f->log, 0, 2, crc, &out, &err), TD_ENOENT);
    assert_int_equal(td_log_read_one(f->log, 1, 0, crc, &out, &err), TD_ENOENT);
    assert_int_equal(trim_log(f->loop, f->log, 1), TD_OK);
    assert_int_equal(td_log_read_one(f->log, 0, 0, crc, &out, &err), TD_ENOENT);
    td_buf_fini(&out);
}

static void test_log_limits(void **state) {
    struct fixture *f = *state;
    struct td_err err;
    struct appended appended = {0};
    uint8_t *big = td_try_alloc(TD_LOG_RECORD_BYTES_MAX + 1);
    struct td_log_append append = {0,     big,         TD_LOG_RECORD_BYTES_MAX + 1,
                                   false, on_appended, &appended};
    assert_int_equal(td_log_append(f->log, &append, &err), TD_ELIMIT);
    td_free(big);
    for (int i = 0; i < TD_LOG_OUTSTANDING_MAX; i++) {
        append_begin(f->log, 0, "r", false, &appended);
    }
    append.n = 0;
    append.bytes = "";
    assert_int_equal(td_log_append(f->log, &append, &err), TD_ELIMIT);
    wait_until(f->loop, &appended.count, TD_LOG_OUTSTANDING_MAX);
    assert_int_equal(append_ok(f->loop, f->log, "again"), TD_LOG_OUTSTANDING_MAX);
}

// Everything asked for before the close is answered, and a reader closed in mid-fetch is no harm.
static void test_log_close_finishes_what_is_outstanding(void **state) {
    struct fixture *f = *state;
    struct appended appended = {0};
    struct bounds bounds = {0};
    struct seen seen = {0};
    for (int i = 0; i < 20; i++) {
        append_begin(f->log, 0, "r", false, &appended);
    }
    td_log_bounds(f->log, 0, on_bounds, &bounds);
    seen.reader = td_log_read(f->log, 0, 0, &strict_fns, &seen);
    seen_fini(&seen);
    close_log(f->loop, f->log);
    assert_int_equal(appended.count, 20);
    assert_int_equal(bounds.end, 20);
    if (f->kind == ON_KAFKA) {
        open_on_kafka(f);
    } else if (f->kind == ON_FILE) {
        struct td_log_file_opts opts = {.folder = f->folder};
        assert_int_equal(td_log_file_open(f->loop, &opts, &f->log, NULL), TD_OK);
    } else {
        f->log = td_log_memory_new(f->loop, 77, 2);
    }
}

static void test_log_memory_gives_outcomes_on_demand(void **state) {
    struct fixture *f = *state;
    td_log_memory_inject(f->log, TD_LOG_FAILED, false);
    assert_int_equal(append_text(f->loop, f->log, 0, "lost", false).outcome, TD_LOG_FAILED);
    td_log_memory_inject(f->log, TD_LOG_UNKNOWN, false);
    assert_int_equal(append_text(f->loop, f->log, 0, "lost", false).outcome, TD_LOG_UNKNOWN);
    td_log_memory_inject(f->log, TD_LOG_UNKNOWN, true);
    assert_int_equal(append_text(f->loop, f->log, 0, "landed", false).outcome, TD_LOG_UNKNOWN);
    assert_int_equal(append_ok(f->loop, f->log, "fine"), 1);
    struct seen seen;
    read_news(f->loop, f->log, 0, 2, false, &seen);
    assert_string_equal(td_buf_str(&seen.text), "0=landed 1=fine ");
    seen_fini(&seen);
}

#define ALL(open)                                                                                  \
    ONE(test_log_appends_in_order_and_reads_back, open),                                           \
        ONE(test_log_many_records_come_once_in_order, open),                                       \
        ONE(test_log_trim_moves_the_start, open),                                                  \
        ONE(test_log_reader_pauses_and_closes_within_callbacks, open),                             \
        ONE(test_log_reads_one_record, open), ONE(test_log_limits, open),                          \
        ONE(test_log_close_finishes_what_is_outstanding, open)
#define ONE(test, open) cmocka_unit_test_setup_teardown(test, open, close_fixture)

int main(void) {
    const struct CMUnitTest here[] = {
        ALL(open_memory),
        ALL(open_file),
        ONE(test_log_memory_gives_outcomes_on_demand, open_memory),
    };
    const struct CMUnitTest kafka[] = {ALL(open_kafka)};
    return getenv("TD_KAFKA") ? cmocka_run_group_tests(kafka, NULL, NULL)
                              : cmocka_run_group_tests(here, NULL, NULL);
}
