// The ring's sockets and how they are formed; shared by form.c and ring.c.
#ifndef TD_WORKERS_COMM_RING_INT_H
#define TD_WORKERS_COMM_RING_INT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "workers/comm/comm.h"

enum { TD_COMM_RANKS_MAX = 1024 };

// Each pair of neighbours has two connections: data flows from a rank to the next one only; notes
// flow both ways and are never behind data.
enum td_link { TD_LINK_DATA, TD_LINK_NOTE, TD_LINK_COUNT };
enum td_side { TD_SIDE_PREV, TD_SIDE_NEXT, TD_SIDE_COUNT };

struct td_ring {
    struct td_comm base;
    int fd[TD_SIDE_COUNT][TD_LINK_COUNT]; // −1: none; set before the ring is shared, closed in free
    int wake;                             // eventfd, written by abort
    atomic_bool aborted;                  // set by abort (any thread), read by the command thread
    bool failed;                          // a call failed: every later one gives the same error
    struct td_err why;
    int64_t heard_ms[TD_SIDE_COUNT]; // when a neighbour was last heard of in this call
    int64_t alive_ms;                // when we last said that we live
    uint8_t note[TD_SIDE_COUNT][4];  // a note that arrived in part
    size_t note_len[TD_SIDE_COUNT];
    bool note_closed[TD_SIDE_COUNT]; // that side says no more; data may still come
    void *landing;                   // TD_LANDING_BYTES, where summands arrive
};

enum { TD_LANDING_BYTES = 256 * 1024 };

// Fills r->fd for rank r->base.rank of r->base.size. On failure some of r->fd may be open.
enum td_rc td_ring_form(struct td_ring *r, struct td_comm_listener *l, const char *const *addresses,
                        int64_t deadline_ms, struct td_err *err) TD_MUST_CHECK;

#endif
