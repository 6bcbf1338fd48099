// What a job's settings name on this machine: model folder, tokenizer, data sets, graders. Loaded
// once at start, read-only afterwards: any thread.
#ifndef TD_CONTROLLERS_COMMON_JOB_DATA_H
#define TD_CONTROLLERS_COMMON_JOB_DATA_H

#include <stdint.h>

#include "lib/base/err.h"
#include "lib/reward/reward.h"
#include "lib/spec/job_spec.h"
#include "lib/text/dataset.h"
#include "lib/text/tokenizer.h"
#include "proto/journal.pb-c.h"

struct td_job_data {
    const struct td_job_spec *spec; // borrowed
    struct td_tokenizer *tokenizer;
    struct td_dataset *train, *val; // val: NULL without validation files
    struct td_rewards *rewards;     // NULL: SFT
    struct td_buf known_ids;        // one byte per id the tokenizer knows
    struct td_ids stop_ids;         // config.eos ∪ generation_config.eos ∪ tokenizer's eos
    struct td_job_schedule schedule;
    Tandem__Journal__DataIndex index;
};

// Loads and checks everything: each data source of each row has a grader, prompts and responses fit
// the model's positions, ids fit its vocabulary. Messages name file, line and key.
enum td_rc td_job_data_load(const struct td_job_spec *spec, struct td_job_data **out,
                            struct td_err *err) TD_MUST_CHECK;
void td_job_data_free(struct td_job_data *d); // accepts NULL

// Rows of validation, 0 without.
uint64_t td_job_data_val_rows(const struct td_job_data *d);

#endif
