// Jobs as people read them: see job_text.h.
#include "cli/job_text.h"

#include <inttypes.h>

#include "cli/metrics.h"

const char *td_job_state_name(Tandem__V1__JobState state) {
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&tandem__v1__job_state__descriptor, (int)state);
    return v && state != TANDEM__V1__JOB_STATE__JOB_STATE_UNSPECIFIED ? v->name : "UNKNOWN";
}

void td_job_progress(const Tandem__V1__Job *job, struct td_buf *out) {
    td_buf_printf(out, "step %" PRIu64 "/%" PRIu64, job->step, job->total_steps);
    if (job->metrics[0]) {
        struct td_metrics m = {0};
        td_metrics_read(job->metrics, &m);
        td_metrics_print(&m, out);
    }
}

void td_job_line(const Tandem__V1__Job *job, struct td_buf *out) {
    td_buf_printf(out, "job %" PRIu64 " %s: ", job->id, td_job_state_name(job->state));
    td_job_progress(job, out);
    if (job->cause[0]) {
        td_buf_printf(out, "; %s", job->cause);
    } else if (job->waits_for[0]) {
        td_buf_printf(out, "; waits for: %s", job->waits_for);
    }
}
