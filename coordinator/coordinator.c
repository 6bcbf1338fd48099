// The coordinator machine: events in, effects out. See coordinator.h.
#include "coordinator/coordinator_int.h"

#include "lib/base/check.h"
#include "lib/base/mem.h"

enum { PASS_MS = 100 }; // what only time changes is looked at so often

struct td_coordinator *td_coordinator_new(const struct td_coordinator_config *config) {
    td_assert(config->owner != 0 && config->plan_of);
    struct td_coordinator *c = td_alloc(sizeof *c);
    c->config = *config;
    if (c->config.state_chunk_bytes == 0) {
        c->config.state_chunk_bytes = 8 << 20;
    }
    c->silent_ms = c->lead_offset = -1;
    c->trimmed = -1;
    td_follower_init(&c->follow);
    return c;
}

void td_coordinator_free(struct td_coordinator *c) {
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->member_count; i++) {
        td_member_fini(&c->members[i]);
    }
    for (size_t i = 0; i < c->job_count; i++) {
        td_job_free_soft(c->jobs[i]);
    }
    for (size_t i = 0; i < c->submit_count; i++) {
        td_free(c->submits[i].request_id);
        tandem__journal__job__free_unpacked(c->submits[i].job, NULL);
    }
    td_free(c->members);
    td_free(c->jobs);
    td_free(c->submits);
    td_buf_fini(&c->state);
    td_buf_fini(&c->sent);
    td_follower_fini(&c->follow);
    td_free(c);
}

struct td_coordinator_effect *td_co_push(struct td_coordinator *c,
                                         enum td_coordinator_effect_kind kind) {
    struct td_coordinator_effects *out = c->out;
    TD_GROW(out->items, out->cap, out->count + 1);
    struct td_coordinator_effect *e = &out->items[out->count++];
    *e = (struct td_coordinator_effect){.kind = kind};
    return e;
}

void td_coordinator_effects_fini(struct td_coordinator_effects *out) {
    for (size_t i = 0; i < out->count; i++) {
        struct td_coordinator_effect *e = &out->items[i];
        td_free(e->bytes);
        td_free(e->text);
        td_free(e->cause);
        td_free(e->positions);
        if (e->orders) {
            tandem__sync__orders__free_unpacked(e->orders, NULL);
        }
    }
    td_free(out->items);
    *out = (struct td_coordinator_effects){0};
}

void td_co_want(struct td_coordinator *c, enum td_follow_want want) {
    switch (want) {
    case TD_WANT_NOTHING:
        break;
    case TD_WANT_END:
        td_co_push(c, TD_CO_FETCH_END);
        break;
    case TD_WANT_RESET:
        td_co_push(c, TD_CO_JOURNAL_RESET);
        break;
    case TD_WANT_STOP:
        c->stopped = true;
        td_co_push(c, TD_CO_STOP)->text = td_strdup(c->follow.cause);
        break;
    }
}

static void cancel(struct td_coordinator *c, uint64_t id) {
    td_co_sync_jobs(c);
    struct td_job *job = td_co_job(c, id);
    if (job) {
        job->cancel = true;
    }
}

// The member whose report changes nothing but what it is told; NULL: all is to be decided anew.
static struct td_member *take(struct td_coordinator *c, const struct td_coordinator_event *e) {
    struct td_member *reporter = NULL;
    switch (e->kind) {
    case TD_CO_JOURNAL_START:
        td_co_want(c, td_follower_start(&c->follow, e->offset));
        c->quiet_ms = c->now_ms;
        c->state_base = e->offset;
        c->caught_up = false;
        break;
    case TD_CO_JOURNAL_RECORD:
        td_co_record(c, e);
        break;
    case TD_CO_JOURNAL_END:
        td_co_end(c, e->offset);
        break;
    case TD_CO_APPENDED:
        td_co_appended(c, e);
        break;
    case TD_CO_REPORT:
        reporter = td_co_report(c, e->report);
        break;
    case TD_CO_SUBMIT:
        td_co_submit(c, e->submit);
        break;
    case TD_CO_CANCEL:
        cancel(c, e->job);
        break;
    case TD_CO_TICK:
        c->dirty = c->due_all = true;
        break;
    }
    return reporter;
}

static void decide_and_place(struct td_coordinator *c) {
    if (td_follower_ready(&c->follow)) {
        c->ready_ms = c->end_ms;
        c->caught_up = true;
        td_co_sync_jobs(c);
        td_co_submissions(c);
        td_co_lead_first(c);
        td_co_decide(c);
        td_co_lead_last(c);
    }
    if (!c->stopped && c->dirty && c->caught_up && td_co_leads(c)) {
        // Not while a record is on its way: a trainer that has read its SEAL reports the groups as
        // open and arrived no longer, and they would be generated again.
        bool settled = td_co_may_append(c);
        td_co_assign(c); // before the first orders of a term: none would mean to give its job up
        if (settled) {
            td_co_place(c);
        }
        td_co_send_changed_orders(c);
        c->dirty = !settled;
    }
    c->passed_ms = c->now_ms;
}

// Most reports of a large cluster change so little that looking at all of it would be too much.
static void answer(struct td_coordinator *c, struct td_member *reporter) {
    if (!c->dirty && td_co_may_append(c)) {
        td_co_place_left(c, reporter);
    }
    td_co_send_changed_orders(c);
}

void td_coordinator_step(struct td_coordinator *c, const struct td_coordinator_event *event,
                         int64_t now_ms, struct td_coordinator_effects *out) {
    if (c->stopped) {
        return;
    }
    int64_t gap_ms = now_ms - c->now_ms;
    bool paused = gap_ms >= c->config.takeover_ms;
    c->now_ms = now_ms;
    c->out = out;
    if (paused) {
        td_co_paused(c, gap_ms);
    }
    if (paused && c->follow.started && td_co_leads(c)) {
        td_co_want(c, td_follower_refresh(&c->follow)); // another may lead since
    }
    struct td_member *reporter = take(c, event);
    if (reporter && now_ms - c->passed_ms < PASS_MS) {
        answer(c, reporter);
    } else if (!c->stopped) {
        c->dirty = c->dirty || reporter;
        decide_and_place(c);
    }
    c->out = NULL;
}

bool td_coordinator_leads(const struct td_coordinator *c) {
    return td_co_leads(c);
}

const struct td_journal_state *td_coordinator_state(const struct td_coordinator *c) {
    return &c->follow.state;
}
