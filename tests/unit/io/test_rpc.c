// Calls from a client to a server of one process: answers, errors, deadlines, cancelling, streams,
// limits, and ends of every side.
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
    get_job(&world, JOB_LATER, -1, &later);
    wait_until(world.loop, &world.calls, 1);
    get_job(&world, JOB_ECHO, -1, &echo);
    wait_for(&world, &echo);
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
    get_job(&world, JOB_FAIL, 30000, &result);
    wait_for(&world, &result);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_unary),
        cmocka_unit_test(test_rpc_answer_later),
        cmocka_unit_test(test_rpc_errors_have_status_and_text),
        cmocka_unit_test(test_rpc_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
