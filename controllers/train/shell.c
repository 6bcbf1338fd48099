// The train controller's shell: see shell.h. This file: life, and which effect goes where.
#include "controllers/train/shell.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "controllers/train/shell_int.h"
#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/spec/build_id.h"
#include "lib/spec/job_spec.h"

enum { TICK_MS = 200, REPORT_MS = 500 };

static void execute(struct td_train_shell *s, const struct td_trainc_effect *x) {
    td_trace_debug("train effect", "kind=%d worker=%u round=%llu k=%u", (int)x->kind, x->worker,
                   (unsigned long long)x->round, x->k);
    switch (x->kind) {
    case TD_TC_FETCH_END:
        td_train_shell_fetch_end(s);
        break;
    case TD_TC_JOURNAL_RESET:
        td_train_shell_read_journal(s);
        break;
    case TD_TC_STOP:
        s->base.config.stop(s->base.config.user, x->text);
        break;
    case TD_TC_READ_ROLLOUT:
        td_train_shell_read_rollout(s, x);
        break;
    case TD_TC_READ_ROUND:
        td_train_shell_read_round(s, x);
        break;
    case TD_TC_DROP_ROUND:
        td_train_shell_drop_round(s);
        break;
    case TD_TC_SAVE:
        td_train_shell_save(s, x);
        break;
    case TD_TC_VERIFY:
        td_train_shell_verify(s, x);
        break;
    case TD_TC_LIST_FOLDERS:
        td_train_shell_list_folders(s);
        break;
    case TD_TC_DELETE_FOLDER:
        td_train_shell_delete_folder(s, x->text);
        break;
    case TD_TC_READ_METRICS:
        td_train_shell_metrics(s, NULL);
        break;
    case TD_TC_STAGE_METRICS:
    case TD_TC_CLOSE_METRICS:
    case TD_TC_CUT_METRICS:
        td_train_shell_metrics(s, x);
        break;
    case TD_TC_REPORT:
        td_shell_report(&s->base, x->report);
        break;
    case TD_TC_RESTART_WORKER:
        td_pool_kill(s->base.pool, (int)x->worker, "it belongs to another job");
        break;
    default:
        td_train_shell_command(s, x);
        break;
    }
}

void td_train_shell_step(struct td_train_shell *s, const struct td_trainc_event *event) {
    if (s->base.stopping) {
        return;
    }
    td_assert(!s->base.stepping);
    s->base.stepping = true;
    struct td_trainc_effects effects = {0};
    td_trainc_step(s->machine, event, td_loop_now_ms(s->base.config.loop), &effects);
    for (size_t i = 0; i < effects.count && !s->base.stopping; i++) {
        execute(s, &effects.items[i]);
    }
    td_trainc_effects_fini(&effects);
    s->base.stepping = false;
}

static void on_orders(void *user, const Tandem__Sync__Orders *orders) {
    struct td_trainc_event e = {.kind = TD_TC_ORDERS, .orders = orders};
    td_train_shell_step(user, &e);
}

static void on_tick(void *user) {
    struct td_train_shell *s = user;
    struct td_trainc_event e = {.kind = TD_TC_TICK};
    td_train_shell_step(s, &e);
    td_timer_start(s->timer, TICK_MS);
}

// Asked at every event, so nothing is decoded: a job with other settings is not the one whose data
// lie here.
static bool plan_of(void *user, const void *spec, size_t n, struct td_train_plan *out) {
    const struct td_train_shell *s = user;
    if (n != s->base.config.spec_bytes || memcmp(spec, s->base.config.spec, n) != 0) {
        return false;
    }
    const struct td_job_spec *own = s->base.config.data->spec;
    *out = (struct td_train_plan){
        .total_steps = s->base.config.data->schedule.total_steps,
        .checkpoint_every = (uint64_t)own->tandem.checkpoint.every,
        .save_freq = own->trainer.save_freq > 0 ? (uint64_t)own->trainer.save_freq : 0,
        .samples = own->tandem.kind == TD_JOB_SFT ? 0 : (uint32_t)own->rollout.n};
    return true;
}

static void start_pool(struct td_train_shell *s) {
    const struct td_job_data *d = s->base.config.data;
    struct td_pool_fns fns;
    td_train_shell_pool_fns(&fns);
    s->base.setup.role = "actor";
    s->base.setup.total_steps = d->schedule.total_steps;
    s->base.setup.warmup_steps = d->schedule.warmup_steps;
    td_shell_start_pool(&s->base, "train", &fns);
}

static enum td_rc make_dirs(struct td_train_shell *s, struct td_err *err) {
    const struct td_spec_trainer *t = &s->base.config.data->spec->trainer;
    const struct {
        const char *dir, *suffix;
    } written[] = {{t->rollout_data_dir, ".jsonl"},
                   {t->validation_data_dir, ".jsonl"},
                   {s->save_dir, "latest_checkpointed_iteration.txt"},
                   {s->base.config.run_dir, "metrics.staged.json"},
                   {s->base.config.run_dir, "announced"}};
    enum td_rc rc = td_make_dirs(s->save_dir, err);
    rc = rc == TD_OK ? td_make_dirs(s->checkpoint_dir, err) : rc;
    for (size_t i = 0; rc == TD_OK && i < sizeof written / sizeof *written; i++) {
        rc = written[i].dir ? td_file_sweep(written[i].dir, written[i].suffix, err) : TD_OK;
    }
    return rc;
}

static void halt(void *shell) {
    struct td_train_shell *s = shell;
    td_timer_stop(s->timer);
    td_timer_stop(s->again);
    td_train_shell_close_logs(s);
}

static void free_shell(void *shell) {
    struct td_train_shell *s = shell;
    td_timer_close(s->timer);
    td_timer_close(s->again);
    td_train_shell_close_logs(s);
    td_shell_fini(&s->base);
    td_round_free(s->round);
    td_trainc_free(s->machine);
    td_free(s->save_dir);
    td_free(s->checkpoint_dir);
    td_free(s);
}

static void waits(const void *shell, char text[TD_SHELL_WAITS], int64_t *since_ms) {
    const struct td_train_shell *s = shell;
    struct td_train_view v;
    td_trainc_view(s->machine, &v);
    snprintf(text, TD_SHELL_WAITS, "%s", v.waits_for);
    *since_ms = v.since_ms;
}

static const struct td_shell_kind kind = {on_orders, halt, free_shell, waits};

enum td_rc td_train_shell_new(const struct td_train_shell_config *given, struct td_shell **out,
                              struct td_err *err) {
    struct td_train_shell *s = td_alloc(sizeof *s);
    const struct td_shell_config *config = &given->base;
    s->journal = given->journal;
    s->save_dir = td_strdup(given->save_dir);
    s->checkpoint_dir = td_asprintf("%s/checkpoints", config->run_dir);
    s->line = given->line;
    enum td_rc rc = td_shell_init(&s->base, config, &kind, s, err);
    rc = rc == TD_OK ? make_dirs(s, err) : rc;
    if (rc != TD_OK) {
        free_shell(s);
        return rc;
    }
    start_pool(s);
    struct td_trainc_config machine = {.member = config->member,
                                       .incarnation = config->incarnation,
                                       .job = config->job,
                                       .workers = config->workers,
                                       .build = td_build_id(),
                                       .device = "cpu",
                                       .index = &config->data->index,
                                       .expect_journal_id = config->journal_id,
                                       .report_ms = REPORT_MS,
                                       .plan_of = plan_of,
                                       .user = s};
    s->machine = td_trainc_new(&machine);
    s->timer = td_timer_new(config->loop, on_tick, s);
    s->again = td_timer_new(config->loop, td_train_shell_ask_again, s);
    td_timer_start(s->timer, TICK_MS);
    td_train_shell_read_journal(s);
    *out = &s->base;
    return TD_OK;
}
