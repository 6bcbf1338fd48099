// A work queue: one or two threads that pack, hash, write and fsync off the loop.
#ifndef TD_IO_WORKQ_H
#define TD_IO_WORKQ_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/io/loop.h"

struct td_workq;

enum { TD_WORKQ_THREADS_MAX = 2 };

// At most jobs_max jobs are queued, running or waiting for their done together. name (≤ 15 bytes)
// shows in the thread list.
enum td_rc td_workq_new(struct td_loop *loop, const char *name, unsigned threads, size_t jobs_max,
                        struct td_workq **out, struct td_err *err) TD_MUST_CHECK;
// Loop thread: run(user) on one of the threads, then done(user) (may be NULL) on the loop. Jobs
// start in order; with two threads they may end out of order. False: full, nothing was queued.
bool td_workq_submit(struct td_workq *workq, td_loop_fn *run, td_loop_fn *done,
                     void *user) TD_MUST_CHECK;
// Loop thread, may block: runs what is queued, joins the threads, makes the remaining done calls.
// Not from a done callback of the same queue.
void td_workq_free(struct td_workq *workq); // accepts NULL

#endif
