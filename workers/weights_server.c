// Serves snapshots to other workers: see weights.h. One thread polls two listeners and at most
// TD_WEIGHTS_CLIENTS_MAX connections, never waits for one of them, and owns all but the table of
// what is kept. A connection is one request and one answer; what it was promised it gets, whatever
// is kept meanwhile.
#include "workers/weights.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/ipc/conn.h"
#include "workers/comm/tcp.h"
#include "workers/weights_int.h"

enum {
    PIECE_BYTES = 4 << 20, // to one client before the next one has its turn
    ACCEPT_PAUSE_MS = 200, // out of descriptors
};

struct kept {
    uint64_t step, digest;
    int fd;
};

struct client {
    int fd;
    bool local; // UNIX
    bool answered;
    struct td_weights_request request;
    size_t got;
    int snapshot; // owned; −1: nothing to send
    uint64_t at, end;
    int64_t deadline_ms; // of the next progress
};

enum { WAKE, LOCAL, REMOTE, CLIENTS }; // places among what is polled

struct td_weights_server {
    pthread_t thread;
    int wake, local, remote; // wake: an eventfd, readable when it is to end
    char *socket_path, *address;
    struct td_ipc_place place;         // of the socket, as it was made
    pthread_mutex_t lock;              // guards the table
    struct kept kept[TD_WEIGHTS_KEPT]; // oldest first
    size_t kept_count;
    // the thread's own
    struct client clients[TD_WEIGHTS_CLIENTS_MAX];
    int client_count;
    int64_t accept_ms; // not before
};

void td_weights_swap_request(struct td_weights_request *r) {
    r->magic = htole32(r->magic);
    r->version = htole32(r->version);
    r->step = htole64(r->step);
    r->digest = htole64(r->digest);
    r->offset = htole64(r->offset);
}

void td_weights_swap_answer(struct td_weights_answer *a) {
    a->magic = htole32(a->magic);
    a->status = htole32(a->status);
    a->total = htole64(a->total);
    a->offset = htole64(a->offset);
}

void td_weights_boot_id(char out[TD_BOOT_ID_MAX]) {
    struct td_buf text = {0};
    struct td_err err;
    enum td_rc rc =
        td_file_read("/proc/sys/kernel/random/boot_id", TD_BOOT_ID_MAX - 1, &text, &err);
    size_t n = strcspn(td_buf_str(&text), " \n");
    const char *id = rc == TD_OK && n > 0 ? td_buf_str(&text) : "unknown";
    n = rc == TD_OK && n > 0 ? n : strlen(id);
    memcpy(out, id, n);
    out[n] = 0;
    td_buf_fini(&text);
}

// ---- what is kept ----

// A duplicate of what is asked for, or −1.
static int find_kept(struct td_weights_server *s, uint64_t step, uint64_t digest) {
    int fd = -1;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->kept_count; i++) {
        if (s->kept[i].step == step && s->kept[i].digest == digest) {
            fd = fcntl(s->kept[i].fd, F_DUPFD_CLOEXEC, 0);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return fd;
}

enum td_rc td_weights_serve(struct td_weights_server *s, uint64_t step, uint64_t digest, int fd,
                            struct td_err *err) {
    struct kept added = {step, digest, fcntl(fd, F_DUPFD_CLOEXEC, 0)};
    if (added.fd < 0) {
        return td_fail_errno(err, errno, "snapshot to be served");
    }
    pthread_mutex_lock(&s->lock);
    size_t gone = 0;
    while (gone < s->kept_count && (s->kept[gone].step != step || s->kept[gone].digest != digest)) {
        gone++;
    }
    if (gone == s->kept_count && gone == TD_WEIGHTS_KEPT) {
        gone = 0;
    }
    if (gone < s->kept_count) {
        close(s->kept[gone].fd);
        s->kept_count--;
        memmove(s->kept + gone, s->kept + gone + 1, sizeof *s->kept * (s->kept_count - gone));
    }
    s->kept[s->kept_count++] = added;
    pthread_mutex_unlock(&s->lock);
    return TD_OK;
}

// ---- one client ----

static void drop_client(struct td_weights_server *s, int i) {
    struct client *c = &s->clients[i];
    close(c->fd);
    if (c->snapshot >= 0) {
        close(c->snapshot);
    }
    *c = s->clients[--s->client_count];
}

// The first bytes of a connection always fit.
static bool send_answer(const struct client *c, const struct td_weights_answer *answer) {
    struct iovec iov = {(void *)answer, sizeof *answer};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    if (c->local && c->snapshot >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &c->snapshot, sizeof(int));
    }
    return sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *answer;
}

// false: the connection is over.
static bool answer_request(struct td_weights_server *s, struct client *c) {
    struct td_weights_answer answer = {
        .magic = TD_WEIGHTS_MAGIC, .status = TD_WEIGHTS_NOT_HELD, .offset = c->request.offset};
    struct stat st;
    c->answered = true;
    c->snapshot = find_kept(s, c->request.step, c->request.digest);
    if (c->snapshot >= 0 && fstat(c->snapshot, &st) == 0) {
        answer.total = (uint64_t)st.st_size;
        bool in_range = c->request.offset <= answer.total;
        answer.status = in_range ? TD_WEIGHTS_HERE : TD_WEIGHTS_BAD_OFFSET;
        c->at = c->request.offset;
        c->end = answer.total;
    }
    bool more = answer.status == TD_WEIGHTS_HERE && !c->local && c->at < c->end;
    td_weights_swap_answer(&answer);
    return send_answer(c, &answer) && more;
}

static bool read_request(struct td_weights_server *s, struct client *c) {
    ssize_t n = recv(c->fd, (char *)&c->request + c->got, sizeof c->request - c->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (n <= 0) {
        return false;
    }
    c->got += (size_t)n;
    if (c->got < sizeof c->request) {
        return true;
    }
    td_weights_swap_request(&c->request);
    if (c->request.magic != TD_WEIGHTS_MAGIC || c->request.version != TD_WEIGHTS_VERSION) {
        return false;
    }
    c->deadline_ms = td_clock_ms() + TD_WEIGHTS_STALL_MS;
    return answer_request(s, c);
}

static bool send_bytes(struct client *c) {
    uint64_t left = c->end - c->at;
    off_t at = (off_t)c->at;
    ssize_t n = sendfile(c->fd, c->snapshot, &at, left < PIECE_BYTES ? (size_t)left : PIECE_BYTES);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (n <= 0) {
        return false;
    }
    c->at += (uint64_t)n;
    c->deadline_ms = td_clock_ms() + TD_WEIGHTS_STALL_MS;
    return c->at < c->end;
}

// ---- the thread ----

static void accept_clients(struct td_weights_server *s, int listener, bool local) {
    while (s->client_count < TD_WEIGHTS_CLIENTS_MAX) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                s->accept_ms = td_clock_ms() + ACCEPT_PAUSE_MS;
            }
            return;
        }
        s->clients[s->client_count++] =
            (struct client){.fd = fd,
                            .local = local,
                            .snapshot = -1,
                            .deadline_ms = td_clock_ms() + TD_WEIGHTS_REQUEST_MS};
    }
}

// Fills what is polled; returns how long at most.
static int fill_polled(const struct td_weights_server *s, struct pollfd *p) {
    int64_t now = td_clock_ms(), until = INT64_MAX;
    bool paused = now < s->accept_ms, full = s->client_count == TD_WEIGHTS_CLIENTS_MAX;
    p[WAKE] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    p[LOCAL] = (struct pollfd){.fd = paused || full ? -1 : s->local, .events = POLLIN};
    p[REMOTE] = (struct pollfd){.fd = paused || full ? -1 : s->remote, .events = POLLIN};
    for (int i = 0; i < s->client_count; i++) {
        const struct client *c = &s->clients[i];
        p[CLIENTS + i] = (struct pollfd){.fd = c->fd, .events = c->answered ? POLLOUT : POLLIN};
        until = c->deadline_ms < until ? c->deadline_ms : until;
    }
    until = paused && s->accept_ms < until ? s->accept_ms : until;
    return until == INT64_MAX ? -1 : td_tcp_wait_ms(until);
}

static void serve_clients(struct td_weights_server *s, const struct pollfd *p) {
    // Backwards: removal fills a place with a later one.
    for (int i = s->client_count - 1; i >= 0; i--) {
        struct client *c = &s->clients[i];
        bool goes_on = true;
        if (p[CLIENTS + i].revents) {
            goes_on = c->answered ? send_bytes(c) : read_request(s, c);
        }
        if (goes_on && td_clock_ms() > c->deadline_ms) {
            td_trace_info("weights: a reader is cut off", "sent=%llu of=%llu",
                          (unsigned long long)c->at, (unsigned long long)c->end);
            goes_on = false;
        }
        if (!goes_on) {
            drop_client(s, i);
        }
    }
}

static void *serve_loop(void *arg) {
    struct td_weights_server *s = arg;
    struct pollfd p[CLIENTS + TD_WEIGHTS_CLIENTS_MAX];
    for (;;) {
        int timeout = fill_polled(s, p);
        if (poll(p, (nfds_t)(CLIENTS + s->client_count), timeout) < 0) {
            td_assert_op(errno, ==, EINTR);
            continue;
        }
        if (p[WAKE].revents) {
            return NULL;
        }
        serve_clients(s, p);
        if (p[LOCAL].revents) {
            accept_clients(s, s->local, true);
        }
        if (p[REMOTE].revents) {
            accept_clients(s, s->remote, false);
        }
    }
}

// Signals are the command thread's; sendfile to one that has gone would raise SIGPIPE.
static void start_thread(struct td_weights_server *s) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    td_assert_op(pthread_create(&s->thread, NULL, serve_loop, s), ==, 0);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static enum td_rc open_server(struct td_weights_server *s, const char *socket_path,
                              const char *host, struct td_err *err) {
    char boot[TD_BOOT_ID_MAX];
    char *remote = NULL;
    if (socket_path[0] != '/') {
        return td_fail(err, TD_EINVAL, "socket %s: an absolute path is needed", socket_path);
    }
    enum td_rc rc = td_ipc_listen(socket_path, &s->local, err);
    if (rc != TD_OK) {
        return rc;
    }
    s->socket_path = td_strdup(socket_path);
    s->place = td_ipc_place(socket_path);
    if (listen(s->local, TD_WEIGHTS_CLIENTS_MAX) != 0) { // more may wait than at a command socket
        return td_fail_errno(err, errno, "cannot listen at %s", socket_path);
    }
    rc = td_tcp_listen(host, TD_WEIGHTS_CLIENTS_MAX, &s->remote, &remote, err);
    if (rc != TD_OK) {
        return rc;
    }
    td_weights_boot_id(boot);
    s->address = td_asprintf("%s unix:%s tcp:%s", boot, socket_path, remote);
    td_free(remote);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s->wake >= 0 ? TD_OK : td_fail_errno(err, errno, "eventfd");
}

static void close_server(struct td_weights_server *s) {
    const int fds[] = {s->wake, s->local, s->remote};
    if (s->socket_path && td_ipc_is_at(s->socket_path, s->place)) {
        unlink(s->socket_path);
    }
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    while (s->client_count > 0) {
        drop_client(s, s->client_count - 1);
    }
    for (size_t i = 0; i < s->kept_count; i++) {
        close(s->kept[i].fd);
    }
    pthread_mutex_destroy(&s->lock);
    td_free(s->socket_path);
    td_free(s->address);
    td_free(s);
}

enum td_rc td_weights_server_new(const char *socket_path, const char *host,
                                 struct td_weights_server **out, struct td_err *err) {
    struct td_weights_server *s = td_alloc(sizeof *s);
    s->wake = s->local = s->remote = -1;
    pthread_mutex_init(&s->lock, NULL);
    if (open_server(s, socket_path, host, err) != TD_OK) {
        close_server(s);
        return td_err_in(err, "serving weights");
    }
    start_thread(s);
    *out = s;
    return TD_OK;
}

void td_weights_server_free(struct td_weights_server *s) {
    if (!s) {
        return;
    }
    const uint64_t one = 1;
    td_assert_op(write(s->wake, &one, sizeof one), ==, sizeof one);
    pthread_join(s->thread, NULL);
    close_server(s);
}

const char *td_weights_server_address(const struct td_weights_server *s) {
    return s->address;
}
