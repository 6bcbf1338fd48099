// The train controller machine: events in, effects out; see trainc.h and trainc_int.h.
#include "controllers/train/trainc_int.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"

static const char role_actor[] = "actor";

struct td_trainc *td_trainc_new(const struct td_trainc_config *config) {
    td_assert(config->member && config->incarnation && config->plan_of);
    td_assert_op(config->workers, <=, TD_TRAIN_RANKS_MAX);
    struct td_trainc *x = td_alloc(sizeof *x);
    x->config = *config;
    x->config.build = td_strdup(config->build ? config->build : "");
    x->config.device = td_strdup(config->device ? config->device : "");
    x->config.index = td_proto_dup(config->index);
    td_follower_init(&x->follow);
    x->next_seq = 1;
    return x;
}

static void folders_free(struct td_trainc *x) {
    for (size_t i = 0; i < x->folder_count; i++) {
        td_free(x->folders[i].name);
    }
    td_free(x->folders);
    x->folders = NULL;
    x->folder_count = x->folder_cap = 0;
}

void td_trainc_forget_missing(struct td_trainc *x) {
    td_free(x->missing);
    td_free(x->missing_cause);
    x->missing = NULL;
    x->missing_cause = NULL;
    x->missing_round = 0;
    x->missing_count = 0;
}

void td_trainc_free(struct td_trainc *x) {
    if (!x) {
        return;
    }
    td_follower_fini(&x->follow);
    td_free((void *)(uintptr_t)x->config.build);
    td_free((void *)(uintptr_t)x->config.device);
    td_proto_free((void *)(uintptr_t)x->config.index);
    td_ranks_fini(x);
    folders_free(x);
    td_trainc_forget_missing(x);
    td_free(x->round_metrics);
    td_free(x->failed);
    td_free(x->stop_cause);
    td_proto_free(x->mismatch);
    td_proto_free(x->saving);
    td_proto_free(x->saved);
    td_proto_free(x->closed);
    td_arrived_fini(&x->arrivals);
    td_free(x);
}

struct td_trainc_effect *td_trainc_push(struct td_trainc_effects *out,
                                        enum td_trainc_effect_kind kind) {
    TD_GROW(out->items, out->cap, out->count + 1);
    struct td_trainc_effect *e = &out->items[out->count++];
    *e = (struct td_trainc_effect){.kind = kind};
    return e;
}

void td_trainc_effects_fini(struct td_trainc_effects *out) {
    for (size_t i = 0; i < out->count; i++) {
        struct td_trainc_effect *e = &out->items[i];
        td_free(e->text);
        for (size_t p = 0; p < e->position_count; p++) {
            td_proto_free(e->positions[p]);
        }
        td_free(e->positions);
        td_proto_free(e->checkpoint);
        td_free(e->metrics);
        td_proto_free(e->orders);
        td_proto_free(e->report);
    }
    td_free(out->items);
    *out = (struct td_trainc_effects){0};
}

void td_trainc_wait(struct td_trainc *x, const char *fmt, ...) {
    if (x->wait_next[0]) {
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->wait_next, sizeof x->wait_next, fmt, ap);
    va_end(ap);
}

void td_trainc_stop(struct td_trainc *x, struct td_trainc_effects *out, const char *text) {
    if (x->stopped) {
        return;
    }
    x->stopped = true;
    td_trainc_push(out, TD_TC_STOP)->text = td_strdup(text);
}

const struct td_journal_state *td_trainc_journal(const struct td_trainc *x) {
    return &x->follow.state;
}

const struct td_job_state *td_trainc_job(const struct td_trainc *x) {
    return x->job ? td_journal_job(&x->follow.state, x->job) : NULL;
}

const struct td_gang_state *td_trainc_gang(const struct td_trainc *x) {
    const struct td_job_state *j = td_trainc_job(x);
    return j ? td_job_gang(j, role_actor) : NULL;
}

void td_trainc_drop_round(struct td_trainc *x, struct td_trainc_effects *out) {
    if (x->round) {
        td_trainc_push(out, TD_TC_DROP_ROUND)->round = x->round;
    }
    x->round = 0;
    x->round_ready = false;
    td_free(x->round_metrics);
    x->round_metrics = NULL;
}

// ---- what the journal gives to this member ----

static const struct td_gang_state *gang_here(const struct td_trainc *x,
                                             const struct td_job_state *j) {
    const struct td_gang_state *g = td_job_gang(j, role_actor);
    bool here = g && g->spec->n_members && g->spec->members[0] == x->config.member;
    return here ? g : NULL;
}

// The first job that is not ended, whose gang is led from here and whose spec is understood. Two
// jobs may have the same.
static const struct td_job_state *find_job(const struct td_trainc *x, struct td_train_plan *plan) {
    const struct td_journal_state *s = &x->follow.state;
    for (size_t i = 0; i < s->job_count; i++) {
        const struct td_job_state *j = s->jobs[i];
        bool served = !x->config.job || x->config.job == j->job->job;
        if (served && j->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE && gang_here(x, j) &&
            x->config.plan_of(x->config.user, j->job->spec.data, j->job->spec.len, plan)) {
            return j;
        }
    }
    return NULL;
}

// Work of another generation is void: whatever is known of it goes.
static void reset_gang(struct td_trainc *x, struct td_trainc_effects *out) {
    td_ranks_forget_commands(x);
    td_trainc_drop_round(x, out);
    td_trainc_forget_missing(x);
    x->lost = false;
    x->verifying = x->verified = 0;
    td_proto_free(x->saving);
    td_proto_free(x->saved);
    td_proto_free(x->mismatch);
    x->saving = x->saved = NULL;
    x->mismatch = NULL;
    td_free(x->failed);
    td_free(x->stop_cause);
    x->failed = x->stop_cause = NULL;
    x->listed = 0;
}

static void reset_job(struct td_trainc *x) {
    td_arrived_fini(&x->arrivals);
    x->user_saved = false;
    td_proto_free(x->closed);
    x->closed = NULL;
    x->may_load = x->loaded = 0;
}

// After a FORK the ranks hold the first version of the new lineage; everything that spoke for the
// old one is void, and records of the reopened rounds may be needed again.
static void reset_lineage(struct td_trainc *x, struct td_trainc_effects *out) {
    td_proto_free(x->mismatch);
    x->mismatch = NULL;
    td_trainc_forget_missing(x);
    td_proto_free(x->saved);
    x->saved = NULL;
    td_arrived_follow(x, true, out);
}

static void follow_journal(struct td_trainc *x, struct td_trainc_effects *out) {
    struct td_train_plan plan = {0};
    const struct td_job_state *j = find_job(x, &plan);
    const struct td_gang_state *g = j ? gang_here(x, j) : NULL;
    uint64_t job = j ? j->job->job : 0, generation = g ? g->generation : 0;
    if (job != x->job || generation != x->generation) {
        reset_gang(x, out);
    }
    if (generation && generation != x->generation) {
        td_store_read_lines(x, out);
    }
    if (job != x->job) {
        reset_job(x);
    }
    bool forked = job && job == x->job && j->lineage != x->lineage;
    x->job = job;
    x->generation = generation;
    x->lineage = j ? j->lineage : 0;
    x->plan = plan;
    x->rank_count = g ? g->spec->ranks : 0;
    if (forked) {
        reset_lineage(x, out);
    }
    if (g && !g->has_base) {
        x->may_load = generation;
    }
}

static void decide(struct td_trainc *x, struct td_trainc_effects *out) {
    if (!td_follower_ready(&x->follow)) {
        td_trainc_wait(x, "the journal to be read to its end");
        return;
    }
    follow_journal(x, out);
    if (!x->job) {
        td_trainc_wait(x, "a gang on this member");
        return;
    }
    if (x->stop_cause) {
        td_trainc_stop(x, out, x->stop_cause);
        return;
    }
    td_arrived_follow(x, false, out);
    td_arrived_prune(x);
    td_store_folders(x, out);
    td_store_close_lines(x, out);
    if (x->failed || x->lost || x->mismatch) {
        td_trainc_wait(x, "the leader's decision on %s",
                       x->failed ? x->failed
                       : x->lost ? x->lost_cause
                                 : "a redo that differs");
        return;
    }
    td_ranks_drive(x, out);
    if (x->lost || x->mismatch || x->failed) {
        x->wait_next[0] = 0;
        td_trainc_wait(x, "the leader's decision on %s",
                       x->failed ? x->failed
                       : x->lost ? x->lost_cause
                                 : "a redo that differs");
    }
}

// ---- events ----

static void follow_wants(struct td_trainc *x, enum td_follow_want want,
                         struct td_trainc_effects *out) {
    uint64_t id = x->follow.state.journal_id;
    char text[320];
    switch (want) {
    case TD_WANT_NOTHING:
        break;
    case TD_WANT_END:
        td_trainc_push(out, TD_TC_FETCH_END);
        break;
    case TD_WANT_RESET:
        td_trainc_push(out, TD_TC_JOURNAL_RESET);
        break;
    case TD_WANT_STOP:
        td_trainc_stop(x, out, x->follow.cause);
        break;
    }
    if (x->follow.state.based && x->config.expect_journal_id && id != x->config.expect_journal_id) {
        snprintf(text, sizeof text,
                 "the log holds journal %016" PRIx64 ", this member belongs to %016" PRIx64
                 "; use its own run directory",
                 id, x->config.expect_journal_id);
        td_trainc_stop(x, out, text);
    }
}

static void take_orders(struct td_trainc *x, const Tandem__Sync__Orders *o) {
    const struct td_journal_state *s = &x->follow.state;
    if (!s->based || o->journal_id != s->journal_id) {
        return;
    }
    uint64_t seen = x->term > s->term ? x->term : s->term;
    if (o->term < seen) {
        return;
    }
    x->term = o->term;
    if (o->step_closed && o->job == x->job) { // late ones may speak of the job before
        td_proto_free(x->closed);
        x->closed = td_proto_dup(o);
    }
}

static void take_round(struct td_trainc *x, const struct td_round_read *r) {
    if (!x->round || r->job != x->job || r->round != x->round ||
        !td_pos_equal(r->ref, x->round_ref)) {
        return;
    }
    if (r->ok) {
        x->round_ready = true;
        x->round_updates = r->updates;
        td_free(x->round_metrics);
        x->round_metrics = r->metrics ? td_memdup(r->metrics, sizeof *r->metrics) : NULL;
        return;
    }
    td_trainc_forget_missing(x);
    x->missing_round = r->round;
    x->missing_ref = r->ref;
    x->missing = td_memdup(r->missing, r->missing_count * sizeof *r->missing);
    x->missing_count = r->missing_count;
    x->missing_cause = td_strdup(r->cause ? r->cause : "");
    const struct td_job_state *j = td_trainc_job(x);
    const struct td_round_state *sealed = j ? td_job_round(j, r->round) : NULL;
    for (size_t i = 0; sealed && i < r->missing_count; i++) {
        if (r->missing[i] < sealed->entry_count) {
            td_arrived_forget(x, sealed->entries[r->missing[i]]);
        }
    }
    x->round = 0; // read again when another ref is in force
}

static void take_checkpoint(struct td_trainc *x, const struct td_trainc_event *e) {
    if (!x->verifying || e->id != x->verifying) {
        return;
    }
    x->verifying = 0;
    if (e->ok) {
        x->verified = e->id;
    } else {
        td_store_bad(x, e->id, e->text ? e->text : "it does not verify");
    }
}

static void take_metrics(struct td_trainc *x, const struct td_metrics_on_disk *m) {
    x->disk_asked -= x->disk_asked > 0;
    if (x->disk_asked == 0) {
        x->disk = *m;
        x->disk_known = true;
    }
}

static void take_event(struct td_trainc *x, const struct td_trainc_event *e,
                       struct td_trainc_effects *out) {
    switch (e->kind) {
    case TD_TC_JOURNAL_START:
        // Without the journal's state no rollout record can be judged: they are read again later.
        td_arrived_fini(&x->arrivals);
        follow_wants(x, td_follower_start(&x->follow, e->offset), out);
        break;
    case TD_TC_JOURNAL_RECORD:
        follow_wants(x, td_follower_record(&x->follow, e->pos, e->bytes, e->n, NULL), out);
        break;
    case TD_TC_JOURNAL_END:
        td_follower_end(&x->follow, e->offset);
        break;
    case TD_TC_ROLLOUT:
        td_arrived_record(x, e->record);
        break;
    case TD_TC_ROLLOUT_SCANNED:
        td_arrived_scanned(x, e);
        break;
    case TD_TC_WORKER_UP:
        td_ranks_up(x, e->worker, e->status);
        break;
    case TD_TC_WORKER_DOWN:
        td_ranks_down(x, e->worker);
        break;
    case TD_TC_DONE:
    case TD_TC_DIGESTED:
    case TD_TC_SAVED:
    case TD_TC_FAILED:
        td_ranks_answer(x, e, out);
        break;
    case TD_TC_CHECKPOINT_READ:
        take_checkpoint(x, e);
        break;
    case TD_TC_FOLDERS:
        td_store_listed(x, e);
        break;
    case TD_TC_ORDERS:
        take_orders(x, e->orders);
        break;
    case TD_TC_METRICS:
        take_metrics(x, e->metrics);
        break;
    case TD_TC_ROUND_READ:
        take_round(x, e->round);
        break;
    case TD_TC_TICK:
        break;
    }
}

void td_trainc_step(struct td_trainc *x, const struct td_trainc_event *event, int64_t now_ms,
                    struct td_trainc_effects *out) {
    if (x->stopped) {
        return;
    }
    take_event(x, event, out);
    if (x->stopped) {
        return;
    }
    x->wait_next[0] = 0;
    decide(x, out);
    if (strcmp(x->wait_next, x->waits_for) != 0) {
        memcpy(x->waits_for, x->wait_next, sizeof x->waits_for);
        x->since_ms = now_ms;
    }
    if (!x->stopped) {
        td_report_send(x, now_ms, out);
    }
}

void td_trainc_view(const struct td_trainc *x, struct td_train_view *out) {
    *out = (struct td_train_view){.job = x->job, .generation = x->generation};
    const struct td_job_state *j = td_trainc_job(x);
    if (j && td_ranks_loaded(x)) {
        const struct td_rank *r = &x->ranks[0];
        uint64_t next = r->version.step + 1;
        out->round = next <= j->sealed ? next : 0;
        out->k = r->applied;
        out->updates = r->prepped ? r->updates : 0;
        out->redo = out->round && j->has_head && next <= j->head.step;
    }
    memcpy(out->waits_for, x->waits_for, sizeof out->waits_for);
    out->since_ms = x->since_ms;
}
