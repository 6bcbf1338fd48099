// Validation samples as JSON lines, one file a step: what trainer.validation_data_dir asks for, in
// verl's keys (input, output, gts, score, step). A file is made once all rows are there, in the
// order of rows. Loop thread; writing blocks and is meant for a work queue.
#ifndef TD_CONTROLLERS_ROLLOUT_VAL_DUMP_H
#define TD_CONTROLLERS_ROLLOUT_VAL_DUMP_H

#include "controllers/rollout/episode.h"

struct td_val_dump;

// dir is borrowed.
struct td_val_dump *td_val_dump_new(const char *dir, const struct td_job_data *data);
void td_val_dump_free(struct td_val_dump *d); // accepts NULL
struct td_val_file;                           // DIR/STEP.jsonl, to be written
// Takes a scored EVAL group. The last row's gives the file, the caller's; else NULL.
struct td_val_file *td_val_dump_add(struct td_val_dump *d, const struct td_episode *g);
// Writes it, whole or not at all. Any thread.
enum td_rc td_val_file_write(const struct td_val_file *f, struct td_err *err) TD_MUST_CHECK;
void td_val_file_free(struct td_val_file *f); // accepts NULL

#endif
