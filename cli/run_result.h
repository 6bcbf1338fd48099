// What `tandem run` says at its start and end, and what it makes of a journal that it finds.
#ifndef TD_CLI_RUN_RESULT_H
#define TD_CLI_RUN_RESULT_H

#include "cli/run_dir.h"
#include "controllers/common/job_data.h"

// The job of the journal that was found; NULL: none.
const struct td_job_state *td_run_found_job(const struct td_run_dir *d);
// Compares the settings with those of the journal's job: TD_CLI_USAGE after naming the keys that
// differ. A job that has ended: prints its result, sets *done and returns its exit status.
int td_run_check_found(const struct td_run_dir *d, const struct td_buf *canonical, bool *done);
// The files the job reads, its rollout log among them, are those it began with: TD_ECORRUPT names
// the one that is not.
enum td_rc td_run_check_index(const struct td_run_dir *d, const struct td_job_data *data,
                              struct td_err *err) TD_MUST_CHECK;
void td_run_print_start(const struct td_job_spec *spec, const struct td_job_data *data,
                        const struct td_run_dir *d);
// status: the exit status; cause: why it failed, or NULL.
void td_run_print_end(const struct td_run_dir *d, const struct td_job_data *data, int status,
                      const char *cause);

#endif
