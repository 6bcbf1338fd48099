// Tables of what the API lists: see lists.h.
#include "cli/lists.h"

#include <inttypes.h>

#include "cli/job_text.h"
#include "cli/metrics.h"
#include "cli/table.h"

static void print(struct td_table *t, struct td_buf *out) {
    td_table_print(t, out);
    td_table_fini(t);
}

static void put_number(struct td_table *t, bool has, double v, int digits) {
    if (has) {
        td_table_put(t, "%.*f", digits, v);
    } else {
        td_table_put(t, "-");
    }
}

static void put_wait(struct td_table *t, const char *waits_for, int64_t ms) {
    struct td_buf text = {0};
    if (waits_for[0]) {
        td_buf_printf(&text, "%s (", waits_for);
        td_put_duration(&text, ms);
        td_buf_puts(&text, ")");
    }
    td_table_put(t, "%s", td_buf_str(&text));
    td_buf_fini(&text);
}

void td_list_jobs(Tandem__V1__Job *const *jobs, size_t n, struct td_buf *out) {
    struct td_table t = {0};
    td_table_head(&t, "ID|KIND|STATE|STEP|REWARD|ACCURACY|KL|WAITS FOR");
    for (size_t i = 0; i < n; i++) {
        const Tandem__V1__Job *j = jobs[i];
        struct td_metrics m = {0};
        if (j->metrics[0]) {
            td_metrics_read(j->metrics, &m);
        }
        td_table_put(&t, "%" PRIu64, j->id);
        td_table_put(&t, "%s", j->kind);
        td_table_put(&t, "%s", td_job_state_name(j->state));
        td_table_put(&t, "%" PRIu64 "/%" PRIu64, j->step, j->total_steps);
        put_number(&t, m.has_reward, m.reward, 3);
        put_number(&t, m.has_accuracy, m.accuracy, 3);
        put_number(&t, m.has_kl, m.kl, 4);
        put_wait(&t, j->waits_for, j->waits_since_ms);
    }
    print(&t, out);
}

void td_list_rounds(Tandem__V1__Round *const *rounds, size_t n, struct td_buf *out) {
    struct td_table t = {0};
    td_table_head(&t, "ROUND|STATE|GROUPS|TOKENS|GENERATION|WEIGHTS|STATE DIGEST|WAITS FOR");
    for (size_t i = 0; i < n; i++) {
        const Tandem__V1__Round *r = rounds[i];
        bool has = r->weight_digest || r->state_digest;
        td_table_put(&t, "%" PRIu64, r->round);
        td_table_put(&t, "%s", r->state);
        td_table_put(&t, "%" PRIu64, r->groups);
        td_table_put(&t, "%" PRIu64, r->tokens);
        if (has) {
            td_table_put(&t, "%" PRIu64, r->generation);
            td_table_put(&t, "%016" PRIx64, r->weight_digest);
            td_table_put(&t, "%016" PRIx64, r->state_digest);
        } else {
            td_table_put(&t, "-");
            td_table_put(&t, "-");
            td_table_put(&t, "-");
        }
        put_wait(&t, r->waits_for, r->waits_since_ms);
    }
    print(&t, out);
}

static void put_heard(struct td_table *t, int64_t ms) {
    struct td_buf text = {0};
    td_put_duration(&text, ms);
    td_table_put(t, "%s ago", td_buf_str(&text));
    td_buf_fini(&text);
}

static void put_job(struct td_table *t, uint64_t job) {
    if (job) {
        td_table_put(t, "%" PRIu64, job);
    } else {
        td_table_put(t, "-");
    }
}

void td_list_controllers(Tandem__V1__Member *const *members, size_t n, struct td_buf *out) {
    struct td_table t = {0};
    td_table_head(&t, "ID|KIND|HOST|STATUS PAGE|JOB|WORKERS|UNITS|HEARD|WAITS FOR");
    for (size_t i = 0; i < n; i++) {
        const Tandem__V1__Member *m = members[i];
        td_table_put(&t, "%016" PRIx64, m->id);
        td_table_put(&t, "%s", m->kind);
        td_table_put(&t, "%s", m->host);
        td_table_put(&t, "%s", m->http);
        put_job(&t, m->job);
        td_table_put(&t, "%" PRIu32 "/%" PRIu32, m->workers_ready, m->workers);
        td_table_put(&t, "%" PRIu32, m->units);
        put_heard(&t, m->heard_ms);
        td_table_put(&t, "%s", m->waits_for);
    }
    print(&t, out);
}

// A row for each; one that serves no job has no process.
static void put_worker(struct td_table *t, const Tandem__V1__Member *m, uint32_t rank) {
    static const Tandem__V1__WorkerState none = TANDEM__V1__WORKER_STATE__INIT;
    const Tandem__V1__WorkerState *w = rank < m->n_worker_states ? m->worker_states[rank] : &none;
    td_table_put(t, "%016" PRIx64, m->id);
    td_table_put(t, "%s", m->kind);
    td_table_put(t, "%s", m->host);
    td_table_put(t, "%s", m->device);
    td_table_put(t, "%" PRIu32, rank);
    if (w->pid) {
        td_table_put(t, "%" PRIu32, w->pid);
    } else {
        td_table_put(t, "-");
    }
    td_table_put(t, "%s", w->state);
    put_wait(t, w->doing, w->for_ms);
    put_job(t, m->job);
}

void td_list_workers(Tandem__V1__Member *const *members, size_t n, struct td_buf *out) {
    struct td_table t = {0};
    td_table_head(&t, "CONTROLLER|KIND|HOST|DEVICE|RANK|PID|STATE|DOING|JOB");
    for (size_t i = 0; i < n; i++) {
        for (uint32_t rank = 0; rank < members[i]->workers; rank++) {
            put_worker(&t, members[i], rank);
        }
    }
    print(&t, out);
}
