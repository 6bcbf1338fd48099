// A validated row as JSON lines: see val_dump.h.
#include "controllers/rollout/val_dump.h"

#include <jansson.h>

#include "lib/base/mem.h"

enum { DIGITS = 17 };

struct td_val_dump {
    char *run_dir; // owned
    struct td_val_part part;
    struct td_buf lines;
};

static void decode(const struct td_job_data *data, const int32_t *ids, size_t n,
                   struct td_buf *out) {
    td_buf_clear(out);
    td_tokenizer_decode(data->tokenizer, ids, n, true, out);
}

static void put_lines(const struct td_job_data *data, const struct td_episode *g,
                      struct td_buf *out) {
    struct td_buf input = {0}, output = {0};
    decode(data, g->row.ids, g->row.n, &input);
    for (uint32_t i = 0; i < g->sample_count; i++) {
        decode(data, g->samples[i].ids, (size_t)g->samples[i].n, &output);
        // Texts may hold a NUL byte: their lengths are given.
        json_t *root =
            json_pack("{s:s%,s:s%,s:s,s:f,s:I}", "input", td_buf_str(&input), input.len, "output",
                      td_buf_str(&output), output.len, "gts", g->row.ground_truth, "score",
                      g->samples[i].score, "step", (json_int_t)g->version.step);
        char *line = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
        td_buf_printf(out, "%s\n", line);
        td_free(line); // jansson allocates by malloc, as td_free releases
        json_decref(root);
    }
    td_buf_fini(&input);
    td_buf_fini(&output);
}

struct td_val_dump *td_val_dump_new(const char *run_dir, uint64_t member,
                                    const struct td_job_data *data, const struct td_episode *g) {
    struct td_val_dump *d = td_alloc(sizeof *d);
    put_lines(data, g, &d->lines);
    d->run_dir = td_strdup(run_dir);
    d->part = (struct td_val_part){d->run_dir, g->version.step, member, g->group.index,
                                   td_buf_str(&d->lines)};
    return d;
}

void td_val_dump_free(struct td_val_dump *d) {
    if (d) {
        td_free(d->run_dir);
        td_buf_fini(&d->lines);
        td_free(d);
    }
}

enum td_rc td_val_dump_write(const struct td_val_dump *d, struct td_err *err) {
    return td_val_part_append(&d->part, err);
}
