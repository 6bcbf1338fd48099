// Data sets: JSONL files in verl's schema, tokenized when they are loaded. Read-only afterwards:
// any thread. Knows no job and draws nothing: which rows a round takes is the coordinator's choice.
//
// A prompt row (RL): prompt (a string or a list of {role, content}), data_source,
// reward_model.ground_truth (a string or a number), and extra_info. A row for SFT: prompt and
// response (strings), or messages. A string prompt is a single user message. Other keys are left
// alone.
#ifndef TD_TEXT_DATASET_H
#define TD_TEXT_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/text/template.h"
#include "lib/text/tokenizer.h"

enum {
    TD_DATASET_LINE_MAX = 8 << 20,    // bytes of one line
    TD_DATASET_FILE_MAX = 1 << 30,    // bytes of one file
    TD_DATASET_MESSAGES_MAX = 1 << 10 // of one row
};

enum td_dataset_kind { TD_DATASET_PROMPTS, TD_DATASET_SFT };
enum td_truncation { TD_TRUNCATE_ERROR, TD_TRUNCATE_LEFT, TD_TRUNCATE_RIGHT, TD_TRUNCATE_MIDDLE };

struct td_dataset_config {
    enum td_dataset_kind kind;
    const char *const *files; // borrowed for the call
    size_t file_count;
    // data.prompt_key, response_key, messages_key, reward_fn_key; NULL: prompt, response, messages,
    // data_source
    const char *prompt_key, *response_key, *messages_key, *reward_fn_key;
    enum td_template template;
    int64_t max_length;            // prompts: data.max_prompt_length; SFT: data.max_length; ≥ 1
    bool filter_overlong_prompts;  // drop what is longer, before truncation is asked for
    enum td_truncation truncation; // left keeps the end, right the beginning, middle both ends
    int64_t max_samples;           // the first so many, or (shuffle) so many by seed; ≤ 0: all
    bool shuffle;                  // a permutation per data epoch; else the order of the files
    uint64_t seed;
};

// One row; everything is borrowed from the data set.
struct td_row {
    const int32_t *ids;
    size_t n;
    const uint8_t *loss_mask; // SFT: n bytes, 1 on response tokens; else NULL
    const char *data_source;  // prompts only; as are the next two
    const char *ground_truth; // a number as JSON writes it
    const char *extra_info;   // compact JSON; NULL: none
    const char *file;
    uint64_t line;   // from 1
    uint64_t digest; // of all the above but file, line and extra_info
};

// What says that two members have the same data (journal.proto, DataIndex).
struct td_data_index {
    uint64_t rows;
    uint64_t data_digest; // file contents, kept rows and their order
    uint64_t tokenizer_digest, template_digest;
};

struct td_dataset;

// Reads, checks and tokenizes. Errors begin with "file:line: key: ": TD_EINVAL (not JSON, a key
// twice, missing or of the wrong type, NaN, not UTF-8, no row left, a row too long under
// TD_TRUNCATE_ERROR), TD_ELIMIT (line or file too long), TD_EUNSUPPORTED (images, videos, a chat
// template of the model folder, Parquet), file errors.
enum td_rc td_dataset_load(const struct td_dataset_config *c, const struct td_tokenizer *tk,
                           struct td_dataset **out, struct td_err *err) TD_MUST_CHECK;
void td_dataset_free(struct td_dataset *ds);

// Rows of one data epoch.
uint64_t td_dataset_rows(const struct td_dataset *ds);
// Rows that filter_overlong_prompts dropped.
uint64_t td_dataset_filtered(const struct td_dataset *ds);
void td_dataset_index(const struct td_dataset *ds, struct td_data_index *out);
// Row i of the files, in order; i < rows. For validation sets and checks of all rows.
void td_dataset_row(const struct td_dataset *ds, uint64_t i, struct td_row *out);
// The row that group (data epoch, index) stands for: through td_permute when shuffled; index <
// rows.
void td_dataset_at(const struct td_dataset *ds, uint64_t data_epoch, uint64_t index,
                   struct td_row *out);

#endif
