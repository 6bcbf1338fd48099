// Messages from any thread to a loop: a bounded list under a mutex, and an eventfd. The only way
// into a loop from outside its thread.
#ifndef TD_IO_MAILBOX_H
#define TD_IO_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/io/loop.h"

struct td_mailbox;

// Holds at most max messages.
enum td_rc td_mailbox_new(struct td_loop *loop, size_t max, struct td_mailbox **out,
                          struct td_err *err) TD_MUST_CHECK;
// Loop thread, when no other thread can post any more. Messages not yet handled are handled now.
void td_mailbox_free(struct td_mailbox *mailbox); // accepts NULL
// Any thread: fn(user) runs on the loop, in the order of posts. False: full, nothing was queued,
// user stays the caller's; the caller must push back on its own source.
bool td_mailbox_post(struct td_mailbox *mailbox, td_loop_fn *fn, void *user) TD_MUST_CHECK;

#endif
