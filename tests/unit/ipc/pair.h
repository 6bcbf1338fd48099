// Two connections joined by a socket pair, and a count of this process's descriptors.
#ifndef TD_TESTS_IPC_PAIR_H
#define TD_TESTS_IPC_PAIR_H

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>

#include "lib/base/clock.h"
#include "lib/ipc/conn.h"
#include "tests/unit/cmocka_all.h"

enum { PAIR_WAIT_MS = 30000 };

struct pair {
    struct td_ipc_conn *a, *b;
};

static inline struct pair pair_new(void) {
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    return (struct pair){td_ipc_conn_new(fds[0]), td_ipc_conn_new(fds[1])};
}

static inline void pair_free(struct pair *p) {
    td_ipc_conn_free(p->a);
    td_ipc_conn_free(p->b);
}

static inline int count_fds(void) {
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    int n = -3; // ".", ".." and the folder itself
    while (readdir(d)) {
        n++;
    }
    closedir(d);
    return n;
}

// The next frame; sender (NULL: none) is flushed meanwhile. NULL once *rc says why there is none.
static inline td_frame *recv_frame(struct td_ipc_conn *c, struct td_ipc_conn *sender, int *fds,
                                   enum td_rc *rc, struct td_err *err) {
    int64_t until = td_clock_ms() + PAIR_WAIT_MS;
    td_frame *f = NULL;
    while ((*rc = td_ipc_recv(c, &f, fds, err)) == TD_OK && !f) {
        assert_true(td_clock_ms() < until);
        bool pending = false;
        if (sender) {
            assert_int_equal(td_ipc_flush(sender, &pending, err), TD_OK);
        }
        struct pollfd p = {.fd = td_ipc_fd(c), .events = POLLIN};
        (void)poll(&p, 1, 10);
    }
    return f;
}

#endif
