// A server and a channel to it on one loop, for the tests of rpc.h. The methods are those of
// tandem.v1.Jobs, GetJob (unary) and WatchJob (stream); what they do depends on the job's id.
#ifndef TD_TESTS_IO_RPC_WORLD_H
#define TD_TESTS_IO_RPC_WORLD_H

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/io/rpc.h"
#include "proto/jobs.pb-c.h"
#include "tests/unit/io/wait.h"

enum {
    JOB_ECHO = 1, // answered at once
    JOB_LATER,    // answered by answer_later
    JOB_FAIL,     // FAILED_PRECONDITION with a text
    JOB_BIG,      // answered with big_bytes
    JOB_STREAM,   // three events, then the end
    JOB_FLOOD,    // events until the queue is full
    JOB_FREE,     // frees the server
};

#define GET_PATH "/tandem.v1.Jobs/GetJob"
#define WATCH_PATH "/tandem.v1.Jobs/WatchJob"

struct world {
    struct td_loop *loop;
    struct td_rpc *rpc;
    struct td_rpc_server *server;
    struct td_rpc_channel *channel;
    char address[64];
    struct td_rpc_call *held; // a call that was not answered
    int calls, gone, stopped;
    size_t big_bytes, text_bytes;
    int sent; // events of a flood
    char peer[128], subject[64];
};

// What became of a request.
struct result {
    enum td_rpc_status status;
    char text[256];
    uint64_t id; // of the reply
    size_t bytes;
    int messages, done;
};

struct td_rpc_method get_method(void);
struct td_rpc_method watch_method(void);
void world_begin(struct world *world, const struct td_rpc_tls *tls);
void world_connect(struct world *world, const struct td_rpc_tls *tls);
// Frees channel and server without a stop, then the rest.
void world_end(struct world *world);
struct td_rpc_request *get_job(struct world *world, uint64_t id, int64_t deadline_ms,
                               struct result *result);
struct td_rpc_request *watch_job(struct world *world, uint64_t id, int64_t deadline_ms,
                                 struct result *result);
void wait_for(struct world *world, struct result *result);
// Answers the call that is held.
void answer_later(struct world *world);
void on_stopped(void *user);

#endif
