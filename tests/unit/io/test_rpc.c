// Calls from a client to a server of one process: answers, errors, deadlines, cancelling, streams,
// limits, and ends of every side.
#include <errno.h>
#include <pthread.h>

#include "tests/unit/io/rpc_world.h"

static void test_rpc_unary(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result results[50];
    for (uint64_t i = 0; i < 50; i++) {
        get_job(&world, 1000 + i, 30000, &results[i]);
    }
    for (uint64_t i = 0; i < 50; i++) {
        wait_for(&world, &results[i]);
        assert_int_equal(results[i].status, TD_RPC_OK);
        assert_int_equal(results[i].id, 1000 + i);
        assert_string_equal(results[i].text, "");
    }
    assert_int_equal(world.calls, 50);
    assert_int_equal(strncmp(world.peer, "ipv4:127.0.0.1:", 15), 0);
    assert_string_equal(world.subject, "");
    world_end(&world);
}

static void test_rpc_answer_later(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result later, echo;
    hold_job(&world, &later);
    ask_job(&world, JOB_ECHO, -1, &echo);
    assert_int_equal(later.done, 0);
    answer_later(&world);
    wait_for(&world, &later);
    assert_int_equal(later.status, TD_RPC_OK);
    assert_int_equal(later.id, JOB_LATER);
    assert_int_equal(world.gone, 0);
    world_end(&world);
}

static void test_rpc_errors_have_status_and_text(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    ask_job(&world, JOB_FAIL, 30000, &result);
    assert_int_equal(result.status, TD_RPC_FAILED_PRECONDITION);
    assert_string_equal(result.text, "not now: 100 % é\nline 2");
    assert_string_equal(td_rpc_status_name(result.status), "FAILED_PRECONDITION");
    assert_string_equal(td_rpc_status_name(TD_RPC_OK), "OK");
    assert_string_equal(td_rpc_status_name(TD_RPC_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_string_equal(td_rpc_status_name((enum td_rpc_status)99), "UNKNOWN");
    world_end(&world);
}

static void test_rpc_stream(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    watch_job(&world, JOB_STREAM, -1, &result);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_OK);
    assert_int_equal(result.messages, 3);
    world_end(&world);
}

static void test_rpc_deadline_passes_on_both_sides(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    ask_job(&world, JOB_LATER, 50, &result);
    assert_int_equal(result.status, TD_RPC_DEADLINE_EXCEEDED);
    wait_until(world.loop, &world.gone, 1);
    assert_null(world.held);
    watch_job(&world, 99, 50, &result);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_DEADLINE_EXCEEDED);
    wait_until(world.loop, &world.gone, 2);
    world_end(&world);
}

static void test_rpc_cancel_reaches_the_server(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    struct td_rpc_request *request = hold_job(&world, &result);
    td_rpc_cancel(request);
    assert_int_equal(result.done, 0); // in a later turn
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_CANCELLED);
    wait_until(world.loop, &world.gone, 1);
    request = watch_job(&world, 99, -1, &result);
    wait_until(world.loop, &world.calls, 2);
    td_rpc_cancel(request);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_CANCELLED);
    wait_until(world.loop, &world.gone, 2);
    request = get_job(&world, JOB_ECHO, -1, &result); // before it has left
    td_rpc_cancel(request);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_CANCELLED);
    world_end(&world);
}

static void test_rpc_channel_free_ends_its_requests(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result unary, stream;
    hold_job(&world, &unary);
    td_rpc_channel_free(world.channel);
    assert_int_equal(unary.done, 1);
    assert_int_equal(unary.status, TD_RPC_CANCELLED);
    wait_until(world.loop, &world.gone, 1);
    world_connect(&world, NULL);
    watch_job(&world, JOB_STREAM, -1, &stream);
    td_rpc_channel_free(world.channel);
    world.channel = NULL;
    assert_int_equal(stream.done, 1);
    assert_int_equal(stream.status, TD_RPC_CANCELLED);
    td_rpc_channel_free(NULL);
    world_end(&world);
}

static void test_rpc_unknown_method(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    Tandem__V1__GetJobRequest request = TANDEM__V1__GET_JOB_REQUEST__INIT;
    struct result result;
    for (int i = 0; i < 20; i++) {
        result = (struct result){0};
        td_rpc_request(world.channel,
                       &(struct td_rpc_request_opts){.path = "/tandem.v1.Jobs/Nope",
                                                     .request = &request.base,
                                                     .out = &tandem__v1__job__descriptor,
                                                     .deadline_ms = -1,
                                                     .done = on_result,
                                                     .user = &result});
        wait_for(&world, &result);
        assert_int_equal(result.status, TD_RPC_UNIMPLEMENTED);
        assert_non_null(strstr(result.text, "/tandem.v1.Jobs/Nope"));
    }
    world_end(&world);
}

// Field 1 is a number in one of the messages and text in the other.
static void test_rpc_bytes_of_another_message(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    Tandem__V1__SubmitJobRequest text = TANDEM__V1__SUBMIT_JOB_REQUEST__INIT;
    text.request_id = "abc";
    struct result result = {0};
    struct td_rpc_request_opts opts = {.path = GET_PATH,
                                       .request = &text.base,
                                       .out = &tandem__v1__job__descriptor,
                                       .deadline_ms = -1,
                                       .done = on_result,
                                       .user = &result};
    td_rpc_request(world.channel, &opts);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_INVALID_ARGUMENT);
    assert_int_equal(world.calls, 0);
    Tandem__V1__GetJobRequest number = TANDEM__V1__GET_JOB_REQUEST__INIT;
    number.id = 1000;
    opts.request = &number.base;
    opts.out = &tandem__v1__submit_job_request__descriptor;
    result = (struct result){0};
    td_rpc_request(world.channel, &opts);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_INTERNAL);
    world_end(&world);
}

static void test_rpc_big_messages(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    world.big_bytes = 20 << 20;
    ask_job(&world, JOB_BIG, -1, &result);
    assert_int_equal(result.status, TD_RPC_OK);
    assert_int_equal(result.bytes, world.big_bytes);
    world.big_bytes = TD_RPC_MESSAGE_MAX;
    ask_job(&world, JOB_BIG, -1, &result);
    assert_int_equal(result.status, TD_RPC_RESOURCE_EXHAUSTED);
    Tandem__V1__SubmitJobRequest job = TANDEM__V1__SUBMIT_JOB_REQUEST__INIT;
    job.job_file = td_alloc(TD_RPC_MESSAGE_MAX + 1);
    memset(job.job_file, 'x', TD_RPC_MESSAGE_MAX);
    int calls = world.calls;
    submit_job(&world, &job, &result);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(world.calls, calls);
    job.job_file[TD_RPC_MESSAGE_MAX / 2] = '\0';
    submit_job(&world, &job, &result);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_OK);
    assert_int_equal(result.id, TD_RPC_MESSAGE_MAX / 2);
    td_free(job.job_file);
    world_end(&world);
}

// Few bytes that would take much memory are refused.
static void test_rpc_message_that_grows(void **state) {
    (void)state;
    enum { COUNT = 8 << 20 };
    struct world world;
    world_begin(&world, NULL);
    Tandem__V1__SubmitJobRequest job = TANDEM__V1__SUBMIT_JOB_REQUEST__INIT;
    job.n_overrides = COUNT;
    job.overrides = td_alloc_array(COUNT, sizeof *job.overrides);
    for (size_t i = 0; i < COUNT; i++) {
        job.overrides[i] = "";
    }
    struct result result;
    submit_job(&world, &job, &result);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_INVALID_ARGUMENT);
    assert_int_equal(world.calls, 0);
    td_free(job.overrides);
    world_end(&world);
}

static void test_rpc_no_memory_for_a_request(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    char *overrides[] = {"a=1", "b=2", "c=3"};
    Tandem__V1__SubmitJobRequest job = TANDEM__V1__SUBMIT_JOB_REQUEST__INIT;
    job.request_id = "abc";
    job.job_file = "four";
    job.n_overrides = 3;
    job.overrides = overrides;
    struct result result = {.status = TD_RPC_UNKNOWN};
    int failures = 0;
    for (long n = 0; result.status != TD_RPC_OK; n++) {
        submit_job(&world, &job, &result);
        td_mem_fail_at(n);
        wait_for(&world, &result);
        td_mem_fail_at(-1);
        failures += result.status != TD_RPC_OK;
    }
    assert_true(failures > 5); // the last ones are those of the reply at the client
    assert_int_equal(result.id, 4);
    world_end(&world);
}

static void test_rpc_long_texts_are_cut(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    world.text_bytes = 100000;
    struct result result;
    ask_job(&world, JOB_FAIL, -1, &result);
    assert_int_equal(result.status, TD_RPC_FAILED_PRECONDITION);
    assert_int_equal(strncmp(result.text, "éééé", 8), 0);
    world_end(&world);
}

static void test_rpc_stream_queue_has_a_limit(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    world.big_bytes = 10;
    struct result result;
    watch_job(&world, JOB_FLOOD, -1, &result);
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(result.text, "slow"));
    assert_int_equal(world.sent, TD_RPC_STREAM_QUEUE_MAX + 1); // one was on its way
    assert_int_equal(result.messages, world.sent);
    world_end(&world);
}

// ---- a reader in another thread that does not read ----

struct reader {
    struct world world; // its channel and loop
    pthread_t thread;
    pthread_barrier_t stuck, go_on;
    struct result result;
};

static void on_slow_event(void *user, const ProtobufCMessage *message) {
    (void)message;
    struct reader *reader = user;
    if (reader->result.messages++ == 0) {
        pthread_barrier_wait(&reader->stuck);
        pthread_barrier_wait(&reader->go_on);
    }
}

static void on_slow_done(void *user, const struct td_rpc_outcome *outcome) {
    on_result(&((struct reader *)user)->result, outcome);
}

static void *read_slowly(void *user) {
    struct reader *reader = user;
    struct world *world = &reader->world;
    world->loop = new_loop();
    assert_int_equal(td_rpc_new(world->loop, &world->rpc, NULL), TD_OK);
    world_connect(world, NULL);
    Tandem__V1__WatchJobRequest request = TANDEM__V1__WATCH_JOB_REQUEST__INIT;
    request.id = 99;
    td_rpc_request(world->channel,
                   &(struct td_rpc_request_opts){.path = WATCH_PATH,
                                                 .request = &request.base,
                                                 .out = &tandem__v1__job_event__descriptor,
                                                 .deadline_ms = -1,
                                                 .message = on_slow_event,
                                                 .done = on_slow_done,
                                                 .user = reader});
    wait_for(world, &reader->result);
    world->others = true;
    world_end(world);
    return NULL;
}

struct sender {
    struct world *world;
    struct td_timer *timer;
    int refused;
    struct td_err err;
};

static void send_more(void *user) {
    struct sender *sender = user;
    if (send_event(sender->world, sender->world->held, &sender->err) == TD_OK) {
        td_timer_start(sender->timer, 0);
    } else {
        sender->refused++;
    }
}

static void test_rpc_slow_reader_is_told_to_the_sender(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    world.big_bytes = 64 << 10;
    struct reader reader = {0};
    memcpy(reader.world.address, world.address, sizeof world.address);
    pthread_barrier_init(&reader.stuck, NULL, 2);
    pthread_barrier_init(&reader.go_on, NULL, 2);
    assert_int_equal(pthread_create(&reader.thread, NULL, read_slowly, &reader), 0);
    wait_until(world.loop, &world.calls, 1);
    struct sender sender = {.world = &world};
    sender.timer = td_timer_new(world.loop, send_more, &sender);
    send_more(&sender);
    wait_until(world.loop, &world.sent, 1);
    pthread_barrier_wait(&reader.stuck);
    wait_until(world.loop, &sender.refused, 1); // turns went by: what could leave has left
    assert_int_equal(sender.err.code, TD_ELIMIT);
    assert_true(world.sent > TD_RPC_STREAM_QUEUE_MAX);
    td_rpc_fail(world.held, TD_RPC_RESOURCE_EXHAUSTED, sender.err.msg);
    world.held = NULL;
    pthread_barrier_wait(&reader.go_on);
    struct result echo;
    ask_job(&world, JOB_ECHO, -1, &echo);
    td_timer_close(sender.timer);
    while (pthread_tryjoin_np(reader.thread, NULL) == EBUSY) { // the loop sends what waits
        ask_job(&world, JOB_ECHO, -1, &echo);
    }
    assert_int_equal(reader.result.status, TD_RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(reader.result.messages, world.sent);
    pthread_barrier_destroy(&reader.stuck);
    pthread_barrier_destroy(&reader.go_on);
    world_end(&world);
}

// ---- too many calls ----

struct holder {
    int held, gone, refused, answered;
};

static void hold_call(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    (void)call, (void)message;
    ((struct holder *)user)->held++;
}

static void count_gone(void *user, struct td_rpc_call *call) {
    (void)call;
    ((struct holder *)user)->gone++;
}

static void count_refused(void *user, const struct td_rpc_outcome *outcome) {
    struct holder *holder = user;
    holder->answered++;
    holder->refused += outcome->status == TD_RPC_RESOURCE_EXHAUSTED;
}

static void test_rpc_too_many_calls(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct holder holder = {0};
    struct td_rpc_method method = {.path = GET_PATH,
                                   .in = &tandem__v1__get_job_request__descriptor,
                                   .out = &tandem__v1__job__descriptor,
                                   .call = hold_call,
                                   .gone = count_gone};
    struct td_rpc_server_opts opts = {
        .rpc = world.rpc, .methods = &method, .method_count = 1, .user = &holder};
    struct td_rpc_server *server = NULL;
    int port = 0;
    assert_int_equal(td_rpc_server_new(&opts, &server, NULL), TD_OK);
    assert_int_equal(td_rpc_server_listen(server, "127.0.0.1:0", &port, NULL), TD_OK);
    td_rpc_server_start(server);
    snprintf(world.address, sizeof world.address, "127.0.0.1:%d", port);
    Tandem__V1__GetJobRequest request = TANDEM__V1__GET_JOB_REQUEST__INIT;
    struct td_rpc_channel *channels[2] = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(td_rpc_channel_new(world.rpc, world.address, NULL, &channels[i], NULL),
                         TD_OK);
        for (int k = 0; k < (i == 0 ? 3000 : TD_RPC_CALLS_MAX - 3000 + 1); k++) {
            td_rpc_request(channels[i],
                           &(struct td_rpc_request_opts){.path = GET_PATH,
                                                         .request = &request.base,
                                                         .out = &tandem__v1__job__descriptor,
                                                         .deadline_ms = -1,
                                                         .done = count_refused,
                                                         .user = &holder});
        }
    }
    wait_until(world.loop, &holder.refused, 1);
    wait_until(world.loop, &holder.held, TD_RPC_CALLS_MAX);
    assert_int_equal(holder.answered, 1);
    td_rpc_server_free(server);
    assert_int_equal(holder.gone, TD_RPC_CALLS_MAX);
    wait_until(world.loop, &holder.answered, TD_RPC_CALLS_MAX + 1);
    td_rpc_channel_free(channels[0]);
    td_rpc_channel_free(channels[1]);
    world_end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_unary),
        cmocka_unit_test(test_rpc_answer_later),
        cmocka_unit_test(test_rpc_errors_have_status_and_text),
        cmocka_unit_test(test_rpc_stream),
        cmocka_unit_test(test_rpc_deadline_passes_on_both_sides),
        cmocka_unit_test(test_rpc_cancel_reaches_the_server),
        cmocka_unit_test(test_rpc_channel_free_ends_its_requests),
        cmocka_unit_test(test_rpc_unknown_method),
        cmocka_unit_test(test_rpc_bytes_of_another_message),
        cmocka_unit_test(test_rpc_big_messages),
        cmocka_unit_test(test_rpc_message_that_grows),
        cmocka_unit_test(test_rpc_no_memory_for_a_request),
        cmocka_unit_test(test_rpc_long_texts_are_cut),
        cmocka_unit_test(test_rpc_stream_queue_has_a_limit),
        cmocka_unit_test(test_rpc_slow_reader_is_told_to_the_sender),
        cmocka_unit_test(test_rpc_too_many_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
