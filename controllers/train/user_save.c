// The user's checkpoints: see user_save.h.
#include "controllers/train/user_save.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { MANIFEST_BYTES_MAX = 16 << 20, FILES_MAX = 1024 };

static enum td_rc add_file(json_t *files, const char *folder, const char *name,
                           struct td_err *err) {
    char *path = td_asprintf("%s/%s", folder, name);
    uint64_t digest = 0, size = 0;
    enum td_rc rc = td_file_digest(path, &digest, &size, err);
    td_free(path);
    if (rc == TD_OK) {
        char hex[24];
        snprintf(hex, sizeof hex, "%016" PRIx64, digest);
        json_object_set_new(files, name,
                            json_pack("{s:s,s:I}", "digest", hex, "size", (json_int_t)size));
    }
    return rc;
}

// Every plain file of FOLDER/SUB (SUB "" is the folder itself), by its name under FOLDER.
static enum td_rc add_files(json_t *files, const char *folder, const char *sub,
                            struct td_err *err) {
    char *path = td_asprintf("%s/%s", folder, sub);
    DIR *d = opendir(path);
    enum td_rc rc = d ? TD_OK : td_fail(err, TD_ENOENT, "%s: no such folder", path);
    for (struct dirent *e; rc == TD_OK && (e = readdir(d));) {
        char *name = td_asprintf("%s%s%s", sub, sub[0] ? "/" : "", e->d_name);
        char *full = td_asprintf("%s/%s", folder, name);
        struct stat st;
        if (stat(full, &st) == 0 && S_ISREG(st.st_mode)) {
            rc = json_object_size(files) < FILES_MAX
                     ? add_file(files, folder, name, err)
                     : td_fail(err, TD_ELIMIT, "%s: more than %d files", folder, FILES_MAX);
        }
        td_free(full);
        td_free(name);
    }
    if (d) {
        closedir(d);
    }
    td_free(path);
    return rc;
}

static enum td_rc write_json(const char *folder, const char *name, const json_t *root,
                             struct td_err *err) {
    char *path = td_asprintf("%s/%s", folder, name);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    enum td_rc rc = td_file_write(path, text, strlen(text), err);
    td_free(text);
    td_free(path);
    return rc;
}

static json_t *state_of(const struct td_user_save *s) {
    const Tandem__Journal__Checkpoint *c = s->checkpoint;
    char digest[24];
    snprintf(digest, sizeof digest, "%016" PRIx64, c->state_digest);
    return json_pack("{s:i,s:I,s:I,s:I,s:s,s:{s:I,s:I},s:{s:s,s:I},s:{}}", "format", 1, "job",
                     (json_int_t)c->job, "lineage", (json_int_t)c->version->lineage, "global_step",
                     (json_int_t)c->version->step, "state_digest", digest, "data", "data_epoch",
                     (json_int_t)s->cursor.data_epoch, "index", (json_int_t)s->cursor.index, "rng",
                     "algorithm", "philox4x32-10", "seed", (json_int_t)s->seed, "algorithm");
}

static char *announced_path(const struct td_user_save *s) {
    return td_asprintf("%s/announced", s->run_dir);
}

static bool newer_is_announced(const struct td_user_save *s) {
    char *path = announced_path(s), *end = NULL;
    struct td_buf text = {0};
    const Tandem__Journal__Version *mine = s->checkpoint->version;
    uint64_t lineage = 0, step = 0;
    if (td_file_read(path, 64, &text, NULL) == TD_OK) {
        lineage = strtoull(td_buf_str(&text), &end, 10);
        step = strtoull(end, NULL, 10);
    }
    td_buf_fini(&text);
    td_free(path);
    return lineage > mine->lineage || (lineage == mine->lineage && step > mine->step);
}

static enum td_rc note_announced(const struct td_user_save *s, struct td_err *err) {
    char *path = announced_path(s), text[48];
    int n = snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 "\n",
                     s->checkpoint->version->lineage, s->checkpoint->version->step);
    enum td_rc rc = td_file_write(path, text, (size_t)n, err);
    td_free(path);
    return rc;
}

enum td_rc td_user_save_announce(const struct td_user_save *s, struct td_err *err) {
    if (newer_is_announced(s)) {
        return TD_OK;
    }
    char *path = td_asprintf("%s/latest_checkpointed_iteration.txt", s->save_dir);
    char number[24];
    int n = snprintf(number, sizeof number, "%" PRIu64, s->checkpoint->version->step);
    enum td_rc rc = td_sync_dir(s->save_dir, err); // what is named must be there
    rc = rc == TD_OK ? note_announced(s, err) : rc;
    rc = rc == TD_OK ? td_file_write(path, number, (size_t)n, err) : rc;
    td_free(path);
    return rc;
}

enum td_rc td_user_save_finish(const struct td_user_save *s, struct td_err *err) {
    json_t *state = state_of(s), *files = json_object();
    enum td_rc rc = write_json(s->folder, "state.json", state, err);
    static const char *const subs[] = {"", "actor", "actor/huggingface"};
    for (size_t i = 0; rc == TD_OK && i < sizeof subs / sizeof *subs; i++) {
        rc = add_files(files, s->folder, subs[i], err);
    }
    if (rc == TD_OK) {
        json_t *root = json_pack("{s:i,s:O,s:O}", "format", 1, "state_digest",
                                 json_object_get(state, "state_digest"), "files", files);
        rc = write_json(s->folder, "manifest.json", root, err);
        json_decref(root);
    }
    json_decref(state);
    json_decref(files);
    return rc == TD_OK ? td_user_save_announce(s, err) : rc;
}

static bool files_are_there(const char *folder, json_t *files) {
    const char *name;
    json_t *file;
    bool there = json_object_size(files) > 0;
    json_object_foreach(files, name, file) {
        char *path = td_asprintf("%s/%s", folder, name);
        struct stat st;
        there = there && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
                st.st_size == json_integer_value(json_object_get(file, "size"));
        td_free(path);
    }
    return there;
}

bool td_user_save_is_whole(const char *folder, uint64_t state_digest) {
    char *path = td_asprintf("%s/manifest.json", folder);
    struct td_buf text = {0};
    struct td_err err;
    bool whole = false;
    if (td_file_read(path, MANIFEST_BYTES_MAX, &text, &err) == TD_OK) {
        json_t *root = json_loadb(td_buf_str(&text), text.len, 0, NULL);
        const char *found = json_string_value(json_object_get(root, "state_digest"));
        char hex[24];
        snprintf(hex, sizeof hex, "%016" PRIx64, state_digest);
        whole = found && strcmp(found, hex) == 0 &&
                files_are_there(folder, json_object_get(root, "files"));
        json_decref(root);
    }
    td_buf_fini(&text);
    td_free(path);
    return whole;
}
