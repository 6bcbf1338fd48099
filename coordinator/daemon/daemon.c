// The coordinator daemon: see daemon.h.
#include "coordinator/daemon/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/daemon/daemon_int.h"
#include "coordinator/plan.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
#include "lib/io/runlock.h"
#include "proto/descriptors.h"

enum {
    WORKQ_JOBS = 256,
    TICK_MS = 500,
    STOP_MS = 1000,
    CREATE_MS = 5000,
    CREATE_POLL_MS = 20,
};

// ---- stopping ----

static void on_logs_closed(void *user) {
    struct td_daemon *d = user;
    d->journal = NULL;
    td_loop_stop(d->loop);
}

static void on_job_logs_closed(void *user) {
    struct td_daemon *d = user;
    d->job_logs = NULL;
    td_log_close(d->journal, on_logs_closed, d);
}

static void on_server_stopped(void *user) {
    struct td_daemon *d = user;
    td_coordinator_shell_free(d->shell);
    d->shell = NULL;
    td_workq_free(d->workq); // what is under way on the logs ends first
    d->workq = NULL;
    td_job_logs_close(d->job_logs, on_job_logs_closed, d);
}

static void stop(struct td_daemon *d, const char *cause) {
    if (d->stopping) {
        return;
    }
    d->stopping = true;
    d->cause = cause ? td_strdup(cause) : NULL;
    td_timer_stop(d->timer);
    td_link_server_close(d->link);
    td_jobs_api_close(d->api);
    td_rpc_server_stop(d->server, STOP_MS, on_server_stopped, d);
}

static void on_signal(void *user, int signum) {
    (void)signum;
    stop(user, NULL);
}

// ---- the shell's callbacks ----

static void on_accepted(void *user, const char *request_id, uint64_t job) {
    struct td_daemon *d = user;
    td_jobs_api_accepted(d->api, request_id, job);
}

static void on_refused(void *user, const char *request_id, const char *cause) {
    struct td_daemon *d = user;
    td_jobs_api_refused(d->api, request_id, cause);
}

static void on_ended(void *user, uint64_t job, enum _Tandem__Journal__Outcome outcome,
                     const char *cause) {
    struct td_daemon *d = user;
    td_trace_info("job ended", "job=%" PRIu64 " outcome=%d cause=\"%s\"", job, (int)outcome, cause);
    td_jobs_api_changed(d->api);
}

static void on_stop(void *user, const char *cause) {
    stop(user, cause);
}

static void on_trim_rollout(void *user, uint64_t job, const struct td_log_position *positions,
                            size_t n) {
    struct td_daemon *d = user;
    td_job_logs_trim(d->job_logs, job, positions, n);
}

static void on_orders(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    struct td_daemon *d = user;
    d->orders++;
    td_link_server_orders(d->link, member, bytes, n);
}

static void on_changed(void *user) {
    struct td_daemon *d = user;
    td_jobs_api_changed(d->api);
}

static void on_report(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    struct td_daemon *d = user;
    d->reports++;
    if (d->shell && !d->stopping) {
        td_coordinator_shell_report(d->shell, member, bytes, n);
    }
}

static bool job_served(void *user, uint64_t job) {
    const struct td_daemon *d = user;
    const struct td_coordinator *c = td_coordinator_shell_machine(d->shell);
    for (size_t i = 0; i < td_coordinator_member_count(c); i++) {
        struct td_member_view m;
        td_coordinator_member_view(c, i, &m);
        if (m.alive && m.report && m.report->serves == job) {
            return true;
        }
    }
    return false;
}

static const char *leader_of(void *user) {
    const struct td_daemon *d = user;
    return d->leader;
}

// ---- now and then ----

// Once the journal is known, this run directory belongs to it.
static void remember_journal(struct td_daemon *d) {
    uint64_t id = td_coordinator_state(td_coordinator_shell_machine(d->shell))->journal_id;
    if (!id || d->expect_journal_id) {
        return;
    }
    char *path = td_asprintf("%s/journal-id", d->settings->dir), text[24];
    int n = snprintf(text, sizeof text, "%016" PRIx64 "\n", id);
    struct td_err err;
    if (td_file_write(path, text, (size_t)n, &err) == TD_OK) {
        d->expect_journal_id = id;
    } else {
        td_trace_error("journal id not kept", "cause=\"%s\"", err.msg);
    }
    td_free(path);
}

static void on_timer(void *user) {
    struct td_daemon *d = user;
    const struct td_coordinator *c = td_coordinator_shell_machine(d->shell);
    bool leads = td_coordinator_leads(c);
    remember_journal(d);
    if (leads) {
        td_job_logs_follow(d->job_logs, td_coordinator_state(c));
        snprintf(d->leader, sizeof d->leader, "%s", d->address);
    }
    td_daemon_tell_store(d, leads);
    td_timer_start(d->timer, TICK_MS);
}

// ---- starting ----

static enum td_rc read_journal_id(struct td_daemon *d, struct td_err *err) {
    char *path = td_asprintf("%s/journal-id", d->settings->dir);
    struct td_buf text = {0};
    enum td_rc rc = td_file_read(path, 64, &text, err);
    if (rc == TD_OK) {
        char *end = NULL;
        errno = 0;
        d->expect_journal_id = strtoull(td_buf_str(&text), &end, 16);
        if (errno || *end != '\n' || !d->expect_journal_id) {
            rc = td_fail(err, TD_ECORRUPT, "%s: not a journal's id", path);
        }
    }
    td_buf_fini(&text);
    td_free(path);
    return rc == TD_ENOENT ? TD_OK : rc;
}

// No journal is made where this run directory belongs to one.
static enum td_rc open_journal(struct td_daemon *d, struct td_err *err) {
    enum td_rc rc = td_logs_open(d->loop, &d->logs, "journal", 0, &d->journal, err);
    if (rc != TD_ENOENT) {
        return rc;
    }
    if (d->expect_journal_id) {
        return td_fail(err, TD_ECONFLICT,
                       "there is no journal, but %s belongs to journal %016" PRIx64
                       ": bring its log back, or start with an empty run directory",
                       d->settings->dir, d->expect_journal_id);
    }
    rc = td_logs_create(&d->logs, "journal", td_random_id(), 1, err);
    // Another coordinator may be making it at this moment.
    for (int64_t until = td_clock_ms() + CREATE_MS; rc == TD_OK || rc == TD_ECONFLICT;) {
        rc = td_logs_open(d->loop, &d->logs, "journal", 0, &d->journal, err);
        if (rc != TD_ENOENT || td_clock_ms() > until) {
            break;
        }
        poll(NULL, 0, CREATE_POLL_MS);
        rc = TD_ECONFLICT;
    }
    return rc;
}

static enum td_rc start_server(struct td_daemon *d, struct td_err *err) {
    const struct td_daemon_settings *s = d->settings;
    struct td_jobs_api_opts api = {
        .loop = d->loop, .shared_dir = s->shared_dir, .leader = leader_of, .user = d};
    d->api = td_jobs_api_new(&api);
    d->link = td_link_server_new(d->loop, on_report, d);
    struct td_rpc_method methods[TD_JOBS_API_METHODS + 1];
    td_jobs_api_methods(d->api, methods);
    methods[TD_JOBS_API_METHODS] = td_link_server_method(d->link);
    struct td_rpc_server_opts opts = {.rpc = d->rpc,
                                      .methods = methods,
                                      .method_count = TD_JOBS_API_METHODS + 1,
                                      .tls = s->tls.cert_file ? &d->tls : NULL,
                                      .user = d};
    opts.descriptors = td_proto_descriptors(&opts.descriptors_bytes);
    int port = 0;
    enum td_rc rc = td_rpc_server_new(&opts, &d->server, err);
    rc = rc == TD_OK ? td_rpc_server_listen(d->server, s->listen, &port, err) : rc;
    snprintf(d->address, sizeof d->address, "%s:%d", s->host, port);
    return rc;
}

static void start_shell(struct td_daemon *d) {
    const struct td_daemon_settings *s = d->settings;
    struct td_coordinator_shell_config c = {
        .loop = d->loop,
        .journal = d->journal,
        .machine = {.owner = td_random_id(),
                    .create_journal_id = d->expect_journal_id ? 0 : td_random_id(),
                    .expect_journal_id = d->expect_journal_id,
                    .assign = true,
                    .takeover_ms = s->timers.takeover_ms,
                    .beat_ms = s->timers.beat_ms,
                    .member_timeout_ms = s->timers.member_timeout_ms,
                    .state_every = (uint64_t)s->timers.state_every,
                    .plan_of = td_job_plan_of},
        .fns = {on_accepted, on_refused, on_ended, on_stop, on_trim_rollout, on_orders, on_changed},
        .user = d};
    d->shell = td_coordinator_shell_new(&c);
    td_jobs_api_set_shell(d->api, d->shell);
    struct td_job_logs_opts logs = {.loop = d->loop,
                                    .workq = d->workq,
                                    .logs = &d->logs,
                                    .partitions = (uint32_t)s->log.partitions,
                                    .shared_dir = s->shared_dir,
                                    .served = job_served,
                                    .user = d};
    d->job_logs = td_job_logs_new(&logs);
}

static enum td_rc start_http(struct td_daemon *d, struct td_err *err) {
    const char *at = d->settings->http;
    if (!at) {
        return TD_OK;
    }
    int port = 0;
    enum td_rc rc = td_http_new(d->loop, at, &d->http, &port, err);
    if (rc == TD_OK) {
        const char *colon = strrchr(at, ':');
        snprintf(d->http_address, sizeof d->http_address, "%.*s:%d", (int)(colon - at), at, port);
        td_daemon_pages(d);
    }
    return rc;
}

static enum td_rc make_loop(struct td_daemon *d, struct td_err *err) {
    static const int signums[] = {SIGINT, SIGTERM};
    enum td_rc rc = td_loop_new(&d->loop, err);
    if (rc == TD_OK) {
        rc = td_workq_new(d->loop, "td-work", 1, WORKQ_JOBS, &d->workq, err);
    }
    for (int i = 0; rc == TD_OK && i < 2; i++) {
        if (td_watch_signal(d->loop, signums[i], on_signal, d, &d->signals[i]) != TD_OK) {
            rc = td_fail(err, TD_EIO, "signals cannot be watched");
        }
    }
    return rc;
}

static struct td_logs logs_of(const struct td_daemon_settings *s) {
    return (struct td_logs){.kind =
                                s->log.kind == TD_DAEMON_LOG_KAFKA ? TD_LOGS_KAFKA : TD_LOGS_FILE,
                            .folder = s->log.folder,
                            .fsync = s->log.fsync,
                            .brokers = s->log.brokers,
                            .prefix = s->log.prefix,
                            .properties = s->log.properties,
                            .timeout_ms = s->log.timeout_s * 1000};
}

static enum td_rc start(struct td_daemon *d, struct td_err *err) {
    const struct td_daemon_settings *s = d->settings;
    d->logs = logs_of(s);
    d->tls = (struct td_rpc_tls){s->tls.ca_file, s->tls.cert_file, s->tls.key_file, NULL};
    enum td_rc rc = td_make_dirs(s->dir, err);
    rc = rc == TD_OK ? td_run_lock(s->dir, &d->lock, err) : rc;
    rc = rc == TD_OK ? make_loop(d, err) : rc;
    rc = rc == TD_OK ? read_journal_id(d, err) : rc;
    rc = rc == TD_OK ? open_journal(d, err) : rc;
    rc = rc == TD_OK ? td_rpc_new(d->loop, &d->rpc, err) : rc;
    rc = rc == TD_OK ? start_server(d, err) : rc;
    if (rc == TD_OK && s->redis.address) {
        struct td_kv_redis_opts kv = {s->redis.address, s->redis.password_file,
                                      s->redis.timeout_ms};
        d->kv = td_kv_new_redis(d->loop, &kv);
    }
    rc = rc == TD_OK ? start_http(d, err) : rc;
    if (rc == TD_OK) {
        start_shell(d);
        td_rpc_server_start(d->server);
        td_rpc_server_health(d->server, "", true);
        td_rpc_server_health(d->server, "tandem.v1.Jobs", true);
        d->timer = td_timer_new(d->loop, on_timer, d);
        td_timer_start(d->timer, 0);
    }
    return rc;
}

static void release(struct td_daemon *d) {
    td_timer_close(d->timer);
    td_http_free(d->http);
    td_kv_free(d->kv);
    td_coordinator_shell_free(d->shell);
    td_rpc_server_free(d->server);
    td_link_server_free(d->link);
    td_jobs_api_free(d->api);
    td_rpc_free(d->rpc);
    td_workq_free(d->workq);
    if (d->journal) { // it never came to run
        td_log_close(d->journal, on_logs_closed, d);
        td_loop_run(d->loop);
    }
    for (int i = 0; i < 2; i++) {
        td_watch_close(d->signals[i]);
    }
    if (d->loop) {
        td_loop_free(d->loop);
    }
    if (d->lock >= 0) {
        close(d->lock);
    }
    td_free(d->cause);
}

enum td_rc td_coordinator_daemon(const struct td_daemon_settings *settings, struct td_err *err) {
    struct td_daemon d = {.settings = settings, .lock = -1};
    enum td_rc rc = start(&d, err);
    if (rc == TD_OK) {
        td_trace_info("coordinator is up", "address=%s http=%s", d.address, d.http_address);
        td_loop_run(d.loop);
        rc = d.cause ? td_fail(err, TD_EIO, "%s", d.cause) : TD_OK;
    }
    release(&d);
    return rc;
}
