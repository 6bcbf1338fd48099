// A seat's engine, built from Setup: backend, model, and the train or generation engine of its
// role.
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "workers/worker_int.h"

static enum td_rc build(struct td_worker *w, const Tandem__Worker__Setup *m, struct td_err *err) {
    enum td_rc rc = td_job_spec_decode(m->spec.data, m->spec.len, &w->spec, err);
    if (rc != TD_OK) {
        return td_err_in(err, "job settings");
    }
    w->model_dir = td_strdup(m->model_dir);
    rc = td_backend_cpu_new((int)m->threads, NULL, &w->backend, err);
    struct td_model_config config;
    if (rc == TD_OK) {
        rc = td_model_config_load(w->model_dir, &config, err);
    }
    if (rc == TD_OK) {
        rc = td_model_new(w->backend, &config, &w->model, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    return strcmp(m->role, "rollout") == 0 ? td_rollout_seat_new(w, m, err)
                                           : td_train_seat_new(w, m, err);
}

enum td_rc td_seat_setup(struct td_worker *w, const Tandem__Worker__Setup *m, struct td_err *err) {
    if (w->set_up) {
        return w->job == m->job && strcmp(w->role, m->role) == 0
                   ? TD_OK
                   : td_fail(err, TD_ECONFLICT, "this worker has the seat %s of job %llu", w->role,
                             (unsigned long long)w->job);
    }
    if (m->job != w->attached_job) {
        return td_fail(err, TD_ECONFLICT, "Setup for job %llu, the controller attached for %llu",
                       (unsigned long long)m->job, (unsigned long long)w->attached_job);
    }
    if (strcmp(m->role, "actor") != 0 && strcmp(m->role, "rollout") != 0) {
        return td_fail(err, TD_EUNSUPPORTED, "role \"%.40s\"; there are actor and rollout",
                       m->role);
    }
    if (m->threads < 1 || m->threads > 1024) {
        return td_fail(err, TD_EINVAL, "threads %u, from 1 to 1024", m->threads);
    }
    enum td_rc rc = build(w, m, err);
    if (rc != TD_OK) {
        td_seat_fini(w);
        return rc;
    }
    w->job = m->job;
    snprintf(w->role, sizeof w->role, "%s", m->role);
    w->set_up = true;
    return TD_OK;
}

void td_seat_fini(struct td_worker *w) {
    td_train_seat_fini(&w->train);
    if (w->model) {
        td_rollout_seat_fini(w);
    }
    td_model_free(w->model);
    td_backend_free(w->backend);
    td_job_spec_free(w->spec);
    td_free(w->model_dir);
    w->model = NULL;
    w->backend = NULL;
    w->spec = NULL;
    w->model_dir = NULL;
    w->set_up = false;
}
