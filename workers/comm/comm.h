// Collectives among the ranks of one gang. tcp is a ring over TCP; nccl is the other backend,
// later. A communicator belongs to (job, gang, generation) and never outlives it. Used by the
// command thread; abort by any. A call may overrun its deadline by half a second to learn which
// rank is at fault. A communicator that failed stays failed: every later call gives the same error.
#ifndef TD_WORKERS_COMM_COMM_H
#define TD_WORKERS_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

struct td_comm;

struct td_comm_ops {
    // x[n] += over all ranks, in an order that depends on rank and size only; every rank ends with
    // equal bits.
    enum td_rc (*all_reduce_f32)(struct td_comm *c, float *x, size_t n, int64_t deadline_ms,
                                 struct td_err *err);
    enum td_rc (*all_reduce_f64)(struct td_comm *c, double *x, size_t n, int64_t deadline_ms,
                                 struct td_err *err);
    enum td_rc (*barrier)(struct td_comm *c, int64_t deadline_ms, struct td_err *err);
    void (*abort)(struct td_comm
                      *c); // any thread: a pending call returns TD_ECLOSED soon, later ones at once
    void (*free)(struct td_comm *c);
};

struct td_comm {
    const struct td_comm_ops *ops;
    int rank, size;
    uint64_t key; // of (job, gang, generation): peers with another key are refused
};

// A listener for the ring: bound to host (NULL: "127.0.0.1") and any free port; *address receives
// "host:port" (owned). A wildcard host is TD_EINVAL. Serves one generation after another.
struct td_comm_listener;
enum td_rc td_comm_listen(const char *host, struct td_comm_listener **out, char **address,
                          struct td_err *err) TD_MUST_CHECK;
void td_comm_listener_free(struct td_comm_listener *l);

// A rank's place in the ring; all borrowed for the call.
struct td_comm_place {
    const char *const *addresses; // size of them, by rank
    int rank, size;
    uint64_t key;
};

// Connects rank to rank+1 and accepts from rank−1. size 1 needs no socket (l and addresses may be
// NULL). Deadlines are td_clock_ms. A peer that dies or is silent past the deadline gives
// TD_ECLOSED or TD_ETIMEOUT naming its rank; one of another key, size or rank TD_ECONFLICT. Garbage
// and strangers are refused and waited past.
enum td_rc td_comm_tcp_new(struct td_comm_listener *l, const struct td_comm_place *place,
                           int64_t deadline_ms, struct td_comm **out,
                           struct td_err *err) TD_MUST_CHECK;
void td_comm_free(struct td_comm *c); // accepts NULL

#endif
