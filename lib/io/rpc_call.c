// Calls at the server: see rpc.h. A call is armed (waits in the core for a client), then held by
// its handler until it was answered or is gone, then ends when the core gave every tag back: refs
// counts the tags in the core, and the handler.
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/rpc_int.h"

struct outgoing {
    struct outgoing *next;
    grpc_byte_buffer *bytes;
};

struct td_rpc_call {
    struct td_rpc_entry *entry;
    struct td_rpc_call *next, **at; // of the server's held calls
    grpc_call *core;
    int refs;
    void *data; // the handler's
    char *peer, *subject;
    struct td_rpc_tag arrived, received, sent, closed;
    grpc_metadata_array metadata;
    grpc_call_details details; // of a method that is not known
    gpr_timespec deadline;
    grpc_byte_buffer *request, *sending;
    struct outgoing *head, **tail;
    size_t queued;
    grpc_status_code status;
    grpc_slice text;
    int cancelled; // written by the core
    bool held, told, announced, finishing, finished, is_closed;
};

// ---- life ----

static void drop_queue(struct td_rpc_call *call) {
    while (call->head) {
        struct outgoing *next = call->head->next;
        grpc_byte_buffer_destroy(call->head->bytes);
        td_free(call->head);
        call->head = next;
    }
    call->tail = &call->head;
    call->queued = 0;
}

static void unref(struct td_rpc_call *call) {
    if (--call->refs > 0) {
        return;
    }
    drop_queue(call);
    grpc_byte_buffer_destroy(call->request);
    grpc_byte_buffer_destroy(call->sending);
    grpc_slice_unref(call->text);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    if (call->core) {
        grpc_call_unref(call->core);
    }
    td_free(call->peer);
    td_free(call->subject);
    struct td_rpc_server *server = call->entry->server;
    td_free(call);
    td_rpc_server_call_ended(server);
}

static void hold(struct td_rpc_call *call) {
    struct td_rpc_server *server = call->entry->server;
    call->refs++;
    call->held = true;
    call->next = server->held;
    call->at = &server->held;
    if (call->next) {
        call->next->at = &call->next;
    }
    server->held = call;
    server->held_count++;
}

static void release(struct td_rpc_call *call) {
    *call->at = call->next;
    if (call->next) {
        call->next->at = call->at;
    }
    call->entry->server->held_count--;
    call->held = false;
    unref(call);
}

static void begin(struct td_rpc_call *call, const grpc_op *ops, size_t n, struct td_rpc_tag *tag) {
    call->refs++;
    td_rpc_tag_begin(call->entry->server->rpc, tag);
    grpc_call_error rc = grpc_call_start_batch(call->core, ops, n, tag, NULL);
    td_assert_op(rc, ==, GRPC_CALL_OK);
}

// ---- sending ----

// One batch of sends at a time: the next message, and the status behind the last one.
static void flush(struct td_rpc_call *call) {
    bool last = call->finishing && (!call->head || !call->head->next);
    if (call->sending || call->finished || call->is_closed || (!call->head && !last)) {
        return;
    }
    grpc_op ops[3] = {0};
    size_t n = 0;
    if (!call->announced) {
        call->announced = true;
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    }
    struct outgoing *first = call->head;
    if (first) {
        call->sending = first->bytes;
        call->head = first->next;
        call->tail = call->head ? call->tail : &call->head;
        call->queued--;
        td_free(first);
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = call->sending;
    }
    if (last) {
        call->finished = true;
        ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status = call->status;
        ops[n++].data.send_status_from_server.status_details = &call->text;
    }
    begin(call, ops, n, &call->sent);
}

static void on_sent(struct td_rpc_tag *tag, bool ok) {
    struct td_rpc_call *call = tag->owner;
    grpc_byte_buffer_destroy(call->sending);
    call->sending = NULL;
    if (!ok) {
        drop_queue(call); // the caller is gone
    }
    flush(call);
    unref(call);
}

// How much of text to send: TD_RPC_TEXT_MAX bytes as sent, where a byte that is not printable ASCII
// takes three, and whole characters.
static size_t text_length(const char *text) {
    size_t n = 0;
    for (size_t sent = 0; text[n] != '\0'; n++) {
        sent += text[n] >= ' ' && text[n] <= '~' && text[n] != '%' ? 1 : 3;
        if (sent > TD_RPC_TEXT_MAX) {
            while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) {
                n--;
            }
            break;
        }
    }
    return n;
}

static void finish(struct td_rpc_call *call, enum td_rpc_status status, const char *text) {
    td_loop_assert(call->entry->server->rpc->loop);
    td_assert(call->held && !call->finishing);
    call->finishing = true;
    call->status = (grpc_status_code)status;
    call->text = grpc_slice_from_copied_buffer(text, text_length(text));
    flush(call);
    release(call);
}

static void enqueue(struct td_rpc_call *call, grpc_byte_buffer *bytes) {
    struct outgoing *o = td_alloc(sizeof *o);
    o->bytes = bytes;
    *call->tail = o;
    call->tail = &o->next;
    call->queued++;
}

void td_rpc_fail(struct td_rpc_call *call, enum td_rpc_status status, const char *text) {
    td_assert(status != TD_RPC_OK);
    finish(call, status, text);
}

void td_rpc_finish(struct td_rpc_call *call) {
    td_assert(call->entry->method.streams);
    finish(call, TD_RPC_OK, "");
}

void td_rpc_reply(struct td_rpc_call *call, const ProtobufCMessage *message) {
    td_assert(!call->entry->method.streams);
    td_assert(message->descriptor == call->entry->method.out);
    grpc_byte_buffer *bytes = td_rpc_pack(message);
    if (!bytes) {
        finish(call, TD_RPC_RESOURCE_EXHAUSTED, "the answer is larger than a message may be");
        return;
    }
    enqueue(call, bytes);
    finish(call, TD_RPC_OK, "");
}

enum td_rc td_rpc_send(struct td_rpc_call *call, const ProtobufCMessage *message,
                       struct td_err *err) {
    td_loop_assert(call->entry->server->rpc->loop);
    td_assert(call->entry->method.streams && call->held && !call->finishing);
    td_assert(message->descriptor == call->entry->method.out);
    if (call->queued == TD_RPC_STREAM_QUEUE_MAX) {
        return td_fail(err, TD_ELIMIT, "the reader is slow: %d messages wait for it already",
                       TD_RPC_STREAM_QUEUE_MAX);
    }
    grpc_byte_buffer *bytes = td_rpc_pack(message);
    if (!bytes) {
        return td_fail(err, TD_ELIMIT, "the message has more than %d bytes", TD_RPC_MESSAGE_MAX);
    }
    enqueue(call, bytes);
    flush(call);
    return TD_OK;
}

// ---- arriving ----

static void drop(struct td_rpc_call *call) {
    td_assert(!call->finishing);
    call->finishing = true;
    drop_queue(call);
    const struct td_rpc_entry *entry = call->entry;
    if (call->told && entry->method.gone) {
        entry->method.gone(entry->user, call);
    }
    release(call);
}

void td_rpc_calls_stop(struct td_rpc_server *server) {
    for (struct td_rpc_call *call = server->held, *next; call; call = next) {
        next = call->next;
        if (call->entry->reads) {
            td_rpc_fail(call, TD_RPC_UNAVAILABLE, "the server stops");
        }
    }
}

void td_rpc_calls_drop(struct td_rpc_server *server) {
    while (server->held) {
        server->held->is_closed = true; // nothing is sent, cancelling tells the caller
        drop(server->held);
    }
}

static void receive(struct td_rpc_call *call) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->request;
    begin(call, &op, 1, &call->received);
}

// Hands the request to the handler.
static void deliver(struct td_rpc_call *call) {
    const struct td_rpc_entry *entry = call->entry;
    ProtobufCMessage *request = td_rpc_unpack(call->request, entry->method.in);
    grpc_byte_buffer_destroy(call->request);
    call->request = NULL;
    if (!request) {
        td_rpc_fail(call, TD_RPC_INVALID_ARGUMENT, "the request is not the message it should be");
        return;
    }
    call->told = true;
    entry->method.call(entry->user, call, request);
    td_rpc_message_free(request);
    td_assert(!call->held || entry->method.gone || entry->reads);
}

static void on_received(struct td_rpc_tag *tag, bool ok) {
    (void)ok; // without a message either way when the caller is gone
    struct td_rpc_call *call = tag->owner;
    if (call->request && call->held) {
        deliver(call);
        if (call->held) {
            receive(call);
        }
    } else if (call->held && !call->is_closed) {
        td_rpc_finish(call); // the caller has sent all
    }
    unref(call);
}

static void on_closed(struct td_rpc_tag *tag, bool ok) {
    (void)ok;
    struct td_rpc_call *call = tag->owner;
    call->is_closed = true;
    if (call->held) {
        drop(call);
    }
    unref(call);
}

static void fail_unknown(struct td_rpc_call *call) {
    char *path = grpc_slice_to_c_string(call->details.method);
    char *text = td_asprintf("there is no method %.200s", path);
    td_rpc_fail(call, TD_RPC_UNIMPLEMENTED, text);
    td_free(text);
    gpr_free(path);
}

static void on_arrived(struct td_rpc_tag *tag, bool ok) {
    struct td_rpc_call *call = tag->owner;
    struct td_rpc_entry *entry = call->entry;
    struct td_rpc_server *server = entry->server;
    if (!ok) { // the server stops
        unref(call);
        return;
    }
    if (!server->stopping) {
        td_rpc_call_arm(entry);
    }
    // Its completion is the only sign that the caller cancelled, died or ran out of time.
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    begin(call, &op, 1, &call->closed);
    if (server->freed) {
        unref(call);
        return;
    }
    hold(call);
    if (!entry->registered) {
        fail_unknown(call);
    } else if (server->held_count > TD_RPC_CALLS_MAX) {
        td_rpc_fail(call, TD_RPC_RESOURCE_EXHAUSTED, "the server has too many calls under way");
    } else if (entry->reads) {
        receive(call);
    } else if (call->request) {
        deliver(call);
    } else {
        td_rpc_fail(call, TD_RPC_INVALID_ARGUMENT, "the call carries no request");
    }
    unref(call);
}

void td_rpc_call_arm(struct td_rpc_entry *entry) {
    struct td_rpc_server *server = entry->server;
    struct td_rpc_call *call = td_alloc(sizeof *call);
    *call = (struct td_rpc_call){.entry = entry,
                                 .refs = 1,
                                 .tail = &call->head,
                                 .text = grpc_empty_slice(),
                                 .arrived = {.fn = on_arrived, .owner = call},
                                 .received = {.fn = on_received, .owner = call},
                                 .sent = {.fn = on_sent, .owner = call},
                                 .closed = {.fn = on_closed, .owner = call}};
    grpc_metadata_array_init(&call->metadata);
    grpc_call_details_init(&call->details);
    server->calls++;
    td_rpc_tag_begin(server->rpc, &call->arrived);
    grpc_completion_queue *queue = server->rpc->queue;
    grpc_call_error rc;
    if (entry->registered) {
        rc = grpc_server_request_registered_call(
            server->core, entry->registered, &call->core, &call->deadline, &call->metadata,
            entry->reads ? NULL : &call->request, queue, queue, &call->arrived);
    } else {
        rc = grpc_server_request_call(server->core, &call->core, &call->details, &call->metadata,
                                      queue, queue, &call->arrived);
    }
    td_assert_op(rc, ==, GRPC_CALL_OK);
}

// ---- about a call ----

void td_rpc_call_set(struct td_rpc_call *call, void *data) {
    call->data = data;
}

void *td_rpc_call_get(const struct td_rpc_call *call) {
    return call->data;
}

const char *td_rpc_call_peer(struct td_rpc_call *call) {
    if (!call->peer) {
        char *peer = grpc_call_get_peer(call->core);
        call->peer = td_strdup(peer ? peer : "");
        gpr_free(peer);
    }
    return call->peer;
}

const char *td_rpc_call_subject(struct td_rpc_call *call) {
    if (!call->subject) {
        grpc_auth_context *auth = grpc_call_auth_context(call->core);
        grpc_auth_property_iterator it =
            grpc_auth_context_find_properties_by_name(auth, GRPC_X509_CN_PROPERTY_NAME);
        const grpc_auth_property *name = grpc_auth_property_iterator_next(&it);
        call->subject = name ? td_strndup(name->value, name->value_length) : td_strdup("");
        grpc_auth_context_release(auth);
    }
    return call->subject;
}
