// `tandem-rollout`: the rollout controller daemon.
#include <stdio.h>

#include "controllers/common/member.h"
#include "controllers/rollout/shell.h"
#include "lib/base/mem.h"
#include "lib/spec/daemon_main.h"

static enum td_rc start(struct td_member *m, const struct td_service *service, void **shell,
                        struct td_err *err) {
    const struct td_daemon_settings *s = td_member_settings(m);
    struct td_rollout_shell_config c = {.loop = td_member_loop(m),
                                        .children = td_member_children(m),
                                        .workq = td_member_workq(m),
                                        .rollouts = service->rollouts,
                                        .data = service->data,
                                        .spec = service->bytes.data,
                                        .spec_bytes = service->bytes.len,
                                        .socket_dir = service->socket_dir,
                                        .host = s->host,
                                        .run_dir = service->run_dir,
                                        .worker_program = td_member_worker_program(m),
                                        .member = td_member_id(m),
                                        .incarnation = td_member_incarnation(m),
                                        .job = service->job,
                                        .journal_id = service->journal_id,
                                        .workers = (uint32_t)s->workers,
                                        .threads = td_member_threads(m),
                                        .verbose = s->verbose,
                                        .fns = {td_member_stop, td_member_failed, td_member_report},
                                        .user = m};
    struct td_rollout_shell *out = NULL;
    enum td_rc rc = td_rollout_shell_new(&c, &out, err);
    *shell = out;
    return rc;
}

static void orders(void *shell, const Tandem__Sync__Orders *o) {
    td_rollout_shell_orders(shell, o);
}

static void stop(void *shell, bool keep_workers, td_loop_fn *done, void *user) {
    td_rollout_shell_stop(shell, keep_workers, done, user);
}

static void free_shell(void *shell) {
    td_rollout_shell_free(shell);
}

static const struct td_pool *pool(void *shell) {
    return td_rollout_shell_pool(shell);
}

static void waits(void *shell, char *text, size_t size, int64_t *since_ms) {
    struct td_rollout_view v = {0};
    td_rollout_shell_view(shell, &v);
    snprintf(text, size, "%s", v.waits_for);
    *since_ms = v.since_ms;
}

static enum td_rc run(const struct td_daemon_settings *settings, struct td_err *err) {
    static const struct td_member_role role = {.program = "tandem-rollout",
                                               .kind = TANDEM__SYNC__MEMBER_KIND__ROLLOUT,
                                               .start = start,
                                               .orders = orders,
                                               .stop = stop,
                                               .free = free_shell,
                                               .pool = pool,
                                               .waits = waits};
    return td_member_daemon(settings, &role, err);
}

int main(int argc, char **argv) {
    return td_daemon_main(TD_DAEMON_ROLLOUT, argc, argv, run);
}
