// The job that a member serves: see member.h. One at a time; a change of job ends the old one
// first.
#include <inttypes.h>

#include "controllers/common/member_int.h"
#include "controllers/common/pool.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum { OPEN_RETRY_MS = 200, STRANGERS_MS = 2000 };

static void clear(struct td_member *m) {
    struct td_service *s = &m->service;
    td_job_data_free(s->data);
    td_job_spec_free(s->spec);
    td_buf_fini(&s->bytes);
    td_free(s->socket_dir);
    td_free(s->run_dir);
    *s = (struct td_service){0};
    td_free(m->metrics);
    m->metrics = NULL;
    m->metrics_step = 0;
    m->state = TD_SERVICE_NONE;
    if (m->daemon.stopping) {
        td_service_over(m);
    } else {
        td_service_drive(m);
    }
}

static void on_log_closed(void *user) {
    struct td_member *m = user;
    m->service.rollouts = NULL;
    clear(m);
}

static void close_log(struct td_member *m) {
    if (m->service.rollouts) {
        td_log_close(m->service.rollouts, on_log_closed, m);
    } else {
        clear(m);
    }
}

static void on_shell_stopped(void *user) {
    struct td_member *m = user;
    td_shell_free(m->shell);
    m->shell = NULL;
    close_log(m);
}

static void end(struct td_member *m) {
    m->state = TD_SERVICE_STOPPING;
    if (m->shell) {
        td_trace_info("job given up", "job=%" PRIu64, m->service.job);
        // Its topic may be gone by now, which a read under way would wait for.
        td_log_stop(m->service.rollouts);
        td_shell_stop(m->shell, on_shell_stopped, m);
    } else {
        m->swept = false; // what an earlier process left for it, dead workers' sockets, too
        close_log(m);
    }
}

void td_service_failed(void *user, const char *cause) {
    struct td_member *m = user;
    td_trace_error("job cannot be served here", "job=%" PRIu64 " cause=\"%s\"", m->service.job,
                   cause);
    td_free(m->trouble);
    m->trouble = td_strdup(cause);
}

// ---- loading ----

static void run_load(void *user) {
    struct td_member *m = user;
    struct td_service *s = &m->service;
    struct td_err err;
    enum td_rc rc = td_job_spec_decode(s->bytes.data, s->bytes.len, &s->spec, &err);
    rc = rc == TD_OK ? td_job_data_load(s->spec, &s->data, &err) : rc;
    rc = rc == TD_OK ? td_make_dirs(s->run_dir, &err) : rc;
    rc = rc == TD_OK ? td_make_dirs(s->socket_dir, &err) : rc;
    m->load_error = rc == TD_OK ? NULL : td_strdup(err.msg);
}

static void end_load(void *user) {
    struct td_member *m = user;
    m->state = TD_SERVICE_OPENING;
    if (m->load_error) {
        td_service_failed(m, m->load_error);
        td_free(m->load_error);
        m->load_error = NULL;
    }
    td_service_drive(m);
}

static void begin(struct td_member *m) {
    struct td_service *s = &m->service;
    td_free(m->trouble);
    m->trouble = NULL;
    s->job = m->wanted.job;
    s->rollout_log = m->wanted.rollout_log;
    s->journal_id = m->journal_id;
    td_buf_put(&s->bytes, m->wanted.spec.data, m->wanted.spec.len);
    s->socket_dir = td_asprintf("%s/jobs/%" PRIu64, m->daemon.settings->dir, s->job);
    s->run_dir = td_asprintf("%s/jobs/%" PRIu64, m->daemon.settings->shared_dir, s->job);
    m->retry_ms = 0;
    m->state = TD_SERVICE_LOADING;
    td_trace_info("job taken up", "job=%" PRIu64, s->job);
    if (!td_workq_submit(m->load_workq, run_load, end_load, m)) {
        clear(m); // another time
    }
}

// ---- opening and running ----

static void run_ask(void *user) {
    struct td_member *m = user;
    m->ask.rc = TD_OK;
    if (m->role->reads_journal) {
        m->ask.rc = td_logs_ask(&m->daemon.logs, "journal", &m->ask.journal, &m->ask.err);
    }
    if (m->ask.rc == TD_OK && m->service.rollout_log) {
        char name[TD_ROLLOUT_LOG_NAME];
        td_logs_rollout_name(m->service.rollout_log, name);
        m->ask.rollouts.id = m->service.rollout_log;
        m->ask.rc = td_logs_ask(&m->daemon.logs, name, &m->ask.rollouts, &m->ask.err);
    }
}

static enum td_rc open_and_start(struct td_member *m, struct td_err *err) {
    enum td_rc rc = TD_OK;
    if (m->role->reads_journal && !m->journal) {
        rc = td_logs_attach(m->daemon.loop, &m->daemon.logs, "journal", &m->ask.journal,
                            &m->journal, err);
    }
    if (rc == TD_OK && m->service.rollout_log) {
        char name[TD_ROLLOUT_LOG_NAME];
        td_logs_rollout_name(m->service.rollout_log, name);
        rc = td_logs_attach(m->daemon.loop, &m->daemon.logs, name, &m->ask.rollouts,
                            &m->service.rollouts, err);
    }
    const struct td_shell_config config = td_member_shell_config(m);
    return rc == TD_OK ? m->role->start(&config, m->journal, &m->shell, err) : rc;
}

static void end_ask(void *user) {
    struct td_member *m = user;
    m->ask.asking = false;
    bool other = m->daemon.stopping || m->wanted.job != m->service.job;
    enum td_rc rc = other ? TD_ESTOPPED : m->ask.rc;
    if (rc == TD_OK) {
        rc = open_and_start(m, &m->ask.err);
        m->state = rc == TD_OK ? TD_SERVICE_RUNNING : m->state;
    }
    if (rc == TD_ENOENT || rc == TD_ETIMEOUT) {
        m->retry_ms = td_loop_now_ms(m->daemon.loop) + OPEN_RETRY_MS; // the leader makes it
    } else if (rc != TD_OK && rc != TD_ESTOPPED) {
        td_service_failed(m, m->ask.err.msg);
    }
    td_service_drive(m);
}

// Workers that an earlier process of this member left for jobs that it does not serve any more.
static void end_strangers(struct td_member *m) {
    char *jobs = td_asprintf("%s/jobs", m->daemon.settings->dir);
    td_pool_end_old(jobs, m->wanted.job, STRANGERS_MS);
    td_free(jobs);
    m->swept = true;
}

void td_service_drive(struct td_member *m) {
    bool other = m->daemon.stopping || m->wanted.job != m->service.job;
    switch (m->state) {
    case TD_SERVICE_NONE:
        if (m->term && !m->swept) {
            end_strangers(m);
        }
        if (m->wanted.job && !m->daemon.stopping) {
            begin(m);
        }
        break;
    case TD_SERVICE_OPENING:
        if (m->ask.asking) {
            break;
        }
        if (other) {
            end(m);
        } else if (!m->trouble && td_loop_now_ms(m->daemon.loop) >= m->retry_ms) {
            m->ask.asking = td_workq_submit(m->load_workq, run_ask, end_ask, m);
        }
        break;
    case TD_SERVICE_RUNNING:
        if (other) {
            end(m);
        }
        break;
    case TD_SERVICE_LOADING:
    case TD_SERVICE_STOPPING:
        break;
    }
}

void td_service_end(struct td_member *m) {
    if (m->state == TD_SERVICE_NONE) {
        td_service_over(m);
    } else {
        td_service_drive(m);
    }
}
