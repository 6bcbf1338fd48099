// A controller daemon: one member. Reports to every coordinator, reads the files of jobs that are
// being submitted, and serves the one job that it is told to: settings and data loaded, rollout log
// opened, then the shell of its role. Loop thread.
#ifndef TD_CONTROLLERS_COMMON_MEMBER_H
#define TD_CONTROLLERS_COMMON_MEMBER_H

#include "controllers/common/shell.h"
#include "lib/spec/daemon_settings.h"

struct td_member_role {
    const char *program; // "tandem-rollout"
    Tandem__Sync__MemberKind kind;
    bool reads_journal;
    // journal: NULL unless it reads it.
    enum td_rc (*start)(const struct td_shell_config *config, struct td_log *journal,
                        struct td_shell **out, struct td_err *err);
};

// Runs until SIGTERM or SIGINT (TD_OK), or until it cannot go on.
enum td_rc td_member_daemon(const struct td_daemon_settings *settings,
                            const struct td_member_role *role, struct td_err *err) TD_MUST_CHECK;

// A line of metrics.jsonl. user: that of the config.
void td_member_metrics(void *user, uint64_t step, const char *json);

#endif
