// Status pages: see daemon.h.
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/daemon/daemon.h"
#include "lib/io/prometheus.h"
#include "lib/spec/build_id.h"

#define API "/api/v1/"

static void on_livez(void *user, const struct td_http_request *request,
                     struct td_http_response *response) {
    (void)user;
    (void)request;
    td_buf_puts(&response->body, "ok\n");
}

static void on_readyz(void *user, const struct td_http_request *request,
                      struct td_http_response *response) {
    const struct td_daemon *d = user;
    (void)request;
    response->status = d->pages->ready(d->user, &response->body) ? 200 : 503;
}

static void on_metrics(void *user, const struct td_http_request *request,
                       struct td_http_response *response) {
    const struct td_daemon *d = user;
    (void)request;
    response->content_type = TD_PROMETHEUS_CONTENT_TYPE;
    d->pages->metrics(d->user, &response->body);
    td_prometheus_process(&response->body, td_version(), td_build_id());
}

static void on_status(void *user, const struct td_http_request *request,
                      struct td_http_response *response) {
    const struct td_daemon *d = user;
    (void)request;
    response->content_type = "text/html; charset=utf-8";
    td_buf_printf(&response->body,
                  "<!doctype html><title>%s</title><meta http-equiv=refresh content=2>", d->title);
    d->pages->status(d->user, &response->body);
    td_buf_puts(&response->body, "\n");
}

static void not_found(const struct td_daemon *d, struct td_http_response *response) {
    response->status = 404;
    td_buf_printf(&response->body,
                  "nothing here; there are /livez /readyz /metrics /status and, below " API
                  ", %s\n",
                  d->pages->paths);
}

static void on_other(void *user, const struct td_http_request *request,
                     struct td_http_response *response) {
    if (strcmp(request->path, "/") == 0) {
        on_status(user, request, response);
    } else {
        not_found(user, response);
    }
}

static void on_api(void *user, const struct td_http_request *request,
                   struct td_http_response *response) {
    const struct td_daemon *d = user;
    json_t *root = d->pages->json(d->user, request->path + strlen(API));
    if (!root) {
        not_found(d, response);
        return;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    response->content_type = "application/json";
    td_buf_printf(&response->body, "%s\n", text ? text : "null");
    td_free(text); // jansson allocates by malloc, as td_free releases
    json_decref(root);
}

enum td_rc td_daemon_serve(struct td_daemon *d, const char *title,
                           const struct td_daemon_pages *pages, struct td_err *err) {
    const char *at = d->settings->http;
    int port = 0;
    enum td_rc rc = at ? td_http_new(d->loop, at, &d->http, &port, err) : TD_OK;
    if (rc != TD_OK || !at) {
        return rc;
    }
    d->title = title;
    d->pages = pages;
    snprintf(d->http_address, sizeof d->http_address, "%.*s:%d", (int)(strrchr(at, ':') - at), at,
             port);
    td_http_route(d->http, "/livez", on_livez, d);
    td_http_route(d->http, "/readyz", on_readyz, d);
    td_http_route(d->http, "/metrics", on_metrics, d);
    td_http_route(d->http, "/status", on_status, d);
    td_http_route(d->http, API, on_api, d);
    td_http_route(d->http, "/", on_other, d);
    return TD_OK;
}

void td_daemon_unserve(struct td_daemon *d) {
    td_http_free(d->http);
    d->http = NULL;
}
