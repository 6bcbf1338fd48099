// The rollout controller's shell: see shell.h. This file: life, and which effect goes where.
#include "controllers/rollout/shell.h"

#include "controllers/rollout/shell_int.h"
#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/spec/build_id.h"

enum { TICK_MS = 200, REPORT_MS = 500, RETRY_MS = 50, STOP_MS = 5000 };

static void send_report(struct td_rollout_shell *s, const Tandem__Sync__Report *report) {
    if (!s->link) {
        s->config.fns.report(s->config.user, report);
        return;
    }
    size_t n = tandem__sync__report__get_packed_size(report);
    uint8_t *bytes = td_alloc(n);
    tandem__sync__report__pack(report, bytes);
    td_link_report(s->link, bytes, n);
    td_free(bytes);
}

static void execute(struct td_rollout_shell *s, const struct td_rolloutc_effect *x) {
    td_trace_debug("rollout effect", "kind=%d worker=%u ticket=%llu", (int)x->kind, x->worker,
                   (unsigned long long)x->ticket);
    switch (x->kind) {
    case TD_RC_PREPARE:
        td_rollout_shell_prepare(s, x);
        break;
    case TD_RC_FLIP:
        td_rollout_shell_flip(s, x);
        break;
    case TD_RC_START_GROUP:
        td_rollout_shell_start_group(s, x);
        break;
    case TD_RC_PUBLISH:
        td_rollout_shell_publish(s, x);
        break;
    case TD_RC_CLOSE_GROUP:
        td_rollout_shell_close_group(s, x);
        break;
    case TD_RC_REPORT:
        send_report(s, x->report);
        break;
    }
}

void td_rollout_shell_step(struct td_rollout_shell *s, const struct td_rolloutc_event *event) {
    if (s->stopping) {
        return;
    }
    td_assert(!s->stepping);
    s->stepping = true;
    struct td_rolloutc_effects effects = {0};
    td_rolloutc_step(s->machine, event, td_loop_now_ms(s->config.loop), &effects);
    for (size_t i = 0; i < effects.count && !s->stopping; i++) {
        execute(s, &effects.items[i]);
    }
    td_rolloutc_effects_fini(&effects);
    s->stepping = false;
}

void td_rollout_shell_orders(struct td_rollout_shell *s, const Tandem__Sync__Orders *orders) {
    struct td_rolloutc_event e = {.kind = TD_RC_ORDERS, .orders = orders};
    td_rollout_shell_step(s, &e);
}

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    Tandem__Sync__Orders *orders = tandem__sync__orders__unpack(NULL, n, bytes);
    if (orders) {
        td_rollout_shell_orders(user, orders);
        tandem__sync__orders__free_unpacked(orders, NULL);
    }
}

static void on_up(void *user, int worker, const Tandem__Worker__Status *status) {
    struct td_rolloutc_event e = {
        .kind = TD_RC_WORKER_UP, .worker = (uint32_t)worker, .status = status};
    td_rollout_shell_step(user, &e);
}

static void on_down(void *user, int worker, const char *cause) {
    struct td_rolloutc_event e = {
        .kind = TD_RC_WORKER_DOWN, .worker = (uint32_t)worker, .text = cause};
    td_rollout_shell_step(user, &e);
}

static void on_generated(void *user, int worker, const Tandem__Worker__Generated *m) {
    (void)worker;
    td_rollout_shell_generated(user, m);
}

static void on_failed(void *user, int worker, const struct td_err *err) {
    struct td_rollout_shell *s = user;
    (void)worker;
    s->config.fns.failed(s->config.user, err->msg);
}

static void on_tick(void *user) {
    struct td_rollout_shell *s = user;
    struct td_rolloutc_event e = {.kind = TD_RC_TICK};
    td_rollout_shell_step(s, &e);
    td_timer_start(s->timer, TICK_MS);
}

static void fill_setup(struct td_rollout_shell *s) {
    const struct td_job_data *d = s->config.data;
    Tandem__Worker__Setup *m = &s->setup;
    tandem__worker__setup__init(m);
    m->job = s->config.job;
    m->spec.data = (uint8_t *)s->config.spec;
    m->spec.len = s->config.spec_bytes;
    m->role = "rollout";
    m->size = s->config.workers;
    m->threads = s->config.threads;
    m->model_dir = (char *)d->spec->model.path;
    m->allowed_ids.data = d->known_ids.data;
    m->allowed_ids.len = d->known_ids.len;
    m->stop_ids = d->stop_ids.v;
    m->n_stop_ids = d->stop_ids.n;
}

static enum td_rc make_pool(struct td_rollout_shell *s, struct td_err *err) {
    const struct td_spec_tandem *t = &s->config.data->spec->tandem;
    s->socket_dir = s->config.socket_dir ? td_strdup(s->config.socket_dir)
                                         : td_asprintf("%s/workers", s->config.run_dir);
    enum td_rc rc = td_make_dirs(s->socket_dir, err);
    if (rc != TD_OK) {
        return rc;
    }
    fill_setup(s);
    struct td_pool_config c = {.loop = s->config.loop,
                               .children = s->config.children,
                               .dir = s->socket_dir,
                               .name = "rollout",
                               .program = s->config.worker_program,
                               .host = s->config.host,
                               .count = (int)s->config.workers,
                               .controller = s->config.incarnation,
                               .job = s->config.job,
                               .journal_id = s->config.journal_id,
                               .grace_s = t->worker_grace_s,
                               .silent_ms = t->worker_timeout_s * 1000,
                               .start_ms = t->start_timeout_s * 1000,
                               .request_ms = t->step_timeout_s * 1000,
                               .verbose = s->config.verbose,
                               .setup = &s->setup,
                               .fns = {on_up, on_down, on_generated, on_failed},
                               .user = s};
    s->pool = td_pool_new(&c);
    return TD_OK;
}

static void give_job(void *user) {
    struct td_rollout_shell *s = user;
    const struct td_job_spec *spec = s->config.data->spec;
    struct td_rolloutc_event e = {.kind = TD_RC_JOB,
                                  .job = s->config.job,
                                  .samples = (uint32_t)spec->rollout.n,
                                  .eval_samples = (uint32_t)spec->rollout.val_kwargs.n};
    td_rollout_shell_step(s, &e);
    td_rollout_shell_idle(s);
}

enum td_rc td_rollout_shell_new(const struct td_rollout_shell_config *config,
                                struct td_rollout_shell **out, struct td_err *err) {
    struct td_rollout_shell *s = td_alloc(sizeof *s);
    const struct td_job_spec *spec = config->data->spec;
    s->config = *config;
    s->episodes = td_episodes_new();
    enum td_rc rc = TD_OK;
    if (config->hub) {
        rc = td_link_new(config->hub, config->member, on_orders, s, &s->link, err);
    }
    if (rc == TD_OK) {
        rc = make_pool(s, err);
    }
    if (rc != TD_OK) {
        td_rollout_shell_free(s);
        return rc;
    }
    struct td_rolloutc_config machine = {.member = config->member,
                                         .workers = config->workers,
                                         .seqs_max = (uint32_t)spec->rollout.max_num_seqs,
                                         .groups_ahead = (uint32_t)spec->tandem.rollout.unit_groups,
                                         .build = td_build_id(),
                                         .device = "cpu",
                                         .index = &config->data->index,
                                         .expect_journal_id = config->journal_id,
                                         .report_ms = REPORT_MS,
                                         .retry_ms = RETRY_MS};
    s->machine = td_rolloutc_new(&machine);
    s->timer = td_timer_new(config->loop, on_tick, s);
    td_timer_start(s->timer, TICK_MS);
    s->busy++;
    td_loop_defer(config->loop, give_job, s);
    *out = s;
    return TD_OK;
}

void td_rollout_shell_idle(struct td_rollout_shell *s) {
    td_assert_op(s->busy, >, 0);
    if (--s->busy == 0 && s->stopping) {
        td_loop_defer(s->config.loop, s->stopped, s->stopped_user);
    }
}

static void on_pool_stopped(void *user) {
    td_rollout_shell_idle(user);
}

void td_rollout_shell_stop(struct td_rollout_shell *s, bool keep_workers, td_loop_fn *done,
                           void *user) {
    s->stopping = true;
    s->stopped = done;
    s->stopped_user = user;
    td_timer_stop(s->timer);
    s->busy++;
    if (keep_workers) {
        td_rollout_shell_idle(s);
    } else {
        td_pool_stop(s->pool, STOP_MS, on_pool_stopped, s);
    }
}

void td_rollout_shell_free(struct td_rollout_shell *s) {
    if (!s) {
        return;
    }
    td_timer_close(s->timer);
    td_pool_free(s->pool);
    td_link_free(s->link);
    td_episodes_free(s->episodes);
    td_rolloutc_free(s->machine);
    td_free(s->socket_dir);
    td_free(s);
}

const struct td_pool *td_rollout_shell_pool(const struct td_rollout_shell *s) {
    return s->pool;
}

void td_rollout_shell_view(const struct td_rollout_shell *s, struct td_rollout_view *out) {
    td_rolloutc_view(s->machine, out);
}

uint64_t td_rollout_shell_tokens(const struct td_rollout_shell *s) {
    return s->tokens;
}
