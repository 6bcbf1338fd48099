// Manifests: see manifest.h.
#include "controllers/train/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { MANIFEST_BYTES_MAX = 16 << 20 };

static void add_file(json_t *files, const char *name, uint64_t digest, uint64_t size) {
    char hex[24];
    snprintf(hex, sizeof hex, "%016" PRIx64, digest);
    json_array_append_new(
        files, json_pack("{s:s,s:s,s:I}", "name", name, "digest", hex, "size", (json_int_t)size));
}

static enum td_rc write_state(const char *folder, const struct td_buf *state, json_t *files,
                              struct td_err *err) {
    char *path = td_asprintf("%s/journal.state", folder);
    uint64_t digest = 0, size = 0;
    enum td_rc rc = td_file_write(path, state->data, state->len, err);
    if (rc == TD_OK) {
        rc = td_file_digest(path, &digest, &size, err);
    }
    if (rc == TD_OK) {
        add_file(files, "journal.state", digest, size);
    }
    td_free(path);
    return rc;
}

enum td_rc td_manifest_write(const char *folder, const Tandem__Journal__Checkpoint *checkpoint,
                             const Tandem__Worker__Saved *saved, const struct td_buf *journal_state,
                             uint64_t *digest, struct td_err *err) {
    char id[24], state[24];
    snprintf(id, sizeof id, "%016" PRIx64, checkpoint->id);
    snprintf(state, sizeof state, "%016" PRIx64, checkpoint->state_digest);
    json_t *files = json_array();
    for (size_t i = 0; i < saved->n_files; i++) {
        add_file(files, saved->files[i]->name, saved->files[i]->digest, saved->files[i]->size);
    }
    enum td_rc rc = write_state(folder, journal_state, files, err);
    json_t *root =
        json_pack("{s:i,s:s,s:I,s:I,s:I,s:I,s:s,s:o}", "format", 1, "id", id, "job",
                  (json_int_t)checkpoint->job, "lineage", (json_int_t)checkpoint->version->lineage,
                  "step", (json_int_t)checkpoint->version->step, "generation",
                  (json_int_t)checkpoint->generation, "state_digest", state, "files", files);
    char *text = json_dumps(root, JSON_INDENT(1));
    if (rc == TD_OK) {
        char *path = td_asprintf("%s/manifest.json", folder);
        rc = td_file_write(path, text, strlen(text), err);
        td_free(path);
    }
    if (rc == TD_OK) {
        char *parent = td_asprintf("%s/..", folder); // the folder's own name must last too
        rc = td_sync_dir(parent, err);
        td_free(parent);
    }
    if (rc == TD_OK) {
        *digest = td_digest64(0, text, strlen(text));
    }
    td_free(text);
    json_decref(root);
    return rc;
}

static enum td_rc verify_file(const char *folder, const json_t *file, struct td_err *err) {
    const char *name = json_string_value(json_object_get(file, "name"));
    const char *hex = json_string_value(json_object_get(file, "digest"));
    json_int_t size = json_integer_value(json_object_get(file, "size"));
    if (!name || !hex || strchr(name, '/')) {
        return td_fail(err, TD_ECORRUPT, "%s/manifest.json: a file without name or digest", folder);
    }
    char *path = td_asprintf("%s/%s", folder, name);
    uint64_t digest = 0, found_size = 0;
    enum td_rc rc = td_file_digest(path, &digest, &found_size, err);
    if (rc == TD_OK && (found_size != (uint64_t)size || digest != strtoull(hex, NULL, 16))) {
        rc = td_fail(err, TD_ECORRUPT,
                     "%s: %" PRIu64 " bytes with digest %016" PRIx64
                     ", the manifest says %lld and %s",
                     path, found_size, digest, (long long)size, hex);
    }
    td_free(path);
    return rc;
}

enum td_rc td_manifest_verify(const char *folder, uint64_t digest, struct td_err *err) {
    char *path = td_asprintf("%s/manifest.json", folder);
    struct td_buf text = {0};
    json_t *root = NULL;
    enum td_rc rc = td_file_read(path, MANIFEST_BYTES_MAX, &text, err);
    if (rc == TD_OK && td_digest64(0, td_buf_str(&text), text.len) != digest) {
        rc = td_fail(err, TD_ECORRUPT, "%s: digest %016" PRIx64 ", the journal says %016" PRIx64,
                     path, td_digest64(0, td_buf_str(&text), text.len), digest);
    }
    if (rc == TD_OK) {
        root = json_loadb(td_buf_str(&text), text.len, 0, NULL);
        const json_t *files = json_object_get(root, "files");
        for (size_t i = 0; rc == TD_OK && i < json_array_size(files); i++) {
            rc = verify_file(folder, json_array_get(files, i), err);
        }
    }
    json_decref(root);
    td_buf_fini(&text);
    td_free(path);
    return rc;
}
