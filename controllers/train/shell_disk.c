// The train controller's shell: what blocks on the disk, on a work queue: rounds read, checkpoints
// put together and verified, folders, metric lines.
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/common/val_parts.h"
#include "controllers/train/manifest.h"
#include "controllers/train/metrics_file.h"
#include "controllers/train/shell_int.h"
#include "controllers/train/user_save.h"
#include "controllers/train/val_metrics.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

struct job {
    struct td_train_shell *shell;
    enum td_rc rc;
    struct td_err err;
    uint64_t seq, wanted, id, digest, generation;
    uint32_t worker;
    bool user, whole;
    char *folder; // path
    Tandem__Journal__Checkpoint *checkpoint;
    Tandem__Worker__Saved *saved;
    struct td_group cursor;
    struct td_buf journal_state, line;
    struct td_round_request request;
    struct td_round *round;
    enum td_trainc_effect_kind kind;
    uint64_t step;
    struct td_pos ref;
    struct td_metrics *metrics;
    struct td_metrics_on_disk on_disk;
    bool validated;
};

static void job_free(struct job *j) {
    td_free(j->folder);
    td_proto_free(j->checkpoint);
    td_proto_free(j->saved);
    td_buf_fini(&j->journal_state);
    td_buf_fini(&j->line);
    td_round_request_fini(&j->request);
    td_round_free(j->round);
    td_free(j->metrics);
    td_free(j);
}

static struct job *new_job(struct td_train_shell *s) {
    struct job *j = td_alloc(sizeof *j);
    j->shell = s;
    return j;
}

static void submit(struct job *j, td_loop_fn *run, td_loop_fn *done) {
    if (!td_shell_submit(&j->shell->base, run, done, j)) {
        job_free(j);
    }
}

// ---- rounds ----

static void run_round(void *user) {
    struct job *j = user;
    j->rc = td_round_build(&j->request, &j->round, &j->err);
}

static void done_round(void *user) {
    struct job *j = user;
    struct td_train_shell *s = j->shell;
    if (j->rc != TD_OK && j->err.retriable) {
        if (j->wanted == s->round_wanted && !s->base.stopping) {
            td_trace_warn("a log does not answer", "cause=\"%s\"", j->err.msg);
            submit(j, run_round, done_round); // it took the log's own time to fail
            j = NULL;
        }
    } else if (j->rc != TD_OK) {
        s->base.config.failed(s->base.config.user, j->err.msg);
    } else if (j->wanted == s->round_wanted && !s->base.stopping) {
        td_round_free(s->round);
        s->round = j->round;
        j->round = NULL;
        struct td_round *r = s->round;
        s->last_tokens = r->tokens;
        s->step_seconds_ns = 0;
        struct td_round_read read = {.job = r->job,
                                     .round = r->round,
                                     .ref = r->ref,
                                     .ok = r->missing_count == 0,
                                     .updates = r->updates,
                                     .metrics = &r->metrics,
                                     .missing = r->missing,
                                     .missing_count = r->missing_count,
                                     .cause = r->cause};
        struct td_trainc_event e = {.kind = TD_TC_ROUND_READ, .round = &read};
        td_train_shell_step(s, &e);
    }
    if (j) {
        job_free(j);
    }
    td_shell_idle(&s->base);
}

void td_train_shell_read_round(struct td_train_shell *s, const struct td_trainc_effect *x) {
    const struct td_job_state *job = td_journal_job(td_trainc_journal(s->machine), x->job);
    const struct td_round_state *round = job ? td_job_round(job, x->round) : NULL;
    if (!round) {
        return;
    }
    struct job *j = new_job(s);
    j->wanted = ++s->round_wanted;
    j->request = (struct td_round_request){.data = s->base.config.data,
                                           .rollouts = s->base.config.rollouts,
                                           .journal_id = s->base.config.journal_id,
                                           .job = x->job,
                                           .round = x->round,
                                           .ref = x->ref,
                                           .ranks = x->ranks,
                                           .entry_count = round->entry_count};
    j->request.entries = td_alloc_array(round->entry_count, sizeof(td_entry *));
    for (size_t i = 0; i < round->entry_count; i++) {
        j->request.entries[i] = td_proto_dup(round->entries[i]);
    }
    submit(j, run_round, done_round);
}

void td_train_shell_drop_round(struct td_train_shell *s) {
    s->round_wanted++;
    td_round_free(s->round);
    s->round = NULL;
}

// ---- checkpoints ----

static struct td_user_save user_save_of(const struct job *j) {
    const struct td_train_shell *s = j->shell;
    return (struct td_user_save){.folder = j->folder,
                                 .save_dir = s->save_dir,
                                 .run_dir = s->base.config.run_dir,
                                 .checkpoint = j->checkpoint,
                                 .cursor = j->cursor,
                                 .seed = (uint64_t)s->base.config.data->spec->tandem.seed};
}

static void run_save(void *user) {
    struct job *j = user;
    if (j->user) {
        const struct td_user_save save = user_save_of(j);
        j->rc = td_user_save_finish(&save, &j->err);
    } else {
        j->rc = td_manifest_write(j->folder, j->checkpoint, j->saved, &j->journal_state, &j->digest,
                                  &j->err);
    }
}

static void done_save(void *user) {
    struct job *j = user;
    struct td_train_shell *s = j->shell;
    struct td_trainc_event e = {
        .kind = TD_TC_SAVED, .worker = j->worker, .seq = j->seq, .manifest_digest = j->digest};
    if (j->rc != TD_OK) {
        e.kind = TD_TC_FAILED;
        e.rc = j->rc;
        e.text = j->err.msg;
    }
    td_train_shell_step(s, &e);
    job_free(j);
    td_shell_idle(&s->base);
}

static void on_saved(void *user, int worker, const td_frame *f, const int *fds) {
    struct job *j = user;
    struct td_train_shell *s = j->shell;
    (void)fds;
    if (f && f->body_case == TANDEM__WORKER__FRAME__BODY_SAVED && !s->base.stopping) {
        j->saved = td_proto_dup(f->saved);
        submit(j, run_save, done_save);
        return;
    }
    if (f) { // else WORKER_DOWN tells
        bool error = f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR;
        struct td_trainc_event e = {.kind = TD_TC_FAILED,
                                    .worker = (uint32_t)worker,
                                    .seq = j->seq,
                                    .rc = error ? (enum td_rc)f->error->code : TD_ECORRUPT,
                                    .text = error ? f->error->message : "no answer to a Save"};
        td_train_shell_step(s, &e);
    }
    job_free(j);
}

static void run_clear(void *user) { // makes room for a folder, unless it is whole already
    struct job *j = user;
    const struct td_user_save save = user_save_of(j);
    j->whole = j->user && td_user_save_is_whole(j->folder, j->checkpoint->state_digest);
    j->rc = j->whole ? td_user_save_announce(&save, &j->err) : td_remove_tree(j->folder, &j->err);
}

static void done_clear(void *user) {
    struct job *j = user;
    struct td_train_shell *s = j->shell;
    if (j->rc != TD_OK || j->whole || s->base.stopping) {
        done_save(j);
        return;
    }
    // The worker may have been replaced meanwhile: it saves what is meant or nothing.
    Tandem__Worker__Save m = TANDEM__WORKER__SAVE__INIT;
    m.generation = j->generation;
    m.state_digest = j->checkpoint->state_digest;
    m.folder = j->folder;
    m.user = j->user;
    m.source_dir = (char *)s->base.config.data->spec->model.path;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    f.body_case = TANDEM__WORKER__FRAME__BODY_SAVE;
    f.save = &m;
    td_pool_send(s->base.pool, (int)j->worker, &f, -1, on_saved, j);
    td_shell_idle(&s->base);
}

void td_train_shell_save(struct td_train_shell *s, const struct td_trainc_effect *x) {
    struct job *j = new_job(s);
    j->seq = x->seq;
    j->worker = x->worker;
    j->generation = x->generation;
    j->user = x->user;
    j->folder = td_asprintf("%s/%s", x->user ? s->save_dir : s->checkpoint_dir, x->text);
    j->checkpoint = td_proto_dup(x->checkpoint);
    const struct td_journal_state *journal = td_trainc_journal(s->machine);
    const struct td_job_state *job = td_journal_job(journal, x->job);
    td_journal_snapshot(journal, &j->journal_state);
    j->cursor = job ? job->cursor : (struct td_group){0};
    submit(j, run_clear, done_clear);
}

static void run_verify(void *user) {
    struct job *j = user;
    j->rc = td_manifest_verify(j->folder, j->digest, &j->err);
}

static void done_verify(void *user) {
    struct job *j = user;
    struct td_train_shell *s = j->shell;
    if (j->rc != TD_OK) {
        td_trace_error("checkpoint damaged", "folder=%s cause=\"%s\"", j->folder, j->err.msg);
    }
    struct td_trainc_event e = {.kind = TD_TC_CHECKPOINT_READ,
                                .id = j->id,
                                .ok = j->rc == TD_OK,
                                .text = j->rc == TD_OK ? "" : j->err.msg};
    td_train_shell_step(s, &e);
    job_free(j);
    td_shell_idle(&s->base);
}

void td_train_shell_verify(struct td_train_shell *s, const struct td_trainc_effect *x) {
    struct job *j = new_job(s);
    j->id = x->id;
    j->digest = x->digest;
    j->folder = td_asprintf("%s/%s", s->checkpoint_dir, x->text);
    submit(j, run_verify, done_verify);
}

static void remove_folder(void *user) {
    struct job *j = user;
    j->rc = td_remove_tree(j->folder, &j->err);
}

static void done_remove(void *user) {
    struct job *j = user;
    struct td_train_shell *s = j->shell;
    if (j->rc != TD_OK) {
        td_trace_warn("folder not deleted", "cause=\"%s\"", j->err.msg);
    }
    job_free(j);
    td_shell_idle(&s->base);
}

void td_train_shell_delete_folder(struct td_train_shell *s, const char *name) {
    struct job *j = new_job(s);
    j->folder = td_asprintf("%s/%s", s->checkpoint_dir, name);
    submit(j, remove_folder, done_remove);
}

// ---- folders on the disk: a listing is short, so it is read on the loop ----

enum { FOLDERS_MAX = 4096 };

struct folder_list {
    struct td_train_shell *shell;
    struct td_folder *folders;
    size_t count, cap;
};

// step-STEP-gGENERATION-ID, as the machine names them.
static bool parse_folder(const char *name, struct td_folder *out) {
    int end = 0;
    return sscanf(name, "step-%" SCNu64 "-g%" SCNu64 "-%" SCNx64 "%n", &out->step, &out->generation,
                  &out->id, &end) == 3 &&
           name[end] == 0;
}

static void give_folders(void *user) {
    struct folder_list *l = user;
    struct td_trainc_event e = {
        .kind = TD_TC_FOLDERS, .folders = l->folders, .folder_count = l->count};
    td_train_shell_step(l->shell, &e);
    td_shell_idle(&l->shell->base);
    for (size_t i = 0; i < l->count; i++) {
        td_free((char *)l->folders[i].name);
    }
    td_free(l->folders);
    td_free(l);
}

void td_train_shell_list_folders(struct td_train_shell *s) {
    struct folder_list *l = td_alloc(sizeof *l);
    l->shell = s;
    DIR *d = opendir(s->checkpoint_dir);
    for (struct dirent *e; d && l->count < FOLDERS_MAX && (e = readdir(d));) {
        struct td_folder f = {0};
        if (parse_folder(e->d_name, &f)) {
            f.name = td_strdup(e->d_name);
            TD_GROW(l->folders, l->cap, l->count + 1);
            l->folders[l->count++] = f;
        }
    }
    if (d) {
        closedir(d);
    }
    s->base.busy++;
    td_loop_defer(s->base.config.loop, give_folders, l);
}

// ---- metric lines ----

// The answers of the step's validation are put together before the step counts as closed.
static enum td_rc close_step(struct job *j) {
    const struct td_shell_config *c = &j->shell->base.config;
    const char *dump_dir = c->data->spec->trainer.validation_data_dir;
    enum td_rc rc = TD_OK;
    if (j->validated && dump_dir) {
        rc = td_val_parts_merge(c->run_dir, j->step, td_job_data_val_rows(c->data), dump_dir,
                                &j->err);
    }
    return rc == TD_OK ? td_metrics_file_close(c->run_dir, j->step, j->metrics, &j->line, &j->err)
                       : rc;
}

static void run_metrics(void *user) {
    struct job *j = user;
    const char *dir = j->shell->base.config.run_dir;
    switch (j->kind) {
    case TD_TC_STAGE_METRICS:
        j->rc = td_metrics_file_stage(dir, j->step, j->ref, j->metrics, &j->err);
        break;
    case TD_TC_CLOSE_METRICS:
        j->rc = close_step(j);
        break;
    case TD_TC_CUT_METRICS:
        j->rc = td_metrics_file_cut(dir, j->step, &j->err);
        break;
    default:
        break;
    }
    // Appends are known without reading the file again.
    if (j->rc == TD_OK && (j->kind == TD_TC_REPORT || j->kind == TD_TC_CUT_METRICS)) {
        j->rc = td_metrics_file_open(dir, &j->on_disk, &j->err);
    }
}

static void take_on_disk(struct td_train_shell *s, const struct job *j) {
    struct td_metrics_on_disk *d = &s->on_disk;
    if (j->kind == TD_TC_STAGE_METRICS) {
        d->has_staged = true;
        d->staged_step = j->step;
        d->staged_ref = j->ref;
    } else if (j->kind == TD_TC_CLOSE_METRICS) {
        d->has_line = true;
        d->step = j->step;
    } else {
        *d = j->on_disk;
    }
}

static void done_metrics(void *user) {
    struct job *j = user;
    struct td_train_shell *s = j->shell;
    if (j->rc != TD_OK) { // damaged, or of another member by now: see who has the job
        s->base.config.failed(s->base.config.user, j->err.msg);
    } else {
        if (j->line.len > 0) {
            s->line(s->base.config.user, j->step, td_buf_str(&j->line));
        }
        take_on_disk(s, j);
        struct td_trainc_event e = {.kind = TD_TC_METRICS, .metrics = &s->on_disk};
        td_train_shell_step(s, &e);
    }
    job_free(j);
    td_shell_idle(&s->base);
}

static void add_timing(struct td_train_shell *s, struct td_metrics *m) {
    int64_t now = td_clock_ns();
    double step = s->round_started_ns ? (double)(now - s->round_started_ns) * 1e-9 : 0;
    s->round_started_ns = now;
    if (step <= 0 || !s->last_tokens) {
        return;
    }
    td_metrics_add(m, "timing_s/step", step, TD_FOLD_LAST);
    td_metrics_add(m, "timing_s/update_actor", (double)s->step_seconds_ns * 1e-9, TD_FOLD_LAST);
    td_metrics_add(m, "perf/time_per_step", step, TD_FOLD_LAST);
    td_metrics_add(m, "perf/throughput", (double)s->last_tokens / step, TD_FOLD_LAST);
}

void td_train_shell_metrics(struct td_train_shell *s, const struct td_trainc_effect *x) {
    struct job *j = new_job(s);
    j->kind = TD_TC_REPORT; // none of the three: only open
    if (x) {
        j->kind = x->kind;
        j->step = x->round;
        j->ref = x->ref;
        j->metrics = td_alloc(sizeof *j->metrics);
        if (x->metrics) {
            *j->metrics = *x->metrics;
        }
    }
    if (x && x->kind == TD_TC_CLOSE_METRICS) {
        j->validated = x->orders && x->orders->n_eval > 0;
        td_val_metrics(s->base.config.data, x->orders, j->metrics);
        add_timing(s, j->metrics);
    }
    submit(j, run_metrics, done_metrics);
}
