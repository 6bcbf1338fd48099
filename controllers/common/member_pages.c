// A controller's pages; under /api/v1: status.
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/member_int.h"
#include "lib/base/utf8.h"
#include "lib/io/prometheus.h"

static const char *const states[] = {"no job", "loading", "waiting for its log", "running",
                                     "stopping"};

static void waits(const struct td_member *m, char *text, size_t size, int64_t *since_ms) {
    text[0] = 0;
    *since_ms = td_loop_now_ms(m->daemon.loop);
    if (m->trouble) {
        snprintf(text, size, "%s", m->trouble);
    } else if (m->shell) {
        td_shell_waits(m->shell, text, since_ms);
    }
}

static bool connected(const struct td_member *m) {
    for (size_t i = 0; i < (size_t)m->daemon.settings->coordinators.count; i++) {
        if (td_link_client_state(m->link, i).connected) {
            return true;
        }
    }
    return false;
}

static bool ready(void *user, struct td_buf *out) {
    const struct td_member *m = user;
    bool link = connected(m);
    td_buf_printf(out, "[%c] a coordinator answers\n[%c] no trouble%s%s\n", link ? '+' : '-',
                  m->trouble ? '-' : '+', m->trouble ? ": " : "", m->trouble ? m->trouble : "");
    return link && !m->trouble;
}

static void metrics(void *user, struct td_buf *out) {
    const struct td_member *m = user;
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

// JSON is UTF-8; what workers say need not be, and was cut somewhere.
static json_t *text_json(const char *text) {
    struct td_buf whole = {0};
    td_utf8_repair(text, strlen(text), &whole);
    json_t *json = json_string(td_buf_str(&whole));
    td_buf_fini(&whole);
    return json;
}

static json_t *workers_json(const struct td_member *m) {
    Tandem__Sync__WorkerState workers[TD_POOL_WORKERS_MAX];
    size_t n = td_member_workers(m, workers);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_pack("{s:I,s:s,s:o,s:I}", "pid",
                                              (json_int_t)workers[i].pid, "state", workers[i].state,
                                              "doing", text_json(workers[i].doing), "for_ms",
                                              (json_int_t)workers[i].for_ms));
    }
    return list;
}

static void status(void *user, struct td_buf *out) {
    const struct td_member *m = user;
    char text[400];
    int64_t since, now = td_loop_now_ms(m->daemon.loop);
    waits(m, text, sizeof text, &since);
    td_buf_printf(out,
                  "<h1>%s %016" PRIx64 "</h1><p>job %" PRIu64 ", %s; %d workers</p><p>waits for: ",
                  m->role->program, m->id, m->service.job, states[m->state],
                  (int)m->daemon.settings->workers);
    td_http_escape(out, text);
    td_buf_printf(out, " (%.1f s)</p>", (double)(now - since) / 1000);
    put_workers(m, out);
    td_buf_puts(out, "<h2>coordinators</h2><ul>");
    for (size_t i = 0; i < (size_t)m->daemon.settings->coordinators.count; i++) {
        struct td_link_client_state s = td_link_client_state(m->link, i);
        td_buf_puts(out, "<li>");
        td_http_escape(out, s.address);
        td_buf_puts(out, s.connected ? " answers" : " does not answer: ");
        td_http_escape(out, s.connected ? "" : s.error);
    }
    td_buf_puts(out, "</ul>");
}

static json_t *json(void *user, const char *path) {
    const struct td_member *m = user;
    char text[400], id[20];
    int64_t since, now = td_loop_now_ms(m->daemon.loop);
    if (strcmp(path, "status") != 0) {
        return NULL;
    }
    waits(m, text, sizeof text, &since);
    snprintf(id, sizeof id, "%016" PRIx64, m->id);
    return json_pack("{s:s,s:s,s:I,s:s,s:o,s:I,s:I,s:o}", "member", id, "program", m->role->program,
                     "job", (json_int_t)m->service.job, "state", states[m->state], "waits_for",
                     text_json(text), "waits_since_ms", (json_int_t)(now - since), "term",
                     (json_int_t)m->term, "workers", workers_json(m));
}

const struct td_daemon_pages td_member_pages = {ready, metrics, status, json, "status"};
