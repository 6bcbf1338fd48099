// Errors: see err.h. No state; any thread.
#include "lib/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum td_rc td_fail(struct td_err *err, enum td_rc code, const char *fmt, ...) {
    if (err) {
        // Not straight into *err: its own message may be among the arguments.
        char text[TD_ERR_MAX];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        err->code = code;
        err->retriable = code == TD_ETIMEOUT || code == TD_ECLOSED;
        memcpy(err->msg, text, strlen(text) + 1);
    }
    return code;
}

static enum td_rc rc_of_errno(int errnum) {
    switch (errnum) {
    case ENOENT:
    case ENOTDIR:
        return TD_ENOENT;
    case EACCES:
    case EPERM:
    case EROFS:
        return TD_EPERM;
    case ENOSPC:
    case EFBIG:
    case EDQUOT:
        return TD_ENOSPC;
    case ENOMEM:
        return TD_ENOMEM;
    case ETIMEDOUT:
        return TD_ETIMEOUT;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
        return TD_ECLOSED;
    default:
        return TD_EIO;
    }
}

enum td_rc td_fail_errno(struct td_err *err, int errnum, const char *fmt, ...) {
    enum td_rc code = rc_of_errno(errnum);
    if (err) {
        char text[TD_ERR_MAX];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        (void)td_fail(err, code, "%.800s: %.200s", text, strerror(errnum));
    }
    return code;
}

enum td_rc td_err_in(struct td_err *err, const char *fmt, ...) {
    if (!err) {
        return TD_EIO;
    }
    char text[TD_ERR_MAX], old[TD_ERR_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(old, err->msg, sizeof old);
    snprintf(err->msg, sizeof err->msg, "%.400s: %.600s", text, old);
    return err->code;
}

const char *td_rc_name(enum td_rc rc) {
    static const char *const names[] = {"ok",        "invalid",
                                        "not found", "input/output error",
                                        "no space",  "permission denied",
                                        "corrupt",   "too large",
                                        "timed out", "closed",
                                        "conflict",  "unsupported",
                                        "no memory", "stopped"};
    _Static_assert(sizeof names / sizeof *names == TD_RC_COUNT, "a name for every code");
    return rc >= 0 && rc < TD_RC_COUNT ? names[rc] : "unknown";
}
