// Frames over a UNIX socket: see conn.h. The send side is under a mutex, because a worker's
// heartbeat thread sends beside its command thread; the receive side belongs to one thread.
#include "lib/ipc/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"

enum { HEADER = 8, READ_PIECE = 64 << 10, FD_QUEUE_MAX = 64 };

struct out_frame { // a queued frame; descriptors go out with its first byte
    struct out_frame *next;
    size_t len, sent;
    int fds[TD_FRAME_FDS_MAX];
    int nfds;
    uint8_t bytes[];
};

struct td_ipc_conn {
    int fd;
    struct td_buf in;
    size_t in_start; // bytes of in that were taken
    int in_fds[FD_QUEUE_MAX];
    int in_fd_count;
    bool ended;
    pthread_mutex_t send_lock; // guards all below
    struct out_frame *head, **tail;
    size_t queued;
    bool broken; // nothing more goes out
};

static enum td_rc address_of(const char *path, struct sockaddr_un *addr, struct td_err *err) {
    *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n >= sizeof addr->sun_path) {
        return td_fail(err, TD_ELIMIT,
                       "socket path has %zu bytes, at most %zu are possible: %s (choose a shorter "
                       "tandem.run_dir)",
                       n, sizeof addr->sun_path - 1, path);
    }
    memcpy(addr->sun_path, path, n + 1);
    return TD_OK;
}

enum td_rc td_ipc_check_path(const char *path, struct td_err *err) {
    struct sockaddr_un addr;
    return address_of(path, &addr, err);
}

static enum td_rc new_socket(const char *path, struct sockaddr_un *addr, int *fd,
                             struct td_err *err) {
    enum td_rc rc = address_of(path, addr, err);
    if (rc != TD_OK) {
        return rc;
    }
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *fd < 0 ? td_fail_errno(err, errno, "socket") : TD_OK;
}

enum td_rc td_ipc_listen(const char *path, int *fd, struct td_err *err) {
    struct sockaddr_un addr;
    int s = -1;
    enum td_rc rc = new_socket(path, &addr, &s, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct stat old;
    if (lstat(path, &old) == 0 && S_ISSOCK(old.st_mode)) {
        unlink(path);
    }
    if (bind(s, (struct sockaddr *)&addr, sizeof addr) != 0 || listen(s, 8) != 0) {
        rc = td_fail_errno(err, errno, "cannot listen at %s", path);
        close(s);
        return rc;
    }
    *fd = s;
    return TD_OK;
}

struct td_ipc_place td_ipc_place(const char *path) {
    struct stat st;
    if (lstat(path, &st) != 0) {
        return (struct td_ipc_place){0};
    }
    return (struct td_ipc_place){(uint64_t)st.st_dev, (uint64_t)st.st_ino};
}

bool td_ipc_is_at(const char *path, struct td_ipc_place place) {
    struct td_ipc_place now = td_ipc_place(path);
    return now.device == place.device && now.inode == place.inode;
}

void td_ipc_unlink(const char *path, const struct td_ipc_place *ours) {
    if (ours && !td_ipc_is_at(path, *ours)) {
        return;
    }
    char *weights = td_asprintf("%s" TD_IPC_WEIGHTS_SUFFIX, path);
    unlink(weights);
    unlink(path);
    td_free(weights);
}

struct td_ipc_conn *td_ipc_conn_new(int fd_take) {
    struct td_ipc_conn *c = td_alloc(sizeof *c);
    int flags = fcntl(fd_take, F_GETFL);
    td_assert(flags >= 0 && fcntl(fd_take, F_SETFL, flags | O_NONBLOCK) == 0);
    c->fd = fd_take;
    c->tail = &c->head;
    pthread_mutex_init(&c->send_lock, NULL);
    return c;
}

enum td_rc td_ipc_accept(int listener, struct td_ipc_conn **out, struct td_err *err) {
    int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) {
        return td_fail(err, TD_ETIMEOUT, "no connection waits");
    }
    if (s < 0) {
        return td_fail_errno(err, errno, "accept");
    }
    *out = td_ipc_conn_new(s);
    return TD_OK;
}

enum td_rc td_ipc_connect_fd(const char *path, int *fd, struct td_err *err) {
    struct sockaddr_un addr;
    int s = -1;
    // A stopped process does not accept: with a full backlog a blocking connect would wait for it.
    enum td_rc rc = new_socket(path, &addr, &s, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (connect(s, (struct sockaddr *)&addr, sizeof addr) != 0) {
        rc = errno == EAGAIN ? td_fail(err, TD_ETIMEOUT, "%s: nobody accepts", path)
                             : td_fail_errno(err, errno, "cannot connect to %s", path);
        close(s);
        return rc;
    }
    *fd = s;
    return TD_OK;
}

enum td_rc td_ipc_connect(const char *path, struct td_ipc_conn **out, struct td_err *err) {
    int s = -1;
    enum td_rc rc = td_ipc_connect_fd(path, &s, err);
    if (rc == TD_OK) {
        *out = td_ipc_conn_new(s);
    }
    return rc;
}

static void free_out_frame(struct out_frame *f) {
    for (int i = 0; i < f->nfds; i++) {
        close(f->fds[i]);
    }
    td_free(f);
}

static void drop_out_frame(struct td_ipc_conn *c) {
    struct out_frame *f = c->head;
    c->head = f->next;
    if (!c->head) {
        c->tail = &c->head;
    }
    c->queued -= f->len;
    free_out_frame(f);
}

void td_ipc_conn_free(struct td_ipc_conn *c) {
    if (!c) {
        return;
    }
    while (c->head) {
        drop_out_frame(c);
    }
    for (int i = 0; i < c->in_fd_count; i++) {
        close(c->in_fds[i]);
    }
    td_buf_fini(&c->in);
    pthread_mutex_destroy(&c->send_lock);
    close(c->fd);
    td_free(c);
}

int td_ipc_fd(const struct td_ipc_conn *c) {
    return c->fd;
}

union fd_control { // aligned room for one SCM_RIGHTS message
    char bytes[CMSG_SPACE(sizeof(int) * FD_QUEUE_MAX)];
    struct cmsghdr align;
};

static ssize_t send_some(int fd, const struct out_frame *f) {
    struct iovec iov = {(void *)(f->bytes + f->sent), f->len - f->sent};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    union fd_control control = {0};
    if (f->sent == 0 && f->nfds > 0) {
        size_t n = sizeof(int) * (size_t)f->nfds;
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n);
        struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(n);
        memcpy(CMSG_DATA(h), f->fds, n);
    }
    return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// The receiving side learns of it as of a peer that has gone.
static void break_locked(struct td_ipc_conn *c) {
    c->broken = true;
    shutdown(c->fd, SHUT_RDWR);
    while (c->head) {
        drop_out_frame(c);
    }
}

static enum td_rc flush_locked(struct td_ipc_conn *c, struct td_err *err) {
    if (c->broken) {
        return td_fail(err, TD_ECLOSED, "the connection is over");
    }
    while (c->head) {
        struct out_frame *f = c->head;
        ssize_t n = send_some(c->fd, f);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS)) {
            return TD_OK;
        }
        if (n < 0) {
            return td_fail_errno(err, errno, "send to the peer");
        }
        f->sent += (size_t)n;
        if (f->sent == f->len) {
            drop_out_frame(c);
        }
    }
    return TD_OK;
}

enum td_rc td_ipc_send(struct td_ipc_conn *c, td_frame *frame, const int *fds, int nfds,
                       struct td_err *err) {
    td_assert(nfds >= 0 && nfds <= TD_FRAME_FDS_MAX);
    frame->fds = (uint32_t)nfds;
    size_t n = tandem__worker__frame__get_packed_size(frame);
    if (n > TD_FRAME_BYTES_MAX) {
        return td_fail(err, TD_ELIMIT, "frame of %zu bytes, at most %d", n, TD_FRAME_BYTES_MAX);
    }
    struct out_frame *f = td_alloc(sizeof *f + HEADER + n);
    f->len = HEADER + n;
    tandem__worker__frame__pack(frame, f->bytes + HEADER);
    uint32_t header[2] = {(uint32_t)n, td_crc32c(0, f->bytes + HEADER, n)};
    memcpy(f->bytes, header, HEADER);
    for (; f->nfds < nfds; f->nfds++) {
        f->fds[f->nfds] = fcntl(fds[f->nfds], F_DUPFD_CLOEXEC, 0);
        if (f->fds[f->nfds] < 0) {
            enum td_rc rc = td_fail_errno(err, errno, "cannot duplicate a descriptor");
            free_out_frame(f);
            return rc;
        }
    }
    pthread_mutex_lock(&c->send_lock);
    *c->tail = f;
    c->tail = &f->next;
    c->queued += f->len;
    enum td_rc rc = flush_locked(c, err);
    if (rc == TD_OK && c->queued > TD_IPC_QUEUE_BYTES_MAX) {
        rc = td_fail(err, TD_ELIMIT, "%zu bytes unsent: the peer does not read", c->queued);
    }
    if (rc != TD_OK) {
        break_locked(c);
    }
    pthread_mutex_unlock(&c->send_lock);
    return rc;
}

enum td_rc td_ipc_flush(struct td_ipc_conn *c, bool *pending, struct td_err *err) {
    pthread_mutex_lock(&c->send_lock);
    enum td_rc rc = flush_locked(c, err);
    if (rc != TD_OK) {
        break_locked(c);
    }
    *pending = c->head != NULL;
    pthread_mutex_unlock(&c->send_lock);
    return rc;
}

// A descriptor that is lost would give the next frame those of another one.
static enum td_rc keep_fds(struct td_ipc_conn *c, struct msghdr *msg, struct td_err *err) {
    bool lost = (msg->msg_flags & MSG_CTRUNC) != 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(msg); h; h = CMSG_NXTHDR(msg, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        int count = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + sizeof(int) * (size_t)i, sizeof fd);
            if (c->in_fd_count == FD_QUEUE_MAX) {
                close(fd);
                lost = true;
                continue;
            }
            c->in_fds[c->in_fd_count++] = fd;
        }
    }
    return lost ? td_fail(err, TD_ELIMIT, "more descriptors than can be held or taken") : TD_OK;
}

// Reads what is there. TD_ECLOSED only once nothing more can come.
static enum td_rc fill(struct td_ipc_conn *c, struct td_err *err) {
    td_buf_shift(&c->in, c->in_start);
    c->in_start = 0;
    for (int turn = 0; turn < 16 && !c->ended; turn++) {
        struct iovec iov = {td_buf_room(&c->in, READ_PIECE), READ_PIECE};
        union fd_control control;
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            return TD_OK;
        }
        if (n <= 0) {
            c->ended = true;
            return TD_OK;
        }
        c->in.len += (size_t)n;
        enum td_rc rc = keep_fds(c, &msg, err);
        if (rc != TD_OK) {
            return rc;
        }
        if (n < READ_PIECE) {
            return TD_OK;
        }
    }
    return TD_OK;
}

static enum td_rc take_frame(struct td_ipc_conn *c, td_frame **out, int *fds, struct td_err *err) {
    *out = NULL;
    const uint8_t *at = c->in.data ? c->in.data + c->in_start : NULL;
    size_t have = c->in.len - c->in_start;
    if (have < HEADER) {
        return TD_OK;
    }
    uint32_t header[2];
    memcpy(header, at, HEADER);
    if (header[0] > TD_FRAME_BYTES_MAX) {
        return td_fail(err, TD_ECORRUPT, "frame says %u bytes, at most %d", header[0],
                       TD_FRAME_BYTES_MAX);
    }
    if (have < HEADER + (size_t)header[0]) {
        return TD_OK;
    }
    if (td_crc32c(0, at + HEADER, header[0]) != header[1]) {
        return td_fail(err, TD_ECORRUPT, "frame with a wrong checksum");
    }
    td_frame *f = tandem__worker__frame__unpack(NULL, header[0], at + HEADER);
    if (!f) {
        return td_fail(err, TD_ECORRUPT, "frame cannot be decoded");
    }
    c->in_start += HEADER + header[0];
    if (f->fds > TD_FRAME_FDS_MAX || (int)f->fds > c->in_fd_count) {
        td_frame_free(f);
        return td_fail(err, TD_ECORRUPT, "frame without its descriptors");
    }
    for (uint32_t i = 0; i < f->fds; i++) {
        fds[i] = c->in_fds[i];
    }
    c->in_fd_count -= (int)f->fds;
    memmove(c->in_fds, c->in_fds + f->fds, sizeof(int) * (size_t)c->in_fd_count);
    *out = f;
    return TD_OK;
}

enum td_rc td_ipc_recv(struct td_ipc_conn *c, td_frame **out, int fds[TD_FRAME_FDS_MAX],
                       struct td_err *err) {
    enum td_rc rc = take_frame(c, out, fds, err);
    if (rc != TD_OK || *out) {
        return rc;
    }
    rc = fill(c, err);
    if (rc != TD_OK) {
        return rc;
    }
    rc = take_frame(c, out, fds, err);
    if (rc == TD_OK && !*out && c->ended) {
        return td_fail(err, TD_ECLOSED, "the peer closed the connection");
    }
    return rc;
}

void td_frame_free(td_frame *frame) {
    if (frame) {
        tandem__worker__frame__free_unpacked(frame, NULL);
    }
}
