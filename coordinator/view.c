// Queries: what a job waits for, and when the machine wants to be woken.
#include "coordinator/coordinator_int.h"

#include <stdio.h>

#include "lib/base/mem.h"

const char *td_coordinator_log_trouble(const struct td_coordinator *c) {
    if (c->stopped) {
        return c->follow.cause;
    }
    // A short wait for the log is part of every decision; only a long one is worth a word.
    if (c->now_ms - c->ready_ms < c->config.takeover_ms) {
        return NULL;
    }
    return c->appending                     ? "an append to the journal to be answered"
           : !td_follower_ready(&c->follow) ? "the journal to be read to its end"
                                            : NULL;
}

const char *td_co_trainer_waits_for(const struct td_member *trainer) {
    const char *text = trainer ? trainer->report->train->waits_for : "";
    return text[0] ? text : "the train member to report";
}

static void wait_of_process(const struct td_coordinator *c, struct td_job_view *out) {
    const char *text = td_coordinator_log_trouble(c);
    if (text) {
        out->wait = TD_WAIT_JOURNAL;
        out->since_ms = c->ready_ms;
        out->member = 0;
        snprintf(out->text, sizeof out->text, "%.150s", text);
    } else if (!td_co_leads(c)) {
        out->wait = TD_WAIT_LEADER;
        out->since_ms = c->quiet_ms;
        out->member = c->follow.state.owner;
        snprintf(out->text, sizeof out->text, "another coordinator leads, or none yet");
    }
}

bool td_coordinator_job_view(const struct td_coordinator *c, uint64_t id, struct td_job_view *out) {
    const struct td_job_state *j = td_journal_job(&c->follow.state, id);
    const struct td_job *job = td_co_job(c, id);
    if (!j || !job) {
        return false;
    }
    *out = (struct td_job_view){
        .wait = job->wait.wait,
        .since_ms = job->wait.since_ms,
        .member = job->wait.member,
        .has_head = j->has_head,
        .head = j->head,
        .sealed = j->sealed,
        .total_steps = job->plan.total_steps,
        .open = j->open_count,
        .units = job->unit_count,
        .outcome = j->outcome,
        .outcome_cause = j->cause ? j->cause : "",
    };
    snprintf(out->text, sizeof out->text, "%s", job->wait.text);
    if (j->outcome != TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
        out->wait = TD_WAIT_ENDED;
        snprintf(out->text, sizeof out->text, "%.150s", out->outcome_cause);
        return true;
    }
    wait_of_process(c, out);
    const Tandem__Sync__TrainReport *t = td_co_train_report(c, j);
    for (size_t i = 0; t && i < t->n_arrived; i++) {
        const td_entry *e = t->arrived[i]->entry;
        out->arrived += e && e->group && td_job_is_open(j, td_group_of(e->group));
    }
    return true;
}

size_t td_coordinator_member_count(const struct td_coordinator *c) {
    return c->member_count;
}

void td_coordinator_member_view(const struct td_coordinator *c, size_t i,
                                struct td_member_view *out) {
    const struct td_member *m = &c->members[i];
    *out = (struct td_member_view){.id = m->id,
                                   .serves = m->serves,
                                   .heard_ms = m->heard_ms,
                                   .alive = td_co_alive(c, m),
                                   .report = m->report};
    for (size_t k = 0; k < c->job_count; k++) {
        for (size_t u = 0; u < c->jobs[k]->unit_count; u++) {
            out->units += c->jobs[k]->units[u].member == m->id;
        }
    }
}

static void place_of(const struct td_coordinator *c, const struct td_job *job,
                     struct td_group_view *out) {
    for (size_t i = 0; i < job->unit_count; i++) {
        const struct td_unit *u = &job->units[i];
        for (size_t k = 0; k < u->group_count && !u->eval; k++) {
            if (td_group_compare(u->groups[k], out->group) == 0) {
                out->place = TD_GROUP_LEASED;
                out->member = u->member;
                out->term = u->term;
                out->n = u->n;
                out->waits_for = td_co_unit_waits_for(c, u);
                out->since_ms = u->leased_ms;
            }
        }
    }
}

size_t td_coordinator_groups(const struct td_coordinator *c, uint64_t id, struct td_group_view *out,
                             size_t max) {
    const struct td_job_state *j = td_journal_job(&c->follow.state, id);
    const struct td_job *job = td_co_job(c, id);
    if (!j || !job || !job->plan_known || !j->has_head) {
        return 0;
    }
    size_t n = j->open_count < max ? j->open_count : max;
    const td_entry **entries = td_alloc_array(job->plan.train_batch_size + 1, sizeof *entries);
    td_co_find_open(c, job, j, entries);
    for (size_t i = 0; i < n; i++) {
        bool others = job->wait.wait == TD_WAIT_GROUPS;
        out[i] = (struct td_group_view){.group = j->open[i],
                                        .waits_for =
                                            others ? "a rollout member with room" : job->wait.text,
                                        .since_ms = job->wait.since_ms};
        if (i < job->plan.train_batch_size && entries[i]) {
            out[i].place = TD_GROUP_ARRIVED;
            out[i].waits_for = "";
        } else {
            place_of(c, job, &out[i]);
        }
    }
    td_free(entries);
    return n;
}

static void earlier(int64_t *wake, int64_t at) {
    *wake = at < *wake ? at : *wake;
}

int64_t td_coordinator_wake_ms(const struct td_coordinator *c) {
    int64_t wake = INT64_MAX;
    if (c->stopped || !c->follow.state.based) {
        return wake;
    }
    if (!td_co_leads(c)) {
        earlier(&wake, c->quiet_ms + td_co_patience_ms(c));
        return wake > c->now_ms ? wake : c->now_ms + c->config.beat_ms;
    }
    earlier(&wake, c->out_ms + c->config.beat_ms);
    for (size_t i = 0; i < c->member_count; i++) {
        earlier(&wake, c->members[i].heard_ms + c->config.member_timeout_ms);
    }
    return wake > c->now_ms ? wake : c->now_ms + c->config.beat_ms;
}
