// A coordinator of canned answers, in a process of its own, so that a command may block on it.
// Jobs: FAKE_SUCCEEDED … say how they ended; FAKE_RUNS advances one step each time it is looked at;
// FAKE_FOREVER stays as it is; FAKE_DENIED and FAKE_BROKEN answer with errors; all others are not
// found.
#ifndef TD_TESTS_CLI_FAKE_H
#define TD_TESTS_CLI_FAKE_H

#include <stdbool.h>
#include <sys/types.h>

#include "lib/io/rpc.h"

enum {
    FAKE_SUCCEEDED = 1,
    FAKE_FAILED = 2,
    FAKE_CANCELLED = 3,
    FAKE_RUNS = 4,
    FAKE_DENIED = 5,
    FAKE_BROKEN = 6,
    FAKE_FOREVER = 7,
    FAKE_STEPS = 5, // of FAKE_RUNS
};

struct fake_opts {
    int standby_calls;            // so many calls are refused as a standby does; < 0: all
    int dies_at_step;             // the process ends when FAKE_RUNS gets there; 0: never
    int first_step;               // of FAKE_RUNS
    bool empty;                   // no jobs, no members
    const struct td_rpc_tls *tls; // NULL: plain
    const char *submitted;        // file that receives each submission; NULL: none
};

struct fake {
    pid_t pid;
    char address[64];
};

void fake_start(struct fake *fake, const struct fake_opts *opts);
// Ends it, if it runs; the address stays refused.
void fake_stop(struct fake *fake);

#endif
