// The rollout logs of jobs: the leader makes one for each job that has rollouts, trims it, and
// deletes it when the job has ended and nobody serves it any more, and what else lies about of the
// job then. What exists follows from the
// journal's state, so that a new leader goes on where the old one stopped. Loop thread.
#ifndef TD_COORDINATOR_JOB_LOGS_H
#define TD_COORDINATOR_JOB_LOGS_H

#include "coordinator/coordinator.h"
#include "lib/io/logs.h"
#include "lib/io/workq.h"

struct td_job_logs;

struct td_job_logs_opts {
    struct td_loop *loop;
    struct td_workq *workq;     // making and deleting block
    const struct td_logs *logs; // borrowed
    uint32_t partitions;
    const char *shared_dir; // borrowed; a job's folder is SHARED_DIR/jobs/ID
    // Does a member still serve the job?
    bool (*served)(void *user, uint64_t job);
    void *user;
};

struct td_job_logs *td_job_logs_new(const struct td_job_logs_opts *opts);
// Closes what is open, frees, calls closed(user) in a later turn. The work queue is empty and stays
// so.
void td_job_logs_close(struct td_job_logs *l, td_loop_fn *closed, void *user);
// Makes and deletes what the state asks for; cheap when that is nothing. Only by the leader.
void td_job_logs_follow(struct td_job_logs *l, const struct td_journal_state *state);
void td_job_logs_trim(struct td_job_logs *l, uint64_t job, const struct td_log_position *positions,
                      size_t n);
#endif
