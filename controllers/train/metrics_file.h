// metrics.jsonl: exactly one line per committed step, in order. A line is made durable beside the
// file (staged) before its step may be committed, and appended when the step is closed. Blocking;
// one thread.
#ifndef TD_CONTROLLERS_TRAIN_METRICS_FILE_H
#define TD_CONTROLLERS_TRAIN_METRICS_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "controllers/train/trainc.h"
#include "lib/base/err.h"
#include "lib/rl/loss.h"

// Reads what is there; cuts a torn last line. TD_ECORRUPT names file and line.
enum td_rc td_metrics_file_open(const char *run_dir, struct td_metrics_on_disk *out,
                                struct td_err *err) TD_MUST_CHECK;
// Makes the line of (step, ref) durable in RUN_DIR/metrics.staged.json.
enum td_rc td_metrics_file_stage(const char *run_dir, uint64_t step, struct td_pos ref,
                                 const struct td_metrics *metrics,
                                 struct td_err *err) TD_MUST_CHECK;
// Appends the staged line of step, with extra's metrics in it, to metrics.jsonl, unless one of that
// step or a later one is there. *line (may be NULL) receives it.
enum td_rc td_metrics_file_close(const char *run_dir, uint64_t step, const struct td_metrics *extra,
                                 struct td_buf *line, struct td_err *err) TD_MUST_CHECK;
// Lines of later steps go.
enum td_rc td_metrics_file_cut(const char *run_dir, uint64_t step,
                               struct td_err *err) TD_MUST_CHECK;

#endif
