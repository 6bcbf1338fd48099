// The lock of a run directory: see runlock.h.
#include "lib/io/runlock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { WAIT_MS = 2000, POLL_MS = 10 };

// A process that was killed holds its locks until the last of its threads, or a child that has not
// exec'ed yet, is gone: a restart that follows at once must not take it for a second run.
static int lock_soon(int fd) {
    int rc = -1;
    for (int waited_ms = 0; waited_ms <= WAIT_MS; waited_ms += POLL_MS) {
        rc = flock(fd, LOCK_EX | LOCK_NB);
        if (rc == 0 || errno != EWOULDBLOCK) {
            return rc;
        }
        (void)poll(NULL, 0, POLL_MS);
    }
    errno = EWOULDBLOCK;
    return rc;
}

static enum td_rc held(const char *path, int fd, struct td_err *err) {
    char text[32] = {0};
    long pid = pread(fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
    if (pid <= 0) {
        return td_fail(err, TD_ECONFLICT, "%s is held by another process", path);
    }
    return td_fail(err, TD_ECONFLICT,
                   "%s is held by process %ld: wait for it, stop it, or name another folder", path,
                   pid);
}

enum td_rc td_run_lock(const char *run_dir, int *lock, struct td_err *err) {
    char *path = td_asprintf("%s/lock", run_dir);
    enum td_rc rc = TD_OK;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = td_fail_errno(err, errno, "%s", path);
    } else if (lock_soon(fd) != 0) {
        rc = errno == EWOULDBLOCK ? held(path, fd, err) : td_fail_errno(err, errno, "%s", path);
    } else {
        char text[32];
        int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
        rc = ftruncate(fd, 0) == 0 ? td_write_all(fd, text, (size_t)n, err)
                                   : td_fail_errno(err, errno, "%s", path);
    }
    if (rc == TD_OK) {
        *lock = fd;
    } else if (fd >= 0) {
        close(fd);
    }
    td_free(path);
    return rc;
}
