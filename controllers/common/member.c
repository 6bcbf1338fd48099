// A controller daemon's life and reports: see member.h.
#include "controllers/common/member.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controllers/common/member_int.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
#include "lib/io/runlock.h"
#include "lib/spec/build_id.h"

enum { WORKQ_JOBS = 65536, LOAD_JOBS = 64, CHILDREN_MAX = 256, TICK_MS = 500 };

// ---- for the role ----

const struct td_daemon_settings *td_member_settings(const struct td_member *m) {
    return m->settings;
}

struct td_loop *td_member_loop(const struct td_member *m) {
    return m->loop;
}

struct td_children *td_member_children(const struct td_member *m) {
    return m->children;
}

struct td_workq *td_member_workq(const struct td_member *m) {
    return m->workq;
}

struct td_log *td_member_journal(const struct td_member *m) {
    return m->journal;
}

const char *td_member_worker_program(const struct td_member *m) {
    return m->worker_program;
}

uint64_t td_member_id(const struct td_member *m) {
    return m->id;
}

uint64_t td_member_incarnation(const struct td_member *m) {
    return m->incarnation;
}

uint32_t td_member_threads(const struct td_member *m) {
    if (m->settings->threads > 0) {
        return (uint32_t)m->settings->threads;
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN), each = cores / m->settings->workers;
    return each > 1 ? (uint32_t)each : 1;
}

void td_member_metrics(void *user, uint64_t step, const char *json) {
    struct td_member *m = user;
    td_free(m->metrics);
    m->metrics = td_strdup(json);
    m->metrics_step = step;
}

// ---- reports ----

// What the member adds to a report of its shell's machine.
size_t td_member_workers(const struct td_member *m,
                         Tandem__Sync__WorkerState out[TD_POOL_WORKERS_MAX]) {
    return m->shell ? td_pool_states(m->role->pool(m->shell), out) : 0;
}

void td_member_report(void *user, const Tandem__Sync__Report *report) {
    struct td_member *m = user;
    Tandem__Sync__Report r = *report;
    Tandem__Sync__TrainReport train;
    Tandem__Sync__Indexed room[TD_MEMBER_INDEX_MAX], *indexed[TD_MEMBER_INDEX_MAX];
    Tandem__Sync__WorkerState states[TD_POOL_WORKERS_MAX], *workers[TD_POOL_WORKERS_MAX];
    r.serves = m->state == TD_SERVICE_RUNNING || m->trouble ? m->service.job : 0;
    r.trouble = m->trouble ? m->trouble : "";
    r.n_indexed = td_index_report(m, room, indexed);
    r.indexed = indexed;
    r.n_worker_states = td_member_workers(m, states);
    for (size_t i = 0; i < r.n_worker_states; i++) {
        workers[i] = &states[i];
    }
    r.worker_states = workers;
    r.host = (char *)m->settings->host;
    r.http = m->http_address;
    if (r.train) {
        train = *r.train;
        train.metrics = m->metrics ? m->metrics : "";
        r.train = &train;
    }
    size_t n = tandem__sync__report__get_packed_size(&r);
    uint8_t *bytes = td_alloc(n);
    tandem__sync__report__pack(&r, bytes);
    td_link_client_report(m->link, bytes, n);
    td_free(bytes);
}

void td_member_send_report(struct td_member *m) {
    Tandem__Sync__Report r = TANDEM__SYNC__REPORT__INIT;
    r.member = m->id;
    r.kind = m->role->kind;
    r.journal_id = m->journal_id;
    r.term = m->term;
    r.build = (char *)td_build_id();
    r.device = "cpu";
    r.workers = (uint32_t)m->settings->workers;
    r.report = ++m->reports;
    td_member_report(m, &r);
}

// ---- orders ----

// Those of a leader that was deposed are passed over.
static bool orders_count(struct td_member *m, const Tandem__Sync__Orders *o) {
    if ((m->journal_id && o->journal_id != m->journal_id) || o->term < m->term) {
        return false;
    }
    m->journal_id = o->journal_id;
    m->term = o->term;
    return true;
}

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    struct td_member *m = user;
    Tandem__Sync__Orders *o = tandem__sync__orders__unpack(NULL, n, bytes);
    if (!o || m->stopping || !orders_count(m, o)) {
        tandem__sync__orders__free_unpacked(o, NULL);
        return;
    }
    m->wanted.job = o->serve ? o->serve->job : 0;
    m->wanted.rollout_log = o->serve ? o->serve->rollout_log : 0;
    td_buf_clear(&m->wanted.spec);
    if (o->serve) {
        td_buf_put(&m->wanted.spec, o->serve->spec.data, o->serve->spec.len);
    }
    td_index_orders(m, o);
    if (m->state == TD_SERVICE_RUNNING && m->wanted.job == m->service.job) {
        m->role->orders(m->shell, o);
    }
    td_service_drive(m);
    tandem__sync__orders__free_unpacked(o, NULL);
}

static void on_timer(void *user) {
    struct td_member *m = user;
    td_service_drive(m);
    if (m->state != TD_SERVICE_RUNNING) {
        td_member_send_report(m);
    }
    td_timer_start(m->timer, m->state == TD_SERVICE_OPENING ? TICK_MS / 5 : TICK_MS);
}

// ---- stopping ----

static void on_journal_closed(void *user) {
    struct td_member *m = user;
    m->journal = NULL;
    td_loop_stop(m->loop);
}

void td_service_over(struct td_member *m) {
    if (m->journal) {
        td_log_close(m->journal, on_journal_closed, m);
    } else {
        td_loop_stop(m->loop);
    }
}

void td_member_stop(void *user, const char *cause) {
    struct td_member *m = user;
    if (m->stopping) {
        return;
    }
    m->stopping = true;
    m->cause = cause ? td_strdup(cause) : NULL;
    td_timer_stop(m->timer);
    td_service_end(m);
}

static void on_signal(void *user, int signum) {
    (void)signum;
    td_member_stop(user, NULL);
}

// ---- starting ----

// A run directory is a member that comes back under its name.
static enum td_rc read_id(struct td_member *m, struct td_err *err) {
    char *path = td_asprintf("%s/member-id", m->settings->dir), text[24];
    struct td_buf old = {0};
    enum td_rc rc = td_file_read(path, 64, &old, err);
    if (rc == TD_OK) {
        char *end = NULL;
        m->id = strtoull(td_buf_str(&old), &end, 16);
        if (!m->id || *end != '\n') {
            rc = td_fail(err, TD_ECORRUPT, "%s: not a member's id", path);
        }
    } else if (rc == TD_ENOENT) {
        m->id = td_random_id();
        int n = snprintf(text, sizeof text, "%016" PRIx64 "\n", m->id);
        rc = td_file_write(path, text, (size_t)n, err);
    }
    td_buf_fini(&old);
    td_free(path);
    return rc;
}

static enum td_rc find_worker_program(struct td_member *m, struct td_err *err) {
    ssize_t n = readlink("/proc/self/exe", m->worker_program, sizeof m->worker_program - 16);
    if (n <= 0) {
        return td_fail(err, TD_EIO, "cannot tell where this program lies");
    }
    m->worker_program[n] = 0;
    char *slash = strrchr(m->worker_program, '/');
    snprintf(slash + 1, 15, "tandem-worker");
    return TD_OK;
}

static enum td_rc make_loop(struct td_member *m, struct td_err *err) {
    static const int signums[] = {SIGINT, SIGTERM};
    enum td_rc rc = td_loop_new(&m->loop, err);
    rc = rc == TD_OK ? td_children_new(m->loop, CHILDREN_MAX, &m->children, err) : rc;
    rc = rc == TD_OK ? td_workq_new(m->loop, "td-work", 1, WORKQ_JOBS, &m->workq, err) : rc;
    rc = rc == TD_OK ? td_workq_new(m->loop, "td-load", 1, LOAD_JOBS, &m->load_workq, err) : rc;
    for (int i = 0; rc == TD_OK && i < 2; i++) {
        if (td_watch_signal(m->loop, signums[i], on_signal, m, &m->signals[i]) != TD_OK) {
            rc = td_fail(err, TD_EIO, "signals cannot be watched");
        }
    }
    return rc;
}

static enum td_rc start_link(struct td_member *m, struct td_err *err) {
    const struct td_daemon_settings *s = m->settings;
    bool tls = s->tls.ca_file || s->tls.cert_file; // without a CA file: the system's authorities
    struct td_link_client_opts opts = {.loop = m->loop,
                                       .rpc = m->rpc,
                                       .addresses = s->coordinators.items,
                                       .count = (size_t)s->coordinators.count,
                                       .tls = tls ? &m->tls : NULL,
                                       .member = m->id,
                                       .on_orders = on_orders,
                                       .user = m};
    return td_link_client_new(&opts, &m->link, err);
}

static enum td_rc start_http(struct td_member *m, struct td_err *err) {
    const char *at = m->settings->http;
    int port = 0;
    enum td_rc rc = at ? td_http_new(m->loop, at, &m->http, &port, err) : TD_OK;
    if (rc == TD_OK && m->http) {
        const char *colon = strrchr(at, ':');
        snprintf(m->http_address, sizeof m->http_address, "%.*s:%d", (int)(colon - at), at, port);
        td_member_pages(m);
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

static enum td_rc start(struct td_member *m, struct td_err *err) {
    const struct td_daemon_settings *s = m->settings;
    m->logs = logs_of(s);
    m->tls = (struct td_rpc_tls){s->tls.ca_file, s->tls.cert_file, s->tls.key_file, NULL};
    m->incarnation = td_random_id();
    enum td_rc rc = td_make_dirs(s->dir, err);
    rc = rc == TD_OK ? td_run_lock(s->dir, &m->lock, err) : rc;
    rc = rc == TD_OK ? read_id(m, err) : rc;
    rc = rc == TD_OK ? find_worker_program(m, err) : rc;
    rc = rc == TD_OK ? make_loop(m, err) : rc;
    rc = rc == TD_OK ? td_rpc_new(m->loop, &m->rpc, err) : rc;
    rc = rc == TD_OK ? start_http(m, err) : rc;
    rc = rc == TD_OK ? start_link(m, err) : rc;
    if (rc == TD_OK) {
        m->timer = td_timer_new(m->loop, on_timer, m);
        td_timer_start(m->timer, 0);
    }
    return rc;
}

static void release(struct td_member *m) {
    td_timer_close(m->timer);
    td_link_client_free(m->link);
    td_http_free(m->http);
    td_rpc_free(m->rpc);
    td_workq_free(m->workq);
    td_workq_free(m->load_workq);
    td_index_free(m);
    td_children_free(m->children);
    for (int i = 0; i < 2; i++) {
        td_watch_close(m->signals[i]);
    }
    if (m->loop) {
        td_loop_free(m->loop);
    }
    if (m->lock >= 0) {
        close(m->lock);
    }
    td_buf_fini(&m->wanted.spec);
    td_free(m->trouble);
    td_free(m->cause);
}

enum td_rc td_member_daemon(const struct td_daemon_settings *settings,
                            const struct td_member_role *role, struct td_err *err) {
    struct td_member *m = td_alloc(sizeof *m);
    m->settings = settings;
    m->role = role;
    m->lock = -1;
    enum td_rc rc = start(m, err);
    if (rc == TD_OK) {
        td_trace_info("member is up", "member=%016" PRIx64 " http=%s", m->id, m->http_address);
        td_loop_run(m->loop);
        rc = m->cause ? td_fail(err, TD_EIO, "%s", m->cause) : TD_OK;
    }
    release(m);
    td_free(m);
    return rc;
}
