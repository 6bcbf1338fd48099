// The gRPC client: see rpc.h. A unary request is one batch; one with a stream has three: what is
// sent, each message, the status. refs counts the batches in the core, and the channel's hold until
// done was called.
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/rpc_int.h"

struct td_rpc_channel {
    struct td_rpc *rpc;
    grpc_channel *core;
    struct td_rpc_request *requests; // not done yet
    bool tls, cert;                  // TLS is spoken; with a certificate of our own
    bool freed;
};

struct td_rpc_request {
    struct td_rpc_channel *channel; // NULL: done
    struct td_rpc *rpc;
    struct td_rpc_request *next, **at; // of the channel
    struct td_rpc_request_opts opts;
    grpc_call *core;
    int refs;
    struct td_rpc_tag sent, received, ended;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *request, *reply;
    grpc_status_code status;
    grpc_slice text;
    bool cancelled, has_status, drained; // drained: a stream's last message was delivered
};

// ---- requests ----

static void unref(struct td_rpc_request *request) {
    if (--request->refs > 0) {
        return;
    }
    grpc_byte_buffer_destroy(request->request);
    grpc_byte_buffer_destroy(request->reply);
    grpc_metadata_array_destroy(&request->initial);
    grpc_metadata_array_destroy(&request->trailing);
    grpc_slice_unref(request->text);
    grpc_call_unref(request->core);
    td_free(request);
}

static void begin(struct td_rpc_request *request, const grpc_op *ops, size_t n,
                  struct td_rpc_tag *tag) {
    request->refs++;
    td_rpc_tag_begin(request->rpc, tag);
    grpc_call_error rc = grpc_call_start_batch(request->core, ops, n, tag, NULL);
    td_assert_op(rc, ==, GRPC_CALL_OK);
}

// Tells the outcome; the channel may be freed in the callback.
static void end(struct td_rpc_request *request, const struct td_rpc_outcome *outcome) {
    *request->at = request->next;
    if (request->next) {
        request->next->at = request->at;
    }
    request->channel = NULL;
    request->opts.done(request->opts.user, outcome);
    unref(request);
}

static void end_cancelled(struct td_rpc_request *request) {
    end(request, &(struct td_rpc_outcome){TD_RPC_CANCELLED, "cancelled", NULL});
}

// A server that refuses a certificate, or wants one, or TLS at all, says so by closing.
static const char *why_closed(const struct td_rpc_channel *channel) {
    return !channel->tls   ? " (does it speak TLS?)"
           : channel->cert ? " (it may not accept our certificate)"
                           : " (it may ask for a certificate, and we have none)";
}

// What the core says of a connection that was not made, without its preamble "failed to connect to
// all addresses; last error: STATUS: ADDRESS: ", and with what that means. Owned by the caller.
static char *explain(const struct td_rpc_channel *channel, const char *text) {
    static const char preamble[] = "last error: ", system[] = "Failed to connect to remote host: ";
    static const struct {
        const char *said, *means;
    } rows[] = {
        {"certificate verify failed", " (its certificate is not of the authority of our CA file)"},
        {"wrong version number", " (it does not speak TLS)"},
    };
    const char *at = strstr(text, preamble);
    for (int i = 0; at && i < 2; i++) {
        at = strstr(at + (i ? 0 : strlen(preamble)), ": ");
        at = at ? at + 2 : NULL;
    }
    if (!at) {
        return td_strdup(text);
    }
    at += strncmp(at, system, strlen(system)) == 0 ? strlen(system) : 0;
    const char *means =
        strstr(at, "Socket closed") || strstr(at, "reset by peer") ? why_closed(channel) : "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        means = strstr(at, rows[i].said) ? rows[i].means : means;
    }
    return td_asprintf("%s%s", at, means);
}

// The core has told the status.
static void end_told(struct td_rpc_request *request) {
    if (request->cancelled) {
        end_cancelled(request);
        return;
    }
    struct td_rpc_outcome outcome = {.status = (enum td_rpc_status)request->status};
    char *said = grpc_slice_to_c_string(request->text);
    char *text = explain(request->channel, said);
    outcome.text = text;
    gpr_free(said);
    ProtobufCMessage *reply = NULL;
    if (outcome.status == TD_RPC_CANCELLED) { // not from here: a server that stops does that
        outcome.status = TD_RPC_UNAVAILABLE;
        outcome.text = "the server cancelled the call, it stops";
    }
    if (outcome.status == TD_RPC_OK && !request->opts.message) {
        reply = request->reply ? td_rpc_unpack(request->reply, request->opts.out) : NULL;
        outcome.message = reply;
        if (!reply) {
            outcome.status = TD_RPC_INTERNAL;
            outcome.text = "the answer is not the message it should be";
        }
    }
    end(request, &outcome);
    td_rpc_message_free(reply);
    td_free(text);
}

static void on_sent(struct td_rpc_tag *tag, bool ok) {
    (void)ok; // the status says why
    unref(tag->owner);
}

static void on_ended(struct td_rpc_tag *tag, bool ok) {
    (void)ok;
    struct td_rpc_request *request = tag->owner;
    request->has_status = true;
    if (request->channel && (request->drained || !request->opts.message)) {
        end_told(request);
    }
    unref(request);
}

static void receive(struct td_rpc_request *request) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &request->reply;
    begin(request, &op, 1, &request->received);
}

static void deliver(struct td_rpc_request *request) {
    ProtobufCMessage *message = td_rpc_unpack(request->reply, request->opts.out);
    grpc_byte_buffer_destroy(request->reply);
    request->reply = NULL;
    if (message) {
        request->opts.message(request->opts.user, message);
        td_rpc_message_free(message);
    } else {
        grpc_call_cancel_with_status(request->core, GRPC_STATUS_INTERNAL,
                                     "a message is not what it should be", NULL);
    }
}

static void on_received(struct td_rpc_tag *tag, bool ok) {
    (void)ok;
    struct td_rpc_request *request = tag->owner;
    bool more = request->reply != NULL;
    if (more && request->channel && !request->cancelled) {
        deliver(request);
    } else if (more) {
        grpc_byte_buffer_destroy(request->reply);
        request->reply = NULL;
    }
    if (more && request->channel) {
        receive(request);
    } else if (request->channel) {
        request->drained = true;
        if (request->has_status) {
            end_told(request);
        }
    }
    unref(request);
}

static void start(struct td_rpc_request *request) {
    grpc_op send[4] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                       {.op = GRPC_OP_SEND_MESSAGE},
                       {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
                       // Without it no message and no deadline would ever come.
                       {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    send[1].data.send_message.send_message = request->request;
    send[3].data.recv_initial_metadata.recv_initial_metadata = &request->initial;
    grpc_op take[2] = {{.op = GRPC_OP_RECV_STATUS_ON_CLIENT}, {.op = GRPC_OP_RECV_MESSAGE}};
    take[0].data.recv_status_on_client.trailing_metadata = &request->trailing;
    take[0].data.recv_status_on_client.status = &request->status;
    take[0].data.recv_status_on_client.status_details = &request->text;
    take[1].data.recv_message.recv_message = &request->reply;
    if (request->opts.message) {
        begin(request, send, 4, &request->sent);
        begin(request, take, 1, &request->ended);
        receive(request);
    } else {
        grpc_op all[6] = {send[0], send[1], send[2], send[3], take[1], take[0]};
        begin(request, all, 6, &request->ended);
    }
}

// Packs whatever its size: the core refuses what is too large, as an outcome.
static grpc_byte_buffer *pack(const ProtobufCMessage *message) {
    size_t n = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(n);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return bytes;
}

struct td_rpc_request *td_rpc_request(struct td_rpc_channel *channel,
                                      const struct td_rpc_request_opts *opts) {
    td_loop_assert(channel->rpc->loop);
    td_assert(!channel->freed);
    struct td_rpc_request *request = td_alloc(sizeof *request);
    *request = (struct td_rpc_request){.channel = channel,
                                       .rpc = channel->rpc,
                                       .next = channel->requests,
                                       .at = &channel->requests,
                                       .opts = *opts,
                                       .refs = 1,
                                       .text = grpc_empty_slice(),
                                       .request = pack(opts->request),
                                       .sent = {.fn = on_sent, .owner = request},
                                       .received = {.fn = on_received, .owner = request},
                                       .ended = {.fn = on_ended, .owner = request}};
    grpc_metadata_array_init(&request->initial);
    grpc_metadata_array_init(&request->trailing);
    if (request->next) {
        request->next->at = &request->next;
    }
    channel->requests = request;
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (opts->deadline_ms >= 0) {
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis(opts->deadline_ms, GPR_TIMESPAN));
    }
    grpc_slice path = grpc_slice_from_copied_string(opts->path);
    request->core = grpc_channel_create_call(channel->core, NULL, GRPC_PROPAGATE_DEFAULTS,
                                             channel->rpc->queue, path, NULL, deadline, NULL);
    grpc_slice_unref(path);
    start(request);
    return request;
}

void td_rpc_cancel(struct td_rpc_request *request) {
    td_loop_assert(request->rpc->loop);
    td_assert(request->channel);
    request->cancelled = true;
    grpc_call_cancel(request->core, NULL);
}

// ---- channels ----

static grpc_arg int_arg(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static grpc_channel *new_core(const char *address, grpc_channel_credentials *credentials,
                              const char *server_name) {
    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, TD_RPC_MESSAGE_MAX),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, TD_RPC_MESSAGE_MAX),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, TD_RPC_METADATA_MAX),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, TD_RPC_KEEPALIVE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, TD_RPC_KEEPALIVE_TIMEOUT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0), // no limit
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000), // really: the time to connect within
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), // a connection of its own
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0),            // who asks decides
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        {.type = GRPC_ARG_STRING,
         .key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
         .value.string = (char *)server_name},
    };
    grpc_channel_args all = {sizeof args / sizeof *args - (server_name ? 0 : 1), args};
    return grpc_channel_create(address, credentials, &all);
}

enum td_rc td_rpc_channel_new(struct td_rpc *rpc, const char *address, const struct td_rpc_tls *tls,
                              struct td_rpc_channel **out, struct td_err *err) {
    td_loop_assert(rpc->loop);
    grpc_channel_credentials *credentials = NULL;
    enum td_rc rc = td_rpc_channel_credentials(tls, &credentials, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_rpc_channel *channel = td_alloc(sizeof *channel);
    channel->rpc = rpc;
    channel->tls = tls != NULL;
    channel->cert = tls && tls->cert_file;
    channel->core = new_core(address, credentials, tls ? tls->server_name : NULL);
    grpc_channel_credentials_release(credentials);
    rpc->channels++;
    *out = channel;
    return TD_OK;
}

void td_rpc_channel_free(struct td_rpc_channel *channel) {
    if (!channel) {
        return;
    }
    td_loop_assert(channel->rpc->loop);
    td_assert(!channel->freed);
    channel->freed = true;
    while (channel->requests) {
        grpc_call_cancel(channel->requests->core, NULL);
        end_cancelled(channel->requests);
    }
    grpc_channel_destroy(channel->core);
    channel->rpc->channels--;
    td_free(channel);
}
