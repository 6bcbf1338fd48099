// Errors: a return code, and a message that each level may put its own place in front of.
#ifndef TD_BASE_ERR_H
#define TD_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

enum td_rc {
    TD_OK = 0,
    TD_EINVAL,       // the caller's input is wrong: a user must change something
    TD_ENOENT,       // the thing named does not exist
    TD_EIO,          // the operating system refused or failed
    TD_ENOSPC,       // no room left on the device, or a file size limit
    TD_EPERM,        // permission denied
    TD_ECORRUPT,     // bytes that must not be trusted: checksum, format or digest wrong
    TD_ELIMIT,       // larger than a named maximum
    TD_ETIMEOUT,     // a deadline passed
    TD_ECLOSED,      // the peer is gone
    TD_ECONFLICT,    // somebody else holds it, or the state moved on
    TD_EUNSUPPORTED, // known by name, not built yet
    TD_ENOMEM,
    TD_ESTOPPED, // asked to stop
    TD_RC_COUNT
};

enum { TD_ERR_MAX = 1024 };

struct td_err {
    enum td_rc code;
    bool retriable;
    char msg[TD_ERR_MAX];
};

#define TD_MUST_CHECK __attribute__((warn_unused_result))
#define TD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

// Sets *err (may be NULL) and returns code, so that callers write: return td_fail(err, TD_EIO,
// ...).
enum td_rc td_fail(struct td_err *err, enum td_rc code, const char *fmt, ...) TD_PRINTF(3, 4);

// As td_fail, with ": " and strerror(errnum) behind the message; the code is derived from errnum
// (ENOENT, EACCES, ENOSPC/EFBIG/EDQUOT, ENOMEM, ETIMEDOUT, EPIPE/ECONNRESET; else TD_EIO).
enum td_rc td_fail_errno(struct td_err *err, int errnum, const char *fmt, ...) TD_PRINTF(3, 4);

// Puts "prefix: " in front of the message of *err and returns err->code (TD_EIO when err is NULL).
enum td_rc td_err_in(struct td_err *err, const char *fmt, ...) TD_PRINTF(2, 3);

// "not found", "no space" ...: static text.
const char *td_rc_name(enum td_rc rc);

#endif
