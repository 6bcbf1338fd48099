// The leader's side of the world: its records, and whole scenes. See world.h.
#include "tests/unit/train/world.h"

#include <inttypes.h>
#include <stdio.h>

#include "controllers/common/proto.h"
#include "lib/base/check.h"
#include "lib/base/rng.h"

uint64_t world_batch_of(const struct td_round_state *r) {
    uint64_t h = r->round;
    for (size_t i = 0; i < r->entry_count; i++) {
        h = td_hash_u64(h, r->entries[i]->group->index);
        h = td_hash_u64(h, r->entries[i]->row_digest);
    }
    return h;
}

static void append(struct world *w, td_record *r) {
    td_assert_op(w->journal_count, <, WORLD_RECORDS_MAX);
    size_t i = w->journal_count++;
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    r->prev = &prev;
    r->owner = 5;
    td_journal_header(&w->lead, r);
    if (r->body_case == TANDEM__JOURNAL__RECORD__BODY_INIT) {
        r->journal_id = 0xab;
    }
    w->journal[i] = (struct td_buf){0};
    w->positions[i].offset = (int64_t)i;
    td_record_encode(r, &w->journal[i], &w->positions[i].crc);
    char why[256] = "";
    enum td_verdict v = td_journal_apply(&w->lead, r, w->positions[i], why);
    if (v != TD_ACCEPTED) {
        fail_msg("%s: verdict %d, %s", td_record_name(r), v, why);
    }
}

#define RECORD(field, CASE)                                                                        \
    td_record r = TANDEM__JOURNAL__RECORD__INIT;                                                   \
    r.body_case = TANDEM__JOURNAL__RECORD__BODY_##CASE;                                            \
    r.field = &m

const struct td_job_state *world_job(const struct world *w) {
    return td_journal_job(&w->lead, WORLD_JOB);
}

const Tandem__Sync__TrainReport *world_report(const struct world *w) {
    assert_non_null(w->report);
    assert_non_null(w->report->train);
    return w->report->train;
}

void world_add_job(struct world *w) {
    {
        Tandem__Journal__Init m = TANDEM__JOURNAL__INIT__INIT;
        RECORD(init, INIT);
        append(w, &r);
    }
    {
        Tandem__Journal__Lead m = TANDEM__JOURNAL__LEAD__INIT;
        RECORD(lead, LEAD);
        append(w, &r);
    }
    Tandem__Journal__DataIndex index = TANDEM__JOURNAL__DATA_INDEX__INIT;
    index.rows = 4096;
    Tandem__Journal__Job m = TANDEM__JOURNAL__JOB__INIT;
    m.job = WORLD_JOB;
    m.request_id = "request";
    m.spec = (ProtobufCBinaryData){4, (uint8_t *)"spec"};
    m.open_max = 64;
    m.index = &index;
    m.rollout_log = WORLD_LOG;
    RECORD(job, JOB);
    append(w, &r);
}

void world_gang(struct world *w, uint64_t member) {
    Tandem__Journal__GangSpec spec = TANDEM__JOURNAL__GANG_SPEC__INIT, *specs[] = {&spec};
    spec.job = WORLD_JOB;
    spec.role = "actor";
    spec.ranks = w->workers;
    spec.members = &member;
    spec.n_members = 1;
    char build[32];
    snprintf(build, sizeof build, "build-%" PRIu64, w->lead.generation + 1);
    spec.build = build;
    Tandem__Journal__Gang m = TANDEM__JOURNAL__GANG__INIT;
    m.gangs = specs;
    m.n_gangs = 1;
    m.generation = w->lead.generation + 1;
    RECORD(gang, GANG);
    append(w, &r);
}

void world_restore(struct world *w, uint64_t checkpoint) {
    Tandem__Journal__Restore m = TANDEM__JOURNAL__RESTORE__INIT;
    m.job = WORLD_JOB;
    m.generation = w->lead.generation;
    m.checkpoint = checkpoint;
    RECORD(restore, RESTORE);
    append(w, &r);
}

void world_draw(struct world *w, uint64_t n) {
    Tandem__Journal__Draw m = TANDEM__JOURNAL__DRAW__INIT;
    m.job = WORLD_JOB;
    m.from = world_job(w)->cursor.index;
    m.to = m.from + n;
    RECORD(draw, DRAW);
    append(w, &r);
}

void world_drop(struct world *w, uint64_t index) {
    Tandem__Journal__Group group = TANDEM__JOURNAL__GROUP__INIT, *groups[] = {&group};
    group.index = index;
    Tandem__Journal__DropReason reason = TANDEM__JOURNAL__DROP_REASON__DROP_FILTERED;
    Tandem__Journal__Drop m = TANDEM__JOURNAL__DROP__INIT;
    m.job = WORLD_JOB;
    m.groups = groups;
    m.reasons = &reason;
    m.n_groups = m.n_reasons = 1;
    RECORD(drop, DROP);
    append(w, &r);
}

void world_seal(struct world *w) {
    const Tandem__Sync__TrainReport *t = world_report(w);
    td_entry *entries[WORLD_BATCH];
    size_t n = 0;
    for (size_t i = 0; i < t->n_arrived && n < WORLD_BATCH; i++) {
        struct td_group g = td_proto_to_group(t->arrived[i]->entry->group);
        bool fresh = t->arrived[i]->entry->min_step == world_job(w)->head.step;
        if (fresh && td_job_is_open(world_job(w), g)) {
            entries[n++] = t->arrived[i]->entry;
        }
    }
    assert_int_equal(n, WORLD_BATCH);
    Tandem__Journal__Version parent = TANDEM__JOURNAL__VERSION__INIT;
    parent.lineage = world_job(w)->head.lineage;
    parent.step = world_job(w)->head.step;
    Tandem__Journal__Seal m = TANDEM__JOURNAL__SEAL__INIT;
    m.job = WORLD_JOB;
    m.round = world_job(w)->sealed + 1;
    m.parent = &parent;
    m.entries = entries;
    m.n_entries = n;
    RECORD(seal, SEAL);
    append(w, &r);
}

// The copy in the log of a group that can be read, as the report or the seal has it.
static td_entry *readable(struct world *w, td_entry *sealed) {
    const Tandem__Sync__TrainReport *t = world_report(w);
    for (size_t i = 0; i < t->n_arrived; i++) {
        if (t->arrived[i]->entry->group->index == sealed->group->index) {
            return t->arrived[i]->entry;
        }
    }
    return sealed;
}

void world_reseal(struct world *w, uint64_t round) {
    const struct td_round_state *sealed = td_job_round(world_job(w), round);
    td_entry *entries[WORLD_BATCH];
    for (size_t i = 0; i < sealed->entry_count; i++) {
        entries[i] = td_proto_dup(readable(w, sealed->entries[i]));
    }
    Tandem__Journal__Position ref = TANDEM__JOURNAL__POSITION__INIT;
    ref.offset = sealed->ref.offset;
    ref.crc = sealed->ref.crc;
    Tandem__Journal__Reseal m = TANDEM__JOURNAL__RESEAL__INIT;
    m.job = WORLD_JOB;
    m.round = round;
    m.old_ref = &ref;
    m.entries = entries;
    m.n_entries = sealed->entry_count;
    RECORD(reseal, RESEAL);
    append(w, &r);
    for (size_t i = 0; i < m.n_entries; i++) {
        td_proto_free(entries[i]);
    }
}

void world_commit(struct world *w) {
    const Tandem__Sync__TrainReport *t = world_report(w);
    assert_non_null(t->finished);
    Tandem__Journal__RoleCommit role = TANDEM__JOURNAL__ROLE_COMMIT__INIT, *roles[] = {&role};
    role.role = "actor";
    role.gang = t->gang;
    role.generation = t->generation;
    role.weight_digest = t->finished->weight_digest;
    role.state_digest = t->finished->state_digest;
    role.build = td_job_gang(world_job(w), "actor")->spec->build;
    Tandem__Journal__Commit m = TANDEM__JOURNAL__COMMIT__INIT;
    m.job = WORLD_JOB;
    m.ref = t->finished->ref;
    m.version = t->finished->version;
    m.roles = roles;
    m.n_roles = 1;
    RECORD(commit, COMMIT);
    uint64_t step = m.version->step;
    td_assert_op(step, <, 256);
    w->batches[step] = step ? world_batch_of(td_job_round(world_job(w), step)) : 0;
    append(w, &r);
}

void world_checkpoint(struct world *w) {
    Tandem__Journal__Checkpoint *m = world_report(w)->checkpoint;
    assert_non_null(m);
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    r.body_case = TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT;
    r.checkpoint = m;
    append(w, &r);
}

void world_fork(struct world *w, uint64_t from) {
    const struct td_round_state *round = td_job_round(world_job(w), from + 1);
    Tandem__Journal__Position at = TANDEM__JOURNAL__POSITION__INIT;
    at.offset = round->commit.offset;
    at.crc = round->commit.crc;
    Tandem__Journal__Fork m = TANDEM__JOURNAL__FORK__INIT;
    m.job = WORLD_JOB;
    m.lineage = world_report(w)->lineage + 1;
    m.from = from;
    m.generation = w->lead.generation;
    m.disproved = &at;
    m.reason = TANDEM__JOURNAL__FORK_REASON__FORK_MISMATCH;
    RECORD(fork, FORK);
    append(w, &r);
}

void world_end(struct world *w) {
    Tandem__Journal__End m = TANDEM__JOURNAL__END__INIT;
    m.job = WORLD_JOB;
    m.outcome = TANDEM__JOURNAL__OUTCOME__SUCCEEDED;
    m.cause = "";
    RECORD(end, END);
    append(w, &r);
}

void world_close_step(struct world *w) {
    Tandem__Sync__Orders o = TANDEM__SYNC__ORDERS__INIT;
    o.journal_id = w->lead.journal_id;
    o.term = w->lead.term;
    o.job = WORLD_JOB;
    o.step_closed = true;
    o.closed_step = world_job(w)->head.step;
    o.closed_lineage = world_job(w)->head.lineage;
    struct td_trainc_event e = {.kind = TD_TC_ORDERS, .orders = &o};
    world_event(w, &e);
}

// ---- the rollout log, and whole scenes ----

void world_publish_part(struct world *w, const struct world_record *r) {
    td_assert_op(w->rollout_count, <, WORLD_RECORDS_MAX);
    struct world_record *q = &w->rollout[w->rollout_count];
    *q = *r;
    q->offset = w->next_offset[q->partition]++;
    q->crc = 100 + (uint32_t)w->rollout_count++;
}

void world_publish(struct world *w, uint64_t index, uint64_t step, uint64_t attempt) {
    const struct world_record r = {.group = {0, index},
                                   .step = step,
                                   .attempt = attempt,
                                   .producer = 3,
                                   .partition = (uint32_t)(index % 2),
                                   .parts = 1};
    world_publish_part(w, &r);
}

void world_next_round(struct world *w) {
    uint64_t from = world_job(w)->cursor.index;
    world_draw(w, WORLD_BATCH);
    for (uint64_t i = 0; i < WORLD_BATCH; i++) {
        world_publish(w, from + i, world_job(w)->head.step, from + i + 1);
    }
    world_run(w);
    world_seal(w);
}

void world_to_commit0(struct world *w) {
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    world_restore(w, 0);
    world_run(w);
    world_commit(w);
    world_run(w);
}

void world_to_step0(struct world *w) {
    world_to_commit0(w);
    world_close_step(w);
    world_run(w);
}

void world_round(struct world *w) {
    world_next_round(w);
    world_run(w);
    world_commit(w);
    world_run(w);
    if (world_report(w)->checkpoint) {
        world_checkpoint(w);
    }
    world_close_step(w);
    world_run(w);
}
