// A read-only HTTP server for status: GET and HEAD only, capped (connections, request bytes, time
// per request), over libevent. Loop thread. Handlers answer at once, from memory.
#ifndef TD_IO_HTTP_H
#define TD_IO_HTTP_H

#include "lib/base/buf.h"
#include "lib/io/loop.h"

struct td_http;

enum { TD_HTTP_CONNECTIONS_MAX = 64, TD_HTTP_REQUEST_BYTES_MAX = 8192, TD_HTTP_TIMEOUT_S = 10 };

struct td_http_request {
    const char *path;  // decoded, "/api/v1/jobs/3"; borrowed
    const char *query; // behind ?, not decoded; "": none
};
struct td_http_response {
    int status;               // 200 unless set
    const char *content_type; // "text/plain; charset=utf-8" unless set
    struct td_buf body;       // released by the server
};
typedef void td_http_fn(void *user, const struct td_http_request *request,
                        struct td_http_response *response);

// address "127.0.0.1:8080", "[::1]:0"; *port: the one taken (may be NULL). TD_ECONFLICT: in use.
enum td_rc td_http_new(struct td_loop *loop, const char *address, struct td_http **out, int *port,
                       struct td_err *err) TD_MUST_CHECK;
void td_http_free(struct td_http *http); // accepts NULL; closes connections
// path ends with '/': everything below it, else exactly it. The longest match answers; none: 404.
// Borrowed for the server's life.
void td_http_route(struct td_http *http, const char *path, td_http_fn *fn, void *user);
// HTML-escapes text into out.
void td_http_escape(struct td_buf *out, const char *text);

#endif
