// The end of a log file.
#ifndef TD_CLI_TAIL_H
#define TD_CLI_TAIL_H

#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"

// Appends what path holds from *at on, at most TD_TAIL_MAX bytes, and moves *at behind it. A file
// that became shorter is read from its beginning. TD_ENOENT.
enum { TD_TAIL_MAX = 1 << 20 };
enum td_rc td_tail_read(const char *path, uint64_t *at, struct td_buf *out,
                        struct td_err *err) TD_MUST_CHECK;
// Where the last n lines begin, looking back TD_TAIL_MAX bytes at most; n < 0: 0.
enum td_rc td_tail_start(const char *path, int64_t n, uint64_t *at,
                         struct td_err *err) TD_MUST_CHECK;

#endif
