// Jobs: the order in which a job's decisions are tried. The first one that the judge allows is
// appended; everything is decided anew once it was read back.
#include "coordinator/coordinator_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

// A longer line of metrics is not kept with its job: 64 of them are in each STATE.
enum { METRICS_KEPT_MAX = 64 << 10 };

static bool ended(const struct td_job_state *j) {
    return j->outcome != TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE;
}

void td_job_free_soft(struct td_job *job) {
    td_co_drop_units(job);
    for (size_t i = 0; i < job->eval_count; i++) {
        td_free(job->eval[i].score);
    }
    td_free(job->eval);
    td_free(job->units);
    td_free(job->left);
    td_free(job);
}

struct td_job *td_co_job(const struct td_coordinator *c, uint64_t id) {
    for (size_t i = 0; i < c->job_count; i++) {
        if (c->jobs[i]->id == id) {
            return c->jobs[i];
        }
    }
    return NULL;
}

static void announce_end(struct td_coordinator *c, struct td_job *job,
                         const struct td_job_state *j) {
    if (job->announced || !ended(j)) {
        return;
    }
    job->announced = true;
    td_co_drop_units(job);
    c->dirty = c->due_all = true;
    struct td_coordinator_effect *e = td_co_push(c, TD_CO_JOB_ENDED);
    e->job = job->id;
    e->outcome = j->outcome;
    e->cause = td_strdup(j->cause);
}

const char *td_job_plan_wrong(const struct td_job_plan *plan, uint64_t rows, uint64_t open_max) {
    if (plan->train_batch_size == 0 || plan->unit_groups == 0) {
        return "data.train_batch_size and the groups of a unit must be at least 1";
    }
    if (plan->unit_groups > TD_LEASE_GROUPS_MAX) {
        return "more groups in a unit than a rollout controller takes (4096)";
    }
    if (plan->train_batch_size > TD_OPEN_MAX) {
        return "data.train_batch_size is more than a round may have (262144)";
    }
    if (rows < plan->train_batch_size) {
        return "fewer rows than data.train_batch_size";
    }
    return open_max < plan->train_batch_size ? "fewer groups may be open than one step needs"
                                             : NULL;
}

static void make_plan(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j) {
    const Tandem__Journal__Job *spec = j->job;
    job->planned = true;
    bool known = c->config.plan_of(c->config.user, spec, &job->plan);
    job->plan_wrong = known ? td_job_plan_wrong(&job->plan, spec->index->rows, j->open_max)
                            : "its spec is not understood by this program";
    job->plan_known = job->plan_wrong == NULL;
}

// The journal forgets jobs that ended long ago.
static void forget_jobs(struct td_coordinator *c) {
    size_t kept = 0;
    for (size_t i = 0; i < c->job_count; i++) {
        if (td_journal_job(&c->follow.state, c->jobs[i]->id)) {
            c->jobs[kept++] = c->jobs[i];
        } else {
            td_job_free_soft(c->jobs[i]);
        }
    }
    c->job_count = kept;
}

void td_co_sync_jobs(struct td_coordinator *c) {
    const struct td_journal_state *s = &c->follow.state;
    for (size_t i = 0; i < s->job_count; i++) {
        const Tandem__Journal__Job *spec = s->jobs[i]->job;
        struct td_job *job = td_co_job(c, spec->job);
        if (!job) {
            job = td_alloc(sizeof *job);
            job->id = spec->job;
            job->wait.since_ms = c->now_ms;
            TD_GROW(c->jobs, c->job_cap, c->job_count + 1);
            c->jobs[c->job_count++] = job;
        }
        if (!job->planned) {
            make_plan(c, job, s->jobs[i]);
        }
        announce_end(c, job, s->jobs[i]);
    }
    if (c->job_count > TD_JOBS_MAX) {
        forget_jobs(c);
    }
}

// The first wait of a decision counts: it is what comes next.
void td_co_wait(struct td_coordinator *c, struct td_job *job, enum td_wait wait, uint64_t member,
                const char *fmt, ...) {
    struct td_wait_state *next = &job->wait_next;
    if (next->wait != TD_WAIT_NOTHING) {
        return;
    }
    next->wait = wait;
    next->member = member;
    bool same = job->wait.wait == wait && job->wait.member == member;
    next->since_ms = same ? job->wait.since_ms : c->now_ms;
    va_list args;
    va_start(args, fmt);
    vsnprintf(next->text, sizeof next->text, fmt, args);
    va_end(args);
}

bool td_co_end_job(struct td_coordinator *c, const struct td_job_state *j,
                   enum _Tandem__Journal__Outcome outcome, const char *cause) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__End body = TANDEM__JOURNAL__END__INIT;
    body.job = j->job->job;
    body.outcome = outcome;
    body.cause = (char *)cause;
    const Tandem__Sync__TrainReport *t = td_co_train_report(c, j);
    if (t && strlen(t->metrics) <= METRICS_KEPT_MAX) {
        body.metrics = t->metrics;
    }
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_END;
    record.end = &body;
    return td_co_propose(c, &record);
}

// The head step is not closed: validation, then the metrics line and the user's save.
static bool wait_for_closing(struct td_coordinator *c, struct td_job *job,
                             const struct td_job_state *j) {
    if (!j->has_head || j->sealed > j->head.step || j->open_count > 0) {
        return false; // closed before the next round began
    }
    if (td_co_eval_pending(c, job, j)) {
        td_co_wait_for_units(c, job, j, job->eval_done, job->eval_count);
        return true;
    }
    const struct td_member *trainer = td_co_trainer(c, j);
    const Tandem__Sync__TrainReport *t = trainer ? trainer->report->train : NULL;
    bool closed = t && td_co_line_of_head(c, j) == TD_LINE_THERE && t->saved;
    if (!closed) {
        td_co_wait(c, job, TD_WAIT_SAVE, trainer ? trainer->id : 0,
                   "metrics and checkpoint of step %llu: %s", (unsigned long long)j->head.step,
                   td_co_trainer_waits_for(trainer));
    }
    return !closed;
}

static void decide(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j) {
    if (job->cancel &&
        td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__CANCELLED, "cancelled by the user")) {
        return;
    }
    if (!job->plan_known) {
        td_co_wait(c, job, TD_WAIT_SPEC, 0, "%s", job->plan_wrong);
        return;
    }
    if (td_co_decide_gang(c, job, j) || td_co_decide_results(c, j) ||
        td_co_decide_trouble(c, job, j) || td_co_decide_failures(c, job, j)) {
        return;
    }
    td_co_trim_rollout(c, job, j);
    if (!j->has_head) {
        const struct td_member *m = td_co_trainer(c, j);
        td_co_wait(c, job, TD_WAIT_LOAD, m ? m->id : 0, "the initial weights to be loaded: %s",
                   td_co_trainer_waits_for(m));
        return;
    }
    if (wait_for_closing(c, job, j)) {
        return;
    }
    if (j->head.step >= job->plan.total_steps && j->sealed == j->head.step) {
        td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__SUCCEEDED, "");
        return;
    }
    td_co_decide_round(c, job, j);
}

void td_co_decide(struct td_coordinator *c) {
    const struct td_journal_state *s = &c->follow.state;
    for (size_t i = 0; i < c->job_count && td_co_may_append(c); i++) {
        struct td_job *job = c->jobs[(c->next_job + i) % c->job_count];
        const struct td_job_state *j = td_journal_job(s, job->id);
        if (!j || ended(j)) {
            continue;
        }
        job->wait_next = (struct td_wait_state){.since_ms = c->now_ms};
        decide(c, job, j);
        if (!td_co_may_append(c)) {
            c->next_job = (c->next_job + i + 1) % c->job_count; // the others first next time
        } else {
            job->wait = job->wait_next;
        }
    }
}
