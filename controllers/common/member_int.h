// Inside of the controller daemon: member.c life and reports · service.c the job that is served ·
// member_index.c files of jobs that are being submitted · member_pages.c status.
#ifndef TD_CONTROLLERS_COMMON_MEMBER_INT_H
#define TD_CONTROLLERS_COMMON_MEMBER_INT_H

#include <limits.h>

#include "controllers/common/member.h"
#include "lib/daemon/daemon.h"
#include "lib/io/link_grpc.h"

enum { TD_MEMBER_INDEX_MAX = 16 };

enum td_service_state {
    TD_SERVICE_NONE,
    TD_SERVICE_LOADING,  // settings and data, on the work queue
    TD_SERVICE_OPENING,  // its rollout log, which the leader makes
    TD_SERVICE_RUNNING,  // the shell
    TD_SERVICE_STOPPING, // the shell, its log
};

// The job that is served; lives until role->stop is done.
struct td_service {
    uint64_t job, journal_id, rollout_log; // rollout_log 0: a job over rows
    struct td_buf bytes;                   // its spec, canonical
    struct td_job_spec *spec;
    struct td_job_data *data;
    struct td_log *rollouts; // NULL: a job over rows
    char *socket_dir;        // of the workers, on this machine
    char *run_dir;           // checkpoints and metrics, where all members see them
};

struct td_index_task {
    char *request_id; // owned; NULL: free
    Tandem__Sync__Attempt attempt;
    struct td_buf spec;
    bool running, done, dropped; // dropped: not asked for any more
    Tandem__Journal__DataIndex index;
    char *error; // owned; NULL: index is there
};

struct td_member {
    struct td_daemon daemon;
    const struct td_member_role *role;
    struct td_children *children;
    struct td_workq *workq, *load_workq; // loading a model's tokenizer holds nothing else up
    struct td_timer *timer;
    struct td_link_client *link;
    struct td_log *journal;
    uint64_t id, incarnation, reports;
    char worker_program[PATH_MAX];
    uint64_t journal_id, term; // highest of any orders

    struct { // the newest Serve; job 0: nothing
        uint64_t job, rollout_log;
        struct td_buf spec;
    } wanted;
    enum td_service_state state;
    struct td_service service;
    struct { // OPENING: what the brokers tell of the logs; of the thread while it asks
        bool asking;
        struct td_logs_known journal, rollouts;
        enum td_rc rc;
        struct td_err err;
    } ask;
    int64_t retry_ms;
    struct td_shell *shell; // RUNNING, STOPPING
    char *load_error;       // owned; of the thread that loads, then of the loop
    char *trouble;          // owned; why the job cannot be served here; NULL: it can
    bool swept;
    struct td_index_task index[TD_MEMBER_INDEX_MAX];
    uint64_t metrics_step;
    char *metrics; // owned: the last line
};

// ---- member.c ----
// How many, and their states as td_pool_states tells them.
size_t td_member_workers(const struct td_member *m,
                         Tandem__Sync__WorkerState out[TD_POOL_WORKERS_MAX]);
void td_member_send_report(struct td_member *m); // of a member that serves nothing yet
// For the shell of what is served.
struct td_shell_config td_member_shell_config(struct td_member *m);

// ---- service.c ----
// What is wanted may have changed, or time has passed.
void td_service_drive(struct td_member *m);
// The member stops: as if nothing were wanted. td_member_ended is called when all is over.
void td_service_end(struct td_member *m);
void td_service_over(struct td_member *m);             // of member.c
void td_service_failed(void *user, const char *cause); // user: the member; it cannot run here

// ---- member_index.c ----
void td_index_orders(struct td_member *m, const Tandem__Sync__Orders *orders);
// Fills *list with what is done; at most TD_MEMBER_INDEX_MAX. Messages are in room.
size_t td_index_report(struct td_member *m, Tandem__Sync__Indexed *room,
                       Tandem__Sync__Indexed **list);
void td_index_free(struct td_member *m); // the work queue is empty

// ---- member_pages.c ----
extern const struct td_daemon_pages td_member_pages;

#endif
