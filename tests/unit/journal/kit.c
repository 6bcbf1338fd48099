// See kit.h.
#include "tests/unit/journal/kit.h"

#include <string.h>

#include "lib/base/check.h"

void kit_init(struct kit *k) {
    *k = (struct kit){.arena = td_arena_new()};
    td_journal_state_init(&k->state);
}

void kit_fini(struct kit *k) {
    td_journal_state_fini(&k->state);
    td_arena_free(k->arena);
    td_free(k->log);
}

static void *make(struct kit *k, size_t size) {
    return td_arena_alloc(k->arena, size);
}

#define NEW(k, var, name)                                                                          \
    var = make(k, sizeof *var);                                                                    \
    tandem__journal__##name##__init(var)

static td_record *record(struct kit *k, int body) {
    td_record *r;
    NEW(k, r, record);
    r->body_case = body;
    NEW(k, r->prev, position);
    return r;
}

enum td_verdict kit_read(const struct kit *k, size_t i, struct td_journal_state *s, char *why) {
    td_record *r;
    td_assert(td_record_decode(k->log[i].bytes, k->log[i].n, &r, NULL) == TD_OK);
    enum td_verdict verdict = td_journal_apply(s, r, k->log[i].pos, why);
    tandem__journal__record__free_unpacked(r, NULL);
    return verdict;
}

enum td_verdict kit_put_raw(struct kit *k, td_record *r) {
    struct td_buf buf = {0};
    struct kit_record at = {.pos.offset = (int64_t)k->log_count};
    td_record_encode(r, &buf, &at.pos.crc);
    at.n = buf.len;
    at.bytes = make(k, buf.len);
    memcpy(at.bytes, buf.data, buf.len);
    td_buf_fini(&buf);
    TD_GROW(k->log, k->log_cap, k->log_count + 1);
    k->log[k->log_count++] = at;
    return kit_read(k, k->log_count - 1, &k->state, k->why);
}

enum td_verdict kit_put(struct kit *k, td_record *r) {
    td_journal_header(&k->state, r);
    r->owner = KIT_ME;
    return kit_put_raw(k, r);
}

td_record *kit_init_record(struct kit *k, uint64_t journal_id, uint64_t term_floor) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_INIT);
    NEW(k, r->init, init);
    r->init->term_floor = term_floor;
    r->format = TD_JOURNAL_FORMAT;
    r->journal_id = journal_id;
    r->prev->offset = -1;
    return r;
}

td_record *kit_lead(struct kit *k) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_LEAD);
    NEW(k, r->lead, lead);
    return r;
}

td_record *kit_beat(struct kit *k) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_BEAT);
    NEW(k, r->beat, beat);
    return r;
}

td_record *kit_job(struct kit *k, uint64_t job, const char *request) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_JOB);
    NEW(k, r->job, job);
    r->job->job = job;
    r->job->request_id = (char *)request;
    r->job->open_max = 6;
    r->job->rollout_log = KIT_LOG;
    NEW(k, r->job->index, data_index);
    r->job->index->rows = KIT_ROWS;
    return r;
}

td_record *kit_gang(struct kit *k, uint64_t generation) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_GANG);
    NEW(k, r->gang, gang);
    r->gang->generation = generation;
    r->gang->n_gangs = 1;
    r->gang->gangs = make(k, 4 * sizeof *r->gang->gangs);
    NEW(k, r->gang->gangs[0], gang_spec);
    Tandem__Journal__GangSpec *spec = r->gang->gangs[0];
    spec->job = KIT_JOB;
    spec->role = (char *)"actor";
    spec->ranks = 2;
    spec->n_members = 1;
    spec->members = make(k, sizeof *spec->members);
    spec->members[0] = 0x3E;
    return r;
}

td_record *kit_restore(struct kit *k, uint64_t generation, uint64_t checkpoint) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_RESTORE);
    NEW(k, r->restore, restore);
    r->restore->job = KIT_JOB;
    r->restore->generation = generation;
    r->restore->checkpoint = checkpoint;
    return r;
}

td_record *kit_draw(struct kit *k, uint64_t epoch, uint64_t from, uint64_t to) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_DRAW);
    NEW(k, r->draw, draw);
    r->draw->job = KIT_JOB;
    r->draw->data_epoch = epoch;
    r->draw->from = from;
    r->draw->to = to;
    return r;
}

td_record *kit_drop(struct kit *k, uint64_t epoch, uint64_t from, uint64_t to) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_DROP);
    NEW(k, r->drop, drop);
    r->drop->job = KIT_JOB;
    size_t n = to - from;
    r->drop->n_groups = r->drop->n_reasons = n;
    r->drop->groups = make(k, n * sizeof *r->drop->groups);
    r->drop->reasons = make(k, n * sizeof *r->drop->reasons);
    for (size_t i = 0; i < n; i++) {
        NEW(k, r->drop->groups[i], group);
        r->drop->groups[i]->data_epoch = epoch;
        r->drop->groups[i]->index = from + i;
        r->drop->reasons[i] = TANDEM__JOURNAL__DROP_REASON__DROP_FILTERED;
    }
    return r;
}

td_entry *kit_entry(struct kit *k, uint64_t epoch, uint64_t index, uint64_t step) {
    td_entry *e;
    NEW(k, e, entry);
    NEW(k, e->group, group);
    e->group->data_epoch = epoch;
    e->group->index = index;
    e->log = KIT_LOG;
    e->n_parts = 1;
    e->parts = make(k, sizeof *e->parts);
    NEW(k, e->parts[0], log_position);
    e->parts[0]->offset = (int64_t)(100 + index);
    e->min_step = e->max_step = step;
    e->samples = 2;
    e->tokens = 10;
    return e;
}

static td_entry **entries(struct kit *k, uint64_t from, uint64_t to, uint64_t step) {
    td_entry **list = make(k, (to - from) * sizeof *list);
    for (uint64_t i = from; i < to; i++) {
        list[i - from] = kit_entry(k, 0, i, step);
    }
    return list;
}

static Tandem__Journal__Version *version(struct kit *k, uint64_t lineage, uint64_t step) {
    Tandem__Journal__Version *v;
    NEW(k, v, version);
    v->lineage = lineage;
    v->step = step;
    return v;
}

static Tandem__Journal__Position *position(struct kit *k, struct td_pos pos) {
    Tandem__Journal__Position *p;
    NEW(k, p, position);
    p->offset = pos.offset;
    p->crc = pos.crc;
    return p;
}

static const struct td_job_state *job_of(const struct kit *k) {
    const struct td_job_state *j = td_journal_job(&k->state, KIT_JOB);
    td_assert(j);
    return j;
}

td_record *kit_seal(struct kit *k, uint64_t round, uint64_t from, uint64_t to, uint64_t step) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_SEAL);
    NEW(k, r->seal, seal);
    r->seal->job = KIT_JOB;
    r->seal->round = round;
    r->seal->parent = version(k, job_of(k)->head.lineage, job_of(k)->head.step);
    r->seal->n_entries = to - from;
    r->seal->entries = entries(k, from, to, step);
    r->seal->draws = make(k, 4 * sizeof *r->seal->draws);
    return r;
}

td_record *kit_reseal(struct kit *k, uint64_t round, uint64_t from, uint64_t to) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_RESEAL);
    NEW(k, r->reseal, reseal);
    r->reseal->job = KIT_JOB;
    r->reseal->round = round;
    const struct td_round_state *old = td_job_round(job_of(k), round);
    r->reseal->old_ref = position(k, old ? old->ref : (struct td_pos){.offset = -1});
    r->reseal->n_entries = to - from;
    r->reseal->entries = entries(k, from, to, round - 1);
    return r;
}

td_record *kit_commit(struct kit *k, uint64_t step) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_COMMIT);
    NEW(k, r->commit, commit);
    const struct td_job_state *j = job_of(k);
    r->commit->job = KIT_JOB;
    r->commit->version = version(k, j->lineage, step);
    const struct td_round_state *round = td_job_round(j, step);
    if (step > 0 && round) {
        r->commit->ref = position(k, round->ref);
    }
    r->commit->n_roles = 1;
    r->commit->roles = make(k, 2 * sizeof *r->commit->roles);
    NEW(k, r->commit->roles[0], role_commit);
    r->commit->roles[0]->role = (char *)"actor";
    r->commit->roles[0]->generation = j->gang_count ? j->gangs[0].generation : 0;
    r->commit->roles[0]->weight_digest = 0xDD00 + step;
    r->commit->roles[0]->state_digest = 0xEE00 + step;
    return r;
}

td_record *kit_checkpoint(struct kit *k, uint64_t id, uint64_t step) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT);
    NEW(k, r->checkpoint, checkpoint);
    const struct td_job_state *j = job_of(k);
    const struct td_round_state *round = td_job_round(j, step);
    r->checkpoint->job = KIT_JOB;
    r->checkpoint->id = id;
    r->checkpoint->version = version(k, round ? round->version.lineage : 0, step);
    r->checkpoint->generation = j->gangs[0].generation;
    r->checkpoint->state_digest = 0xEE00 + step;
    r->checkpoint->folder = (char *)"here";
    r->checkpoint->n_positions = 1;
    r->checkpoint->positions = make(k, 2 * sizeof *r->checkpoint->positions);
    NEW(k, r->checkpoint->positions[0], log_position);
    r->checkpoint->positions[0]->offset = (int64_t)(100 + 2 * step);
    return r;
}

td_record *kit_fork(struct kit *k, uint64_t from) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_FORK);
    NEW(k, r->fork, fork);
    const struct td_job_state *j = job_of(k);
    const struct td_round_state *round = td_job_round(j, from + 1);
    r->fork->job = KIT_JOB;
    r->fork->lineage = j->lineage + 1;
    r->fork->from = from;
    r->fork->generation = j->gangs[0].generation;
    r->fork->disproved = position(k, round ? round->commit : (struct td_pos){.offset = -1});
    r->fork->reason = TANDEM__JOURNAL__FORK_REASON__FORK_MISMATCH;
    return r;
}

td_record *kit_end(struct kit *k, enum _Tandem__Journal__Outcome outcome) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_END);
    NEW(k, r->end, end);
    r->end->job = KIT_JOB;
    r->end->outcome = outcome;
    return r;
}

td_record *kit_state(struct kit *k, uint32_t part, uint32_t parts, const void *bytes, size_t n) {
    td_record *r = record(k, TANDEM__JOURNAL__RECORD__BODY_STATE);
    NEW(k, r->state, state);
    r->state->part = part;
    r->state->parts = parts;
    r->state->chunk = (ProtobufCBinaryData){n, (uint8_t *)bytes};
    return r;
}

static td_record *step_to(struct kit *k, enum kit_stage stage) {
    switch (stage) {
    case KIT_LED:
        return kit_lead(k);
    case KIT_JOBBED:
        return kit_job(k, KIT_JOB, "first");
    case KIT_GANGED:
        return kit_gang(k, 1);
    case KIT_BASED:
        return kit_restore(k, 1, 0);
    case KIT_STARTED:
        return kit_commit(k, 0);
    case KIT_DRAWN:
        return kit_draw(k, 0, 0, 6);
    case KIT_SEALED:
        return kit_seal(k, 1, 0, 2, 0);
    case KIT_STEP1:
        return kit_commit(k, 1);
    case KIT_KEPT1:
        return kit_checkpoint(k, 0xC1, 1);
    case KIT_STEP2:
        td_assert(kit_put(k, kit_seal(k, 2, 2, 4, 1)) == TD_ACCEPTED);
        return kit_commit(k, 2);
    case KIT_KEPT2:
        return kit_checkpoint(k, 0xC2, 2);
    case KIT_STEP3:
        td_assert(kit_put(k, kit_seal(k, 3, 4, 6, 2)) == TD_ACCEPTED);
        return kit_commit(k, 3);
    case KIT_FORKED:
        return kit_fork(k, 2);
    }
    return NULL;
}

void kit_go(struct kit *k, enum kit_stage stage) {
    td_assert(kit_put_raw(k, kit_init_record(k, 0x1D, 0)) == TD_ACCEPTED);
    for (enum kit_stage s = KIT_LED; s <= stage; s++) {
        enum td_verdict verdict = kit_put(k, step_to(k, s));
        if (verdict != TD_ACCEPTED) {
            td_assert_op(verdict, ==, (int)s * 1000); // prints the stage
        }
    }
}
