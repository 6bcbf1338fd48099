// `tandem-train`: the train controller daemon.
#include "controllers/common/member.h"
#include "controllers/train/shell.h"
#include "lib/base/mem.h"
#include "lib/daemon/daemon_main.h"

// trainer.default_local_dir, else the job's folder. The settings of a job that was submitted name
// whole paths; a relative one lies in the job's folder.
static char *save_dir_of(const struct td_shell_config *config) {
    const char *dir = config->data->spec->trainer.default_local_dir;
    if (!dir) {
        return td_strdup(config->run_dir);
    }
    return dir[0] == '/' ? td_strdup(dir) : td_asprintf("%s/%s", config->run_dir, dir);
}

static enum td_rc start(const struct td_shell_config *config, struct td_log *journal,
                        struct td_shell **out, struct td_err *err) {
    char *save_dir = save_dir_of(config);
    const struct td_train_shell_config c = {*config, journal, save_dir, td_member_metrics};
    enum td_rc rc = td_train_shell_new(&c, out, err);
    td_free(save_dir);
    return rc;
}

static enum td_rc run(const struct td_daemon_settings *settings, struct td_err *err) {
    static const struct td_member_role role = {"tandem-train", TANDEM__SYNC__MEMBER_KIND__TRAIN,
                                               true, start};
    return td_member_daemon(settings, &role, err);
}

int main(int argc, char **argv) {
    return td_daemon_main(TD_DAEMON_TRAIN, argc, argv, run);
}
