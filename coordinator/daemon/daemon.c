// The coordinator daemon: see daemon.h.
#include "coordinator/daemon/daemon.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>

#include "coordinator/daemon/daemon_int.h"
#include "coordinator/plan.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
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
    struct td_coordinator_daemon *d = user;
    d->journal = NULL;
    td_loop_stop(d->daemon.loop);
}

static void on_job_logs_closed(void *user) {
    struct td_coordinator_daemon *d = user;
    d->job_logs = NULL;
    td_log_close(d->journal, on_logs_closed, d);
}

static void on_server_stopped(void *user) {
    struct td_coordinator_daemon *d = user;
    td_daemon_unserve(&d->daemon);
    td_coordinator_shell_free(d->shell);
    d->shell = NULL;
    td_workq_free(d->workq); // what is under way on the logs ends first
    d->workq = NULL;
    td_job_logs_close(d->job_logs, on_job_logs_closed, d);
}

static void end(void *user) {
    struct td_coordinator_daemon *d = user;
    td_timer_stop(d->timer);
    td_link_server_close(d->link);
    td_jobs_api_close(d->api);
    td_rpc_server_stop(d->server, STOP_MS, on_server_stopped, d);
}

// ---- the shell's callbacks ----

static void on_accepted(void *user, const char *request_id, uint64_t job) {
    struct td_coordinator_daemon *d = user;
    td_jobs_api_accepted(d->api, request_id, job);
}

static void on_refused(void *user, const char *request_id, const char *cause) {
    struct td_coordinator_daemon *d = user;
    td_jobs_api_refused(d->api, request_id, cause);
}

static void on_ended(void *user, uint64_t job, enum _Tandem__Journal__Outcome outcome,
                     const char *cause) {
    struct td_coordinator_daemon *d = user;
    td_trace_info(
        "job ended", "job=%" PRIu64 " outcome=%s cause=\"%s\"", job,
        protobuf_c_enum_descriptor_get_value(&tandem__journal__outcome__descriptor, outcome)->name,
        cause);
    td_jobs_api_changed(d->api);
}

static void on_stop(void *user, const char *cause) {
    struct td_coordinator_daemon *d = user;
    td_daemon_stop(&d->daemon, cause);
}

static void on_trim_rollout(void *user, uint64_t job, const struct td_log_position *positions,
                            size_t n) {
    struct td_coordinator_daemon *d = user;
    td_job_logs_trim(d->job_logs, job, positions, n);
}

static void on_orders(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    struct td_coordinator_daemon *d = user;
    d->orders++;
    td_link_server_orders(d->link, member, bytes, n);
}

static void on_changed(void *user) {
    struct td_coordinator_daemon *d = user;
    td_jobs_api_changed(d->api);
}

static void on_report(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    struct td_coordinator_daemon *d = user;
    d->reports++;
    if (d->shell && !d->daemon.stopping) {
        td_coordinator_shell_report(d->shell, member, bytes, n);
    }
}

static bool job_served(void *user, uint64_t job) {
    const struct td_coordinator_daemon *d = user;
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
    const struct td_coordinator_daemon *d = user;
    return d->leader;
}

// ---- now and then ----

// Once the journal is known, this run directory belongs to it.
static void remember_journal(struct td_coordinator_daemon *d) {
    uint64_t id = td_coordinator_state(td_coordinator_shell_machine(d->shell))->journal_id;
    if (!id || d->expect_journal_id) {
        return;
    }
    struct td_err err;
    if (td_daemon_write_id(d->daemon.settings->dir, "journal-id", id, &err) == TD_OK) {
        d->expect_journal_id = id;
    } else {
        td_trace_error("journal id not kept", "cause=\"%s\"", err.msg);
    }
}

static void on_timer(void *user) {
    struct td_coordinator_daemon *d = user;
    const struct td_coordinator *c = td_coordinator_shell_machine(d->shell);
    bool leads = td_coordinator_leads(c);
    remember_journal(d);
    if (leads) {
        td_job_logs_follow(d->job_logs, td_coordinator_state(c));
        snprintf(d->leader, sizeof d->leader, "%s", d->address);
    }
    td_coordinator_tell_store(d, leads);
    td_rpc_server_health(d->server, "tandem.v1.Jobs", leads); // others refuse each of its calls
    td_timer_start(d->timer, TICK_MS);
}

// ---- starting ----

// No journal is made where this run directory belongs to one.
static enum td_rc open_journal(struct td_coordinator_daemon *d, struct td_err *err) {
    enum td_rc rc = td_logs_open(d->daemon.loop, &d->daemon.logs, "journal", 0, &d->journal, err);
    if (rc != TD_ENOENT) {
        return rc;
    }
    if (d->expect_journal_id) {
        return td_fail(err, TD_ECONFLICT,
                       "there is no journal, but %s belongs to journal %016" PRIx64
                       ": bring its log back, or start with an empty run directory",
                       d->daemon.settings->dir, d->expect_journal_id);
    }
    rc = td_logs_create(&d->daemon.logs, "journal", td_random_id(), 1, err);
    // Another coordinator may be making it at this moment.
    for (int64_t until = td_clock_ms() + CREATE_MS; rc == TD_OK || rc == TD_ECONFLICT;) {
        rc = td_logs_open(d->daemon.loop, &d->daemon.logs, "journal", 0, &d->journal, err);
        if (rc != TD_ENOENT || td_clock_ms() > until) {
            break;
        }
        poll(NULL, 0, CREATE_POLL_MS);
        rc = TD_ECONFLICT;
    }
    return rc;
}

static enum td_rc start_server(struct td_coordinator_daemon *d, struct td_err *err) {
    const struct td_daemon_settings *s = d->daemon.settings;
    struct td_jobs_api_opts api = {
        .loop = d->daemon.loop, .shared_dir = s->shared_dir, .leader = leader_of, .user = d};
    d->api = td_jobs_api_new(&api);
    d->link = td_link_server_new(d->daemon.loop, on_report, d);
    struct td_rpc_method methods[TD_JOBS_API_METHODS + 1];
    td_jobs_api_methods(d->api, methods);
    methods[TD_JOBS_API_METHODS] = td_link_server_method(d->link);
    struct td_rpc_server_opts opts = {.rpc = d->daemon.rpc,
                                      .methods = methods,
                                      .method_count = TD_JOBS_API_METHODS + 1,
                                      .tls = d->daemon.tls,
                                      .user = d};
    opts.descriptors = td_proto_descriptors(&opts.descriptors_bytes);
    int port = 0;
    enum td_rc rc = td_rpc_server_new(&opts, &d->server, err);
    rc = rc == TD_OK ? td_rpc_server_listen(d->server, s->listen, &port, err) : rc;
    snprintf(d->address, sizeof d->address, "%s:%d", s->host, port);
    return rc;
}

static void start_shell(struct td_coordinator_daemon *d) {
    const struct td_daemon_settings *s = d->daemon.settings;
    struct td_coordinator_shell_config c = {
        .loop = d->daemon.loop,
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
    struct td_job_logs_opts logs = {.loop = d->daemon.loop,
                                    .workq = d->workq,
                                    .logs = &d->daemon.logs,
                                    .partitions = (uint32_t)s->log.partitions,
                                    .shared_dir = s->shared_dir,
                                    .served = job_served,
                                    .user = d};
    d->job_logs = td_job_logs_new(&logs);
}

static enum td_rc start(struct td_coordinator_daemon *d, const struct td_daemon_settings *s,
                        struct td_err *err) {
    enum td_rc rc = td_daemon_init(&d->daemon, s, end, d, err);
    rc = rc == TD_OK ? td_workq_new(d->daemon.loop, "td-work", 1, WORKQ_JOBS, &d->workq, err) : rc;
    if (rc == TD_OK) {
        rc = td_daemon_read_id(s->dir, "journal-id", &d->expect_journal_id, err);
        rc = rc == TD_ENOENT ? TD_OK : rc;
    }
    rc = rc == TD_OK ? open_journal(d, err) : rc;
    rc = rc == TD_OK ? start_server(d, err) : rc;
    rc = rc == TD_OK ? td_daemon_serve(&d->daemon, "tandem-coordinator", &td_coordinator_pages, err)
                     : rc;
    if (rc != TD_OK) {
        return rc;
    }
    if (s->redis.address) {
        struct td_kv_redis_opts kv = {s->redis.address, s->redis.password_file,
                                      s->redis.timeout_ms};
        d->kv = td_kv_new_redis(d->daemon.loop, &kv);
    }
    start_shell(d);
    td_rpc_server_start(d->server);
    td_rpc_server_health(d->server, "", true);
    td_rpc_server_health(d->server, "tandem.v1.Jobs", false);
    d->timer = td_timer_new(d->daemon.loop, on_timer, d);
    td_timer_start(d->timer, 0);
    return TD_OK;
}

static void release(struct td_coordinator_daemon *d) {
    td_timer_close(d->timer);
    td_kv_free(d->kv);
    td_coordinator_shell_free(d->shell);
    td_rpc_server_free(d->server);
    td_link_server_free(d->link);
    td_jobs_api_free(d->api);
    td_workq_free(d->workq);
    if (d->journal) { // it never came to run
        td_log_close(d->journal, on_logs_closed, d);
        td_loop_run(d->daemon.loop);
    }
    td_daemon_fini(&d->daemon);
}

enum td_rc td_coordinator_daemon(const struct td_daemon_settings *settings, struct td_err *err) {
    struct td_coordinator_daemon d = {0};
    enum td_rc rc = start(&d, settings, err);
    if (rc == TD_OK) {
        td_trace_info("coordinator is up", "address=%s http=%s", d.address, d.daemon.http_address);
        rc = td_daemon_run(&d.daemon, err);
    }
    release(&d);
    return rc;
}
