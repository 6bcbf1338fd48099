// Following one job to its end: what wait, watch and submit share.
#ifndef TD_CLI_WATCH_H
#define TD_CLI_WATCH_H

#include "cli/client.h"

struct td_watch_job {
    uint64_t job;
    int64_t within_ms; // < 0: for ever
    enum td_cli_output output;
    bool silent; // only how it ended
};

// Prints the job as it goes on, one line per change (-o json: one object per line), and how it
// ended. The exit status that goes with its outcome.
int td_watch_job(struct td_client *client, const struct td_watch_job *watch);

#endif
