// The run directory: see run_dir.h.
#include "cli/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "controllers/common/pool.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
#include "lib/io/log_file.h"
#include "lib/io/runlock.h"

enum { ROLLOUT_PARTITIONS = 4, STRANGERS_MS = 5000 };

static const char latest_name[] = "latest_checkpointed_iteration.txt",
                  staged_name[] = "metrics.staged.json";

// Whether name is prefix and a number.
static bool is_numbered(const char *name, const char *prefix) {
    size_t n = strlen(prefix),
           digits = strncmp(name, prefix, n) ? 0 : strspn(name + n, "0123456789");
    return digits > 0 && name[n + digits] == 0;
}

// Removes what is called prefix and a number.
static enum td_rc remove_numbered(const char *dir, const char *prefix, struct td_err *err) {
    DIR *d = opendir(dir);
    enum td_rc rc = TD_OK;
    for (struct dirent *e; d && rc == TD_OK && (e = readdir(d));) {
        if (is_numbered(e->d_name, prefix)) {
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

static enum td_rc remove_one(const char *dir, const char *name, struct td_err *err) {
    char *path = td_asprintf("%s/%s", dir, name);
    enum td_rc rc = td_remove_tree(path, err);
    td_free(path);
    return rc;
}

static void end_workers(const struct td_run_dir *d) {
    char *workers = td_asprintf("%s/workers", d->path);
    td_pool_end_strangers(workers, STRANGERS_MS);
    td_free(workers);
}

// Only what a run makes is deleted.
static enum td_rc start_over(const struct td_run_dir *d, struct td_err *err) {
    // The journal last: without it the rest would belong to nobody.
    static const char *const names[] = {"workers",       "rollouts",  "checkpoints", "validation",
                                        "metrics.jsonl", staged_name, "announced",   "journal"};
    end_workers(d);
    enum td_rc rc = TD_OK;
    for (size_t i = 0; rc == TD_OK && i < sizeof names / sizeof *names; i++) {
        rc = remove_one(d->path, names[i], err);
    }
    if (rc == TD_OK) {
        rc = remove_numbered(d->save_dir, "global_step_", err);
    }
    return rc == TD_OK ? remove_one(d->save_dir, latest_name, err) : rc;
}

static bool has_entries(const char *dir) {
    DIR *d = opendir(dir);
    bool has = false;
    for (struct dirent *e; d && (e = readdir(d));) {
        has = has || e->d_name[0] != '.';
    }
    if (d) {
        closedir(d);
    }
    return has;
}

// No journal is made where something names another one (docs/journal.md §4): it would start the job
// over, in silence, amid what is left of the old one.
static enum td_rc check_orphans(const struct td_run_dir *d, struct td_err *err) {
    static const char *const names[] = {"rollouts/log", "metrics.jsonl", "checkpoints"};
    char *root = td_asprintf("%s/journal/log", d->path);
    bool found = td_file_exists(root);
    enum td_rc rc = TD_OK;
    for (size_t i = 0; !found && rc == TD_OK && i < sizeof names / sizeof *names; i++) {
        char *path = td_asprintf("%s/%s", d->path, names[i]);
        struct stat st;
        if (stat(path, &st) == 0 && (!S_ISDIR(st.st_mode) || has_entries(path))) {
            rc = td_fail(err, TD_ECONFLICT,
                         "%s is there, but its journal is not (%s): put it back, or use --fresh to "
                         "start over",
                         path, root);
        }
        td_free(path);
    }
    td_free(root);
    return rc;
}

static enum td_rc open_log(struct td_loop *loop, const struct td_run_dir *d, const char *name,
                           uint32_t partitions, struct td_log **out, struct td_err *err) {
    char *folder = td_asprintf("%s/%s", d->path, name);
    struct td_log_file_opts opts = {.folder = folder};
    enum td_rc rc = td_log_file_open(loop, &opts, out, err);
    if (rc == TD_ENOENT) {
        opts.partitions = partitions;
        opts.id = td_random_id();
        rc = td_log_file_create(&opts, err);
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
    bool ended; // at the journal's end, or by an error
};

static void end_scan(struct scan *s) {
    s->ended = true;
    td_loop_stop(s->loop);
}

static void check_end(struct scan *s) {
    if (s->reader && s->end >= 0 && td_log_reader_next(s->reader) >= s->end) {
        end_scan(s);
    }
}

static void stop_scan(struct scan *s, enum td_rc rc, const char *cause) {
    s->rc = td_fail(s->err, rc, "%s", cause);
    end_scan(s);
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
        end_scan(s);
    }
}

static enum td_rc scan_journal(struct td_loop *loop, struct td_run_dir *d, struct td_err *err) {
    struct scan s = {
        .loop = loop, .follower = &d->found, .journal = d->journal, .err = err, .end = -1};
    td_log_bounds(d->journal, 0, on_bounds, &s);
    bool stopped = false;
    td_loop_run(loop);
    for (; !s.ended; td_loop_run(loop)) { // a signal; what was asked for is awaited all the same
        stopped = true;
    }
    td_log_reader_close(s.reader);
    d->had_journal = s.end > 0;
    return s.rc == TD_OK && stopped ? td_fail(err, TD_ESTOPPED, "stopped before it began") : s.rc;
}

// Said once and before anything is started.
static enum td_rc check_sockets(const struct td_run_dir *d, struct td_err *err) {
    char *longest = td_asprintf("%s/workers/train-%d.sock" TD_IPC_WEIGHTS_SUFFIX, d->path,
                                TD_POOL_WORKERS_MAX - 1);
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
    rc = td_file_sweep(d->path, staged_name, err);
    rc = rc == TD_OK ? td_file_sweep(d->save_dir, latest_name, err) : rc;
    if (rc == TD_OK && opts->fresh) {
        rc = start_over(d, err);
    }
    if (rc == TD_OK) {
        rc = check_orphans(d, err);
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
    end_workers(d);
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
    struct td_err err;
    if (remove_one(d->path, "validation", &err) != TD_OK) {
        td_trace_warn("folder not deleted", "cause=\"%s\"", err.msg);
    }
}

struct closing {
    struct td_loop *loop;
    bool closed;
};

static void on_closed(void *user) {
    struct closing *c = user;
    c->closed = true;
    td_loop_stop(c->loop);
}

void td_run_dir_close(struct td_loop *loop, struct td_run_dir *d) {
    struct td_log *logs[] = {d->journal, d->rollouts};
    for (size_t i = 0; i < 2; i++) {
        struct closing c = {loop, !logs[i]};
        td_log_close(logs[i], on_closed, &c);
        while (!c.closed) { // a signal may stop the loop before
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
