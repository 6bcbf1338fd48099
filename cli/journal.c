// `tandem journal adopt`: a new journal for jobs whose old one is lost, from the states that their
// checkpoints embed. Run while no daemon of the cluster does.
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/journal_log.h"
#include "cli/options.h"
#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/daemon/daemon.h"
#include "lib/io/runlock.h"
#include "lib/journal/adopt.h"
#include "lib/journal/state.h"

enum { MANIFEST_BYTES_MAX = 16 << 20 };

struct found { // the best checkpoint of a job
    uint64_t job;
    Tandem__Journal__Checkpoint checkpoint;
    Tandem__Journal__Version version;
    Tandem__Journal__JournalState *state; // owned
    char *folder;                         // owned; its name
};

struct adoption {
    const struct td_daemon_settings *settings;
    struct td_arena *arena;
    struct found jobs[TD_JOBS_MAX];
    size_t count;
    uint64_t term; // highest known
};

// ---- one checkpoint ----

static uint64_t hex_of(const json_t *root, const char *key) {
    const char *text = json_string_value(json_object_get(root, key));
    return text ? strtoull(text, NULL, 16) : 0;
}

static enum td_rc check_file(const char *folder, const json_t *file, struct td_err *err) {
    const char *name = json_string_value(json_object_get(file, "name"));
    uint64_t digest = 0, size = 0;
    if (!name || strchr(name, '/')) {
        return td_fail(err, TD_ECORRUPT, "%s/manifest.json: a file without a name", folder);
    }
    char *path = td_asprintf("%s/%s", folder, name);
    enum td_rc rc = td_file_digest(path, &digest, &size, err);
    if (rc == TD_OK && digest != hex_of(file, "digest")) {
        rc = td_fail(err, TD_ECORRUPT, "%s is damaged", path);
    }
    td_free(path);
    return rc;
}

static enum td_rc read_manifest(const char *folder, struct found *out, struct td_err *err) {
    char *path = td_asprintf("%s/manifest.json", folder);
    struct td_buf text = {0};
    enum td_rc rc = td_file_read(path, MANIFEST_BYTES_MAX, &text, err);
    json_t *root = rc == TD_OK ? json_loadb(td_buf_str(&text), text.len, 0, NULL) : NULL;
    if (rc == TD_OK && (!root || json_integer_value(json_object_get(root, "format")) != 1)) {
        rc = td_fail(err, TD_ECORRUPT, "%s: not a manifest of format 1", path);
    }
    const json_t *files = json_object_get(root, "files");
    for (size_t i = 0; rc == TD_OK && i < json_array_size(files); i++) {
        rc = check_file(folder, json_array_get(files, i), err);
    }
    if (rc == TD_OK) {
        tandem__journal__version__init(&out->version);
        tandem__journal__checkpoint__init(&out->checkpoint);
        out->job = (uint64_t)json_integer_value(json_object_get(root, "job"));
        out->version.lineage = (uint64_t)json_integer_value(json_object_get(root, "lineage"));
        out->version.step = (uint64_t)json_integer_value(json_object_get(root, "step"));
        out->checkpoint.job = out->job;
        out->checkpoint.id = hex_of(root, "id");
        out->checkpoint.generation =
            (uint64_t)json_integer_value(json_object_get(root, "generation"));
        out->checkpoint.state_digest = hex_of(root, "state_digest");
        out->checkpoint.manifest_digest = td_digest64(0, td_buf_str(&text), text.len);
    }
    json_decref(root);
    td_buf_fini(&text);
    td_free(path);
    return rc;
}

static enum td_rc read_state(const char *folder, struct found *out, struct td_err *err) {
    char *path = td_asprintf("%s/journal.state", folder);
    struct td_buf bytes = {0};
    enum td_rc rc = td_file_read(path, TD_STATE_BYTES_MAX, &bytes, err);
    if (rc == TD_OK) {
        out->state = tandem__journal__journal_state__unpack(NULL, bytes.len, bytes.data);
        rc = out->state ? TD_OK : td_fail(err, TD_ECORRUPT, "%s does not decode", path);
    }
    td_buf_fini(&bytes);
    td_free(path);
    return rc;
}

static void forget(struct found *f) {
    if (f->state) {
        tandem__journal__journal_state__free_unpacked(f->state, NULL);
    }
    td_free(f->folder);
    *f = (struct found){0};
}

static bool newer(const struct found *a, const struct found *b) {
    return a->version.lineage != b->version.lineage ? a->version.lineage > b->version.lineage
                                                    : a->version.step > b->version.step;
}

// Keeps it when it is the best of its job so far; a damaged one is told and passed over.
static void take_checkpoint(struct adoption *a, const char *folder, const char *name) {
    struct found f = {0};
    struct td_err err;
    enum td_rc rc = read_manifest(folder, &f, &err);
    rc = rc == TD_OK ? read_state(folder, &f, &err) : rc;
    if (rc != TD_OK) {
        fprintf(stderr, "tandem journal: passed over: %s\n", err.msg);
        forget(&f);
        return;
    }
    f.folder = td_strdup(name);
    a->term = f.state->term > a->term ? f.state->term : a->term;
    size_t i = 0;
    while (i < a->count && a->jobs[i].job != f.job) {
        i++;
    }
    if (i == TD_JOBS_MAX || (i < a->count && !newer(&f, &a->jobs[i]))) {
        forget(&f);
        return;
    }
    if (i == a->count) {
        a->count++;
    } else {
        forget(&a->jobs[i]);
    }
    a->jobs[i] = f;
}

static void scan_job(struct adoption *a, const char *job) {
    char *dir = td_asprintf("%s/jobs/%s/checkpoints", a->settings->shared_dir, job);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *folder = td_asprintf("%s/%s", dir, e->d_name),
             *manifest = td_asprintf("%s/manifest.json", folder);
        if (e->d_name[0] != '.' && td_file_exists(manifest)) {
            take_checkpoint(a, folder, e->d_name);
        }
        td_free(folder);
        td_free(manifest);
    }
    if (d) {
        closedir(d);
    }
    td_free(dir);
}

static void scan(struct adoption *a) {
    char *dir = td_asprintf("%s/jobs", a->settings->shared_dir);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strspn(e->d_name, "0123456789") == strlen(e->d_name)) {
            scan_job(a, e->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    td_free(dir);
}

// ---- the new journal ----

static const Tandem__Journal__JobState *job_in(const struct found *f) {
    for (size_t i = 0; i < f->state->n_jobs; i++) {
        if (f->state->jobs[i]->job && f->state->jobs[i]->job->job == f->job) {
            return f->state->jobs[i];
        }
    }
    return NULL;
}

static enum td_rc adopt_job(struct adoption *a, struct found *f, Tandem__Journal__Init *init,
                            struct td_err *err) {
    const Tandem__Journal__JobState *from = job_in(f);
    if (!from) {
        return td_fail(err, TD_ECORRUPT, "%s: the state in it does not know job %" PRIu64,
                       f->folder, f->job);
    }
    Tandem__Journal__JobState *out = td_arena_alloc(a->arena, sizeof *out);
    f->checkpoint.version = &f->version;
    f->checkpoint.folder = f->folder;
    uint64_t log = from->job->rollout_log ? td_random_id() : 0;
    enum td_rc rc = td_journal_adopt(from, &f->checkpoint, log, a->arena, out, err);
    if (rc != TD_OK) {
        return td_err_in(err, "%s", f->folder);
    }
    init->adopted[init->n_adopted++] = out;
    printf("job %" PRIu64 ": from step %" PRIu64 ", lineage %" PRIu64 "\n", f->job, f->version.step,
           out->lineage);
    return TD_OK;
}

static enum td_rc make_journal(struct adoption *a, struct td_err *err) {
    Tandem__Journal__Init init = TANDEM__JOURNAL__INIT__INIT;
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    enum td_rc rc = TD_OK;
    init.term_floor = a->term + 1;
    init.adopted = td_arena_alloc(a->arena, (a->count + 1) * sizeof *init.adopted);
    for (size_t i = 0; rc == TD_OK && i < a->count; i++) {
        rc = adopt_job(a, &a->jobs[i], &init, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    prev.offset = -1;
    record.format = TD_JOURNAL_FORMAT;
    record.journal_id = td_random_id();
    record.owner = td_random_id();
    record.prev = &prev;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_INIT;
    record.init = &init;
    rc = td_journal_log_make(a->settings, &record, err);
    if (rc == TD_OK) {
        rc = td_daemon_write_id(a->settings->dir, "journal-id", record.journal_id, err);
        printf("journal %016" PRIx64
               " adopts %zu job%s. Other coordinators still expect the old one: "
               "remove journal-id from their run directories.\n",
               record.journal_id, a->count, a->count == 1 ? "" : "s");
    }
    return rc;
}

static int adopt(const struct td_daemon_settings *settings) {
    struct adoption a = {.settings = settings, .arena = td_arena_new()};
    struct td_err err;
    int lock = -1;
    enum td_rc rc = td_make_dirs(settings->dir, &err);
    rc = rc == TD_OK ? td_run_lock(settings->dir, &lock, &err) : rc;
    rc = rc == TD_OK ? td_journal_log_absent(settings, &err) : rc;
    if (rc == TD_OK) {
        scan(&a);
        rc = a.count ? make_journal(&a, &err)
                     : td_fail(&err, TD_ENOENT, "%s/jobs holds no checkpoint to adopt",
                               settings->shared_dir);
    }
    if (rc != TD_OK) {
        fprintf(stderr, "tandem journal: %s\n", err.msg);
    }
    for (size_t i = 0; i < a.count; i++) {
        forget(&a.jobs[i]);
    }
    td_arena_free(a.arena);
    if (lock >= 0) {
        close(lock);
    }
    return rc == TD_OK ? TD_CLI_OK : TD_CLI_FAILED;
}

int td_cli_journal(int argc, char **argv) {
    const char *path = NULL;
    const struct td_cli_option options[] = {{"--file", 'f', TD_CLI_TEXT, &path}, {0}};
    int status = td_cli_options(&argc, argv, options);
    if (status == TD_CLI_OK && (argc < 2 || strcmp(argv[1], "adopt") != 0 || !path)) {
        fprintf(stderr, "usage: tandem journal adopt -f COORDINATOR.yaml [key=value ...]\n");
        status = TD_CLI_USAGE;
    }
    if (status != TD_CLI_OK) {
        return status;
    }
    struct td_spec_text text = {.name = path,
                                .overrides = (const char *const *)argv + 2,
                                .override_count = (size_t)argc - 2};
    struct td_spec_notes notes = {0};
    struct td_daemon_settings *settings = NULL;
    struct td_err err;
    enum td_rc rc = td_daemon_settings_load(TD_DAEMON_COORDINATOR, &text, &settings, &notes, &err);
    fputs(td_buf_str(&notes.errors), stderr);
    if (rc != TD_OK && !notes.error_count) {
        fprintf(stderr, "tandem journal: %s\n", err.msg);
    }
    status = rc == TD_OK ? adopt(settings) : TD_CLI_USAGE;
    td_daemon_settings_free(settings);
    td_spec_notes_fini(&notes);
    return status;
}
