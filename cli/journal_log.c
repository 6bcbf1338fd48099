// The log of a new journal: see journal_log.h.
#include "cli/journal_log.h"

#include <inttypes.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/daemon/daemon.h"

enum td_rc td_journal_log_absent(const struct td_daemon_settings *settings, struct td_err *err) {
    struct td_logs logs = td_daemon_logs(settings);
    struct td_logs_known known = {0};
    enum td_rc rc = td_logs_ask(&logs, "journal", &known, err);
    if (rc == TD_OK) {
        return td_fail(err, TD_ECONFLICT,
                       "there is a journal, in log %016" PRIx64
                       ": move it away first if it is damaged",
                       known.id);
    }
    return rc == TD_ENOENT ? TD_OK : rc;
}

struct writing {
    struct td_loop *loop;
    enum td_rc rc;
    struct td_err *err;
};

static void on_appended(void *user, const struct td_log_result *result) {
    struct writing *w = user;
    if (result->outcome != TD_LOG_APPENDED) {
        w->rc = td_fail(w->err, TD_EIO, "the journal's first record: %s", result->err->msg);
    }
    td_loop_stop(w->loop);
}

static void on_closed(void *user) {
    struct writing *w = user;
    td_loop_stop(w->loop);
}

static enum td_rc write_first(struct td_loop *loop, const struct td_logs *logs,
                              const struct td_buf *bytes, struct td_err *err) {
    struct td_log *log = NULL;
    struct writing w = {.loop = loop, .err = err};
    w.rc = td_logs_open(loop, logs, "journal", 0, &log, err);
    if (w.rc != TD_OK) {
        return w.rc;
    }
    struct td_log_append append = {
        .bytes = bytes->data, .n = bytes->len, .done = on_appended, .user = &w};
    w.rc = td_log_append(log, &append, err);
    if (w.rc == TD_OK) {
        td_loop_run(loop);
    }
    td_log_close(log, on_closed, &w);
    td_loop_run(loop);
    return w.rc;
}

enum td_rc td_journal_log_make(const struct td_daemon_settings *settings, const td_record *first,
                               struct td_err *err) {
    struct td_logs logs = td_daemon_logs(settings);
    struct td_loop *loop = NULL;
    struct td_buf bytes = {0};
    td_record_encode(first, &bytes, NULL);
    enum td_rc rc = td_loop_new(&loop, err);
    rc = rc == TD_OK ? td_logs_create(&logs, "journal", td_random_id(), 1, err) : rc;
    rc = rc == TD_OK ? write_first(loop, &logs, &bytes, err) : rc;
    td_loop_free(loop);
    td_buf_fini(&bytes);
    return rc;
}
