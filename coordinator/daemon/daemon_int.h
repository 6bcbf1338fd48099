// Inside of the coordinator daemon: shared by daemon.c (life) and status.c (pages).
#ifndef TD_COORDINATOR_DAEMON_INT_H
#define TD_COORDINATOR_DAEMON_INT_H

#include "coordinator/daemon/daemon.h"
#include "coordinator/daemon/job_logs.h"
#include "coordinator/daemon/jobs_api.h"
#include "coordinator/shell.h"
#include "lib/io/http.h"
#include "lib/io/kv.h"
#include "lib/io/link_grpc.h"
#include "lib/io/logs.h"
#include "lib/io/rpc.h"

struct td_daemon {
    const struct td_daemon_settings *settings;
    struct td_logs logs;
    struct td_rpc_tls tls;
    struct td_loop *loop;
    struct td_workq *workq;
    struct td_watch *signals[2];
    int lock;
    struct td_log *journal;
    uint64_t expect_journal_id; // of this run directory; 0: it has none yet
    struct td_rpc *rpc;
    struct td_rpc_server *server;
    struct td_link_server *link;
    struct td_jobs_api *api;
    struct td_coordinator_shell *shell;
    struct td_job_logs *job_logs;
    struct td_http *http;
    struct td_kv *kv; // NULL: none
    struct td_timer *timer;
    char address[128], http_address[128]; // as others reach them
    char leader[128];                     // as the store has it; "": unknown
    bool stopping;
    char *cause;              // why it cannot go on, owned; NULL: it was told to stop
    uint64_t reports, orders; // counted for /metrics
};

// Routes the pages. user of each is the daemon.
void td_daemon_pages(struct td_daemon *d);

#endif
