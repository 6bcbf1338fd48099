// The heartbeat thread: tells the controller each second what the command thread does, and ends the
// process when no controller has been attached for the grace time. It touches atomics and the
// socket only.
#ifndef TD_WORKERS_HEARTBEAT_H
#define TD_WORKERS_HEARTBEAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/ipc/conn.h"

enum td_doing {
    TD_DOING_NOTHING,
    TD_DOING_SETUP,
    TD_DOING_RING,
    TD_DOING_LOAD,
    TD_DOING_PREP,
    TD_DOING_STEP,
    TD_DOING_FINISH,
    TD_DOING_SAVE,
    TD_DOING_PULL,
    TD_DOING_PREPARE,
    TD_DOING_GENERATE,
    TD_DOING_SCORE,
    TD_DOING_COUNT
};

struct td_heartbeat;

// grace_ms: how long to live without a controller; not so long when the socket is not at
// socket_path any more (another worker replaced it). Then its sockets are removed and the process
// exits, unless somebody waits at the listener for the command thread to be free. socket_path is
// borrowed for good, listener until stopped. Starts the thread.
struct td_heartbeat *td_heartbeat_start(int64_t grace_ms, const char *socket_path, int listener);
void td_heartbeat_stop(struct td_heartbeat *h); // joins; accepts NULL

// Command thread: a controller came (conn borrowed until the next call) or went (NULL).
void td_heartbeat_attach(struct td_heartbeat *h, struct td_ipc_conn *conn);
// Command thread: what it does from now on, and that it got somewhere.
void td_heartbeat_doing(struct td_heartbeat *h, enum td_doing doing);
void td_heartbeat_progress(struct td_heartbeat *h, uint64_t generated_tokens,
                           uint32_t open_sequences);

#endif
