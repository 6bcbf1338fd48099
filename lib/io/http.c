// The status server: see http.h. evhttp parses and writes; what it has no limit for is added here:
// how many connections there are, and how long each may last, however it spends its time. One
// request per connection.
#include "lib/io/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/http_int.h"
#include "lib/io/loop_int.h"

enum {
    BACKLOG = 64,
    SWEEP_MS = 100,
    INPUT_MAX = 4 * TD_HTTP_REQUEST_BYTES_MAX, // read ahead of evhttp
};

struct route {
    char *path;
    td_http_fn *fn;
    void *user;
};

// A connection is evhttp's, which does not tell when it ends. We hold a reference on its
// bufferevent: memory and descriptor stay, and evhttp's end of it shows by the callbacks being
// gone.
struct connection {
    struct bufferevent *stream;
    int64_t deadline_ms;
};

struct td_http {
    struct td_loop *loop;
    struct evhttp *evhttp;
    struct evconnlistener *listener; // owned by evhttp
    struct td_timer *sweep;
    struct route *routes;
    size_t route_count, route_cap;
    struct connection connections[TD_HTTP_CONNECTIONS_MAX];
    size_t count;
    int64_t timeout_ms;
    bool paused; // the listener
};

// ---- connections

static bool ended(const struct connection *connection) {
    bufferevent_event_cb on_event = NULL;
    bufferevent_getcb(connection->stream, NULL, NULL, &on_event, NULL);
    return !on_event;
}

// Forgets connections that ended; cuts those that took too long: evhttp sees the end of file.
static void sweep(void *user) {
    struct td_http *http = user;
    int64_t now = td_loop_now_ms(http->loop);
    for (size_t i = http->count; i-- > 0;) {
        struct connection *connection = &http->connections[i];
        if (ended(connection)) {
            bufferevent_decref(connection->stream);
            *connection = http->connections[--http->count];
        } else if (now >= connection->deadline_ms) {
            shutdown(bufferevent_getfd(connection->stream), SHUT_RDWR);
        }
    }
    if (http->paused && http->count < TD_HTTP_CONNECTIONS_MAX) {
        http->paused = false;
        evconnlistener_enable(http->listener);
    }
    if (http->count > 0) {
        td_timer_start(http->sweep, SWEEP_MS);
    }
}

// Those who come now wait in the kernel's queue.
static void pause_listener(struct td_http *http) {
    http->paused = true;
    evconnlistener_disable(http->listener);
    td_timer_start(http->sweep, SWEEP_MS);
}

static struct bufferevent *on_connection(struct event_base *base, void *user) {
    struct td_http *http = user;
    td_assert_op(http->count, <, TD_HTTP_CONNECTIONS_MAX);
    struct bufferevent *stream = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    td_assert(stream);
    bufferevent_setwatermark(stream, EV_READ, 0, INPUT_MAX);
    bufferevent_incref(stream);
    http->connections[http->count++] =
        (struct connection){stream, td_loop_now_ms(http->loop) + http->timeout_ms};
    if (http->count == TD_HTTP_CONNECTIONS_MAX) {
        pause_listener(http);
    } else if (http->count == 1) {
        td_timer_start(http->sweep, SWEEP_MS);
    }
    return stream;
}

// No descriptors left, as a rule: without a pause the listener would spin.
static void on_accept_error(struct evconnlistener *listener, void *user) {
    (void)listener;
    pause_listener(user);
}

// ---- requests

static const struct route *find_route(const struct td_http *http, const char *path) {
    const struct route *best = NULL;
    size_t best_len = 0;
    for (size_t i = 0; i < http->route_count; i++) {
        const struct route *route = &http->routes[i];
        size_t n = strlen(route->path);
        bool matches = route->path[n - 1] == '/' ? strncmp(path, route->path, n) == 0
                                                 : strcmp(path, route->path) == 0;
        if (matches && n > best_len) {
            best = route;
            best_len = n;
        }
    }
    return best;
}

static void answer(struct evhttp_request *request, const struct td_http_response *response) {
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    char length[24];
    snprintf(length, sizeof length, "%zu", response->body.len);
    evhttp_add_header(headers, "Content-Type", response->content_type);
    evhttp_add_header(headers, "Content-Length", length);
    evhttp_add_header(headers, "X-Content-Type-Options", "nosniff");
    evhttp_add_header(headers, "Cache-Control", "no-store");
    evhttp_add_header(headers, "Connection", "close");
    struct evbuffer *body = evbuffer_new();
    td_assert(body);
    if (evhttp_request_get_command(request) != EVHTTP_REQ_HEAD) {
        evbuffer_add(body, response->body.data, response->body.len);
    }
    evhttp_send_reply(request, response->status, NULL, body);
    evbuffer_free(body);
}

// The decoded path, or NULL. A zero byte would hide what follows it.
static char *decode_path(const struct evhttp_request *request) {
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    size_t n = 0;
    char *decoded = path && *path == '/' ? evhttp_uridecode(path, 0, &n) : NULL;
    char *own = decoded && strlen(decoded) == n ? td_strndup(decoded, n) : NULL;
    td_free(decoded);
    return own;
}

static void on_request(struct evhttp_request *request, void *user) {
    struct td_http *http = user;
    struct td_http_response response = {200, "text/plain; charset=utf-8", {0}};
    enum evhttp_cmd_type command = evhttp_request_get_command(request);
    char *path = NULL;
    if (command != EVHTTP_REQ_GET && command != EVHTTP_REQ_HEAD) {
        response.status = 405;
        td_buf_puts(&response.body, "only GET and HEAD are answered here\n");
        evhttp_add_header(evhttp_request_get_output_headers(request), "Allow", "GET, HEAD");
    } else if (!(path = decode_path(request))) {
        response.status = 400;
        td_buf_puts(&response.body, "not a path\n");
    } else {
        const struct route *route = find_route(http, path);
        const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
        if (route) {
            route->fn(route->user, &(struct td_http_request){path, query ? query : ""}, &response);
        } else {
            response.status = 404;
            td_buf_puts(&response.body, "nothing here\n");
        }
    }
    answer(request, &response);
    td_buf_fini(&response.body);
    td_free(path);
}

// ---- the server

static enum td_rc listen_at(const struct addrinfo *ai, const char *address, int *out,
                            struct td_err *err) {
    int on = 1;
    int fd = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, ai->ai_protocol);
    if (fd < 0) {
        return td_fail_errno(err, errno, "http %s: socket", address);
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, ai->ai_addr, ai->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        *out = fd;
        return TD_OK;
    }
    int errnum = errno;
    close(fd);
    if (errnum == EADDRINUSE) {
        return td_fail(err, TD_ECONFLICT,
                       "http %s: the address is in use; set another one, or port 0 for any",
                       address);
    }
    return td_fail_errno(err, errnum, "http %s", address);
}

static enum td_rc open_socket(const char *text, int *fd, struct td_err *err) {
    struct td_address address;
    if (td_address_parse(text, &address, err) != TD_OK) {
        return td_err_in(err, "http");
    }
    char port[8];
    snprintf(port, sizeof port, "%d", address.port);
    struct addrinfo *list = NULL,
                    hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    int failed = getaddrinfo(address.host, port, &hints, &list);
    if (failed) {
        return td_fail(err, TD_EINVAL, "http %s: %s", text, gai_strerror(failed));
    }
    enum td_rc rc = listen_at(list, text, fd, err);
    freeaddrinfo(list);
    return rc;
}

static int port_of(int fd) {
    struct sockaddr_storage own = {0};
    socklen_t n = sizeof own;
    char port[8] = "0";
    if (getsockname(fd, (struct sockaddr *)&own, &n) == 0) {
        (void)getnameinfo((struct sockaddr *)&own, n, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    }
    return (int)strtol(port, NULL, 10);
}

enum td_rc td_http_new(struct td_loop *loop, const char *address, struct td_http **out, int *port,
                       struct td_err *err) {
    int fd = -1;
    enum td_rc rc = open_socket(address, &fd, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct event_base *base = td_loop_base(loop);
    struct td_http *http = td_alloc(sizeof *http);
    http->loop = loop;
    http->sweep = td_timer_new(loop, sweep, http);
    http->timeout_ms = TD_HTTP_TIMEOUT_S * 1000;
    http->evhttp = evhttp_new(base);
    http->listener =
        evconnlistener_new(base, NULL, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    td_assert(http->evhttp && http->listener);
    evhttp_set_allowed_methods(http->evhttp, UINT16_MAX); // so that we answer, with Allow
    evhttp_set_max_headers_size(http->evhttp, TD_HTTP_REQUEST_BYTES_MAX);
    evhttp_set_max_body_size(http->evhttp, TD_HTTP_REQUEST_BYTES_MAX);
    evhttp_set_timeout(http->evhttp, TD_HTTP_TIMEOUT_S);
    evhttp_set_bevcb(http->evhttp, on_connection, http);
    evhttp_set_gencb(http->evhttp, on_request, http);
    struct evhttp_bound_socket *bound = evhttp_bind_listener(http->evhttp, http->listener);
    td_assert(bound);
    evconnlistener_set_error_cb(http->listener, on_accept_error);
    if (port) {
        *port = port_of(fd);
    }
    *out = http;
    return TD_OK;
}

void td_http_set_timeout(struct td_http *http, int64_t timeout_ms) {
    http->timeout_ms = timeout_ms;
}

void td_http_free(struct td_http *http) {
    if (!http) {
        return;
    }
    td_loop_assert(http->loop);
    evhttp_free(http->evhttp);
    for (size_t i = 0; i < http->count; i++) {
        bufferevent_decref(http->connections[i].stream);
    }
    for (size_t i = 0; i < http->route_count; i++) {
        td_free(http->routes[i].path);
    }
    td_timer_close(http->sweep);
    td_free(http->routes);
    td_free(http);
}

void td_http_route(struct td_http *http, const char *path, td_http_fn *fn, void *user) {
    td_assert(*path == '/');
    TD_GROW(http->routes, http->route_cap, http->route_count + 1);
    http->routes[http->route_count++] = (struct route){td_strdup(path), fn, user};
}

void td_http_escape(struct td_buf *out, const char *text) {
    static const char special[] = "&<>\"'";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (;;) {
        size_t n = strcspn(text, special);
        td_buf_put(out, text, n);
        if (!text[n]) {
            return;
        }
        td_buf_puts(out, entities[strchr(special, text[n]) - special]);
        text += n + 1;
    }
}
