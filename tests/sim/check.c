// What must hold, checked after every event that could break it. The facts of a job are told again
// here from the accepted records, without td_journal_apply; design §6 has the names.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

#define BODY(name) TANDEM__JOURNAL__RECORD__BODY_##name

static struct job_facts *facts_of(struct sim *s, uint64_t job) {
    int i = job_index(s, job);
    return i < 0 ? NULL : &s->jobs[i];
}

static struct known_group *find_group(struct job_facts *f, struct td_group group) {
    for (size_t i = f->group_count; i-- > 0;) {
        if (td_group_compare(f->groups[i].group, group) == 0) {
            return &f->groups[i];
        }
    }
    return NULL;
}

static void drawn(struct sim *s, struct job_facts *f, const Tandem__Journal__Draw *d) {
    for (uint64_t i = d->from; i < d->to; i++) {
        struct td_group g = {d->data_epoch, i};
        if (find_group(f, g)) {
            sim_violation(s, "I1 group (%" PRIu64 ", %" PRIu64 ") is drawn twice", g.data_epoch, i);
            return;
        }
        TD_GROW(f->groups, f->group_cap, f->group_count + 1);
        f->groups[f->group_count++] = (struct known_group){.group = g};
    }
}

static void dropped(struct sim *s, struct job_facts *f, const Tandem__Journal__Drop *d) {
    for (size_t i = 0; i < d->n_groups; i++) {
        struct known_group *g = find_group(f, td_group_of(d->groups[i]));
        if (!g || g->round || g->dropped) {
            sim_violation(s, "I1 a group that is sealed, dropped or was never drawn is dropped");
            return;
        }
        g->dropped = true;
    }
}

// ---- what a round trains on ----

uint64_t batch_of(const struct sim *s, int job, td_entry *const *entries, size_t n) {
    uint64_t h = td_hash_u64(0xBA7C4, (uint64_t)job);
    for (size_t i = 0; i < n; i++) {
        const td_entry *e = entries[i];
        h = td_hash_u64(td_hash_u64(h, e->group->data_epoch), e->group->index);
        for (size_t k = 0; k < e->n_parts && !s->p.rows_job; k++) {
            h = td_hash_u64(h, e->parts[k]->crc);
        }
    }
    return h;
}

static struct td_group nth_group(const struct sim *s, uint64_t round, uint64_t n) {
    uint64_t per_epoch = s->p.rows / s->p.batch;
    return (struct td_group){(round - 1) / per_epoch, (round - 1) % per_epoch * s->p.batch + n};
}

// An undisturbed run takes the batches in draw order, each generated under the version before it.
uint64_t expected_state(struct sim *s, int job, uint64_t step) {
    struct job_facts *f = &s->jobs[job];
    if (step == 0) {
        return initial_state(job);
    }
    if (f->expected[step]) {
        return f->expected[step];
    }
    uint64_t state = initial_state(job);
    for (uint64_t round = 1; round <= step; round++) {
        uint64_t h = td_hash_u64(0xBA7C4, (uint64_t)job);
        for (uint64_t i = 0; i < s->p.batch; i++) {
            struct td_group g = nth_group(s, round, i);
            h = td_hash_u64(td_hash_u64(h, g.data_epoch), g.index);
            for (uint32_t part = 0; part < s->p.parts && !s->p.rows_job; part++) {
                h = td_hash_u64(h, rollout_crc(g, part, weights_of(state)));
            }
        }
        for (uint32_t k = 1; k <= UPDATES; k++) {
            state = state_after(state, h, k);
        }
    }
    f->expected[step] = state;
    return state;
}

static void check_parts(struct sim *s, struct job_facts *f, const td_entry *e, uint64_t step) {
    int job = job_index(s, f->id);
    const struct rollout_record *first = NULL;
    if (e->samples != SAMPLES || e->tokens != 10 * SAMPLES || e->n_parts != s->p.parts) {
        sim_violation(s, "group %" PRIu64 " is sealed with %" PRIu64 " samples in %zu parts",
                      e->group->index, e->samples, e->n_parts);
        return;
    }
    for (size_t i = 0; i < e->n_parts; i++) {
        const Tandem__Journal__LogPosition *at = e->parts[i];
        const struct partition *p = &s->rollout[job][at->partition % NP];
        if (at->partition >= NP || at->offset < 0 || at->offset >= (int64_t)p->count) {
            sim_violation(s, "a sealed record lies nowhere");
            return;
        }
        const struct rollout_record *r = &p->records[at->offset];
        first = first ? first : r;
        bool same = td_group_compare(r->group, td_group_of(e->group)) == 0 && r->part == i &&
                    r->crc == at->crc;
        if (!same) {
            sim_violation(s, "a sealed record is another one than its entry says");
        } else if (r->term != first->term || r->attempt != first->attempt ||
                   r->producer != first->producer) {
            sim_violation(s, "A12 parts of attempts %" PRIu64 " and %" PRIu64 " make one group",
                          first->attempt, r->attempt);
        } else if (r->version.step != step) {
            sim_violation(s, "I6 a record of step %" PRIu64 " is sealed at step %" PRIu64,
                          r->version.step, step);
        } else if (weights_of(f->ever[r->version.step][r->version.lineage % 32]) != r->weights) {
            sim_violation(s,
                          "I7 a record was made with other weights than (%" PRIu64 ", %" PRIu64
                          "), which it names",
                          r->version.lineage, r->version.step);
        }
    }
}

static void sealed(struct sim *s, struct job_facts *f, uint64_t round, td_entry *const *entries,
                   size_t n) {
    int job = job_index(s, f->id);
    for (size_t i = 0; i < n; i++) {
        struct td_group at = td_group_of(entries[i]->group);
        struct known_group *g = find_group(f, at);
        if (!g || g->round || g->dropped) {
            sim_violation(s, "I1 group (%" PRIu64 ", %" PRIu64 ") is sealed, but it %s",
                          at.data_epoch, at.index,
                          !g           ? "was never drawn"
                          : g->dropped ? "was dropped"
                                       : "is in another round");
            return;
        }
        g->round = round;
        bool expected = td_group_compare(nth_group(s, round, i), at) == 0;
        if (!f->tampered && (!expected || n != s->p.batch)) {
            sim_violation(s, "I13 round %" PRIu64 " takes other groups than an undisturbed run",
                          round);
        }
        if (!f->tampered && !s->p.rows_job) {
            check_parts(s, f, entries[i], round - 1);
        }
    }
    if (round < ROUNDS_MAX) {
        f->ref[round] = s->truth.last;
        f->batch[round] = batch_of(s, job, entries, n);
    }
}

static void check_seal(struct sim *s, struct job_facts *f, const Tandem__Journal__Seal *b) {
    for (size_t i = 0; i < b->n_draws; i++) {
        drawn(s, f, b->draws[i]);
    }
    if (b->round != f->sealed + 1 || f->sealed != f->head.step) {
        sim_violation(s, "I5 round %" PRIu64 " is sealed while %" PRIu64 " are, at step %" PRIu64,
                      b->round, f->sealed, f->head.step);
        return;
    }
    f->sealed = b->round;
    sealed(s, f, b->round, b->entries, b->n_entries);
}

static void check_reseal(struct sim *s, struct job_facts *f, const Tandem__Journal__Reseal *b) {
    if (b->round <= f->head.step || b->round > f->sealed) {
        sim_violation(s, "I5 round %" PRIu64 " is sealed anew, which is not open", b->round);
        return;
    }
    for (size_t i = 0; i < f->group_count; i++) {
        f->groups[i].round = f->groups[i].round == b->round ? 0 : f->groups[i].round;
    }
    sealed(s, f, b->round, b->entries, b->n_entries);
}

// ---- what was trained ----

void add_node(struct sim *s, uint64_t digest, uint64_t before, uint64_t batch, uint32_t k) {
    TD_GROW(s->nodes, s->node_cap, s->node_count + 1);
    s->nodes[s->node_count++] = (struct node){digest, before, batch, k};
}

static const struct node *find_node(const struct sim *s, uint64_t digest) {
    for (size_t i = s->node_count; i-- > 0;) {
        if (s->nodes[i].digest == digest) {
            return &s->nodes[i];
        }
    }
    return NULL;
}

static void check_history(struct sim *s, struct job_facts *f, uint64_t step, uint64_t state) {
    int job = job_index(s, f->id);
    if (step == 0) {
        if (state != initial_state(job)) {
            sim_violation(s, "I8 step 0 is not the initial state");
        }
        return;
    }
    uint64_t at = state;
    for (uint32_t k = UPDATES; k > 0; k--) {
        const struct node *n = find_node(s, at);
        if (!n || n->k != k || n->batch != f->batch[step]) {
            sim_violation(s,
                          "I1/I8 the weights of step %" PRIu64
                          " were not trained on what the journal says, each once (update %u)",
                          step, k);
            return;
        }
        at = n->before;
    }
    if (at != f->state[step - 1]) {
        sim_violation(s, "I8 step %" PRIu64 " was not trained from the committed step before it",
                      step);
    } else if (!s->p.nondeterministic && !f->tampered && state != expected_state(s, job, step)) {
        sim_violation(s, "I13 step %" PRIu64 " differs from an undisturbed run", step);
    }
}

static void check_commit(struct sim *s, struct job_facts *f, const Tandem__Journal__Commit *b) {
    struct td_version v = td_version_of(b->version);
    uint64_t next = f->has_head ? f->head.step + 1 : 0, state = b->roles[0]->state_digest;
    if (v.step != next || v.step > f->sealed || v.lineage != f->lineage || v.step >= ROUNDS_MAX) {
        sim_violation(
            s, "I5 COMMIT of (%" PRIu64 ", %" PRIu64 ") at step %" PRIu64 " of lineage %" PRIu64,
            v.lineage, v.step, f->head.step, f->lineage);
        return;
    }
    if (v.step > 0 && !td_pos_equal(td_pos_of(b->ref), f->ref[v.step])) {
        sim_violation(s, "I5 COMMIT of step %" PRIu64 " names a SEAL that is not in force", v.step);
    }
    if (b->roles[0]->generation != f->generation || !f->based) {
        sim_violation(s, "I3 COMMIT by generation %" PRIu64 ", current is %" PRIu64,
                      b->roles[0]->generation, f->generation);
    }
    uint64_t *ever = &f->ever[v.step][v.lineage % 32];
    if (*ever && *ever != state) {
        sim_violation(s, "I5 one version, two digests");
    }
    check_history(s, f, v.step, state);
    if (b->roles[0]->weight_digest != weights_of(state)) {
        sim_violation(s, "I8 the digests of a COMMIT do not belong together");
    }
    *ever = state;
    f->state[v.step] = state;
    f->has_head = true;
    f->head = v;
}

// The generation that disproves a COMMIT has been at that step with another state.
static bool disproved(const struct sim *s, const struct job_facts *f,
                      const Tandem__Journal__Fork *b) {
    for (size_t i = 0; i < s->finished_count; i++) {
        const struct finished *n = &s->finished[i];
        if (n->generation == b->generation && n->step == b->from + 1 &&
            n->state != f->state[n->step]) {
            return true;
        }
    }
    return false;
}

static void check_fork(struct sim *s, struct job_facts *f, const Tandem__Journal__Fork *b) {
    if (b->from < f->head.step && !disproved(s, f, b)) {
        sim_violation(s, "A5 FORK from step %" PRIu64 ", but nothing disproves the COMMIT after it",
                      b->from);
    }
    if (b->lineage != f->lineage + 1 || b->from >= f->head.step || b->generation != f->generation) {
        sim_violation(s, "I5 FORK to lineage %" PRIu64 " from %" PRIu64, b->lineage, b->from);
        return;
    }
    f->lineage = b->lineage;
    for (uint64_t lineage = 0; lineage < b->lineage && lineage < 32; lineage++) {
        if (f->ever[b->from][lineage] == f->state[b->from]) {
            f->head = (struct td_version){lineage, b->from};
        }
    }
    while (f->kept_count && f->kept[f->kept_count - 1].step > b->from) {
        f->kept_count--;
    }
}

// ---- gangs and checkpoints ----

static void check_gang(struct sim *s, const Tandem__Journal__Gang *b) {
    for (size_t i = 0; i < b->n_gangs; i++) {
        struct job_facts *f = facts_of(s, b->gangs[i]->job);
        if (b->generation <= f->generation) {
            sim_violation(s, "I10 generation %" PRIu64 " is used again", b->generation);
        }
        f->generation = b->generation;
        f->gang_ms = s->now;
        f->based = false;
        f->members |= 1u << (b->gangs[i]->members[0] - 1 - NC);
    }
}

static bool kept(const struct job_facts *f, uint64_t id) {
    for (size_t i = 0; i < f->kept_count; i++) {
        if (f->kept[i].id == id) {
            return true;
        }
    }
    return false;
}

static void check_restore(struct sim *s, struct job_facts *f, const Tandem__Journal__Restore *b) {
    if (b->generation != f->generation || f->based) {
        sim_violation(s, "I3 RESTORE for generation %" PRIu64 ", current is %" PRIu64,
                      b->generation, f->generation);
    }
    if (b->checkpoint && !kept(f, b->checkpoint)) {
        sim_violation(s, "I9 RESTORE of a checkpoint that is not kept");
    }
    f->based = true;
}

// A7: nothing that may still be sealed, or is sealed in a later round, lies below the positions.
static void check_low_water(struct sim *s, struct job_facts *f,
                            const Tandem__Journal__Checkpoint *b) {
    int job = job_index(s, f->id);
    for (size_t i = 0; i < b->n_positions && !f->tampered; i++) {
        uint32_t at = b->positions[i]->partition;
        for (int64_t o = s->rollout[job][at].start; o < b->positions[i]->offset; o++) {
            const struct rollout_record *r = &s->rollout[job][at].records[o];
            const struct known_group *g = find_group(f, r->group);
            bool needed = g && !g->dropped && (!g->round || g->round > b->version->step);
            if (needed && !r->gone && r->version.step <= f->head.step) {
                sim_violation(s,
                              "A7 a record of group %" PRIu64 " at %u:%" PRId64
                              " lies below the positions of a checkpoint of step %" PRIu64,
                              r->group.index, at, o, b->version->step);
                return;
            }
        }
    }
}

static void check_checkpoint(struct sim *s, struct job_facts *f,
                             const Tandem__Journal__Checkpoint *b) {
    const struct folder *folder = find_checkpoint(s, b->id);
    uint64_t step = b->version->step;
    if (!folder || !folder->whole || folder->gone) {
        sim_violation(s, "I9 a journaled checkpoint is not there");
    } else if (step > f->head.step || folder->state != f->state[step] || folder->step != step) {
        sim_violation(s, "I9 a journaled checkpoint holds no committed state (step %" PRIu64 ")",
                      step);
    } else if (b->generation != f->generation) {
        sim_violation(s, "I3 CHECKPOINT by generation %" PRIu64 ", current is %" PRIu64,
                      b->generation, f->generation);
    }
    check_low_water(s, f, b);
    if (f->kept_count == 2) {
        f->kept[0] = f->kept[1];
        f->kept_count = 1;
    }
    f->kept[f->kept_count].id = b->id;
    f->kept[f->kept_count++].step = step;
}

void check_folder_deletion(struct sim *s, const struct folder *folder) {
    for (int i = 0; i < NJ; i++) {
        if (kept(&s->jobs[i], folder->id)) {
            sim_violation(s, "I9 a kept checkpoint is deleted (step %" PRIu64 ")", folder->step);
        }
    }
}

// ---- ends ----

static bool may_fail(struct sim *s, const struct job_facts *f, const char *cause) {
    if (f->tampered || (s->lost_record && strstr(cause, "cannot be read again"))) {
        return true;
    }
    if (s->p.nondeterministic && !s->p.fork && strstr(cause, "redo of step")) {
        return true;
    }
    if (s->p.poison && strncmp(cause, "row ", 4) == 0) {
        return f == &s->jobs[0] && strtoull(cause + 4, NULL, 10) == s->p.batch;
    }
    if (s->p.poison && strstr(cause, "lost their state")) {
        return true; // where train workers are killed that often
    }
    bool corrupt = f->kept_count > 0 && strstr(cause, "no checkpoint is left");
    for (size_t i = 0; corrupt && i < f->kept_count; i++) {
        const struct folder *folder = find_checkpoint(s, f->kept[i].id);
        corrupt = folder && folder->corrupt;
    }
    return corrupt;
}

static void check_job_end(struct sim *s, struct job_facts *f, const Tandem__Journal__End *b) {
    f->seen_end = true;
    sim_trace(s, "job %" PRIu64 " ends: outcome %d %s", f->id, (int)b->outcome, b->cause);
    switch (b->outcome) {
    case TANDEM__JOURNAL__OUTCOME__SUCCEEDED:
        if (s->p.poison && f == &s->jobs[0] && !f->tampered) {
            sim_violation(s, "a job succeeds though no worker survives one of its groups");
        } else if (f->head.step != s->p.rounds || f->sealed != f->head.step) {
            sim_violation(s, "L1 END at step %" PRIu64 " of %" PRIu64, f->head.step, s->p.rounds);
        }
        break;
    case TANDEM__JOURNAL__OUTCOME__CANCELLED:
        if (!f->cancelled_by_user) {
            sim_violation(s, "a job is cancelled that nobody cancelled");
        }
        break;
    default:
        if (!may_fail(s, f, b->cause)) {
            sim_violation(s, "L1 a job fails without need: %s", b->cause);
        }
        break;
    }
}

static void check_job(struct sim *s, const Tandem__Journal__Job *b) {
    int i = b->request_id[0] - '0';
    if (s->jobs[i].id) {
        sim_violation(s, "I12 one request makes two jobs");
    }
    s->jobs[i].id = b->job;
    memcpy(s->jobs[i].spec, b->spec.data, sizeof s->jobs[i].spec);
    Tandem__Journal__DataIndex index;
    spec_index(s, s->jobs[i].spec, &index);
    if (s->p.assign && !s->jobs[i].asked) {
        sim_violation(s, "I12 a submission that was refused becomes a job");
    } else if (b->index->rows != index.rows || b->index->data_digest != index.data_digest) {
        sim_violation(s, "I12 a job has the index of other files than its own");
    }
}

static struct job_facts *facts_of_record(struct sim *s, const td_record *r) {
    switch (r->body_case) {
    case BODY(RESTORE):
        return facts_of(s, r->restore->job);
    case BODY(DRAW):
        return facts_of(s, r->draw->job);
    case BODY(DROP):
        return facts_of(s, r->drop->job);
    case BODY(SEAL):
        return facts_of(s, r->seal->job);
    case BODY(RESEAL):
        return facts_of(s, r->reseal->job);
    case BODY(COMMIT):
        return facts_of(s, r->commit->job);
    case BODY(CHECKPOINT):
        return facts_of(s, r->checkpoint->job);
    case BODY(FORK):
        return facts_of(s, r->fork->job);
    case BODY(END):
        return facts_of(s, r->end->job);
    default:
        return NULL;
    }
}

static void check_kept(struct sim *s, const struct job_facts *f) {
    const struct td_job_state *j = td_journal_job(&s->truth, f->id);
    bool same = j->kept_count == f->kept_count;
    for (size_t i = 0; same && i < f->kept_count; i++) {
        same = j->kept[i]->id == f->kept[i].id;
    }
    if (!same) {
        sim_violation(s, "I9 the state keeps other checkpoints than it should");
    }
}

static void check_body(struct sim *s, const td_record *r, struct job_facts *f) {
    switch (r->body_case) {
    case BODY(JOB):
        check_job(s, r->job);
        break;
    case BODY(GANG):
        check_gang(s, r->gang);
        break;
    case BODY(RESTORE):
        check_restore(s, f, r->restore);
        break;
    case BODY(DRAW):
        drawn(s, f, r->draw);
        break;
    case BODY(DROP):
        dropped(s, f, r->drop);
        break;
    case BODY(SEAL):
        check_seal(s, f, r->seal);
        fault_at_seal(s, r->seal);
        break;
    case BODY(RESEAL):
        check_reseal(s, f, r->reseal);
        break;
    case BODY(COMMIT):
        check_commit(s, f, r->commit);
        fault_at_commit(s, f->id);
        break;
    case BODY(CHECKPOINT):
        check_checkpoint(s, f, r->checkpoint);
        break;
    case BODY(FORK):
        check_fork(s, f, r->fork);
        break;
    case BODY(END):
        check_job_end(s, f, r->end);
        break;
    default:
        break;
    }
}

void check_accepted(struct sim *s, const td_record *r) {
    if (r->body_case == BODY(LEAD)) {
        s->lead_ms = s->now;
        if (r->term <= s->checked_term) {
            sim_violation(s, "I4 term %" PRIu64 " is used again", r->term);
        }
        s->checked_term = r->term;
        memset(s->leased, 0, sizeof s->leased);
        memset(s->leased_eval, 0, sizeof s->leased_eval);
        s->checked_owner = r->owner;
        return;
    }
    if (r->body_case != BODY(INIT) && r->term != s->checked_term) {
        sim_violation(s, "I3 a record of term %" PRIu64 " is accepted in term %" PRIu64, r->term,
                      s->checked_term);
    } else if (r->body_case != BODY(INIT) && r->owner != s->checked_owner) {
        sim_violation(s, "I2 a record of another owner is accepted");
    }
    struct job_facts *f = facts_of_record(s, r);
    if (f && f->seen_end) {
        sim_violation(s, "a %s of a job that has ended is accepted", td_record_name(r));
        return;
    }
    if (f && s->forging) {
        f->tampered = true;
    }
    check_body(s, r, f);
    if (f) {
        check_kept(s, f);
    }
    if (s->truth.trim.offset >= 0 &&
        (!s->state_start_count ||
         s->state_starts[s->state_start_count - 1] != s->truth.trim.offset)) {
        TD_GROW(s->state_starts, s->state_start_cap, s->state_start_count + 1);
        s->state_starts[s->state_start_count++] = s->truth.trim.offset;
    }
}
