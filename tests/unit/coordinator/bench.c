// See bench.h.
#include "tests/unit/coordinator/bench.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"

#define NEW(b, var, package, name)                                                                 \
    var = bench_make(b, sizeof *var);                                                              \
    tandem__##package##__##name##__init(var)

void *bench_make(struct bench *b, size_t size) {
    return td_arena_alloc(b->arena, size);
}

void bench_init(struct bench *b) {
    *b = (struct bench){.arena = td_arena_new(), .trimmed = -1};
    td_journal_state_init(&b->truth);
    b->plan = (struct td_job_plan){
        .train_batch_size = 2, .total_steps = 3, .unit_groups = 1, .lease_ms = 1000};
}

void bench_fini(struct bench *b) {
    for (int i = 0; i < COORDINATORS; i++) {
        td_coordinator_free(b->c[i]);
    }
    for (size_t i = 0; i < 512; i++) {
        if (b->orders[i]) {
            tandem__sync__orders__free_unpacked(b->orders[i], NULL);
        }
    }
    td_journal_state_fini(&b->truth);
    td_arena_free(b->arena);
}

static bool plan_of(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out) {
    const struct bench *b = user;
    *out = b->plan;
    return job->spec.len == 4 && memcmp(job->spec.data, "spec", 4) == 0 && !b->refuse_spec;
}

static uint64_t row_digest(void *user, uint64_t job, struct td_group row) {
    (void)user;
    return job * 1000 + row.data_epoch * 100 + row.index;
}

static void append(struct bench *b, const uint8_t *bytes, size_t n) {
    td_assert_op(b->log_count, <, 256);
    size_t i = b->log_count++;
    b->log[i].bytes = bench_make(b, n);
    memcpy(b->log[i].bytes, bytes, n);
    b->log[i].n = n;
    b->log[i].pos = (struct td_pos){(int64_t)i, td_crc32c(0, bytes, n)};
    b->hidden = false;
    td_record *r;
    td_assert(td_record_decode(bytes, n, &r, NULL) == TD_OK);
    td_journal_apply(&b->truth, r, b->log[i].pos, NULL);
    tandem__journal__record__free_unpacked(r, NULL);
}

static size_t visible(const struct bench *b) {
    return b->log_count - b->hidden;
}

static void read_on(struct bench *b, int i) {
    while (b->c[i] && !b->cut[i] && b->read[i] < visible(b)) {
        size_t at = b->read[i]++;
        struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_RECORD,
                                         .pos = b->log[at].pos,
                                         .bytes = b->log[at].bytes,
                                         .n = b->log[at].n};
        bench_event(b, i, &e);
    }
}

static void take(struct bench *b, int i, struct td_coordinator_effect *x) {
    struct td_coordinator_event e = {.kind = TD_CO_APPENDED, .ok = true};
    switch (x->kind) {
    case TD_CO_APPEND:
        if (!b->cut[i]) {
            append(b, x->bytes, x->n);
            e.pos = b->log[b->log_count - 1].pos;
            bench_event(b, i, &e);
        }
        break;
    case TD_CO_FETCH_END:
        e = (struct td_coordinator_event){.kind = TD_CO_JOURNAL_END, .offset = (int64_t)visible(b)};
        if (!b->cut[i]) {
            bench_event(b, i, &e);
        }
        break;
    case TD_CO_ORDERS: {
        Tandem__Sync__Orders **slot = &b->orders[x->member % 512];
        if (*slot) {
            tandem__sync__orders__free_unpacked(*slot, NULL);
        }
        *slot = x->orders;
        x->orders = NULL;
        b->orders_count++;
        break;
    }
    case TD_CO_JOB_ACCEPTED:
        b->accepted = x->job;
        break;
    case TD_CO_JOB_REFUSED:
        snprintf(b->refused, sizeof b->refused, "%s", x->cause);
        break;
    case TD_CO_JOB_ENDED:
        b->ended_job = x->job;
        b->outcome = x->outcome;
        snprintf(b->cause, sizeof b->cause, "%s", x->cause);
        break;
    case TD_CO_TRIM_JOURNAL:
        b->trimmed = x->offset;
        break;
    case TD_CO_TRIM_ROLLOUT:
        b->rollout_trims++;
        break;
    default:
        break;
    }
}

void bench_event(struct bench *b, int i, struct td_coordinator_event *e) {
    struct td_coordinator_effects out = {0};
    td_coordinator_step(b->c[i], e, b->now, &out);
    for (size_t k = 0; k < out.count; k++) {
        take(b, i, &out.items[k]);
    }
    td_coordinator_effects_fini(&out);
    for (int k = 0; k < COORDINATORS; k++) {
        read_on(b, k);
    }
}

void bench_start(struct bench *b, int i, bool at_once) {
    struct td_coordinator_config config = {
        .owner = 0xC0 + (uint64_t)i,
        .create_journal_id = 0x1D,
        .lead_at_once = at_once,
        .assign = b->assign,
        .takeover_ms = 1000,
        .beat_ms = 200,
        .member_timeout_ms = 1500,
        .state_every = 40,
        .state_chunk_bytes = 300,
        .plan_of = plan_of,
        .row_digest = row_digest,
        .user = b,
    };
    b->c[i] = td_coordinator_new(&config);
    struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_START};
    bench_event(b, i, &e);
}

void bench_pass(struct bench *b, int64_t ms) {
    for (int64_t end = b->now + ms; b->now < end;) {
        b->now += 50;
        for (int i = 0; i < COORDINATORS; i++) {
            struct td_coordinator_event e = {.kind = TD_CO_TICK};
            if (b->c[i]) {
                bench_event(b, i, &e);
            }
        }
    }
}

Tandem__Journal__DataIndex *bench_index(struct bench *b, uint64_t rows) {
    Tandem__Journal__DataIndex *index;
    NEW(b, index, journal, data_index);
    index->rows = rows;
    index->data_digest = 0xDA;
    return index;
}

void bench_submit(struct bench *b, int i, const char *request, uint64_t rows, uint64_t open_max) {
    struct td_submit submit = {.request_id = request,
                               .spec = "spec",
                               .spec_bytes = 4,
                               .index = rows ? bench_index(b, rows) : NULL,
                               .open_max = open_max,
                               .rollout_log = b->plan.rows_job ? 0 : LOG};
    struct td_coordinator_event e = {.kind = TD_CO_SUBMIT, .submit = &submit};
    b->refused[0] = 0;
    bench_event(b, i, &e);
}

const char *bench_names(struct bench *b, size_t from) {
    struct td_buf text = {0};
    struct td_journal_state s;
    td_journal_state_init(&s);
    for (size_t i = 0; i < b->log_count; i++) {
        td_record *r;
        td_assert(td_record_decode(b->log[i].bytes, b->log[i].n, &r, NULL) == TD_OK);
        bool accepted = td_journal_apply(&s, r, b->log[i].pos, NULL) == TD_ACCEPTED;
        if (accepted && i >= from && r->body_case != TANDEM__JOURNAL__RECORD__BODY_BEAT) {
            td_buf_printf(&text, "%s%s", text.len ? " " : "", td_record_name(r));
        }
        tandem__journal__record__free_unpacked(r, NULL);
    }
    td_journal_state_fini(&s);
    char *copy = td_arena_strndup(b->arena, td_buf_str(&text), text.len);
    td_buf_fini(&text);
    return copy;
}

const struct td_job_state *bench_job(const struct bench *b) {
    return td_journal_job(&b->truth, JOB);
}

static uint64_t rows_of(const struct bench *b) {
    const struct td_job_state *j = bench_job(b);
    return j ? j->job->index->rows : 0;
}

Tandem__Sync__Report *bench_train(struct bench *b) {
    Tandem__Sync__Report *r;
    NEW(b, r, sync, report);
    r->member = TRAIN;
    r->term = b->truth.term;
    r->kind = TANDEM__SYNC__MEMBER_KIND__TRAIN;
    r->report = 1;
    r->build = (char *)"now";
    r->workers = r->workers_ready = 2;
    r->index = bench_index(b, rows_of(b));
    const struct td_job_state *j = bench_job(b);
    const struct td_gang_state *g = j ? td_job_gang(j, "actor") : NULL;
    if (!g || g->spec->members[0] != TRAIN) {
        return r;
    }
    NEW(b, r->train, sync, train_report);
    r->train->job = JOB;
    r->train->generation = g->generation;
    r->train->lineage = j->lineage;
    r->train->scanned = r->train->loaded = r->train->saved = true;
    r->train->metrics_known = true;
    r->train->has_metrics = j->has_head;
    r->train->metrics_step = j->head.step;
    r->train->arrived = bench_make(b, 16 * sizeof *r->train->arrived);
    return r;
}

void bench_add_finished(struct bench *b, Tandem__Sync__Report *r) {
    const struct td_job_state *j = bench_job(b);
    uint64_t step = j->has_head ? j->head.step + 1 : 0;
    Tandem__Sync__Finished *f;
    NEW(b, f, sync, finished);
    NEW(b, f->version, journal, version);
    f->version->lineage = j->lineage;
    f->version->step = step;
    f->state_digest = 0xEE00 + step;
    f->weight_digest = 0xDD00 + step;
    const struct td_round_state *round = step ? td_job_round(j, step) : NULL;
    if (round) {
        NEW(b, f->ref, journal, position);
        f->ref->offset = round->ref.offset;
        f->ref->crc = round->ref.crc;
    }
    r->train->finished = f;
}

void bench_add_arrived(struct bench *b, Tandem__Sync__Report *r, struct td_group group,
                       int64_t offset) {
    Tandem__Sync__Arrived *a;
    NEW(b, a, sync, arrived);
    NEW(b, a->entry, journal, entry);
    NEW(b, a->entry->group, journal, group);
    a->entry->group->data_epoch = group.data_epoch;
    a->entry->group->index = group.index;
    a->entry->log = LOG;
    a->entry->min_step = a->entry->max_step = bench_job(b)->head.step;
    a->entry->n_parts = 1;
    a->entry->parts = bench_make(b, sizeof *a->entry->parts);
    NEW(b, a->entry->parts[0], journal, log_position);
    a->entry->parts[0]->offset = offset;
    r->train->arrived[r->train->n_arrived++] = a;
}

void bench_add_checkpoint(struct bench *b, Tandem__Sync__Report *r, uint64_t id) {
    const struct td_job_state *j = bench_job(b);
    Tandem__Journal__Checkpoint *c;
    NEW(b, c, journal, checkpoint);
    NEW(b, c->version, journal, version);
    c->job = JOB;
    c->id = id;
    c->version->lineage = j->head.lineage;
    c->version->step = j->head.step;
    c->generation = r->train->generation;
    c->state_digest = 0xEE00 + j->head.step;
    c->folder = td_arena_strndup(b->arena, id & 1 ? "odd" : "even", 4);
    r->train->checkpoint = c;
}

Tandem__Sync__Report *bench_roll(struct bench *b, uint64_t member, uint32_t capacity) {
    const struct td_job_state *j = bench_job(b);
    Tandem__Sync__Report *r;
    NEW(b, r, sync, report);
    r->member = member;
    r->kind = TANDEM__SYNC__MEMBER_KIND__ROLLOUT;
    r->report = 1;
    r->index = bench_index(b, rows_of(b));
    NEW(b, r->rollout, sync, rollout_report);
    r->rollout->job = JOB;
    r->rollout->capacity = capacity;
    r->rollout->units = bench_make(b, 16 * sizeof *r->rollout->units);
    r->rollout->versions = bench_make(b, sizeof *r->rollout->versions);
    const struct td_round_state *head = j && j->has_head ? td_job_round(j, j->head.step) : NULL;
    if (head) {
        NEW(b, r->rollout->versions[0], sync, held_version);
        NEW(b, r->rollout->versions[0]->version, journal, version);
        r->rollout->versions[0]->version->lineage = j->head.lineage;
        r->rollout->versions[0]->version->step = j->head.step;
        r->rollout->versions[0]->digest = head->roles[0]->weight_digest;
        r->rollout->n_versions = 1;
    }
    return r;
}

void bench_report(struct bench *b, int i, Tandem__Sync__Report *r) {
    struct td_coordinator_event e = {.kind = TD_CO_REPORT, .report = r};
    bench_event(b, i, &e);
}
