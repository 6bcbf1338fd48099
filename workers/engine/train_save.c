// What a trainer leaves on disk and takes back: digests, recovery folders, the user's export: see
// train.h. Command thread.
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "workers/engine/train_int.h"
#include "workers/model/hf.h"

enum { FORMAT = 1, TRAINER_JSON_MAX = 1 << 16 };

static const char *const file_names[] = {"model.safetensors", "optimizer.safetensors",
                                         "trainer.json"};
enum { FILE_COUNT = sizeof file_names / sizeof *file_names };
_Static_assert((int)FILE_COUNT <= (int)TD_SAVED_FILES_MAX, "room for all files");

#define EXP_AVG "exp_avg."
#define EXP_AVG_SQ "exp_avg_sq."

void td_trainer_digest(struct td_trainer *t, uint64_t *weight, uint64_t *state) {
    *weight = td_weights_digest(t->m, &t->weights.flat);
    *state = *weight + td_hash_u64(td_mix64(t->status.optimizer_steps), t->status.step);
    td_model_digest_as(t->m, &t->exp_avg, EXP_AVG, state);
    td_model_digest_as(t->m, &t->exp_avg_sq, EXP_AVG_SQ, state);
}

static enum td_rc save_optimizer(struct td_trainer *t, const char *path, struct td_err *err) {
    struct td_hf_flat flats[] = {{EXP_AVG, t->exp_avg}, {EXP_AVG_SQ, t->exp_avg_sq}};
    return td_hf_save(t->m, path, TD_F32, flats, 2, err);
}

static enum td_rc save_state(struct td_trainer *t, const char *path, struct td_err *err) {
    uint64_t weight, state;
    struct td_buf text = {0};
    td_trainer_digest(t, &weight, &state);
    td_buf_printf(&text,
                  "{\"format\": %d, \"lineage\": %" PRIu64 ", \"step\": %" PRIu64
                  ", \"optimizer_steps\": %" PRIu64 ", \"weight_digest\": \"%016" PRIx64
                  "\", \"state_digest\": \"%016" PRIx64 "\"}\n",
                  FORMAT, t->status.lineage, t->status.step, t->status.optimizer_steps, weight,
                  state);
    enum td_rc rc = td_file_write(path, text.data, text.len, err);
    td_buf_fini(&text);
    return rc;
}

static enum td_rc save_files(struct td_trainer *t, const char *dir, struct td_saved_file *files,
                             struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (int i = 0; rc == TD_OK && i < FILE_COUNT; i++) {
        char *path = td_asprintf("%s/%s", dir, file_names[i]);
        struct td_hf_flat weights = {"", t->weights.flat};
        rc = i == 0   ? td_hf_save(t->m, path, TD_F32, &weights, 1, err)
             : i == 1 ? save_optimizer(t, path, err)
                      : save_state(t, path, err);
        rc = rc ? rc : td_file_digest(path, &files[i].digest, &files[i].size, err);
        int n = snprintf(files[i].name, sizeof files[i].name, "%s", file_names[i]);
        td_assert_op(n, <, (int)sizeof files[i].name);
        td_free(path);
    }
    return rc;
}

// Only a whole version may leave.
static enum td_rc check_version(const struct td_trainer *t, const char *dir, struct td_err *err) {
    if (t->status.generation == 0 || t->status.applied > 0) {
        return td_fail(err, TD_ECONFLICT, "%s: there is no version to save: %s", dir,
                       t->status.generation ? "a round is half done" : "nothing is loaded");
    }
    return TD_OK;
}

enum td_rc td_trainer_save(struct td_trainer *t, const char *dir,
                           struct td_saved_file files[TD_SAVED_FILES_MAX], int *count,
                           struct td_err *err) {
    enum td_rc rc = check_version(t, dir, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (t->be->dtype != TD_F32) {
        return td_fail(err, TD_EUNSUPPORTED, "%s: checkpoints hold float32; backend %s does not",
                       dir, t->be->ops->name);
    }
    if (mkdir(dir, 0777) != 0) {
        return errno == EEXIST ? td_fail(err, TD_ECONFLICT, "%s exists already", dir)
                               : td_fail_errno(err, errno, "%s", dir);
    }
    rc = save_files(t, dir, files, err);
    rc = rc ? rc : td_sync_dir(dir, err);
    if (rc != TD_OK) {
        if (td_remove_tree(dir, NULL) != TD_OK) {
            rc = td_err_in(err, "%s could not be removed again", dir);
        }
        return rc;
    }
    *count = FILE_COUNT;
    return TD_OK;
}

struct saved_state {
    uint64_t step, optimizer_steps, state_digest;
};

static enum td_rc load_state(const char *path, struct saved_state *out, struct td_err *err) {
    struct td_buf text = {0};
    enum td_rc rc = td_file_read(path, TRAINER_JSON_MAX, &text, err);
    if (rc != TD_OK) {
        td_buf_fini(&text);
        return rc;
    }
    json_int_t format = 0, step = -1, updates = -1;
    const char *digest = NULL;
    json_error_t where = {0};
    json_t *root = json_loadb(td_buf_str(&text), text.len, JSON_REJECT_DUPLICATES, &where);
    int ok =
        root ? json_unpack_ex(root, &where, 0, "{s:I, s:I, s:I, s:s}", "format", &format, "step",
                              &step, "optimizer_steps", &updates, "state_digest", &digest)
             : -1;
    if (ok != 0 || format != FORMAT || step < 0 || updates < 0 ||
        sscanf(digest, "%16" SCNx64, &out->state_digest) != 1) {
        rc = td_fail(err, TD_ECORRUPT, "%s: not a trainer state of format %d: %s", path, FORMAT,
                     where.text);
    } else {
        out->step = (uint64_t)step;
        out->optimizer_steps = (uint64_t)updates;
    }
    json_decref(root);
    td_buf_fini(&text);
    return rc;
}

static enum td_rc load_folder(struct td_trainer *t, const char *dir, struct td_err *err) {
    char *path[FILE_COUNT];
    for (int i = 0; i < FILE_COUNT; i++) {
        path[i] = td_asprintf("%s/%s", dir, file_names[i]);
    }
    struct td_hf_flat weights = {"", t->weights.flat};
    struct td_hf_flat moments[] = {{EXP_AVG, t->exp_avg}, {EXP_AVG_SQ, t->exp_avg_sq}};
    struct saved_state saved;
    enum td_rc rc = load_state(path[2], &saved, err);
    rc = rc ? rc : td_hf_load(t->m, path[0], &weights, 1, err);
    rc = rc ? rc : td_hf_load(t->m, path[1], moments, 2, err);
    if (rc == TD_OK) {
        uint64_t weight, state;
        t->status.step = saved.step;
        t->status.optimizer_steps = saved.optimizer_steps;
        td_trainer_digest(t, &weight, &state);
        if (state != saved.state_digest) {
            rc = td_fail(err, TD_ECORRUPT,
                         "%s: state digest %016" PRIx64 ", trainer.json says %016" PRIx64, dir,
                         state, saved.state_digest);
        }
    }
    for (int i = 0; i < FILE_COUNT; i++) {
        td_free(path[i]);
    }
    return rc;
}

static void reset_optimizer(struct td_trainer *t) {
    t->be->ops->fill(t->be, &(struct td_fill_args){.y = t->exp_avg});
    t->be->ops->fill(t->be, &(struct td_fill_args){.y = t->exp_avg_sq});
    t->status.step = t->status.optimizer_steps = 0;
}

enum td_rc td_trainer_may_load(const struct td_trainer *t, uint64_t generation,
                               struct td_err *err) {
    if (generation < t->generation_max || generation == 0 || generation == t->status.generation) {
        return td_fail(err, TD_ECONFLICT,
                       "generation %" PRIu64 " is not above the loaded one (%" PRIu64 ")",
                       generation, t->generation_max);
    }
    return TD_OK;
}

enum td_rc td_trainer_load(struct td_trainer *t, uint64_t generation, uint64_t lineage,
                           const char *dir, struct td_err *err) {
    enum td_rc allowed = td_trainer_may_load(t, generation, err);
    if (allowed != TD_OK) {
        return allowed;
    }
    td_trainer_drop(t);
    t->generation_max = generation;
    t->status = (struct td_train_status){0}; // until all is there, nothing is loaded
    enum td_rc rc = TD_OK;
    if (dir) {
        rc = load_folder(t, dir, err);
    } else {
        reset_optimizer(t);
    }
    rc = rc ? rc : td_weights_prepare(t->m, &t->weights, err);
    rc = rc ? rc : t->be->ops->check(t->be, err);
    if (rc == TD_OK) {
        t->status.generation = generation;
        t->status.lineage = lineage;
    }
    return rc;
}

enum td_rc td_trainer_export(struct td_trainer *t, const char *dir, const char *source_dir,
                             bool random_init, struct td_err *err) {
    char *folder = td_asprintf("%s/actor/huggingface", dir);
    char *optimizer = td_asprintf("%s/actor/optimizer.safetensors", dir);
    enum td_dtype dtype = random_init ? TD_F32 : td_model_config(t->m)->file_dtype;
    enum td_rc rc = check_version(t, dir, err);
    rc = rc ? rc : td_hf_export(t->m, &t->weights.flat, folder, source_dir, dtype, err);
    rc = rc ? rc : save_optimizer(t, optimizer, err);
    td_free(folder);
    td_free(optimizer);
    return rc;
}
