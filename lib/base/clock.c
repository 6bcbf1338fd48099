// Time: see clock.h. Any thread.
#include "lib/base/clock.h"

#include <time.h>

static int64_t read_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t td_clock_ms(void) {
    return read_ns(CLOCK_BOOTTIME) / 1000000;
}

int64_t td_clock_ns(void) {
    return read_ns(CLOCK_MONOTONIC);
}

int64_t td_clock_wall_s(void) {
    return read_ns(CLOCK_REALTIME) / 1000000000;
}
