// The rollout controller's shell: see shell.h. This file: life, and which effect goes where.
#include "controllers/rollout/shell.h"

#include <stdio.h>

#include "controllers/rollout/shell_int.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/spec/build_id.h"

enum { TICK_MS = 200, REPORT_MS = 500, RETRY_MS = 50 };

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
        td_shell_report(&s->base, x->report);
        break;
    }
}

void td_rollout_shell_step(struct td_rollout_shell *s, const struct td_rolloutc_event *event) {
    if (s->base.stopping) {
        return;
    }
    td_assert(!s->base.stepping);
    s->base.stepping = true;
    struct td_rolloutc_effects effects = {0};
    td_rolloutc_step(s->machine, event, td_loop_now_ms(s->base.config.loop), &effects);
    for (size_t i = 0; i < effects.count && !s->base.stopping; i++) {
        execute(s, &effects.items[i]);
    }
    td_rolloutc_effects_fini(&effects);
    s->base.stepping = false;
}

static void on_orders(void *user, const Tandem__Sync__Orders *orders) {
    struct td_rolloutc_event e = {.kind = TD_RC_ORDERS, .orders = orders};
    td_rollout_shell_step(user, &e);
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
    s->base.config.failed(s->base.config.user, err->msg);
}

static void on_tick(void *user) {
    struct td_rollout_shell *s = user;
    struct td_rolloutc_event e = {.kind = TD_RC_TICK};
    td_rollout_shell_step(s, &e);
    td_timer_start(s->timer, TICK_MS);
}

static void start_pool(struct td_rollout_shell *s) {
    static const struct td_pool_fns fns = {on_up, on_down, on_generated, on_failed};
    const struct td_job_data *d = s->base.config.data;
    Tandem__Worker__Setup *m = &s->base.setup;
    m->role = "rollout";
    m->allowed_ids.data = d->known_ids.data;
    m->allowed_ids.len = d->known_ids.len;
    m->stop_ids = d->stop_ids.v;
    m->n_stop_ids = d->stop_ids.n;
    td_shell_start_pool(&s->base, "rollout", &fns);
}

static void give_job(void *user) {
    struct td_rollout_shell *s = user;
    const struct td_job_spec *spec = s->base.config.data->spec;
    struct td_rolloutc_event e = {.kind = TD_RC_JOB,
                                  .job = s->base.config.job,
                                  .samples = (uint32_t)spec->rollout.n,
                                  .eval_samples = (uint32_t)spec->rollout.val_kwargs.n};
    td_rollout_shell_step(s, &e);
    td_shell_idle(&s->base);
}

static void halt(void *shell) {
    struct td_rollout_shell *s = shell;
    td_timer_stop(s->timer);
}

static void free_shell(void *shell) {
    struct td_rollout_shell *s = shell;
    td_timer_close(s->timer);
    td_shell_fini(&s->base);
    td_episodes_free(s->episodes);
    td_rolloutc_free(s->machine);
    td_free(s);
}

static void waits(const void *shell, char text[TD_SHELL_WAITS], int64_t *since_ms) {
    const struct td_rollout_shell *s = shell;
    struct td_rollout_view v;
    td_rolloutc_view(s->machine, &v);
    snprintf(text, TD_SHELL_WAITS, "%s", v.waits_for);
    *since_ms = v.since_ms;
}

static const struct td_shell_kind kind = {on_orders, halt, free_shell, waits};

enum td_rc td_rollout_shell_new(const struct td_shell_config *config, struct td_shell **out,
                                struct td_err *err) {
    struct td_rollout_shell *s = td_alloc(sizeof *s);
    const struct td_job_spec *spec = config->data->spec;
    s->episodes = td_episodes_new();
    enum td_rc rc = td_shell_init(&s->base, config, &kind, s, err);
    if (rc != TD_OK) {
        free_shell(s);
        return rc;
    }
    start_pool(s);
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
    s->base.busy++;
    td_loop_defer(config->loop, give_job, s);
    *out = &s->base;
    return TD_OK;
}
