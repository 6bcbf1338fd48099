// Jobs as people read them.
#ifndef TD_CLI_JOB_TEXT_H
#define TD_CLI_JOB_TEXT_H

#include <stdbool.h>

#include "lib/base/buf.h"
#include "proto/jobs.pb-c.h"

// "RUNNING"; "UNKNOWN" for what this program does not know.
const char *td_job_state_name(Tandem__V1__JobState state);
// Appends "step 3/40  reward 0.510  KL 0.0010", no line end.
void td_job_progress(const Tandem__V1__Job *job, struct td_buf *out);
// Appends "job 3 RUNNING: step 3/40 …; waits for …" or how it ended, no line end. The time for
// which it waits is left out: a line that is equal to the one before tells nothing new.
void td_job_line(const Tandem__V1__Job *job, struct td_buf *out);

#endif
