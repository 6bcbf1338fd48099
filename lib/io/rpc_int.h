// What the parts of the gRPC wrapper share: rpc.c (runtime), rpc_server.c, rpc_call.c (calls at the
// server), rpc_client.c, rpc_tls.c, rpc_health.c, rpc_reflection.c. Loop thread, but for the thread
// of the completion queue, which touches the list of completed tags and nothing else. The types of
// the core are forward-declared: headers of gRPC belong into .c files.
#ifndef TD_IO_RPC_INT_H
#define TD_IO_RPC_INT_H

#include <pthread.h>

#include "lib/io/rpc.h"

struct grpc_byte_buffer;
struct grpc_channel_credentials;
struct grpc_completion_queue;
struct grpc_server;
struct grpc_server_credentials;

enum {
    TD_RPC_ARMED_PER_METHOD = 16, // calls that may arrive between two turns without waiting
    TD_RPC_UNPACKED_MAX = 256 << 20,
    TD_RPC_METADATA_MAX = 64 << 10,
    TD_RPC_TEXT_MAX = 6000, // of a status, as sent: others accept 8 KiB of metadata in all
    TD_RPC_ADDRESSES_MAX = 8,
    TD_RPC_HEALTH_MAX = 32,
    TD_RPC_KEEPALIVE_MS = 20000,
    TD_RPC_KEEPALIVE_TIMEOUT_MS = 10000,
};

// ---- runtime ----
// One operation under way in the core. It lies in what owns it and may not move or go before fn.
struct td_rpc_tag {
    void (*fn)(struct td_rpc_tag *tag, bool ok); // loop thread
    void *owner;
    struct td_rpc_tag *next; // once completed
    bool ok;
};

struct td_rpc {
    struct td_loop *loop;
    struct grpc_completion_queue *queue;
    pthread_t thread;
    struct td_watch *watch;
    int fd;
    bool running;             // a tag's fn runs
    size_t servers, channels; // not freed yet
    size_t pending;           // tags in the core or in the list
    pthread_mutex_t mutex;
    struct td_rpc_tag *head, **tail; // guarded
};

// Right before a tag is given to the core.
void td_rpc_tag_begin(struct td_rpc *rpc, struct td_rpc_tag *tag);
// NULL: larger than TD_RPC_MESSAGE_MAX.
struct grpc_byte_buffer *td_rpc_pack(const ProtobufCMessage *message);
// NULL: not such a message, or too much memory. Release by td_rpc_message_free.
ProtobufCMessage *td_rpc_unpack(struct grpc_byte_buffer *bytes,
                                const ProtobufCMessageDescriptor *type);
void td_rpc_message_free(ProtobufCMessage *message); // accepts NULL

// ---- certificates ----
enum td_rc td_rpc_server_credentials(const struct td_rpc_tls *tls,
                                     struct grpc_server_credentials **out,
                                     struct td_err *err) TD_MUST_CHECK;
enum td_rc td_rpc_channel_credentials(const struct td_rpc_tls *tls,
                                      struct grpc_channel_credentials **out,
                                      struct td_err *err) TD_MUST_CHECK;

// ---- server ----
struct td_rpc_entry { // a method as registered
    struct td_rpc_method method;
    struct td_rpc_server *server;
    void *registered; // in the core; NULL: stands for all methods that are not known
    bool reads;       // the client streams too: method.call for each message
    void *user;
};

struct td_rpc_health;
struct td_rpc_reflection;

struct td_rpc_server {
    struct td_rpc *rpc;
    struct grpc_server *core;
    struct grpc_server_credentials *credentials;
    bool tls;
    struct td_rpc_entry *entries, unknown;
    size_t entry_count;
    struct td_rpc_call *held; // calls that handlers have, linked
    size_t held_count, calls; // calls: held, armed and ending
    struct td_rpc_health *health;
    struct td_rpc_reflection *reflection; // NULL: none
    int locks[TD_RPC_ADDRESSES_MAX];      // of UNIX sockets
    size_t lock_count, address_count;
    struct td_rpc_tag down; // comes when the core has no connection left
    struct td_timer *timer; // end of grace, then: all is done
    td_loop_fn *done;
    void *done_user;
    bool started, stopping, is_down, freed;
};

// Waits for one call of the method.
void td_rpc_call_arm(struct td_rpc_entry *entry);
// A call is gone from the server's count.
void td_rpc_server_call_ended(struct td_rpc_server *server);
// Calls whose client could go on asking for ever are ended.
void td_rpc_calls_stop(struct td_rpc_server *server);
// Every call that a handler has is gone, now.
void td_rpc_calls_drop(struct td_rpc_server *server);

// Entries of the services that every server has: fill at most the number of their _METHODS.
enum { TD_RPC_HEALTH_METHODS = 2, TD_RPC_REFLECTION_METHODS = 2 };
struct td_rpc_health *td_rpc_health_new(struct td_rpc_entry *entries);
void td_rpc_health_free(struct td_rpc_health *health); // accepts NULL
void td_rpc_health_set(struct td_rpc_health *health, const char *service, bool serving);
// All services are NOT_SERVING for good; those who watch are told, and their calls end.
void td_rpc_health_stop(struct td_rpc_health *health);
// TD_EINVAL: opts->descriptors is no FileDescriptorSet. Sets server->reflection.
enum td_rc td_rpc_reflection_new(struct td_rpc_server *server, struct td_rpc_entry *entries,
                                 const struct td_rpc_server_opts *opts,
                                 struct td_err *err) TD_MUST_CHECK;
void td_rpc_reflection_free(struct td_rpc_reflection *reflection); // accepts NULL

#endif
