// cluster.json of a run directory: the processes that `tandem up` started there and where they
// answer. Written by `up` and `down` under the directory's lock; read by every command.
#ifndef TD_CLI_CLUSTER_H
#define TD_CLI_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/err.h"

enum { TD_CLUSTER_PROCESSES_MAX = 64, TD_CLUSTER_ARGS_MAX = 24 };

struct td_cluster_process {
    char *name;     // "coordinator-0", "redis"
    pid_t pid;      // 0: was stopped
    uint64_t start; // of the process, in clock ticks since boot: what tells it from a later one
    char *log;      // file of its stdout and stderr, absolute
    char *address;  // gRPC of coordinators, or of redis and kafka; NULL: none
    char *http;     // status page; NULL: none
    char **argv;    // ended by NULL
};

// What `tandem up` was told, so that it can be told less the next time.
struct td_cluster_shape {
    int64_t coordinators, rollout, train, rollout_workers, train_workers, threads;
    bool kafka, fast;
};

struct td_cluster {
    char *name;
    struct td_cluster_shape shape;
    struct td_cluster_process processes[TD_CLUSTER_PROCESSES_MAX];
    size_t count;
};

// dir/cluster.json. TD_ENOENT: there is none; TD_ECORRUPT. *out is filled only with TD_OK.
enum td_rc td_cluster_read(const char *dir, struct td_cluster *out,
                           struct td_err *err) TD_MUST_CHECK;
enum td_rc td_cluster_write(const char *dir, const struct td_cluster *c,
                            struct td_err *err) TD_MUST_CHECK;
void td_cluster_fini(struct td_cluster *c);
// NULL: none has that name.
struct td_cluster_process *td_cluster_find(struct td_cluster *c, const char *name);
// Adds one without a process; borrowed strings are copied, NULL stays NULL.
struct td_cluster_process *td_cluster_add(struct td_cluster *c, const char *name, const char *log);
void td_cluster_set_argv(struct td_cluster_process *p, const char *const *argv);
// "coordinator-0" is a "coordinator".
bool td_cluster_is(const struct td_cluster_process *p, const char *kind);
// Whether that very process runs (a zombie does not).
bool td_cluster_alive(const struct td_cluster_process *p);
// The absolute path of a run directory, made first if make says so; the caller's. TD_ENOENT.
enum td_rc td_cluster_dir(const char *name, bool make, char **out,
                          struct td_err *err) TD_MUST_CHECK;
// Addresses of the coordinators, "A,B"; the caller's.
char *td_cluster_addresses(const struct td_cluster *c);

#endif
