// The Redis store when the server is not well: killed, stopped, wiped, wrong, or no Redis at all.
#include <arpa/inet.h>
#include <netinet/in.h>

#include "lib/base/rng.h"
#include "lib/base/trace.h"
#include "lib/io/kv.h"
#include "tests/unit/io/kv_calls.h"
#include "tests/unit/io/redis_server.h"

enum { QUICK_MS = 300 };

struct world {
    struct redis_server server;
    struct td_loop *loop;
    struct td_kv *kv;
};

static void world_open(struct world *w, const char *password, int64_t timeout_ms) {
    if (!redis_open(&w->server, password, 0)) {
        skip();
    }
    w->loop = new_loop();
    w->kv = td_kv_new_redis(w->loop, &(struct td_kv_redis_opts){.address = w->server.address,
                                                                .timeout_ms = timeout_ms});
}

static void world_close(struct world *w) {
    td_kv_free(w->kv);
    td_loop_free(w->loop);
    redis_close(&w->server);
}

static void assert_fails(struct td_loop *loop, struct td_kv *kv, enum td_rc rc, const char *text) {
    struct td_err err = {0};
    td_free(get_now(loop, kv, "k", &err));
    if (err.code != rc || !strstr(err.msg, text)) {
        fail_msg("expected %s with \"%s\", got %s: %s", td_rc_name(rc), text, td_rc_name(err.code),
                 err.msg);
    }
}

// The same, once the store has tried.
static void assert_refused(struct td_loop *loop, struct td_kv *kv, const char *text) {
    int64_t deadline_ms = td_clock_ms() + WAIT_MS;
    struct td_err err = {0};
    do {
        run_for(loop, 1);
        td_free(get_now(loop, kv, "k", &err));
    } while (strstr(err.msg, "not tried yet") && td_clock_ms() < deadline_ms);
    assert_fails(loop, kv, TD_ECLOSED, text);
}

static void test_redis_killed_and_restarted(void **state) {
    (void)state;
    struct world w = {0};
    struct answer a = {0};
    world_open(&w, NULL, WAIT_MS);
    assert_false(td_kv_connected(w.kv));
    assert_false(td_kv_renewed(w.kv));
    assert_fails(w.loop, w.kv, TD_ECLOSED, "not connected: not tried yet");
    wait_for_state(w.loop, w.kv, kv_up);
    assert_true(td_kv_renewed(w.kv));
    assert_int_equal(put_now(w.loop, w.kv, "k", "x"), TD_OK);
    kill(w.server.pid, SIGSTOP); // so that the calls are under way
    put(w.kv, "k", "y", 0, &a);
    td_kv_get(w.kv, "k", answer_value, &a);
    td_kv_list(w.kv, "", answer_list, &a);
    run_for(w.loop, 20);
    assert_int_equal(a.count, 0);
    redis_kill(&w.server);
    wait_until(w.loop, &a.count, 3);
    assert_int_equal(a.rc, TD_ECLOSED);
    assert_non_null(strstr(a.err.msg, w.server.address));
    assert_false(td_kv_connected(w.kv));
    assert_fails(w.loop, w.kv, TD_ECLOSED, "not connected: ");
    run_for(w.loop, 250); // some attempts fail
    assert_false(td_kv_renewed(w.kv));
    redis_run(&w.server, NULL);
    wait_for_state(w.loop, w.kv, kv_up);
    assert_true(td_kv_renewed(w.kv));
    assert_false(td_kv_renewed(w.kv));
    assert_value(w.loop, w.kv, "k", "-");
    assert_int_equal(a.count, 3);
    world_close(&w);
}

static void test_redis_stopped_for_longer_than_the_timeout(void **state) {
    (void)state;
    struct world w = {0};
    struct answer first = {0}, second = {0};
    world_open(&w, NULL, QUICK_MS);
    wait_for_state(w.loop, w.kv, kv_new);
    kill(w.server.pid, SIGSTOP);
    int64_t begin_ms = td_clock_ms();
    put(w.kv, "k", "x", 0, &first);
    run_for(w.loop, QUICK_MS / 3);
    td_kv_get(w.kv, "k", answer_value, &second);
    wait_until(w.loop, &second.count, 1);
    assert_true(td_clock_ms() - begin_ms >= QUICK_MS);
    assert_int_equal(first.count, 1);
    assert_int_equal(first.rc, TD_ETIMEOUT);
    // Its own time was not up, unless this machine was busy.
    assert_true(second.rc == TD_ECLOSED || second.rc == TD_ETIMEOUT);
    assert_false(td_kv_connected(w.kv));
    run_for(w.loop, 2 * QUICK_MS); // the kernel takes the connection, nobody greets
    assert_fails(w.loop, w.kv, TD_ECLOSED, "no answer within 300 ms");
    kill(w.server.pid, SIGCONT);
    wait_for_state(w.loop, w.kv, kv_up);
    assert_false(td_kv_renewed(w.kv)); // the same server, the same data
    assert_int_equal(put_now(w.loop, w.kv, "k", "y"), TD_OK);
    assert_value(w.loop, w.kv, "k", "y");
    assert_int_equal(first.count, 1);
    world_close(&w);
}

// Nobody calls: the look at the mark finds out.
static void test_redis_stopped_while_nothing_is_asked(void **state) {
    (void)state;
    struct world w = {0};
    world_open(&w, NULL, QUICK_MS);
    wait_for_state(w.loop, w.kv, kv_up);
    kill(w.server.pid, SIGSTOP);
    wait_for_state(w.loop, w.kv, kv_down);
    kill(w.server.pid, SIGCONT);
    wait_for_state(w.loop, w.kv, kv_up);
    world_close(&w);
}

static void test_redis_wiped_while_cut_off(void **state) {
    (void)state;
    struct world w = {0};
    world_open(&w, NULL, WAIT_MS);
    wait_for_state(w.loop, w.kv, kv_new);
    assert_true(redis_says(&w.server, "FLUSHALL\r\n", "+OK"));
    assert_true(redis_says(&w.server, "CLIENT KILL TYPE normal SKIPME yes\r\n", ":"));
    wait_for_state(w.loop, w.kv, kv_new); // the same run id, but another mark
    world_close(&w);
}

static void test_redis_says_no_to_one_call(void **state) {
    (void)state;
    struct world w = {0};
    struct answer a = {0};
    world_open(&w, NULL, WAIT_MS);
    wait_for_state(w.loop, w.kv, kv_up);
    assert_true(redis_says(&w.server, "RPUSH k 1\r\n", ":1"));
    assert_true(redis_says(&w.server, "SET k2 v\r\n", "+OK"));
    assert_fails(w.loop, w.kv, TD_EIO, "WRONGTYPE");
    assert_list(w.loop, w.kv, "k", "k2=v;"); // what is no string is not ours
    assert_true(redis_says(&w.server, "CONFIG SET maxmemory 1\r\n", "+OK"));
    put(w.kv, "k3", "x", 0, &a);
    wait_until(w.loop, &a.count, 1);
    assert_int_equal(a.rc, TD_EIO);
    assert_non_null(strstr(a.err.msg, "OOM"));
    assert_true(td_kv_connected(w.kv));
    world_close(&w);
}

static void test_redis_lists_that_are_too_large(void **state) {
    static const struct {
        const char *fill, *error;
    } rows[] = {
        {"EVAL \"for i=1,70000 do redis.call('SET','k/'..i,'v') end\" 0\r\n", "65536 keys"},
        {"EVAL \"for i=1,70 do redis.call('SET','k/'..i,string.rep('v',1048576)) end\" 0\r\n",
         "67108864 bytes"},
    };
    (void)state;
    struct world w = {0};
    world_open(&w, NULL, WAIT_MS);
    wait_for_state(w.loop, w.kv, kv_up);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct answer a = {0};
        assert_true(redis_says(&w.server, "FLUSHALL\r\n", "+OK"));
        assert_true(redis_says(&w.server, rows[i].fill, "$-1"));
        td_kv_list(w.kv, "k/", answer_list, &a);
        wait_until(w.loop, &a.count, 1);
        assert_int_equal(a.rc, TD_ELIMIT);
        assert_non_null(strstr(a.err.msg, rows[i].error));
        assert_value(w.loop, w.kv, "other", "-");
        assert_true(td_kv_connected(w.kv));
        answer_fini(&a);
    }
    world_close(&w);
}

static char *password_file(const struct world *w, const char *text) {
    char *path = td_asprintf("%s/password", w->server.folder);
    assert_int_equal(td_file_write(path, text, strlen(text), NULL), TD_OK);
    return path;
}

static void test_redis_passwords(void **state) {
    (void)state;
    struct world w = {0};
    world_open(&w, "s3cret", WAIT_MS);
    assert_refused(w.loop, w.kv, "NOAUTH Authentication required.: set redis.password");
    td_kv_free(w.kv);
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"wrong\n", "WRONGPASS"}, {"", "the password file is empty"}, {NULL, "No such file"}};
    char *path = password_file(&w, "");
    struct td_kv_redis_opts opts = {w.server.address, path, WAIT_MS};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].text) {
            td_free(password_file(&w, rows[i].text));
        } else {
            assert_int_equal(unlink(path), 0);
        }
        w.kv = td_kv_new_redis(w.loop, &opts);
        assert_refused(w.loop, w.kv, rows[i].error);
        if (i + 1 < sizeof rows / sizeof *rows) {
            td_kv_free(w.kv);
        }
    }
    td_free(password_file(&w, "s3cret\r\n")); // is read again at the next attempt
    wait_for_state(w.loop, w.kv, kv_up);
    assert_int_equal(put_now(w.loop, w.kv, "k", "x"), TD_OK);
    td_free(path);
    world_close(&w);
}

static int free_port(void) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t n = sizeof own;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &n), 0);
    close(fd);
    return ntohs(own.sin_port);
}

static void test_redis_over_tcp_and_by_name(void **state) {
    static const char *const hosts[] = {"127.0.0.1", "localhost"};
    (void)state;
    struct redis_server server;
    if (!redis_open(&server, NULL, free_port())) {
        skip();
    }
    struct td_loop *loop = new_loop();
    for (int i = 0; i < 2; i++) {
        char *address = td_asprintf("%s:%d", hosts[i], server.port);
        struct td_kv *kv = td_kv_new_redis(
            loop, &(struct td_kv_redis_opts){.address = address, .timeout_ms = WAIT_MS});
        wait_for_state(loop, kv, kv_up);
        assert_int_equal(put_now(loop, kv, "k", hosts[i]), TD_OK);
        assert_value(loop, kv, "k", hosts[i]);
        td_kv_free(kv);
        td_free(address);
    }
    td_loop_free(loop);
    redis_close(&server);
}

static void test_redis_addresses_where_nobody_is(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    char *refused = td_asprintf("127.0.0.1:%d", free_port());
    const struct {
        const char *address, *error;
    } rows[] = {
        {refused, "Connection refused"},
        {"unix:/nowhere/at/all", "No such file"},
        {"unix:/tmp", "Connection refused"},
        {"unix:/0123456789012345678901234567890123456789012345678901234567890123456789"
         "0123456789012345678901234567890123456789",
         "has at most 107 bytes"},
        {"nonsense", "is not an address"},
        {"no-such-host.invalid:6379", "no-such-host.invalid: "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_kv *kv = td_kv_new_redis(
            loop, &(struct td_kv_redis_opts){.address = rows[i].address, .timeout_ms = WAIT_MS});
        assert_refused(loop, kv, rows[i].error);
        td_kv_free(kv);
    }
    struct td_kv *kv = td_kv_new_redis( // closed while the name is looked up
        loop, &(struct td_kv_redis_opts){.address = "localhost:1", .timeout_ms = WAIT_MS});
    td_kv_free(kv);
    td_free(refused);
    td_loop_free(loop);
}

// ---- a server that is none

#define GREETING "$30\r\n# Server\r\nrun_id:abc\r\nport:1\r\n\r\n+OK\r\n:1\r\n$4\r\nmark\r\n"

struct liar {
    struct td_loop *loop;
    int fd, port, connections;
    struct td_watch *watch, *peer_watch;
    int peer;
    // What it says when it is spoken to: once, and after that; or the lines of a script, one each.
    const char *first, *then, *const *script;
    size_t first_n;
    int spoken;
};

static void on_peer(void *user, int fd, unsigned events) {
    struct liar *liar = user;
    char bytes[4096];
    (void)events;
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n <= 0) {
        td_watch_close(liar->peer_watch);
        liar->peer_watch = NULL;
        close(fd);
        return;
    }
    if (liar->spoken++ == 0) {
        (void)!send(fd, liar->first, liar->first_n, MSG_NOSIGNAL);
    } else if (liar->script && *liar->script) {
        (void)!send(fd, *liar->script, strlen(*liar->script), MSG_NOSIGNAL);
        liar->script++;
    } else if (liar->then) {
        (void)!send(fd, liar->then, strlen(liar->then), MSG_NOSIGNAL);
    }
}

static void on_connection(void *user, int fd, unsigned events) {
    struct liar *liar = user;
    (void)events;
    int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (liar->peer_watch) { // the earlier one was left
        td_watch_close(liar->peer_watch);
        close(liar->peer);
    }
    liar->peer = peer;
    liar->spoken = 0;
    liar->connections++;
    assert_int_equal(td_watch_fd(liar->loop, peer, TD_LOOP_READ, on_peer, liar, &liar->peer_watch),
                     TD_OK);
}

static void liar_open(struct liar *liar, struct td_loop *loop) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t n = sizeof own;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *liar = (struct liar){.loop = loop, .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(bind(liar->fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(liar->fd, 8), 0);
    assert_int_equal(getsockname(liar->fd, (struct sockaddr *)&own, &n), 0);
    liar->port = ntohs(own.sin_port);
    assert_int_equal(td_watch_fd(loop, liar->fd, TD_LOOP_READ, on_connection, liar, &liar->watch),
                     TD_OK);
}

static void liar_close(struct liar *liar) {
    if (liar->peer_watch) {
        td_watch_close(liar->peer_watch);
        close(liar->peer);
    }
    td_watch_close(liar->watch);
    close(liar->fd);
}

static struct td_kv *store_of(struct liar *liar, int64_t timeout_ms) {
    char *address = td_asprintf("127.0.0.1:%d", liar->port);
    struct td_kv *kv = td_kv_new_redis(
        liar->loop, &(struct td_kv_redis_opts){.address = address, .timeout_ms = timeout_ms});
    td_free(address);
    return kv;
}

static void test_redis_garbage_instead_of_a_greeting(void **state) {
    static const struct {
        const char *says, *error;
    } rows[] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "that is no Redis server: Protocol error, got \"H\""},
        {"-ERR max number of clients reached\r\n", "ERR max number of clients reached"},
        {"-LOADING Redis is loading the dataset in memory\r\n", "LOADING"},
        {"+OK\r\n", "an answer that does not fit"},
        {":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n", "an answer that does not fit"},
        {"$3\r\nabc\r\n", "an answer that does not fit"},
        {"$-1\r\n", "an answer that does not fit"},
        {"$-5\r\n", "that is no Redis server: Bulk string length out of range"},
        {"*2147483647\r\n", "a reply larger than"},
        {"*200000\r\n*200000\r\n", "a reply larger than"},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", "depth > 7"},
        {GREETING ":1\r\n", "an answer to nothing"},
        {GREETING "-ERR bye\r\n", "ERR bye"},
        {"$30\r\n# Server\r\nrun_id:abc\r\nport:1\r\n\r\n+OK\r\n:1\r\n*0\r\n", "does not fit"},
        {"$30\r\n# Server\r\nrun_id:abc\r\nport:1\r\n\r\n*0\r\n", "does not fit"},
        {"$2147483647\r\nabc", "no answer within"},
        {"", "no answer within"},
    };
    (void)state;
    struct td_loop *loop = new_loop();
    struct liar liar;
    liar_open(&liar, loop);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        liar.first = rows[i].says;
        liar.first_n = strlen(rows[i].says);
        struct td_kv *kv = store_of(&liar, QUICK_MS);
        liar.connections = 0;
        wait_until(loop, &liar.connections, 2); // it came again, so the first one failed
        assert_fails(loop, kv, TD_ECLOSED, rows[i].error);
        td_kv_free(kv);
    }
    liar_close(&liar);
    td_loop_free(loop);
}

static void test_redis_garbage_instead_of_answers(void **state) {
    static const struct {
        const char *says;
        enum td_rc get, list, set;
        bool stays;
    } rows[] = {
        {"-ERR no\r\n", TD_EIO, TD_EIO, TD_EIO, true},
        {"$-1\r\n", TD_OK, TD_EIO, TD_EIO, false},
        {":1\r\n", TD_EIO, TD_EIO, TD_EIO, false},
        {"+OK\r\n", TD_EIO, TD_EIO, TD_OK, false},
        {"*0\r\n", TD_EIO, TD_EIO, TD_EIO, false},
        {"*2\r\n$1\r\n0\r\n*1\r\n:7\r\n", TD_EIO, TD_EIO, TD_EIO, false},
        {"*2\r\n$1\r\n0\r\n$1\r\n0\r\n", TD_EIO, TD_EIO, TD_EIO, false},
        {"*2\r\n:0\r\n*0\r\n", TD_EIO, TD_EIO, TD_EIO, false},
        // As an answer to MGET, this is not what was asked for.
        {"*2\r\n$1\r\n0\r\n*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", TD_EIO, TD_EIO, TD_EIO, false},
        {"garbage", TD_ECLOSED, TD_ECLOSED, TD_ECLOSED, false},
    };
    (void)state;
    struct td_loop *loop = new_loop();
    struct liar liar;
    liar_open(&liar, loop);
    liar.first = GREETING;
    liar.first_n = strlen(GREETING);
    for (size_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++) {
        struct answer a = {0};
        enum td_rc want[] = {rows[i / 3].get, rows[i / 3].list, rows[i / 3].set};
        liar.then = rows[i / 3].says;
        struct td_kv *kv = store_of(&liar, WAIT_MS);
        wait_for_state(loop, kv, kv_up);
        if (i % 3 == 0) {
            td_kv_get(kv, "k", answer_value, &a);
        } else if (i % 3 == 1) {
            td_kv_list(kv, "k", answer_list, &a);
        } else {
            put(kv, "k", "v", 0, &a);
        }
        wait_until(loop, &a.count, 1);
        if (a.rc != want[i % 3]) {
            fail_msg("row %zu call %zu: %s: %s", i / 3, i % 3, td_rc_name(a.rc), a.err.msg);
        }
        assert_int_equal(td_kv_connected(kv), a.rc == TD_OK || rows[i / 3].stays);
        td_kv_free(kv);
        answer_fini(&a);
    }
    liar_close(&liar);
    td_loop_free(loop);
}

// A scan may show a key several times, and keys go between SCAN and MGET.
static void test_redis_list_has_each_key_once(void **state) {
    static const char *const script[] = {
        "*2\r\n$1\r\n7\r\n*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\na\r\n",
        "*2\r\n$1\r\n1\r\n$-1\r\n",
        "*2\r\n$1\r\n9\r\n*0\r\n",
        "*2\r\n$1\r\n0\r\n*3\r\n$1\r\nd\r\n$1\r\nb\r\n$1\r\nd\r\n",
        "*1\r\n$1\r\n4\r\n",
        NULL,
    };
    (void)state;
    struct td_loop *loop = new_loop();
    struct liar liar;
    liar_open(&liar, loop);
    liar.first = GREETING;
    liar.first_n = strlen(GREETING);
    liar.script = script;
    struct td_kv *kv = store_of(&liar, WAIT_MS);
    wait_for_state(loop, kv, kv_up);
    assert_list(loop, kv, "", "a=1;d=4;");
    td_kv_free(kv);
    liar_close(&liar);
    td_loop_free(loop);
}

// Another run id or another mark: whoever has a view there writes it again.
static void test_redis_renewed_by_run_id_and_by_mark(void **state) {
    static const struct {
        const char *greeting;
        bool renewed;
    } rows[] = {
        {"$9\r\n\nrun_id:a\r\n+OK\r\n:1\r\n$1\r\nm\r\n", true},
        {"$9\r\n\nrun_id:a\r\n$-1\r\n:1\r\n$1\r\nm\r\n", false},
        {"$9\r\n\nrun_id:b\r\n$-1\r\n:1\r\n$1\r\nm\r\n", true},
        {"$9\r\n\nrun_id:b\r\n+OK\r\n:1\r\n$1\r\nn\r\n", true},
        {"$9\r\n\nrun_id:b\r\n-OOM\r\n:0\r\n$-1\r\n", true},
        {"$9\r\n\nrun_id:b\r\n-OOM\r\n:0\r\n$-1\r\n", false},
    };
    (void)state;
    struct td_loop *loop = new_loop();
    struct liar liar;
    liar_open(&liar, loop);
    struct td_kv *kv = store_of(&liar, WAIT_MS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        liar.first = rows[i].greeting;
        liar.first_n = strlen(rows[i].greeting);
        wait_for_state(loop, kv, kv_up);
        if (td_kv_renewed(kv) != rows[i].renewed) {
            fail_msg("row %zu", i);
        }
        assert_false(td_kv_renewed(kv));
        shutdown(liar.peer, SHUT_RDWR); // it comes again
        wait_for_state(loop, kv, kv_down);
    }
    td_kv_free(kv);
    liar_close(&liar);
    td_loop_free(loop);
}

// Bytes as they come, in the shape of the protocol: nothing may break, every call is answered.
static void test_redis_random_answers(void **state) {
    static const char alphabet[] = "+-:$*0123456789\r\n\r\n\r\nOKab";
    (void)state;
    struct td_rng rng = {(uint64_t)td_clock_ns()};
    print_message("seed %llu\n", (unsigned long long)rng.state);
    struct td_loop *loop = new_loop();
    struct liar liar;
    liar_open(&liar, loop);
    for (int round = 0; round < 60; round++) {
        struct answer a = {0};
        char bytes[sizeof GREETING + 200] = "";
        size_t n = round % 2 ? strlen(GREETING) : 0;
        memcpy(bytes, GREETING, n);
        for (uint32_t left = 1 + td_rng_below(&rng, 190); left > 0; left--) {
            bytes[n++] = alphabet[td_rng_below(&rng, sizeof alphabet - 1)];
        }
        liar.first = bytes;
        liar.first_n = n;
        liar.then = bytes + (round % 2 ? strlen(GREETING) : 0);
        struct td_kv *kv = store_of(&liar, 20);
        for (int turn = 0; turn < 6; turn++) {
            run_for(loop, 3);
            td_kv_get(kv, "k", answer_value, &a);
            td_kv_list(kv, "k", answer_list, &a);
        }
        wait_until(loop, &a.count, 12);
        td_kv_free(kv);
        assert_int_equal(a.count, 12);
        answer_fini(&a);
    }
    liar_close(&liar);
    td_loop_free(loop);
}

int main(void) {
    td_trace_set_level(TD_TRACE_ERROR); // what is wrong here is meant to be
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_redis_killed_and_restarted),
        cmocka_unit_test(test_redis_stopped_for_longer_than_the_timeout),
        cmocka_unit_test(test_redis_stopped_while_nothing_is_asked),
        cmocka_unit_test(test_redis_wiped_while_cut_off),
        cmocka_unit_test(test_redis_says_no_to_one_call),
        cmocka_unit_test(test_redis_lists_that_are_too_large),
        cmocka_unit_test(test_redis_passwords),
        cmocka_unit_test(test_redis_over_tcp_and_by_name),
        cmocka_unit_test(test_redis_addresses_where_nobody_is),
        cmocka_unit_test(test_redis_garbage_instead_of_a_greeting),
        cmocka_unit_test(test_redis_garbage_instead_of_answers),
        cmocka_unit_test(test_redis_list_has_each_key_once),
        cmocka_unit_test(test_redis_renewed_by_run_id_and_by_mark),
        cmocka_unit_test(test_redis_random_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
