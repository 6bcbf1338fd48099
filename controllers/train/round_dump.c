// The samples a round trains on as JSON lines: see round_dump.h.
#include "controllers/train/round_dump.h"

#include <inttypes.h>
#include <jansson.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { DIGITS = 17 };

struct td_round_dump {
    const char *dir;
    const struct td_job_data *data;
    uint64_t round;
    struct td_buf lines;
};

struct td_round_dump *td_round_dump_new(const char *dir, const struct td_job_data *data,
                                        uint64_t round) {
    struct td_round_dump *d = td_alloc(sizeof *d);
    *d = (struct td_round_dump){.dir = dir, .data = data, .round = round};
    return d;
}

void td_round_dump_free(struct td_round_dump *d) {
    if (d) {
        td_buf_fini(&d->lines);
        td_free(d);
    }
}

void td_round_dump_add(struct td_round_dump *d, const struct td_dump_row *row) {
    uint32_t prompt = 0;
    while (prompt < row->n && !row->mask[prompt]) {
        prompt++;
    }
    struct td_row source;
    td_dataset_at(d->data->train, row->data_epoch, row->index, &source);
    struct td_buf input = {0}, output = {0};
    td_tokenizer_decode(d->data->tokenizer, row->ids, prompt, true, &input);
    td_tokenizer_decode(d->data->tokenizer, row->ids + prompt, row->n - prompt, true, &output);
    // Texts may hold a NUL byte: their lengths are given.
    json_t *root = json_pack("{s:s%,s:s%,s:s,s:f,s:I}", "input", td_buf_str(&input), input.len,
                             "output", td_buf_str(&output), output.len, "gts", source.ground_truth,
                             "score", row->score, "step", (json_int_t)d->round);
    char *line = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    td_buf_printf(&d->lines, "%s\n", line);
    td_free(line); // jansson allocates by malloc, as td_free releases
    json_decref(root);
    td_buf_fini(&input);
    td_buf_fini(&output);
}

enum td_rc td_round_dump_write(struct td_round_dump *d, struct td_err *err) {
    enum td_rc rc = td_make_dirs(d->dir, err);
    if (rc == TD_OK) {
        char *path = td_asprintf("%s/%" PRIu64 ".jsonl", d->dir, d->round);
        rc = td_file_write(path, d->lines.data, d->lines.len, err);
        td_free(path);
    }
    return rc == TD_OK ? TD_OK : td_err_in(err, "trainer.rollout_data_dir");
}
