// Inside of the coordinator daemon: daemon.c life · pages.c HTTP · store.c the live view in the
// store · json.c both of them as JSON.
#ifndef TD_COORDINATOR_DAEMON_INT_H
#define TD_COORDINATOR_DAEMON_INT_H

#include <jansson.h>

#include "coordinator/daemon/daemon.h"
#include "coordinator/daemon/job_logs.h"
#include "coordinator/daemon/jobs_api.h"
#include "coordinator/shell.h"
#include "lib/daemon/daemon.h"
#include "lib/io/kv.h"
#include "lib/io/link_grpc.h"

struct td_coordinator_daemon {
    struct td_daemon daemon;
    struct td_workq *workq;
    struct td_log *journal;
    uint64_t expect_journal_id; // of this run directory; 0: it has none yet
    struct td_rpc_server *server;
    struct td_link_server *link;
    struct td_jobs_api *api;
    struct td_coordinator_shell *shell;
    struct td_job_logs *job_logs;
    struct td_kv *kv; // NULL: none
    struct td_timer *timer;
    int64_t view_ms;          // when the live view was written last
    char address[128];        // as others reach it
    char leader[128];         // as the store has it; "": unknown
    uint64_t reports, orders; // counted for /metrics
};

extern const struct td_daemon_pages td_coordinator_pages;

// ---- store.c: nothing is decided by what lies there ----
// Now and then: the leader tells where it is and how jobs and members are, a standby asks who
// leads.
void td_coordinator_tell_store(struct td_coordinator_daemon *d, bool leads);

// ---- json.c: new references ----
const char *td_coordinator_state_name(Tandem__V1__JobState state);
json_t *td_coordinator_hex(uint64_t digest); // 16 digits
json_t *td_coordinator_job_json(const Tandem__V1__Job *j);
json_t *td_coordinator_member_json(const Tandem__V1__Member *m);

#endif
