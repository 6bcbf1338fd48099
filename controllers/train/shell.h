// The train controller's shell: journal, rollout log, worker pool, disk and link as events of the
// machine, and its effects carried out. Loop thread; files and batches are made on a work queue.
// Decides nothing.
#ifndef TD_CONTROLLERS_TRAIN_SHELL_H
#define TD_CONTROLLERS_TRAIN_SHELL_H

#include "controllers/common/job_data.h"
#include "controllers/common/pool.h"
#include "controllers/train/trainc.h"
#include "lib/io/children.h"
#include "lib/io/link.h"
#include "lib/io/log.h"
#include "lib/io/workq.h"

struct td_train_shell;

struct td_train_shell_fns {
    void (*stop)(void *user, const char *cause); // this process cannot go on
    void (*failed)(void *user,
                   const char *cause); // the job cannot run here: bad settings, workers that die
    // A line of metrics.jsonl was written.
    void (*line)(void *user, uint64_t step, const char *json);
    // Without a hub: a report for the coordinators.
    void (*report)(void *user, const Tandem__Sync__Report *report);
};

struct td_train_shell_config {
    struct td_loop *loop;
    struct td_children *children;
    struct td_workq *workq;
    struct td_log *journal, *rollouts; // rollouts: NULL for jobs over rows
    struct td_link_hub *hub; // NULL: reports go to fns.report, orders come by td_train_shell_orders
    const struct td_job_data *data;
    const void *spec; // canonical bytes, borrowed for the shell's life
    size_t spec_bytes;
    const char *socket_dir; // of the workers; NULL: RUN_DIR/workers
    const char *host;       // as other machines reach this one; NULL: none does
    const char *run_dir, *save_dir, *worker_program; // save_dir: of global_step_N
    uint64_t member;      // the same whenever this run directory is served
    uint64_t incarnation; // random per process
    uint64_t job, journal_id;
    uint32_t workers, threads;
    bool verbose;
    struct td_train_shell_fns fns;
    void *user;
};

enum td_rc td_train_shell_new(const struct td_train_shell_config *config,
                              struct td_train_shell **out, struct td_err *err) TD_MUST_CHECK;
// Stops the machine at once and the workers (Stop, or with keep_workers leaves them); done(user)
// when all is over.
void td_train_shell_stop(struct td_train_shell *s, bool keep_workers, td_loop_fn *done, void *user);
void td_train_shell_orders(struct td_train_shell *s, const Tandem__Sync__Orders *orders);
void td_train_shell_free(struct td_train_shell *s); // after done
const struct td_pool *td_train_shell_pool(const struct td_train_shell *s);
void td_train_shell_view(const struct td_train_shell *s, struct td_train_view *out);

#endif
