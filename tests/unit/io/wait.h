// Runs a loop until a counter has reached a value, or fails the test after a deadline.
#ifndef TD_TESTS_IO_WAIT_H
#define TD_TESTS_IO_WAIT_H

#include "lib/base/clock.h"
#include "lib/io/loop.h"
#include "tests/unit/cmocka_all.h"

enum { WAIT_MS = 30000 };

struct wait {
    struct td_loop *loop;
    struct td_timer *timer;
    const int *value;
    int target;
    int64_t deadline_ms;
};

static inline void wait_check(void *user) {
    struct wait *wait = user;
    if (*wait->value >= wait->target || td_clock_ms() > wait->deadline_ms) {
        td_loop_stop(wait->loop);
    } else {
        td_timer_start(wait->timer, 1);
    }
}

static inline void wait_until(struct td_loop *loop, const int *value, int target) {
    struct wait wait = {loop, NULL, value, target, td_clock_ms() + WAIT_MS};
    wait.timer = td_timer_new(loop, wait_check, &wait);
    td_timer_start(wait.timer, 0);
    td_loop_run(loop);
    td_timer_close(wait.timer);
    if (*value < target) {
        fail_msg("waited %d ms for %d, got %d", WAIT_MS, target, *value);
    }
}

static inline void wait_stop(void *user) {
    td_loop_stop(user);
}

// Lets the loop run for a while.
static inline void run_for(struct td_loop *loop, int64_t ms) {
    struct td_timer *timer = td_timer_new(loop, wait_stop, loop);
    td_timer_start(timer, ms);
    td_loop_run(loop);
    td_timer_close(timer);
}

static inline struct td_loop *new_loop(void) {
    struct td_loop *loop = NULL;
    assert_int_equal(td_loop_new(&loop, NULL), TD_OK);
    return loop;
}

#endif
