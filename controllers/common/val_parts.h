// Validation samples on their way to DIR/STEP.jsonl, what trainer.validation_data_dir asks for.
// Each rollout controller appends what it scored to a file of its own,
// RUN_DIR/validation/STEP/MEMBER, before it reports the scores; the train controller puts them
// together when it closes the step. Blocking; meant for a work queue.
#ifndef TD_CONTROLLERS_COMMON_VAL_PARTS_H
#define TD_CONTROLLERS_COMMON_VAL_PARTS_H

#include <stdint.h>

#include "lib/base/err.h"

struct td_val_part {
    const char *run_dir; // as all members see it
    uint64_t step, member, row;
    const char *lines; // of the row's samples, as they will stand in the file
};

// Survives the end of the process, not a loss of power: then the file may be missed later.
enum td_rc td_val_part_append(const struct td_val_part *p, struct td_err *err) TD_MUST_CHECK;
// Writes DIR/STEP.jsonl out of the parts, rows in order, and removes them. A row scored twice has
// equal lines. Where rows are missing there is no file, but a warning; a file of an earlier call
// stays.
enum td_rc td_val_parts_merge(const char *run_dir, uint64_t step, uint64_t rows, const char *dir,
                              struct td_err *err) TD_MUST_CHECK;

#endif
