// The end of a log file: see tail.h.
#include "cli/tail.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum td_rc td_tail_read(const char *path, uint64_t *at, struct td_buf *out, struct td_err *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        int why = errno;
        if (fd >= 0) {
            close(fd);
        }
        return td_fail_errno(err, why, "%s", path);
    }
    if ((uint64_t)st.st_size < *at) {
        *at = 0;
    }
    uint64_t left = (uint64_t)st.st_size - *at;
    size_t n = left < TD_TAIL_MAX ? (size_t)left : TD_TAIL_MAX;
    ssize_t got = pread(fd, td_buf_room(out, n), n, (off_t)*at);
    int why = errno;
    close(fd);
    if (got < 0) {
        return td_fail_errno(err, why, "%s", path);
    }
    out->len += (size_t)got;
    (void)td_buf_room(out, 0);
    *at += (size_t)got;
    return TD_OK;
}

enum td_rc td_tail_start(const char *path, int64_t n, uint64_t *at, struct td_err *err) {
    struct stat st;
    struct td_buf text = {0};
    if (n < 0) {
        *at = 0;
        return TD_OK;
    }
    if (stat(path, &st) != 0) {
        return td_fail_errno(err, errno, "%s", path);
    }
    uint64_t begin = st.st_size > TD_TAIL_MAX ? (uint64_t)st.st_size - TD_TAIL_MAX : 0;
    uint64_t end = begin;
    enum td_rc rc = td_tail_read(path, &end, &text, err);
    size_t i = text.len;
    // The line break at the very end ends the last line and begins none.
    for (int64_t lines = -1; i > 0; i--) {
        bool is_end = text.data[i - 1] == '\n';
        lines += is_end || i == text.len;
        if (lines == n) {
            break;
        }
    }
    if (rc == TD_OK) {
        *at = begin + i;
    }
    td_buf_fini(&text);
    return rc;
}
