// `tandem cancel`: ends a job and waits until nothing of it is left.
#include <inttypes.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/job_text.h"
#include "cli/message_json.h"

static void tell(const Tandem__V1__Job *job, enum td_cli_output output) {
    struct td_buf out = {0};
    if (output == TD_CLI_JSON) {
        td_message_json(&job->base, false, &out);
    } else if (job->state == TANDEM__V1__JOB_STATE__CANCELLED) {
        td_buf_printf(&out, "job %" PRIu64 " cancelled\n", job->id);
    } else {
        td_buf_printf(&out, "job %" PRIu64 " had ended before: %s\n", job->id,
                      td_job_state_name(job->state));
    }
    fputs(td_buf_str(&out), stdout);
    td_buf_fini(&out);
}

// The answer comes when the job has ended.
static int cancel(struct td_client *client, uint64_t id, enum td_cli_output output) {
    Tandem__V1__CancelJobRequest request = TANDEM__V1__CANCEL_JOB_REQUEST__INIT;
    request.id = id;
    Tandem__V1__Job *job = NULL;
    struct td_client_call call = {"CancelJob", &request.base, &tandem__v1__job__descriptor, true};
    int status = td_client_call(client, &call, (ProtobufCMessage **)&job);
    if (status == TD_CLI_OK) {
        tell(job, output);
        tandem__v1__job__free_unpacked(job, NULL);
    }
    return status;
}

int td_cli_cancel(int argc, char **argv) {
    return td_client_job_command(argc, argv, cancel);
}
