// The train controller's shell: journal, rollout log, worker pool, disk and link as events of the
// machine, and its effects carried out. Loop thread; files and batches are made on a work queue.
// Decides nothing.
#ifndef TD_CONTROLLERS_TRAIN_SHELL_H
#define TD_CONTROLLERS_TRAIN_SHELL_H

#include "controllers/common/shell.h"

struct td_train_shell_config {
    struct td_shell_config base;
    struct td_log *journal;
    const char *save_dir; // of global_step_N; copied
    // A line of metrics.jsonl was written. user: that of base.
    void (*line)(void *user, uint64_t step, const char *json);
};

enum td_rc td_train_shell_new(const struct td_train_shell_config *config, struct td_shell **out,
                              struct td_err *err) TD_MUST_CHECK;

#endif
