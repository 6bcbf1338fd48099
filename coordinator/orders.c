// Orders: all that the leader wants of a member, whole each time. Sent as the answer to a report,
// and unasked when they changed.
#include "coordinator/coordinator_int.h"

#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"

// Everything below lives in one arena until the messages are copied.
struct draft {
    struct td_arena *arena;
    Tandem__Sync__Orders orders;
};

static void *take(struct draft *d, size_t size) {
    return td_arena_alloc(d->arena, size);
}

static Tandem__Journal__Version *draft_version(struct draft *d, struct td_version v) {
    Tandem__Journal__Version *m = take(d, sizeof *m);
    tandem__journal__version__init(m);
    m->lineage = v.lineage;
    m->step = v.step;
    return m;
}

static Tandem__Sync__Attempt *draft_attempt(struct draft *d, uint64_t term, uint64_t n) {
    Tandem__Sync__Attempt *m = take(d, sizeof *m);
    tandem__sync__attempt__init(m);
    m->term = term;
    m->n = n;
    return m;
}

static Tandem__Sync__Unit *draft_unit(struct draft *d, uint64_t job, const struct td_unit *u) {
    Tandem__Sync__Unit *m = take(d, sizeof *m);
    tandem__sync__unit__init(m);
    m->job = job;
    m->eval = u->eval;
    m->version = draft_version(d, u->version);
    m->attempt = draft_attempt(d, u->term, u->n);
    m->n_groups = u->group_count;
    m->groups = take(d, u->group_count * sizeof *m->groups);
    for (size_t i = 0; i < u->group_count; i++) {
        m->groups[i] = take(d, sizeof *m->groups[i]);
        tandem__journal__group__init(m->groups[i]);
        m->groups[i]->data_epoch = u->groups[i].data_epoch;
        m->groups[i]->index = u->groups[i].index;
    }
    return m;
}

// Borrowed from the report.
static void draft_sources(struct draft *d, const struct td_coordinator *c,
                          const struct td_job_state *j) {
    const struct td_member *m = td_co_trainer(c, j);
    const Tandem__Sync__TrainReport *t = m ? m->report->train : NULL;
    if (t && t->job == j->job->job) {
        d->orders.n_target_sources = t->n_weights;
        d->orders.target_sources = t->weights;
    }
}

static void draft_rollout(struct draft *d, struct td_coordinator *c, const struct td_member *m) {
    const struct td_job_state *j = td_co_job_of_member(c, m);
    if (!j) {
        return;
    }
    Tandem__Sync__Orders *o = &d->orders;
    struct td_job *job = td_co_job(c, j->job->job);
    struct td_version target;
    o->job = job->id;
    o->has_target = td_co_target(c, j, &target, &o->target_digest);
    o->target = o->has_target ? draft_version(d, target) : NULL;
    draft_sources(d, c, j);
    size_t count = 0;
    for (size_t i = 0; i < job->unit_count; i++) {
        count += job->units[i].member == m->id;
    }
    o->units = take(d, count * sizeof *o->units);
    for (size_t i = 0; i < job->unit_count; i++) {
        if (job->units[i].member == m->id) {
            o->units[o->n_units++] = draft_unit(d, job->id, &job->units[i]);
        }
    }
}

static void draft_train(struct draft *d, const struct td_coordinator *c,
                        const struct td_member *m) {
    const struct td_job_state *j = td_co_gang_job(c, m->id);
    struct td_job *job = j ? td_co_job(c, j->job->job) : NULL;
    if (!job || !job->plan_known) {
        return;
    }
    Tandem__Sync__Orders *o = &d->orders;
    o->job = job->id;
    o->step_closed = td_co_step_closed(job, j);
    o->closed_step = j->has_head ? j->head.step : 0;
    o->closed_lineage = j->has_head ? j->head.lineage : 0;
    if (!o->step_closed || !td_co_eval_done(job, j)) {
        return;
    }
    o->eval = take(d, job->eval_count * sizeof *o->eval);
    for (size_t i = 0; i < job->eval_count; i++) {
        Tandem__Sync__EvalScore *score = take(d, sizeof *score);
        tandem__sync__eval_score__init(score);
        score->index = i;
        score->n_score = job->eval[i].count;
        score->score = job->eval[i].score;
        o->eval[o->n_eval++] = score;
    }
}

static void draft_serve(struct draft *d, const struct td_coordinator *c,
                        const struct td_member *m) {
    Tandem__Sync__Orders *o = &d->orders;
    o->index = take(d, c->submit_count * sizeof *o->index);
    for (size_t i = 0; i < c->submit_count; i++) {
        if (c->submits[i].asked == m->id && !c->submits[i].job->index) {
            Tandem__Sync__Index *index = take(d, sizeof *index);
            tandem__sync__index__init(index);
            index->request_id = c->submits[i].request_id;
            index->spec = c->submits[i].job->spec;
            index->attempt = draft_attempt(d, c->submits[i].term, c->submits[i].n);
            o->index[o->n_index++] = index;
        }
    }
    const struct td_job_state *j = td_journal_job(&c->follow.state, m->serves);
    if (m->serves && j) {
        o->serve = take(d, sizeof *o->serve);
        tandem__sync__serve__init(o->serve);
        o->serve->job = m->serves;
        o->serve->spec = j->job->spec;
        o->serve->rollout_log = j->job->rollout_log;
        o->serve->index = j->job->index;
    }
}

static void send_orders(struct td_coordinator *c, struct td_member *m, struct td_arena *arena) {
    struct draft d = {.arena = arena};
    m->due = false;
    tandem__sync__orders__init(&d.orders);
    d.orders.journal_id = c->follow.state.journal_id;
    d.orders.term = c->follow.state.term;
    if (c->config.assign) {
        draft_serve(&d, c, m);
    }
    if (m->report->rollout) {
        draft_rollout(&d, c, m);
    }
    if (m->report->train) {
        draft_train(&d, c, m);
    }
    struct td_buf packed = {0};
    size_t n = tandem__sync__orders__get_packed_size(&d.orders);
    packed.len = tandem__sync__orders__pack(&d.orders, td_buf_room(&packed, n));
    uint64_t digest = td_digest64(1, packed.data, packed.len);
    if (digest != m->orders_digest) {
        m->orders_digest = digest;
        d.orders.report = m->report->report;
        struct td_coordinator_effect *e = td_co_push(c, TD_CO_ORDERS);
        e->member = m->id;
        e->orders = td_message_dup(&d.orders);
    }
    td_buf_fini(&packed);
}

void td_co_send_changed_orders(struct td_coordinator *c) {
    if (td_co_cut_off(c)) {
        return;
    }
    struct td_arena *arena = td_arena_new();
    for (size_t i = 0; i < c->member_count; i++) {
        if (td_co_alive(c, &c->members[i]) && (c->due_all || c->members[i].due)) {
            send_orders(c, &c->members[i], arena);
        }
    }
    td_arena_free(arena);
    c->due_all = false;
}
