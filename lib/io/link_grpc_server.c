// The coordinator's end of link_grpc.h. Loop thread. One timer ends the holds of all calls.
#include <inttypes.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/link_grpc.h"
#include "proto/sync.pb-c.h"

enum kind { REPORT, WAIT, KINDS };

struct member {
    uint64_t id;
    int64_t heard_ms;
    struct td_rpc_call *calls[KINDS];
    int64_t until_ms[KINDS]; // the call's hold ends
    struct td_buf kept;      // orders that wait for a call
    bool has_kept;
};

struct td_link_server {
    struct td_loop *loop;
    td_link_report_fn *on_report;
    void *user;
    struct td_timer *timer;
    struct member *members[TD_LINK_MEMBERS_MAX];
    size_t count;
    bool closed;
};

static struct member *find(const struct td_link_server *server, uint64_t id) {
    for (size_t i = 0; i < server->count; i++) {
        if (server->members[i]->id == id) {
            return server->members[i];
        }
    }
    return NULL;
}

static void member_free(struct member *member) {
    td_buf_fini(&member->kept);
    td_free(member);
}

// Makes room: the member that has no call and was not heard for the longest time is forgotten.
static bool forget_one(struct td_link_server *server) {
    struct member **oldest = NULL;
    for (size_t i = 0; i < server->count; i++) {
        struct member **m = &server->members[i];
        if (!(*m)->calls[REPORT] && !(*m)->calls[WAIT] &&
            (!oldest || (*m)->heard_ms < (*oldest)->heard_ms)) {
            oldest = m;
        }
    }
    if (oldest) {
        member_free(*oldest);
        *oldest = server->members[--server->count];
    }
    return oldest != NULL;
}

// NULL: the table is full of members that are there.
static struct member *find_or_add(struct td_link_server *server, uint64_t id) {
    struct member *member = find(server, id);
    if (!member && (server->count < TD_LINK_MEMBERS_MAX || forget_one(server))) {
        member = td_alloc(sizeof *member);
        member->id = id;
        server->members[server->count++] = member;
    }
    return member;
}

static void answer(struct member *member, enum kind kind, const void *bytes, size_t n) {
    struct td_rpc_call *call = member->calls[kind];
    if (call) {
        Tandem__Sync__SyncReply reply = TANDEM__SYNC__SYNC_REPLY__INIT;
        reply.orders = (ProtobufCBinaryData){n, (uint8_t *)bytes};
        member->calls[kind] = NULL;
        td_rpc_reply(call, &reply.base);
    }
}

// Ends the holds whose time is over and waits for the next.
static void on_timer(void *user) {
    struct td_link_server *server = user;
    int64_t now = td_loop_now_ms(server->loop), next = INT64_MAX;
    for (size_t i = 0; i < server->count; i++) {
        struct member *member = server->members[i];
        for (enum kind kind = 0; kind < KINDS; kind++) {
            int64_t until = member->until_ms[kind];
            if (member->calls[kind] && until <= now) {
                answer(member, kind, NULL, 0);
            } else if (member->calls[kind] && until < next) {
                next = until;
            }
        }
    }
    if (next != INT64_MAX) {
        td_timer_start(server->timer, next - now);
    }
}

// Answers the call with what was kept, or lets it wait.
static void answer_or_hold(struct td_link_server *server, struct member *member, enum kind kind,
                           uint32_t hold_ms) {
    if (!member->calls[kind]) {
        return;
    }
    if (member->has_kept) {
        member->has_kept = false;
        answer(member, kind, member->kept.data, member->kept.len);
        td_buf_fini(&member->kept);
        member->kept = (struct td_buf){0};
        return;
    }
    int64_t hold = hold_ms < TD_LINK_HOLD_MS_MAX ? hold_ms : TD_LINK_HOLD_MS_MAX;
    member->until_ms[kind] = td_loop_now_ms(server->loop) + hold;
    on_timer(server);
}

// Why the request cannot be served; false: it can.
static bool refuse(const struct td_link_server *server, struct td_rpc_call *call,
                   const Tandem__Sync__SyncRequest *request) {
    if (request->protocol != TD_LINK_PROTOCOL) {
        char *text = td_asprintf("the member speaks Sync protocol %" PRIu32
                                 ", this coordinator %d: run the same version on both",
                                 request->protocol, TD_LINK_PROTOCOL);
        td_rpc_fail(call, TD_RPC_FAILED_PRECONDITION, text);
        td_free(text);
    } else if (request->member == 0) {
        td_rpc_fail(call, TD_RPC_INVALID_ARGUMENT, "a member has an id other than 0");
    } else if (request->report.len > TD_LINK_BYTES_MAX) {
        td_rpc_fail(call, TD_RPC_RESOURCE_EXHAUSTED, "the report is larger than one may be");
    } else if (server->closed) {
        td_rpc_fail(call, TD_RPC_UNAVAILABLE, "the coordinator stops");
    } else {
        return false;
    }
    return true;
}

static void on_call(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct td_link_server *server = user;
    const Tandem__Sync__SyncRequest *request = (const Tandem__Sync__SyncRequest *)message;
    if (refuse(server, call, request)) {
        return;
    }
    uint64_t id = request->member;
    struct member *member = find_or_add(server, id);
    if (!member) {
        td_rpc_fail(call, TD_RPC_RESOURCE_EXHAUSTED, "too many members are connected");
        return;
    }
    enum kind kind = request->report.len > 0 ? REPORT : WAIT;
    answer(member, kind, NULL, 0); // an older call of the kind
    member->calls[kind] = call;
    member->until_ms[kind] = INT64_MAX;
    member->heard_ms = td_loop_now_ms(server->loop);
    if (kind == REPORT) {
        server->on_report(server->user, id, request->report.data, request->report.len);
    }
    answer_or_hold(server, member, kind, request->hold_ms);
}

static void on_gone(void *user, struct td_rpc_call *call) {
    struct td_link_server *server = user;
    for (size_t i = 0; i < server->count; i++) {
        struct member *member = server->members[i];
        for (enum kind kind = 0; kind < KINDS; kind++) {
            if (member->calls[kind] == call) {
                member->calls[kind] = NULL;
            }
        }
    }
}

struct td_link_server *td_link_server_new(struct td_loop *loop, td_link_report_fn *on_report,
                                          void *user) {
    struct td_link_server *server = td_alloc(sizeof *server);
    server->loop = loop;
    server->on_report = on_report;
    server->user = user;
    server->timer = td_timer_new(loop, on_timer, server);
    return server;
}

struct td_rpc_method td_link_server_method(struct td_link_server *server) {
    return (struct td_rpc_method){.path = "/tandem.sync.Sync/Sync",
                                  .in = &tandem__sync__sync_request__descriptor,
                                  .out = &tandem__sync__sync_reply__descriptor,
                                  .call = on_call,
                                  .gone = on_gone,
                                  .user = server};
}

void td_link_server_close(struct td_link_server *server) {
    td_loop_assert(server->loop);
    server->closed = true;
    for (size_t i = 0; i < server->count; i++) {
        answer(server->members[i], REPORT, NULL, 0);
        answer(server->members[i], WAIT, NULL, 0);
    }
}

void td_link_server_free(struct td_link_server *server) {
    if (!server) {
        return;
    }
    td_loop_assert(server->loop);
    for (size_t i = 0; i < server->count; i++) {
        td_assert(!server->members[i]->calls[REPORT] && !server->members[i]->calls[WAIT]);
        member_free(server->members[i]);
    }
    td_timer_close(server->timer);
    td_free(server);
}

void td_link_server_orders(struct td_link_server *server, uint64_t member_id, const void *bytes,
                           size_t n) {
    td_loop_assert(server->loop);
    td_assert(n > 0 && n <= TD_LINK_BYTES_MAX);
    struct member *member = find(server, member_id);
    if (!member) {
        return;
    }
    td_buf_clear(&member->kept); // older than these
    member->has_kept = false;
    if (member->calls[REPORT]) {
        answer(member, REPORT, bytes, n);
    } else if (member->calls[WAIT]) {
        answer(member, WAIT, bytes, n);
    } else {
        td_buf_put(&member->kept, bytes, n);
        member->has_kept = true;
    }
}
