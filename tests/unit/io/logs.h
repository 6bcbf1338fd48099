// Blocking forms of the log's calls, for tests: each runs the loop until the answer is there.
#ifndef TD_TESTS_IO_LOGS_H
#define TD_TESTS_IO_LOGS_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/log_file.h"
#include "lib/io/log_memory.h"
#include "tests/unit/io/wait.h"

// A new folder, owned; in memory where there is such a file system, because of the many fsyncs.
static inline char *new_folder(void) {
    char *folder =
        td_asprintf("%s/td_log_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(folder));
    return folder;
}

// And the folder's end.
static inline void drop_folder(char *folder) {
    assert_int_equal(td_remove_tree(folder, NULL), TD_OK);
    td_free(folder);
}

struct appended {
    int count;
    enum td_log_outcome outcome;
    int64_t offset;
    uint32_t crc;
    struct td_err err;
};

static inline void on_appended(void *user, const struct td_log_result *result) {
    struct appended *appended = user;
    appended->outcome = result->outcome;
    appended->offset = result->offset;
    appended->crc = result->crc;
    if (result->err) {
        appended->err = *result->err;
    }
    assert_int_equal(result->outcome == TD_LOG_APPENDED, result->err == NULL);
    appended->count++;
}

static inline void append_begin(struct td_log *log, uint32_t partition, const char *text, bool roll,
                                struct appended *appended) {
    struct td_log_append append = {partition, text, strlen(text), roll, on_appended, appended};
    assert_int_equal(td_log_append(log, &append, NULL), TD_OK);
}

static inline struct appended append_text(struct td_loop *loop, struct td_log *log,
                                          uint32_t partition, const char *text, bool roll) {
    struct appended appended = {0};
    append_begin(log, partition, text, roll, &appended);
    wait_until(loop, &appended.count, 1);
    return appended;
}

static inline int64_t append_ok(struct td_loop *loop, struct td_log *log, const char *text) {
    struct appended appended = append_text(loop, log, 0, text, false);
    if (appended.outcome != TD_LOG_APPENDED) {
        fail_msg("append: %s", appended.err.msg);
    }
    assert_int_equal(appended.crc, td_crc32c(0, text, strlen(text)));
    return appended.offset;
}

struct bounds {
    int count;
    enum td_rc rc;
    int64_t start, end;
};

static inline void on_bounds(void *user, enum td_rc rc, int64_t start, int64_t end,
                             const struct td_err *err) {
    struct bounds *bounds = user;
    assert_int_equal(rc == TD_OK, err == NULL);
    *bounds = (struct bounds){bounds->count + 1, rc, start, end};
}

static inline struct bounds bounds_of(struct td_loop *loop, struct td_log *log,
                                      uint32_t partition) {
    struct bounds bounds = {0};
    td_log_bounds(log, partition, on_bounds, &bounds);
    wait_until(loop, &bounds.count, 1);
    return bounds;
}

struct trimmed {
    int count;
    enum td_rc rc;
};

static inline void on_trimmed(void *user, enum td_rc rc, const struct td_err *err) {
    struct trimmed *trimmed = user;
    assert_int_equal(rc == TD_OK, err == NULL);
    trimmed->rc = rc;
    trimmed->count++;
}

static inline enum td_rc trim_log(struct td_loop *loop, struct td_log *log, int64_t below) {
    struct trimmed trimmed = {0};
    td_log_trim(log, 0, below, on_trimmed, &trimmed);
    wait_until(loop, &trimmed.count, 1);
    return trimmed.rc;
}

static inline void on_closed(void *user) {
    ++*(int *)user;
}

static inline void close_log(struct td_loop *loop, struct td_log *log) {
    int closed = 0;
    td_log_close(log, on_closed, &closed);
    wait_until(loop, &closed, 1);
}

// What a reader saw: "0=text 1=text ", "gap5 ", "bad3 ", "error ".
struct seen {
    struct td_buf text;
    int records, gaps, bad, errors, news; // news: all of them
    int64_t next;
    struct td_err err;
    struct td_log_reader *reader;
    int pause_at, close_at; // when so many records were seen; 0: never
};

static inline void on_record(void *user, const struct td_log_record *record) {
    struct seen *seen = user;
    assert_int_equal(record->crc, td_crc32c(0, record->bytes, record->n));
    if (seen->records || seen->gaps) {
        assert_true(record->offset >= seen->next);
    }
    seen->next = record->offset + 1;
    td_buf_printf(&seen->text, "%lld=%.*s ", (long long)record->offset, (int)record->n,
                  (const char *)record->bytes);
    seen->records++;
    seen->news++;
    if (seen->records == seen->pause_at) {
        td_log_reader_pause(seen->reader, true);
    }
    if (seen->records == seen->close_at) {
        td_log_reader_close(seen->reader);
        seen->reader = NULL;
    }
}

static inline void on_gap(void *user, int64_t start) {
    struct seen *seen = user;
    td_buf_printf(&seen->text, "gap%lld ", (long long)start);
    seen->next = start;
    seen->gaps++;
    seen->news++;
}

static inline void on_damaged(void *user, int64_t offset, const struct td_err *err) {
    struct seen *seen = user;
    td_buf_printf(&seen->text, "bad%lld ", (long long)offset);
    seen->err = *err;
    seen->bad++;
    seen->news++;
}

static inline void on_error(void *user, const struct td_err *err) {
    struct seen *seen = user;
    td_buf_puts(&seen->text, "error ");
    seen->err = *err;
    seen->errors++;
    seen->news++;
}

static const struct td_log_reader_fns strict_fns = {on_record, on_gap, NULL, on_error};
static const struct td_log_reader_fns lenient_fns = {on_record, on_gap, on_damaged, on_error};

static inline void seen_fini(struct seen *seen) {
    td_log_reader_close(seen->reader);
    seen->reader = NULL;
    td_buf_fini(&seen->text);
}

// Reads until `news` records, gaps, damages and errors were told.
static inline void read_news(struct td_loop *loop, struct td_log *log, int64_t from, int news,
                             bool lenient, struct seen *seen) {
    *seen = (struct seen){0};
    seen->reader = td_log_read(log, 0, from, lenient ? &lenient_fns : &strict_fns, seen);
    wait_until(loop, &seen->news, news);
}

#endif
