// The pool: a controller's worker processes. Starts them or finds those that outlived an earlier
// controller, attaches, sets them up, matches replies to requests, and replaces a worker that dies
// or falls silent. Loop thread. Decides nothing about work: the machine of its controller does.
#ifndef TD_CONTROLLERS_COMMON_POOL_H
#define TD_CONTROLLERS_COMMON_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/io/children.h"
#include "lib/io/loop.h"
#include "lib/ipc/conn.h"
#include "proto/sync.pb-c.h"

struct td_pool;

enum { TD_POOL_WORKERS_MAX = 64, TD_POOL_PENDING_MAX = 65536 };

// A reply (Done, Stepped, ..., or Error) to one request; fds are closed after the call. frame NULL:
// the worker went down before it answered.
typedef void td_pool_reply_fn(void *user, int worker, const td_frame *frame, const int *fds);

struct td_pool_fns {
    // Ready for work; status (borrowed) says what it holds.
    void (*up)(void *user, int worker, const Tandem__Worker__Status *status);
    void (*down)(void *user, int worker, const char *cause);
    void (*generated)(void *user, int worker, const Tandem__Worker__Generated *m);
    // Cannot be set up, or dies again and again: the job cannot run.
    void (*failed)(void *user, int worker, const struct td_err *err);
};

struct td_pool_config {
    struct td_loop *loop;
    struct td_children *children;
    const char *dir;     // of the sockets: DIR/NAME-0.sock ...; borrowed for the pool's life
    const char *name;    // train | rollout
    const char *program; // tandem-worker
    const char *host;    // under which other machines reach the workers; NULL: 127.0.0.1
    int count;
    uint64_t controller, job, journal_id;
    int64_t grace_s, silent_ms, start_ms,
        request_ms; // silent_ms: no heartbeat; request_ms: one request
    bool verbose;
    const Tandem__Worker__Setup *setup; // rank is filled in here; borrowed for the pool's life
    struct td_pool_fns fns;
    void *user;
};

struct td_pool *td_pool_new(const struct td_pool_config *config);
// Sends Stop to every worker; done(user) on the loop when all have gone (those that do not within
// stop_ms are killed), their sockets too. Afterwards td_pool_free.
void td_pool_stop(struct td_pool *p, int64_t stop_ms, td_loop_fn *done, void *user);
// Leaves the workers running, to be attached again. Requests without an answer get NULL now; no
// other callback is made, then or later.
void td_pool_free(struct td_pool *p);

bool td_pool_is_up(const struct td_pool *p, int worker);
// Sends a request to a worker that is up (else reply is called with NULL in a later turn). One with
// TD_POOL_PENDING_MAX requests unanswered is ended. frame->seq is set here.
void td_pool_send(struct td_pool *p, int worker, td_frame *frame, int fd, td_pool_reply_fn *reply,
                  void *user);
// Ends a worker that cannot be trusted any more, in a later turn (down tells); it is replaced.
void td_pool_kill(struct td_pool *p, int worker, const char *cause);
// What people are told of each worker. Texts are borrowed until the next turn. Returns how many; p
// may be NULL: none.
size_t td_pool_states(const struct td_pool *p, Tandem__Sync__WorkerState out[TD_POOL_WORKERS_MAX]);

// Ends every worker that listens in dir, whoever started it (tandem run --fresh). Blocks up to
// wait_ms.
void td_pool_end_strangers(const char *dir, int64_t wait_ms);
// The same in every folder JOBS_DIR/N but that of job keep; the folders go when they are empty.
void td_pool_end_old(const char *jobs_dir, uint64_t keep, int64_t wait_ms);

#endif
