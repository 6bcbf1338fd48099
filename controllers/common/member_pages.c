// A controller's status pages: /livez /readyz /metrics /status /api/v1/status.
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/member_int.h"
#include "lib/base/mem.h"
#include "lib/io/prometheus.h"
#include "lib/spec/build_id.h"

static const char *const states[] = {"no job", "loading", "waiting for its log", "running",
                                     "stopping"};

static void waits(const struct td_member *m, char *text, size_t size, int64_t *since_ms) {
    text[0] = 0;
    *since_ms = td_loop_now_ms(m->loop);
    if (m->trouble) {
        snprintf(text, size, "%s", m->trouble);
    } else if (m->shell) {
        m->role->waits(m->shell, text, size, since_ms);
    }
}

static bool connected(const struct td_member *m) {
    for (size_t i = 0; i < (size_t)m->settings->coordinators.count; i++) {
        if (td_link_client_state(m->link, i).connected) {
            return true;
        }
    }
    return false;
}

static void on_livez(void *user, const struct td_http_request *request,
                     struct td_http_response *response) {
    (void)user;
    (void)request;
    td_buf_puts(&response->body, "ok\n");
}

static void on_readyz(void *user, const struct td_http_request *request,
                      struct td_http_response *response) {
    const struct td_member *m = user;
    (void)request;
    bool link = connected(m);
    response->status = link && !m->trouble ? 200 : 503;
    td_buf_printf(&response->body, "[%c] a coordinator answers\n[%c] no trouble%s%s\n",
                  link ? '+' : '-', m->trouble ? '-' : '+', m->trouble ? ": " : "",
                  m->trouble ? m->trouble : "");
}

static void on_metrics(void *user, const struct td_http_request *request,
                       struct td_http_response *response) {
    const struct td_member *m = user;
    struct td_buf *out = &response->body;
    (void)request;
    response->content_type = TD_PROMETHEUS_CONTENT_TYPE;
    struct td_prometheus_label kind = {
        "kind", m->role->kind == TANDEM__SYNC__MEMBER_KIND__TRAIN ? "train" : "rollout"};
    td_prometheus_family(out, "tandem_member_job", TD_PROMETHEUS_GAUGE,
                         "Number of the job that this controller serves; 0: none.");
    td_prometheus_sample(out, "tandem_member_job", &kind, 1, (double)m->service.job);
    td_prometheus_family(out, "tandem_member_running", TD_PROMETHEUS_GAUGE,
                         "Whether the job's workers are in service.");
    td_prometheus_sample(out, "tandem_member_running", &kind, 1, m->state == TD_SERVICE_RUNNING);
    td_prometheus_family(out, "tandem_leader_term", TD_PROMETHEUS_GAUGE,
                         "Highest term of a leader that gave orders.");
    td_prometheus_sample(out, "tandem_leader_term", NULL, 0, (double)m->term);
    td_prometheus_process(out, td_version(), td_build_id());
}

static void put_workers(const struct td_member *m, struct td_buf *out) {
    Tandem__Sync__WorkerState workers[TD_POOL_WORKERS_MAX];
    size_t n = td_member_workers(m, workers);
    td_buf_puts(out, "<h2>workers</h2><table><tr><th>rank<th>pid<th>state<th>doing<th>for, s");
    for (size_t i = 0; i < n; i++) {
        td_buf_printf(out, "<tr><td>%zu<td>%u<td>%s<td>", i, workers[i].pid, workers[i].state);
        td_http_escape(out, workers[i].doing);
        td_buf_printf(out, "<td>%.1f", (double)workers[i].for_ms / 1000);
    }
    td_buf_puts(out, "</table>");
}

static json_t *workers_json(const struct td_member *m) {
    Tandem__Sync__WorkerState workers[TD_POOL_WORKERS_MAX];
    size_t n = td_member_workers(m, workers);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_pack("{s:I,s:s,s:s%,s:I}", "pid",
                                              (json_int_t)workers[i].pid, "state", workers[i].state,
                                              "doing", workers[i].doing, strlen(workers[i].doing),
                                              "for_ms", (json_int_t)workers[i].for_ms));
    }
    return list;
}

static void on_status(void *user, const struct td_http_request *request,
                      struct td_http_response *response) {
    const struct td_member *m = user;
    struct td_buf *out = &response->body;
    char text[400];
    int64_t since, now = td_loop_now_ms(m->loop);
    (void)request;
    waits(m, text, sizeof text, &since);
    response->content_type = "text/html; charset=utf-8";
    td_buf_printf(out,
                  "<!doctype html><title>%s</title><meta http-equiv=refresh content=2>"
                  "<h1>%s %016" PRIx64 "</h1><p>job %" PRIu64 ", %s; %d workers</p><p>waits for: ",
                  m->role->program, m->role->program, m->id, m->service.job, states[m->state],
                  (int)m->settings->workers);
    td_http_escape(out, text);
    td_buf_printf(out, " (%.1f s)</p>", (double)(now - since) / 1000);
    put_workers(m, out);
    td_buf_puts(out, "<h2>coordinators</h2><ul>");
    for (size_t i = 0; i < (size_t)m->settings->coordinators.count; i++) {
        struct td_link_client_state s = td_link_client_state(m->link, i);
        td_buf_puts(out, "<li>");
        td_http_escape(out, s.address);
        td_buf_puts(out, s.connected ? " answers" : " does not answer: ");
        td_http_escape(out, s.connected ? "" : s.error);
    }
    td_buf_puts(out, "</ul>\n");
}

static void on_api(void *user, const struct td_http_request *request,
                   struct td_http_response *response) {
    const struct td_member *m = user;
    char text[400], id[20];
    int64_t since, now = td_loop_now_ms(m->loop);
    (void)request;
    waits(m, text, sizeof text, &since);
    snprintf(id, sizeof id, "%016" PRIx64, m->id);
    json_t *root = json_pack(
        "{s:s,s:s,s:I,s:s,s:s,s:I,s:I,s:o}", "member", id, "program", m->role->program, "job",
        (json_int_t)m->service.job, "state", states[m->state], "waits_for", text, "waits_since_ms",
        (json_int_t)(now - since), "term", (json_int_t)m->term, "workers", workers_json(m));
    char *line = json_dumps(root, JSON_COMPACT);
    response->content_type = "application/json";
    td_buf_printf(&response->body, "%s\n", line ? line : "{}");
    td_free(line); // jansson allocates by malloc, as td_free releases
    json_decref(root);
}

void td_member_pages(struct td_member *m) {
    td_http_route(m->http, "/livez", on_livez, m);
    td_http_route(m->http, "/readyz", on_readyz, m);
    td_http_route(m->http, "/metrics", on_metrics, m);
    td_http_route(m->http, "/status", on_status, m);
    td_http_route(m->http, "/api/v1/status", on_api, m);
}
