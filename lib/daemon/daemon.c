// Life of a daemon: see daemon.h.
#include "lib/daemon/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/runlock.h"

struct td_logs td_daemon_logs(const struct td_daemon_settings *s) {
    return (struct td_logs){.kind =
                                s->log.kind == TD_DAEMON_LOG_KAFKA ? TD_LOGS_KAFKA : TD_LOGS_FILE,
                            .folder = s->log.folder,
                            .fsync = s->log.fsync,
                            .brokers = s->log.brokers,
                            .prefix = s->log.prefix,
                            .properties = s->log.properties,
                            .timeout_ms = s->log.timeout_s * 1000};
}

enum td_rc td_daemon_watch_signals(struct td_loop *loop, td_signal_fn *fn, void *user,
                                   struct td_watch *watches[2], struct td_err *err) {
    static const int signums[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        if (td_watch_signal(loop, signums[i], fn, user, &watches[i]) != TD_OK) {
            return td_fail(err, TD_EIO, "signals cannot be watched");
        }
    }
    return TD_OK;
}

enum td_rc td_daemon_worker_program(char out[PATH_MAX], struct td_err *err) {
    static const char name[] = "tandem-worker";
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - sizeof name);
    if (n <= 0) {
        return td_fail(err, TD_EIO, "/proc/self/exe does not say where this program is");
    }
    out[n] = 0;
    memcpy(strrchr(out, '/') + 1, name, sizeof name);
    return TD_OK;
}

// ---- ids ----

enum td_rc td_daemon_read_id(const char *dir, const char *name, uint64_t *id, struct td_err *err) {
    char *path = td_asprintf("%s/%s", dir, name), *end = NULL;
    struct td_buf text = {0};
    enum td_rc rc = td_file_read(path, 64, &text, err);
    if (rc == TD_OK) {
        errno = 0;
        uint64_t value = strtoull(td_buf_str(&text), &end, 16);
        if (errno || strcmp(end, "\n") != 0 || !value) {
            rc = td_fail(err, TD_ECORRUPT, "%s: not an id of 16 digits", path);
        } else {
            *id = value;
        }
    }
    td_buf_fini(&text);
    td_free(path);
    return rc;
}

enum td_rc td_daemon_write_id(const char *dir, const char *name, uint64_t id, struct td_err *err) {
    char *path = td_asprintf("%s/%s", dir, name), text[24];
    int n = snprintf(text, sizeof text, "%016" PRIx64 "\n", id);
    enum td_rc rc = td_file_write(path, text, (size_t)n, err);
    td_free(path);
    return rc;
}

// ---- life ----

static void on_signal(void *user, int signum) {
    (void)signum;
    td_daemon_stop(user, NULL);
}

enum td_rc td_daemon_init(struct td_daemon *d, const struct td_daemon_settings *s, td_loop_fn *end,
                          void *user, struct td_err *err) {
    *d = (struct td_daemon){
        .settings = s,
        .logs = td_daemon_logs(s),
        .certificates = {s->tls.ca_file, s->tls.cert_file, s->tls.key_file, NULL},
        .lock = -1,
        .end = end,
        .user = user};
    // A client without a CA file trusts the system's authorities.
    d->tls = s->tls.ca_file || s->tls.cert_file ? &d->certificates : NULL;
    enum td_rc rc = td_make_dirs(s->dir, err);
    rc = rc == TD_OK ? td_run_lock(s->dir, &d->lock, err) : rc;
    rc = rc == TD_OK ? td_loop_new(&d->loop, err) : rc;
    rc = rc == TD_OK ? td_daemon_watch_signals(d->loop, on_signal, d, d->signals, err) : rc;
    return rc == TD_OK ? td_rpc_new(d->loop, &d->rpc, err) : rc;
}

void td_daemon_stop(struct td_daemon *d, const char *cause) {
    if (!d->stopping) {
        d->stopping = true;
        d->cause = td_strdup(cause);
        d->end(d->user);
    }
}

enum td_rc td_daemon_run(struct td_daemon *d, struct td_err *err) {
    td_loop_run(d->loop);
    return d->cause ? td_fail(err, TD_EIO, "%s", d->cause) : TD_OK;
}

void td_daemon_fini(struct td_daemon *d) {
    td_daemon_unserve(d);
    td_rpc_free(d->rpc);
    for (int i = 0; i < 2; i++) {
        td_watch_close(d->signals[i]);
    }
    td_loop_free(d->loop);
    if (d->lock >= 0) {
        close(d->lock);
    }
    td_free(d->cause);
}
