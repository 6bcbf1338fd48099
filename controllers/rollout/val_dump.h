// A validated row as JSON lines, one a sample, in verl's keys (input, output, gts, score, step),
// for trainer.validation_data_dir: see val_parts.h. Made on the loop thread; writing blocks and is
// meant for a work queue.
#ifndef TD_CONTROLLERS_ROLLOUT_VAL_DUMP_H
#define TD_CONTROLLERS_ROLLOUT_VAL_DUMP_H

#include "controllers/common/val_parts.h"
#include "controllers/rollout/episode.h"

struct td_val_dump;

// Of a scored EVAL group. run_dir is copied.
struct td_val_dump *td_val_dump_new(const char *run_dir, uint64_t member,
                                    const struct td_job_data *data, const struct td_episode *g);
void td_val_dump_free(struct td_val_dump *d); // accepts NULL
enum td_rc td_val_dump_write(const struct td_val_dump *d, struct td_err *err) TD_MUST_CHECK;

#endif
