// Checks that look at processes and logs rather than at one record: readers agree, trimming loses
// nothing, orders are those of a leader, and in the end everything is as it should be.
#include <inttypes.h>

#include "tests/sim/sim.h"

void check_reader(struct sim *s, int proc, const struct td_journal_state *state, int64_t offset) {
    if (state->based && td_journal_digest(state) != s->journal[offset].digest) {
        sim_violation(s, "%s has another state than the journal at %" PRId64, proc_name(proc),
                      offset);
    }
}

void check_trim(struct sim *s, int64_t offset) {
    if (offset <= s->journal_start) {
        return;
    }
    bool accepted = false;
    for (size_t i = 0; i < s->state_start_count; i++) {
        accepted = accepted || s->state_starts[i] == offset;
    }
    if (!accepted) {
        sim_violation(s, "A9 the journal is trimmed at %" PRId64 ", which is no accepted STATE",
                      offset);
        return;
    }
    struct td_journal_state fresh;
    td_journal_state_init(&fresh);
    fresh.start = offset;
    for (int64_t i = offset; i < (int64_t)s->journal_count && !s->violated; i++) {
        td_record *r;
        if (td_record_decode(s->journal[i].bytes, s->journal[i].n, &r, NULL)) {
            break;
        }
        td_journal_apply(&fresh, r, s->journal[i].pos, NULL);
        tandem__journal__record__free_unpacked(r, NULL);
    }
    if (!s->violated && td_journal_digest(&fresh) != td_journal_digest(&s->truth)) {
        sim_violation(s, "A9 a reader that starts at %" PRId64 " gets another state", offset);
    }
    td_journal_state_fini(&fresh);
}

// The group lies whole in the log, long enough for a trainer at work to have found it.
static bool lies_there(const struct sim *s, int job, struct td_group group, uint64_t step,
                       int64_t before_ms) {
    const struct job_facts *f = &s->jobs[job];
    const struct td_job_state *j = td_journal_job(&s->truth, f->id);
    const Tandem__Journal__Checkpoint *newest =
        j && j->kept_count ? j->kept[j->kept_count - 1] : NULL;
    for (uint32_t p = 0; p < NP; p++) {
        int64_t low = s->rollout[job][p].start;
        for (size_t i = 0; newest && i < newest->n_positions; i++) {
            low = newest->positions[i]->partition == p ? newest->positions[i]->offset : low;
        }
        for (int64_t o = low; o < (int64_t)s->rollout[job][p].count; o++) {
            const struct rollout_record *r = &s->rollout[job][p].records[o];
            if (!r->gone && r->parts == 1 && r->version.step == step && r->landed_ms < before_ms &&
                td_group_compare(r->group, group) == 0) {
                return true;
            }
        }
    }
    return false;
}

// A8: nothing that was published is generated again, as long as the trainer that follows the log
// has been at work undisturbed.
static void check_lease(struct sim *s, const Tandem__Sync__Unit *u, uint64_t step) {
    enum { CALM_MS = 800 };
    int job = job_index(s, u->job);
    const struct td_job_state *j = job >= 0 ? td_journal_job(&s->truth, u->job) : NULL;
    const struct td_gang_state *g = j ? td_job_gang(j, "actor") : NULL;
    if (!g || s->p.stale_percent || s->p.loss_percent || s->p.partition || s->p.slow ||
        s->p.outage || s->p.pause || s->jobs[job].tampered) {
        return;
    }
    const struct trainer *t = &s->trainers[g->spec->members[0] - 1 - NC];
    if (!t->machine || !t->scanned || s->now < t->disturbed_ms + CALM_MS) {
        return;
    }
    for (size_t i = 0; i < u->n_groups; i++) {
        struct td_group group = td_group_of(u->groups[i]);
        if (td_job_is_open(j, group) && lies_there(s, job, group, step, s->now - CALM_MS)) {
            sim_violation(s, "A8 group %" PRIu64 " is leased again, but it lies in the log",
                          group.index);
        }
    }
}

// A step whose line of metrics is written is not validated again. A line that the gang before wrote
// when this one had looked already does not count.
static void check_eval(struct sim *s, const Tandem__Sync__Unit *u) {
    int job = job_index(s, u->job);
    const struct td_job_state *j = job >= 0 ? td_journal_job(&s->truth, u->job) : NULL;
    const struct td_gang_state *g = j ? td_job_gang(j, "actor") : NULL;
    if (!g || s->jobs[job].tampered) {
        return;
    }
    const struct lines *l =
        s->p.assign ? &s->lines[job] : &s->trainers[g->spec->members[0] - 1 - NC].lines;
    bool seen = l->generation == g->generation || l->closed_ms < s->jobs[job].gang_ms;
    if (l->disk.has_line && seen && td_version_equal(l->version, td_version_of(u->version))) {
        sim_violation(s, "step %" PRIu64 " is validated again: its line is written",
                      u->version->step);
    }
}

static void check_target(struct sim *s, const struct td_coordinator *c,
                         const Tandem__Sync__Orders *o) {
    const struct td_job_state *j =
        o->has_target ? td_journal_job(td_coordinator_state(c), o->job) : NULL;
    const struct td_round_state *r = j && j->has_head ? td_job_round(j, j->head.step) : NULL;
    if (j && (!r || !td_version_equal(td_version_of(o->target), j->head) ||
              o->target_digest != r->roles[0]->weight_digest)) {
        sim_violation(s, "rollout members are told another version than the head");
    }
}

// Does another member that the leader can hear generate this group, leased by a leader before?
static bool held_by_another(const struct sim *s, int coordinator, const Tandem__Sync__Unit *u,
                            const Tandem__Journal__Group *group, uint64_t member) {
    for (int i = 0; i < NR; i++) {
        int proc = proc_of(ROLLER, i, 0);
        const struct roller *r = &s->rollers[i];
        if (!r->machine || (uint64_t)proc + 1 == member || s->procs[proc].paused ||
            !s->procs[proc].linked[coordinator]) {
            continue;
        }
        for (size_t k = 0; k < r->ticket_count; k++) {
            const struct ticket *t = &r->tickets[k];
            if (t->job == u->job && !t->eval && t->attempt.term < u->attempt->term && t->left > 0 &&
                td_version_equal(t->version, td_version_of(u->version)) &&
                td_group_compare(t->group, td_group_of(group)) == 0) {
                return true;
            }
        }
    }
    return false;
}

// The member of a gang serves its job; units are those of the job that is served.
static void check_serve(struct sim *s, const struct td_coordinator *c,
                        const Tandem__Sync__Orders *o, uint64_t member) {
    const struct td_journal_state *j = td_coordinator_state(c);
    uint64_t serves = o->serve ? o->serve->job : 0;
    if (!s->p.assign) {
        return;
    }
    for (size_t i = 0; i < o->n_units; i++) {
        if (o->units[i]->job != serves) {
            sim_violation(s,
                          "I12 units of job %" PRIu64 " are leased to a member that is to serve "
                          "%" PRIu64,
                          o->units[i]->job, serves);
        }
    }
    bool able = !s->p.trouble_percent && !s->p.other_files_percent;
    for (size_t i = 0; able && i < j->job_count; i++) {
        const struct td_gang_state *g = td_job_gang(j->jobs[i], "actor");
        bool here = g && g->spec->members[0] == member &&
                    j->jobs[i]->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE;
        if (here && serves != j->jobs[i]->job->job) {
            sim_violation(s, "I12 the member of job %" PRIu64 "'s gang is told to serve %" PRIu64,
                          j->jobs[i]->job->job, serves);
        }
    }
}

void check_orders(struct sim *s, int coordinator, const Tandem__Sync__Orders *o, uint64_t member) {
    enum { TAKEOVER_MS = 1000, SLACK_MS = 500, LEASE_MS = 1200 };
    check_target(s, s->coordinators[coordinator], o);
    check_serve(s, s->coordinators[coordinator], o, member);
    if (o->term < s->truth.term && s->now > s->lead_ms + TAKEOVER_MS + SLACK_MS) {
        sim_violation(s,
                      "I3 C%d gives orders of term %" PRIu64 " long after term %" PRIu64 " began",
                      coordinator, o->term, s->truth.term);
    }
    for (size_t i = 0; i < o->n_units && o->term == s->truth.term; i++) {
        const Tandem__Sync__Unit *u = o->units[i];
        if (!u->eval && u->attempt->term == o->term && u->attempt->n > s->leased[coordinator]) {
            s->leased[coordinator] = u->attempt->n;
            check_lease(s, u, u->version->step);
        }
        if (u->eval && u->attempt->term == o->term && u->attempt->n > s->leased_eval[coordinator]) {
            s->leased_eval[coordinator] = u->attempt->n;
            check_eval(s, u);
        }
        if (u->eval || s->p.single || u->attempt->term != o->term ||
            s->now >= s->lead_ms + LEASE_MS) {
            continue;
        }
        for (size_t k = 0; k < u->n_groups; k++) {
            if (held_by_another(s, coordinator, u, u->groups[k], member)) {
                sim_violation(s,
                              "a unit expired at take-over: group %" PRIu64
                              " is leased again while another member generates it",
                              u->groups[k]->index);
            }
        }
    }
}

static void check_lines(struct sim *s, const struct job_facts *f) {
    const struct td_job_state *j = td_journal_job(&s->truth, f->id);
    if (!j || f->tampered || j->outcome != TANDEM__JOURNAL__OUTCOME__SUCCEEDED) {
        return;
    }
    for (int i = 0; i < NT; i++) {
        const struct lines *l = s->p.assign ? &s->lines[f - s->jobs] : &s->trainers[i].lines;
        bool only = s->p.assign || f->members == 1u << i;
        if (only &&
            (!l->disk.has_line || l->disk.step != s->p.rounds || l->count != s->p.rounds + 1)) {
            sim_violation(s,
                          "metrics.jsonl has %" PRIu64 " lines up to step %" PRIu64
                          " for steps 0 to %" PRIu64,
                          l->count, l->disk.step, s->p.rounds);
        }
    }
}

void check_end(struct sim *s) {
    for (int i = 0; i < NC + NT && !s->violated; i++) {
        const struct proc *p = &s->procs[i];
        if (!p->alive || (p->kind == TRAINER && !s->trainers[p->index].machine)) {
            continue;
        }
        const struct td_journal_state *state =
            p->kind == COORDINATOR ? td_coordinator_state(s->coordinators[p->index])
                                   : td_trainc_journal(s->trainers[p->index].machine);
        if (p->next < s->ended_count) {
            sim_violation(s, "L2 %s has read %" PRId64 " of %zu records", proc_name(i), p->next,
                          s->journal_count);
        } else {
            check_reader(s, i, state, p->next - 1);
        }
    }
    for (int i = 0; i < s->p.jobs && !s->violated; i++) {
        check_lines(s, &s->jobs[i]);
    }
}
