// `tandem-train`: the train controller daemon.
#include <stdio.h>

#include "controllers/common/member.h"
#include "controllers/train/shell.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/spec/daemon_main.h"

struct trainer {
    struct td_train_shell *shell;
    char *save_dir; // owned
};

static void free_trainer(void *shell) {
    struct trainer *t = shell;
    td_train_shell_free(t->shell);
    td_free(t->save_dir);
    td_free(t);
}

// trainer.default_local_dir, else the job's folder. The settings of a job that was submitted name
// whole paths; a relative one lies in the job's folder.
static char *save_dir_of(const struct td_service *service) {
    const char *dir = service->spec->trainer.default_local_dir;
    if (!dir) {
        return td_strdup(service->run_dir);
    }
    return dir[0] == '/' ? td_strdup(dir) : td_asprintf("%s/%s", service->run_dir, dir);
}

static enum td_rc start(struct td_member *m, const struct td_service *service, void **shell,
                        struct td_err *err) {
    const struct td_daemon_settings *s = td_member_settings(m);
    struct trainer *t = td_alloc(sizeof *t);
    t->save_dir = save_dir_of(service);
    struct td_train_shell_config c = {
        .loop = td_member_loop(m),
        .children = td_member_children(m),
        .workq = td_member_workq(m),
        .journal = td_member_journal(m),
        .rollouts = service->rollouts,
        .data = service->data,
        .spec = service->bytes.data,
        .spec_bytes = service->bytes.len,
        .socket_dir = service->socket_dir,
        .host = s->host,
        .run_dir = service->run_dir,
        .save_dir = t->save_dir,
        .worker_program = td_member_worker_program(m),
        .member = td_member_id(m),
        .incarnation = td_member_incarnation(m),
        .job = service->job,
        .journal_id = service->journal_id,
        .workers = (uint32_t)s->workers,
        .threads = td_member_threads(m),
        .verbose = s->verbose,
        .fns = {td_member_stop, td_member_failed, td_member_metrics, td_member_report},
        .user = m};
    enum td_rc rc = td_make_dirs(t->save_dir, err);
    rc = rc == TD_OK ? td_train_shell_new(&c, &t->shell, err) : rc;
    if (rc != TD_OK) {
        free_trainer(t);
        return rc;
    }
    *shell = t;
    return TD_OK;
}

static void orders(void *shell, const Tandem__Sync__Orders *o) {
    td_train_shell_orders(((struct trainer *)shell)->shell, o);
}

static void stop(void *shell, bool keep_workers, td_loop_fn *done, void *user) {
    td_train_shell_stop(((struct trainer *)shell)->shell, keep_workers, done, user);
}

static const struct td_pool *pool(void *shell) {
    return td_train_shell_pool(((struct trainer *)shell)->shell);
}

static void waits(void *shell, char *text, size_t size, int64_t *since_ms) {
    struct td_train_view v = {0};
    td_train_shell_view(((struct trainer *)shell)->shell, &v);
    snprintf(text, size, "%s", v.waits_for);
    *since_ms = v.since_ms;
}

static enum td_rc run(const struct td_daemon_settings *settings, struct td_err *err) {
    static const struct td_member_role role = {.program = "tandem-train",
                                               .kind = TANDEM__SYNC__MEMBER_KIND__TRAIN,
                                               .reads_journal = true,
                                               .start = start,
                                               .orders = orders,
                                               .stop = stop,
                                               .free = free_trainer,
                                               .pool = pool,
                                               .waits = waits};
    return td_member_daemon(settings, &role, err);
}

int main(int argc, char **argv) {
    return td_daemon_main(TD_DAEMON_TRAIN, argc, argv, run);
}
