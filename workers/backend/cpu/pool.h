// Threads that share one job at a time. A job is cut into as many parts as there are threads: a
// static partition, so that scratch memory belongs to a part. Whoever is awake takes the next part,
// so that a thread without a processor delays nobody. Owned by the thread that made it, which
// helps.
#ifndef TD_WORKERS_BACKEND_CPU_POOL_H
#define TD_WORKERS_BACKEND_CPU_POOL_H

#include <stdint.h>

#include "lib/base/err.h"

struct td_pool;

// threads ≥ 1, the calling one included. Fails when the system gives no thread.
enum td_rc td_pool_new(int threads, struct td_pool **out, struct td_err *err) TD_MUST_CHECK;
void td_pool_free(struct td_pool *pool); // accepts NULL
int td_pool_threads(const struct td_pool *pool);

// Calls fn(arg, part, parts) once for every part, parts being the number of threads; returns when
// all are done. Idle threads spin briefly, then sleep.
typedef void (*td_pool_fn)(void *arg, int part, int parts);
void td_pool_run(struct td_pool *pool, td_pool_fn fn, void *arg);

// Part's share [*lo, *hi) of n, cut at multiples of grain. Pure.
struct td_share {
    int64_t lo, hi;
};
struct td_share td_pool_share(int64_t n, int64_t grain, int part, int parts);

#endif
