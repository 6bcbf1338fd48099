// See rpc_world.h.
#include "tests/unit/io/rpc_world.h"

#include <grpc/grpc.h>

#include "proto/descriptors.h"

static void reply_job(struct td_rpc_call *call, uint64_t id, const char *cause) {
    Tandem__V1__Job job = TANDEM__V1__JOB__INIT;
    job.id = id;
    job.cause = (char *)cause;
    td_rpc_reply(call, &job.base);
}

static void reply_big(struct world *world, struct td_rpc_call *call) {
    char *text = td_alloc(world->big_bytes + 1);
    memset(text, 'x', world->big_bytes);
    reply_job(call, JOB_BIG, text);
    td_free(text);
}

static void fail_job(struct world *world, struct td_rpc_call *call) {
    if (world->text_bytes == 0) {
        td_rpc_fail(call, TD_RPC_FAILED_PRECONDITION, "not now: 100 % é\nline 2");
        return;
    }
    char *text = td_alloc(world->text_bytes + 2);
    for (size_t i = 0; i < world->text_bytes; i += 2) {
        memcpy(text + i, "é", 2);
    }
    td_rpc_fail(call, TD_RPC_FAILED_PRECONDITION, text);
    td_free(text);
}

static void on_get(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct world *world = user;
    uint64_t id = ((const Tandem__V1__GetJobRequest *)message)->id;
    world->calls++;
    snprintf(world->peer, sizeof world->peer, "%s", td_rpc_call_peer(call));
    snprintf(world->subject, sizeof world->subject, "%s", td_rpc_call_subject(call));
    switch (id) {
    case JOB_LATER:
        td_rpc_call_set(call, world);
        world->held = call;
        break;
    case JOB_FAIL:
        fail_job(world, call);
        break;
    case JOB_BIG:
        reply_big(world, call);
        break;
    case JOB_FREE:
        world->held = call;
        td_rpc_server_free(world->server);
        world->server = NULL;
        break;
    default:
        reply_job(call, id, "");
    }
}

void answer_later(struct world *world) {
    assert_non_null(world->held);
    assert_ptr_equal(td_rpc_call_get(world->held), world);
    reply_job(world->held, JOB_LATER, "");
    world->held = NULL;
}

enum td_rc send_event(struct world *world, struct td_rpc_call *call, struct td_err *err) {
    char *text = td_alloc(world->big_bytes + 1);
    memset(text, 'x', world->big_bytes);
    Tandem__V1__Job job = TANDEM__V1__JOB__INIT;
    job.cause = text;
    Tandem__V1__JobEvent event = TANDEM__V1__JOB_EVENT__INIT;
    event.seq = (uint64_t)world->sent + 1;
    event.job = &job;
    enum td_rc rc = td_rpc_send(call, &event.base, err);
    world->sent += rc == TD_OK;
    td_free(text);
    return rc;
}

static void on_watch(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct world *world = user;
    uint64_t id = ((const Tandem__V1__WatchJobRequest *)message)->id;
    world->calls++;
    struct td_err err;
    if (id == JOB_STREAM) {
        for (int i = 0; i < 3; i++) {
            assert_int_equal(send_event(world, call, &err), TD_OK);
        }
        td_rpc_finish(call);
    } else if (id == JOB_FLOOD) {
        while (send_event(world, call, &err) == TD_OK) {
        }
        assert_int_equal(err.code, TD_ELIMIT);
        td_rpc_fail(call, TD_RPC_RESOURCE_EXHAUSTED, err.msg);
    } else {
        world->held = call;
    }
}

static void on_gone(void *user, struct td_rpc_call *call) {
    struct world *world = user;
    assert_ptr_equal(world->held, call);
    world->held = NULL;
    world->gone++;
}

static void on_submit(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    ((struct world *)user)->calls++;
    reply_job(call, strlen(((const Tandem__V1__SubmitJobRequest *)message)->job_file), "");
}

void world_connect(struct world *world, const struct td_rpc_tls *tls) {
    struct td_err err = {0};
    if (td_rpc_channel_new(world->rpc, world->address, tls, &world->channel, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

struct td_rpc_server *new_server(struct world *world, const struct td_rpc_tls *tls) {
    const struct td_rpc_method methods[] = {
        {.path = GET_PATH,
         .in = &tandem__v1__get_job_request__descriptor,
         .out = &tandem__v1__job__descriptor,
         .call = on_get,
         .gone = on_gone},
        {.path = WATCH_PATH,
         .in = &tandem__v1__watch_job_request__descriptor,
         .out = &tandem__v1__job_event__descriptor,
         .streams = true,
         .call = on_watch,
         .gone = on_gone},
        {.path = SUBMIT_PATH,
         .in = &tandem__v1__submit_job_request__descriptor,
         .out = &tandem__v1__job__descriptor,
         .call = on_submit},
    };
    struct td_rpc_server_opts opts = {.rpc = world->rpc,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof *methods,
                                      .tls = tls,
                                      .user = world};
    opts.descriptors = td_proto_descriptors(&opts.descriptors_bytes);
    struct td_rpc_server *server = NULL;
    struct td_err err = {0};
    if (td_rpc_server_new(&opts, &server, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return server;
}

void world_begin(struct world *world, const struct td_rpc_tls *tls) {
    *world = (struct world){.loop = new_loop()};
    struct td_err err = {0};
    assert_int_equal(td_rpc_new(world->loop, &world->rpc, &err), TD_OK);
    world->server = new_server(world, tls);
    int port = 0;
    if (td_rpc_server_listen(world->server, "127.0.0.1:0", &port, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    assert_true(port > 0);
    td_rpc_server_start(world->server);
    snprintf(world->address, sizeof world->address, "127.0.0.1:%d", port);
    if (!tls) {
        world_connect(world, NULL);
    }
}

void world_end(struct world *world) {
    td_rpc_channel_free(world->channel);
    td_rpc_server_free(world->server);
    td_rpc_free(world->rpc);
    // No thread of the core goes on and keeps memory while the process exits.
    assert_int_equal(grpc_is_initialized(), world->others);
    td_loop_free(world->loop);
}

void on_result(void *user, const struct td_rpc_outcome *outcome) {
    struct result *result = user;
    result->done++;
    result->status = outcome->status;
    snprintf(result->text, sizeof result->text, "%s", outcome->text);
    if (outcome->status != TD_RPC_OK) {
        assert_null(outcome->message);
    } else if (outcome->message) {
        const Tandem__V1__Job *job = (const Tandem__V1__Job *)outcome->message;
        result->id = job->id;
        result->bytes = strlen(job->cause);
    }
}

struct td_rpc_request *get_job(struct world *world, uint64_t id, int64_t deadline_ms,
                               struct result *result) {
    Tandem__V1__GetJobRequest request = TANDEM__V1__GET_JOB_REQUEST__INIT;
    request.id = id;
    *result = (struct result){0};
    return td_rpc_request(world->channel,
                          &(struct td_rpc_request_opts){.path = GET_PATH,
                                                        .request = &request.base,
                                                        .out = &tandem__v1__job__descriptor,
                                                        .deadline_ms = deadline_ms,
                                                        .done = on_result,
                                                        .user = result});
}

static void on_event(void *user, const ProtobufCMessage *message) {
    struct result *result = user;
    const Tandem__V1__JobEvent *event = (const Tandem__V1__JobEvent *)message;
    result->messages++;
    assert_int_equal(event->seq, result->messages);
}

void ask_job(struct world *world, uint64_t id, int64_t deadline_ms, struct result *result) {
    get_job(world, id, deadline_ms, result);
    wait_for(world, result);
}

struct td_rpc_request *hold_job(struct world *world, struct result *result) {
    struct td_rpc_request *request = get_job(world, JOB_LATER, -1, result);
    wait_until(world->loop, &world->calls, 1);
    return request;
}

struct td_rpc_request *watch_job(struct world *world, uint64_t id, int64_t deadline_ms,
                                 struct result *result) {
    Tandem__V1__WatchJobRequest request = TANDEM__V1__WATCH_JOB_REQUEST__INIT;
    request.id = id;
    *result = (struct result){0};
    return td_rpc_request(world->channel,
                          &(struct td_rpc_request_opts){.path = WATCH_PATH,
                                                        .request = &request.base,
                                                        .out = &tandem__v1__job_event__descriptor,
                                                        .deadline_ms = deadline_ms,
                                                        .message = on_event,
                                                        .done = on_result,
                                                        .user = result});
}

struct td_rpc_request *submit_job(struct world *world, const Tandem__V1__SubmitJobRequest *job,
                                  struct result *result) {
    *result = (struct result){0};
    return td_rpc_request(world->channel,
                          &(struct td_rpc_request_opts){.path = SUBMIT_PATH,
                                                        .request = &job->base,
                                                        .out = &tandem__v1__job__descriptor,
                                                        .deadline_ms = -1,
                                                        .done = on_result,
                                                        .user = result});
}

void wait_for(struct world *world, struct result *result) {
    wait_until(world->loop, &result->done, 1);
}

void on_stopped(void *user) {
    ((struct world *)user)->stopped++;
}
