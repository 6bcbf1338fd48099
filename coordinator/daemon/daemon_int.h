// Inside of the coordinator daemon: daemon.c life · pages.c HTTP · store.c the live view in the
// store · json.c both of them as JSON.
#ifndef TD_COORDINATOR_DAEMON_INT_H
#define TD_COORDINATOR_DAEMON_INT_H

#include <jansson.h>

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
    int64_t view_ms;                      // when the live view was written last
    char address[128], http_address[128]; // as others reach them
    char leader[128];                     // as the store has it; "": unknown
    bool stopping;
    char *cause;              // why it cannot go on, owned; NULL: it was told to stop
    uint64_t reports, orders; // counted for /metrics
};

// Routes the pages. user of each is the daemon.
void td_daemon_pages(struct td_daemon *d);

// ---- store.c: nothing is decided by what lies there ----
// Now and then: the leader tells where it is and how jobs and members are, a standby asks who
// leads.
void td_daemon_tell_store(struct td_daemon *d, bool leads);

// ---- json.c: new references ----
const char *td_daemon_state_name(Tandem__V1__JobState state);
json_t *td_daemon_hex(uint64_t digest); // 16 digits
json_t *td_daemon_job_json(const Tandem__V1__Job *j);
json_t *td_daemon_member_json(const Tandem__V1__Member *m);

#endif
