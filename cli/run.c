// `tandem run`: coordinator, one rollout and one train controller in one process on a file log,
// workers as children. The single-controller mode of the service: the same machines and shells, no
// servers. Killed at any moment and started again, it goes on where it was.
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/run_dir.h"
#include "cli/run_result.h"
#include "controllers/rollout/shell.h"
#include "controllers/train/shell.h"
#include "coordinator/plan.h"
#include "coordinator/shell.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
#include "lib/daemon/daemon.h"
#include "lib/spec/job_spec.h"

enum {
    WORKQ_JOBS = 1024,
    REWARD_JOBS = 65536,
    CHILDREN_MAX = 256,
    BEAT_MS = 5000,
    TAKEOVER_MS = 20000,
    MEMBER_TIMEOUT_MS = 20000,
    STATE_EVERY = 1000,
    PROGRESS_MS = 500,
    MEMBER_TRAIN = 1,
    MEMBER_ROLLOUT = 2,
};

struct run {
    struct td_cli_job_args args;
    bool fresh, verbose;
    struct td_job_spec *spec;
    struct td_buf canonical;
    struct td_job_data *data;
    struct td_run_dir dir;
    char worker_program[PATH_MAX];

    struct td_loop *loop;
    struct td_children *children;
    struct td_workq *workq, *reward_workq; // one of each pool: grading waits for no checkpoint
    struct td_link_hub *hub;
    struct td_coordinator_shell *coordinator;
    struct td_shell *train, *rollout;
    struct td_watch *signals[2];
    struct td_timer *timer;
    struct td_progress *progress;

    uint64_t job;
    int stops_open; // shells that have not stopped yet
    bool stopping, interrupted;
    int status;  // exit status
    char *cause; // of a failure, owned
    enum _Tandem__Journal__Outcome outcome;
};

// ---- stopping ----

static void on_shell_stopped(void *user) {
    struct run *r = user;
    if (--r->stops_open == 0) {
        td_loop_stop(r->loop);
    }
}

static void stop(struct run *r, int status, const char *cause) {
    if (r->stopping) {
        return;
    }
    r->stopping = true;
    r->status = status;
    r->cause = td_strdup(cause);
    r->stops_open = (r->train != NULL) + (r->rollout != NULL);
    if (r->stops_open == 0) {
        td_loop_stop(r->loop);
    }
    if (r->train) {
        td_shell_stop(r->train, on_shell_stopped, r);
    }
    if (r->rollout) {
        td_shell_stop(r->rollout, on_shell_stopped, r);
    }
}

static void on_signal(void *user, int signum) {
    struct run *r = user;
    (void)signum;
    if (r->interrupted) {
        _exit(TD_CLI_INTERRUPTED); // the workers follow after their grace time
    }
    r->interrupted = true;
    if (r->progress) {
        td_progress_end(r->progress);
    }
    fprintf(stderr, "stopping; once more to stop at once\n");
    stop(r, TD_CLI_INTERRUPTED, NULL);
}

static void on_stop(void *user, const char *cause) {
    stop(user, TD_CLI_FAILED, cause);
}

// ---- the job ----

static void on_line(void *user, uint64_t step, const char *json) {
    struct run *r = user;
    td_progress_step(r->progress, step, json, td_loop_now_ms(r->loop));
}

static uint32_t threads_of(const struct run *r) {
    const struct td_spec_tandem *t = &r->spec->tandem;
    if (t->threads > 0) {
        return (uint32_t)t->threads;
    }
    // The pools pedal in turns, so each may use all cores.
    int64_t workers = t->rollout.workers > t->train.workers ? t->rollout.workers : t->train.workers;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores / workers > 1 ? (uint32_t)(cores / workers) : 1;
}

// A run directory is a member that comes back under its name, so that its gang goes on.
static uint64_t member_of(const struct run *r, uint64_t which) {
    return td_hash_u64(td_log_id(r->dir.journal), which) | 1;
}

static struct td_shell_config shell_config(struct run *r, uint64_t member, int64_t workers,
                                           struct td_workq *workq) {
    return (struct td_shell_config){.loop = r->loop,
                                    .children = r->children,
                                    .workq = workq,
                                    .rollouts = r->dir.rollouts,
                                    .hub = r->hub,
                                    .data = r->data,
                                    .spec = r->canonical.data,
                                    .spec_bytes = r->canonical.len,
                                    .run_dir = r->dir.path,
                                    .worker_program = r->worker_program,
                                    .member = member_of(r, member),
                                    .incarnation = td_random_id(),
                                    .job = r->job,
                                    .journal_id = td_log_id(r->dir.journal),
                                    .workers = (uint32_t)workers,
                                    .threads = threads_of(r),
                                    .verbose = r->verbose,
                                    .stop = on_stop,
                                    .failed = on_stop,
                                    .user = r};
}

static enum td_rc start_train(struct run *r, struct td_err *err) {
    const struct td_train_shell_config c = {
        .base = shell_config(r, MEMBER_TRAIN, r->spec->tandem.train.workers, r->workq),
        .journal = r->dir.journal,
        .save_dir = r->dir.save_dir,
        .line = on_line};
    return td_train_shell_new(&c, &r->train, err);
}

static enum td_rc start_rollout(struct run *r, struct td_err *err) {
    const struct td_shell_config c =
        shell_config(r, MEMBER_ROLLOUT, r->spec->tandem.rollout.workers, r->reward_workq);
    return td_rollout_shell_new(&c, &r->rollout, err);
}

static void on_accepted(void *user, const char *request_id, uint64_t job) {
    struct run *r = user;
    (void)request_id;
    if (r->train || r->stopping) {
        return;
    }
    r->job = job;
    struct td_err err;
    enum td_rc rc = start_train(r, &err);
    if (rc == TD_OK && r->dir.rollouts) {
        rc = start_rollout(r, &err);
    }
    if (rc != TD_OK) {
        stop(r, TD_CLI_FAILED, err.msg);
    }
}

static void on_refused(void *user, const char *request_id, const char *cause) {
    (void)request_id;
    stop(user, TD_CLI_FAILED, cause);
}

static void on_ended(void *user, uint64_t job, enum _Tandem__Journal__Outcome outcome,
                     const char *cause) {
    struct run *r = user;
    if (r->job && job != r->job) {
        return;
    }
    r->outcome = outcome;
    bool fine = outcome == TANDEM__JOURNAL__OUTCOME__SUCCEEDED;
    stop(r, fine ? TD_CLI_OK : TD_CLI_FAILED, fine ? NULL : cause);
}

static void on_trimmed(void *user, enum td_rc rc, const struct td_err *err) {
    (void)user;
    if (rc != TD_OK) {
        td_trace_warn("rollout log not trimmed", "cause=\"%s\"", err->msg);
    }
}

static void on_trim_rollout(void *user, uint64_t job, const struct td_log_position *positions,
                            size_t n) {
    struct run *r = user;
    (void)job;
    uint32_t partitions = r->dir.rollouts ? td_log_partitions(r->dir.rollouts) : 0;
    for (size_t i = 0; i < n; i++) {
        if (positions[i].partition >= partitions) {
            continue;
        }
        td_log_trim(r->dir.rollouts, positions[i].partition, positions[i].offset, on_trimmed, r);
    }
}

static void on_changed(void *user) {
    (void)user;
}

static void on_orders(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    const struct run *r = user;
    td_link_orders(r->hub, member, bytes, n);
}

static bool plan_of(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out) {
    const struct run *r = user;
    bool known = td_job_plan_of(NULL, job, out);
    out->lease_ms = r->spec->tandem.lease_s * 1000; // of this process, not of the job
    out->max_attempts = (uint64_t)r->spec->tandem.max_attempts;
    return known;
}

static uint64_t row_digest(void *user, uint64_t job, struct td_group group) {
    const struct run *r = user;
    struct td_row row;
    (void)job;
    td_dataset_at(r->data->train, group.data_epoch, group.index, &row);
    return row.digest;
}

static void start_coordinator(struct run *r) {
    struct td_coordinator_shell_config c = {
        .loop = r->loop,
        .journal = r->dir.journal,
        .machine = {.owner = td_random_id(),
                    .create_journal_id = td_log_id(r->dir.journal),
                    .expect_journal_id = td_log_id(r->dir.journal),
                    .lead_at_once = true,
                    .takeover_ms = TAKEOVER_MS,
                    .beat_ms = BEAT_MS,
                    .member_timeout_ms = MEMBER_TIMEOUT_MS,
                    .state_every = STATE_EVERY,
                    .plan_of = plan_of,
                    .row_digest = row_digest,
                    .user = r},
        .fns = {on_accepted, on_refused, on_ended, on_stop, on_trim_rollout, on_orders, on_changed},
        .user = r};
    r->coordinator = td_coordinator_shell_new(&c);
    r->hub = td_link_hub_new_local(r->loop, td_coordinator_shell_report, r->coordinator);
    struct td_submit submit = {.request_id = "run",
                               .spec = r->canonical.data,
                               .spec_bytes = r->canonical.len,
                               .index = &r->data->index,
                               .max_staleness = 0,
                               .rollout_log = r->dir.rollouts ? td_log_id(r->dir.rollouts) : 0};
    td_coordinator_shell_submit(r->coordinator, &submit);
}

static void on_timer(void *user) {
    struct run *r = user;
    struct td_job_view view;
    const struct td_coordinator *c = td_coordinator_shell_machine(r->coordinator);
    if (!r->stopping && r->job && td_coordinator_job_view(c, r->job, &view)) {
        char text[400];
        char train[TD_SHELL_WAITS] = "", rollout[TD_SHELL_WAITS] = "";
        int64_t since; // the job's counts
        if (r->train) {
            td_shell_waits(r->train, train, &since);
        }
        if (r->rollout) {
            td_shell_waits(r->rollout, rollout, &since);
        }
        snprintf(text, sizeof text, "%.150s%s%.100s%s%.100s", view.text,
                 train[0] ? "; train: " : "", train, rollout[0] ? "; rollout: " : "", rollout);
        td_progress_waits(r->progress, text, view.since_ms, td_loop_now_ms(r->loop));
    }
    td_timer_start(r->timer, PROGRESS_MS);
}

// ---- one run ----

static void run_loop(struct run *r) {
    const struct td_job_state *found = td_run_found_job(&r->dir);
    uint64_t first = found && found->has_head ? found->head.step : 0;
    r->progress = td_progress_new(r->data->schedule.total_steps, first, td_loop_now_ms(r->loop));
    td_run_print_start(r->spec, r->data, &r->dir);
    start_coordinator(r);
    r->timer = td_timer_new(r->loop, on_timer, r);
    td_timer_start(r->timer, PROGRESS_MS);
    td_loop_run(r->loop);
    td_progress_end(r->progress);
    td_timer_close(r->timer);
    const struct td_coordinator *c = td_coordinator_shell_machine(r->coordinator);
    const struct td_job_state *job = td_journal_job(td_coordinator_state(c), r->job);
    if (job && job->outcome != TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
        td_run_dir_tidy(&r->dir, job);
    }
    td_shell_free(r->rollout);
    td_shell_free(r->train);
    td_coordinator_shell_free(r->coordinator);
    td_link_hub_free(r->hub);
    td_progress_free(r->progress);
}

static enum td_rc make_loop(struct run *r, struct td_err *err) {
    enum td_rc rc = td_loop_new(&r->loop, err);
    rc = rc == TD_OK ? td_children_new(r->loop, CHILDREN_MAX, &r->children, err) : rc;
    rc = rc == TD_OK ? td_workq_new(r->loop, "td-work", 1, WORKQ_JOBS, &r->workq, err) : rc;
    rc = rc == TD_OK ? td_workq_new(r->loop, "td-reward", 1, REWARD_JOBS, &r->reward_workq, err)
                     : rc;
    rc = rc == TD_OK ? td_daemon_watch_signals(r->loop, on_signal, r, r->signals, err) : rc;
    return rc == TD_OK ? td_daemon_worker_program(r->worker_program, err) : rc;
}

static void drop_loop(struct run *r) {
    for (int i = 0; i < 2; i++) {
        td_watch_close(r->signals[i]);
    }
    td_workq_free(r->workq);
    td_workq_free(r->reward_workq);
    td_run_dir_close(r->loop, &r->dir);
    td_children_free(r->children);
    td_loop_free(r->loop);
}

// Everything before the loop: TD_CLI_OK goes on, anything else is the exit status.
static int prepare(struct run *r, bool *done) {
    struct td_err err = {0};
    struct td_run_dir_opts opts = {.path = r->spec->tandem.run_dir,
                                   .save_dir = r->spec->trainer.default_local_dir,
                                   .fresh = r->fresh,
                                   .rollouts = r->spec->tandem.kind == TD_JOB_GRPO};
    enum td_rc rc = make_loop(r, &err);
    if (rc == TD_OK) {
        rc = td_run_dir_open(r->loop, &opts, &r->dir, &err);
    }
    if (rc == TD_OK) {
        int status = td_run_check_found(&r->dir, &r->canonical, done);
        if (*done || status != TD_CLI_OK) {
            return status;
        }
        rc = td_job_data_load(r->spec, &r->data, &err);
    }
    if (rc == TD_OK) {
        rc = td_run_check_index(&r->dir, r->data, &err);
    }
    if (r->interrupted) {
        return TD_CLI_INTERRUPTED;
    }
    if (rc != TD_OK) {
        fprintf(stderr, "tandem run: %s\n", err.msg);
        return rc == TD_EINVAL || rc == TD_EUNSUPPORTED ? TD_CLI_USAGE : TD_CLI_FAILED;
    }
    return TD_CLI_OK;
}

static int run_job(struct run *r) {
    bool done = false;
    r->dir.lock = -1;
    int status = prepare(r, &done);
    if (status == TD_CLI_OK && !done) {
        run_loop(r);
        status = r->status;
        td_run_print_end(&r->dir, r->data, status, r->cause);
    }
    if (r->loop) {
        drop_loop(r);
    }
    td_job_data_free(r->data);
    td_free(r->cause);
    return status;
}

static int load_and_run(struct run *r) {
    struct td_spec_notes notes = {0};
    struct td_err err = {0};
    enum td_rc rc = td_job_spec_load(r->args.path, r->args.overrides,
                                     (size_t)r->args.override_count, &r->spec, &notes, &err);
    fputs(td_buf_str(&notes.errors), stderr);
    fputs(td_buf_str(&notes.warnings), stderr);
    if (rc == TD_OK && notes.no_effect_count) {
        printf("without effect here:\n%s", td_buf_str(&notes.no_effect));
    }
    td_spec_notes_fini(&notes);
    if (rc != TD_OK) {
        return TD_CLI_USAGE;
    }
    td_job_spec_encode(r->spec, &r->canonical);
    int status = run_job(r);
    td_buf_fini(&r->canonical);
    td_job_spec_free(r->spec);
    return status;
}

int td_cli_run(int argc, char **argv) {
    struct run r = {.args.overrides = td_alloc_array((size_t)argc, sizeof *r.args.overrides)};
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--fresh") == 0) {
            r.fresh = true;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            r.verbose = true;
            td_trace_set_level(TD_TRACE_DEBUG);
        } else {
            argv[kept++] = argv[i];
        }
    }
    int status = td_cli_job_args(kept, argv, &r.args);
    if (status == TD_CLI_OK) {
        status = load_and_run(&r);
    }
    td_free(r.args.overrides);
    return status;
}
