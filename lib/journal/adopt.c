// Adoption of a job by a new journal: see adopt.h.
#include "lib/journal/adopt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/journal/state.h"

static const Tandem__Journal__RoundState *committed_round(const Tandem__Journal__JobState *from,
                                                          uint64_t step) {
    for (size_t i = 0; i < from->n_rounds; i++) {
        if (from->rounds[i]->round == step && from->rounds[i]->commit) {
            return from->rounds[i];
        }
    }
    return NULL;
}

static int by_group(const void *a, const void *b) {
    return td_group_compare(td_group_of(*(Tandem__Journal__Group *const *)a),
                            td_group_of(*(Tandem__Journal__Group *const *)b));
}

// What was open, and what was sealed behind the step.
static void open_again(const Tandem__Journal__JobState *from, uint64_t step, struct td_arena *arena,
                       Tandem__Journal__JobState *out) {
    size_t n = from->n_open;
    for (size_t i = 0; i < from->n_rounds; i++) {
        n += from->rounds[i]->round > step ? from->rounds[i]->n_entries : 0;
    }
    out->open = td_arena_alloc(arena, (n + 1) * sizeof *out->open);
    out->n_open = from->n_open;
    memcpy(out->open, from->open, from->n_open * sizeof *out->open);
    for (size_t i = 0; i < from->n_rounds; i++) {
        const Tandem__Journal__RoundState *r = from->rounds[i];
        for (size_t k = 0; r->round > step && k < r->n_entries; k++) {
            out->open[out->n_open++] = r->entries[k]->group;
        }
    }
    qsort(out->open, out->n_open, sizeof *out->open, by_group);
}

// The generations that were given are not given again: the old gangs stand, restored from here.
static void keep_gangs(const Tandem__Journal__JobState *from,
                       const Tandem__Journal__Checkpoint *checkpoint, struct td_arena *arena,
                       Tandem__Journal__JobState *out) {
    out->n_gangs = from->n_gangs;
    out->gangs = td_arena_alloc(arena, (from->n_gangs + 1) * sizeof *out->gangs);
    for (size_t i = 0; i < from->n_gangs; i++) {
        Tandem__Journal__GangState *g = td_arena_alloc(arena, sizeof *g);
        *g = *from->gangs[i];
        g->has_base = true;
        g->base_id = checkpoint->id;
        g->base_step = checkpoint->version->step;
        out->gangs[i] = g;
    }
}

enum td_rc td_journal_adopt(const Tandem__Journal__JobState *from,
                            const Tandem__Journal__Checkpoint *checkpoint, uint64_t rollout_log,
                            struct td_arena *arena, Tandem__Journal__JobState *out,
                            struct td_err *err) {
    uint64_t step = checkpoint->version->step;
    const Tandem__Journal__RoundState *at = committed_round(from, step);
    bool known = false;
    for (size_t i = 0; at && i < at->commit->n_roles; i++) {
        known = known || at->commit->roles[i]->state_digest == checkpoint->state_digest;
    }
    if (!known || !from->job) {
        return td_fail(err, TD_ECORRUPT,
                       "the state in it does not know step %" PRIu64 " with state %016" PRIx64,
                       step, checkpoint->state_digest);
    }
    Tandem__Journal__Job *job = td_arena_alloc(arena, sizeof *job);
    Tandem__Journal__RoundState *round = td_arena_alloc(arena, sizeof *round);
    *job = *from->job;
    job->rollout_log = rollout_log;
    *round = *at;
    *out = *from;
    out->job = job;
    out->rounds = td_arena_alloc(arena, sizeof *out->rounds);
    out->rounds[0] = round;
    out->n_rounds = 1;
    out->sealed = step;
    out->has_head = true;
    out->head = at->commit->version;
    out->lineage = from->lineage + 1;
    out->kept = td_arena_alloc(arena, sizeof *out->kept);
    out->kept[0] = (Tandem__Journal__Checkpoint *)checkpoint;
    out->n_kept = 1;
    out->initial_kept = false;
    open_again(from, step, arena, out);
    keep_gangs(from, checkpoint, arena, out);
    return TD_OK;
}
