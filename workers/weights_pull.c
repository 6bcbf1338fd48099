// Gets a snapshot from another worker: see weights.h. Blocks the calling thread; owns nothing
// beyond the call. Bytes that came from one source are gone on with at the next: equal digests are
// equal bytes.
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/ipc/conn.h"
#include "lib/ipc/snapshot.h"
#include "workers/comm/tcp.h"
#include "workers/weights.h"
#include "workers/weights_int.h"

enum {
    PIECE_BYTES = 8 << 20,
    PAUSE_MS = 50,       // before all are asked again
    CAUSE_MAX = 160,     // of one source in the message
    BYTES_MAX_BITS = 44, // of a snapshot whose size the caller does not know
};

struct pull {
    const struct td_weights_want *want;
    int fd;       // what is got; −1: nothing yet
    uint8_t *map; // TCP: where bytes arrive, total of them; NULL: none
    uint64_t total, at;
    bool done;
    bool absent, late; // a source does not hold it; one did not answer
    struct td_buf causes;
};

struct source {          // parts of an address, owned
    bool here;           // same machine
    char *path, *remote; // NULL: it is no address
};

static void parse_source(const char *address, const char *boot, struct source *out) {
    static const char local[] = " unix:", tcp[] = " tcp:";
    const char *path = strstr(address, local), *remote = NULL;
    for (const char *at = path; at; at = strstr(at + 1, tcp)) {
        remote = at != path ? at : remote; // the last one: a path may have spaces
    }
    if (!path || !remote) {
        return;
    }
    out->here = strlen(boot) == (size_t)(path - address) &&
                memcmp(boot, address, (size_t)(path - address)) == 0;
    path += sizeof local - 1;
    out->path = td_strndup(path, (size_t)(remote - path));
    out->remote = td_strdup(remote + sizeof tcp - 1);
}

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// The next time at which silence is too long.
static int64_t silence(const struct pull *p) {
    return earlier(p->want->deadline_ms, td_clock_ms() + TD_WEIGHTS_SILENT_MS);
}

static enum td_rc wait_readable(int fd, int64_t until_ms, struct td_err *err) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (;;) {
        int got = poll(&p, 1, td_tcp_wait_ms(until_ms));
        if (got > 0) {
            return TD_OK;
        }
        if (got < 0 && errno != EINTR) {
            return td_fail_errno(err, errno, "poll");
        }
        if (td_clock_ms() >= until_ms) {
            return td_fail(err, TD_ETIMEOUT, "no answer in time");
        }
    }
}

static enum td_rc send_request(const struct pull *p, int fd, struct td_err *err) {
    struct td_weights_request r = {.magic = TD_WEIGHTS_MAGIC,
                                   .version = TD_WEIGHTS_VERSION,
                                   .step = p->want->step,
                                   .digest = p->want->digest,
                                   .offset = p->at};
    td_weights_swap_request(&r);
    ssize_t n = send(fd, &r, sizeof r, MSG_NOSIGNAL);
    if (n != (ssize_t)sizeof r) { // the first bytes of a connection always fit
        return td_fail_errno(err, n < 0 ? errno : EIO, "request");
    }
    return TD_OK;
}

// The last descriptor of one message is kept in *got; all others are closed.
static void take_descriptors(const struct cmsghdr *h, int *got) {
    size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        if (*got >= 0) {
            close(*got);
        }
        memcpy(got, CMSG_DATA(h) + sizeof(int) * i, sizeof(int));
    }
}

static ssize_t receive(int fd, void *bytes, size_t n, int *got) {
    struct iovec iov = {bytes, n};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t read = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *h = read < 0 ? NULL : CMSG_FIRSTHDR(&msg); h; h = CMSG_NXTHDR(&msg, h)) {
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
            take_descriptors(h, got);
        }
    }
    return read;
}

static enum td_rc read_answer(const struct pull *p, int fd, struct td_weights_answer *a, int *got,
                              struct td_err *err) {
    int64_t until = silence(p);
    for (size_t have = 0; have < sizeof *a;) {
        enum td_rc rc = wait_readable(fd, until, err);
        if (rc != TD_OK) {
            return rc;
        }
        ssize_t n = receive(fd, (char *)a + have, sizeof *a - have, got);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? td_fail_errno(err, errno, "answer")
                         : td_fail(err, TD_ECLOSED, "it closed the connection without an answer");
        }
        have += (size_t)n;
    }
    td_weights_swap_answer(a);
    if (a->magic != TD_WEIGHTS_MAGIC) {
        return td_fail(err, TD_ECORRUPT, "its answer is not that of a worker");
    }
    if (a->status != TD_WEIGHTS_HERE) {
        return td_fail(err, a->status == TD_WEIGHTS_NOT_HELD ? TD_ENOENT : TD_ECORRUPT,
                       a->status == TD_WEIGHTS_NOT_HELD ? "not held" : "shorter than what came");
    }
    return TD_OK;
}

static enum td_rc check_size(const struct pull *p, uint64_t total, struct td_err *err) {
    uint64_t want = p->map ? p->total : p->want->bytes;
    if (want ? total != want : total == 0 || total >> BYTES_MAX_BITS) {
        return td_fail(err, TD_ECORRUPT, "its snapshot has %llu bytes, not %llu",
                       (unsigned long long)total, (unsigned long long)want);
    }
    return TD_OK;
}

// ---- the same machine: the memfd ----

static void forget_bytes(struct pull *p) {
    if (p->map) {
        munmap(p->map, p->total);
    }
    if (p->fd >= 0) {
        close(p->fd);
    }
    p->map = NULL;
    p->fd = -1;
    p->at = 0;
}

static enum td_rc pull_local(struct pull *p, const char *path, struct td_err *err) {
    int fd = -1, got = -1;
    struct td_weights_answer a;
    struct stat st;
    enum td_rc rc = td_ipc_connect_fd(path, &fd, err);
    if (rc != TD_OK) {
        err->code = rc == TD_ENOENT ? TD_ECLOSED : rc; // nobody is there: that says nothing more
        return err->code;
    }
    rc = send_request(p, fd, err);
    if (rc == TD_OK) {
        rc = read_answer(p, fd, &a, &got, err);
    }
    if (rc == TD_OK && (got < 0 || fstat(got, &st) != 0 || (uint64_t)st.st_size != a.total)) {
        rc = td_fail(err, TD_ECORRUPT, "its answer has no snapshot of %llu bytes",
                     (unsigned long long)a.total);
    }
    if (rc == TD_OK) {
        rc = check_size(p, a.total, err);
    }
    close(fd);
    if (rc == TD_OK) {
        forget_bytes(p);
        p->fd = got;
        p->done = true;
    } else if (got >= 0) {
        close(got);
    }
    return rc;
}

// ---- another machine: the bytes ----

static enum td_rc make_room(struct pull *p, uint64_t total, struct td_err *err) {
    enum td_rc rc = td_snapshot_open(total, &p->fd, err);
    if (rc != TD_OK) {
        return rc;
    }
    void *map = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (map == MAP_FAILED) {
        rc = td_fail_errno(err, errno, "snapshot of %llu bytes", (unsigned long long)total);
        close(p->fd);
        p->fd = -1;
        return rc;
    }
    p->map = map;
    p->total = total;
    return TD_OK;
}

// Straight into the memfd that the caller gets.
static enum td_rc read_bytes(struct pull *p, int fd, struct td_err *err) {
    int64_t until = silence(p);
    while (p->at < p->total) {
        enum td_rc rc = wait_readable(fd, until, err);
        if (rc != TD_OK) {
            return rc;
        }
        uint64_t left = p->total - p->at;
        ssize_t n = recv(fd, p->map + p->at, left < PIECE_BYTES ? left : PIECE_BYTES, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? td_fail_errno(err, errno, "bytes")
                         : td_fail(err, TD_ECLOSED,
                                   "it closed the connection after %llu of %llu "
                                   "bytes",
                                   (unsigned long long)p->at, (unsigned long long)p->total);
        }
        p->at += (uint64_t)n;
        until = silence(p);
    }
    return TD_OK;
}

static enum td_rc seal_bytes(struct pull *p, struct td_err *err) {
    munmap(p->map, p->total);
    p->map = NULL;
    enum td_rc rc = td_snapshot_seal(p->fd, err);
    p->done = rc == TD_OK;
    if (rc != TD_OK) {
        forget_bytes(p);
    }
    return rc;
}

static enum td_rc pull_remote(struct pull *p, const char *remote, struct td_err *err) {
    int fd = -1, got = -1;
    struct td_weights_answer a;
    enum td_rc rc = td_tcp_connect(remote, silence(p), &fd, err);
    if (rc != TD_OK) {
        return rc;
    }
    rc = send_request(p, fd, err);
    if (rc == TD_OK) {
        rc = read_answer(p, fd, &a, &got, err);
    }
    if (rc == TD_OK) {
        rc = check_size(p, a.total, err);
    }
    if (rc == TD_OK && a.offset != p->at) {
        rc = td_fail(err, TD_ECORRUPT, "its bytes begin at %llu, not %llu",
                     (unsigned long long)a.offset, (unsigned long long)p->at);
    }
    if (rc == TD_OK && !p->map) {
        rc = make_room(p, a.total, err);
    }
    if (rc == TD_OK) {
        rc = read_bytes(p, fd, err);
    }
    close(fd);
    return rc == TD_OK ? seal_bytes(p, err) : rc;
}

// ---- all of them ----

static void note_cause(struct pull *p, const char *who, const struct td_err *err) {
    p->absent = p->absent || err->code == TD_ENOENT;
    p->late = p->late || err->code == TD_ETIMEOUT;
    td_buf_printf(&p->causes, "; %.100s: %.*s", who, CAUSE_MAX, err->msg);
}

static bool over(const struct pull *p) {
    return p->done || td_clock_ms() >= p->want->deadline_ms;
}

// One that did not answer over UNIX stands still; one that holds nothing there may be another
// worker behind the same path.
static void ask_source(struct pull *p, const struct source *s) {
    struct td_err err = {0};
    if (s->here) {
        enum td_rc rc = pull_local(p, s->path, &err);
        if (rc == TD_OK) {
            return;
        }
        note_cause(p, s->path, &err);
        if (rc == TD_ETIMEOUT) {
            return;
        }
    }
    if (!over(p) && pull_remote(p, s->remote, &err) != TD_OK) {
        note_cause(p, s->remote, &err);
    }
}

// Those of this machine first.
static void ask_all(struct pull *p, const struct source *sources, size_t count) {
    td_buf_clear(&p->causes);
    p->absent = p->late = false;
    for (int here = 1; here >= 0; here--) {
        for (size_t i = 0; i < count && !over(p); i++) {
            if (sources[i].here != (here == 1)) {
                continue;
            }
            if (sources[i].remote) {
                ask_source(p, &sources[i]);
            } else {
                td_buf_printf(&p->causes, "; '%.100s' is no address", p->want->sources[i]);
            }
        }
    }
}

static enum td_rc judge(const struct pull *p, struct td_err *err) {
    bool late = p->late || td_clock_ms() >= p->want->deadline_ms;
    const char *causes = p->causes.len ? td_buf_str(&p->causes) : "; there are no sources";
    return td_fail(err,
                   late        ? TD_ETIMEOUT
                   : p->absent ? TD_ENOENT
                               : TD_ECLOSED,
                   "weights of step %llu with digest %016llx: got %llu bytes%.800s",
                   (unsigned long long)p->want->step, (unsigned long long)p->want->digest,
                   (unsigned long long)p->at, causes);
}

enum td_rc td_weights_pull(const struct td_weights_want *want, int *fd, struct td_err *err) {
    struct pull p = {.want = want, .fd = -1};
    struct source *sources = td_alloc_array(want->count, sizeof *sources);
    char boot[TD_BOOT_ID_MAX];
    bool progress = true;
    td_weights_boot_id(boot);
    for (size_t i = 0; i < want->count; i++) {
        parse_source(want->sources[i], boot, &sources[i]);
    }
    while (progress && !over(&p)) {
        uint64_t before = p.at;
        ask_all(&p, sources, want->count);
        progress = p.at > before;
        if (progress && !over(&p)) {
            (void)poll(NULL, 0, PAUSE_MS);
        }
    }
    enum td_rc rc = TD_OK;
    if (p.done) {
        *fd = p.fd;
    } else {
        rc = judge(&p, err);
        forget_bytes(&p);
    }
    for (size_t i = 0; i < want->count; i++) {
        td_free(sources[i].path);
        td_free(sources[i].remote);
    }
    td_free(sources);
    td_buf_fini(&p.causes);
    return rc;
}
