// What the ranks of the gang are told next. Everything is worked out from what they say of
// themselves (struct td_rank) and the journal's state; nothing from what was asked before. At most
// one command is under way on a rank, and a new one goes out only when none is on any.
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/train/trainc_int.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"

void td_ranks_lose(struct td_trainc *x, const char *fmt, ...) {
    if (x->lost) {
        return;
    }
    x->lost = true;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->lost_cause, sizeof x->lost_cause, fmt, ap);
    va_end(ap);
}

void td_ranks_fail(struct td_trainc *x, const char *fmt, ...) {
    if (x->failed) {
        return;
    }
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    x->failed = td_strdup(text);
}

// ---- what ranks say ----

static void take_metrics(struct td_rank *r, const Tandem__Worker__Metric *const *m, size_t n) {
    td_free(r->metrics);
    r->metrics = td_alloc(sizeof *r->metrics);
    for (size_t i = 0; i < n && i < TD_METRICS_MAX; i++) {
        bool known = m[i]->fold <= TD_FOLD_LAST && strlen(m[i]->name) < TD_METRIC_NAME_MAX &&
                     !td_metrics_find(r->metrics, m[i]->name);
        if (known) {
            td_metrics_add(r->metrics, m[i]->name, m[i]->value, (enum td_metric_fold)m[i]->fold);
        }
    }
}

static void rank_fini(struct td_rank *r) {
    td_free(r->metrics);
    td_free(r->weights);
    *r = (struct td_rank){0};
}

void td_ranks_fini(struct td_trainc *x) {
    for (size_t i = 0; i < TD_TRAIN_RANKS_MAX; i++) {
        rank_fini(&x->ranks[i]);
    }
}

void td_ranks_up(struct td_trainc *x, uint32_t worker, const Tandem__Worker__Status *s) {
    if (worker >= x->config.workers) {
        return;
    }
    struct td_rank *r = &x->ranks[worker];
    rank_fini(r);
    *r = (struct td_rank){
        .up = true,
        .set_up = s->set_up,
        .job = s->job,
        .generation = s->generation,
        // A ring is made before the load and lasts as long as what was loaded.
        .ring = s->generation,
        .version = {s->version ? s->version->lineage : 0, s->version ? s->version->step : 0},
        .ref = {s->ref_offset, s->ref_crc},
        .prepped = s->prepped,
        .applied = s->applied,
        .updates = s->updates,
        .digested = s->finished && !s->applied,
        .finished = s->finished,
        .weight_digest = s->weight_digest,
        .state_digest = s->state_digest,
        .finished_ref = {s->finished_ref_offset, s->finished_ref_crc},
        .weights = s->weights_address[0] ? td_strdup(s->weights_address) : NULL,
    };
    if (s->finished) {
        take_metrics(r, (const Tandem__Worker__Metric *const *)s->round_metrics,
                     s->n_round_metrics);
    }
}

static void abandon_save(struct td_trainc *x) {
    td_proto_free(x->saving);
    x->saving = NULL;
}

void td_ranks_down(struct td_trainc *x, uint32_t worker) {
    if (worker >= x->config.workers) {
        return;
    }
    struct td_rank *r = &x->ranks[worker];
    if (r->seq && r->command == TD_TC_SAVE) {
        abandon_save(x);
    }
    rank_fini(r);
}

void td_ranks_forget_commands(struct td_trainc *x) {
    for (uint32_t i = 0; i < x->config.workers; i++) {
        x->ranks[i].seq = 0;
    }
}

// A base or a job that a rank took in.
static void took_load(struct td_trainc *x, struct td_rank *r) {
    const struct td_gang_state *g = td_trainc_gang(x);
    r->generation = x->generation;
    r->prepped = r->finished = r->digested = false;
    r->applied = r->updates = 0;
    r->version = (struct td_version){x->lineage, g ? g->base_step : 0};
    td_free(r->metrics);
    r->metrics = NULL;
}

static void took_finish(struct td_trainc *x, struct td_rank *r, const struct td_trainc_event *e) {
    r->finished = true;
    r->finished_ref = r->ref;
    r->prepped = false;
    r->applied = r->updates = 0;
    r->version = (struct td_version){x->lineage, r->version.step + 1};
    take_metrics(r, e->worker_metrics, e->worker_metric_count);
}

static void took(struct td_trainc *x, struct td_rank *r, const struct td_trainc_event *e) {
    switch (r->command) {
    case TD_TC_SETUP:
        r->set_up = true;
        r->job = x->job;
        break;
    case TD_TC_RING:
        r->ring = x->generation;
        break;
    case TD_TC_LOAD:
        took_load(x, r);
        break;
    case TD_TC_PREP:
        r->prepped = true;
        r->ref = r->command_ref;
        r->applied = 0;
        r->updates = x->round_updates;
        break;
    case TD_TC_STEP:
        r->applied = r->command_k;
        break;
    case TD_TC_FINISH:
        took_finish(x, r, e);
        break;
    case TD_TC_SAVE:
        td_store_saved(x, e->manifest_digest);
        break;
    default:
        break;
    }
    if (r->command == TD_TC_FINISH || r->command == TD_TC_DIGEST) {
        r->digested = true;
        r->weight_digest = e->weight_digest;
        r->state_digest = e->state_digest;
    }
}

static const char *command_name(enum td_trainc_effect_kind kind) {
    switch (kind) {
    case TD_TC_SETUP:
        return "set up";
    case TD_TC_RING:
        return "join the ring";
    case TD_TC_LOAD:
        return "load the base";
    case TD_TC_PREP:
        return "prepare the round";
    case TD_TC_STEP:
        return "train";
    case TD_TC_FINISH:
        return "finish the round";
    case TD_TC_DIGEST:
        return "tell its digests";
    case TD_TC_SAVE:
        return "save";
    default:
        return "act";
    }
}

// What a refusal means: for the rank's state, for the job, or for this process.
static void refused(struct td_trainc *x, uint32_t rank, const struct td_trainc_event *e,
                    struct td_trainc_effects *out) {
    struct td_rank *r = &x->ranks[rank];
    const struct td_gang_state *g = td_trainc_gang(x);
    const char *text = e->text ? e->text : "";
    char line[512];
    snprintf(line, sizeof line, "rank %u could not %s: %s: %s", rank, command_name(r->command),
             td_rc_name(e->rc), text);
    bool save = r->command == TD_TC_SAVE;
    bool passing = e->rc == TD_ECLOSED || e->rc == TD_ETIMEOUT || e->rc == TD_ECONFLICT;
    if (save) {
        abandon_save(x);
    }
    if (r->command == TD_TC_LOAD && g && g->base && (e->rc == TD_ECORRUPT || e->rc == TD_ENOENT)) {
        td_store_bad(x, g->base, line);
    } else if (save && e->rc == TD_ENOENT && !x->stop_cause) {
        // Deleted by the leader of a newer generation (A6), perhaps: the journal's end says so.
        x->stop_cause = td_strdup(line);
        td_follower_refresh(&x->follow);
        td_trainc_push(out, TD_TC_FETCH_END);
    } else if (e->rc == TD_ENOSPC || e->rc == TD_EPERM || e->rc == TD_EIO || e->rc == TD_ESTOPPED ||
               (save && !passing)) {
        td_trainc_stop(x, out, line);
    } else if (!passing) {
        td_ranks_fail(x, "%s", line);
    } else if (!save) {
        td_ranks_lose(x, "%s", line);
    }
}

void td_ranks_answer(struct td_trainc *x, const struct td_trainc_event *e,
                     struct td_trainc_effects *out) {
    for (uint32_t i = 0; e->seq && i < x->config.workers; i++) {
        struct td_rank *r = &x->ranks[i];
        if (r->seq != e->seq) {
            continue;
        }
        r->seq = 0;
        if (e->kind == TD_TC_FAILED) {
            refused(x, i, e, out);
        } else {
            took(x, r, e);
        }
        return;
    }
}

// ---- what ranks are told ----

struct td_trainc_effect *td_ranks_command(struct td_trainc *x, uint32_t rank,
                                          enum td_trainc_effect_kind kind,
                                          struct td_trainc_effects *out) {
    struct td_rank *r = &x->ranks[rank];
    td_assert(!r->seq);
    struct td_trainc_effect *e = td_trainc_push(out, kind);
    e->worker = rank;
    e->ranks = x->rank_count;
    e->seq = r->seq = x->next_seq++;
    e->job = x->job;
    e->generation = x->generation;
    r->command = kind;
    td_trainc_wait(x, "rank %u to %s", rank, command_name(kind));
    return e;
}

static void command_keyed(struct td_trainc *x, uint32_t rank, enum td_trainc_effect_kind kind,
                          struct td_pos ref, struct td_trainc_effects *out) {
    struct td_rank *r = &x->ranks[rank];
    struct td_trainc_effect *e = td_ranks_command(x, rank, kind, out);
    e->ref = r->command_ref = ref;
    e->round = r->version.step + 1;
    e->k = r->command_k = kind == TD_TC_STEP ? r->applied + 1 : 0;
    e->version = (struct td_version){x->lineage, e->round};
}

// All ranks are up, set up for this job and idle.
static bool ranks_ready(struct td_trainc *x, struct td_trainc_effects *out) {
    if (!x->rank_count || x->rank_count > x->config.workers) {
        td_ranks_fail(x, "the gang has %u ranks, this member %u workers", x->rank_count,
                      x->config.workers);
        return false;
    }
    bool ready = true;
    for (uint32_t i = 0; i < x->rank_count; i++) {
        struct td_rank *r = &x->ranks[i];
        if (!r->up || r->restarting) {
            td_trainc_wait(x, "worker %u to come up", i);
            ready = false;
        } else if (r->seq) {
            td_trainc_wait(x, "rank %u to %s", i, command_name(r->command));
            ready = false;
        }
    }
    for (uint32_t i = 0; ready && i < x->rank_count; i++) {
        struct td_rank *r = &x->ranks[i];
        if (r->set_up && r->job != x->job) {
            r->restarting = true;
            td_trainc_push(out, TD_TC_RESTART_WORKER)->worker = i;
        }
    }
    for (uint32_t i = 0; ready && i < x->rank_count; i++) {
        if (x->ranks[i].restarting) {
            return false;
        }
    }
    bool set_up = true;
    for (uint32_t i = 0; ready && i < x->rank_count; i++) {
        if (!x->ranks[i].set_up) {
            td_ranks_command(x, i, TD_TC_SETUP, out);
            set_up = false;
        }
    }
    return ready && set_up;
}

bool td_ranks_loaded(const struct td_trainc *x) {
    for (uint32_t i = 0; i < x->rank_count && i < TD_TRAIN_RANKS_MAX; i++) {
        if (!x->ranks[i].up || x->ranks[i].generation != x->generation) {
            return false;
        }
    }
    return x->rank_count > 0;
}

static uint32_t count_generation(const struct td_trainc *x) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->rank_count; i++) {
        n += x->ranks[i].generation == x->generation;
    }
    return n;
}

static void load_all(struct td_trainc *x, const struct td_gang_state *g,
                     const Tandem__Journal__Checkpoint *base, struct td_trainc_effects *out) {
    bool ringed = true;
    for (uint32_t i = 0; i < x->rank_count; i++) {
        ringed = ringed && x->ranks[i].ring == x->generation;
    }
    for (uint32_t i = 0; i < x->rank_count; i++) {
        if (!ringed) {
            td_ranks_command(x, i, TD_TC_RING, out);
            continue;
        }
        struct td_trainc_effect *e = td_ranks_command(x, i, TD_TC_LOAD, out);
        e->version = (struct td_version){x->lineage, g->base_step};
        e->text = td_strdup(base ? base->folder : "");
        e->id = g->base;
    }
    if (ringed) {
        x->loaded = x->generation;
    }
}

// Rule A3: true when all ranks hold the state of this generation; else its base is loaded, once,
// by the process that saw the RESTORE.
static bool ranks_based(struct td_trainc *x, struct td_trainc_effects *out) {
    const struct td_gang_state *g = td_trainc_gang(x);
    uint32_t have = count_generation(x);
    if (have == x->rank_count) {
        return true;
    }
    if (!g->has_base) {
        td_trainc_wait(x, "the leader to name the checkpoint to start from");
        return false;
    }
    for (uint32_t i = 0; i < x->rank_count; i++) {
        if (x->ranks[i].generation > x->generation) {
            td_ranks_lose(x, "rank %u holds state of generation %" PRIu64, i,
                          x->ranks[i].generation);
            return false;
        }
    }
    bool once = x->may_load == x->generation && x->loaded != x->generation && !have;
    if (!once && !TD_PLANTED(LOAD_ONCE)) {
        td_ranks_lose(x, "train state of generation %" PRIu64 " gone on %u of %u ranks",
                      x->generation, x->rank_count - have, x->rank_count);
        return false;
    }
    const struct td_job_state *j = td_trainc_job(x);
    const Tandem__Journal__Checkpoint *base = g->base ? td_job_kept(j, g->base) : NULL;
    if (g->base && !base) {
        td_ranks_lose(x, "checkpoint %016" PRIx64 " is not kept any more", g->base);
        return false;
    }
    if (!base || td_store_base_ok(x, base, out)) {
        load_all(x, g, base, out);
    }
    return false;
}

// The order in which a rank goes through a job; equal for ranks that stand at the same place.
static uint64_t progress(const struct td_rank *r) {
    return (r->version.step << 24) + r->applied;
}

// Ranks stand at the same place. One that missed only the answer to its FINISH is told again; one
// that is an update behind cannot make it up, since the collective of that update is gone.
static bool ranks_level(struct td_trainc *x, struct td_trainc_effects *out) {
    struct td_rank *low = &x->ranks[0], *high = &x->ranks[0];
    for (uint32_t i = 1; i < x->rank_count; i++) {
        struct td_rank *r = &x->ranks[i];
        low = progress(r) < progress(low) ? r : low;
        high = progress(r) > progress(high) ? r : high;
    }
    if (progress(low) == progress(high)) {
        return true;
    }
    if (TD_PLANTED(HALF_APPLIED)) {
        for (uint32_t i = 0; i < x->rank_count; i++) {
            struct td_rank own = x->ranks[i];
            x->ranks[i] = *high;
            x->ranks[i].metrics = own.metrics;
            x->ranks[i].weights = own.weights;
        }
        return true;
    }
    bool finishing =
        high->version.step == low->version.step + 1 && !high->applied && high->finished;
    for (uint32_t i = 0; finishing && i < x->rank_count; i++) {
        const struct td_rank *r = &x->ranks[i];
        bool whole = r->prepped && r->updates && r->applied == r->updates &&
                     td_pos_equal(r->ref, high->finished_ref);
        finishing = progress(r) == progress(high) || whole;
    }
    if (!finishing) {
        td_ranks_lose(x,
                      "ranks stand apart: step %" PRIu64 " update %u, step %" PRIu64 " update %u",
                      low->version.step, low->applied, high->version.step, high->applied);
        return false;
    }
    for (uint32_t i = 0; i < x->rank_count; i++) {
        if (progress(&x->ranks[i]) != progress(high)) {
            command_keyed(x, i, TD_TC_FINISH, x->ranks[i].ref, out);
        }
    }
    return false;
}

// After a load the checkpoint is to blame; after training nothing that a new generation would heal.
static void ranks_differ(struct td_trainc *x, uint32_t rank) {
    const struct td_rank *a = &x->ranks[0], *b = &x->ranks[rank];
    const struct td_gang_state *g = td_trainc_gang(x);
    if (g->base && (!a->finished || !b->finished)) {
        td_store_bad(x, g->base, "the ranks read different states from it");
        return;
    }
    td_ranks_fail(x,
                  "ranks 0 and %u hold different states at step %" PRIu64 ": %016" PRIx64
                  " and %016" PRIx64,
                  rank, a->version.step, a->state_digest, b->state_digest);
}

static bool ranks_digested(struct td_trainc *x, struct td_trainc_effects *out) {
    bool all = true;
    for (uint32_t i = 0; i < x->rank_count; i++) {
        if (!x->ranks[i].digested) {
            td_ranks_command(x, i, TD_TC_DIGEST, out);
            all = false;
        }
    }
    const struct td_rank *a = &x->ranks[0];
    for (uint32_t i = 1; all && i < x->rank_count; i++) {
        const struct td_rank *b = &x->ranks[i];
        if (b->weight_digest != a->weight_digest || b->state_digest != a->state_digest) {
            ranks_differ(x, i);
            return false;
        }
    }
    return all;
}

// A version at or below the head must be what was committed.
static bool same_as_committed(struct td_trainc *x) {
    const struct td_job_state *j = td_trainc_job(x);
    const struct td_gang_state *g = td_trainc_gang(x);
    const struct td_rank *r = &x->ranks[0];
    uint64_t step = r->version.step;
    const struct td_round_state *c = td_job_round(j, step);
    if (!c || !c->committed || !c->role_count) {
        return true;
    }
    const Tandem__Journal__RoleCommit *role = c->roles[0];
    if (role->weight_digest == r->weight_digest && role->state_digest == r->state_digest) {
        return true;
    }
    if (g->base && step == g->base_step && !r->finished) {
        if (TD_PLANTED(NEWEST_TRUSTED)) {
            return true;
        }
        td_store_bad(x, g->base, "its state is not the committed one");
        return false;
    }
    Tandem__Sync__Mismatch *m = td_alloc(sizeof *m);
    tandem__sync__mismatch__init(m);
    m->version = td_proto_version((struct td_version){x->lineage, step});
    m->committed = role->state_digest;
    m->found = r->state_digest;
    m->commit = td_proto_pos(c->commit);
    m->committed_build = td_strdup(role->build);
    td_proto_free(x->mismatch);
    x->mismatch = m;
    return false;
}

bool td_ranks_round_ready(struct td_trainc *x, uint64_t round, struct td_pos ref,
                          struct td_trainc_effects *out) {
    if (x->round == round && td_pos_equal(x->round_ref, ref)) {
        if (!x->round_ready) {
            td_trainc_wait(x, "the records of round %" PRIu64 " to be read", round);
        }
        return x->round_ready;
    }
    if (x->missing_round == round && td_pos_equal(x->missing_ref, ref)) {
        td_trainc_wait(x, "lost records of round %" PRIu64 " to be replaced", round);
        return false;
    }
    td_trainc_drop_round(x, out);
    td_trainc_forget_missing(x);
    x->round = round;
    x->round_ref = ref;
    struct td_trainc_effect *e = td_trainc_push(out, TD_TC_READ_ROUND);
    e->job = x->job;
    e->round = round;
    e->ref = ref;
    e->ranks = x->rank_count;
    td_trainc_wait(x, "the records of round %" PRIu64 " to be read", round);
    return false;
}

static void prep_or_step(struct td_trainc *x, const struct td_round_state *sealed,
                         struct td_trainc_effects *out) {
    bool prepped = true;
    for (uint32_t i = 0; i < x->rank_count; i++) {
        const struct td_rank *r = &x->ranks[i];
        prepped = prepped && r->prepped && td_pos_equal(r->ref, sealed->ref);
    }
    if (!prepped && !td_ranks_round_ready(x, sealed->round, sealed->ref, out)) {
        return;
    }
    for (uint32_t i = 0; i < x->rank_count; i++) {
        const struct td_rank *r = &x->ranks[i];
        if (prepped) {
            command_keyed(x, i, TD_TC_STEP, sealed->ref, out);
        } else if (!r->prepped || !td_pos_equal(r->ref, sealed->ref)) {
            command_keyed(x, i, TD_TC_PREP, sealed->ref, out);
        }
    }
}

static void drive_at_version(struct td_trainc *x, struct td_trainc_effects *out) {
    const struct td_job_state *j = td_trainc_job(x);
    const struct td_rank *r = &x->ranks[0];
    uint64_t step = r->version.step;
    bool committed = j->has_head && step <= j->head.step;
    if (committed ? !same_as_committed(x) : step > (j->has_head ? j->head.step + 1 : 0)) {
        if (!committed) {
            td_ranks_lose(x, "ranks hold step %" PRIu64 ", which the journal does not know", step);
        }
        return;
    }
    const struct td_round_state *here = td_job_round(j, step);
    if (!committed && step > 0 && !TD_PLANTED(RESEAL_VOIDS)) {
        for (uint32_t i = 0; i < x->rank_count; i++) {
            const struct td_rank *q = &x->ranks[i];
            if (!here || !q->finished || !td_pos_equal(q->finished_ref, here->ref)) {
                td_ranks_lose(x, "round %" PRIu64 " was sealed anew after it was trained", step);
                return;
            }
        }
    }
    if (!td_store_stage(x, step, out)) {
        return;
    }
    if (x->round && x->round <= step) {
        td_trainc_drop_round(x, out);
    }
    if (!committed) {
        td_trainc_wait(x, "the COMMIT of step %" PRIu64, step);
        return;
    }
    if (td_store_save(x, out)) {
        return;
    }
    const struct td_round_state *next = td_job_round(j, step + 1);
    if (step + 1 > j->sealed || !next) {
        td_trainc_wait(x, "round %" PRIu64 " to be sealed", step + 1);
        return;
    }
    prep_or_step(x, next, out);
}

static void drive_in_round(struct td_trainc *x, struct td_trainc_effects *out) {
    const struct td_job_state *j = td_trainc_job(x);
    uint64_t round = x->ranks[0].version.step + 1;
    const struct td_round_state *sealed = td_job_round(j, round);
    for (uint32_t i = 0; i < x->rank_count; i++) {
        const struct td_rank *r = &x->ranks[i];
        bool in_force = sealed && round <= j->sealed && td_pos_equal(r->ref, sealed->ref);
        if (!in_force && !TD_PLANTED(RESEAL_VOIDS)) {
            td_ranks_lose(x, "round %" PRIu64 " was sealed anew after update %u of %u", round,
                          r->applied, r->updates);
            return;
        }
    }
    for (uint32_t i = 0; i < x->rank_count; i++) {
        const struct td_rank *r = &x->ranks[i];
        command_keyed(x, i, r->applied < r->updates ? TD_TC_STEP : TD_TC_FINISH, r->ref, out);
    }
}

// A rank that came back without the state is told at once: the others may be held up by it in a
// collective until its deadline.
static bool rank_came_back_empty(struct td_trainc *x) {
    for (uint32_t i = 0; i < x->rank_count && x->loaded == x->generation; i++) {
        const struct td_rank *r = &x->ranks[i];
        if (r->up && !r->seq && r->generation != x->generation && !TD_PLANTED(LOAD_ONCE)) {
            td_ranks_lose(x, "rank %u lost the train state of generation %" PRIu64, i,
                          x->generation);
            return true;
        }
    }
    return false;
}

void td_ranks_drive(struct td_trainc *x, struct td_trainc_effects *out) {
    if (x->rank_count <= x->config.workers && rank_came_back_empty(x)) {
        return;
    }
    if (!ranks_ready(x, out) || !ranks_based(x, out) || !ranks_level(x, out)) {
        return;
    }
    if (x->ranks[0].applied) {
        drive_in_round(x, out);
    } else if (ranks_digested(x, out)) {
        drive_at_version(x, out);
    }
}
