// The rollout logs of jobs: see job_logs.h.
#include "coordinator/daemon/job_logs.h"

#include <inttypes.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

// A member that was silent when its job ended may come back, and finish what it was about to write.
enum { RETRY_MS = 2000, SWEEP_MS = 5000, SWEEPS = 24 };

enum log_state { LOG_UNKNOWN, LOG_MADE, LOG_GONE };

struct job_log {
    uint64_t job, id;
    enum log_state state;
    bool busy;
    int64_t retry_ms;   // nothing before
    int sweeps;         // since it is gone
    struct td_log *log; // open for trimming; NULL
};

struct td_job_logs {
    struct td_job_logs_opts opts;
    struct job_log logs[TD_JOBS_MAX];
    size_t count;
    size_t open; // logs not closed yet, and 1
    td_loop_fn *closed;
    void *closed_user;
};

struct task {
    struct td_job_logs *l;
    size_t index;
    enum task_kind { TASK_MAKE, TASK_DELETE, TASK_SWEEP } kind;
    enum td_rc rc;
    struct td_err err;
};

struct td_job_logs *td_job_logs_new(const struct td_job_logs_opts *opts) {
    struct td_job_logs *l = td_alloc(sizeof *l);
    l->opts = *opts;
    return l;
}

static void on_closed(void *user) {
    struct td_job_logs *l = user;
    if (--l->open == 0) {
        l->closed(l->closed_user);
        td_free(l);
    }
}

void td_job_logs_close(struct td_job_logs *l, td_loop_fn *closed, void *user) {
    l->closed = closed;
    l->closed_user = user;
    l->open = 1;
    for (size_t i = 0; i < l->count; i++) {
        if (l->logs[i].log) {
            l->open++;
            td_log_close(l->logs[i].log, on_closed, l);
        }
    }
    td_loop_defer(l->opts.loop, on_closed, l);
}

// What a job leaves beside its log: answers of validations that nobody put together, because it was
// cancelled or failed, or a leader or a member was late with them. Where this machine does not see
// the folder, there is nothing to be done.
static enum td_rc remove_answers(const struct task *t, uint64_t job, struct td_err *err) {
    char *folder = td_asprintf("%s/jobs/%" PRIu64 "/validation", t->l->opts.shared_dir, job);
    enum td_rc rc = td_remove_tree(folder, err);
    td_free(folder);
    return rc;
}

static void run_task(void *user) {
    struct task *t = user;
    const struct job_log *g = &t->l->logs[t->index];
    char name[TD_ROLLOUT_LOG_NAME];
    td_logs_rollout_name(g->id, name);
    if (t->kind == TASK_MAKE) {
        t->rc = td_logs_create(t->l->opts.logs, name, g->id, t->l->opts.partitions, &t->err);
        t->rc = t->rc == TD_ECONFLICT ? TD_OK : t->rc; // by an earlier leader
        return;
    }
    t->rc = t->kind == TASK_DELETE ? td_logs_delete(t->l->opts.logs, name, &t->err) : TD_OK;
    t->rc = t->rc == TD_OK ? remove_answers(t, g->job, &t->err) : t->rc;
}

static void end_task(void *user) {
    struct task *t = user;
    struct job_log *g = &t->l->logs[t->index];
    g->busy = false;
    if (t->rc == TD_OK) {
        g->state = t->kind == TASK_MAKE ? LOG_MADE : LOG_GONE;
    } else {
        g->retry_ms = td_loop_now_ms(t->l->opts.loop) + RETRY_MS;
        td_trace_warn("rollout log not made or deleted", "job=%" PRIu64 " cause=\"%s\"", g->job,
                      t->err.msg);
    }
    td_free(t);
}

static void start_task(struct td_job_logs *l, size_t index, enum task_kind kind) {
    struct task *t = td_alloc(sizeof *t);
    *t = (struct task){.l = l, .index = index, .kind = kind};
    if (!td_workq_submit(l->opts.workq, run_task, end_task, t)) {
        td_free(t);
        return; // another time
    }
    l->logs[index].busy = true;
}

static struct job_log *find(struct td_job_logs *l, uint64_t job) {
    for (size_t i = 0; i < l->count; i++) {
        if (l->logs[i].job == job) {
            return &l->logs[i];
        }
    }
    return NULL;
}

// For a new job: the place of one that the journal has forgotten, else another one.
static struct job_log *add(struct td_job_logs *l, const struct td_journal_state *state,
                           const struct td_job_state *j) {
    size_t i = 0;
    while (i < l->count && (l->logs[i].busy || td_journal_job(state, l->logs[i].job))) {
        i++;
    }
    if (i == TD_JOBS_MAX) {
        return NULL; // another time
    }
    l->count += i == l->count;
    td_log_close(l->logs[i].log, NULL, NULL);
    l->logs[i] = (struct job_log){.job = j->job->job, .id = j->job->rollout_log};
    return &l->logs[i];
}

static void follow_job(struct td_job_logs *l, const struct td_journal_state *state,
                       const struct td_job_state *j) {
    struct job_log *g = find(l, j->job->job);
    g = g ? g : add(l, state, j);
    if (!g || g->busy || td_loop_now_ms(l->opts.loop) < g->retry_ms) {
        return;
    }
    bool live = j->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE;
    if (live && g->state == LOG_UNKNOWN) {
        start_task(l, (size_t)(g - l->logs), TASK_MAKE);
    } else if (!live && g->state != LOG_GONE && !l->opts.served(l->opts.user, g->job)) {
        td_log_close(g->log, NULL, NULL);
        g->log = NULL;
        start_task(l, (size_t)(g - l->logs), TASK_DELETE);
    } else if (!live && g->state == LOG_GONE && g->sweeps < SWEEPS) {
        g->sweeps++;
        g->retry_ms = td_loop_now_ms(l->opts.loop) + SWEEP_MS;
        start_task(l, (size_t)(g - l->logs), TASK_SWEEP);
    }
}

void td_job_logs_follow(struct td_job_logs *l, const struct td_journal_state *state) {
    for (size_t i = 0; i < state->job_count; i++) {
        if (state->jobs[i]->job->rollout_log) {
            follow_job(l, state, state->jobs[i]);
        }
    }
}

static void on_trimmed(void *user, enum td_rc rc, const struct td_err *err) {
    (void)user;
    if (rc != TD_OK) {
        td_trace_warn("rollout log not trimmed", "cause=\"%s\"", err->msg);
    }
}

void td_job_logs_trim(struct td_job_logs *l, uint64_t job, const struct td_log_position *positions,
                      size_t n) {
    struct job_log *g = find(l, job);
    struct td_err err;
    char name[TD_ROLLOUT_LOG_NAME];
    if (!g || g->busy || g->state == LOG_GONE) {
        return;
    }
    td_logs_rollout_name(g->id, name);
    // Its partitions are all named; the loop does not wait for brokers to tell them.
    struct td_logs_known known = {.id = g->id};
    for (size_t i = 0; i < n; i++) {
        uint32_t count = positions[i].partition + 1;
        known.partitions = count > known.partitions ? count : known.partitions;
    }
    if (n == 0 || known.partitions > TD_LOG_PARTITIONS_MAX) {
        return;
    }
    if (!g->log &&
        td_logs_attach(l->opts.loop, l->opts.logs, name, &known, &g->log, &err) != TD_OK) {
        td_trace_warn("rollout log not trimmed", "job=%" PRIu64 " cause=\"%s\"", job, err.msg);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (positions[i].partition < td_log_partitions(g->log)) {
            td_log_trim(g->log, positions[i].partition, positions[i].offset, on_trimmed, NULL);
        }
    }
}
