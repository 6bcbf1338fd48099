// The thread pool: see pool.h. One job at a time. `turn` counts jobs and hands fn and arg to the
// threads (release in run, acquire in wait_turn); `busy` counts threads still at it and hands their
// writes back (release in serve, acquire in run). The mutex serves only those who sleep.
#include "workers/backend/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

enum { SPINS = 4000, THREADS_MAX = 256 };

struct td_pool {
    int threads, started;
    pthread_t *ids;
    td_pool_fn fn;
    void *arg;
    bool stop;
    atomic_uint turn, busy;
    atomic_int asleep;        // threads that wait for a turn on `wake`
    atomic_bool owner_asleep; // the owner waits for busy = 0 on `done`
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
};

struct seat {
    struct td_pool *pool;
    int part;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_turn(struct td_pool *pool, unsigned seen) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->turn, memory_order_acquire) != seen) {
            return;
        }
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->asleep, 1); // partner: run reads it after it moved turn
    while (atomic_load(&pool->turn) == seen) {
        pthread_cond_wait(&pool->wake, &pool->mutex);
    }
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *serve(void *arg) {
    struct seat *seat = arg;
    struct td_pool *pool = seat->pool;
    int part = seat->part;
    td_free(seat);
    for (unsigned seen = 0;; seen++) {
        wait_turn(pool, seen);
        if (pool->stop) {
            return NULL;
        }
        pool->fn(pool->arg, part, pool->threads);
        if (atomic_fetch_sub(&pool->busy, 1) == 1 && atomic_load(&pool->owner_asleep)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static void start_turn(struct td_pool *pool) {
    atomic_fetch_add(&pool->turn, 1);
    if (atomic_load(&pool->asleep)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void wait_done(struct td_pool *pool) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->busy, memory_order_acquire) == 0) {
            return;
        }
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->owner_asleep, true); // partner: serve reads it after it lowered busy
    while (atomic_load(&pool->busy)) {
        pthread_cond_wait(&pool->done, &pool->mutex);
    }
    atomic_store(&pool->owner_asleep, false);
    pthread_mutex_unlock(&pool->mutex);
}

void td_pool_run(struct td_pool *pool, td_pool_fn fn, void *arg) {
    if (pool->threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    atomic_store(&pool->busy, (unsigned)pool->threads - 1);
    start_turn(pool);
    fn(arg, 0, pool->threads);
    wait_done(pool);
}

enum td_rc td_pool_new(int threads, struct td_pool **out, struct td_err *err) {
    if (threads < 1 || threads > THREADS_MAX) {
        return td_fail(err, TD_EINVAL, "%d threads asked for; 1 to %d are possible", threads,
                       THREADS_MAX);
    }
    struct td_pool *pool = td_alloc(sizeof *pool);
    pool->threads = threads;
    pool->ids = td_alloc_array((size_t)threads, sizeof *pool->ids);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int part = 1; part < threads; part++) {
        struct seat *seat = td_alloc(sizeof *seat);
        *seat = (struct seat){.pool = pool, .part = part};
        int failed = pthread_create(&pool->ids[pool->started], NULL, serve, seat);
        if (failed) {
            td_free(seat);
            td_pool_free(pool);
            return td_fail_errno(err, failed, "thread %d of %d", part + 1, threads);
        }
        pool->started++;
    }
    *out = pool;
    return TD_OK;
}

void td_pool_free(struct td_pool *pool) {
    if (!pool) {
        return;
    }
    pool->stop = true;
    start_turn(pool);
    for (int i = 0; i < pool->started; i++) {
        pthread_join(pool->ids[i], NULL);
    }
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    td_free(pool->ids);
    td_free(pool);
}

int td_pool_threads(const struct td_pool *pool) {
    return pool->threads;
}

struct td_share td_pool_share(int64_t n, int64_t grain, int part, int parts) {
    td_assert(grain >= 1 && parts >= 1);
    int64_t grains = (n + grain - 1) / grain;
    int64_t lo = grains * part / parts * grain, hi = grains * (part + 1) / parts * grain;
    return (struct td_share){.lo = lo < n ? lo : n, .hi = hi < n ? hi : n};
}
