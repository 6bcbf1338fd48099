// gRPC, server and client, over the C core. One thread waits on the completion queue and posts to
// the loop; every call and callback here is on the loop thread. Unary calls and server streams.
// The server answers grpc.health.v1 (Check, Watch), reflection v1 and v1alpha, and UNIMPLEMENTED
// for methods it does not know. Messages are protobuf-c structs, at most TD_RPC_MESSAGE_MAX packed.
#ifndef TD_IO_RPC_H
#define TD_IO_RPC_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/io/loop.h"

struct td_rpc; // the runtime: one per loop
struct td_rpc_server;
struct td_rpc_call; // a call at the server
struct td_rpc_channel;
struct td_rpc_request; // a call at the client

enum {
    TD_RPC_MESSAGE_MAX = 64 << 20,
    TD_RPC_STREAM_QUEUE_MAX = 256,
    TD_RPC_CALLS_MAX = 4096, // held by the handlers of one server
};

enum td_rpc_status { // gRPC's codes; numbers are the protocol's
    TD_RPC_OK = 0,
    TD_RPC_CANCELLED = 1,
    TD_RPC_UNKNOWN = 2,
    TD_RPC_INVALID_ARGUMENT = 3,
    TD_RPC_DEADLINE_EXCEEDED = 4,
    TD_RPC_NOT_FOUND = 5,
    TD_RPC_ALREADY_EXISTS = 6,
    TD_RPC_PERMISSION_DENIED = 7,
    TD_RPC_RESOURCE_EXHAUSTED = 8,
    TD_RPC_FAILED_PRECONDITION = 9,
    TD_RPC_ABORTED = 10,
    TD_RPC_OUT_OF_RANGE = 11,
    TD_RPC_UNIMPLEMENTED = 12,
    TD_RPC_INTERNAL = 13,
    TD_RPC_UNAVAILABLE = 14,
    TD_RPC_UNAUTHENTICATED = 16,
};
const char *td_rpc_status_name(enum td_rpc_status status); // "NOT_FOUND"

// PEM files, read at once. Server: cert and key; ca: clients must have a certificate of it (mutual
// TLS). Client: ca (NULL: the system's); cert and key for mutual TLS; server_name (NULL: the
// host of the address) is what the server's certificate must say.
struct td_rpc_tls {
    const char *ca_file, *cert_file, *key_file, *server_name;
};

// ---- runtime ----
enum td_rc td_rpc_new(struct td_loop *loop, struct td_rpc **out, struct td_err *err) TD_MUST_CHECK;
// After every server and channel was freed, not in a callback of theirs. Runs no callback. Blocks
// until the core is down with all its threads: at once, or some 100 ms after a failed TLS
// handshake; 1 s where another td_rpc of the process keeps it up.
void td_rpc_free(struct td_rpc *rpc); // accepts NULL

// ---- server ----
struct td_rpc_method {
    const char *path; // "/tandem.v1.Jobs/GetJob"
    const ProtobufCMessageDescriptor *in, *out;
    bool streams; // answers by td_rpc_send any number of times, then td_rpc_finish
    // A request (borrowed for the call). The handler answers now or later; until then the call is
    // its to keep, and gone from it with the answer.
    void (*call)(void *user, struct td_rpc_call *call, const ProtobufCMessage *request);
    // The caller went away, or its deadline passed, before the answer: nothing may be sent on the
    // call any more; it is gone after this callback. Not called once the call was finished. NULL:
    // the handler answers before it returns.
    void (*gone)(void *user, struct td_rpc_call *call);
    void *user; // NULL: the server's
};

struct td_rpc_server_opts {
    struct td_rpc *rpc;
    const struct td_rpc_method *methods; // their strings are borrowed for the server's life
    size_t method_count;
    const struct td_rpc_tls *tls; // NULL: plain
    const void *descriptors;      // FileDescriptorSet for reflection, borrowed; NULL: none
    size_t descriptors_bytes;
    void *user;
};

// TD_EINVAL: certificates; TD_EIO.
enum td_rc td_rpc_server_new(const struct td_rpc_server_opts *opts, struct td_rpc_server **out,
                             struct td_err *err) TD_MUST_CHECK;
// "HOST:PORT" (port 0: any) or "unix:PATH"; before start, once or more. *port: the one taken (may
// be NULL). TD_ECONFLICT: it is in use; TD_EINVAL: no such address, or the certificates do not fit.
// A UNIX socket has a lock file beside it, PATH.lock, which stays.
enum td_rc td_rpc_server_listen(struct td_rpc_server *server, const char *address, int *port,
                                struct td_err *err) TD_MUST_CHECK;
void td_rpc_server_start(struct td_rpc_server *server);
// What the health service says of service ("" is the server): unknown until set.
void td_rpc_server_health(struct td_rpc_server *server, const char *service, bool serving);
// Health says NOT_SERVING, no new connection is taken, calls under way may end within grace_ms,
// the rest is cancelled (gone); done(user) when none is left. Then td_rpc_server_free.
void td_rpc_server_stop(struct td_rpc_server *server, int64_t grace_ms, td_loop_fn *done,
                        void *user);
// Accepts NULL. Before done: a stop without grace, gone is called before this returns.
void td_rpc_server_free(struct td_rpc_server *server);

// Answers a unary call with OK and the message (packed now), and ends it.
void td_rpc_reply(struct td_rpc_call *call, const ProtobufCMessage *message);
// Ends a call with another status; text is UTF-8 for people, cut at about 6000 bytes.
void td_rpc_fail(struct td_rpc_call *call, enum td_rpc_status status, const char *text);
// Streams: sends one message. TD_ELIMIT: TD_RPC_STREAM_QUEUE_MAX wait already (a slow reader).
enum td_rc td_rpc_send(struct td_rpc_call *call, const ProtobufCMessage *message,
                       struct td_err *err) TD_MUST_CHECK;
void td_rpc_finish(struct td_rpc_call *call);               // ends a stream with OK
void td_rpc_call_set(struct td_rpc_call *call, void *data); // anything of the handler's
void *td_rpc_call_get(const struct td_rpc_call *call);
const char *td_rpc_call_peer(struct td_rpc_call *call);    // "ipv4:127.0.0.1:4711"
const char *td_rpc_call_subject(struct td_rpc_call *call); // CN of the client; "": none

// ---- client ----
// Connects when it is first needed, again by itself, with keepalive. address as for listen.
enum td_rc td_rpc_channel_new(struct td_rpc *rpc, const char *address, const struct td_rpc_tls *tls,
                              struct td_rpc_channel **out, struct td_err *err) TD_MUST_CHECK;
// Cancels its requests; their done is called before this returns.
void td_rpc_channel_free(struct td_rpc_channel *channel); // accepts NULL

struct td_rpc_outcome {
    enum td_rpc_status status;       // CANCELLED only when it was done here
    const char *text;                // borrowed
    const ProtobufCMessage *message; // unary and OK: the reply, borrowed; else NULL
};

struct td_rpc_request_opts {
    const char *path;
    const ProtobufCMessage *request; // packed now
    const ProtobufCMessageDescriptor *out;
    int64_t deadline_ms; // from now; < 0: none
    // Streams: each message, borrowed. NULL: a unary call.
    void (*message)(void *user, const ProtobufCMessage *message);
    void (*done)(void *user, const struct td_rpc_outcome *outcome); // exactly once, the last
    void *user;
};
// The request is gone after done.
struct td_rpc_request *td_rpc_request(struct td_rpc_channel *channel,
                                      const struct td_rpc_request_opts *opts);
void td_rpc_cancel(struct td_rpc_request *request); // done follows, with CANCELLED

#endif
