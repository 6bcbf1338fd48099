// The users' API (proto/jobs.proto): calls at the coordinator's gRPC server, answered from what the
// machine knows. Loop thread.
#ifndef TD_COORDINATOR_JOBS_API_H
#define TD_COORDINATOR_JOBS_API_H

#include "coordinator/shell.h"
#include "lib/io/rpc.h"
#include "proto/jobs.pb-c.h"

struct td_jobs_api;

struct td_jobs_api_opts {
    struct td_loop *loop;
    const char *shared_dir; // borrowed; a job's folder is SHARED_DIR/jobs/ID
    // Where the leader is, as far as this process knows; "": it does not.
    const char *(*leader)(void *user);
    void *user;
};

struct td_jobs_api *td_jobs_api_new(const struct td_jobs_api_opts *opts);
// Open calls end with UNAVAILABLE, later ones too. Before the shell goes.
void td_jobs_api_close(struct td_jobs_api *api);
void td_jobs_api_free(struct td_jobs_api *api); // accepts NULL
// Before the first call. Calls to it go on until it is freed.
void td_jobs_api_set_shell(struct td_jobs_api *api, struct td_coordinator_shell *shell);

// Appends the methods to the list of a server.
enum { TD_JOBS_API_METHODS = 7 };
void td_jobs_api_methods(struct td_jobs_api *api, struct td_rpc_method *out);

// From the coordinator's shell.
void td_jobs_api_accepted(struct td_jobs_api *api, const char *request_id, uint64_t job);
void td_jobs_api_refused(struct td_jobs_api *api, const char *request_id, const char *cause);
void td_jobs_api_changed(struct td_jobs_api *api);

#endif
