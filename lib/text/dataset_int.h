// The parts of a data set, shared by dataset.c (files, selection, access) and dataset_row.c (one
// line).
#ifndef TD_TEXT_DATASET_INT_H
#define TD_TEXT_DATASET_INT_H

#include "lib/base/buf.h"
#include "lib/base/mem.h"
#include "lib/text/dataset.h"

struct td_row_entry {
    size_t first, n;                                     // of ids and masks
    const char *data_source, *ground_truth, *extra_info; // in the arena
    uint32_t file;
    uint64_t line, digest;
};

struct td_dataset {
    struct td_arena *arena;
    const char **files; // in the arena
    struct td_row_entry *rows;
    size_t row_count, row_cap;
    struct td_ids ids;   // of all rows, one after another
    struct td_buf masks; // SFT: parallel to ids
    uint64_t filtered;
    bool sft, shuffle;
    uint64_t seed;
    struct td_data_index index;
};

// What reading a line needs beside the line.
struct td_row_reader {
    const struct td_dataset_config *c; // keys filled in
    const struct td_tokenizer *tk;
    struct td_dataset *ds;
    bool checked; // the template was found usable
};

// Parses one line, tokenizes it and appends the row, or drops it as too long. The message begins
// with the key.
enum td_rc td_dataset_read_row(struct td_row_reader *r, const char *line, size_t n, uint32_t file,
                               uint64_t number, struct td_err *err) TD_MUST_CHECK;

#endif
