// Validation samples as JSON lines: see val_dump.h.
#include "controllers/rollout/val_dump.h"

#include <jansson.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { DIGITS = 17 };

struct td_val_dump {
    const char *dir;
    const struct td_job_data *data;
    uint64_t step, rows, have;
    char **lines; // rows: owned, NULL until scored
};

struct td_val_file {
    char *dir, *path; // owned
    struct td_buf lines;
};

struct td_val_dump *td_val_dump_new(const char *dir, const struct td_job_data *data) {
    struct td_val_dump *d = td_alloc(sizeof *d);
    d->dir = dir;
    d->data = data;
    d->rows = td_job_data_val_rows(data);
    d->lines = td_alloc_array(d->rows + 1, sizeof *d->lines);
    return d;
}

static void clear(struct td_val_dump *d, uint64_t step) {
    for (uint64_t i = 0; i < d->rows; i++) {
        td_free(d->lines[i]);
        d->lines[i] = NULL;
    }
    d->step = step;
    d->have = 0;
}

void td_val_dump_free(struct td_val_dump *d) {
    if (d) {
        clear(d, 0);
        td_free(d->lines);
        td_free(d);
    }
}

static void decode(const struct td_val_dump *d, const int32_t *ids, size_t n, struct td_buf *out) {
    td_buf_clear(out);
    td_tokenizer_decode(d->data->tokenizer, ids, n, true, out);
}

static char *lines_of(const struct td_val_dump *d, const struct td_episode *g) {
    struct td_buf out = {0}, input = {0}, output = {0};
    decode(d, g->row.ids, g->row.n, &input);
    for (uint32_t i = 0; i < g->sample_count; i++) {
        decode(d, g->samples[i].ids, (size_t)g->samples[i].n, &output);
        // Texts may hold a NUL byte: their lengths are given.
        json_t *root =
            json_pack("{s:s%,s:s%,s:s,s:f,s:I}", "input", td_buf_str(&input), input.len, "output",
                      td_buf_str(&output), output.len, "gts", g->row.ground_truth, "score",
                      g->samples[i].score, "step", (json_int_t)g->version.step);
        char *line = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
        td_buf_printf(&out, "%s\n", line);
        td_free(line); // jansson allocates by malloc, as td_free releases
        json_decref(root);
    }
    char *copy = td_strdup(td_buf_str(&out));
    td_buf_fini(&out);
    td_buf_fini(&input);
    td_buf_fini(&output);
    return copy;
}

static struct td_val_file *make_file(const struct td_val_dump *d) {
    struct td_val_file *f = td_alloc(sizeof *f);
    f->dir = td_strdup(d->dir);
    f->path = td_asprintf("%s/%llu.jsonl", d->dir, (unsigned long long)d->step);
    for (uint64_t i = 0; i < d->rows; i++) {
        td_buf_puts(&f->lines, d->lines[i]);
    }
    return f;
}

enum td_rc td_val_file_write(const struct td_val_file *f, struct td_err *err) {
    enum td_rc rc = td_make_dirs(f->dir, err);
    if (rc == TD_OK) {
        rc = td_file_write(f->path, f->lines.data, f->lines.len, err);
    }
    return rc == TD_OK ? TD_OK : td_err_in(err, "trainer.validation_data_dir");
}

void td_val_file_free(struct td_val_file *f) {
    if (f) {
        td_free(f->dir);
        td_free(f->path);
        td_buf_fini(&f->lines);
        td_free(f);
    }
}

struct td_val_file *td_val_dump_add(struct td_val_dump *d, const struct td_episode *g) {
    if (g->version.step != d->step || d->have == d->rows) {
        clear(d, g->version.step);
    }
    if (g->group.index >= d->rows || d->lines[g->group.index]) {
        return NULL; // a group that ran twice
    }
    d->lines[g->group.index] = lines_of(d, g);
    return ++d->have == d->rows ? make_file(d) : NULL;
}
