// Settings that name files: see job_paths.h.
#include "cli/job_paths.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/spec/schema.h"

static bool names_files(const struct td_spec_key *key) {
    static const size_t fields[] = {
        offsetof(struct td_job_spec, data.train_files),
        offsetof(struct td_job_spec, data.val_files),
        offsetof(struct td_job_spec, model.path),
        offsetof(struct td_job_spec, trainer.default_local_dir),
        offsetof(struct td_job_spec, trainer.validation_data_dir),
        offsetof(struct td_job_spec, trainer.rollout_data_dir),
    };
    for (size_t i = 0; key->cls == TD_SPEC_DONE && i < sizeof fields / sizeof *fields; i++) {
        if (key->offset == fields[i]) {
            return true;
        }
    }
    return false;
}

// NULL: it is not UTF-8, thus not JSON.
static json_t *absolute(const char *folder, const char *path) {
    return *path == '/' ? json_string(path) : json_sprintf("%s/%s", folder, path);
}

static bool is_relative(const struct td_job_spec *spec, const struct td_spec_key *key) {
    const char *field = (const char *)spec + key->offset;
    if (key->type == TD_SPEC_STRING) {
        const char *path = *(const char *const *)(const void *)field;
        return path && *path != '/';
    }
    const struct td_spec_strings *paths = (const void *)field;
    bool relative = false;
    for (int i = 0; i < paths->count; i++) {
        relative = relative || paths->items[i][0] != '/';
    }
    return relative;
}

// The value of the setting with absolute paths; NULL: one is not UTF-8.
static json_t *value_of(const struct td_job_spec *spec, const struct td_spec_key *key,
                        const char *folder) {
    const char *field = (const char *)spec + key->offset;
    if (key->type == TD_SPEC_STRING) {
        return absolute(folder, *(const char *const *)(const void *)field);
    }
    const struct td_spec_strings *paths = (const void *)field;
    json_t *list = json_array();
    for (int i = 0; list && i < paths->count; i++) {
        if (json_array_append_new(list, absolute(folder, paths->items[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

enum td_rc td_job_paths_find(const struct td_job_spec *spec, struct td_job_paths *out,
                             struct td_err *err) {
    char folder[PATH_MAX];
    if (!getcwd(folder, sizeof folder)) {
        return td_fail_errno(err, errno, "the current folder");
    }
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        unsigned kinds;
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        if (!(kinds & 1u << spec->tandem.kind) || !names_files(key) || !is_relative(spec, key)) {
            continue;
        }
        json_t *value = value_of(spec, key, folder);
        if (!value) {
            return td_fail(err, TD_EINVAL, "%s: the path is not UTF-8", key->name);
        }
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        TD_GROW(out->overrides, out->cap, out->count + 1);
        out->overrides[out->count++] = td_asprintf("%s=%s", key->name, text);
        td_free(text);
        json_decref(value);
    }
    return TD_OK;
}

void td_job_paths_fini(struct td_job_paths *paths) {
    for (size_t i = 0; i < paths->count; i++) {
        td_free(paths->overrides[i]);
    }
    td_free(paths->overrides);
    *paths = (struct td_job_paths){0};
}
