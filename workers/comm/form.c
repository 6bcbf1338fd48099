// Forming the ring: listener, connecting to the next rank, accepting the one before, handshakes.
// Command thread. A stranger on the port, a peer of another gang or generation, and garbage are
// refused without disturbing the wait for the right peer.
#include "workers/comm/ring_int.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "workers/comm/tcp.h"

struct td_comm_listener {
    int fd;
};

enum { HELLO_MAGIC = 0x54644731, ANSWER_MAGIC = 0x54644132, STRANGERS_MAX = 16 };

// Both travel in the byte order of the machine: a ring is made of like machines, and a foreign
// order fails at the magic.
struct hello {
    uint32_t magic, link;
    uint64_t key;
    uint32_t rank, size;
};
_Static_assert(sizeof(struct hello) == 24, "no padding on the wire");

enum verdict { WELCOME, WRONG_KEY, WRONG_SIZE, WRONG_RANK, WRONG_LINK, VERDICT_COUNT };
static const char *const verdict_text[] = {
    "welcome",      "another key (job, gang or generation)", "another size",
    "another rank", "a connection that is there already",
};
_Static_assert(sizeof verdict_text / sizeof *verdict_text == VERDICT_COUNT, "one text each");

struct answer {
    uint32_t magic, verdict;
};

// A connection that was accepted and has not said who it is.
struct stranger {
    int fd;
    size_t len;
    struct hello hello;
};

struct forming {
    struct td_ring *r;
    struct stranger strangers[STRANGERS_MAX];
    int count;
    int refused;           // connections turned away
    const char *last_word; // why the last one was
    struct answer answers[TD_LINK_COUNT];
    size_t answer_len[TD_LINK_COUNT];
};

enum td_rc td_comm_listen(const char *host, struct td_comm_listener **out, char **address,
                          struct td_err *err) {
    int fd = -1;
    if (td_tcp_listen(host, STRANGERS_MAX, &fd, address, err) != TD_OK) {
        return td_err_in(err, "ring: listen on %s", host ? host : "127.0.0.1");
    }
    *out = td_alloc(sizeof **out);
    (*out)->fd = fd;
    return TD_OK;
}

void td_comm_listener_free(struct td_comm_listener *l) {
    if (l) {
        close(l->fd);
        td_free(l);
    }
}

static enum td_rc say_hello(const struct td_ring *r, enum td_link link, struct td_err *err) {
    struct hello hello = {
        .magic = HELLO_MAGIC,
        .link = link,
        .key = r->base.key,
        .rank = (uint32_t)r->base.rank,
        .size = (uint32_t)r->base.size,
    };
    ssize_t n = send(r->fd[TD_SIDE_NEXT][link], &hello, sizeof hello, MSG_NOSIGNAL);
    if (n != (ssize_t)sizeof hello) { // the first bytes of a connection always fit
        return td_fail_errno(err, n < 0 ? errno : EIO, "hello");
    }
    return TD_OK;
}

static enum td_rc connect_next(struct td_ring *r, const char *address, int64_t deadline_ms,
                               struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (int link = 0; link < TD_LINK_COUNT && rc == TD_OK; link++) {
        rc = td_tcp_connect(address, deadline_ms, &r->fd[TD_SIDE_NEXT][link], err);
        if (rc == TD_OK) {
            rc = say_hello(r, (enum td_link)link, err);
        }
    }
    return rc;
}

static enum verdict judge(const struct td_ring *r, const struct hello *hello) {
    int prev = (r->base.rank + r->base.size - 1) % r->base.size;
    if (hello->key != r->base.key) {
        return WRONG_KEY;
    }
    if (hello->size != (uint32_t)r->base.size) {
        return WRONG_SIZE;
    }
    if (hello->rank != (uint32_t)prev) {
        return WRONG_RANK;
    }
    if (hello->link >= TD_LINK_COUNT || r->fd[TD_SIDE_PREV][hello->link] >= 0) {
        return WRONG_LINK;
    }
    return WELCOME;
}

static void drop_stranger(struct forming *f, int i, const char *why) {
    if (why) {
        close(f->strangers[i].fd);
        f->refused++;
        f->last_word = why;
    }
    f->strangers[i] = f->strangers[--f->count];
}

// Reads on; answers and admits or refuses once the hello is whole. Removes it from the list then.
static void hear_stranger(struct forming *f, int i) {
    struct stranger *s = &f->strangers[i];
    ssize_t n = recv(s->fd, (char *)&s->hello + s->len, sizeof s->hello - s->len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        drop_stranger(f, i, "closed before its hello");
        return;
    }
    s->len += (size_t)n;
    if (s->len >= sizeof s->hello.magic && s->hello.magic != HELLO_MAGIC) {
        drop_stranger(f, i, "bytes that are no hello");
        return;
    }
    if (s->len < sizeof s->hello) {
        return;
    }
    enum verdict v = judge(f->r, &s->hello);
    struct answer answer = {.magic = ANSWER_MAGIC, .verdict = v};
    bool told = send(s->fd, &answer, sizeof answer, MSG_NOSIGNAL) == (ssize_t)sizeof answer;
    if (v != WELCOME || !told) {
        drop_stranger(f, i, v != WELCOME ? verdict_text[v] : "closed before our answer");
        return;
    }
    f->r->fd[TD_SIDE_PREV][s->hello.link] = s->fd;
    drop_stranger(f, i, NULL);
}

static void accept_strangers(struct forming *f, int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            return; // none left, or one that went away before we came
        }
        if (f->count == STRANGERS_MAX) { // those who say nothing make room
            drop_stranger(f, 0, "silent");
        }
        td_tcp_no_delay(fd);
        f->strangers[f->count++] = (struct stranger){.fd = fd};
    }
}

static enum td_rc hear_answer(struct forming *f, int link, struct td_err *err) {
    struct answer *a = &f->answers[link];
    size_t *len = &f->answer_len[link];
    ssize_t n = recv(f->r->fd[TD_SIDE_NEXT][link], (char *)a + *len, sizeof *a - *len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return TD_OK;
    }
    if (n <= 0) {
        return td_fail(err, TD_ECLOSED, "it closed the connection before it answered");
    }
    *len += (size_t)n;
    if (*len < sizeof *a) {
        return TD_OK;
    }
    if (a->magic != ANSWER_MAGIC || a->verdict >= VERDICT_COUNT) {
        return td_fail(err, TD_ECORRUPT, "its answer is not that of a ring");
    }
    if (a->verdict != WELCOME) {
        return td_fail(err, TD_ECONFLICT, "it refused us: it expects %s", verdict_text[a->verdict]);
    }
    return TD_OK;
}

static bool answered(const struct forming *f, int link) {
    return f->answer_len[link] == sizeof f->answers[link];
}

static bool whole(const struct forming *f) {
    return answered(f, TD_LINK_DATA) && answered(f, TD_LINK_NOTE) &&
           f->r->fd[TD_SIDE_PREV][TD_LINK_DATA] >= 0 && f->r->fd[TD_SIDE_PREV][TD_LINK_NOTE] >= 0;
}

// One wait and what came of it. Answers are polled only while they are missing: notes may follow
// them at once.
static enum td_rc form_turn(struct forming *f, int listener, int64_t deadline_ms,
                            struct td_err *err) {
    struct pollfd p[1 + TD_LINK_COUNT + STRANGERS_MAX] = {{.fd = listener, .events = POLLIN}};
    for (int link = 0; link < TD_LINK_COUNT; link++) {
        int fd = answered(f, link) ? -1 : f->r->fd[TD_SIDE_NEXT][link];
        p[1 + link] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    int count = f->count;
    for (int i = 0; i < count; i++) {
        p[1 + TD_LINK_COUNT + i] = (struct pollfd){.fd = f->strangers[i].fd, .events = POLLIN};
    }
    if (poll(p, (nfds_t)(1 + TD_LINK_COUNT + count), td_tcp_wait_ms(deadline_ms)) < 0 &&
        errno != EINTR) {
        return td_fail_errno(err, errno, "poll");
    }
    int size = f->r->base.size, next = (f->r->base.rank + 1) % size;
    for (int link = 0; link < TD_LINK_COUNT; link++) {
        if (p[1 + link].revents && hear_answer(f, link, err) != TD_OK) {
            return td_err_in(err, "rank %d", next);
        }
    }
    for (int i = count - 1; i >= 0; i--) { // backwards: removal fills a place with a later one
        if (p[1 + TD_LINK_COUNT + i].revents) {
            hear_stranger(f, i);
        }
    }
    if (p[0].revents) {
        accept_strangers(f, listener);
    }
    return TD_OK;
}

static enum td_rc too_late(const struct forming *f, struct td_err *err) {
    int size = f->r->base.size, rank = f->r->base.rank;
    bool answers = answered(f, TD_LINK_DATA) && answered(f, TD_LINK_NOTE);
    if (f->refused > 0 && answers) {
        return td_fail(err, TD_ETIMEOUT,
                       "rank %d did not connect in time (%d connections refused, the last for %s)",
                       (rank + size - 1) % size, f->refused, f->last_word);
    }
    return td_fail(err, TD_ETIMEOUT, "rank %d did not %s in time",
                   answers ? (rank + size - 1) % size : (rank + 1) % size,
                   answers ? "connect" : "answer");
}

enum td_rc td_ring_form(struct td_ring *r, struct td_comm_listener *l, const char *const *addresses,
                        int64_t deadline_ms, struct td_err *err) {
    int next = (r->base.rank + 1) % r->base.size;
    td_assert(l != NULL);
    if (connect_next(r, addresses[next], deadline_ms, err) != TD_OK) {
        return td_err_in(err, "rank %d at %s", next, addresses[next]);
    }
    struct forming f = {.r = r};
    enum td_rc rc = TD_OK;
    while (rc == TD_OK && !whole(&f)) {
        if (td_clock_ms() >= deadline_ms) {
            rc = too_late(&f, err);
            break;
        }
        rc = form_turn(&f, l->fd, deadline_ms, err);
    }
    for (int i = 0; i < f.count; i++) {
        close(f.strangers[i].fd);
    }
    return rc;
}
