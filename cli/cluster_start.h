// Starting processes of a local cluster. On the thread of its loop.
#ifndef TD_CLI_CLUSTER_START_H
#define TD_CLI_CLUSTER_START_H

#include "cli/cluster.h"
#include "lib/io/children.h"

struct td_cluster_start {
    const char *dir; // absolute
    struct td_cluster *cluster;
    struct td_loop *loop;
    struct td_children *children;
    bool started[TD_CLUSTER_PROCESSES_MAX]; // by this program, now
    bool died[TD_CLUSTER_PROCESSES_MAX];    // since then
    int status[TD_CLUSTER_PROCESSES_MAX];   // as of waitpid(2)
    pid_t script;                           // of Kafka, while it runs
    int script_status;
    bool interrupted; // set by who watches signals
};

// Starts what is not alive, each in a session of its own with its output in its log, and writes
// cluster.json after each, so that whatever runs is known. Kafka is waited for. TD_ESTOPPED:
// interrupted.
enum td_rc td_cluster_start_missing(struct td_cluster_start *s, struct td_err *err) TD_MUST_CHECK;

#endif
