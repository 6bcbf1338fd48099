// What the shells of the two controllers have in common: what they are told, the link to a
// coordinator in the same process, the pool of workers, and coming to an end. Embedded in a shell.
// Loop thread.
#ifndef TD_CONTROLLERS_COMMON_SHELL_H
#define TD_CONTROLLERS_COMMON_SHELL_H

#include "controllers/common/job_data.h"
#include "controllers/common/pool.h"
#include "lib/io/children.h"
#include "lib/io/link.h"
#include "lib/io/log.h"
#include "lib/io/workq.h"
#include "proto/sync.pb-c.h"

enum { TD_SHELL_WAITS = 160 };

struct td_shell_config {
    struct td_loop *loop;
    struct td_children *children;
    struct td_workq *workq;  // rollout: room for a job per group under way
    struct td_log *rollouts; // NULL: a job over rows
    struct td_link_hub *hub; // NULL: reports go to report, orders come by a call
    const struct td_job_data *data;
    const void *spec; // canonical bytes, borrowed for the shell's life
    size_t spec_bytes;
    const char *socket_dir; // of the workers; NULL: RUN_DIR/workers
    const char *host;       // as other machines reach this one; NULL: none does
    const char *run_dir, *worker_program;
    uint64_t member;      // the same whenever this run directory is served
    uint64_t incarnation; // random per process
    uint64_t job, journal_id;
    uint32_t workers, threads;
    bool verbose;
    void (*stop)(void *user, const char *cause);                    // this process cannot go on
    void (*failed)(void *user, const char *cause);                  // the job cannot run here
    void (*report)(void *user, const Tandem__Sync__Report *report); // no hub: for the coordinators
    void *user;
};

// What a role adds; shell: the whole that embeds this one.
struct td_shell_kind {
    void (*orders)(void *shell, const Tandem__Sync__Orders *orders);
    void (*halt)(void *shell); // makes no event any more
    void (*free)(void *shell);
    // What it waits for, "" for nothing, and since when.
    void (*waits)(const void *shell, char text[TD_SHELL_WAITS], int64_t *since_ms);
};

struct td_shell {
    struct td_shell_config config;
    const struct td_shell_kind *kind;
    void *whole;
    struct td_link *link; // NULL: no hub
    struct td_pool *pool;
    Tandem__Worker__Setup setup;
    char *socket_dir;
    bool stopping;
    bool stepping; // an event within the effects of another one would mix their order
    int busy;      // work queue jobs, log calls and commands under way that name the shell
    td_loop_fn *stopped;
    void *stopped_user;
};

// ---- for the role ----

// Makes the workers' socket folder and the link; td_shell_fini after an error, too. whole: user of
// the pool's functions.
enum td_rc td_shell_init(struct td_shell *s, const struct td_shell_config *config,
                         const struct td_shell_kind *kind, void *whole,
                         struct td_err *err) TD_MUST_CHECK;
// name: "train" | "rollout". What setup says of the role alone is filled in before.
void td_shell_start_pool(struct td_shell *s, const char *name, const struct td_pool_fns *fns);
void td_shell_fini(struct td_shell *s);

// To the coordinators.
void td_shell_report(struct td_shell *s, const Tandem__Sync__Report *report);
// busy until done calls td_shell_idle. False: the queue is full, and stop was called.
bool td_shell_submit(struct td_shell *s, td_loop_fn *run, td_loop_fn *done,
                     void *user) TD_MUST_CHECK;
// One less under way; may end a stop.
void td_shell_idle(struct td_shell *s);

// ---- for who runs it ----

void td_shell_orders(struct td_shell *s, const Tandem__Sync__Orders *orders);
void td_shell_waits(const struct td_shell *s, char text[TD_SHELL_WAITS], int64_t *since_ms);
// Halts at once and ends the workers; stopped(user) when all is over, then td_shell_free.
void td_shell_stop(struct td_shell *s, td_loop_fn *stopped, void *user);
void td_shell_free(struct td_shell *s); // accepts NULL

#endif
