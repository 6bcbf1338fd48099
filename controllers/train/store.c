// What the train controller keeps on the disk: recovery checkpoints and the user's, the folders
// they lie in, and the lines of metrics.jsonl. It orders and judges; the shell writes.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/train/trainc_int.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"
#include "lib/base/rng.h"

static const struct td_pos no_pos = {.offset = -1};

// ---- bases ----

void td_store_bad(struct td_trainc *x, uint64_t id, const char *why) {
    bool known = false;
    for (size_t i = 0; i < x->bad_count; i++) {
        known = known || x->bad[i] == id;
    }
    if (!known && x->bad_count < TD_BAD_CHECKPOINTS_MAX) {
        x->bad[x->bad_count++] = id;
    }
    td_ranks_lose(x, "checkpoint %016" PRIx64 " is bad: %s", id, why);
}

bool td_store_base_ok(struct td_trainc *x, const Tandem__Journal__Checkpoint *base,
                      struct td_trainc_effects *out) {
    if (x->verified == base->id || TD_PLANTED(NEWEST_TRUSTED)) {
        return true;
    }
    td_trainc_wait(x, "checkpoint %016" PRIx64 " to be verified", base->id);
    if (x->verifying != base->id) {
        x->verifying = base->id;
        struct td_trainc_effect *e = td_trainc_push(out, TD_TC_VERIFY);
        e->id = base->id;
        e->digest = base->manifest_digest;
        e->text = td_strdup(base->folder);
    }
    return false;
}

// ---- saves ----

static bool user_due(const struct td_trainc *x, const struct td_job_state *j) {
    uint64_t step = j->has_head ? j->head.step : 0, every = x->plan.save_freq;
    bool due = step && every && (step % every == 0 || step == x->plan.total_steps);
    return due && !(x->user_saved && td_version_equal(x->user_saved_version, j->head));
}

static bool recovery_due(const struct td_trainc *x, const struct td_job_state *j) {
    uint64_t step = j->has_head ? j->head.step : 0, every = x->plan.checkpoint_every;
    uint64_t newest = j->kept_count ? j->kept[j->kept_count - 1]->version->step : 0;
    return step && every && step % every == 0 && newest < step &&
           !(x->saved && x->saved->version->step == step);
}

bool td_store_save_due(const struct td_trainc *x) {
    const struct td_job_state *j = td_trainc_job(x);
    return j && user_due(x, j);
}

// A name is used once: a folder that was reported may be journaled at any later time, so neither
// this process nor the next may write into it again.
static Tandem__Journal__Checkpoint *new_checkpoint(struct td_trainc *x, bool user) {
    const struct td_job_state *j = td_trainc_job(x);
    Tandem__Journal__Checkpoint *c = td_alloc(sizeof *c);
    tandem__journal__checkpoint__init(c);
    c->job = x->job;
    c->id = td_hash_u64(td_hash_u64(x->config.incarnation, x->generation), ++x->save_count);
    c->version = td_proto_version(j->head);
    c->generation = x->generation;
    c->gang = td_trainc_gang(x)->spec->gang;
    c->state_digest = x->ranks[0].state_digest;
    td_arrived_low_water(x, c);
    c->folder = user ? td_asprintf("global_step_%" PRIu64, j->head.step)
                     : td_asprintf("step-%" PRIu64 "-g%" PRIu64 "-%016" PRIx64, j->head.step,
                                   x->generation, c->id);
    return c;
}

bool td_store_save(struct td_trainc *x, struct td_trainc_effects *out) {
    const struct td_job_state *j = td_trainc_job(x);
    bool recovery = recovery_due(x, j);
    if (x->ranks[0].version.step != j->head.step || (!recovery && !user_due(x, j))) {
        return false;
    }
    td_proto_free(x->saving);
    x->saving_user = !recovery;
    x->saving = new_checkpoint(x, x->saving_user);
    struct td_trainc_effect *e = td_ranks_command(x, 0, TD_TC_SAVE, out);
    e->user = x->saving_user;
    e->version = j->head;
    e->id = x->saving->id;
    e->text = td_strdup(x->saving->folder);
    e->checkpoint = td_proto_dup(x->saving);
    return true;
}

static void remember_folder(struct td_trainc *x, const struct td_folder *f) {
    for (size_t i = 0; i < x->folder_count; i++) {
        if (x->folders[i].id == f->id) {
            return;
        }
    }
    if (x->folder_count < TD_FOLDERS_MAX) {
        TD_GROW(x->folders, x->folder_cap, x->folder_count + 1);
        x->folders[x->folder_count++] = (struct td_known_folder){
            .name = td_strdup(f->name), .id = f->id, .generation = f->generation, .step = f->step};
    }
}

void td_store_saved(struct td_trainc *x, uint64_t manifest_digest) {
    Tandem__Journal__Checkpoint *c = x->saving;
    if (!c) {
        return;
    }
    x->saving = NULL;
    c->manifest_digest = manifest_digest;
    if (x->saving_user) {
        x->user_saved = true;
        x->user_saved_version = td_proto_to_version(c->version);
        td_proto_free(c);
        return;
    }
    const struct td_folder f = {c->folder, c->id, c->generation, c->version->step};
    remember_folder(x, &f);
    td_proto_free(x->saved);
    x->saved = c;
}

// ---- folders, rule A6 ----

void td_store_listed(struct td_trainc *x, const struct td_trainc_event *event) {
    for (size_t i = 0; i < event->folder_count; i++) {
        remember_folder(x, &event->folders[i]);
    }
}

static bool may_delete(const struct td_trainc *x, const struct td_job_state *j,
                       const struct td_known_folder *f) {
    if (TD_PLANTED(FOLDER_DELETION)) {
        return !(x->saved && f->id == x->saved->id) && !(x->saving && f->id == x->saving->id);
    }
    // Below the oldest kept: whoever wrote it, no CHECKPOINT of it can be accepted any more.
    bool pushed_out = j->kept_count && f->step < j->kept[0]->version->step;
    return f->generation < x->generation || pushed_out;
}

// Only the leader of a generation deletes, from a state that has the generation's base: it was read
// past GANG, so that no CHECKPOINT of an older generation can still be accepted.
void td_store_folders(struct td_trainc *x, struct td_trainc_effects *out) {
    const struct td_job_state *j = td_trainc_job(x);
    const struct td_gang_state *g = td_trainc_gang(x);
    if (x->saved &&
        (j->kept_count && j->kept[j->kept_count - 1]->version->step >= x->saved->version->step)) {
        td_proto_free(x->saved);
        x->saved = NULL;
    }
    if (!g->has_base) {
        return;
    }
    if (x->listed != x->generation) {
        x->listed = x->generation;
        td_trainc_push(out, TD_TC_LIST_FOLDERS)->job = x->job;
    }
    size_t left = 0;
    for (size_t i = 0; i < x->folder_count; i++) {
        struct td_known_folder *f = &x->folders[i];
        bool kept = td_job_kept(j, f->id) != NULL;
        if (!kept && may_delete(x, j, f)) {
            td_trainc_push(out, TD_TC_DELETE_FOLDER)->text = f->name;
        } else {
            x->folders[left++] = *f;
        }
    }
    x->folder_count = left;
}

// ---- metric lines ----

bool td_store_has_line(const struct td_trainc *x, uint64_t step) {
    return x->disk_known && x->disk.has_line && x->disk.step >= step;
}

// The leader said that nothing more comes to the head's line.
static bool head_closed(const struct td_trainc *x, const struct td_job_state *j) {
    return j->has_head && x->closed && x->closed->closed_step == j->head.step &&
           x->closed->closed_lineage == j->head.lineage;
}

bool td_store_lines_known(const struct td_trainc *x) {
    const struct td_job_state *j = td_trainc_job(x);
    bool due = head_closed(x, j) && !td_store_has_line(x, j->head.step);
    return x->disk_known && !x->disk_asked && !due;
}

static struct td_pos ref_of(const struct td_job_state *j, uint64_t step) {
    const struct td_round_state *r = step ? td_job_round(j, step) : NULL;
    return r ? r->ref : no_pos;
}

bool td_store_staged(const struct td_trainc *x, uint64_t step) {
    return x->disk_known && x->disk.has_staged && x->disk.staged_step == step &&
           td_pos_equal(x->disk.staged_ref, ref_of(td_trainc_job(x), step));
}

// The gang of another member may have written since they were read last.
void td_store_read_lines(struct td_trainc *x, struct td_trainc_effects *out) {
    x->disk_known = false;
    x->disk_asked++;
    td_trainc_push(out, TD_TC_READ_METRICS);
}

// What a version was trained with: the batch's part and that of all ranks.
static struct td_metrics *line_of(const struct td_trainc *x) {
    struct td_metrics *m = td_alloc(sizeof *m);
    if (x->round_metrics) {
        td_metrics_merge(m, x->round_metrics);
    }
    for (uint32_t i = 0; i < x->rank_count; i++) {
        if (x->ranks[i].metrics) {
            td_metrics_merge(m, x->ranks[i].metrics);
        }
    }
    return m;
}

bool td_store_stage(struct td_trainc *x, uint64_t step, struct td_trainc_effects *out) {
    const struct td_job_state *j = td_trainc_job(x);
    if (x->disk_known && !x->disk_asked) {
        bool trained = x->ranks[0].finished || step == 0;
        if (td_store_has_line(x, step) || td_store_staged(x, step) || !trained) {
            return true;
        }
        uint64_t staged = x->disk.staged_step;
        if (x->disk.has_staged && staged < step && j->has_head && staged <= j->head.step &&
            td_store_staged(x, staged) && !td_store_has_line(x, staged)) {
            td_trainc_wait(x, "the metrics of step %" PRIu64 " to be closed", staged);
            return false; // there is room for one; after a FORK rounds follow each other at once
        }
        struct td_pos ref = ref_of(j, step);
        if (step && !td_ranks_round_ready(x, step, ref, out)) {
            return false;
        }
        x->disk_asked++;
        struct td_trainc_effect *e = td_trainc_push(out, TD_TC_STAGE_METRICS);
        e->job = x->job;
        e->round = step;
        e->ref = ref;
        e->metrics = line_of(x);
    }
    td_trainc_wait(x, "the metrics of step %" PRIu64 " to be staged", step);
    return false;
}

// Nothing more will be staged for the head: it is, or the ranks are past the place where they
// would.
static bool line_complete(const struct td_trainc *x, uint64_t head) {
    const struct td_rank *r = &x->ranks[0];
    bool past = r->version.step > head || r->applied || (!r->finished && head);
    return td_store_staged(x, head) || (td_ranks_loaded(x) && r->version.step >= head && past);
}

// The line of a committed step is closed when the leader says that nothing more comes to it (its
// validation); those of steps before the head at once.
void td_store_close_lines(struct td_trainc *x, struct td_trainc_effects *out) {
    const struct td_job_state *j = td_trainc_job(x);
    if (!x->disk_known || x->disk_asked || !j->has_head) {
        return;
    }
    uint64_t head = j->head.step;
    if (x->disk.has_line && x->disk.step > head) {
        x->disk_asked++;
        x->disk.step = head; // gone from now on: after a FORK the step may be committed again soon
        td_trainc_push(out, TD_TC_CUT_METRICS)->round = head;
        return;
    }
    bool closed = head_closed(x, j);
    uint64_t step = x->disk.staged_step;
    bool old = x->disk.has_staged && step < head && td_store_staged(x, step) &&
               !td_store_has_line(x, step);
    if (!old && (!closed || td_store_has_line(x, head) || !line_complete(x, head))) {
        return;
    }
    x->disk_asked++;
    struct td_trainc_effect *e = td_trainc_push(out, TD_TC_CLOSE_METRICS);
    e->job = x->job;
    e->round = old ? step : head;
    e->orders = old ? NULL : td_proto_dup(x->closed);
}
