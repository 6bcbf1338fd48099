// Files, selection of rows and access to them: see dataset.h. One line is read by dataset_row.c.
#include "lib/text/dataset.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/text/dataset_int.h"

// The "data epoch" that draws max_samples rows: no pass over the data has this number.
#define SAMPLE_EPOCH UINT64_MAX

struct line {
    const char *p;
    size_t n;
    uint64_t number; // from 1
};

// The next line with something on it, after *at of bytes; false at the end.
static bool next_line(const struct td_buf *bytes, size_t *at, struct line *line) {
    while (*at < bytes->len) {
        const char *p = (const char *)bytes->data + *at;
        const char *end = memchr(p, '\n', bytes->len - *at);
        size_t n = end == NULL ? bytes->len - *at : (size_t)(end - p);
        *at += n + 1;
        line->number++;
        if (strspn(p, " \t\r") < n) {
            line->p = p;
            line->n = n;
            return true;
        }
    }
    return false;
}

static uint64_t count_lines(const struct td_buf *bytes) {
    struct line line = {0};
    uint64_t count = 0;
    for (size_t at = 0; next_line(bytes, &at, &line);) {
        count++;
    }
    return count;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

// Reads file i and adds its rows to *total and its content to the data digest.
static enum td_rc read_one(struct td_dataset *ds, size_t i, struct td_buf *bytes, uint64_t *total,
                           struct td_err *err) {
    if (ends_with(ds->files[i], ".parquet")) {
        return td_fail(err, TD_EUNSUPPORTED, "%s: Parquet is not read yet; convert it to JSONL",
                       ds->files[i]);
    }
    enum td_rc rc = td_file_read(ds->files[i], TD_DATASET_FILE_MAX, bytes, err);
    if (rc != TD_OK) {
        return rc;
    }
    uint64_t lines = count_lines(bytes);
    if (lines == 0) {
        return td_fail(err, TD_EINVAL, "%s: has no rows; write one JSON object a line",
                       ds->files[i]);
    }
    *total += lines;
    ds->index.data_digest = td_hash_u64(ds->index.data_digest, bytes->len);
    ds->index.data_digest = td_digest64(ds->index.data_digest, bytes->data, bytes->len);
    return TD_OK;
}

// Which of total rows max_samples takes, one byte each; NULL: all.
static uint8_t *select_rows(const struct td_dataset_config *c, uint64_t total) {
    if (c->max_samples <= 0 || (uint64_t)c->max_samples >= total) {
        return NULL;
    }
    uint8_t *chosen = td_alloc(total);
    for (uint64_t i = 0; i < (uint64_t)c->max_samples; i++) {
        chosen[c->shuffle ? td_permute(c->seed, SAMPLE_EPOCH, total, i) : i] = 1;
    }
    return chosen;
}

static enum td_rc read_lines(struct td_row_reader *r, size_t file, const struct td_buf *bytes,
                             const uint8_t *chosen, struct td_err *err) {
    struct line line = {0};
    uint64_t i = 0;
    for (size_t at = 0; next_line(bytes, &at, &line); i++) {
        if (chosen != NULL && !chosen[i]) {
            continue;
        }
        enum td_rc rc =
            line.n > TD_DATASET_LINE_MAX
                ? td_fail(err, TD_ELIMIT, "a line of %zu bytes; at most %d", line.n,
                          TD_DATASET_LINE_MAX)
                : td_dataset_read_row(r, line.p, line.n, (uint32_t)file, line.number, err);
        if (rc != TD_OK) {
            td_err_in(err, "%s:%llu", r->ds->files[file], (unsigned long long)line.number);
            return rc;
        }
    }
    return TD_OK;
}

static enum td_rc read_files(struct td_row_reader *r, struct td_buf *bytes, struct td_err *err) {
    struct td_dataset *ds = r->ds;
    size_t n = r->c->file_count;
    uint64_t total = 0;
    enum td_rc rc = TD_OK;
    for (size_t i = 0; i < n && rc == TD_OK; i++) {
        rc = read_one(ds, i, &bytes[i], &total, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    uint8_t *chosen = select_rows(r->c, total);
    uint64_t first = 0;
    for (size_t i = 0; i < n && rc == TD_OK; i++) {
        rc = read_lines(r, i, &bytes[i], chosen == NULL ? NULL : chosen + first, err);
        first += count_lines(&bytes[i]);
    }
    td_free(chosen);
    if (rc == TD_OK && ds->row_count == 0) {
        rc = td_fail(err, TD_EINVAL,
                     "%s: all of %llu rows are longer than %lld tokens and were filtered out; "
                     "raise data.max_prompt_length",
                     ds->files[0], (unsigned long long)ds->filtered, (long long)r->c->max_length);
    }
    return rc;
}

static void fill_index(struct td_dataset *ds, const struct td_tokenizer *tk, enum td_template t) {
    uint64_t hash = ds->index.data_digest;
    for (size_t i = 0; i < ds->row_count; i++) {
        hash = td_hash_u64(hash, ds->rows[i].file);
        hash = td_hash_u64(hash, ds->rows[i].line);
        hash = td_hash_u64(hash, ds->rows[i].digest);
    }
    ds->index = (struct td_data_index){.rows = ds->row_count,
                                       .data_digest = hash,
                                       .tokenizer_digest = td_tokenizer_digest(tk),
                                       .template_digest = td_template_digest(t)};
}

static enum td_rc check_config(const struct td_dataset_config *c, struct td_err *err) {
    if (c->file_count == 0) {
        return td_fail(err, TD_EINVAL, "no data file is named");
    }
    if (c->max_length < 1) {
        return td_fail(err, TD_EINVAL, "data.%s: must be at least 1",
                       c->kind == TD_DATASET_SFT ? "max_length" : "max_prompt_length");
    }
    if (c->kind == TD_DATASET_SFT && c->truncation == TD_TRUNCATE_MIDDLE) {
        return td_fail(err, TD_EINVAL,
                       "data.truncation: middle is for prompts; use error, left "
                       "or right");
    }
    return TD_OK;
}

static const char *or_default(const char *key, const char *otherwise) {
    return key == NULL ? otherwise : key;
}

enum td_rc td_dataset_load(const struct td_dataset_config *c, const struct td_tokenizer *tk,
                           struct td_dataset **out, struct td_err *err) {
    enum td_rc rc = check_config(c, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_dataset_config full = *c;
    full.prompt_key = or_default(c->prompt_key, "prompt");
    full.response_key = or_default(c->response_key, "response");
    full.messages_key = or_default(c->messages_key, "messages");
    full.reward_fn_key = or_default(c->reward_fn_key, "data_source");
    struct td_dataset *ds = td_alloc(sizeof *ds);
    ds->arena = td_arena_new();
    ds->sft = c->kind == TD_DATASET_SFT;
    ds->shuffle = c->shuffle;
    ds->seed = c->seed;
    ds->files = td_arena_alloc(ds->arena, c->file_count * sizeof *ds->files);
    for (size_t i = 0; i < c->file_count; i++) {
        ds->files[i] = td_arena_strndup(ds->arena, c->files[i], strlen(c->files[i]));
    }
    struct td_row_reader reader = {.c = &full, .tk = tk, .ds = ds};
    struct td_buf *bytes = td_alloc_array(c->file_count, sizeof *bytes);
    rc = read_files(&reader, bytes, err);
    for (size_t i = 0; i < c->file_count; i++) {
        td_buf_fini(&bytes[i]);
    }
    td_free(bytes);
    if (rc != TD_OK) {
        td_dataset_free(ds);
        return rc;
    }
    fill_index(ds, tk, c->template);
    *out = ds;
    return TD_OK;
}

void td_dataset_free(struct td_dataset *ds) {
    if (ds == NULL) {
        return;
    }
    td_ids_fini(&ds->ids);
    td_buf_fini(&ds->masks);
    td_free(ds->rows);
    td_arena_free(ds->arena);
    td_free(ds);
}

uint64_t td_dataset_rows(const struct td_dataset *ds) {
    return ds->row_count;
}

uint64_t td_dataset_filtered(const struct td_dataset *ds) {
    return ds->filtered;
}

void td_dataset_index(const struct td_dataset *ds, struct td_data_index *out) {
    *out = ds->index;
}

void td_dataset_row(const struct td_dataset *ds, uint64_t i, struct td_row *out) {
    td_assert_op(i, <, ds->row_count);
    const struct td_row_entry *e = &ds->rows[i];
    *out = (struct td_row){.ids = ds->ids.v + e->first,
                           .n = e->n,
                           .loss_mask = ds->sft ? ds->masks.data + e->first : NULL,
                           .data_source = e->data_source,
                           .ground_truth = e->ground_truth,
                           .extra_info = e->extra_info,
                           .file = ds->files[e->file],
                           .line = e->line,
                           .digest = e->digest};
}

void td_dataset_at(const struct td_dataset *ds, uint64_t data_epoch, uint64_t index,
                   struct td_row *out) {
    td_assert_op(index, <, ds->row_count);
    uint64_t i = ds->shuffle ? td_permute(ds->seed, data_epoch, ds->row_count, index) : index;
    td_dataset_row(ds, i, out);
}
