// A controller daemon's life and reports: see member.h.
#include "controllers/common/member.h"

#include <inttypes.h>
#include <unistd.h>

#include "controllers/common/member_int.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
#include "lib/spec/build_id.h"

enum { WORKQ_JOBS = 65536, LOAD_JOBS = 64, CHILDREN_MAX = 256, TICK_MS = 500 };

void td_member_metrics(void *user, uint64_t step, const char *json) {
    struct td_member *m = user;
    td_free(m->metrics);
    m->metrics = td_strdup(json);
    m->metrics_step = step;
}

// ---- reports ----

size_t td_member_workers(const struct td_member *m,
                         Tandem__Sync__WorkerState out[TD_POOL_WORKERS_MAX]) {
    return m->shell ? td_pool_states(m->shell->pool, out) : 0;
}

// What the member adds to a report of its shell's machine.
static void report(void *user, const Tandem__Sync__Report *report) {
    struct td_member *m = user;
    Tandem__Sync__Report r = *report;
    Tandem__Sync__TrainReport train;
    Tandem__Sync__Indexed room[TD_MEMBER_INDEX_MAX], *indexed[TD_MEMBER_INDEX_MAX];
    Tandem__Sync__WorkerState states[TD_POOL_WORKERS_MAX], *workers[TD_POOL_WORKERS_MAX];
    // Until its log is closed: the leader deletes that of an ended job when nobody serves it.
    bool open = m->state == TD_SERVICE_RUNNING || m->state == TD_SERVICE_STOPPING;
    r.serves = open || m->trouble ? m->service.job : 0;
    r.trouble = m->trouble ? m->trouble : "";
    r.n_indexed = td_index_report(m, room, indexed);
    r.indexed = indexed;
    r.n_worker_states = td_member_workers(m, states);
    for (size_t i = 0; i < r.n_worker_states; i++) {
        workers[i] = &states[i];
    }
    r.worker_states = workers;
    r.host = (char *)m->daemon.settings->host;
    r.http = m->daemon.http_address;
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
    r.workers = (uint32_t)m->daemon.settings->workers;
    r.report = ++m->reports;
    report(m, &r);
}

// ---- the shell ----

static uint32_t threads_of(const struct td_daemon_settings *s) {
    if (s->threads > 0) {
        return (uint32_t)s->threads;
    }
    long each = sysconf(_SC_NPROCESSORS_ONLN) / s->workers;
    return each > 1 ? (uint32_t)each : 1;
}

static void on_stop(void *user, const char *cause) {
    struct td_member *m = user;
    td_daemon_stop(&m->daemon, cause);
}

struct td_shell_config td_member_shell_config(struct td_member *m) {
    const struct td_daemon_settings *s = m->daemon.settings;
    const struct td_service *service = &m->service;
    return (struct td_shell_config){.loop = m->daemon.loop,
                                    .children = m->children,
                                    .workq = m->workq,
                                    .rollouts = service->rollouts,
                                    .data = service->data,
                                    .spec = service->bytes.data,
                                    .spec_bytes = service->bytes.len,
                                    .socket_dir = service->socket_dir,
                                    .host = s->host,
                                    .run_dir = service->run_dir,
                                    .worker_program = m->worker_program,
                                    .member = m->id,
                                    .incarnation = m->incarnation,
                                    .job = service->job,
                                    .journal_id = service->journal_id,
                                    .workers = (uint32_t)s->workers,
                                    .threads = threads_of(s),
                                    .verbose = s->verbose,
                                    .stop = on_stop,
                                    .failed = td_service_failed,
                                    .report = report,
                                    .user = m};
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
    if (!o || m->daemon.stopping || !orders_count(m, o)) {
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
        td_shell_orders(m->shell, o);
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
    td_loop_stop(m->daemon.loop);
}

void td_service_over(struct td_member *m) {
    if (m->journal) {
        td_log_close(m->journal, on_journal_closed, m);
    } else {
        td_loop_stop(m->daemon.loop);
    }
}

static void end(void *user) {
    struct td_member *m = user;
    td_timer_stop(m->timer);
    td_service_end(m);
}

// ---- starting ----

// A run directory is a member that comes back under its name.
static enum td_rc find_id(struct td_member *m, struct td_err *err) {
    const char *dir = m->daemon.settings->dir;
    enum td_rc rc = td_daemon_read_id(dir, "member-id", &m->id, err);
    if (rc == TD_ENOENT) {
        m->id = td_random_id();
        rc = td_daemon_write_id(dir, "member-id", m->id, err);
    }
    return rc;
}

static enum td_rc make_queues(struct td_member *m, struct td_err *err) {
    struct td_loop *loop = m->daemon.loop;
    enum td_rc rc = td_children_new(loop, CHILDREN_MAX, &m->children, err);
    rc = rc == TD_OK ? td_workq_new(loop, "td-work", 1, WORKQ_JOBS, &m->workq, err) : rc;
    return rc == TD_OK ? td_workq_new(loop, "td-load", 1, LOAD_JOBS, &m->load_workq, err) : rc;
}

static enum td_rc start_link(struct td_member *m, struct td_err *err) {
    const struct td_daemon_settings *s = m->daemon.settings;
    struct td_link_client_opts opts = {.loop = m->daemon.loop,
                                       .rpc = m->daemon.rpc,
                                       .addresses = s->coordinators.items,
                                       .count = (size_t)s->coordinators.count,
                                       .tls = m->daemon.tls,
                                       .member = m->id,
                                       .on_orders = on_orders,
                                       .user = m};
    return td_link_client_new(&opts, &m->link, err);
}

static enum td_rc start(struct td_member *m, const struct td_daemon_settings *settings,
                        struct td_err *err) {
    m->incarnation = td_random_id();
    enum td_rc rc = td_daemon_init(&m->daemon, settings, end, m, err);
    rc = rc == TD_OK ? find_id(m, err) : rc;
    rc = rc == TD_OK ? td_daemon_worker_program(m->worker_program, err) : rc;
    rc = rc == TD_OK ? make_queues(m, err) : rc;
    rc = rc == TD_OK ? td_daemon_serve(&m->daemon, m->role->program, &td_member_pages, err) : rc;
    rc = rc == TD_OK ? start_link(m, err) : rc;
    if (rc == TD_OK) {
        m->timer = td_timer_new(m->daemon.loop, on_timer, m);
        td_timer_start(m->timer, 0);
    }
    return rc;
}

static void release(struct td_member *m) {
    td_timer_close(m->timer);
    td_workq_free(m->workq);
    td_workq_free(m->load_workq); // who read the files of a job reports it
    td_link_client_free(m->link);
    td_index_free(m);
    td_children_free(m->children);
    td_daemon_fini(&m->daemon);
    td_buf_fini(&m->wanted.spec);
    td_free(m->trouble);
}

enum td_rc td_member_daemon(const struct td_daemon_settings *settings,
                            const struct td_member_role *role, struct td_err *err) {
    struct td_member *m = td_alloc(sizeof *m);
    m->role = role;
    enum td_rc rc = start(m, settings, err);
    if (rc == TD_OK) {
        td_trace_info("member is up", "member=%016" PRIx64 " http=%s", m->id,
                      m->daemon.http_address);
        rc = td_daemon_run(&m->daemon, err);
    }
    release(m);
    td_free(m);
    return rc;
}
