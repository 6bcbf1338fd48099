// What every gRPC server answers: health, and reflection in both versions.
#include "proto/health.pb-c.h"
#include "proto/reflection.pb-c.h"
#include "tests/unit/io/rpc_world.h"

// ---- health ----

struct health_result {
    int statuses[8];
    int count, done;
    enum td_rpc_status status;
};

static void on_health(void *user, const ProtobufCMessage *message) {
    struct health_result *result = user;
    assert_true(result->count < 8);
    result->statuses[result->count++] =
        ((const Grpc__Health__V1__HealthCheckResponse *)message)->status;
}

static void on_health_done(void *user, const struct td_rpc_outcome *outcome) {
    struct health_result *result = user;
    result->done++;
    result->status = outcome->status;
    if (outcome->message) {
        on_health(user, outcome->message);
    }
}

static struct td_rpc_request *ask_health(struct world *world, const char *service, bool watch,
                                         struct health_result *result) {
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)service;
    *result = (struct health_result){0};
    return td_rpc_request(
        world->channel,
        &(struct td_rpc_request_opts){.path = watch ? "/grpc.health.v1.Health/Watch"
                                                    : "/grpc.health.v1.Health/Check",
                                      .request = &request.base,
                                      .out = &grpc__health__v1__health_check_response__descriptor,
                                      .deadline_ms = -1,
                                      .message = watch ? on_health : NULL,
                                      .done = on_health_done,
                                      .user = result});
}

static int check_health(struct world *world, const char *service) {
    struct health_result result;
    ask_health(world, service, false, &result);
    wait_until(world->loop, &result.done, 1);
    return result.status == TD_RPC_OK ? result.statuses[0] : -(int)result.status;
}

static void test_rpc_health_check(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    assert_int_equal(check_health(&world, ""), -TD_RPC_NOT_FOUND);
    td_rpc_server_health(world.server, "", true);
    td_rpc_server_health(world.server, "tandem.v1.Jobs", false);
    assert_int_equal(check_health(&world, ""), 1);
    assert_int_equal(check_health(&world, "tandem.v1.Jobs"), 2);
    assert_int_equal(check_health(&world, "other"), -TD_RPC_NOT_FOUND);
    td_rpc_server_health(world.server, "tandem.v1.Jobs", true);
    assert_int_equal(check_health(&world, "tandem.v1.Jobs"), 1);
    world_end(&world);
}

static void test_rpc_health_watch(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct health_result result, left;
    struct td_rpc_request *request = ask_health(&world, "jobs", true, &left);
    ask_health(&world, "jobs", true, &result);
    wait_until(world.loop, &result.count, 1);
    wait_until(world.loop, &left.count, 1);
    td_rpc_cancel(request);
    wait_until(world.loop, &left.done, 1);
    td_rpc_server_health(world.server, "jobs", true);
    td_rpc_server_health(world.server, "jobs", true); // no change, no message
    td_rpc_server_health(world.server, "other", false);
    wait_until(world.loop, &result.count, 2);
    td_rpc_server_stop(world.server, 600000, on_stopped, &world);
    wait_until(world.loop, &result.done, 1);
    wait_until(world.loop, &world.stopped, 1); // who watches does not hold it up
    assert_int_equal(result.count, 3);
    assert_int_equal(result.statuses[0], 3); // not known
    assert_int_equal(result.statuses[1], 1);
    assert_int_equal(result.statuses[2], 2);
    assert_int_equal(result.status, TD_RPC_UNAVAILABLE);
    td_rpc_server_health(world.server, "jobs", true); // too late
    world_end(&world);
}

// ---- reflection ----

struct answer {
    char text[512]; // services, names of files, or "error N"
    int messages, done;
    enum td_rpc_status status;
};

static void add(struct answer *answer, const char *text, size_t n) {
    size_t len = strlen(answer->text);
    snprintf(answer->text + len, sizeof answer->text - len, "%.*s ", (int)n, text);
}

#define RESPONSE_CASE(name)                                                                        \
    GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

static void on_answer(void *user, const ProtobufCMessage *message) {
    struct answer *answer = user;
    const Grpc__Reflection__V1__ServerReflectionResponse *r =
        (const Grpc__Reflection__V1__ServerReflectionResponse *)message;
    answer->messages++;
    assert_non_null(r->original_request);
    assert_string_equal(r->valid_host, "host");
    char text[16];
    switch (r->message_response_case) {
    case RESPONSE_CASE(LIST_SERVICES_RESPONSE):
        for (size_t i = 0; i < r->list_services_response->n_service; i++) {
            const char *name = r->list_services_response->service[i]->name;
            add(answer, name, strlen(name));
        }
        break;
    case RESPONSE_CASE(FILE_DESCRIPTOR_RESPONSE):
        for (size_t i = 0; i < r->file_descriptor_response->n_file_descriptor_proto; i++) {
            // FileDescriptorProto begins with its name: tag, length, bytes.
            const ProtobufCBinaryData *file =
                &r->file_descriptor_response->file_descriptor_proto[i];
            assert_true(file->len > 2 && file->data[0] == 0x0A && file->len > file->data[1]);
            add(answer, (const char *)file->data + 2, file->data[1]);
        }
        break;
    case RESPONSE_CASE(ALL_EXTENSION_NUMBERS_RESPONSE):
        assert_int_equal(r->all_extension_numbers_response->n_extension_number, 0);
        add(answer, "none", 4);
        break;
    case RESPONSE_CASE(ERROR_RESPONSE):
        snprintf(text, sizeof text, "error %d", (int)r->error_response->error_code);
        add(answer, text, strlen(text));
        break;
    default:
        fail_msg("no answer that is known");
    }
}

static void on_answered(void *user, const struct td_rpc_outcome *outcome) {
    struct answer *answer = user;
    answer->done++;
    answer->status = outcome->status;
}

typedef Grpc__Reflection__V1__ServerReflectionRequest question;

static void ask(struct world *world, const char *version, question *request, const char *expected) {
    struct answer answer = {0};
    char path[128];
    snprintf(path, sizeof path, "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo",
             version);
    request->host = "host";
    td_rpc_request(world->channel,
                   &(struct td_rpc_request_opts){
                       .path = path,
                       .request = &request->base,
                       .out = &grpc__reflection__v1__server_reflection_response__descriptor,
                       .deadline_ms = -1,
                       .message = on_answer,
                       .done = on_answered,
                       .user = &answer});
    wait_until(world->loop, &answer.done, 1);
    assert_int_equal(answer.status, TD_RPC_OK);
    assert_int_equal(answer.messages, 1);
    assert_string_equal(answer.text, expected);
}

#define REQUEST_CASE(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name

static question question_of(int kind, const char *text) {
    question q = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    q.message_request_case = kind;
    q.file_by_filename = (char *)text; // all of them are the same member of a union
    return q;
}

static void test_rpc_reflection(void **state) {
    (void)state;
    static const struct {
        int kind;
        const char *question, *answer;
    } rows[] = {
        {REQUEST_CASE(LIST_SERVICES), "",
         "tandem.v1.Jobs grpc.health.v1.Health grpc.reflection.v1.ServerReflection "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.v1.Jobs", "proto/jobs.proto "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.v1.Jobs.GetJob", "proto/jobs.proto "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.v1.JobState", "proto/jobs.proto "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.sync.Orders",
         "proto/sync.proto proto/journal.proto "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "grpc.health.v1.HealthCheckResponse.ServingStatus",
         "proto/health.proto "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.v1", "error 5 "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.v1.", "error 5 "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.v1xJobs", "error 5 "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "tandem.v1.Nope", "error 5 "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "", "error 5 "},
        {REQUEST_CASE(FILE_CONTAINING_SYMBOL), "....", "error 5 "},
        {REQUEST_CASE(FILE_BY_FILENAME), "proto/jobs.proto", "proto/jobs.proto "},
        {REQUEST_CASE(FILE_BY_FILENAME), "jobs.proto", "error 5 "},
        {REQUEST_CASE(ALL_EXTENSION_NUMBERS_OF_TYPE), "tandem.v1.Job", "none "},
        {REQUEST_CASE(ALL_EXTENSION_NUMBERS_OF_TYPE), "tandem.v1.Nope", "error 5 "},
        {REQUEST_CASE(_NOT_SET), "", "error 3 "},
    };
    struct world world;
    world_begin(&world, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        question q = question_of(rows[i].kind, rows[i].question);
        ask(&world, "v1", &q, rows[i].answer);
        ask(&world, "v1alpha", &q, rows[i].answer);
    }
    Grpc__Reflection__V1__ExtensionRequest extension =
        GRPC__REFLECTION__V1__EXTENSION_REQUEST__INIT;
    question q = question_of(REQUEST_CASE(FILE_CONTAINING_EXTENSION), NULL);
    q.file_containing_extension = &extension;
    ask(&world, "v1", &q, "error 5 ");
    world_end(&world);
}

// Descriptors that are cut anywhere, or none at all.
static void test_rpc_reflection_of_damaged_descriptors(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    static const uint8_t good[] = {0x0A, 4, 0x0A, 2, 'a', 'b'};
    struct td_rpc_server_opts opts = {.rpc = world.rpc, .descriptors = good};
    for (size_t n = 0; n <= sizeof good; n++) {
        opts.descriptors_bytes = n;
        struct td_rpc_server *server = NULL;
        struct td_err err;
        enum td_rc rc = td_rpc_server_new(&opts, &server, &err);
        assert_int_equal(rc, n == 0 || n == sizeof good ? TD_OK : TD_EINVAL);
        td_rpc_server_free(server);
    }
    world_end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_health_check),
        cmocka_unit_test(test_rpc_health_watch),
        cmocka_unit_test(test_rpc_reflection),
        cmocka_unit_test(test_rpc_reflection_of_damaged_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
