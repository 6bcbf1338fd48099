// Log lines: see trace.h. One write per line, so that lines of several processes do not mix.
#include "lib/base/trace.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048 };

// The log level is one of the two mutable globals that the style allows.
static atomic_int trace_level = TD_TRACE_WARN;

void td_trace_set_level(enum td_trace_level level) {
    atomic_store(&trace_level, (int)level);
}

void td_trace(enum td_trace_level level, const char *event, const char *fmt, ...) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if ((int)level > atomic_load(&trace_level)) {
        return;
    }
    char line[LINE_MAX_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm tm;
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "ts=%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ level=%s event=\"%.80s\" pid=%d ",
                          now.tv_nsec / 1000000, names[level], event, (int)getpid());
    va_list ap;
    va_start(ap, fmt);
    int more = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    n = more < 0 || n + (size_t)more >= sizeof line - 1 ? sizeof line - 2 : n + (size_t)more;
    for (size_t i = 0; i < n; i++) { // messages of others may hold line breaks
        line[i] = (unsigned char)line[i] < ' ' ? ' ' : line[i];
    }
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0) {
        return; // nobody is left to tell
    }
}
