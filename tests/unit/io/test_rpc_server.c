// The life of a gRPC server: addresses, stop with grace, free at any time, garbage on its port.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/rng.h"
#include "tests/unit/io/rpc_world.h"

static void test_rpc_stop_when_idle(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    ask_job(&world, JOB_ECHO, -1, &result);
    td_rpc_server_stop(world.server, 600000, on_stopped, &world);
    assert_int_equal(world.stopped, 0);
    wait_until(world.loop, &world.stopped, 1);
    ask_job(&world, JOB_ECHO, -1, &result);
    assert_int_equal(result.status, TD_RPC_UNAVAILABLE);
    assert_true(strlen(result.text) > 0);
    world_end(&world);
}

static void test_rpc_stop_lets_calls_end(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result later, next;
    hold_job(&world, &later);
    td_rpc_server_stop(world.server, 600000, on_stopped, &world);
    ask_job(&world, JOB_ECHO, 30000, &next);
    assert_int_equal(next.status, TD_RPC_UNAVAILABLE);
    assert_int_equal(world.stopped, 0);
    answer_later(&world);
    wait_for(&world, &later);
    assert_int_equal(later.status, TD_RPC_OK);
    wait_until(world.loop, &world.stopped, 1);
    assert_int_equal(world.gone, 0);
    world_end(&world);
}

static void test_rpc_stop_cancels_after_the_grace(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result unary;
    hold_job(&world, &unary);
    td_rpc_server_stop(world.server, 20, on_stopped, &world);
    wait_until(world.loop, &world.stopped, 1);
    assert_int_equal(world.gone, 1);
    wait_for(&world, &unary);
    assert_int_equal(unary.status, TD_RPC_UNAVAILABLE);
    world_end(&world);
}

static void test_rpc_free_without_a_stop(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    hold_job(&world, &result);
    td_rpc_server_free(world.server);
    world.server = NULL;
    assert_int_equal(world.gone, 1); // before free returned
    wait_for(&world, &result);
    assert_int_equal(result.status, TD_RPC_UNAVAILABLE);
    td_rpc_server_free(NULL);
    world_end(&world);
}

static void test_rpc_free_within_a_handler(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result results[3];
    for (int i = 0; i < 3; i++) {
        get_job(&world, i == 1 ? JOB_FREE : JOB_ECHO, -1, &results[i]);
    }
    for (int i = 0; i < 3; i++) {
        wait_for(&world, &results[i]);
    }
    assert_int_equal(results[1].status, TD_RPC_UNAVAILABLE);
    assert_null(world.server);
    assert_int_equal(world.gone, 1);
    world_end(&world);
}

static void test_rpc_free_while_it_stops(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct result result;
    hold_job(&world, &result);
    td_rpc_server_stop(world.server, 600000, on_stopped, &world);
    world_end(&world); // done never comes
    assert_int_equal(world.stopped, 0);
    assert_int_equal(world.gone, 1);
}

static void test_rpc_addresses(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct td_err err;
    struct td_rpc_server *other = new_server(&world, NULL);
    assert_int_equal(td_rpc_server_listen(other, world.address, NULL, &err), TD_ECONFLICT);
    assert_non_null(strstr(err.msg, world.address));
    static const char *const wrong[] = {
        "", "nonsense", "127.0.0.1", "127.0.0.1:", ":7000", "1.2.3.4:x1", "127.0.0.1:70000"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(td_rpc_server_listen(other, wrong[i], NULL, &err), TD_EINVAL);
        assert_non_null(strstr(err.msg, wrong[i]));
    }
    assert_int_equal(td_rpc_server_listen(other, "192.0.2.1:0", NULL, &err), TD_EIO);
    int first = 0, second = 0;
    assert_int_equal(td_rpc_server_listen(other, "127.0.0.1:0", &first, &err), TD_OK);
    assert_int_equal(td_rpc_server_listen(other, "127.0.0.1:0", &second, &err), TD_OK);
    assert_int_not_equal(first, second);
    for (int i = 2; i < 8; i++) {
        assert_int_equal(td_rpc_server_listen(other, "127.0.0.1:0", NULL, &err), TD_OK);
    }
    assert_int_equal(td_rpc_server_listen(other, "127.0.0.1:0", NULL, &err), TD_ELIMIT);
    td_rpc_server_free(other); // never started
    world_end(&world);
}

static void test_rpc_unix_socket(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    char dir[] = "/tmp/td-rpc-XXXXXX", path[64], address[80];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/socket", dir);
    snprintf(address, sizeof address, "unix:%s", path);
    struct td_err err;
    struct td_rpc_server *first = new_server(&world, NULL), *second = new_server(&world, NULL);
    assert_int_equal(td_rpc_server_listen(first, address, NULL, &err), TD_OK);
    td_rpc_server_start(first);
    assert_int_equal(td_rpc_server_listen(second, address, NULL, &err), TD_ECONFLICT);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(td_rpc_server_listen(second, "unix:/nowhere/socket", NULL, &err), TD_ENOENT);
    td_rpc_channel_free(world.channel);
    snprintf(world.address, sizeof world.address, "%s", address);
    world_connect(&world, NULL);
    struct result result;
    ask_job(&world, JOB_ECHO, -1, &result);
    assert_int_equal(result.status, TD_RPC_OK);
    td_rpc_server_free(first);
    td_rpc_server_free(second);
    world_end(&world);
    unlink(path);
    snprintf(path, sizeof path, "%s/socket.lock", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

// ---- garbage ----

static int connect_to(const struct world *world) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)strtol(strchr(world->address, ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void test_rpc_garbage_on_the_port(void **state) {
    (void)state;
    struct world world;
    world_begin(&world, NULL);
    struct td_rng rng = {(uint64_t)td_clock_ms()};
    print_message("seed %llu\n", (unsigned long long)rng.state);
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const char http1[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    int open[20] = {0};
    for (int i = 0; i < 60; i++) {
        uint8_t bytes[4096];
        size_t n = td_rng_below(&rng, sizeof bytes);
        for (size_t k = 0; k < n; k++) {
            bytes[k] = (uint8_t)td_rng_next(&rng);
        }
        int fd = connect_to(&world);
        if (i % 3 == 1) {
            assert_true(send(fd, preface, sizeof preface - 1, MSG_NOSIGNAL) > 0);
        } else if (i % 3 == 2) {
            assert_true(send(fd, http1, sizeof http1 - 1, MSG_NOSIGNAL) > 0);
        }
        assert_true(send(fd, bytes, n, MSG_NOSIGNAL) >= 0 || errno == EPIPE || errno == ECONNRESET);
        struct result result;
        ask_job(&world, JOB_ECHO, 30000, &result);
        assert_int_equal(result.status, TD_RPC_OK);
        if (i < 20) {
            open[i] = fd;
        } else {
            close(fd);
        }
    }
    td_rpc_server_stop(world.server, 100, on_stopped, &world);
    wait_until(world.loop, &world.stopped, 1);
    for (int i = 0; i < 20; i++) {
        close(open[i]);
    }
    world_end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_stop_when_idle),
        cmocka_unit_test(test_rpc_stop_lets_calls_end),
        cmocka_unit_test(test_rpc_stop_cancels_after_the_grace),
        cmocka_unit_test(test_rpc_free_without_a_stop),
        cmocka_unit_test(test_rpc_free_within_a_handler),
        cmocka_unit_test(test_rpc_free_while_it_stops),
        cmocka_unit_test(test_rpc_addresses),
        cmocka_unit_test(test_rpc_unix_socket),
        cmocka_unit_test(test_rpc_garbage_on_the_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
