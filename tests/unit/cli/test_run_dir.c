// The run directory: its lock, its logs, what an earlier run left, and what --fresh deletes.
#include "cli/run_dir.h"

#include <string.h>
#include <sys/stat.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/loop.h"
#include "tests/unit/text/folder.h"
#include "tests/unit/worker/client.h"

struct fixture {
    struct td_loop *loop;
    char *dir, *run, *save;
    struct td_run_dir_opts opts;
    struct td_run_dir d;
    struct td_err err;
};

static void make(struct fixture *f) {
    *f = (struct fixture){.dir = folder_new()};
    f->run = td_asprintf("%s/run", f->dir);
    f->save = td_asprintf("%s/save", f->dir);
    f->opts = (struct td_run_dir_opts){.path = f->run, .save_dir = f->save, .rollouts = true};
    assert_int_equal(td_loop_new(&f->loop, NULL), TD_OK);
}

static void fini(struct fixture *f) {
    td_loop_free(f->loop);
    folder_fini(f->dir);
    td_free(f->run);
    td_free(f->save);
}

static void open_dir(struct fixture *f) {
    if (td_run_dir_open(f->loop, &f->opts, &f->d, &f->err) != TD_OK) {
        fail_msg("%s", f->err.msg);
    }
}

static void close_dir(struct fixture *f) {
    td_run_dir_close(f->loop, &f->d);
}

static void expect_refused(struct fixture *f, enum td_rc code, const char *part) {
    struct td_run_dir d = {.lock = -7};
    enum td_rc rc = td_run_dir_open(f->loop, &f->opts, &d, &f->err);
    if (rc != code || !strstr(f->err.msg, part)) {
        fail_msg("expected %s '%s', got %s '%s'", td_rc_name(code), part, td_rc_name(rc),
                 f->err.msg);
    }
    assert_int_equal(d.lock, -7); // untouched
}

static bool is_there(const struct fixture *f, const char *name) {
    char *path = td_asprintf("%s/%s", f->dir, name);
    struct stat st;
    bool there = lstat(path, &st) == 0;
    td_free(path);
    return there;
}

static void put(const struct fixture *f, const char *name) {
    char *path = td_strdup(name), *slash = strrchr(path, '/');
    *slash = 0;
    char *folder = td_asprintf("%s/%s", f->dir, path);
    assert_int_equal(td_make_dirs(folder, NULL), TD_OK);
    folder_put(folder, slash + 1, "x", 1);
    td_free(folder);
    td_free(path);
}

static void test_run_dir_opens_again(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    open_dir(&f);
    uint64_t journal = td_log_id(f.d.journal), rollouts = td_log_id(f.d.rollouts);
    assert_true(journal && rollouts && journal != rollouts);
    assert_true(f.d.lock >= 0 && !f.d.had_journal && f.d.path[0] == '/');
    close_dir(&f);
    assert_int_equal(f.d.lock, -1);
    open_dir(&f);
    assert_true(td_log_id(f.d.journal) == journal && td_log_id(f.d.rollouts) == rollouts);
    close_dir(&f);
    f.opts.rollouts = false; // a job over rows
    f.opts.save_dir = NULL;
    open_dir(&f);
    assert_null(f.d.rollouts);
    assert_string_equal(f.d.save_dir, f.d.path);
    close_dir(&f);
    fini(&f);
}

static void test_run_dir_is_locked(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    open_dir(&f);
    char pid[32];
    snprintf(pid, sizeof pid, "process %d", (int)getpid());
    expect_refused(&f, TD_ECONFLICT, pid);
    f.opts.fresh = true; // neither does that take it away
    put(&f, "run/checkpoints/step-2-g1-00/x");
    expect_refused(&f, TD_ECONFLICT, pid);
    assert_true(is_there(&f, "run/checkpoints/step-2-g1-00/x"));
    close_dir(&f);
    fini(&f);
}

static const char *const own[] = {"run/checkpoints/step-2-g1-00ab/manifest.json",
                                  "run/metrics.jsonl",
                                  "run/metrics.staged.json",
                                  "run/validation/2/00000000000000ab",
                                  "run/workers/old.sock",
                                  "save/global_step_2/manifest.json",
                                  "save/global_step_10/state.json",
                                  "save/latest_checkpointed_iteration.txt"};
static const char *const foreign[] = {"run/notes.txt",
                                      "run/journal.old/log",
                                      "run/metrics.jsonl.bak",
                                      "run/checkpoints-of-mine/x",
                                      "save/global_step_",
                                      "save/global_step_2.bak",
                                      "save/global_step_best/x",
                                      "save/my_global_step_2",
                                      "save/latest_checkpointed_iteration.txt.old",
                                      "save/latest_checkpointed_iteration.txt.tmp.x"};
enum { OWN = sizeof own / sizeof *own, FOREIGN = sizeof foreign / sizeof *foreign };

static void test_run_dir_fresh(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    open_dir(&f);
    uint64_t journal = td_log_id(f.d.journal), rollouts = td_log_id(f.d.rollouts);
    close_dir(&f);
    for (size_t i = 0; i < OWN + FOREIGN; i++) {
        put(&f, i < OWN ? own[i] : foreign[i - OWN]);
    }
    open_dir(&f);
    close_dir(&f);
    for (size_t i = 0; i < OWN; i++) { // not without being asked
        assert_true(is_there(&f, own[i]));
    }
    f.opts.fresh = true;
    open_dir(&f);
    assert_true(td_log_id(f.d.journal) != journal && td_log_id(f.d.rollouts) != rollouts);
    for (size_t i = 0; i < OWN; i++) {
        if (is_there(&f, own[i])) {
            fail_msg("left: %s", own[i]);
        }
    }
    for (size_t i = 0; i < FOREIGN; i++) {
        if (!is_there(&f, foreign[i])) {
            fail_msg("deleted: %s", foreign[i]);
        }
    }
    close_dir(&f);
    fini(&f);
}

// --fresh does not follow a link out of the run directory.
static void test_run_dir_fresh_and_links(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    open_dir(&f);
    close_dir(&f);
    put(&f, "elsewhere/precious");
    char *from = td_asprintf("%s/elsewhere", f.dir), *to = td_asprintf("%s/checkpoints", f.run);
    assert_int_equal(symlink(from, to), 0);
    f.opts.fresh = true;
    open_dir(&f);
    assert_true(is_there(&f, "elsewhere/precious") && !is_there(&f, "run/checkpoints"));
    close_dir(&f);
    td_free(from);
    td_free(to);
    fini(&f);
}

static void test_run_dir_fresh_ends_workers(void **state) {
    (void)state;
    struct fixture f;
    struct tiny_job job;
    struct client c;
    make(&f);
    tiny_job_new(&job, TD_JOB_SFT, NULL);
    open_dir(&f);
    close_dir(&f);
    td_free(job.dir); // the worker's socket lies in the run directory
    job.dir = td_strdup(f.run);
    put(&f, "run/workers/x");
    client_start_at(&c, &job, "workers/train-0.sock", 60);
    client_disconnect(&c);
    f.opts.fresh = true;
    open_dir(&f);
    client_expect_exit(&c, 0);
    client_end(&c);
    close_dir(&f);
    tiny_job_free(&job);
    fini(&f);
}

// Where something of a run lies without its journal, none is made.
static void test_run_dir_without_its_journal(void **state) {
    (void)state;
    static const char *const left[] = {"run/checkpoints/step-2-g1-00ab/manifest.json",
                                       "run/metrics.jsonl", "run/rollouts/log"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        struct fixture f;
        make(&f);
        put(&f, left[i]);
        expect_refused(&f, TD_ECONFLICT, "--fresh");
        assert_non_null(strstr(f.err.msg, "journal/log"));
        assert_true(is_there(&f, left[i]) && !is_there(&f, "run/journal"));
        f.opts.fresh = true;
        open_dir(&f);
        close_dir(&f);
        fini(&f);
    }
    struct fixture f; // begun, but killed before the journal was there
    make(&f);
    put(&f, "run/journal/lock");
    put(&f, "run/workers/x");
    put(&f, "run/lock");
    open_dir(&f);
    close_dir(&f);
    fini(&f);
}

static void test_run_dir_temporary_files(void **state) {
    (void)state;
    static const char *const tmp[] = {"run/metrics.staged.json.tmp.4711",
                                      "save/latest_checkpointed_iteration.txt.tmp.1"};
    static const char *const kept[] = {"run/metrics.staged.json.tmp.", "run/metrics.staged.json",
                                       "run/other.tmp.12"};
    struct fixture f;
    make(&f);
    for (size_t i = 0; i < 2; i++) {
        put(&f, tmp[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        put(&f, kept[i]);
    }
    open_dir(&f);
    assert_true(!is_there(&f, tmp[0]) && !is_there(&f, tmp[1]));
    assert_true(is_there(&f, kept[0]) && is_there(&f, kept[1]) && is_there(&f, kept[2]));
    close_dir(&f);
    fini(&f);
}

static void test_run_dir_bad_places(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    put(&f, "file/x");
    f.opts.path = td_asprintf("%s/file/x", f.dir);
    expect_refused(&f, TD_EIO, "tandem.run_dir");
    td_free((void *)(uintptr_t)f.opts.path);
    char deep[160];
    memset(deep, 'd', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    f.opts.path = td_asprintf("%s/%s", f.dir, deep);
    expect_refused(&f, TD_EINVAL, "tandem.run_dir");
    td_free((void *)(uintptr_t)f.opts.path);
    f.opts.path = f.run;
    f.opts.save_dir = td_asprintf("%s/file/x/y", f.dir);
    expect_refused(&f, TD_ENOENT, "file/x");
    td_free((void *)(uintptr_t)f.opts.save_dir);
    fini(&f);
}

// Interrupted while it is opened: nothing is left locked, nothing is called later.
static void test_run_dir_stopped(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    for (int i = 0; i < 2; i++) {
        td_loop_stop(f.loop);
        expect_refused(&f, TD_ESTOPPED, "stopped");
        open_dir(&f);
        td_loop_stop(f.loop); // and while it is closed
        close_dir(&f);
    }
    fini(&f);
}

// Folders of checkpoints that the journal does not keep go, and answers nobody puts together any
// more; nothing else does.
static void test_run_dir_tidy(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    open_dir(&f);
    put(&f, "run/checkpoints/step-2-g1-0a/x");
    put(&f, "run/checkpoints/step-4-g1-0b/x");
    put(&f, "run/checkpoints/step-6-g2-0c/x");
    put(&f, "run/validation/6/00000000000000ab");
    put(&f, "save/global_step_4/x");
    Tandem__Journal__Checkpoint kept[2] = {TANDEM__JOURNAL__CHECKPOINT__INIT,
                                           TANDEM__JOURNAL__CHECKPOINT__INIT};
    kept[0].folder = (char *)"step-4-g1-0b";
    kept[1].folder = (char *)"step-6-g2-0c";
    struct td_job_state job = {.kept = {&kept[0], &kept[1]}, .kept_count = 2};
    td_run_dir_tidy(&f.d, &job);
    assert_false(is_there(&f, "run/checkpoints/step-2-g1-0a"));
    assert_false(is_there(&f, "run/validation"));
    assert_true(is_there(&f, "run/checkpoints/step-4-g1-0b/x"));
    assert_true(is_there(&f, "run/checkpoints/step-6-g2-0c/x"));
    assert_true(is_there(&f, "save/global_step_4/x"));
    close_dir(&f);
    fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_dir_opens_again),
        cmocka_unit_test(test_run_dir_is_locked),
        cmocka_unit_test(test_run_dir_fresh),
        cmocka_unit_test(test_run_dir_fresh_and_links),
        cmocka_unit_test(test_run_dir_fresh_ends_workers),
        cmocka_unit_test(test_run_dir_without_its_journal),
        cmocka_unit_test(test_run_dir_temporary_files),
        cmocka_unit_test(test_run_dir_bad_places),
        cmocka_unit_test(test_run_dir_stopped),
        cmocka_unit_test(test_run_dir_tidy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
