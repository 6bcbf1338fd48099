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

enum { TICK_MS = 200, REPORT_MS = 500, STOP_MS = 5000 };

static void send_report(struct td_train_shell *s, const Tandem__Sync__Report *report) {
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
        s->config.fns.stop(s->config.user, x->text);
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
        send_report(s, x->report);
        break;
    case TD_TC_RESTART_WORKER:
        td_pool_kill(s->pool, (int)x->worker, "it belongs to another job");
        break;
    default:
        td_train_shell_command(s, x);
        break;
    }
}

void td_train_shell_step(struct td_train_shell *s, const struct td_trainc_event *event) {
    if (s->stopping) {
        return;
    }
    td_assert(!s->stepping);
    s->stepping = true;
    struct td_trainc_effects effects = {0};
    td_trainc_step(s->machine, event, td_loop_now_ms(s->config.loop), &effects);
    for (size_t i = 0; i < effects.count && !s->stopping; i++) {
        execute(s, &effects.items[i]);
    }
    td_trainc_effects_fini(&effects);
    s->stepping = false;
}

void td_train_shell_orders(struct td_train_shell *s, const Tandem__Sync__Orders *orders) {
    struct td_trainc_event e = {.kind = TD_TC_ORDERS, .orders = orders};
    td_train_shell_step(s, &e);
}

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    Tandem__Sync__Orders *orders = tandem__sync__orders__unpack(NULL, n, bytes);
    if (orders) {
        td_train_shell_orders(user, orders);
        tandem__sync__orders__free_unpacked(orders, NULL);
    }
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
    if (n != s->config.spec_bytes || memcmp(spec, s->config.spec, n) != 0) {
        return false;
    }
    const struct td_job_spec *own = s->config.data->spec;
    *out = (struct td_train_plan){
        .total_steps = s->config.data->schedule.total_steps,
        .checkpoint_every = (uint64_t)own->tandem.checkpoint.every,
        .save_freq = own->trainer.save_freq > 0 ? (uint64_t)own->trainer.save_freq : 0,
        .samples = own->tandem.kind == TD_JOB_SFT ? 0 : (uint32_t)own->rollout.n};
    return true;
}

static void fill_setup(struct td_train_shell *s) {
    const struct td_job_data *d = s->config.data;
    Tandem__Worker__Setup *m = &s->setup;
    tandem__worker__setup__init(m);
    m->job = s->config.job;
    m->spec.data = (uint8_t *)s->config.spec;
    m->spec.len = s->config.spec_bytes;
    m->role = "actor";
    m->size = s->config.workers;
    m->threads = s->config.threads;
    m->model_dir = (char *)d->spec->model.path;
    m->total_steps = d->schedule.total_steps;
    m->warmup_steps = d->schedule.warmup_steps;
}

static enum td_rc make_pool(struct td_train_shell *s, struct td_err *err) {
    const struct td_spec_tandem *t = &s->config.data->spec->tandem;
    s->socket_dir = s->config.socket_dir ? td_strdup(s->config.socket_dir)
                                         : td_asprintf("%s/workers", s->config.run_dir);
    s->checkpoint_dir = td_asprintf("%s/checkpoints", s->config.run_dir);
    enum td_rc rc = td_make_dirs(s->socket_dir, err);
    if (rc == TD_OK) {
        rc = td_make_dirs(s->checkpoint_dir, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    fill_setup(s);
    struct td_pool_config c = {.loop = s->config.loop,
                               .children = s->config.children,
                               .dir = s->socket_dir,
                               .name = "train",
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
                               .user = s};
    td_train_shell_pool_fns(&c.fns);
    s->pool = td_pool_new(&c);
    return TD_OK;
}

enum td_rc td_train_shell_new(const struct td_train_shell_config *config,
                              struct td_train_shell **out, struct td_err *err) {
    struct td_train_shell *s = td_alloc(sizeof *s);
    s->config = *config;
    enum td_rc rc = TD_OK;
    if (config->hub) {
        rc = td_link_new(config->hub, config->member, on_orders, s, &s->link, err);
    }
    const struct td_spec_trainer *t = &config->data->spec->trainer;
    const char *const dump_dirs[] = {t->rollout_data_dir, t->validation_data_dir};
    for (size_t i = 0; rc == TD_OK && i < 2; i++) {
        rc = dump_dirs[i] ? td_file_sweep(dump_dirs[i], ".jsonl", err) : TD_OK;
    }
    if (rc == TD_OK) {
        rc = make_pool(s, err);
    }
    if (rc != TD_OK) {
        td_train_shell_free(s);
        return rc;
    }
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
    *out = s;
    return TD_OK;
}

static void end_stop(struct td_train_shell *s) {
    td_loop_defer(s->config.loop, s->stopped, s->stopped_user);
}

void td_train_shell_idle(struct td_train_shell *s) {
    td_assert_op(s->busy, >, 0);
    if (--s->busy == 0 && s->stopping) {
        end_stop(s);
    }
}

static void on_pool_stopped(void *user) {
    td_train_shell_idle(user);
}

void td_train_shell_stop(struct td_train_shell *s, bool keep_workers, td_loop_fn *done,
                         void *user) {
    s->stopping = true;
    s->keep_workers = keep_workers;
    s->stopped = done;
    s->stopped_user = user;
    td_timer_stop(s->timer);
    td_timer_stop(s->again);
    td_train_shell_close_logs(s);
    s->busy++;
    if (keep_workers) {
        td_train_shell_idle(s);
    } else {
        td_pool_stop(s->pool, STOP_MS, on_pool_stopped, s);
    }
}

void td_train_shell_free(struct td_train_shell *s) {
    if (!s) {
        return;
    }
    td_timer_close(s->timer);
    td_timer_close(s->again);
    td_train_shell_close_logs(s);
    td_pool_free(s->pool);
    td_round_free(s->round);
    td_link_free(s->link);
    td_trainc_free(s->machine);
    td_free(s->socket_dir);
    td_free(s->checkpoint_dir);
    td_free(s);
}

const struct td_pool *td_train_shell_pool(const struct td_train_shell *s) {
    return s->pool;
}

void td_train_shell_view(const struct td_train_shell *s, struct td_train_view *out) {
    td_trainc_view(s->machine, out);
}
