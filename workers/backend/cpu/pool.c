// The thread pool: see pool.h. `claim` is the whole protocol: the job's number in its upper half,
// the next free part in its lower half. A part is taken by compare-and-swap, which fails once the
// job is over, so fn and arg read before it are that job's. `finished` hands a part's writes back
// (release in take_parts, acquire in wait_finished). The mutex serves only those who sleep.
#include "workers/backend/cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

enum { SPINS = 2000, THREADS_MAX = 256 };

struct td_pool {
    int threads, started, spins;
    pthread_t *ids;
    _Atomic(td_pool_fn) fn; // partner: read between two looks at claim
    _Atomic(void *) arg;
    atomic_bool stop;
    atomic_ullong claim;
    atomic_int finished;
    atomic_int asleep;        // threads that wait for a job on `wake`
    atomic_bool owner_asleep; // the owner waits for the last part on `done`
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint32_t job_of(unsigned long long claim) {
    return (uint32_t)(claim >> 32);
}

// Runs parts of the given job until none is free.
static void take_parts(struct td_pool *pool, uint32_t job) {
    for (;;) {
        unsigned long long claim = atomic_load_explicit(&pool->claim, memory_order_acquire);
        int part = (int)(uint32_t)claim;
        if (job_of(claim) != job || part >= pool->threads) {
            return;
        }
        td_pool_fn fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
        if (!atomic_compare_exchange_weak(&pool->claim, &claim, claim + 1)) {
            continue;
        }
        fn(arg, part, pool->threads);
        if (atomic_fetch_add(&pool->finished, 1) == pool->threads - 1 &&
            atomic_load(&pool->owner_asleep)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

// The number of a job other than the one seen.
static uint32_t wait_job(struct td_pool *pool, uint32_t seen) {
    for (int i = 0; i < pool->spins; i++) {
        uint32_t job = job_of(atomic_load_explicit(&pool->claim, memory_order_acquire));
        if (job != seen) {
            return job;
        }
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->asleep, 1); // partner: start_job reads it after it moved claim
    uint32_t job;
    while ((job = job_of(atomic_load(&pool->claim))) == seen) {
        pthread_cond_wait(&pool->wake, &pool->mutex);
    }
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->mutex);
    return job;
}

static void *serve(void *arg) {
    struct td_pool *pool = arg;
    for (uint32_t job = 0;;) {
        job = wait_job(pool, job);
        if (atomic_load(&pool->stop)) {
            return NULL;
        }
        take_parts(pool, job);
    }
}

static uint32_t start_job(struct td_pool *pool) {
    uint32_t job = job_of(atomic_load_explicit(&pool->claim, memory_order_relaxed)) + 1;
    atomic_store(&pool->claim, (unsigned long long)job << 32);
    if (atomic_load(&pool->asleep)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    return job;
}

static void wait_finished(struct td_pool *pool) {
    for (int i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->finished, memory_order_acquire) == pool->threads) {
            return;
        }
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->owner_asleep, true); // partner: take_parts reads it after it counted
    while (atomic_load(&pool->finished) != pool->threads) {
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
    atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&pool->finished, 0, memory_order_relaxed);
    take_parts(pool, start_job(pool));
    wait_finished(pool);
}

// Spinning helps only where each thread has a processor.
static int spins_for(int threads) {
    cpu_set_t set;
    bool room = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= threads;
    return room ? SPINS : 0;
}

enum td_rc td_pool_new(int threads, struct td_pool **out, struct td_err *err) {
    if (threads < 1 || threads > THREADS_MAX) {
        return td_fail(err, TD_EINVAL, "%d threads asked for; 1 to %d are possible", threads,
                       THREADS_MAX);
    }
    struct td_pool *pool = td_alloc(sizeof *pool);
    pool->threads = threads;
    pool->spins = spins_for(threads);
    pool->ids = td_alloc_array((size_t)threads, sizeof *pool->ids);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int part = 1; part < threads; part++) {
        int failed = pthread_create(&pool->ids[pool->started], NULL, serve, pool);
        if (failed) {
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
    atomic_store(&pool->stop, true);
    start_job(pool);
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
