// Loading and saving by Hugging Face tensor names: see hf.h and model.h. Any thread.
#include "workers/model/hf.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/map.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "workers/model/convert.h"
#include "workers/model/model_int.h"
#include "workers/model/safetensors.h"
#include "workers/model/transfer.h"

enum { PIECE = 64 * 1024, PROBLEMS_MAX = 6, NAME_MAX_FULL = TD_PARAM_NAME_MAX + 32 };

// Open files, and where each tensor name is found.
struct source {
    const char *where; // file or folder that errors about missing tensors name
    struct td_safetensors **files;
    size_t count, cap;
    struct td_map *names; // name → place
    struct td_buf problems;
    int problem_count;
};

struct place {
    struct td_safetensors *file;
    int entry;
};

static void source_fini(struct source *s) {
    for (size_t i = 0; i < s->count; i++) {
        td_safetensors_close(s->files[i]);
    }
    td_free(s->files);
    td_map_free(s->names);
    td_buf_fini(&s->problems);
}

TD_PRINTF(2, 3) static void problem(struct source *s, const char *fmt, ...) {
    if (s->problem_count++ >= PROBLEMS_MAX) {
        return;
    }
    char line[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    td_buf_printf(&s->problems, "%s%s", s->problem_count > 1 ? "; " : "", line);
}

static enum td_rc finish_problems(struct source *s, struct td_err *err) {
    if (s->problem_count == 0) {
        return TD_OK;
    }
    if (s->problem_count > PROBLEMS_MAX) {
        td_buf_printf(&s->problems, "; and %d more", s->problem_count - PROBLEMS_MAX);
    }
    return td_fail(err, TD_EINVAL, "%s", td_buf_str(&s->problems));
}

// Opens a file and adds its tensors; mapped: only those that the index puts there.
static enum td_rc add_file(struct source *s, const char *path, json_t *mapped, const char *file,
                           struct td_err *err) {
    struct td_safetensors *st = NULL;
    enum td_rc rc = td_safetensors_open(path, &st, err);
    if (rc != TD_OK) {
        return rc;
    }
    TD_GROW(s->files, s->cap, s->count + 1);
    s->files[s->count++] = st;
    for (int i = 0; i < td_safetensors_count(st); i++) {
        const char *name = td_safetensors_entry(st, i)->name;
        const char *home = json_string_value(json_object_get(mapped, name));
        if (mapped && (!home || strcmp(home, file) != 0)) {
            td_trace_warn("unmapped tensor", "file=%s tensor=%s", path, name);
            continue;
        }
        td_map_put(s->names, name, strlen(name), (uint64_t)(s->count - 1) << 32 | (uint64_t)i);
    }
    return TD_OK;
}

static bool find(const struct source *s, const char *name, struct place *out) {
    uint64_t v;
    if (!td_map_get(s->names, name, strlen(name), &v)) {
        return false;
    }
    *out = (struct place){.file = s->files[v >> 32], .entry = (int)(v & 0xffffffff)};
    return true;
}

static enum td_rc add_shards(struct source *s, const char *dir, const char *index_path,
                             json_t *index, struct td_err *err) {
    json_t *map = json_object_get(index, "weight_map"), *file;
    const char *name;
    if (!json_is_object(map)) {
        return td_fail(err, TD_EINVAL, "%s: weight_map must be an object", index_path);
    }
    struct td_map *opened = td_map_new();
    enum td_rc rc = TD_OK;
    json_object_foreach(map, name, file) {
        const char *base = json_string_value(file);
        if (!base || !*base || strchr(base, '/') || strstr(base, "..")) {
            rc = td_fail(err, TD_EINVAL, "%s: tensor %s: \"%s\" is no plain file name", index_path,
                         name, base ? base : "");
            break;
        }
        if (td_map_put(opened, base, strlen(base), 0)) {
            char *path = td_asprintf("%s/%s", dir, base);
            rc = add_file(s, path, map, base, err);
            td_free(path);
        }
        if (rc != TD_OK) {
            break;
        }
    }
    td_map_free(opened);
    struct place at;
    json_object_foreach(map, name, file) {
        if (rc == TD_OK && !find(s, name, &at)) {
            problem(s, "%s: tensor %s is not in %s", index_path, name, json_string_value(file));
        }
    }
    return rc;
}

static enum td_rc open_folder(struct source *s, const char *dir, struct td_err *err) {
    char *one = td_asprintf("%s/model.safetensors", dir);
    char *index = td_asprintf("%s/model.safetensors.index.json", dir);
    enum td_rc rc;
    if (td_file_exists(one)) {
        rc = add_file(s, one, NULL, NULL, err);
    } else if (td_file_exists(index)) {
        json_t *root = NULL;
        rc = td_json_load(index, &root, err);
        rc = rc ? rc : add_shards(s, dir, index, root, err);
        json_decref(root);
    } else {
        rc = td_fail(err, TD_ENOENT, "%s: no model.safetensors and no model.safetensors.index.json",
                     dir);
    }
    td_free(one);
    td_free(index);
    return rc;
}

static bool has_shape(const struct td_safetensors_entry *e, const struct td_param *p) {
    if (p->rows == 1 && e->dims == 1) {
        return e->shape[0] == p->cols;
    }
    return e->dims == 2 && e->shape[0] == p->rows && e->shape[1] == p->cols;
}

static void shape_text(const struct td_safetensors_entry *e, char out[64]) {
    int at = 0;
    out[0] = 0;
    for (int i = 0; i < e->dims && at < 48; i++) {
        at += snprintf(out + at, 64 - (size_t)at, "%s%" PRId64, i ? ", " : "", e->shape[i]);
    }
}

static void expect_text(const struct td_param *p, char out[64]) {
    // A vector has one dimension in files.
    int n = p->rows == 1 ? snprintf(out, 64, "%" PRId64, p->cols)
                         : snprintf(out, 64, "%" PRId64 ", %" PRId64, p->rows, p->cols);
    td_assert_op(n, <, 64);
}

// Whether the tensor is there in the right shape; else notes the problem.
static bool look_up(struct source *s, const char *name, const struct td_param *p,
                    struct place *out) {
    char want[64], have[64];
    expect_text(p, want);
    if (!find(s, name, out)) {
        problem(s, "%s: tensor %s is missing, expected shape [%s]", s->where, name, want);
        return false;
    }
    const struct td_safetensors_entry *e = td_safetensors_entry(out->file, out->entry);
    if (!has_shape(e, p)) {
        shape_text(e, have);
        problem(s, "%s: tensor %s has shape [%s], expected [%s]", td_safetensors_path(out->file),
                name, have, want);
        return false;
    }
    return true;
}

static enum td_rc read_param(struct td_model *m, const struct place *from, const struct td_param *p,
                             const struct td_tensor *flat, float *piece, struct td_err *err) {
    int64_t n = p->rows * p->cols;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        enum td_rc rc = td_safetensors_read(from->file, from->entry, at, count, piece, err);
        if (rc != TD_OK) {
            return rc;
        }
        int64_t bad = td_convert_from_f32(TD_F32, piece, count, piece);
        if (bad >= 0) {
            return td_fail(err, TD_EINVAL, "%s: tensor %s: element %" PRId64 " is not finite",
                           td_safetensors_path(from->file),
                           td_safetensors_entry(from->file, from->entry)->name, at + bad);
        }
        td_transfer_put_f32(m->be, td_transfer_at(m->be, flat->p, p->offset + at), piece,
                            (size_t)count);
    }
    return TD_OK;
}

// Old Llama files carry a table that is computed now; a tied head is checked by itself.
static bool may_be_extra(const struct td_model *m, const char *name) {
    static const char table[] = ".rotary_emb.inv_freq";
    size_t n = strlen(name), k = sizeof table - 1;
    return (n > k && strcmp(name + n - k, table) == 0) ||
           (m->config.tied && strcmp(name, "lm_head.weight") == 0);
}

static void note_extra(struct source *s, const struct td_model *m, struct td_map *known) {
    for (size_t f = 0; f < s->count; f++) {
        for (int i = 0; i < td_safetensors_count(s->files[f]); i++) {
            const char *name = td_safetensors_entry(s->files[f], i)->name;
            struct place at;
            if (find(s, name, &at) && at.file == s->files[f] &&
                !td_map_get(known, name, strlen(name), NULL) && !may_be_extra(m, name)) {
                problem(s, "%s: tensor %s is unknown to this model's config.json",
                        td_safetensors_path(s->files[f]), name);
            }
        }
    }
}

// All tensors must be there before the first is written.
static enum td_rc check_names(struct source *s, struct td_model *m, const struct td_hf_flat *flats,
                              int count, struct td_err *err) {
    struct td_map *known = td_map_new();
    for (int f = 0; f < count; f++) {
        for (int i = 0; i < m->param_count; i++) {
            char name[NAME_MAX_FULL];
            struct place at;
            snprintf(name, sizeof name, "%s%s", flats[f].prefix, m->params[i].name);
            td_map_put(known, name, strlen(name), 0);
            look_up(s, name, &m->params[i], &at);
        }
    }
    note_extra(s, m, known);
    td_map_free(known);
    return finish_problems(s, err);
}

static enum td_rc read_all(struct source *s, struct td_model *m, const struct td_hf_flat *flats,
                           int count, struct td_err *err) {
    float *piece = td_alloc_array(PIECE, sizeof *piece);
    enum td_rc rc = check_names(s, m, flats, count, err);
    for (int f = 0; rc == TD_OK && f < count; f++) {
        for (int i = 0; rc == TD_OK && i < m->param_count; i++) {
            char name[NAME_MAX_FULL];
            struct place at;
            snprintf(name, sizeof name, "%s%s", flats[f].prefix, m->params[i].name);
            td_assert(look_up(s, name, &m->params[i], &at));
            rc = read_param(m, &at, &m->params[i], &flats[f].flat, piece, err);
        }
    }
    td_free(piece);
    return rc;
}

// The embeddings are params[0].
static enum td_rc check_tied(struct source *s, struct td_model *m, struct td_err *err) {
    struct place head, embed;
    const struct td_param *p = &m->params[0];
    if (!m->config.tied || !find(s, "lm_head.weight", &head)) {
        return TD_OK;
    }
    if (!look_up(s, "lm_head.weight", p, &head) || !look_up(s, p->name, p, &embed)) {
        return finish_problems(s, err);
    }
    float *a = td_alloc_array(PIECE, 2 * sizeof *a), *b = a + PIECE;
    enum td_rc rc = TD_OK;
    for (int64_t at = 0; rc == TD_OK && at < p->rows * p->cols; at += PIECE) {
        int64_t left = p->rows * p->cols - at, count = left < PIECE ? left : PIECE;
        rc = td_safetensors_read(head.file, head.entry, at, count, a, err);
        rc = rc ? rc : td_safetensors_read(embed.file, embed.entry, at, count, b, err);
        if (rc == TD_OK && memcmp(a, b, (size_t)count * sizeof *a) != 0) {
            rc = td_fail(err, TD_EINVAL,
                         "%s: lm_head.weight differs from %s, but config.json has "
                         "tie_word_embeddings: set it to false",
                         td_safetensors_path(head.file), p->name);
        }
    }
    td_free(a);
    return rc;
}

enum td_rc td_weights_load(struct td_model *m, struct td_weights *w, const char *dir,
                           struct td_err *err) {
    struct source s = {.where = dir, .names = td_map_new()};
    struct td_hf_flat flat = {.prefix = "", .flat = w->flat};
    enum td_rc rc = open_folder(&s, dir, err);
    rc = rc ? rc : read_all(&s, m, &flat, 1, err);
    rc = rc ? rc : check_tied(&s, m, err);
    source_fini(&s);
    return rc;
}

enum td_rc td_hf_load(struct td_model *m, const char *path, const struct td_hf_flat *flats,
                      int count, struct td_err *err) {
    struct source s = {.where = path, .names = td_map_new()};
    enum td_rc rc = add_file(&s, path, NULL, NULL, err);
    rc = rc ? rc : read_all(&s, m, flats, count, err);
    source_fini(&s);
    return rc;
}

struct save {
    struct td_model *m;
    const struct td_hf_flat *flats;
};

static void read_saved(void *user, int item, int64_t first, int64_t n, float *out) {
    const struct save *s = user;
    const struct td_hf_flat *f = &s->flats[item / s->m->param_count];
    const struct td_param *p = &s->m->params[item % s->m->param_count];
    td_transfer_get_f32(s->m->be, out, td_transfer_at(s->m->be, f->flat.p, p->offset + first),
                        (size_t)n);
}

enum td_rc td_hf_save(struct td_model *m, const char *path, enum td_dtype dtype,
                      const struct td_hf_flat *flats, int count, struct td_err *err) {
    struct td_arena *arena = td_arena_new();
    int n = count * m->param_count;
    struct td_safetensors_item *items = td_arena_alloc(arena, (size_t)n * sizeof *items);
    for (int i = 0; i < n; i++) {
        const struct td_param *p = &m->params[i % m->param_count];
        char *name = td_arena_alloc(arena, NAME_MAX_FULL);
        snprintf(name, NAME_MAX_FULL, "%s%s", flats[i / m->param_count].prefix, p->name);
        bool vector = p->rows == 1;
        items[i] = (struct td_safetensors_item){
            .name = name, .dims = vector ? 1 : 2, .shape = {vector ? p->cols : p->rows, p->cols}};
    }
    struct save user = {.m = m, .flats = flats};
    struct td_safetensors_source source = {
        .dtype = dtype, .items = items, .count = n, .read = read_saved, .user = &user};
    enum td_rc rc = td_safetensors_write(path, &source, err);
    td_arena_free(arena);
    return rc;
}
