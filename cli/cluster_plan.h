// What a local cluster consists of: which processes, with which settings, on which ports. Makes
// folders and writes the daemons' settings; starts nothing.
#ifndef TD_CLI_CLUSTER_PLAN_H
#define TD_CLI_CLUSTER_PLAN_H

#include "cli/cluster.h"

// A run directory whose absolute path is longer leaves no room for the names of sockets below it:
// 107 bytes less those of "/train-61/jobs/1234567890/train-63.sock.weights".
enum { TD_CLUSTER_DIR_MAX = 60 };

struct td_cluster_plan {
    const char *dir;   // absolute
    const char *bin;   // folder of the daemons' programs
    const char *kafka; // the script deploy/kafka; NULL: there is none
};

// Adds to c the processes of its shape that it lacks: with free ports, folders, and files
// dir/NAME.yaml. Those it has keep their settings. TD_EINVAL: dir is too long or not UTF-8;
// TD_ENOENT: a program is missing; TD_ELIMIT: too many processes.
enum td_rc td_cluster_plan(const struct td_cluster_plan *plan, struct td_cluster *c,
                           struct td_err *err) TD_MUST_CHECK;

#endif
