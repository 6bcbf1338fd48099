// What every daemon has: one process a run directory, ids that it keeps, pages that all daemons
// serve, and a stop that is heard once and tells why.
#include "lib/daemon/daemon.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"

struct world {
    char dir[64];
    struct td_daemon_settings settings;
    struct td_daemon daemon;
    bool ready;
    int ends;
};

static void on_end(void *user) {
    struct world *w = user;
    w->ends++;
    td_loop_stop(w->daemon.loop);
}

static void open_world(struct world *w) {
    *w = (struct world){.dir = "/tmp/td-daemon-XXXXXX", .ready = true};
    assert_non_null(mkdtemp(w->dir));
    w->settings.dir = w->dir;
    w->settings.http = "127.0.0.1:0";
    assert_int_equal(td_daemon_init(&w->daemon, &w->settings, on_end, w, NULL), TD_OK);
}

static void close_world(struct world *w) {
    td_daemon_fini(&w->daemon);
    assert_int_equal(td_remove_tree(w->dir, NULL), TD_OK);
}

// ---- pages ----

static bool ready(void *user, struct td_buf *out) {
    const struct world *w = user;
    td_buf_puts(out, "[?] something\n");
    return w->ready;
}

static void metrics(void *user, struct td_buf *out) {
    (void)user;
    td_buf_puts(out, "own_metric 1\n");
}

static void status(void *user, struct td_buf *out) {
    (void)user;
    td_buf_puts(out, "<h1>own page");
}

static json_t *json(void *user, const char *path) {
    (void)user;
    return strcmp(path, "own") == 0 ? json_pack("{s:i}", "own", 1) : NULL;
}

static const struct td_daemon_pages pages = {ready, metrics, status, json, "own"};

static void ask(const struct world *w, const char *request, struct td_buf *answer) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = htons((uint16_t)strtol(strrchr(w->daemon.http_address, ':') + 1, NULL, 10));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    td_assert(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    td_assert(td_write_all(fd, request, strlen(request), NULL) == TD_OK);
    for (ssize_t n; (n = read(fd, td_buf_room(answer, 4096), 4096)) > 0;) {
        answer->len += (size_t)n;
    }
    close(fd);
}

static const struct page {
    const char *request, *parts[3];
} asked[] = {
    {"GET /livez HTTP/1.0\r\n\r\n", {"200", "text/plain", "\r\n\r\nok\n"}},
    {"GET /readyz HTTP/1.0\r\n\r\n", {"503", "[?] something\n"}},
    {"GET /metrics HTTP/1.0\r\n\r\n", {"200", "own_metric 1\n", "tandem_build_info{"}},
    {"GET /status HTTP/1.0\r\n\r\n", {"text/html", "<title>tandem-own<", "<h1>own page\n"}},
    {"GET /api/v1/own HTTP/1.0\r\n\r\n", {"200", "application/json", "\r\n\r\n{\"own\":1}\n"}},
    {"GET / HTTP/1.0\r\n\r\n", {"200", "text/html", "<h1>own page\n"}},
    {"GET /api/v1/other HTTP/1.0\r\n\r\n", {"404", "text/plain", "/api/v1/, own\n"}},
    {"GET /api/v1/ HTTP/1.0\r\n\r\n", {"404", "/api/v1/, own\n"}},
    {"GET /other HTTP/1.0\r\n\r\n", {"404", "there are /livez /readyz", "/api/v1/, own\n"}},
    {"HEAD /status HTTP/1.0\r\n\r\n", {"200", "text/html"}},
    {"POST /api/v1/own HTTP/1.0\r\n\r\n", {"405", "Allow: GET, HEAD"}},
};

static void *ask_all(void *user) {
    struct world *w = user;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct td_buf answer = {0};
        ask(w, asked[i].request, &answer);
        for (size_t k = 0; k < 3 && asked[i].parts[k]; k++) {
            if (!strstr(td_buf_str(&answer), asked[i].parts[k])) {
                fprintf(stderr, "not in the answer to %s: %s\n%s", asked[i].request,
                        asked[i].parts[k], td_buf_str(&answer));
                abort();
            }
        }
        td_buf_fini(&answer);
    }
    kill(getpid(), SIGTERM);
    return NULL;
}

static void test_daemon_pages(void **state) {
    (void)state;
    struct world w;
    struct td_err err;
    pthread_t client;
    open_world(&w);
    w.ready = false;
    assert_int_equal(td_daemon_serve(&w.daemon, "tandem-own", &pages, NULL), TD_OK);
    assert_int_equal(pthread_create(&client, NULL, ask_all, &w), 0);
    assert_int_equal(td_daemon_run(&w.daemon, &err), TD_OK); // until SIGTERM
    pthread_join(client, NULL);
    assert_int_equal(w.ends, 1);
    td_daemon_unserve(&w.daemon);
    close_world(&w);
}

static void test_daemon_no_pages(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    w.settings.http = NULL;
    assert_int_equal(td_daemon_serve(&w.daemon, "tandem-own", &pages, NULL), TD_OK);
    assert_null(w.daemon.http);
    assert_string_equal(w.daemon.http_address, "");
    close_world(&w);
}

// ---- life ----

static void test_daemon_stop(void **state) {
    (void)state;
    struct world w;
    struct td_err err;
    open_world(&w);
    td_daemon_stop(&w.daemon, "its disk is gone");
    td_daemon_stop(&w.daemon, NULL);
    assert_int_equal(w.ends, 1);
    assert_int_equal(td_daemon_run(&w.daemon, &err), TD_EIO);
    assert_string_equal(err.msg, "its disk is gone");
    close_world(&w);
}

static void test_daemon_run_directory(void **state) {
    (void)state;
    struct world w;
    struct td_daemon second;
    struct td_err err;
    open_world(&w);
    assert_int_equal(td_daemon_init(&second, &w.settings, on_end, &w, &err), TD_ECONFLICT);
    td_daemon_fini(&second);
    close_world(&w);
}

// ---- parts ----

static void test_daemon_ids(void **state) {
    (void)state;
    static const char *const bad[] = {"",       "\n",  "12",    "0\n",
                                      "12\n\n", "x\n", "12 \n", "11112222333344445\n"};
    struct world w;
    struct td_err err;
    uint64_t id = 3;
    open_world(&w);
    assert_int_equal(td_daemon_read_id(w.dir, "an-id", &id, &err), TD_ENOENT);
    assert_int_equal(td_daemon_write_id(w.dir, "an-id", 0xfedcba9876543210, &err), TD_OK);
    assert_int_equal(td_daemon_read_id(w.dir, "an-id", &id, &err), TD_OK);
    assert_true(id == 0xfedcba9876543210);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *path = td_asprintf("%s/an-id", w.dir);
        assert_int_equal(td_file_write(path, bad[i], strlen(bad[i]), NULL), TD_OK);
        assert_int_equal(td_daemon_read_id(w.dir, "an-id", &id, &err), TD_ECORRUPT);
        assert_non_null(strstr(err.msg, path));
        td_free(path);
    }
    assert_true(id == 0xfedcba9876543210);
    close_world(&w);
}

static void test_daemon_logs(void **state) {
    (void)state;
    struct td_daemon_settings s = {
        .log = {.kind = TD_DAEMON_LOG_FILE, .folder = "/a", .fsync = true, .timeout_s = 7}};
    struct td_logs logs = td_daemon_logs(&s);
    assert_int_equal(logs.kind, TD_LOGS_FILE);
    assert_string_equal(logs.folder, "/a");
    assert_true(logs.fsync && logs.timeout_ms == 7000);
    s.log.kind = TD_DAEMON_LOG_KAFKA;
    s.log.brokers = "b:1";
    logs = td_daemon_logs(&s);
    assert_int_equal(logs.kind, TD_LOGS_KAFKA);
    assert_string_equal(logs.brokers, "b:1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemon_pages), cmocka_unit_test(test_daemon_no_pages),
        cmocka_unit_test(test_daemon_stop),  cmocka_unit_test(test_daemon_run_directory),
        cmocka_unit_test(test_daemon_ids),   cmocka_unit_test(test_daemon_logs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
