// Stopping processes of a local cluster.
#ifndef TD_CLI_CLUSTER_STOP_H
#define TD_CLI_CLUSTER_STOP_H

#include "cli/cluster.h"

// Stops processes that run: which[i] (NULL: all). Controllers first, then coordinators, then Kafka
// and Redis: SIGTERM, and SIGKILL after grace_ms; then workers that dead controllers left, and
// sockets that nobody serves. pid and start of all of them become 0. Blocks; needs no loop. Returns
// how many had to be killed.
size_t td_cluster_stop(const char *dir, struct td_cluster *c, const bool *which, int64_t grace_ms);

#endif
