// `tandem-rollout`: the rollout controller daemon.
#include "controllers/common/member.h"
#include "controllers/rollout/shell.h"
#include "lib/daemon/daemon_main.h"

static enum td_rc start(const struct td_shell_config *config, struct td_log *journal,
                        struct td_shell **out, struct td_err *err) {
    (void)journal;
    return td_rollout_shell_new(config, out, err);
}

static enum td_rc run(const struct td_daemon_settings *settings, struct td_err *err) {
    static const struct td_member_role role = {"tandem-rollout", TANDEM__SYNC__MEMBER_KIND__ROLLOUT,
                                               false, start};
    return td_member_daemon(settings, &role, err);
}

int main(int argc, char **argv) {
    return td_daemon_main(TD_DAEMON_ROLLOUT, argc, argv, run);
}
