// A cluster as a command sees it: see client.h. One thread; the loop runs only within a call.
#include "cli/client.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/cluster.h"
#include "lib/base/address.h"
#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum {
    ATTEMPT_MS = 5000, // a coordinator that is silent for so long is passed over
    SLOW_MS = 600000,
    STREAM_MS = 10000, // a stream is opened anew now and then, lest its end is missed
    PAUSE_MS = 200,
    WORD_MAX = 300,
};

struct td_client {
    struct td_client_opts opts;
    struct td_loop *loop;
    bool owns_loop, interrupted;
    struct td_watch *signal;
    struct td_timer *timer;
    struct td_rpc *rpc;
    char *addresses[TD_CLIENT_ADDRESSES_MAX];
    struct td_rpc_channel *channels[TD_CLIENT_ADDRESSES_MAX];
    size_t count, leader; // leader: that answered last
    int64_t until_ms;     // of td_client_follow; 0: none
    struct td_buf error;
};

struct attempt { // one request to one coordinator
    struct td_client *c;
    const struct td_client_follow *follow; // of a stream
    struct td_rpc_request *request;
    bool done;
    enum td_rpc_status status;
    struct td_buf text;
    ProtobufCMessage *reply;
};

// ---- finding the coordinators ----

const char *td_client_dir(const char *dir) {
    const char *from_env = getenv("TANDEM_DIR");
    return dir ? dir : from_env && *from_env ? from_env : "tandem-cluster";
}

static int fail(struct td_client *c, int status, const char *text) {
    td_buf_clear(&c->error);
    td_buf_puts(&c->error, text);
    if (!c->opts.quiet) {
        fprintf(stderr, "tandem %s: %s\n", c->opts.command, text);
    }
    return status;
}

static int add_address(struct td_client *c, const char *text, size_t n) {
    struct td_address parsed;
    struct td_err err;
    char *address = td_strndup(text, n);
    int status = TD_CLI_OK;
    if (strncmp(address, "unix:", 5) != 0 && td_address_parse(address, &parsed, &err) != TD_OK) {
        status = fail(c, TD_CLI_USAGE, err.msg);
    } else if (c->count == TD_CLIENT_ADDRESSES_MAX) {
        status = fail(c, TD_CLI_USAGE, "more than 64 addresses of coordinators");
    }
    if (status == TD_CLI_OK) {
        c->addresses[c->count++] = address;
    } else {
        td_free(address);
    }
    return status;
}

static int add_addresses(struct td_client *c, const char *list) {
    int status = TD_CLI_OK;
    while (status == TD_CLI_OK && *list) {
        size_t n = strcspn(list, ",");
        status = n ? add_address(c, list, n) : TD_CLI_OK;
        list += n + (list[n] == ',');
    }
    return status == TD_CLI_OK && c->count == 0
               ? fail(c, TD_CLI_USAGE, "the list of addresses is empty; write HOST:PORT,HOST:PORT")
               : status;
}

static int find_local(struct td_client *c) {
    const char *dir = td_client_dir(c->opts.dir);
    struct td_cluster cluster;
    struct td_err err;
    enum td_rc rc = td_cluster_read(dir, &cluster, &err);
    if (rc == TD_ENOENT) {
        char *text = td_asprintf("%s, --address A:PORT,B:PORT its coordinators", err.msg);
        int status = fail(c, TD_CLI_UNAVAILABLE, text);
        td_free(text);
        return status;
    }
    if (rc != TD_OK) {
        return fail(c, TD_CLI_FAILED, err.msg);
    }
    size_t alive = 0;
    for (size_t i = 0; i < cluster.count; i++) {
        alive += td_cluster_is(&cluster.processes[i], "coordinator") &&
                 td_cluster_alive(&cluster.processes[i]);
    }
    char *addresses = td_cluster_addresses(&cluster);
    td_cluster_fini(&cluster);
    int status = TD_CLI_OK;
    if (alive == 0) {
        char *text =
            td_asprintf("no coordinator runs in %s; `tandem up` starts what is missing", dir);
        status = fail(c, TD_CLI_UNAVAILABLE, text);
        td_free(text);
    } else {
        status = add_addresses(c, addresses);
    }
    td_free(addresses);
    return status;
}

static int find_coordinators(struct td_client *c) {
    const char *from_env = getenv("TANDEM_ADDRESS");
    if (c->opts.address) {
        return add_addresses(c, c->opts.address);
    }
    // A directory that was named goes before what the environment says.
    return !c->opts.dir && from_env && *from_env ? add_addresses(c, from_env) : find_local(c);
}

// ---- life ----

static void on_signal(void *user, int signum) {
    struct td_client *c = user;
    (void)signum;
    c->interrupted = true;
    td_loop_stop(c->loop);
}

static void on_timer(void *user) {
    td_loop_stop(((struct td_client *)user)->loop);
}

static enum td_rc connect_all(struct td_client *c, struct td_err *err) {
    const struct td_rpc_tls *tls = &c->opts.tls;
    bool plain = !tls->ca_file && !tls->cert_file && !tls->key_file;
    enum td_rc rc = td_rpc_new(c->loop, &c->rpc, err);
    for (size_t i = 0; rc == TD_OK && i < c->count; i++) {
        rc = td_rpc_channel_new(c->rpc, c->addresses[i], plain ? NULL : tls, &c->channels[i], err);
    }
    return rc;
}

int td_client_new(const struct td_client_opts *opts, struct td_client **out) {
    struct td_client *c = td_alloc(sizeof *c);
    *c = (struct td_client){.opts = *opts, .loop = opts->loop, .owns_loop = !opts->loop};
    struct td_err err = {0};
    int status = find_coordinators(c);
    enum td_rc rc = TD_OK;
    if (status == TD_CLI_OK && c->owns_loop) {
        rc = td_loop_new(&c->loop, &err);
    }
    if (status == TD_CLI_OK && rc == TD_OK) {
        rc = td_watch_signal(c->loop, SIGINT, on_signal, c, &c->signal);
    }
    if (status == TD_CLI_OK && rc == TD_OK) {
        c->timer = td_timer_new(c->loop, on_timer, c);
        rc = connect_all(c, &err);
    }
    if (rc != TD_OK) {
        bool theirs = rc == TD_EINVAL || rc == TD_ENOENT || rc == TD_EPERM; // certificates
        status = fail(c, theirs ? TD_CLI_USAGE : TD_CLI_FAILED, err.msg);
    }
    if (status != TD_CLI_OK) {
        td_client_free(c);
        return status;
    }
    *out = c;
    return TD_CLI_OK;
}

void td_client_free(struct td_client *c) {
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->count; i++) {
        td_rpc_channel_free(c->channels[i]);
        td_free(c->addresses[i]);
    }
    td_rpc_free(c->rpc);
    td_timer_close(c->timer);
    td_watch_close(c->signal);
    if (c->owns_loop) {
        td_loop_free(c->loop);
    }
    td_buf_fini(&c->error);
    td_free(c);
}

const char *td_client_error(const struct td_client *c) {
    return td_buf_str(&c->error);
}

const char *td_client_address(const struct td_client *c) {
    return c->addresses[c->leader];
}

int td_client_pause(struct td_client *c, int64_t ms) {
    if (!c->interrupted) {
        td_timer_start(c->timer, ms);
        td_loop_run(c->loop);
        td_timer_stop(c->timer);
    }
    return c->interrupted ? TD_CLI_INTERRUPTED : TD_CLI_OK;
}

// ---- one request ----

static void on_message(void *user, const ProtobufCMessage *message) {
    struct attempt *a = user;
    const Tandem__V1__JobEvent *event = (const Tandem__V1__JobEvent *)message;
    if (event->job && a->follow->changed) {
        a->follow->changed(a->follow->user, event->job);
    }
}

static ProtobufCMessage *copy_of(const ProtobufCMessage *message) {
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = td_alloc(n);
    protobuf_c_message_pack(message, packed);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, n, packed);
    td_free(packed);
    return copy;
}

static void on_done(void *user, const struct td_rpc_outcome *outcome) {
    struct attempt *a = user;
    a->done = true;
    a->request = NULL;
    a->status = outcome->status;
    td_buf_puts(&a->text, outcome->text ? outcome->text : "");
    a->reply = outcome->message ? copy_of(outcome->message) : NULL;
    td_loop_stop(a->c->loop);
}

// Asks coordinator i and waits for the end of it.
static void run_attempt(struct attempt *a, size_t i, const struct td_client_call *call,
                        int64_t deadline_ms) {
    struct td_client *c = a->c;
    char path[WORD_MAX];
    snprintf(path, sizeof path, "/tandem.v1.Jobs/%s", call->method);
    a->request = td_rpc_request(c->channels[i], &(struct td_rpc_request_opts){
                                                    .path = path,
                                                    .request = call->request,
                                                    .out = call->out,
                                                    .deadline_ms = deadline_ms,
                                                    .message = a->follow ? on_message : NULL,
                                                    .done = on_done,
                                                    .user = a,
                                                });
    while (!a->done && !c->interrupted) {
        td_loop_run(c->loop);
    }
    if (!a->done) {
        td_rpc_cancel(a->request);
    }
    while (!a->done) {
        td_loop_run(c->loop);
    }
}

// Another coordinator, or the same one later, may answer: a failover. UNKNOWN is what this version
// of the library says of some broken connections.
static bool is_passing(enum td_rpc_status status) {
    return status == TD_RPC_UNAVAILABLE || status == TD_RPC_DEADLINE_EXCEEDED ||
           status == TD_RPC_CANCELLED || status == TD_RPC_UNKNOWN;
}

static int exit_of(enum td_rpc_status status) {
    switch (status) {
    case TD_RPC_OK:
        return TD_CLI_OK;
    case TD_RPC_INVALID_ARGUMENT:
    case TD_RPC_ALREADY_EXISTS:
    case TD_RPC_OUT_OF_RANGE:
        return TD_CLI_USAGE;
    case TD_RPC_NOT_FOUND:
        return TD_CLI_NOT_FOUND;
    case TD_RPC_UNAVAILABLE:
    case TD_RPC_DEADLINE_EXCEEDED:
    case TD_RPC_RESOURCE_EXHAUSTED:
    case TD_RPC_CANCELLED:
    case TD_RPC_UNKNOWN:
        return TD_CLI_UNAVAILABLE;
    case TD_RPC_PERMISSION_DENIED:
    case TD_RPC_UNAUTHENTICATED:
        return TD_CLI_UNAUTHORISED;
    default:
        return TD_CLI_FAILED;
    }
}

static int fail_status(struct td_client *c, const struct attempt *a) {
    int status = exit_of(a->status);
    const char *text = td_buf_str(&a->text);
    if (status == TD_CLI_USAGE || status == TD_CLI_NOT_FOUND) {
        return fail(c, status, text); // it speaks for itself, with places in the job file
    }
    char *whole = td_asprintf("%s: %s%s%s", td_client_address(c), td_rpc_status_name(a->status),
                              *text ? ": " : "", text);
    status = fail(c, status, whole);
    td_free(whole);
    return status;
}

// ---- until one leads ----

struct search { // of the leader, through one call
    struct td_client *c;
    int64_t lost_ms; // when the first coordinator failed us; 0: none did
    bool said;
    struct td_buf why; // "ADDRESS: what it said", of the sweep under way
};

static void note_failure(struct search *s, size_t i, const struct attempt *a) {
    if (s->lost_ms == 0) {
        s->lost_ms = td_clock_ms();
    }
    const char *text = td_buf_str(&a->text);
    td_buf_printf(&s->why, "%s%s: %.*s", s->why.len ? "; " : "", s->c->addresses[i], WORD_MAX,
                  *text ? text : td_rpc_status_name(a->status));
}

// A whole sweep found nobody: TD_CLI_OK goes on after a pause, anything else is the end.
static int after_sweep(struct search *s) {
    struct td_client *c = s->c;
    int64_t now_ms = td_clock_ms(), left_ms = s->lost_ms + c->opts.timeout_ms - now_ms;
    if (c->until_ms && now_ms >= c->until_ms) {
        return TD_CLI_WAIT_TIMEOUT;
    }
    if (left_ms <= 0) {
        char *text = td_asprintf("no coordinator leads, asked for %.1f s (%s)",
                                 (double)c->opts.timeout_ms * 1e-3, td_buf_str(&s->why));
        int status = fail(c, TD_CLI_UNAVAILABLE, text);
        td_free(text);
        return status;
    }
    if (!s->said && !c->opts.quiet) {
        s->said = true;
        fprintf(stderr, "tandem %s: no coordinator leads (%s); asking for %.0f s more\n",
                c->opts.command, td_buf_str(&s->why), (double)left_ms * 1e-3);
    }
    td_buf_clear(&s->why);
    return td_client_pause(c, PAUSE_MS);
}

// One coordinator after the other, beginning with the one that answered last. Whether a has an
// answer that counts.
static bool sweep(struct search *s, const struct td_client_call *call, struct attempt *a) {
    struct td_client *c = s->c;
    size_t first = c->leader;
    for (size_t k = 0; k < c->count; k++) {
        size_t i = (first + k) % c->count;
        td_buf_fini(&a->text);
        *a = (struct attempt){.c = c};
        run_attempt(a, i, call, call->slow ? SLOW_MS : ATTEMPT_MS);
        if (c->interrupted) {
            return true;
        }
        if (!is_passing(a->status)) {
            c->leader = i;
            return true;
        }
        note_failure(s, i, a);
    }
    return false;
}

int td_client_call(struct td_client *c, const struct td_client_call *call,
                   ProtobufCMessage **reply) {
    struct search s = {.c = c};
    struct attempt a = {.c = c};
    int status = TD_CLI_OK;
    while (status == TD_CLI_OK && !sweep(&s, call, &a)) {
        status = after_sweep(&s);
    }
    if (c->interrupted) {
        status = TD_CLI_INTERRUPTED;
    } else if (status == TD_CLI_OK && a.status != TD_RPC_OK) {
        status = fail_status(c, &a);
    } else if (status == TD_CLI_OK && s.said) {
        fprintf(stderr, "tandem %s: the coordinator at %s leads\n", c->opts.command,
                td_client_address(c));
    }
    if (status == TD_CLI_OK) {
        *reply = a.reply;
    } else if (a.reply) {
        protobuf_c_message_free_unpacked(a.reply, NULL);
    }
    td_buf_fini(&a.text);
    td_buf_fini(&s.why);
    return status;
}

// ---- calls by name ----

int td_client_get_job(struct td_client *c, uint64_t id, Tandem__V1__Job **out) {
    Tandem__V1__GetJobRequest request = TANDEM__V1__GET_JOB_REQUEST__INIT;
    request.id = id;
    struct td_client_call call = {"GetJob", &request.base, &tandem__v1__job__descriptor, false};
    return td_client_call(c, &call, (ProtobufCMessage **)out);
}

int td_client_list_jobs(struct td_client *c, Tandem__V1__ListJobsResponse **out) {
    Tandem__V1__ListJobsRequest request = TANDEM__V1__LIST_JOBS_REQUEST__INIT;
    struct td_client_call call = {"ListJobs", &request.base,
                                  &tandem__v1__list_jobs_response__descriptor, false};
    return td_client_call(c, &call, (ProtobufCMessage **)out);
}

int td_client_list_rounds(struct td_client *c, uint64_t job, Tandem__V1__ListRoundsResponse **out) {
    Tandem__V1__ListRoundsRequest request = TANDEM__V1__LIST_ROUNDS_REQUEST__INIT;
    request.id = job;
    struct td_client_call call = {"ListRounds", &request.base,
                                  &tandem__v1__list_rounds_response__descriptor, false};
    return td_client_call(c, &call, (ProtobufCMessage **)out);
}

int td_client_list_members(struct td_client *c, Tandem__V1__ListMembersResponse **out) {
    Tandem__V1__ListMembersRequest request = TANDEM__V1__LIST_MEMBERS_REQUEST__INIT;
    struct td_client_call call = {"ListMembers", &request.base,
                                  &tandem__v1__list_members_response__descriptor, false};
    return td_client_call(c, &call, (ProtobufCMessage **)out);
}

// ---- following a job ----

bool td_client_ended(const Tandem__V1__Job *job) {
    return job->state == TANDEM__V1__JOB_STATE__SUCCEEDED ||
           job->state == TANDEM__V1__JOB_STATE__FAILED ||
           job->state == TANDEM__V1__JOB_STATE__CANCELLED;
}

int td_client_exit_of(const Tandem__V1__Job *job) {
    return job->state == TANDEM__V1__JOB_STATE__FAILED      ? TD_CLI_FAILED
           : job->state == TANDEM__V1__JOB_STATE__CANCELLED ? TD_CLI_CANCELLED
                                                            : TD_CLI_OK;
}

// Follows at the coordinator that answered last, until the stream ends for whatever reason.
static int stream(struct td_client *c, const struct td_client_follow *follow) {
    Tandem__V1__WatchJobRequest request = TANDEM__V1__WATCH_JOB_REQUEST__INIT;
    request.id = follow->job;
    struct td_client_call call = {"WatchJob", &request.base, &tandem__v1__job_event__descriptor,
                                  true};
    int64_t begin_ms = td_clock_ms(), deadline_ms = STREAM_MS;
    if (c->until_ms && c->until_ms - begin_ms < deadline_ms) {
        deadline_ms = c->until_ms - begin_ms;
    }
    struct attempt a = {.c = c, .follow = follow};
    run_attempt(&a, c->leader, &call, deadline_ms > 0 ? deadline_ms : 0);
    int status = TD_CLI_OK;
    if (c->interrupted) {
        status = TD_CLI_INTERRUPTED;
    } else if (a.status != TD_RPC_OK && !is_passing(a.status)) {
        status = fail_status(c, &a);
    } else if (td_clock_ms() - begin_ms < PAUSE_MS) {
        status = td_client_pause(c, PAUSE_MS); // one that ends at once must not be asked at once
    }
    td_buf_fini(&a.text);
    return status;
}

int td_client_follow(struct td_client *c, const struct td_client_follow *follow,
                     Tandem__V1__Job **out) {
    c->until_ms = follow->within_ms < 0 ? 0 : td_clock_ms() + follow->within_ms;
    Tandem__V1__Job *job = NULL;
    int status = TD_CLI_OK;
    for (;;) {
        // What has ended says so here, whatever became of the stream.
        status = td_client_get_job(c, follow->job, &job);
        if (status != TD_CLI_OK) {
            break;
        }
        if (follow->changed) {
            follow->changed(follow->user, job);
        }
        if (td_client_ended(job)) {
            break;
        }
        tandem__v1__job__free_unpacked(job, NULL);
        job = NULL;
        status =
            c->until_ms && td_clock_ms() >= c->until_ms ? TD_CLI_WAIT_TIMEOUT : stream(c, follow);
        if (status != TD_CLI_OK) {
            break;
        }
    }
    c->until_ms = 0;
    if (status == TD_CLI_OK) {
        *out = job;
    } else if (status == TD_CLI_WAIT_TIMEOUT) {
        char *text = td_asprintf("job %" PRIu64 " has not ended within %.1f s", follow->job,
                                 (double)follow->within_ms * 1e-3);
        status = fail(c, status, text);
        td_free(text);
    }
    return status;
}

int td_client_job_command(int argc, char **argv, td_client_job_fn *run) {
    struct td_client_opts opts = {.command = argv[0], .timeout_ms = TD_CLIENT_TIMEOUT_MS};
    const struct td_cli_option options[] = {TD_CLIENT_OPTIONS(opts), {0}};
    struct td_client *client = NULL;
    uint64_t id = 0;
    int status = td_cli_options(&argc, argv, options);
    if (status == TD_CLI_OK) {
        status = td_cli_job_words(argc, argv, &id);
    }
    if (status == TD_CLI_OK) {
        status = td_client_new(&opts, &client);
    }
    if (status == TD_CLI_OK) {
        status = run(client, id, opts.output);
    }
    td_client_free(client);
    return status;
}
