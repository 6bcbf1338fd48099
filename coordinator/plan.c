// A job's plan: see plan.h.
#include "coordinator/plan.h"

#include "lib/base/trace.h"
#include "lib/spec/job_spec.h"

static enum td_rc fill(const struct td_job_spec *s, const Tandem__Journal__DataIndex *index,
                       struct td_job_plan *out, struct td_err *err) {
    bool rows = s->tandem.kind == TD_JOB_SFT;
    struct td_job_schedule schedule = {0};
    enum td_rc rc = index ? td_job_schedule(s, index->rows, &schedule, err) : TD_OK;
    *out = (struct td_job_plan){.rows_job = rows,
                                .train_batch_size = (uint64_t)s->data.train_batch_size,
                                .total_steps = schedule.total_steps,
                                .val_rows = rows || !index ? 0 : index->val_rows,
                                .test_freq =
                                    s->trainer.test_freq > 0 ? (uint64_t)s->trainer.test_freq : 0,
                                .val_before_train = !rows && s->trainer.val_before_train,
                                .unit_groups = rows ? 1 : (uint64_t)s->tandem.rollout.unit_groups,
                                .lease_ms = s->tandem.lease_s * 1000,
                                .fork_on_mismatch = s->tandem.redo.mismatch == TD_REDO_FORK,
                                .max_attempts = (uint64_t)s->tandem.max_attempts,
                                .shuffle = s->data.shuffle,
                                .seed = (uint64_t)s->data.seed};
    return rc;
}

bool td_job_plan_of(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out) {
    struct td_job_spec *s = NULL;
    struct td_err err;
    (void)user;
    enum td_rc rc = td_job_spec_decode(job->spec.data, job->spec.len, &s, &err);
    rc = rc == TD_OK ? fill(s, job->index, out, &err) : rc;
    if (rc != TD_OK) {
        td_trace_warn("spec not understood", "cause=\"%s\"", err.msg);
    }
    td_job_spec_free(s);
    return rc == TD_OK;
}
