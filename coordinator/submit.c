// Submission: a job's files are read by a member, its JOB is appended, and the answer is what the
// journal has (rule A1).
#include <stdio.h>
#include <string.h>

#include "coordinator/coordinator_int.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"

static void refuse(struct td_coordinator *c, const char *request_id, const char *cause) {
    struct td_coordinator_effect *e = td_co_push(c, TD_CO_JOB_REFUSED);
    e->text = td_strdup(request_id);
    e->cause = td_strdup(cause);
}

// Why such a job cannot be; NULL: it can, as far as is known without its index.
static const char *wrong(struct td_coordinator *c, const Tandem__Journal__Job *job) {
    struct td_job_plan plan = {0};
    if (job->spec.len > TD_SPEC_BYTES_MAX) {
        return "the spec is longer than 1 MiB";
    }
    if (!c->config.plan_of(c->config.user, job, &plan)) {
        return "the spec is not understood by this program";
    }
    if (!job->request_id || !job->request_id[0]) {
        return "no request id";
    }
    if (!job->index && c->config.assign) {
        return NULL;
    }
    return td_job_plan_wrong(&plan, job->index ? job->index->rows : 0, job->open_max);
}

// One batch and one data epoch may be open, unless told otherwise.
static void fill_open_max(struct td_coordinator *c, Tandem__Journal__Job *job) {
    struct td_job_plan plan = {0};
    if (job->open_max == 0 && job->index && c->config.plan_of(c->config.user, job, &plan)) {
        job->open_max = plan.train_batch_size + job->index->rows;
    }
}

void td_co_submit(struct td_coordinator *c, const struct td_submit *submit) {
    Tandem__Journal__Job body = TANDEM__JOURNAL__JOB__INIT;
    body.request_id = (char *)submit->request_id;
    body.spec = (ProtobufCBinaryData){submit->spec_bytes, (uint8_t *)submit->spec};
    body.index = (Tandem__Journal__DataIndex *)submit->index;
    body.max_staleness = submit->max_staleness;
    body.open_max = submit->open_max;
    body.rollout_log = submit->rollout_log;
    fill_open_max(c, &body);
    const char *cause = wrong(c, &body);
    if (!cause && c->submit_count == TD_SUBMITS_MAX) {
        cause = "too many jobs are being submitted";
    }
    if (cause) {
        refuse(c, submit->request_id, cause);
        return;
    }
    for (size_t i = 0; i < c->submit_count; i++) {
        if (strcmp(c->submits[i].request_id, submit->request_id) == 0) {
            return;
        }
    }
    TD_GROW(c->submits, c->submit_cap, c->submit_count + 1);
    c->submits[c->submit_count++] = (struct td_submission){
        .request_id = td_strdup(submit->request_id), .job = td_message_dup(&body)};
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
    c->dirty = c->due_all = true; // nobody is asked for its index any more
    memmove(&c->submits[i], &c->submits[i + 1], (c->submit_count - i) * sizeof *c->submits);
}

void td_co_drop_submissions(struct td_coordinator *c) {
    while (c->submit_count > 0) {
        remove_submission(c, c->submit_count - 1);
    }
}

// ---- the index ----

// A request that comes again after a refusal, or that an earlier leader had, is another attempt:
// the settings may have changed, and the files.
static bool answers(const struct td_submission *s, const Tandem__Sync__Attempt *a) {
    return (s->n && a && a->term == s->term && a->n == s->n) || TD_PLANTED(INDEX_TWICE);
}

void td_co_indexed(struct td_coordinator *c, const Tandem__Sync__Report *report) {
    for (size_t i = 0; i < report->n_indexed; i++) {
        const Tandem__Sync__Indexed *r = report->indexed[i];
        for (size_t k = 0; k < c->submit_count; k++) {
            struct td_submission *s = &c->submits[k];
            if (strcmp(s->request_id, r->request_id) != 0 || s->job->index ||
                !answers(s, r->attempt)) {
                continue;
            }
            s->job->index = r->index ? td_message_dup(r->index) : NULL;
            fill_open_max(c, s->job);
            const char *cause = r->index ? wrong(c, s->job) : r->error;
            if (cause) {
                refuse(c, s->request_id, cause);
                remove_submission(c, k);
            }
            break;
        }
    }
}

// The live member that has fewest to read; any can.
static uint64_t reader(const struct td_coordinator *c) {
    const struct td_member *best = NULL;
    size_t fewest = 0;
    for (size_t i = 0; i < c->member_count; i++) {
        const struct td_member *m = &c->members[i];
        size_t asked = 0;
        for (size_t k = 0; k < c->submit_count; k++) {
            asked += c->submits[k].asked == m->id;
        }
        if (td_co_alive(c, m) && (!best || asked < fewest)) {
            best = m;
            fewest = asked;
        }
    }
    return best ? best->id : 0;
}

// A member that went away is replaced by another one.
static void ask_for_index(struct td_coordinator *c, struct td_submission *s) {
    const struct td_member *m = td_co_member(c, s->asked);
    if (s->job->index || (s->asked && m && td_co_alive(c, m))) {
        return;
    }
    s->asked = 0;
    s->asked = reader(c);
    if (s->asked && !s->n) {
        s->term = c->follow.state.term;
        s->n = ++c->attempt;
    }
    c->dirty = c->due_all = true;
}

// ---- the record ----

static void append_first(struct td_coordinator *c, size_t i) {
    const struct td_journal_state *s = &c->follow.state;
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_JOB;
    record.job = c->submits[i].job;
    record.job->job = 1;
    for (size_t k = 0; k < s->job_count; k++) {
        uint64_t id = s->jobs[k]->job->job;
        record.job->job = id >= record.job->job ? id + 1 : record.job->job;
    }
    char why[256];
    if (!td_journal_allows(s, &record, why)) {
        refuse(c, c->submits[i].request_id, why);
        remove_submission(c, i);
        return;
    }
    td_co_propose(c, &record);
}

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
    for (size_t i = 0; i < c->submit_count && td_co_leads(c); i++) {
        ask_for_index(c, &c->submits[i]);
        if (c->submits[i].job->index && td_co_may_append(c)) {
            append_first(c, i);
            return;
        }
    }
}
