// Time. Machines get it as a number; shells read it here.
#ifndef TD_BASE_CLOCK_H
#define TD_BASE_CLOCK_H

#include <stdint.h>

// Milliseconds of CLOCK_BOOTTIME: goes on while the machine sleeps, never back.
int64_t td_clock_ms(void);
// Nanoseconds of CLOCK_MONOTONIC, for measuring.
int64_t td_clock_ns(void);
// Seconds since 1970, for people.
int64_t td_clock_wall_s(void);

#endif
