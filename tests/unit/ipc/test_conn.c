// Frames over UNIX sockets: whole, in order, with their descriptors, and nothing that is no frame.
#include "lib/ipc/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "tests/unit/ipc/pair.h"

struct extend {
    uint64_t sequence;
    const int32_t *ids;
    size_t n;
    const int *fds;
    int nfds;
};

static enum td_rc send_extend(struct td_ipc_conn *c, struct extend x, struct td_err *err) {
    Tandem__Worker__Extend body = TANDEM__WORKER__EXTEND__INIT;
    body.sequence = x.sequence;
    body.ids = (int32_t *)x.ids;
    body.n_ids = x.n;
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.seq = x.sequence + 1;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_EXTEND;
    frame.extend = &body;
    return td_ipc_send(c, &frame, x.fds, x.nfds, err);
}

static void test_conn_both_ways(void **state) {
    (void)state;
    int before = count_fds();
    struct pair p = pair_new();
    struct td_err err;
    int fds[TD_FRAME_FDS_MAX];
    enum td_rc rc;
    const int32_t ids[] = {1, -7, INT32_MAX};
    for (int turn = 0; turn < 3; turn++) {
        struct td_ipc_conn *from = turn % 2 ? p.b : p.a, *to = turn % 2 ? p.a : p.b;
        assert_int_equal(
            send_extend(from, (struct extend){.sequence = 41, .ids = ids, .n = 3}, &err), TD_OK);
        td_frame *f = recv_frame(to, from, fds, &rc, &err);
        assert_non_null(f);
        assert_true(f->seq == 42 && f->fds == 0 && f->extend->sequence == 41);
        assert_int_equal(f->extend->n_ids, 3);
        assert_memory_equal(f->extend->ids, ids, sizeof ids);
        td_frame_free(f);
        assert_int_equal(td_ipc_recv(to, &f, fds, &err), TD_OK);
        assert_null(f);
    }
    pair_free(&p);
    assert_int_equal(count_fds(), before);
}

// Larger than the socket takes at once: goes out in parts and arrives whole.
static void test_conn_large_frame(void **state) {
    (void)state;
    enum { N = 3 << 20 };
    struct pair p = pair_new();
    int32_t *ids = td_alloc_array(N, sizeof *ids);
    for (int i = 0; i < N; i++) {
        ids[i] = i * 2654435761u >> 1;
    }
    struct td_err err;
    int fds[TD_FRAME_FDS_MAX];
    enum td_rc rc;
    bool pending = false;
    assert_int_equal(send_extend(p.a, (struct extend){.sequence = 1, .ids = ids, .n = N}, &err),
                     TD_OK);
    assert_int_equal(send_extend(p.a, (struct extend){.sequence = 2, .ids = ids, .n = 1}, &err),
                     TD_OK);
    assert_int_equal(td_ipc_flush(p.a, &pending, &err), TD_OK);
    assert_true(pending);
    td_frame *f = recv_frame(p.b, p.a, fds, &rc, &err);
    assert_non_null(f);
    assert_int_equal(f->extend->n_ids, N);
    assert_memory_equal(f->extend->ids, ids, N * sizeof *ids);
    td_frame_free(f);
    f = recv_frame(p.b, p.a, fds, &rc, &err);
    assert_non_null(f);
    assert_int_equal(f->extend->sequence, 2);
    td_frame_free(f);
    assert_int_equal(td_ipc_flush(p.a, &pending, &err), TD_OK);
    assert_false(pending);
    td_free(ids);
    pair_free(&p);
}

static void test_conn_many_small_frames(void **state) {
    (void)state;
    enum { N = 20000 };
    struct pair p = pair_new();
    struct td_err err;
    int fds[TD_FRAME_FDS_MAX];
    enum td_rc rc;
    for (uint64_t i = 0; i < N; i++) {
        int32_t id = (int32_t)i;
        assert_int_equal(
            send_extend(p.a, (struct extend){.sequence = i, .ids = &id, .n = i % 2}, &err), TD_OK);
    }
    for (uint64_t i = 0; i < N; i++) {
        td_frame *f = recv_frame(p.b, p.a, fds, &rc, &err);
        assert_non_null(f);
        assert_true(f->extend->sequence == i && f->extend->n_ids == i % 2);
        td_frame_free(f);
    }
    pair_free(&p);
}

static int memfd_of(int value) {
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &value, sizeof value), sizeof value);
    return fd;
}

static int value_of(int fd) {
    int value = -1;
    assert_int_equal(pread(fd, &value, sizeof value, 0), sizeof value);
    return value;
}

// Descriptors come with the frame they were sent with, close-on-exec, though frames with and
// without them, large and small, alternate.
static void test_conn_descriptors(void **state) {
    (void)state;
    enum { FRAMES = 40, LARGE = 100000 };
    int before = count_fds();
    struct pair p = pair_new();
    struct td_err err;
    enum td_rc rc;
    int32_t *ids = td_alloc_array(LARGE, sizeof *ids);
    for (int i = 0; i < FRAMES; i++) {
        int fds[TD_FRAME_FDS_MAX], n = i % (TD_FRAME_FDS_MAX + 1);
        for (int k = 0; k < n; k++) {
            fds[k] = memfd_of(i * 10 + k);
        }
        size_t size = i % 3 ? LARGE : 1;
        assert_int_equal(
            send_extend(p.a,
                        (struct extend){
                            .sequence = (uint64_t)i, .ids = ids, .n = size, .fds = fds, .nfds = n},
                        &err),
            TD_OK);
        for (int k = 0; k < n; k++) {
            close(fds[k]); // the connection has its own
        }
    }
    for (int i = 0; i < FRAMES; i++) {
        int fds[TD_FRAME_FDS_MAX];
        td_frame *f = recv_frame(p.b, p.a, fds, &rc, &err);
        assert_non_null(f);
        assert_int_equal(f->extend->sequence, i);
        assert_int_equal(f->fds, i % (TD_FRAME_FDS_MAX + 1));
        for (uint32_t k = 0; k < f->fds; k++) {
            assert_int_equal(value_of(fds[k]), i * 10 + (int)k);
            assert_int_equal(fcntl(fds[k], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
            close(fds[k]);
        }
        td_frame_free(f);
    }
    td_free(ids);
    pair_free(&p);
    assert_int_equal(count_fds(), before);
}

// Neither frames that never went out nor frames that nobody took leave a descriptor behind.
static void test_conn_descriptors_not_taken(void **state) {
    (void)state;
    int before = count_fds();
    struct pair p = pair_new();
    struct td_err err;
    int32_t *ids = td_alloc_array(1 << 20, sizeof *ids);
    int fds[TD_FRAME_FDS_MAX] = {memfd_of(1), memfd_of(2)};
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(
            send_extend(
                p.a,
                (struct extend){
                    .sequence = i, .ids = ids, .n = i < 2 ? 1 : 1 << 20, .fds = fds, .nfds = 2},
                &err),
            TD_OK);
    }
    td_frame *f = NULL;
    int got[TD_FRAME_FDS_MAX];
    assert_int_equal(td_ipc_recv(p.b, &f, got, &err), TD_OK);
    assert_non_null(f);
    close(got[0]);
    close(got[1]);
    td_frame_free(f);
    close(fds[0]);
    close(fds[1]);
    td_free(ids);
    pair_free(&p);
    assert_int_equal(count_fds(), before);
}

// A duplicate that cannot be made is an error of the call, and the connection goes on.
static void test_conn_out_of_descriptors(void **state) {
    (void)state;
    struct pair p = pair_new();
    struct td_err err;
    enum td_rc rc;
    int fds[TD_FRAME_FDS_MAX] = {memfd_of(1)};
    struct rlimit old, few = {(rlim_t)fds[0] + 1, 0};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    rc = send_extend(p.a, (struct extend){.sequence = 1, .fds = fds, .nfds = 1}, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(rc, TD_EIO);
    assert_int_equal(send_extend(p.a, (struct extend){.sequence = 2, .fds = fds, .nfds = 1}, &err),
                     TD_OK);
    close(fds[0]);
    td_frame *f = recv_frame(p.b, p.a, fds, &rc, &err);
    assert_non_null(f);
    assert_int_equal(f->extend->sequence, 2);
    assert_int_equal(value_of(fds[0]), 1);
    close(fds[0]);
    td_frame_free(f);
    pair_free(&p);
}

// ---- what is no frame ----

struct raw_case {
    const char *name;
    void (*make)(uint8_t *bytes, size_t *n);
    const char *message;
};

static void put_header(uint8_t *bytes, uint32_t n, uint32_t crc) {
    memcpy(bytes, &n, sizeof n);
    memcpy(bytes + sizeof n, &crc, sizeof crc);
}

static void make_oversize(uint8_t *bytes, size_t *n) {
    put_header(bytes, TD_FRAME_BYTES_MAX + 1, 0);
    *n = 8;
}
static void make_bad_crc(uint8_t *bytes, size_t *n) {
    memcpy(bytes + 8, "\x08\x01", 2); // seq 1
    put_header(bytes, 2, td_crc32c(0, bytes + 8, 2) ^ 1);
    *n = 10;
}
static void make_garbage(uint8_t *bytes, size_t *n) {
    memset(bytes + 8, 0xff, 16);
    put_header(bytes, 16, td_crc32c(0, bytes + 8, 16));
    *n = 24;
}
static void make_missing_fds(uint8_t *bytes, size_t *n) {
    memcpy(bytes + 8, "\x18\x01", 2); // fds 1
    put_header(bytes, 2, td_crc32c(0, bytes + 8, 2));
    *n = 10;
}
static void make_too_many_fds(uint8_t *bytes, size_t *n) {
    memcpy(bytes + 8, "\x18\xff\xff\xff\xff\x0f", 6); // fds 2^32 − 1
    put_header(bytes, 6, td_crc32c(0, bytes + 8, 6));
    *n = 14;
}

static void test_conn_no_frame(void **state) {
    (void)state;
    static const struct raw_case cases[] = {
        {"oversize", make_oversize, "at most"},
        {"crc", make_bad_crc, "checksum"},
        {"garbage", make_garbage, "cannot be decoded"},
        {"fds", make_missing_fds, "without its descriptors"},
        {"many fds", make_too_many_fds, "without its descriptors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int before = count_fds();
        struct pair p = pair_new();
        uint8_t bytes[64];
        size_t n = 0;
        struct td_err err = {0};
        int fds[TD_FRAME_FDS_MAX];
        enum td_rc rc;
        cases[i].make(bytes, &n);
        assert_int_equal(write(td_ipc_fd(p.a), bytes, n), n);
        assert_null(recv_frame(p.b, NULL, fds, &rc, &err));
        assert_int_equal(rc, TD_ECORRUPT);
        if (!strstr(err.msg, cases[i].message)) {
            fail_msg("%s: %s", cases[i].name, err.msg);
        }
        pair_free(&p);
        assert_int_equal(count_fds(), before);
    }
}

// Random bytes of a random length end in an error or in "not yet", never in a crash.
static void test_conn_random_bytes(void **state) {
    (void)state;
    unsigned seed = (unsigned)td_clock_ns();
    print_message("seed %u\n", seed);
    srandom(seed);
    for (int i = 0; i < 300; i++) {
        struct pair p = pair_new();
        uint8_t bytes[256];
        size_t n = (size_t)random() % sizeof bytes;
        for (size_t k = 0; k < n; k++) {
            bytes[k] = (uint8_t)random();
        }
        if (n >= 8 && i % 2) { // a frame that is whole as far as the header says
            put_header(bytes, (uint32_t)(n - 8), td_crc32c(0, bytes + 8, n - 8));
        }
        assert_int_equal(write(td_ipc_fd(p.a), bytes, n), n);
        td_frame *f = NULL;
        int fds[TD_FRAME_FDS_MAX];
        struct td_err err;
        if (td_ipc_recv(p.b, &f, fds, &err) == TD_OK) {
            td_frame_free(f);
        }
        pair_free(&p);
    }
}

// Frame by frame in single bytes: nothing until the last one.
static void test_conn_byte_by_byte(void **state) {
    (void)state;
    struct pair source = pair_new(), p = pair_new();
    struct td_err err;
    int fds[TD_FRAME_FDS_MAX];
    const int32_t ids[] = {5, 6, 7};
    uint8_t bytes[128];
    assert_int_equal(
        send_extend(source.a, (struct extend){.sequence = 9, .ids = ids, .n = 3}, &err), TD_OK);
    ssize_t n = read(td_ipc_fd(source.b), bytes, sizeof bytes);
    assert_true(n > 8);
    for (ssize_t i = 0; i < n; i++) {
        td_frame *f = NULL;
        assert_int_equal(write(td_ipc_fd(p.a), bytes + i, 1), 1);
        assert_int_equal(td_ipc_recv(p.b, &f, fds, &err), TD_OK);
        assert_true(!f == (i < n - 1));
        td_frame_free(f);
    }
    pair_free(&source);
    pair_free(&p);
}

// A peer that declares no descriptors but sends them is cut off, and they are closed.
static void test_conn_undeclared_descriptors(void **state) {
    (void)state;
    int before = count_fds();
    struct pair p = pair_new();
    int fd = memfd_of(1);
    uint8_t bytes[8] = {0}; // an empty frame: no bytes, CRC 0
    enum td_rc rc = TD_OK;
    struct td_err err;
    for (int i = 0; i < 200 && rc == TD_OK; i++) {
        struct iovec iov = {bytes, sizeof bytes};
        union {
            char room[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control = {0};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
        struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &fd, sizeof fd);
        assert_int_equal(sendmsg(td_ipc_fd(p.a), &msg, 0), sizeof bytes);
        td_frame *f = NULL;
        int fds[TD_FRAME_FDS_MAX];
        rc = td_ipc_recv(p.b, &f, fds, &err);
        td_frame_free(f);
    }
    assert_int_equal(rc, TD_ELIMIT);
    close(fd);
    pair_free(&p);
    assert_int_equal(count_fds(), before);
}

// ---- the peer is gone, or does not read ----

// What was sent before the end still arrives; then it is over for either side.
static void test_conn_closed_peer(void **state) {
    (void)state;
    struct pair p = pair_new();
    struct td_err err;
    int fds[TD_FRAME_FDS_MAX];
    enum td_rc rc;
    assert_int_equal(send_extend(p.a, (struct extend){.sequence = 3}, &err), TD_OK);
    td_ipc_conn_free(p.a);
    td_frame *f = recv_frame(p.b, NULL, fds, &rc, &err);
    assert_non_null(f);
    assert_int_equal(f->extend->sequence, 3);
    td_frame_free(f);
    assert_null(recv_frame(p.b, NULL, fds, &rc, &err));
    assert_int_equal(rc, TD_ECLOSED);
    assert_int_equal(send_extend(p.b, (struct extend){.sequence = 4}, &err), TD_ECLOSED);
    assert_int_equal(send_extend(p.b, (struct extend){.sequence = 5}, &err), TD_ECLOSED);
    assert_int_equal(td_ipc_recv(p.b, &f, fds, &err), TD_ECLOSED);
    td_ipc_conn_free(p.b);
}

// A frame cut by the end of its sender is no frame.
static void test_conn_closed_in_a_frame(void **state) {
    (void)state;
    struct pair p = pair_new();
    struct td_err err;
    int fds[TD_FRAME_FDS_MAX];
    enum td_rc rc;
    uint8_t bytes[20];
    put_header(bytes, 100, 1);
    assert_int_equal(write(td_ipc_fd(p.a), bytes, sizeof bytes), sizeof bytes);
    td_ipc_conn_free(p.a);
    assert_null(recv_frame(p.b, NULL, fds, &rc, &err));
    assert_int_equal(rc, TD_ECLOSED);
    td_ipc_conn_free(p.b);
}

// A peer that never reads: the queue has an end, and then so has the connection, also for the
// thread that only receives.
static void test_conn_queue_limit(void **state) {
    (void)state;
    enum { N = 6 << 20 };
    int before = count_fds();
    struct pair p = pair_new();
    struct td_err err;
    int32_t *ids = td_alloc_array(N, sizeof *ids);
    memset(ids, 0x7f, N * sizeof *ids); // 5 bytes each on the wire
    int fd = memfd_of(1), frames = 0;
    enum td_rc rc = TD_OK;
    while (rc == TD_OK && frames < 100) {
        rc = send_extend(
            p.a, (struct extend){.sequence = 1, .ids = ids, .n = N, .fds = &fd, .nfds = 1}, &err);
        frames += rc == TD_OK;
    }
    assert_int_equal(rc, TD_ELIMIT);
    assert_non_null(strstr(err.msg, "does not read"));
    assert_in_range(frames, 1, TD_IPC_QUEUE_BYTES_MAX / (N * 5) + 1);
    assert_int_equal(send_extend(p.a, (struct extend){.sequence = 2}, &err), TD_ECLOSED);
    td_frame *f = NULL;
    int fds[TD_FRAME_FDS_MAX];
    assert_int_equal(td_ipc_recv(p.a, &f, fds, &err), TD_ECLOSED);
    td_free(ids);
    close(fd);
    pair_free(&p);
    assert_int_equal(count_fds(), before);
}

static void test_conn_oversize_send(void **state) {
    (void)state;
    struct pair p = pair_new();
    struct td_err err;
    enum td_rc rc;
    size_t n = (size_t)TD_FRAME_BYTES_MAX / 5 + 1;
    int32_t *ids = td_alloc_array(n, sizeof *ids);
    memset(ids, 0x7f, n * sizeof *ids);
    assert_int_equal(send_extend(p.a, (struct extend){.sequence = 1, .ids = ids, .n = n}, &err),
                     TD_ELIMIT);
    assert_int_equal(send_extend(p.a, (struct extend){.sequence = 2, .ids = ids, .n = 1}, &err),
                     TD_OK); // nothing was lost
    int fds[TD_FRAME_FDS_MAX];
    td_frame *f = recv_frame(p.b, p.a, fds, &rc, &err);
    assert_non_null(f);
    assert_int_equal(f->extend->sequence, 2);
    td_frame_free(f);
    td_free(ids);
    pair_free(&p);
}

// ---- listening and connecting ----

struct folder {
    char path[64];
    char socket[96];
};

static struct folder make_folder(void) {
    struct folder f = {.path = "/tmp/td-ipc-XXXXXX"};
    assert_non_null(mkdtemp(f.path));
    snprintf(f.socket, sizeof f.socket, "%s/w.sock", f.path);
    return f;
}

static void remove_folder(const struct folder *f) {
    unlink(f->socket);
    assert_int_equal(rmdir(f->path), 0);
}

static void test_conn_listen_and_connect(void **state) {
    (void)state;
    int before = count_fds();
    struct folder folder = make_folder();
    struct td_err err;
    struct td_ipc_conn *client = NULL, *server = NULL;
    int listener = -1, again = -1;
    enum td_rc rc;
    assert_int_equal(td_ipc_connect(folder.socket, &client, &err), TD_ENOENT);
    assert_int_equal(td_ipc_listen(folder.socket, &listener, &err), TD_OK);
    assert_int_equal(td_ipc_accept(listener, &server, &err), TD_ETIMEOUT);
    assert_int_equal(td_ipc_connect(folder.socket, &client, &err), TD_OK);
    assert_int_equal(td_ipc_accept(listener, &server, &err), TD_OK);
    assert_int_equal(fcntl(listener, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(td_ipc_fd(client), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(fcntl(td_ipc_fd(server), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(send_extend(client, (struct extend){.sequence = 7}, &err), TD_OK);
    int fds[TD_FRAME_FDS_MAX];
    td_frame *f = recv_frame(server, client, fds, &rc, &err);
    assert_non_null(f);
    td_frame_free(f);
    td_ipc_conn_free(client);
    td_ipc_conn_free(server);
    // A socket whose process has died stays as a file and is replaced.
    close(listener);
    assert_int_equal(td_ipc_connect(folder.socket, &client, &err), TD_ECLOSED);
    assert_int_equal(td_ipc_listen(folder.socket, &again, &err), TD_OK);
    close(again);
    remove_folder(&folder);
    assert_int_equal(count_fds(), before);
}

// A stopped worker does not accept: once its backlog is full a connect must fail, not wait.
static void test_conn_connect_does_not_wait(void **state) {
    (void)state;
    enum { MANY = 64 };
    struct folder folder = make_folder();
    struct td_ipc_conn *clients[MANY] = {0};
    struct td_err err;
    int listener = -1, n = 0;
    enum td_rc rc = TD_OK;
    assert_int_equal(td_ipc_listen(folder.socket, &listener, &err), TD_OK);
    alarm(60);
    while (rc == TD_OK && n < MANY) {
        rc = td_ipc_connect(folder.socket, &clients[n], &err);
        n += rc == TD_OK;
    }
    alarm(0);
    assert_int_equal(rc, TD_ETIMEOUT);
    assert_true(err.retriable);
    for (int i = 0; i < n; i++) {
        td_ipc_conn_free(clients[i]);
    }
    close(listener);
    remove_folder(&folder);
}

// Only a socket is replaced by a socket.
static void test_conn_listen_spares_files(void **state) {
    (void)state;
    struct folder folder = make_folder();
    int fd = open(folder.socket, O_WRONLY | O_CREAT, 0600), listener = -1;
    assert_true(fd >= 0);
    close(fd);
    struct td_err err;
    assert_int_equal(td_ipc_listen(folder.socket, &listener, &err), TD_EIO);
    assert_int_equal(access(folder.socket, F_OK), 0);
    remove_folder(&folder);
}

static void test_conn_long_path(void **state) {
    (void)state;
    struct sockaddr_un addr;
    char path[sizeof addr.sun_path + 1];
    memset(path, 'x', sizeof path - 1);
    memcpy(path, "/tmp/", 5);
    path[sizeof path - 1] = 0;
    int listener = -1, before = count_fds();
    struct td_ipc_conn *c = NULL;
    struct td_err err;
    assert_int_equal(td_ipc_listen(path, &listener, &err), TD_ELIMIT);
    char want[32];
    snprintf(want, sizeof want, "%zu bytes", strlen(path));
    assert_non_null(strstr(err.msg, want));
    snprintf(want, sizeof want, "most %zu", sizeof addr.sun_path - 1);
    assert_non_null(strstr(err.msg, want));
    assert_non_null(strstr(err.msg, "tandem.run_dir"));
    assert_int_equal(td_ipc_connect(path, &c, &err), TD_ELIMIT);
    path[sizeof addr.sun_path - 1] = 0; // the longest that fits
    assert_int_equal(td_ipc_listen(path, &listener, &err), TD_OK);
    close(listener);
    unlink(path);
    assert_int_equal(count_fds(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conn_both_ways),
        cmocka_unit_test(test_conn_large_frame),
        cmocka_unit_test(test_conn_many_small_frames),
        cmocka_unit_test(test_conn_descriptors),
        cmocka_unit_test(test_conn_descriptors_not_taken),
        cmocka_unit_test(test_conn_out_of_descriptors),
        cmocka_unit_test(test_conn_no_frame),
        cmocka_unit_test(test_conn_random_bytes),
        cmocka_unit_test(test_conn_byte_by_byte),
        cmocka_unit_test(test_conn_undeclared_descriptors),
        cmocka_unit_test(test_conn_closed_peer),
        cmocka_unit_test(test_conn_closed_in_a_frame),
        cmocka_unit_test(test_conn_queue_limit),
        cmocka_unit_test(test_conn_oversize_send),
        cmocka_unit_test(test_conn_listen_and_connect),
        cmocka_unit_test(test_conn_connect_does_not_wait),
        cmocka_unit_test(test_conn_listen_spares_files),
        cmocka_unit_test(test_conn_long_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
