// A server and a channel to it on one loop, for the tests of rpc.h. The methods are those of
// tandem.v1.Jobs: GetJob (unary) and WatchJob (stream) do what the job's id says, SubmitJob answers
// with the length of the job file.
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
#define SUBMIT_PATH "/tandem.v1.Jobs/SubmitJob"

struct world {
    struct td_loop *loop;
    struct td_rpc *rpc;
    struct td_rpc_server *server;
    struct td_rpc_channel *channel;
    char address[128];
    struct td_rpc_call *held; // a call that was not answered
    bool others;              // td_rpc of this process outlive this world's
    int calls, gone, stopped;
    size_t big_bytes, text_bytes;
    int sent;                    // events of a flood
    char peer[128], subject[64]; // of the last call of GetJob
};

// What became of a request.
struct result {
    enum td_rpc_status status;
    char text[256];
    uint64_t id; // of the reply
    size_t bytes;
    int messages, done;
};

// A server with the three methods and reflection that does not listen yet.
struct td_rpc_server *new_server(struct world *world, const struct td_rpc_tls *tls);
// A server that listens on some port of the loopback, and, when it has no TLS, a channel to it.
void world_begin(struct world *world, const struct td_rpc_tls *tls);
void world_connect(struct world *world, const struct td_rpc_tls *tls);
// Frees channel and server without a stop, then the rest.
void world_end(struct world *world);
struct td_rpc_request *get_job(struct world *world, uint64_t id, int64_t deadline_ms,
                               struct result *result);
// Until it is done.
void ask_job(struct world *world, uint64_t id, int64_t deadline_ms, struct result *result);
// Until the server holds the first call.
struct td_rpc_request *hold_job(struct world *world, struct result *result);
struct td_rpc_request *watch_job(struct world *world, uint64_t id, int64_t deadline_ms,
                                 struct result *result);
struct td_rpc_request *submit_job(struct world *world, const Tandem__V1__SubmitJobRequest *job,
                                  struct result *result);
void on_result(void *user, const struct td_rpc_outcome *outcome); // user: struct result
void wait_for(struct world *world, struct result *result);
// Sends an event with big_bytes on a stream.
enum td_rc send_event(struct world *world, struct td_rpc_call *call, struct td_err *err);
// Answers the call that is held.
void answer_later(struct world *world);
void on_stopped(void *user);

#endif
