// The run directory of `tandem run`: lock, journal, rollout log, and what an earlier run left. One
// run directory holds one job.
#ifndef TD_CLI_RUN_DIR_H
#define TD_CLI_RUN_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/io/log.h"
#include "lib/journal/follow.h"

struct td_run_dir {
    char *path;                        // owned, absolute
    char *save_dir;                    // owned: where global_step_N go
    int lock;                          // −1: not held
    struct td_log *journal, *rollouts; // owned; rollouts NULL for jobs over rows
    bool had_journal;
    struct td_follower found; // the journal as it was found
};

struct td_run_dir_opts {
    const char *path, *save_dir; // save_dir NULL: path
    bool fresh;                  // end what runs there, delete what lies there
    bool rollouts;               // the job needs a rollout log
};

// Makes, locks and opens. Reads the journal to its end (runs the loop). TD_ECONFLICT: another
// process has it, or there is no journal where something of a run lies; TD_ECORRUPT: the journal is
// damaged; TD_ESTOPPED: somebody stopped the loop.
enum td_rc td_run_dir_open(struct td_loop *loop, const struct td_run_dir_opts *opts,
                           struct td_run_dir *out, struct td_err *err) TD_MUST_CHECK;
// Of a job that has ended: ends workers that outlived a killed run, and removes the checkpoint
// folders that the journal does not keep (half written, or pushed out, when a controller was
// killed) and answers of validations that nobody put together: of a job that failed meanwhile, or
// of a member that was late with them.
void td_run_dir_tidy(const struct td_run_dir *d, const struct td_job_state *job);
// Closes the logs (runs the loop until they are) and gives the lock back.
void td_run_dir_close(struct td_loop *loop, struct td_run_dir *d);

#endif
