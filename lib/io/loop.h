// The event loop: file descriptors, timers and signals on one thread, over libevent.
// Everything here is called on the thread that made the loop (asserted); other threads send
// messages through a mailbox. Closing is asynchronous: after td_*_close no callback starts, and the
// memory goes in a later turn, so a callback may close anything, itself included.
#ifndef TD_IO_LOOP_H
#define TD_IO_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"

struct td_loop;
struct td_watch;
struct td_timer;

enum { TD_LOOP_READ = 1, TD_LOOP_WRITE = 2 };

typedef void td_loop_fn(void *user);
typedef void td_watch_fn(void *user, int fd, unsigned events); // events: TD_LOOP_READ | _WRITE
typedef void td_signal_fn(void *user, int signum);

// Also ignores SIGPIPE and SIGXFSZ in this process: a broken pipe and a full disk are errors of the
// call. TD_EIO: the system gave no event queue.
enum td_rc td_loop_new(struct td_loop **out, struct td_err *err) TD_MUST_CHECK;
// All watches and timers must be closed before (asserted); deferred calls not yet made are dropped.
void td_loop_free(struct td_loop *loop);
// Runs turns until td_loop_stop, which may be called before; a stop ends one run.
void td_loop_run(struct td_loop *loop);
void td_loop_stop(struct td_loop *loop);
// CLOCK_BOOTTIME in milliseconds.
int64_t td_loop_now_ms(const struct td_loop *loop);
// Asserts that the caller runs on the loop's thread.
void td_loop_assert(const struct td_loop *loop);
// Calls fn(user) in a later turn; calls keep their order.
void td_loop_defer(struct td_loop *loop, td_loop_fn *fn, void *user);

// Watches fd (the caller's; close the watch before the descriptor) for events, level-triggered,
// until closed. TD_EIO: fd cannot be watched (a plain file).
enum td_rc td_watch_fd(struct td_loop *loop, int fd, unsigned events, td_watch_fn *fn, void *user,
                       struct td_watch **out) TD_MUST_CHECK;
// Changes what is waited for; 0 pauses.
void td_watch_set(struct td_watch *watch, unsigned events);
// Calls fn on the loop for each arrival (arrivals may merge). One loop of a process may watch
// signals.
enum td_rc td_watch_signal(struct td_loop *loop, int signum, td_signal_fn *fn, void *user,
                           struct td_watch **out) TD_MUST_CHECK;
void td_watch_close(struct td_watch *watch); // accepts NULL

// A timer that fires once per start; periodic work starts it again in its callback.
struct td_timer *td_timer_new(struct td_loop *loop, td_loop_fn *fn, void *user);
void td_timer_start(struct td_timer *timer, int64_t delay_ms); // a running timer starts afresh
void td_timer_stop(struct td_timer *timer);
void td_timer_close(struct td_timer *timer); // accepts NULL

#endif
