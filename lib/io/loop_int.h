// What lib/io's own files may know of the loop.
#ifndef TD_IO_LOOP_INT_H
#define TD_IO_LOOP_INT_H

#include "lib/io/loop.h"

struct event_base;

// For libraries that bring libevent code of their own. Their events are not counted as handles.
struct event_base *td_loop_base(struct td_loop *loop);

#endif
