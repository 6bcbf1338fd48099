// A cluster as a command sees it: finds the coordinators, asks whichever leads, and goes on asking
// through a failover. Every call blocks: it runs the loop until there is an answer, SIGINT, or no
// more time. What goes wrong is told on stderr here, unless quiet; commands pass the status on.
#ifndef TD_CLI_CLIENT_H
#define TD_CLI_CLIENT_H

#include "cli/options.h"
#include "lib/base/err.h"
#include "lib/io/loop.h"
#include "lib/io/rpc.h"
#include "proto/jobs.pb-c.h"

struct td_client;

enum { TD_CLIENT_TIMEOUT_MS = 30000, TD_CLIENT_ADDRESSES_MAX = 64 };

struct td_client_opts {
    const char *command;   // for messages
    const char *address;   // "HOST:PORT,…"; NULL: of the environment, else of the cluster in dir
    const char *dir;       // run directory of `tandem up`; NULL: of the environment or the default
    int64_t timeout_ms;    // how long to go on asking while no coordinator leads; 0: ask each once
    struct td_rpc_tls tls; // all NULL: plain
    enum td_cli_output output;
    bool quiet;
    struct td_loop *loop; // NULL: one of its own; SIGINT is watched on it
};

// What td_cli_options needs for the connection and for -o; opts is a struct td_client_opts.
#define TD_CLIENT_OPTIONS(opts)                                                                    \
    {"--address", 0, TD_CLI_TEXT, &(opts).address}, {"--dir", 0, TD_CLI_TEXT, &(opts).dir},        \
        {"--timeout", 0, TD_CLI_SECONDS, &(opts).timeout_ms},                                      \
        {"--tls-ca", 0, TD_CLI_TEXT, &(opts).tls.ca_file},                                         \
        {"--tls-cert", 0, TD_CLI_TEXT, &(opts).tls.cert_file},                                     \
        {"--tls-key", 0, TD_CLI_TEXT, &(opts).tls.key_file}, {                                     \
        "--output", 'o', TD_CLI_OUTPUT, &(opts).output                                             \
    }

// --dir, else TANDEM_DIR, else tandem-cluster in the current folder.
const char *td_client_dir(const char *dir);

// Exit statuses of enum td_cli_exit here and below.
int td_client_new(const struct td_client_opts *opts, struct td_client **out);
void td_client_free(struct td_client *c); // accepts NULL

struct td_client_call {
    const char *method; // of tandem.v1.Jobs
    const ProtobufCMessage *request;
    const ProtobufCMessageDescriptor *out;
    bool slow; // may rightly take minutes
};
// *reply is the caller's: protobuf_c_message_free_unpacked.
int td_client_call(struct td_client *c, const struct td_client_call *call,
                   ProtobufCMessage **reply);

// The calls by name; replies are the caller's.
int td_client_get_job(struct td_client *c, uint64_t id, Tandem__V1__Job **out);
int td_client_list_jobs(struct td_client *c, Tandem__V1__ListJobsResponse **out);
int td_client_list_rounds(struct td_client *c, uint64_t job, Tandem__V1__ListRoundsResponse **out);
int td_client_list_members(struct td_client *c, Tandem__V1__ListMembersResponse **out);

struct td_client_follow {
    uint64_t job;
    int64_t within_ms; // < 0: for ever
    // The job, at first and whenever it changed, perhaps also when it did not. May be NULL.
    void (*changed)(void *user, const Tandem__V1__Job *job);
    void *user;
};
// Until the job has ended: TD_CLI_OK, and the ended job in *out, the caller's. After within_ms
// TD_CLI_WAIT_TIMEOUT. Goes on through failovers.
int td_client_follow(struct td_client *c, const struct td_client_follow *follow,
                     Tandem__V1__Job **out);

// A command whose words are "[job] N" and the common options: reads them, runs it with a client,
// and returns the exit status.
typedef int td_client_job_fn(struct td_client *c, uint64_t id, enum td_cli_output output);
int td_client_job_command(int argc, char **argv, td_client_job_fn *run);

// Lets time pass: TD_CLI_OK, or TD_CLI_INTERRUPTED.
int td_client_pause(struct td_client *c, int64_t ms);
// The last error, for those who are quiet; never NULL.
const char *td_client_error(const struct td_client *c);
// The coordinator that answered last.
const char *td_client_address(const struct td_client *c);

// A job in a few words: its exit status and the name of its state.
int td_client_exit_of(const Tandem__V1__Job *job);
bool td_client_ended(const Tandem__V1__Job *job);

#endif
