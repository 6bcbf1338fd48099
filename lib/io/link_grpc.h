// The link of link.h over gRPC: Sync of proto/sync.proto, whose comment says how calls and orders
// meet. A member has one client that speaks to every coordinator at once; each coordinator has one
// server among the methods of its td_rpc_server. Loop thread. Bytes are borrowed for the call.
#ifndef TD_IO_LINK_GRPC_H
#define TD_IO_LINK_GRPC_H

#include "lib/io/link.h"
#include "lib/io/rpc.h"

enum {
    TD_LINK_PROTOCOL = 1,
    TD_LINK_COORDINATORS_MAX = 16,
    TD_LINK_HOLD_MS = 1000,      // how long a call waits for orders
    TD_LINK_HOLD_MS_MAX = 60000, // however long a member wants to
    TD_LINK_SLACK_MS = 5000,     // for the answer to arrive in
    TD_LINK_PAUSE_MS_MIN = 50,   // before a call after a failure, doubled at each further one
    TD_LINK_PAUSE_MS_MAX = 1000,
};

// ---- the coordinator's end ----
struct td_link_server;

struct td_link_server *td_link_server_new(struct td_loop *loop, td_link_report_fn *on_report,
                                          void *user);
// For the methods of the td_rpc_server, which is to be freed before the link server.
struct td_rpc_method td_link_server_method(struct td_link_server *server);
// Answers every call with nothing; later ones get UNAVAILABLE. Before td_rpc_server_stop, which
// else waits for them.
void td_link_server_close(struct td_link_server *server);
void td_link_server_free(struct td_link_server *server); // accepts NULL
// Orders for a member that has reported or waits: they answer its call, or, when there is none,
// its next one; of those that wait for a call only the newest is kept. Else dropped.
void td_link_server_orders(struct td_link_server *server, uint64_t member, const void *bytes,
                           size_t n);

// ---- the member's end ----
struct td_link_client;

struct td_link_client_opts {
    struct td_loop *loop;
    struct td_rpc *rpc;
    const char *const *addresses; // of the coordinators; copied
    size_t count;                 // at least 1
    const struct td_rpc_tls *tls; // NULL: plain
    uint64_t member;              // not 0
    td_link_orders_fn *on_orders; // may free the client
    void *user;
};
// Begins to connect, and never gives up. TD_EINVAL: certificates; TD_ELIMIT: too many addresses.
enum td_rc td_link_client_new(const struct td_link_client_opts *opts, struct td_link_client **out,
                              struct td_err *err) TD_MUST_CHECK;
void td_link_client_free(struct td_link_client *client); // accepts NULL
// Sends a report to every coordinator. Where the one before is still under way, or the coordinator
// is not reached, it waits, and replaces what waited there.
void td_link_client_report(struct td_link_client *client, const void *bytes, size_t n);

struct td_link_client_state {
    const char *address;
    bool connected;    // the last call was answered
    int64_t since_ms;  // when connected last changed, on the loop's clock
    const char *error; // of the last call that failed, "": none did
};
// i < count. Strings are borrowed until the next turn.
struct td_link_client_state td_link_client_state(const struct td_link_client *client, size_t i);

#endif
