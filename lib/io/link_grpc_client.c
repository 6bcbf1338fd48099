// The member's end of link_grpc.h. Loop thread. Each coordinator has at most two calls under way:
// one that waits for orders, always, and one with a report, which is answered as soon as the report
// was handled: orders that come later go to the waiting call. After a failure both wait for a
// pause.
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/io/link_grpc.h"
#include "proto/sync.pb-c.h"

struct peer { // a coordinator
    struct td_link_client *client;
    char *address;
    struct td_rpc_channel *channel;
    struct td_timer *pause;
    int64_t pause_ms; // of the last pause; 0: the last call was answered
    bool paused;
    bool waits, reports; // such a call is under way
    bool has_news;       // the newest report was not sent here yet
    int64_t waits_since_ms;
    bool connected;
    int64_t since_ms;
    char *error;
};

struct td_link_client {
    struct td_loop *loop;
    uint64_t member;
    td_link_orders_fn *on_orders;
    void *user;
    struct td_rng rng;
    struct td_buf report; // the newest
    struct peer peers[TD_LINK_COORDINATORS_MAX];
    size_t count;
    bool freed;
};

static void on_waited(void *user, const struct td_rpc_outcome *outcome);
static void on_reported(void *user, const struct td_rpc_outcome *outcome);

static void sync(struct peer *peer, struct td_buf report, uint32_t hold_ms) {
    Tandem__Sync__SyncRequest request = TANDEM__SYNC__SYNC_REQUEST__INIT;
    request.protocol = TD_LINK_PROTOCOL;
    request.member = peer->client->member;
    request.report = (ProtobufCBinaryData){report.len, report.data};
    request.hold_ms = hold_ms;
    td_rpc_request(peer->channel,
                   &(struct td_rpc_request_opts){.path = "/tandem.sync.Sync/Sync",
                                                 .request = &request.base,
                                                 .out = &tandem__sync__sync_reply__descriptor,
                                                 .deadline_ms = (int64_t)hold_ms + TD_LINK_SLACK_MS,
                                                 .done = report.len > 0 ? on_reported : on_waited,
                                                 .user = peer});
}

// Starts the calls that are due.
static void go_on(struct peer *peer) {
    if (peer->paused) {
        return;
    }
    if (peer->has_news && !peer->reports) {
        peer->has_news = false;
        peer->reports = true;
        sync(peer, peer->client->report, 0);
    }
    if (!peer->waits) {
        peer->waits = true;
        peer->waits_since_ms = td_loop_now_ms(peer->client->loop);
        sync(peer, (struct td_buf){0}, TD_LINK_HOLD_MS);
    }
}

static void on_pause_over(void *user) {
    struct peer *peer = user;
    peer->paused = false;
    go_on(peer);
}

// Doubles from the shortest to the longest; between half of it and all of it, by chance, so that
// members do not come all at once.
static void pause_calls(struct peer *peer) {
    if (peer->paused) {
        return;
    }
    int64_t ms = peer->pause_ms == 0 ? TD_LINK_PAUSE_MS_MIN : 2 * peer->pause_ms;
    peer->pause_ms = ms < TD_LINK_PAUSE_MS_MAX ? ms : TD_LINK_PAUSE_MS_MAX;
    int64_t half = (peer->pause_ms + 1) / 2;
    int64_t jitter = td_rng_below(&peer->client->rng, (uint32_t)half + 1);
    peer->paused = true;
    td_timer_start(peer->pause, half + jitter);
}

static void set_connected(struct peer *peer, bool connected) {
    if (peer->connected != connected) {
        peer->connected = connected;
        peer->since_ms = td_loop_now_ms(peer->client->loop);
    }
}

// Notes how a call ended; whether it was answered.
static bool note(struct peer *peer, const struct td_rpc_outcome *outcome) {
    set_connected(peer, outcome->status == TD_RPC_OK);
    if (outcome->status == TD_RPC_OK) {
        peer->pause_ms = 0;
        return true;
    }
    td_free(peer->error);
    peer->error = td_asprintf("%s: %.400s", td_rpc_status_name(outcome->status), outcome->text);
    pause_calls(peer);
    return false;
}

// The last thing done with the client: it may be freed in the callback.
static void hand_over(struct td_link_client *client, const struct td_rpc_outcome *outcome) {
    const Tandem__Sync__SyncReply *reply = (const Tandem__Sync__SyncReply *)outcome->message;
    if (reply && reply->orders.len > 0) {
        client->on_orders(client->user, reply->orders.data, reply->orders.len);
    }
}

static void on_waited(void *user, const struct td_rpc_outcome *outcome) {
    struct peer *peer = user;
    struct td_link_client *client = peer->client;
    if (client->freed) {
        return;
    }
    peer->waits = false;
    const Tandem__Sync__SyncReply *reply = (const Tandem__Sync__SyncReply *)outcome->message;
    int64_t waited = td_loop_now_ms(client->loop) - peer->waits_since_ms;
    // Nothing, and early: somebody else waits under the same id, or the coordinator stops.
    if (note(peer, outcome) && reply->orders.len == 0 && waited < TD_LINK_HOLD_MS / 2) {
        pause_calls(peer);
    }
    go_on(peer);
    hand_over(client, outcome);
}

static void on_reported(void *user, const struct td_rpc_outcome *outcome) {
    struct peer *peer = user;
    struct td_link_client *client = peer->client;
    if (client->freed) {
        return;
    }
    peer->reports = false;
    if (!note(peer, outcome)) {
        peer->has_news = true; // it may be lost: the newest goes again
    }
    go_on(peer);
    hand_over(client, outcome);
}

static enum td_rc peer_init(struct peer *peer, struct td_link_client *client,
                            const struct td_link_client_opts *opts, const char *address,
                            struct td_err *err) {
    enum td_rc rc = td_rpc_channel_new(opts->rpc, address, opts->tls, &peer->channel, err);
    if (rc != TD_OK) {
        return rc;
    }
    peer->client = client;
    peer->address = td_strdup(address);
    peer->error = td_strdup("");
    peer->pause = td_timer_new(client->loop, on_pause_over, peer);
    peer->since_ms = td_loop_now_ms(client->loop);
    return TD_OK;
}

enum td_rc td_link_client_new(const struct td_link_client_opts *opts, struct td_link_client **out,
                              struct td_err *err) {
    td_loop_assert(opts->loop);
    td_assert(opts->member != 0 && opts->count > 0);
    if (opts->count > TD_LINK_COORDINATORS_MAX) {
        return td_fail(err, TD_ELIMIT, "%zu coordinators, at most %d", opts->count,
                       TD_LINK_COORDINATORS_MAX);
    }
    struct td_link_client *client = td_alloc(sizeof *client);
    *client = (struct td_link_client){.loop = opts->loop,
                                      .member = opts->member,
                                      .on_orders = opts->on_orders,
                                      .user = opts->user};
    client->rng.state = td_mix64(opts->member ^ (uint64_t)td_clock_ns());
    for (size_t i = 0; i < opts->count; i++) {
        enum td_rc rc = peer_init(&client->peers[i], client, opts, opts->addresses[i], err);
        if (rc != TD_OK) {
            td_link_client_free(client);
            return rc;
        }
        client->count++;
    }
    for (size_t i = 0; i < client->count; i++) {
        go_on(&client->peers[i]);
    }
    *out = client;
    return TD_OK;
}

void td_link_client_free(struct td_link_client *client) {
    if (!client) {
        return;
    }
    td_loop_assert(client->loop);
    client->freed = true;
    for (size_t i = 0; i < client->count; i++) {
        struct peer *peer = &client->peers[i];
        td_rpc_channel_free(peer->channel);
        td_timer_close(peer->pause);
        td_free(peer->address);
        td_free(peer->error);
    }
    td_buf_fini(&client->report);
    td_free(client);
}

void td_link_client_report(struct td_link_client *client, const void *bytes, size_t n) {
    td_loop_assert(client->loop);
    td_assert(n > 0 && n <= TD_LINK_BYTES_MAX);
    td_buf_clear(&client->report);
    td_buf_put(&client->report, bytes, n);
    for (size_t i = 0; i < client->count; i++) {
        client->peers[i].has_news = true;
        go_on(&client->peers[i]);
    }
}

struct td_link_client_state td_link_client_state(const struct td_link_client *client, size_t i) {
    td_assert_op(i, <, client->count);
    const struct peer *peer = &client->peers[i];
    return (struct td_link_client_state){peer->address, peer->connected, peer->since_ms,
                                         peer->error};
}
