// See replay.h.
#include "tests/unit/coordinator/replay.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

static bool plan_of(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out) {
    const struct replay *b = user;
    *out = b->plan;
    return job->spec.len > 0;
}

static uint64_t row_digest(void *user, uint64_t job, struct td_group row) {
    (void)user;
    return job * 1000 + row.index;
}

void replay_init(struct replay *b) {
    *b = (struct replay){.rows = 16, .rollout_log = REPLAY_LOG, .now_ms = 1000};
    b->plan = (struct td_job_plan){
        .train_batch_size = 4, .total_steps = 3, .unit_groups = 2, .lease_ms = REPLAY_LEASE_MS};
    b->config = (struct td_coordinator_config){.owner = REPLAY_OWNER,
                                               .create_journal_id = 0x70,
                                               .takeover_ms = REPLAY_TAKEOVER_MS,
                                               .beat_ms = 250,
                                               .member_timeout_ms = REPLAY_MEMBER_TIMEOUT_MS,
                                               .plan_of = plan_of,
                                               .row_digest = row_digest,
                                               .user = b};
    b->machine = td_coordinator_new(&b->config);
    b->reset = true;
}

void replay_restart(struct replay *b) {
    td_coordinator_free(b->machine);
    b->config.owner++;
    b->machine = td_coordinator_new(&b->config);
    b->reset = true;
    b->ends = b->appended = 0;
}

void replay_fini(struct replay *b) {
    td_coordinator_free(b->machine);
    for (size_t i = 0; i < b->count; i++) {
        td_buf_fini(&b->log[i]);
    }
    for (size_t i = 0; i < REPLAY_MEMBERS_MAX; i++) {
        if (b->orders[i]) {
            tandem__sync__orders__free_unpacked(b->orders[i], NULL);
        }
    }
}

static void put(struct replay *b, const void *bytes, size_t n) {
    td_assert_op(b->count, <, REPLAY_RECORDS_MAX);
    td_buf_put(&b->log[b->count], bytes, n);
    td_record *record;
    td_assert(td_record_decode(bytes, n, &record, NULL) == TD_OK);
    struct td_buf again = {0};
    td_record_encode(record, &again, &b->pos[b->count].crc);
    td_buf_fini(&again);
    tandem__journal__record__free_unpacked(record, NULL);
    b->pos[b->count].offset = (int64_t)b->count;
    b->count++;
}

static void execute(struct replay *b, const struct td_coordinator_effect *e) {
    switch (e->kind) {
    case TD_CO_FETCH_END:
        b->ends++;
        break;
    case TD_CO_JOURNAL_RESET:
        b->reset = true;
        break;
    case TD_CO_STOP:
        snprintf(b->stopped, sizeof b->stopped, "%s", e->text);
        break;
    case TD_CO_APPEND:
        put(b, e->bytes, e->n);
        b->appended++;
        break;
    case TD_CO_ORDERS:
        td_assert_op(e->member, <, REPLAY_MEMBERS_MAX);
        if (b->orders[e->member]) {
            tandem__sync__orders__free_unpacked(b->orders[e->member], NULL);
        }
        b->orders[e->member] = td_message_dup(e->orders);
        b->orders_count++;
        break;
    case TD_CO_JOB_ACCEPTED:
        b->accepted_job = e->job;
        break;
    case TD_CO_JOB_REFUSED:
        snprintf(b->refused, sizeof b->refused, "%s", e->cause);
        break;
    case TD_CO_JOB_ENDED:
        b->ended = true;
        b->outcome = e->outcome;
        snprintf(b->cause, sizeof b->cause, "%s", e->cause);
        break;
    default:
        break;
    }
}

void replay_event(struct replay *b, const struct td_coordinator_event *event) {
    struct td_coordinator_effects effects = {0};
    td_coordinator_step(b->machine, event, b->now_ms, &effects);
    for (size_t i = 0; i < effects.count; i++) {
        execute(b, &effects.items[i]);
    }
    td_coordinator_effects_fini(&effects);
}

static bool deliver_one(struct replay *b) {
    struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_START};
    if (b->reset) {
        b->reset = false;
        b->read = 0;
    } else if (b->read < b->count) {
        e.kind = TD_CO_JOURNAL_RECORD;
        e.pos = b->pos[b->read];
        e.bytes = b->log[b->read].data;
        e.n = b->log[b->read].len;
        b->read++;
    } else if (b->appended) {
        e.kind = TD_CO_APPENDED;
        e.ok = true;
        b->appended--;
    } else if (b->ends) {
        e.kind = TD_CO_JOURNAL_END;
        e.offset = (int64_t)b->count;
        b->ends--;
    } else {
        return false;
    }
    replay_event(b, &e);
    return true;
}

void replay_deliver(struct replay *b) {
    size_t start = b->count;
    while (deliver_one(b)) {
        td_assert_op(b->count, <, start + 64); // it appends without an end
    }
}

void replay_tick(struct replay *b, int64_t ms) {
    b->now_ms += ms;
    replay_event(b, &(struct td_coordinator_event){.kind = TD_CO_TICK});
    replay_deliver(b);
}

static Tandem__Journal__DataIndex index_of(const struct replay *b) {
    Tandem__Journal__DataIndex index = TANDEM__JOURNAL__DATA_INDEX__INIT;
    index.rows = b->rows;
    index.data_digest = 0xDA;
    return index;
}

void replay_submit(struct replay *b, const char *request_id, size_t spec_bytes) {
    Tandem__Journal__DataIndex index = index_of(b);
    uint8_t *spec = td_alloc(spec_bytes);
    struct td_submit submit = {.request_id = request_id,
                               .spec = spec,
                               .spec_bytes = spec_bytes,
                               .index = &index,
                               .open_max = 1 << 16,
                               .rollout_log = b->rollout_log};
    replay_event(b, &(struct td_coordinator_event){.kind = TD_CO_SUBMIT, .submit = &submit});
    td_free(spec);
    replay_deliver(b);
}

const struct td_job_state *replay_job(const struct replay *b, uint64_t job) {
    return td_journal_job(td_coordinator_state(b->machine), job);
}

struct td_job_view replay_view(const struct replay *b, uint64_t job) {
    struct td_job_view view = {0};
    td_assert(td_coordinator_job_view(b->machine, job, &view));
    return view;
}

// ---- members ----

static void *take(struct td_arena *a, size_t size) {
    return td_arena_alloc(a, size);
}

static td_entry *entry_of(struct td_arena *a, struct td_group group, uint64_t step) {
    td_entry *e = take(a, sizeof *e);
    tandem__journal__entry__init(e);
    e->group = take(a, sizeof *e->group);
    tandem__journal__group__init(e->group);
    e->group->data_epoch = group.data_epoch;
    e->group->index = group.index;
    e->log = REPLAY_LOG;
    e->parts = take(a, sizeof(void *));
    e->parts[0] = take(a, sizeof *e->parts[0]);
    tandem__journal__log_position__init(e->parts[0]);
    e->parts[0]->offset = (int64_t)(group.data_epoch * 1000 + group.index);
    e->n_parts = 1;
    e->min_step = e->max_step = step;
    e->samples = 1;
    return e;
}

static void say_arrived(struct td_arena *a, const struct td_job_state *j,
                        const struct replay_train *say, Tandem__Sync__TrainReport *t) {
    size_t n = say->arrived < j->open_count ? say->arrived : j->open_count;
    size_t times = say->backwards ? 2 : 1;
    t->arrived = take(a, times * n * sizeof(void *));
    for (size_t i = 0; i < times * n; i++) {
        size_t at = say->backwards ? n - 1 - i / 2 : i;
        t->arrived[i] = take(a, sizeof *t->arrived[i]);
        tandem__sync__arrived__init(t->arrived[i]);
        t->arrived[i]->entry = entry_of(a, j->open[at], j->head.step);
        t->n_arrived++;
    }
}

static void say_round(struct td_arena *a, const struct td_job_state *j,
                      const struct replay_train *say, Tandem__Sync__TrainReport *t) {
    uint64_t step = j->has_head ? j->head.step + 1 : 0;
    const struct td_round_state *r = step ? td_job_round(j, step) : NULL;
    Tandem__Journal__Position *ref = take(a, sizeof *ref);
    tandem__journal__position__init(ref);
    if (r) {
        ref->offset = r->ref.offset;
        ref->crc = r->ref.crc;
    }
    if (say->finished && (r || step == 0)) {
        t->finished = take(a, sizeof *t->finished);
        tandem__sync__finished__init(t->finished);
        t->finished->ref = ref;
        t->finished->version = take(a, sizeof *t->finished->version);
        tandem__journal__version__init(t->finished->version);
        t->finished->version->lineage = j->lineage;
        t->finished->version->step = step;
        t->finished->weight_digest = 0x3000 + step;
        t->finished->state_digest = 0x5000 + step;
    }
    if (say->missing && r) {
        t->missing_round = step;
        t->missing_ref = ref;
        t->missing_cause = (char *)"row (0, 1) has digest 5, the journal says 6";
        t->n_missing = say->missing;
        t->missing = take(a, say->missing * sizeof *t->missing);
        for (size_t i = 0; i < say->missing; i++) {
            t->missing[i] = (uint32_t)i;
        }
    }
}

static void give(struct replay *b, Tandem__Sync__Report *r) {
    Tandem__Journal__DataIndex index = index_of(b);
    const struct td_journal_state *s = td_coordinator_state(b->machine);
    r->journal_id = s->journal_id;
    r->term = s->term;
    r->report = (uint64_t)b->now_ms;
    r->workers = r->workers_ready = 1;
    r->index = &index;
    replay_event(b, &(struct td_coordinator_event){.kind = TD_CO_REPORT, .report = r});
    replay_deliver(b);
}

void replay_report_train(struct replay *b, uint64_t member, const struct replay_train *say) {
    struct td_arena *a = td_arena_new();
    Tandem__Sync__Report r = TANDEM__SYNC__REPORT__INIT;
    Tandem__Sync__TrainReport t = TANDEM__SYNC__TRAIN_REPORT__INIT;
    r.member = member;
    r.kind = TANDEM__SYNC__MEMBER_KIND__TRAIN;
    const struct td_job_state *j = replay_job(b, say->job ? say->job : 1);
    const struct td_gang_state *g = j ? td_job_gang(j, "actor") : NULL;
    if (g && !say->idle && g->spec->members[0] == member) {
        r.train = &t;
        t.job = j->job->job;
        t.generation = g->generation;
        t.lineage = j->lineage;
        t.lost = say->lost;
        t.scanned = !say->unscanned;
        t.metrics_known = true;
        t.has_metrics = t.saved = say->closed;
        t.metrics_step = say->closed ? j->head.step : 0;
        t.waits_for = (char *)"";
        say_arrived(a, j, say, &t);
        say_round(a, j, say, &t);
    }
    give(b, &r);
    td_arena_free(a);
}

void replay_report_rollout(struct replay *b, uint64_t member, uint32_t capacity) {
    Tandem__Sync__Report r = TANDEM__SYNC__REPORT__INIT;
    Tandem__Sync__RolloutReport roll = TANDEM__SYNC__ROLLOUT_REPORT__INIT;
    Tandem__Sync__HeldVersion held = TANDEM__SYNC__HELD_VERSION__INIT, *versions[] = {&held};
    Tandem__Journal__Version version = TANDEM__JOURNAL__VERSION__INIT;
    const struct td_job_state *j = replay_job(b, 1);
    r.member = member;
    r.kind = TANDEM__SYNC__MEMBER_KIND__ROLLOUT;
    r.rollout = &roll;
    roll.job = 1;
    roll.capacity = capacity;
    if (j && j->has_head) {
        version.lineage = j->head.lineage;
        version.step = j->head.step;
        held.version = &version;
        held.digest = 0x3000 + j->head.step;
        roll.versions = versions;
        roll.n_versions = 1;
    }
    give(b, &r);
}

void replay_put_foreign(struct replay *b, td_record *record, uint64_t owner) {
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    struct td_buf bytes = {0};
    record->prev = &prev;
    record->owner = owner;
    td_journal_header(td_coordinator_state(b->machine), record);
    td_record_encode(record, &bytes, NULL);
    put(b, bytes.data, bytes.len);
    td_buf_fini(&bytes);
}

void replay_start(struct replay *b) {
    replay_deliver(b);
    replay_tick(b, REPLAY_TAKEOVER_MS);
    replay_submit(b, "first", 4);
    replay_report_train(b, 1, &(struct replay_train){0});
    replay_report_train(b, 1, &(struct replay_train){0});
    replay_report_train(b, 1, &(struct replay_train){.finished = true});
    replay_report_train(b, 1, &(struct replay_train){.closed = true});
}
