// What users are told, as JSON: for the pages and for the store.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/daemon/daemon_int.h"

static const char *const states[] = {"?", "queued", "running", "succeeded", "failed", "cancelled"};

const char *td_coordinator_state_name(Tandem__V1__JobState state) {
    return (size_t)state < sizeof states / sizeof *states ? states[state] : "?";
}

json_t *td_coordinator_hex(uint64_t digest) {
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    return json_string(text);
}

json_t *td_coordinator_job_json(const Tandem__V1__Job *j) {
    return json_pack("{s:I,s:s%,s:s,s:s,s:I,s:I,s:I,s:s,s:s,s:I,s:o,s:o,s:s}", "id",
                     (json_int_t)j->id, "request_id", j->request_id, strlen(j->request_id), "kind",
                     j->kind, "state", td_coordinator_state_name(j->state), "step",
                     (json_int_t)j->step, "total_steps", (json_int_t)j->total_steps, "lineage",
                     (json_int_t)j->lineage, "cause", j->cause, "waits_for", j->waits_for,
                     "waits_since_ms", (json_int_t)j->waits_since_ms, "weight_digest",
                     td_coordinator_hex(j->weight_digest), "state_digest",
                     td_coordinator_hex(j->state_digest), "folder", j->folder);
}

json_t *td_coordinator_member_json(const Tandem__V1__Member *m) {
    json_t *workers = json_array();
    for (size_t i = 0; i < m->n_worker_states; i++) {
        const Tandem__V1__WorkerState *w = m->worker_states[i];
        json_array_append_new(workers, json_pack("{s:I,s:s,s:s,s:I}", "pid", (json_int_t)w->pid,
                                                 "state", w->state, "doing", w->doing, "for_ms",
                                                 (json_int_t)w->for_ms));
    }
    return json_pack("{s:o,s:s,s:s,s:s,s:I,s:i,s:i,s:i,s:s,s:I,s:s,s:s,s:o}", "id",
                     td_coordinator_hex(m->id), "kind", m->kind, "host", m->host, "http", m->http,
                     "job", (json_int_t)m->job, "workers", (int)m->workers, "workers_ready",
                     (int)m->workers_ready, "units", (int)m->units, "waits_for", m->waits_for,
                     "heard_ms", (json_int_t)m->heard_ms, "build", m->build, "device", m->device,
                     "worker_states", workers);
}
