// Validation samples as JSON lines, one file a step: what trainer.validation_data_dir asks for, in
// verl's keys (input, output, gts, score, step). A file is written once all rows are there, in the
// order of rows. Loop thread.
#ifndef TD_CONTROLLERS_ROLLOUT_VAL_DUMP_H
#define TD_CONTROLLERS_ROLLOUT_VAL_DUMP_H

#include "controllers/rollout/episode.h"

struct td_val_dump;

// dir is borrowed.
struct td_val_dump *td_val_dump_new(const char *dir, const struct td_job_data *data);
void td_val_dump_free(struct td_val_dump *d); // accepts NULL
// Takes a scored EVAL group. Errors are those of writing DIR/STEP.jsonl.
enum td_rc td_val_dump_add(struct td_val_dump *d, const struct td_episode *g,
                           struct td_err *err) TD_MUST_CHECK;

#endif
