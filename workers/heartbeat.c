// The heartbeat thread: see heartbeat.h.
#include "workers/heartbeat.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum { BEAT_MS = 1000 };

struct td_heartbeat {
    pthread_t thread;
    pthread_mutex_t lock; // guards conn and stop; held while a beat is sent
    pthread_cond_t wake;
    struct td_ipc_conn *conn;
    bool stop;
    int64_t grace_ms;
    const char *socket_path;
    struct td_ipc_place place; // of the socket, as it was made
    int listener;
    // Written by the command thread, read by the heartbeat thread.
    _Atomic int64_t alone_since_ms; // 0: a controller is attached
    atomic_int doing;
    _Atomic int64_t doing_since_ms;
    _Atomic uint64_t progress, generated_tokens;
    _Atomic uint32_t open_sequences;
};

static const char *const doing_names[] = {"idle", "setup",   "ring",     "load",
                                          "prep", "step",    "finish",   "save",
                                          "pull", "prepare", "generate", "score"};
_Static_assert(sizeof doing_names / sizeof *doing_names == TD_DOING_COUNT, "a name for each");

static void beat(struct td_heartbeat *h) {
    Tandem__Worker__Heartbeat body = TANDEM__WORKER__HEARTBEAT__INIT;
    body.progress = atomic_load(&h->progress);
    body.doing = (char *)doing_names[atomic_load(&h->doing)];
    body.since_ms = (uint64_t)atomic_load(&h->doing_since_ms);
    body.generated_tokens = atomic_load(&h->generated_tokens);
    body.open_sequences = atomic_load(&h->open_sequences);
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_HEARTBEAT;
    frame.heartbeat = &body;
    struct td_err err;
    if (td_ipc_send(h->conn, &frame, NULL, 0, &err) != TD_OK) {
        // The command thread may be busy for long: the time alone counts from now.
        int64_t attached = 0;
        atomic_compare_exchange_strong(&h->alone_since_ms, &attached, td_clock_ms());
    }
}

// A controller that connects while the command thread is busy is attached when that is done.
static bool somebody_waits(const struct td_heartbeat *h) {
    struct pollfd p = {.fd = h->listener, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static void *beat_loop(void *arg) {
    struct td_heartbeat *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        if (h->conn) {
            beat(h);
        }
        int64_t alone = atomic_load(&h->alone_since_ms);
        bool found = td_ipc_is_at(h->socket_path, h->place); // else nobody can come any more
        if (alone && (!found || td_clock_ms() - alone > h->grace_ms) && !somebody_waits(h)) {
            td_trace_warn("no controller came back", "grace_ms=%lld socket=%s",
                          (long long)h->grace_ms, found ? "there" : "replaced or gone");
            td_ipc_unlink(h->socket_path, &h->place);
            _exit(0);
        }
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += BEAT_MS / 1000;
        while (!h->stop && pthread_cond_timedwait(&h->wake, &h->lock, &until) != ETIMEDOUT) {
        }
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

struct td_heartbeat *td_heartbeat_start(int64_t grace_ms, const char *socket_path, int listener) {
    struct td_heartbeat *h = td_alloc(sizeof *h);
    h->grace_ms = grace_ms;
    h->socket_path = socket_path;
    h->place = td_ipc_place(socket_path);
    h->listener = listener;
    atomic_store(&h->alone_since_ms, td_clock_ms());
    atomic_store(&h->doing_since_ms, td_clock_ms());
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &attr);
    pthread_condattr_destroy(&attr);
    td_assert_op(pthread_create(&h->thread, NULL, beat_loop, h), ==, 0);
    return h;
}

void td_heartbeat_stop(struct td_heartbeat *h) {
    if (!h) {
        return;
    }
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    td_free(h);
}

void td_heartbeat_attach(struct td_heartbeat *h, struct td_ipc_conn *conn) {
    pthread_mutex_lock(&h->lock);
    h->conn = conn;
    atomic_store(&h->alone_since_ms, conn ? 0 : td_clock_ms());
    pthread_mutex_unlock(&h->lock);
}

void td_heartbeat_doing(struct td_heartbeat *h, enum td_doing doing) {
    if (atomic_load(&h->doing) != (int)doing) {
        atomic_store(&h->doing, (int)doing);
        atomic_store(&h->doing_since_ms, td_clock_ms());
    }
    atomic_fetch_add(&h->progress, 1);
}

void td_heartbeat_progress(struct td_heartbeat *h, uint64_t generated_tokens,
                           uint32_t open_sequences) {
    atomic_store(&h->generated_tokens, generated_tokens);
    atomic_store(&h->open_sequences, open_sequences);
    atomic_fetch_add(&h->progress, 1);
}
