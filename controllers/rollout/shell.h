// The rollout controller's shell: worker pool, rewards, rollout log and link as events of the
// machine, and its effects carried out. Loop thread; answers are graded and files written on a work
// queue. Decides nothing.
#ifndef TD_CONTROLLERS_ROLLOUT_SHELL_H
#define TD_CONTROLLERS_ROLLOUT_SHELL_H

#include "controllers/common/shell.h"

enum td_rc td_rollout_shell_new(const struct td_shell_config *config, struct td_shell **out,
                                struct td_err *err) TD_MUST_CHECK;

#endif
