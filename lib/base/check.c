// Assertions: see check.h.
#include "lib/base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void td_assert_failed(const char *file, int line, const char *expr, int64_t a,
                                int64_t b) {
    dprintf(STDERR_FILENO, "assertion failed at %s:%d: %s (%" PRId64 ", %" PRId64 ")\n", file, line,
            expr, a, b);
    abort();
}
