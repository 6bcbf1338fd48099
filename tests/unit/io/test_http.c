// The status server: what it answers, what it refuses, and that nobody can hold it up.
#include "lib/io/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/io/http_int.h"
#include "tests/unit/io/wait.h"

// ---- a client: sends bytes, keeps all that comes until the other side ends

struct client {
    int fd;
    struct td_watch *watch;
    struct td_buf got;
    int *ended;
    bool over;
};

static void on_bytes(void *user, int fd, unsigned events) {
    struct client *c = user;
    (void)events;
    ssize_t n = read(fd, td_buf_room(&c->got, 65536), 65536);
    if (n > 0) {
        c->got.len += (size_t)n;
        return;
    }
    (void)td_buf_room(&c->got, 0);
    td_watch_close(c->watch);
    c->watch = NULL;
    close(fd);
    c->over = true;
    (*c->ended)++;
}

static void client_open(struct client *c, struct td_loop *loop, int port, int *ended) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *c = (struct client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .ended = ended};
    assert_true(c->fd >= 0);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(td_watch_fd(loop, c->fd, TD_LOOP_READ, on_bytes, c, &c->watch), TD_OK);
}

static void client_send(struct client *c, const void *bytes, size_t n) {
    assert_int_equal(send(c->fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

static void client_fini(struct client *c) {
    if (!c->over) {
        td_watch_close(c->watch);
        close(c->fd);
    }
    td_buf_fini(&c->got);
}

struct world {
    struct td_loop *loop;
    struct td_http *http;
    int port, ended, calls;
    struct td_buf said; // path?query of each call
};

static void on_page(void *user, const struct td_http_request *request,
                    struct td_http_response *response) {
    struct world *w = user;
    w->calls++;
    td_buf_printf(&w->said, "page %s?%s;", request->path, request->query);
    response->content_type = "text/html; charset=utf-8";
    td_buf_puts(&response->body, "<p>hello</p>");
}

static void on_jobs(void *user, const struct td_http_request *request,
                    struct td_http_response *response) {
    struct world *w = user;
    td_buf_printf(&w->said, "jobs %s?%s;", request->path, request->query);
    response->status = 503;
    td_buf_puts(&response->body, "not yet");
}

static void on_large(void *user, const struct td_http_request *request,
                     struct td_http_response *response) {
    (void)user, (void)request;
    for (int i = 0; i < 1 << 20; i++) {
        td_buf_puts(&response->body, "0123456789abcdef");
    }
}

static void world_open(struct world *w) {
    *w = (struct world){.loop = new_loop()};
    assert_int_equal(td_http_new(w->loop, "127.0.0.1:0", &w->http, &w->port, NULL), TD_OK);
    assert_true(w->port > 0);
    td_http_route(w->http, "/api/v1/jobs", on_page, w);
    td_http_route(w->http, "/api/", on_page, w);
    td_http_route(w->http, "/api/v1/", on_jobs, w);
    td_http_route(w->http, "/", on_page, w);
    td_http_route(w->http, "/large", on_large, w);
}

static void world_close(struct world *w) {
    td_http_free(w->http);
    td_loop_free(w->loop);
    td_buf_fini(&w->said);
}

// One request, the whole answer.
static void ask(struct world *w, const void *bytes, size_t n, struct td_buf *out) {
    struct client c;
    client_open(&c, w->loop, w->port, &w->ended);
    client_send(&c, bytes, n);
    wait_until(w->loop, &w->ended, w->ended + 1);
    *out = c.got;
    c.got = (struct td_buf){0};
    client_fini(&c);
}

static const char *body_of(const struct td_buf *answer) {
    const char *at = strstr(td_buf_str(answer), "\r\n\r\n");
    assert_non_null(at);
    return at + 4;
}

static void assert_has(const struct td_buf *answer, const char *text) {
    if (!strstr(td_buf_str(answer), text)) {
        fail_msg("\"%s\" is not in: %s", text, td_buf_str(answer));
    }
}

static void assert_status(const char *request, const struct td_buf *answer, int status) {
    const char *text = td_buf_str(answer);
    if (strncmp(text, "HTTP/1.", 7) != 0 || strtol(text + 9, NULL, 10) != status) {
        fail_msg("expected %d for \"%.200s\", got: %.200s", status, request, text);
    }
}

static void test_http_answers(void **state) {
    static const struct {
        const char *request;
        int status;
        const char *said, *body;
    } rows[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200, "page /?;", "<p>hello</p>"},
        {"GET / HTTP/1.0\r\n\r\n", 200, "page /?;", "<p>hello</p>"},
        {"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", 200, "page /?;", ""},
        {"GET /anything HTTP/1.1\r\nHost: x\r\n\r\n", 200, "page /anything?;", "<p>hello</p>"},
        {"GET /api/v1/jobs?a=%20b HTTP/1.1\r\nHost: x\r\n\r\n", 200, "page /api/v1/jobs?a=%20b;",
         "<p>hello</p>"},
        {"GET /api/v1/jobs/3 HTTP/1.1\r\nHost: x\r\n\r\n", 503, "jobs /api/v1/jobs/3?;", "not yet"},
        {"GET /api/v1 HTTP/1.1\r\nHost: x\r\n\r\n", 200, "page /api/v1?;", "<p>hello</p>"},
        {"GET /a%2Fb%20c?q#f HTTP/1.1\r\nHost: x\r\n\r\n", 200, "page /a/b c?q;", "<p>hello</p>"},
        {"GET http://localhost:1/abs HTTP/1.1\r\nHost: x\r\n\r\n", 200, "page /abs?;",
         "<p>hello</p>"},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 200, "page /?;", NULL},
    };
    (void)state;
    struct world w;
    world_open(&w);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf got;
        td_buf_clear(&w.said);
        ask(&w, rows[i].request, strlen(rows[i].request), &got);
        assert_status(rows[i].request, &got, rows[i].status);
        assert_string_equal(td_buf_str(&w.said), rows[i].said);
        assert_has(&got, "\r\nX-Content-Type-Options: nosniff\r\n");
        assert_has(&got, "\r\nCache-Control: no-store\r\n");
        assert_has(&got, rows[i].status == 200 ? "\r\nContent-Type: text/html; charset=utf-8\r\n"
                                               : "\r\nContent-Type: text/plain; charset=utf-8\r\n");
        assert_has(&got, rows[i].status == 200 ? "\r\nContent-Length: 12\r\n"
                                               : "\r\nContent-Length: 7\r\n");
        if (rows[i].body) {
            assert_string_equal(body_of(&got), rows[i].body);
        }
        td_buf_fini(&got);
    }
    world_close(&w);
}

static void test_http_refuses(void **state) {
    static const struct {
        const char *request;
        size_t n; // 0: up to the zero byte
        int status;
    } rows[] = {
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi", 0, 405},
        {"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 0, 405},
        {"DELETE /api/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n", 0, 405},
        {"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n", 0, 405},
        {"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", 0, 405},
        {"CONNECT h:1 HTTP/1.1\r\nHost: x\r\n\r\n", 0, 405},
        {"PATCH / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 0, 405},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n", 0, 413},
        {"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 0, 405},
        {"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n", 0, 400},
        {"GET //livez HTTP/1.1\r\nHost: x\r\n\r\n", 0, 400}, // that is a host
        {"GET relative HTTP/1.1\r\nHost: x\r\n\r\n", 0, 400},
        {"GET\r\n\r\n", 0, 400},
        {"garbage\r\n\r\n", 0, 400},
        {"GET / HTTX/9\r\n\r\n", 0, 400},
        {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 0, 400},
        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15, 400}, // TLS
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, 0},                        // gRPC: any refusal
    };
    (void)state;
    struct world w;
    world_open(&w);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf got;
        ask(&w, rows[i].request, rows[i].n ? rows[i].n : strlen(rows[i].request), &got);
        if (rows[i].status) {
            assert_status(rows[i].request, &got, rows[i].status);
        }
        if (rows[i].status == 405) {
            assert_has(&got, "\r\nAllow: GET, HEAD\r\n");
        }
        td_buf_fini(&got);
    }
    assert_int_equal(w.calls, 0);
    world_close(&w);
}

static void test_http_unknown_path_is_404(void **state) {
    (void)state;
    struct world w = {.loop = new_loop()};
    struct td_buf got;
    assert_int_equal(td_http_new(w.loop, "127.0.0.1:0", &w.http, &w.port, NULL), TD_OK);
    td_http_route(w.http, "/livez", on_page, &w);
    static const char *const paths[] = {"/", "/livez/", "/live", "/livezz"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char *request = td_asprintf("GET %s HTTP/1.1\r\nHost: x\r\n\r\n", paths[i]);
        ask(&w, request, strlen(request), &got);
        assert_status(request, &got, 404);
        assert_has(&got, "\r\nX-Content-Type-Options: nosniff\r\n");
        td_buf_fini(&got);
        td_free(request);
    }
    assert_int_equal(w.calls, 0);
    world_close(&w);
}

static void test_http_caps_headers(void **state) {
    (void)state;
    struct world w;
    struct td_buf request = {0}, got;
    world_open(&w);
    td_buf_puts(&request, "GET / HTTP/1.1\r\n");
    while (request.len < 2 * TD_HTTP_REQUEST_BYTES_MAX) {
        td_buf_puts(&request, "X-Filler: 0123456789012345678901234567890123456789\r\n");
    }
    td_buf_puts(&request, "\r\n");
    ask(&w, request.data, request.len, &got);
    assert_int_not_equal(strncmp(td_buf_str(&got), "HTTP/1.1 2", 10), 0);
    td_buf_fini(&got);
    td_buf_clear(&request);
    td_buf_puts(&request, "GET /");
    while (request.len < 2 * TD_HTTP_REQUEST_BYTES_MAX) {
        td_buf_puts(&request, "long");
    }
    ask(&w, request.data, request.len, &got); // no end of line ever comes
    assert_int_not_equal(strncmp(td_buf_str(&got), "HTTP/1.1 2", 10), 0);
    assert_int_equal(w.calls, 0);
    td_buf_fini(&got);
    td_buf_fini(&request);
    world_close(&w);
}

struct dripper {
    struct client *client;
    struct td_timer *timer;
    int drops;
};

static void drip(void *user) {
    struct dripper *d = user;
    if (!d->client->over) {
        (void)!send(d->client->fd, "x", 1, MSG_NOSIGNAL);
        d->drops++;
        td_timer_start(d->timer, 20);
    }
}

// Silent ones and those that send a byte now and then are cut off; others are served meanwhile.
static void test_http_cuts_the_slow(void **state) {
    (void)state;
    struct world w;
    struct client silent, slow;
    struct td_buf got;
    int cut = 0;
    world_open(&w);
    td_http_set_timeout(w.http, 300);
    client_open(&silent, w.loop, w.port, &cut);
    client_open(&slow, w.loop, w.port, &cut);
    struct dripper d = {&slow, td_timer_new(w.loop, drip, &d), 0};
    td_timer_start(d.timer, 0);
    ask(&w, "GET / HTTP/1.1\r\n\r\n", 18, &got);
    assert_status("GET /", &got, 200);
    wait_until(w.loop, &cut, 2);
    assert_true(d.drops >= 2);
    assert_int_equal(silent.got.len, 0);
    td_timer_close(d.timer);
    td_buf_fini(&got);
    client_fini(&silent);
    client_fini(&slow);
    world_close(&w);
}

// Those beyond the limit wait until one of the others goes.
static void test_http_caps_connections(void **state) {
    (void)state;
    struct world w;
    struct client idle[TD_HTTP_CONNECTIONS_MAX], next;
    struct td_buf got;
    int cut = 0;
    world_open(&w);
    for (int i = 0; i < TD_HTTP_CONNECTIONS_MAX; i++) {
        client_open(&idle[i], w.loop, w.port, &cut);
    }
    client_open(&next, w.loop, w.port, &w.ended);
    client_send(&next, "GET / HTTP/1.1\r\n\r\n", 18);
    run_for(w.loop, 250);
    assert_int_equal(w.calls, 0);
    assert_int_equal(cut, 0);
    client_fini(&idle[7]); // goes
    wait_until(w.loop, &w.ended, 1);
    assert_status("GET /", &next.got, 200);
    for (int i = 0; i < TD_HTTP_CONNECTIONS_MAX; i++) {
        if (i != 7) {
            client_fini(&idle[i]);
        }
    }
    client_fini(&next);
    ask(&w, "GET / HTTP/1.1\r\n\r\n", 18, &got);
    assert_status("GET /", &got, 200);
    td_buf_fini(&got);
    world_close(&w);
}

static void test_http_sends_large_answers(void **state) {
    (void)state;
    struct world w;
    struct td_buf got;
    world_open(&w);
    ask(&w, "GET /large HTTP/1.1\r\n\r\n", 23, &got);
    assert_status("GET /large", &got, 200);
    assert_int_equal(strlen(body_of(&got)), 16 << 20);
    td_buf_fini(&got);
    world_close(&w);
}

static void test_http_free_with_requests_under_way(void **state) {
    (void)state;
    struct world w;
    struct client half, large;
    int cut = 0;
    world_open(&w);
    client_open(&half, w.loop, w.port, &cut);
    client_send(&half, "GET / HT", 8);
    client_open(&large, w.loop, w.port, &cut);
    client_send(&large, "GET /large HTTP/1.1\r\n\r\n", 23);
    td_watch_set(large.watch, 0); // does not read
    run_for(w.loop, 50);
    td_http_free(w.http);
    w.http = NULL;
    td_watch_set(large.watch, TD_LOOP_READ);
    wait_until(w.loop, &cut, 2);
    client_fini(&half);
    client_fini(&large);
    world_close(&w);
}

static void test_http_addresses(void **state) {
    (void)state;
    struct world w;
    struct td_http *http = NULL;
    struct td_err err = {0};
    world_open(&w);
    char *taken = td_asprintf("127.0.0.1:%d", w.port);
    assert_int_equal(td_http_new(w.loop, taken, &http, NULL, &err), TD_ECONFLICT);
    assert_non_null(strstr(err.msg, "is in use; set another one"));
    assert_non_null(strstr(err.msg, taken));
    td_free(taken);
    static const char *const bad[] = {"nonsense", "host.invalid:1", "127.0.0.1:99999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(td_http_new(w.loop, bad[i], &http, NULL, &err), TD_EINVAL);
        assert_non_null(strstr(err.msg, bad[i]));
    }
    assert_null(http);
    if (td_http_new(w.loop, "[::1]:0", &http, NULL, NULL) == TD_OK) { // where there is IPv6
        td_http_free(http);
    }
    td_http_free(NULL);
    world_close(&w);
}

// Pieces of requests in any order: nothing may break, and others are served as before.
static void test_http_survives_random_requests(void **state) {
    static const char *const pieces[] = {
        "GET ",
        "HEAD ",
        "POST ",
        "/",
        "/a?b",
        "%00",
        "%zz",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        ":",
        "Host: x\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding: chunked\r\n",
        "5\r\nabcde\r\n0\r\n\r\n",
        "Expect: 100-continue\r\n",
        "Connection: keep-alive\r\n",
        "Connection: upgrade\r\n",
        "\xff\xfe",
        "//",
        "http:"
        "//[::1",
        "*",
    };
    (void)state;
    struct td_rng rng = {(uint64_t)td_clock_ns()};
    print_message("seed %llu\n", (unsigned long long)rng.state);
    struct world w;
    struct td_buf got;
    int ended = 0;
    world_open(&w);
    for (int i = 1; i <= 300; i++) {
        struct client c;
        client_open(&c, w.loop, w.port, &ended);
        if (td_rng_below(&rng, 2)) {
            client_send(&c, "GET / HTTP/1.1\r\n", 16);
        }
        for (uint32_t left = td_rng_below(&rng, 12); left > 0; left--) {
            const char *piece = pieces[td_rng_below(&rng, sizeof pieces / sizeof *pieces)];
            (void)!send(c.fd, piece, strlen(piece), MSG_NOSIGNAL); // it may have been cut off
        }
        shutdown(c.fd, SHUT_WR);
        wait_until(w.loop, &ended, i);
        client_fini(&c);
    }
    ask(&w, "GET / HTTP/1.1\r\n\r\n", 18, &got);
    assert_status("GET /", &got, 200);
    td_buf_fini(&got);
    world_close(&w);
}

static void test_http_escape(void **state) {
    (void)state;
    struct td_buf out = {0};
    td_http_escape(&out, "");
    assert_int_equal(out.len, 0);
    td_http_escape(&out, "<script>alert(\"x\" & 'y')</script> ü");
    assert_string_equal(td_buf_str(&out), "&lt;script&gt;alert(&quot;x&quot; &amp; &#39;y&#39;)"
                                          "&lt;/script&gt; ü");
    td_buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_answers),
        cmocka_unit_test(test_http_refuses),
        cmocka_unit_test(test_http_unknown_path_is_404),
        cmocka_unit_test(test_http_caps_headers),
        cmocka_unit_test(test_http_cuts_the_slow),
        cmocka_unit_test(test_http_caps_connections),
        cmocka_unit_test(test_http_sends_large_answers),
        cmocka_unit_test(test_http_free_with_requests_under_way),
        cmocka_unit_test(test_http_addresses),
        cmocka_unit_test(test_http_survives_random_requests),
        cmocka_unit_test(test_http_escape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
