// Jobs: submission, and the order in which a job's decisions are tried. The first one that the
// judge allows is appended; everything is decided anew once it was read back.
#include "coordinator/coordinator_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

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
    c->dirty = true;
    struct td_coordinator_effect *e = td_co_push(c, TD_CO_JOB_ENDED);
    e->job = job->id;
    e->outcome = j->outcome;
    e->cause = td_strdup(j->cause);
}

// Why no step can be made under such a plan; NULL: it can. Also of jobs that the journal holds: one
// that was never submitted here must not end in a DRAW and DROP without end.
static const char *wrong_plan(const struct td_job_plan *plan, uint64_t rows, uint64_t open_max) {
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
    bool known = c->config.plan_of(c->config.user, spec->spec.data, spec->spec.len, &job->plan);
    job->plan_wrong = known ? wrong_plan(&job->plan, spec->index->rows, j->open_max)
                            : "its spec is not understood by this program";
    job->plan_known = job->plan_wrong == NULL;
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
    bool closed =
        t && t->job == job->id && t->has_metrics && t->metrics_step >= j->head.step && t->saved;
    if (!closed) {
        td_co_wait(c, job, TD_WAIT_SAVE, trainer ? trainer->id : 0,
                   "metrics and checkpoint of step %llu: %s", (unsigned long long)j->head.step,
                   t ? t->waits_for : "");
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
        td_co_decide_trouble(c, job, j)) {
        return;
    }
    td_co_trim_rollout(c, job, j);
    if (!j->has_head) {
        const struct td_member *m = td_co_trainer(c, j);
        td_co_wait(c, job, TD_WAIT_LOAD, m ? m->id : 0, "the initial weights to be loaded: %s",
                   m ? m->report->train->waits_for : "");
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

// ---- submission ----

static void refuse(struct td_coordinator *c, const char *request_id, const char *cause) {
    struct td_coordinator_effect *e = td_co_push(c, TD_CO_JOB_REFUSED);
    e->text = td_strdup(request_id);
    e->cause = td_strdup(cause);
}

static const char *wrong(struct td_coordinator *c, const struct td_submit *submit) {
    struct td_job_plan plan = {0};
    if (submit->spec_bytes > TD_SPEC_BYTES_MAX) {
        return "the spec is longer than 1 MiB";
    }
    if (!c->config.plan_of(c->config.user, submit->spec, submit->spec_bytes, &plan)) {
        return "the spec is not understood by this program";
    }
    const char *cause =
        wrong_plan(&plan, submit->index ? submit->index->rows : 0, submit->open_max);
    if (cause) {
        return cause;
    }
    if (!submit->request_id || !submit->request_id[0]) {
        return "no request id";
    }
    return c->submit_count == TD_SUBMITS_MAX ? "too many jobs are being submitted" : NULL;
}

void td_co_submit(struct td_coordinator *c, const struct td_submit *submit) {
    const char *cause = wrong(c, submit);
    if (cause) {
        refuse(c, submit->request_id, cause);
        return;
    }
    for (size_t i = 0; i < c->submit_count; i++) {
        if (strcmp(c->submits[i].request_id, submit->request_id) == 0) {
            return;
        }
    }
    Tandem__Journal__Job body = TANDEM__JOURNAL__JOB__INIT;
    body.request_id = (char *)submit->request_id;
    body.spec = (ProtobufCBinaryData){submit->spec_bytes, (uint8_t *)submit->spec};
    body.index = (Tandem__Journal__DataIndex *)submit->index;
    body.max_staleness = submit->max_staleness;
    body.open_max = submit->open_max;
    body.rollout_log = submit->rollout_log;
    TD_GROW(c->submits, c->submit_cap, c->submit_count + 1);
    c->submits[c->submit_count++] =
        (struct td_submission){td_strdup(submit->request_id), td_message_dup(&body)};
}

static uint64_t known_request(const struct td_journal_state *s, const char *request_id) {
    for (size_t i = 0; i < s->job_count; i++) {
        if (strcmp(s->jobs[i]->job->request_id, request_id) == 0) {
            return s->jobs[i]->job->job;
        }
    }
    return 0;
}

static void remove_submission(struct td_coordinator *c, size_t i) {
    td_free(c->submits[i].request_id);
    tandem__journal__job__free_unpacked(c->submits[i].job, NULL);
    c->submit_count--;
    memmove(&c->submits[i], &c->submits[i + 1], (c->submit_count - i) * sizeof *c->submits);
}

// Answers what the journal has by now (rule A1); appends the first of the rest.
void td_co_submissions(struct td_coordinator *c) {
    const struct td_journal_state *s = &c->follow.state;
    for (size_t i = 0; i < c->submit_count;) {
        uint64_t job = known_request(s, c->submits[i].request_id);
        if (!job) {
            i++;
            continue;
        }
        struct td_coordinator_effect *e = td_co_push(c, TD_CO_JOB_ACCEPTED);
        e->text = td_strdup(c->submits[i].request_id);
        e->job = job;
        remove_submission(c, i);
    }
    if (c->submit_count == 0 || !td_co_may_append(c)) {
        return;
    }
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_JOB;
    record.job = c->submits[0].job;
    record.job->job = 1;
    for (size_t i = 0; i < s->job_count; i++) {
        uint64_t id = s->jobs[i]->job->job;
        record.job->job = id >= record.job->job ? id + 1 : record.job->job;
    }
    char why[256];
    if (!td_journal_allows(s, &record, why)) {
        refuse(c, c->submits[0].request_id, why);
        remove_submission(c, 0);
        return;
    }
    td_co_propose(c, &record);
}
