// A controller daemon: one member. Reports to every coordinator, reads the files of jobs that are
// being submitted, and serves the one job that it is told to: settings and data loaded, rollout log
// opened, then the shell of its role. Loop thread.
#ifndef TD_CONTROLLERS_COMMON_MEMBER_H
#define TD_CONTROLLERS_COMMON_MEMBER_H

#include "controllers/common/job_data.h"
#include "lib/base/buf.h"
#include "lib/io/children.h"
#include "lib/io/log.h"
#include "lib/io/workq.h"
#include "lib/spec/daemon_settings.h"
#include "proto/sync.pb-c.h"

struct td_member;
struct td_pool;

// The job that a member serves, ready to run; lives until role->stop is done.
struct td_service {
    uint64_t job, journal_id, rollout_log; // rollout_log 0: a job over rows
    struct td_buf bytes;                   // its spec, canonical
    struct td_job_spec *spec;
    struct td_job_data *data;
    struct td_log *rollouts; // NULL: a job over rows
    char *socket_dir;        // of the workers, on this machine
    char *run_dir;           // checkpoints and metrics, where all members see them
};

struct td_member_role {
    const char *program; // "tandem-rollout"
    Tandem__Sync__MemberKind kind;
    bool reads_journal; // td_member_journal is open when a service starts
    // Starts the role's shell; user of its functions is the member.
    enum td_rc (*start)(struct td_member *m, const struct td_service *service, void **shell,
                        struct td_err *err);
    void (*orders)(void *shell, const Tandem__Sync__Orders *orders);
    // Ends the shell and its workers (keep_workers: leaves them); done(user) later, then free.
    void (*stop)(void *shell, bool keep_workers, td_loop_fn *done, void *user);
    void (*free)(void *shell);
    const struct td_pool *(*pool)(void *shell); // its workers
    // What it waits for and since when, for the status page.
    void (*waits)(void *shell, char *text, size_t size, int64_t *since_ms);
};

// Runs until SIGTERM or SIGINT (TD_OK), or until it cannot go on.
enum td_rc td_member_daemon(const struct td_daemon_settings *settings,
                            const struct td_member_role *role, struct td_err *err) TD_MUST_CHECK;

// ---- for the role's shell ----
const struct td_daemon_settings *td_member_settings(const struct td_member *m);
struct td_loop *td_member_loop(const struct td_member *m);
struct td_children *td_member_children(const struct td_member *m);
struct td_workq *td_member_workq(const struct td_member *m);
struct td_log *td_member_journal(const struct td_member *m);
const char *td_member_worker_program(const struct td_member *m);
uint64_t td_member_id(const struct td_member *m);
uint64_t td_member_incarnation(const struct td_member *m);
uint32_t td_member_threads(const struct td_member *m);
// user: the member. A report of the shell's machine.
void td_member_report(void *user, const Tandem__Sync__Report *report);
// The job cannot run here.
void td_member_failed(void *user, const char *cause);
// The process cannot go on.
void td_member_stop(void *user, const char *cause);
// A line of metrics.jsonl.
void td_member_metrics(void *user, uint64_t step, const char *json);

#endif
