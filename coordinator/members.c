// Members: who reported in this term, and what. A report is a whole state, so the last one replaces
// the one before it; lost, late and repeated ones need no care.
#include "coordinator/coordinator_int.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

void td_member_fini(struct td_member *m) {
    if (m->report) {
        tandem__sync__report__free_unpacked(m->report, NULL);
    }
    *m = (struct td_member){0};
}

struct td_member *td_co_member(const struct td_coordinator *c, uint64_t id) {
    for (size_t i = 0; i < c->member_count; i++) {
        if (c->members[i].id == id) {
            return &c->members[i];
        }
    }
    return NULL;
}

bool td_co_alive(const struct td_coordinator *c, const struct td_member *m) {
    return m->report && c->now_ms - m->heard_ms < c->config.member_timeout_ms;
}

bool td_co_fits(const struct td_member *m, const struct td_job_state *j) {
    const Tandem__Journal__DataIndex *a = m->report->index, *b = j->job->index;
    return a && !m->report->trouble[0] &&
           (!m->report->serves || m->report->serves == j->job->job) && a->rows == b->rows &&
           a->data_digest == b->data_digest && a->tokenizer_digest == b->tokenizer_digest &&
           a->template_digest == b->template_digest && a->model_digest == b->model_digest;
}

// A new term of this process: what the last one knew may be old.
void td_co_forget_reports(struct td_coordinator *c) {
    for (size_t i = 0; i < c->member_count; i++) {
        td_member_fini(&c->members[i]);
    }
    c->member_count = 0;
    for (size_t i = 0; i < c->job_count; i++) {
        const struct td_job_state *j = td_journal_job(&c->follow.state, c->jobs[i]->id);
        td_co_drop_units(c->jobs[i]);
        c->jobs[i]->eval_started = false;
        c->jobs[i]->cursor_at_lead = j ? j->cursor : (struct td_group){0};
    }
}

void td_co_paused(struct td_coordinator *c, int64_t gap_ms) {
    c->reached_ms += gap_ms;
    c->led_ms += gap_ms;
    for (size_t i = 0; i < c->member_count; i++) {
        c->members[i].heard_ms += gap_ms;
    }
    for (size_t i = 0; i < c->job_count; i++) {
        for (size_t k = 0; k < c->jobs[i]->unit_count; k++) {
            struct td_unit *u = &c->jobs[i]->units[k];
            u->done_ms += u->done_ms >= 0 ? gap_ms : 0;
        }
    }
}

// Room for one more: the longest silent member that is not alive makes it.
static struct td_member *add_member(struct td_coordinator *c, uint64_t id) {
    if (c->member_count == TD_MEMBERS_MAX) {
        struct td_member *oldest = &c->members[0];
        for (size_t i = 1; i < c->member_count; i++) {
            oldest = c->members[i].heard_ms < oldest->heard_ms ? &c->members[i] : oldest;
        }
        if (td_co_alive(c, oldest)) {
            return NULL;
        }
        td_member_fini(oldest);
        *oldest = c->members[--c->member_count];
    }
    TD_GROW(c->members, c->member_cap, c->member_count + 1);
    struct td_member *m = &c->members[c->member_count++];
    *m = (struct td_member){.id = id};
    return m;
}

static int by_group(const void *a, const void *b) {
    const Tandem__Sync__Arrived *const *x = a, *const *y = b;
    const td_entry *e = (*x)->entry, *f = (*y)->entry;
    return td_group_compare(td_group_of(e ? e->group : NULL), td_group_of(f ? f->group : NULL));
}

// Nothing in it but what its units and its versions are at.
static bool only_units(const struct td_coordinator *c, const struct td_member *m,
                       const Tandem__Sync__Report *new) {
    const Tandem__Sync__Report *old = m->report;
    return old && old->rollout && new->rollout &&td_co_alive(c, m) &&
           old->rollout->job == new->rollout->job && old->serves == new->serves &&
           !old->trouble[0] && !new->trouble[0] && new->n_indexed == 0 && m->unfit == 0;
}

// What rollout members are told of a trainer.
static bool tells_others(const struct td_coordinator *c, const struct td_member *m,
                         const Tandem__Sync__Report *new) {
    const Tandem__Sync__TrainReport *a = m->report ? m->report->train : NULL, *b = new->train;
    bool same = a && b && td_co_alive(c, m) && a->job == b->job && a->n_weights == b->n_weights;
    for (size_t i = 0; same && i < a->n_weights; i++) {
        same = strcmp(a->weights[i], b->weights[i]) == 0;
    }
    return !same;
}

struct td_member *td_co_report(struct td_coordinator *c, const Tandem__Sync__Report *report) {
    const struct td_journal_state *s = &c->follow.state;
    if (!td_co_leads(c) || !c->caught_up ||
        (report->journal_id && report->journal_id != s->journal_id) || report->term > s->term ||
        report->member == 0) {
        return NULL;
    }
    struct td_member *m = td_co_member(c, report->member);
    m = m ? m : add_member(c, report->member);
    if (!m) {
        return NULL;
    }
    bool little = only_units(c, m, report);
    c->due_all = c->due_all || (!little && tells_others(c, m, report));
    if (m->report) {
        tandem__sync__report__free_unpacked(m->report, NULL);
    }
    m->report = td_message_dup(report);
    if (m->report->train &&
        m->report->train
            ->n_arrived) { // for rounds.c, which looks for every open group at every step
        qsort(m->report->train->arrived, m->report->train->n_arrived, sizeof(void *), by_group);
    }
    td_co_sync_jobs(c);
    m->heard_ms = c->reached_ms = c->now_ms;
    m->report_count++;
    td_co_served(c, m);
    td_co_indexed(c, report);
    if (m->report->rollout) {
        bool adopted = td_co_adopt(c, m), scored = td_co_scores(c, m);
        c->due_all = c->due_all || scored;
        little = little && !adopted && !scored && !td_co_any_failed(m->report->rollout);
    }
    c->dirty = c->dirty || !little;
    m->due = true;
    m->orders_digest = 0; // it gets an answer even when nothing changed
    return little ? m : NULL;
}
