// The run directory: see run_dir.h.
#include "cli/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "controllers/common/pool.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/io/log_file.h"
#include "lib/io/runlock.h"

enum { ROLLOUT_PARTITIONS = 4, STRANGERS_MS = 5000 };

static enum td_rc remove_named(const char *dir, const char *prefix, struct td_err *err) {
    DIR *d = opendir(dir);
    enum td_rc rc = TD_OK;
    for (struct dirent *e; d && rc == TD_OK && (e = readdir(d));) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0) {
            char *path = td_asprintf("%s/%s", dir, e->d_name);
            rc = td_remove_tree(path, err);
            td_free(path);
        }
    }
    if (d) {
        closedir(d);
    }
    return rc;
}

// Only what a run makes is deleted.
static enum td_rc start_over(const struct td_run_dir *d, struct td_err *err) {
    static const char *const names[] = {"journal",       "rollouts", "checkpoints",
                                        "metrics.jsonl", "workers",  "metrics.staged.json"};
    char *workers = td_asprintf("%s/workers", d->path);
    td_pool_end_strangers(workers, STRANGERS_MS);
    td_free(workers);
    enum td_rc rc = TD_OK;
    for (size_t i = 0; rc == TD_OK && i < sizeof names / sizeof *names; i++) {
        char *path = td_asprintf("%s/%s", d->path, names[i]);
        rc = td_remove_tree(path, err);
        td_free(path);
    }
    if (rc == TD_OK) {
        rc = remove_named(d->save_dir, "global_step_", err);
    }
    return rc == TD_OK ? remove_named(d->save_dir, "latest_checkpointed_iteration.txt", err) : rc;
}

static enum td_rc open_log(struct td_loop *loop, const struct td_run_dir *d, const char *name,
                           uint32_t partitions, struct td_log **out, struct td_err *err) {
    char *folder = td_asprintf("%s/%s", d->path, name);
    struct td_log_file_opts opts = {.folder = folder};
    enum td_rc rc = td_log_file_open(loop, &opts, out, err);
    if (rc == TD_ENOENT) {
        opts.partitions = partitions;
        rc = getrandom(&opts.id, sizeof opts.id, 0) == (ssize_t)sizeof opts.id
                 ? td_log_file_create(&opts, err)
                 : td_fail_errno(err, errno, "random log id");
        if (rc == TD_OK) {
            rc = td_log_file_open(loop, &opts, out, err);
        }
    }
    td_free(folder);
    return rc;
}

// ---- reading the journal to its end ----

struct scan {
    struct td_loop *loop;
    struct td_follower *follower;
    struct td_log *journal;
    struct td_log_reader *reader; // NULL until the bounds are known
    struct td_err *err;
    enum td_rc rc;
    int64_t end;
};

static void check_end(struct scan *s) {
    if (s->reader && s->end >= 0 && td_log_reader_next(s->reader) >= s->end) {
        td_loop_stop(s->loop);
    }
}

static void stop_scan(struct scan *s, enum td_rc rc, const char *cause) {
    s->rc = td_fail(s->err, rc, "%s", cause);
    td_loop_stop(s->loop);
}

static void on_record(void *user, const struct td_log_record *r) {
    struct scan *s = user;
    enum td_follow_want want =
        td_follower_record(s->follower, (struct td_pos){r->offset, r->crc}, r->bytes, r->n, NULL);
    if (want == TD_WANT_RESET || want == TD_WANT_STOP) {
        stop_scan(s, TD_ECORRUPT, s->follower->cause);
    }
    check_end(s);
}

static void on_gap(void *user, int64_t start) {
    struct scan *s = user;
    (void)td_follower_start(s->follower, start);
}

static void on_error(void *user, const struct td_err *err) {
    stop_scan(user, err->code, err->msg);
}

static void on_bounds(void *user, enum td_rc rc, int64_t start, int64_t end,
                      const struct td_err *err) {
    static const struct td_log_reader_fns fns = {
        .record = on_record, .gap = on_gap, .error = on_error};
    struct scan *s = user;
    if (rc != TD_OK) {
        stop_scan(s, rc, err->msg);
        return;
    }
    (void)td_follower_start(s->follower, start);
    s->end = end;
    if (end > start) {
        s->reader = td_log_read(s->journal, 0, start, &fns, s);
    } else {
        td_loop_stop(s->loop);
    }
}

static enum td_rc scan_journal(struct td_loop *loop, struct td_run_dir *d, struct td_err *err) {
    struct scan s = {
        .loop = loop, .follower = &d->found, .journal = d->journal, .err = err, .end = -1};
    td_log_bounds(d->journal, 0, on_bounds, &s);
    td_loop_run(loop);
    td_log_reader_close(s.reader);
    d->had_journal = s.end > 0;
    return s.rc;
}

// Said once and before anything is started.
static enum td_rc check_sockets(const struct td_run_dir *d, struct td_err *err) {
    char *longest = td_asprintf("%s/workers/rollout-%d.sock", d->path, TD_POOL_WORKERS_MAX - 1);
    enum td_rc rc = td_ipc_check_path(longest, err);
    td_free(longest);
    return rc == TD_OK ? TD_OK : TD_EINVAL;
}

static enum td_rc open_all(struct td_loop *loop, const struct td_run_dir_opts *opts,
                           struct td_run_dir *d, struct td_err *err) {
    char real[PATH_MAX];
    enum td_rc rc = td_make_dirs(opts->path, err);
    if (rc != TD_OK) {
        return td_err_in(err, "tandem.run_dir");
    }
    if (!realpath(opts->path, real)) {
        return td_fail_errno(err, errno, "tandem.run_dir: %s", opts->path);
    }
    d->path = td_strdup(real);
    rc = check_sockets(d, err);
    if (rc != TD_OK) {
        return rc;
    }
    rc = td_run_lock(d->path, &d->lock, err);
    if (rc == TD_OK && opts->save_dir) {
        rc = td_make_dirs(opts->save_dir, err);
        if (rc == TD_OK && !realpath(opts->save_dir, real)) {
            rc = td_fail_errno(err, errno, "trainer.default_local_dir: %s", opts->save_dir);
        }
    }
    if (rc != TD_OK) {
        return rc;
    }
    d->save_dir = td_strdup(opts->save_dir ? real : d->path);
    if (opts->fresh) {
        rc = start_over(d, err);
    }
    if (rc == TD_OK) {
        rc = open_log(loop, d, "journal", 1, &d->journal, err);
    }
    if (rc == TD_OK && opts->rollouts) {
        rc = open_log(loop, d, "rollouts", ROLLOUT_PARTITIONS, &d->rollouts, err);
    }
    return rc == TD_OK ? scan_journal(loop, d, err) : rc;
}

enum td_rc td_run_dir_open(struct td_loop *loop, const struct td_run_dir_opts *opts,
                           struct td_run_dir *out, struct td_err *err) {
    struct td_run_dir d = {.lock = -1};
    td_follower_init(&d.found);
    enum td_rc rc = open_all(loop, opts, &d, err);
    if (rc != TD_OK) {
        td_run_dir_close(loop, &d);
        return rc;
    }
    *out = d;
    return TD_OK;
}

static bool is_kept(const struct td_job_state *job, const char *name) {
    bool kept = name[0] == '.';
    for (size_t i = 0; i < job->kept_count; i++) {
        kept = kept || strcmp(job->kept[i]->folder, name) == 0;
    }
    return kept;
}

void td_run_dir_tidy(const struct td_run_dir *d, const struct td_job_state *job) {
    char *folder = td_asprintf("%s/checkpoints", d->path);
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct td_err err;
        char *path = td_asprintf("%s/%s", folder, e->d_name);
        if (!is_kept(job, e->d_name) && td_remove_tree(path, &err) != TD_OK) {
            td_trace_warn("folder not deleted", "cause=\"%s\"", err.msg);
        }
        td_free(path);
    }
    if (dir) {
        closedir(dir);
    }
    td_free(folder);
}

static void on_closed(void *user) {
    td_loop_stop(user);
}

void td_run_dir_close(struct td_loop *loop, struct td_run_dir *d) {
    struct td_log *logs[] = {d->journal, d->rollouts};
    for (size_t i = 0; i < 2; i++) {
        if (logs[i]) {
            td_log_close(logs[i], on_closed, loop);
            td_loop_run(loop);
        }
    }
    if (d->lock >= 0) {
        close(d->lock);
    }
    td_follower_fini(&d->found);
    td_free(d->path);
    td_free(d->save_dir);
    *d = (struct td_run_dir){.lock = -1};
}
