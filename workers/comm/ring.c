// Collectives of the TCP ring: all-reduce as reduce-scatter and all-gather, barrier, notes, abort.
// Command thread, abort excepted.
//
// Order of summation: chunk c starts as rank c's summand; ranks c+1, c+2, … add theirs in turn:
// x[own] + incoming. So it depends on rank and size only, and as the finished chunk is then copied
// round the ring, every rank ends with the same bits.
//
// Notes keep failures truthful. A rank inside a call says ALIVE now and then, so a peer that is
// stopped, or that never entered the call, is told from one that waits as we do; and a rank that
// fails says FAILED(rank, code) to both sides before it closes, so the rank at fault is named
// everywhere and not the neighbour that merely heard of it first.
#include "workers/comm/ring_int.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum {
    ALIVE_MS = 50,   // between two notes that we live
    SILENT_MS = 250, // not heard of for so long at the deadline: at fault
    GRACE_MS = 500,  // past a deadline or a closed connection, for a note that names the fault
};

enum note_kind { NOTE_ALIVE = 1, NOTE_FAILED };

enum event { EVENT_NONE, EVENT_PREV_CLOSED, EVENT_NEXT_CLOSED };

// What one step of a collective still has to move.
struct flow {
    const char *out;
    size_t out_left;
    char *in; // where bytes land; summands land in r->landing instead when add is set
    size_t in_left;
    void (*add)(void *sum, const void *summand, size_t bytes);
    size_t width, held; // of an element; bytes of landing that hold less than an element
};

static struct td_ring *ring_of(struct td_comm *c) {
    return (struct td_ring *)(void *)c; // base is the first member
}

static int neighbour(const struct td_ring *r, enum td_side side) {
    int size = r->base.size;
    return (r->base.rank + (side == TD_SIDE_NEXT ? 1 : size - 1)) % size;
}

static void add_f32(void *sum, const void *summand, size_t bytes) {
    float *restrict y = sum;
    const float *restrict x = summand;
    for (size_t i = 0; i < bytes / sizeof *y; i++) {
        y[i] += x[i];
    }
}

static void add_f64(void *sum, const void *summand, size_t bytes) {
    double *restrict y = sum;
    const double *restrict x = summand;
    for (size_t i = 0; i < bytes / sizeof *y; i++) {
        y[i] += x[i];
    }
}

// Best effort: a note that does not fit is dropped, the peer has not read for very long then.
static void send_note(const struct td_ring *r, enum td_side side, enum note_kind kind,
                      enum td_rc code, int rank) {
    uint8_t note[4] = {(uint8_t)kind, (uint8_t)code, (uint8_t)(rank & 0xff), (uint8_t)(rank >> 8)};
    (void)!send(r->fd[side][TD_LINK_NOTE], note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void shut(const struct td_ring *r) {
    for (int side = 0; side < TD_SIDE_COUNT; side++) {
        for (int link = 0; link < TD_LINK_COUNT; link++) {
            (void)shutdown(r->fd[side][link], SHUT_RDWR);
        }
    }
}

// Ends the communicator: rank is at fault. Keeps the error for later calls.
static enum td_rc fail(struct td_ring *r, enum td_rc code, int rank, const char *what,
                       struct td_err *err) {
    r->failed = true;
    (void)td_fail(&r->why, code, "ring: rank %d %s", rank, what);
    send_note(r, TD_SIDE_PREV, NOTE_FAILED, code, rank);
    send_note(r, TD_SIDE_NEXT, NOTE_FAILED, code, rank);
    shut(r);
    return td_fail(err, code, "%s", r->why.msg);
}

static enum td_rc fail_aborted(struct td_ring *r, struct td_err *err) {
    r->failed = true;
    (void)td_fail(&r->why, TD_ECLOSED, "ring: aborted here, on rank %d", r->base.rank);
    return td_fail(err, TD_ECLOSED, "%s", r->why.msg);
}

static enum td_rc hear_note(struct td_ring *r, enum td_side side, struct td_err *err) {
    const uint8_t *note = r->note[side];
    r->note_len[side] = 0;
    r->heard_ms[side] = td_clock_ms();
    if (note[0] == NOTE_ALIVE) {
        return TD_OK;
    }
    int rank = note[2] | note[3] << 8;
    if (note[0] != NOTE_FAILED || rank >= r->base.size || note[1] >= TD_RC_COUNT) {
        return fail(r, TD_ECORRUPT, neighbour(r, side), "sent a note that is none", err);
    }
    enum td_rc code = note[1] == TD_ETIMEOUT ? TD_ETIMEOUT : TD_ECLOSED;
    return fail(r, code, rank, code == TD_ETIMEOUT ? "is silent" : "is gone", err);
}

// Reads the notes of one side; *closed: it has no more to say.
static enum td_rc hear_notes(struct td_ring *r, enum td_side side, bool *closed,
                             struct td_err *err) {
    for (;;) {
        size_t *len = &r->note_len[side];
        ssize_t n = recv(r->fd[side][TD_LINK_NOTE], r->note[side] + *len,
                         sizeof r->note[side] - *len, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            *closed = n == 0 || errno != EAGAIN;
            return TD_OK;
        }
        *len += (size_t)n;
        if (*len == sizeof r->note[side] && hear_note(r, side, err) != TD_OK) {
            return r->why.code;
        }
    }
}

// A needed connection to side is closed. What the peer said before it went names the fault; if it
// said nothing, it is at fault itself.
static enum td_rc closed_by(struct td_ring *r, enum td_side side, struct td_err *err) {
    int64_t until = td_clock_ms() + GRACE_MS;
    bool closed = false;
    while (!closed && td_clock_ms() < until) {
        struct pollfd p = {.fd = r->fd[side][TD_LINK_NOTE], .events = POLLIN};
        (void)poll(&p, 1, ALIVE_MS);
        enum td_rc rc = hear_notes(r, side, &closed, err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    return fail(r, TD_ECLOSED, neighbour(r, side), "is gone", err);
}

static enum event move_out(struct td_ring *r, struct flow *f) {
    ssize_t n = send(r->fd[TD_SIDE_NEXT][TD_LINK_DATA], f->out, f->out_left, MSG_NOSIGNAL);
    if (n < 0) {
        return errno == EAGAIN || errno == EINTR ? EVENT_NONE : EVENT_NEXT_CLOSED;
    }
    f->out += n;
    f->out_left -= (size_t)n;
    r->heard_ms[TD_SIDE_NEXT] = td_clock_ms(); // there was room, so it reads
    return EVENT_NONE;
}

static void land(struct td_ring *r, struct flow *f, size_t n) {
    size_t have = f->held + n, whole = have - have % f->width;
    f->add(f->in, r->landing, whole);
    f->in += whole;
    f->held = have - whole;
    memmove(r->landing, (char *)r->landing + whole, f->held);
}

static enum event move_in(struct td_ring *r, struct flow *f) {
    char *to = f->in;
    size_t most = f->in_left;
    if (f->add) {
        to = (char *)r->landing + f->held;
        most = most < TD_LANDING_BYTES - f->held ? most : TD_LANDING_BYTES - f->held;
    }
    ssize_t n = recv(r->fd[TD_SIDE_PREV][TD_LINK_DATA], to, most, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return EVENT_NONE;
    }
    if (n <= 0) {
        return EVENT_PREV_CLOSED;
    }
    f->in_left -= (size_t)n;
    r->heard_ms[TD_SIDE_PREV] = td_clock_ms();
    if (f->add) {
        land(r, f, (size_t)n);
    } else {
        f->in += n;
    }
    return EVENT_NONE;
}

// Past the deadline: who is at fault, if that can be said yet.
static enum td_rc too_late(struct td_ring *r, int64_t now, int64_t deadline_ms,
                           struct td_err *err) {
    int64_t prev = now - r->heard_ms[TD_SIDE_PREV], next = now - r->heard_ms[TD_SIDE_NEXT];
    enum td_side side = prev >= next ? TD_SIDE_PREV : TD_SIDE_NEXT;
    if ((prev >= next ? prev : next) > SILENT_MS) {
        return fail(r, TD_ETIMEOUT, neighbour(r, side), "is silent", err);
    }
    if (now > deadline_ms + GRACE_MS) {
        return fail(r, TD_ETIMEOUT, neighbour(r, TD_SIDE_PREV), "lives, but is late", err);
    }
    return TD_OK;
}

static void say_alive(struct td_ring *r, int64_t now) {
    if (now - r->alive_ms >= ALIVE_MS) {
        r->alive_ms = now;
        send_note(r, TD_SIDE_PREV, NOTE_ALIVE, TD_OK, r->base.rank);
        send_note(r, TD_SIDE_NEXT, NOTE_ALIVE, TD_OK, r->base.rank);
    }
}

static int note_fd(const struct td_ring *r, enum td_side side) {
    return r->note_closed[side] ? -1 : r->fd[side][TD_LINK_NOTE];
}

// Waits for something to do, but never longer than until the next sign of life is due.
static enum td_rc wait_turn(struct td_ring *r, const struct flow *f, int64_t deadline_ms,
                            struct td_err *err) {
    int64_t now = td_clock_ms();
    if (now >= deadline_ms) {
        enum td_rc rc = too_late(r, now, deadline_ms, err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    struct pollfd p[] = {
        {.fd = r->wake, .events = POLLIN},
        {.fd = note_fd(r, TD_SIDE_PREV), .events = POLLIN},
        {.fd = note_fd(r, TD_SIDE_NEXT), .events = POLLIN},
        {.fd = f->in_left ? r->fd[TD_SIDE_PREV][TD_LINK_DATA] : -1, .events = POLLIN},
        {.fd = f->out_left ? r->fd[TD_SIDE_NEXT][TD_LINK_DATA] : -1, .events = POLLOUT},
    };
    if (poll(p, sizeof p / sizeof *p, ALIVE_MS) < 0 && errno != EINTR) {
        return td_fail_errno(err, errno, "ring: poll");
    }
    say_alive(r, td_clock_ms());
    for (int side = 0; side < TD_SIDE_COUNT; side++) {
        if (p[1 + side].revents) {
            enum td_rc rc = hear_notes(r, (enum td_side)side, &r->note_closed[side], err);
            if (rc != TD_OK) {
                return rc;
            }
        }
    }
    return TD_OK;
}

// Moves f's bytes, both ways at once.
static enum td_rc exchange(struct td_ring *r, struct flow *f, int64_t deadline_ms,
                           struct td_err *err) {
    while (f->in_left || f->out_left) {
        size_t before = f->in_left + f->out_left;
        enum event event = f->out_left ? move_out(r, f) : EVENT_NONE;
        if (event == EVENT_NONE && f->in_left) {
            event = move_in(r, f);
        }
        if (atomic_load(&r->aborted)) {
            return fail_aborted(r, err);
        }
        if (event != EVENT_NONE) {
            return closed_by(r, event == EVENT_PREV_CLOSED ? TD_SIDE_PREV : TD_SIDE_NEXT, err);
        }
        if (f->in_left + f->out_left < before && td_clock_ms() < deadline_ms) {
            continue;
        }
        enum td_rc rc = wait_turn(r, f, deadline_ms, err);
        if (atomic_load(&r->aborted)) {
            return fail_aborted(r, err);
        }
        if (rc != TD_OK) {
            return rc;
        }
    }
    return TD_OK;
}

struct array {
    char *x;
    size_t n, width;
    void (*add)(void *sum, const void *summand, size_t bytes);
};

// Chunk c of size: the first n % size chunks are one element longer.
static char *chunk(const struct array *a, int size, int c, size_t *bytes) {
    size_t each = a->n / (size_t)size, more = a->n % (size_t)size, at = (size_t)c;
    *bytes = (each + (at < more)) * a->width;
    return a->x + (each * at + (at < more ? at : more)) * a->width;
}

static enum td_rc enter(struct td_ring *r, struct td_err *err) {
    if (atomic_load(&r->aborted) && !r->failed) {
        return fail_aborted(r, err);
    }
    if (r->failed) {
        return td_fail(err, r->why.code, "%s", r->why.msg);
    }
    r->alive_ms = r->heard_ms[TD_SIDE_PREV] = r->heard_ms[TD_SIDE_NEXT] = td_clock_ms();
    return TD_OK;
}

static enum td_rc all_reduce(struct td_ring *r, const struct array *a, int64_t deadline_ms,
                             struct td_err *err) {
    enum td_rc rc = enter(r, err);
    int size = r->base.size, rank = r->base.rank;
    for (int step = 0; rc == TD_OK && a->n > 0 && step < 2 * (size - 1); step++) {
        bool sum = step < size - 1;
        int give = (rank - step + 2 * size) % size; // the second half goes on where the first ends
        struct flow f = {.add = sum ? a->add : NULL, .width = a->width};
        f.out = chunk(a, size, give, &f.out_left);
        f.in = chunk(a, size, (give + size - 1) % size, &f.in_left);
        rc = exchange(r, &f, deadline_ms, err);
    }
    return rc;
}

static enum td_rc all_reduce_f32(struct td_comm *c, float *x, size_t n, int64_t deadline_ms,
                                 struct td_err *err) {
    struct array a = {.x = (char *)x, .n = n, .width = sizeof *x, .add = add_f32};
    return all_reduce(ring_of(c), &a, deadline_ms, err);
}

static enum td_rc all_reduce_f64(struct td_comm *c, double *x, size_t n, int64_t deadline_ms,
                                 struct td_err *err) {
    struct array a = {.x = (char *)x, .n = n, .width = sizeof *x, .add = add_f64};
    return all_reduce(ring_of(c), &a, deadline_ms, err);
}

// An all-reduce with one element per rank: each result has been through every rank.
static enum td_rc barrier(struct td_comm *c, int64_t deadline_ms, struct td_err *err) {
    double none[TD_COMM_RANKS_MAX] = {0};
    return all_reduce_f64(c, none, (size_t)c->size, deadline_ms, err);
}

static void abort_ring(struct td_comm *c) {
    struct td_ring *r = ring_of(c);
    if (atomic_exchange(&r->aborted, true)) {
        return;
    }
    send_note(r, TD_SIDE_PREV, NOTE_FAILED, TD_ECLOSED, c->rank);
    send_note(r, TD_SIDE_NEXT, NOTE_FAILED, TD_ECLOSED, c->rank);
    shut(r);
    uint64_t one = 1;
    (void)!write(r->wake, &one, sizeof one);
}

static void free_ring(struct td_comm *c) {
    struct td_ring *r = ring_of(c);
    for (int side = 0; side < TD_SIDE_COUNT; side++) {
        for (int link = 0; link < TD_LINK_COUNT; link++) {
            if (r->fd[side][link] >= 0) {
                close(r->fd[side][link]);
            }
        }
    }
    if (r->wake >= 0) {
        close(r->wake);
    }
    td_free(r->landing);
    td_free(r);
}

static const struct td_comm_ops ring_ops = {
    .all_reduce_f32 = all_reduce_f32,
    .all_reduce_f64 = all_reduce_f64,
    .barrier = barrier,
    .abort = abort_ring,
    .free = free_ring,
};

enum td_rc td_comm_tcp_new(struct td_comm_listener *l, const struct td_comm_place *place,
                           int64_t deadline_ms, struct td_comm **out, struct td_err *err) {
    int rank = place->rank, size = place->size;
    if (size < 1 || size > TD_COMM_RANKS_MAX || rank < 0 || rank >= size) {
        return td_fail(err, TD_EINVAL, "ring: rank %d of %d; at most %d ranks", rank, size,
                       TD_COMM_RANKS_MAX);
    }
    struct td_ring *r = td_alloc(sizeof *r);
    r->base = (struct td_comm){.ops = &ring_ops, .rank = rank, .size = size, .key = place->key};
    for (int side = 0; side < TD_SIDE_COUNT; side++) {
        for (int link = 0; link < TD_LINK_COUNT; link++) {
            r->fd[side][link] = -1;
        }
    }
    atomic_init(&r->aborted, false);
    r->landing = td_alloc(TD_LANDING_BYTES);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum td_rc rc = TD_OK;
    if (r->wake < 0) {
        rc = td_fail_errno(err, errno, "eventfd");
    } else if (size > 1) {
        rc = td_ring_form(r, l, place->addresses, deadline_ms, err);
    }
    if (rc != TD_OK) {
        free_ring(&r->base);
        return td_err_in(err, "ring: rank %d of %d", rank, size);
    }
    *out = &r->base;
    return TD_OK;
}

void td_comm_free(struct td_comm *c) {
    if (c) {
        c->ops->free(c);
    }
}
