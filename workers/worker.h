// A worker: one process that owns one engine and sits in one seat (worker, role). It listens on a
// UNIX socket, serves one controller, outlives it for the grace time, and keeps what it holds
// meanwhile.
#ifndef TD_WORKERS_WORKER_H
#define TD_WORKERS_WORKER_H

#include <stdint.h>

#include "lib/base/err.h"

struct td_worker_config {
    const char *socket_path; // absolute; a train seat serves its weights at PATH.weights beside it
    const char *host;        // under which other machines reach this one; NULL: 127.0.0.1
    int64_t grace_ms;
};

// Serves until Stop, the grace time's end, or SIGTERM. Blocks; the calling thread is the command
// thread.
enum td_rc td_worker_run(const struct td_worker_config *config, struct td_err *err) TD_MUST_CHECK;

#endif
