// The scheduler of generation: which tokens of which sequences the next forward computes. Pure: no
// device, no clock; the generator executes its plans. A schedule changes cost only, never a result.
//
// There are no phases: each step gives every sequence min(tokens − cached, what is left of the
// budget), those under way first, by age, then the waiting ones, by age. A decode is a sequence
// that lacks one token. Pages that run short are taken from idle sequences first, the one idle
// longest; then from waiting ones, then from the youngest under way, which waits again and is
// computed anew.
//
// Kin (forks of one ancestor) share what they have in common: a sequence whose kin is computing the
// same prompt waits for it, adopts its pages, and if the tokens are all the same, its logits too.
#ifndef TD_WORKERS_ENGINE_SCHED_H
#define TD_WORKERS_ENGINE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "workers/engine/kv.h"

enum td_sched_state { TD_SCHED_IDLE, TD_SCHED_WAITING, TD_SCHED_RUNNING };

// Embedded by the owner, who sets ids and tokens; all else is the scheduler's.
struct td_sched_seq {
    const int32_t *ids;
    int32_t tokens; // known
    int32_t cached; // of them, from the start, whose keys and values the pages hold
    struct td_kv_chain chain;
    enum td_sched_state state;
    uint64_t ticket;                  // age: order of td_sched_start
    bool fresh;                       // under way, and its known tokens not all computed yet
    struct td_sched_seq *prev, *next; // list of its state; idle without pages: none
    struct td_sched_seq *kin_prev, *kin_next; // ring
};

struct td_plan_entry {
    struct td_sched_seq *seq;
    int32_t from, count; // tokens to compute
};

// A sequence whose tokens are all computed, and the row of the forward that gives its next one.
struct td_plan_ready {
    struct td_sched_seq *seq;
    int32_t row;
};

struct td_plan { // valid until the next plan
    const struct td_plan_entry *entries;
    int32_t count, tokens;
    const struct td_kv_copy *copies; // to be done in order before the forward
    int32_t copy_count;
};

struct td_sched;

// kv is borrowed. Budgets ≥ 1.
struct td_sched *td_sched_new(struct td_kv *kv, int32_t batch_tokens_max, int32_t sequences_max);
void td_sched_free(struct td_sched *s); // accepts NULL

// seq is zeroed but for ids and tokens; idle, without kin.
void td_sched_add(struct td_sched *s, struct td_sched_seq *seq);
// child (added, without pages) joins parent's kin and shares its pages. parent is idle.
void td_sched_fork(struct td_sched *s, struct td_sched_seq *parent, struct td_sched_seq *child);
// Idle → waiting. Its pages at full length must fit the whole pool.
void td_sched_start(struct td_sched *s, struct td_sched_seq *seq);
// → idle, keeping its pages.
void td_sched_finish(struct td_sched *s, struct td_sched_seq *seq);
// Forgets it and releases its pages.
void td_sched_remove(struct td_sched *s, struct td_sched_seq *seq);

// Plans the next step. Empty only if nothing waits or runs.
struct td_plan td_sched_plan(struct td_sched *s);
// The forward of the last plan is done. Which sequences want a token now; in plan order, kin beside
// each other. Valid until the next commit. Without a commit a plan leaves no trace but pages.
const struct td_plan_ready *td_sched_commit(struct td_sched *s, int32_t *count);

bool td_sched_busy(const struct td_sched *s); // something waits or runs
uint64_t td_sched_preempted(const struct td_sched *s);

#endif
