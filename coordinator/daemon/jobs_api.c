// The users' API: see jobs_api.h.
#include "coordinator/daemon/jobs_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/daemon/jobs_view.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/spec/job_spec.h"

enum { WATCH_MS = 200 };

enum wait_kind { WAIT_SUBMIT, WAIT_END, WAIT_WATCH };

struct waiter { // a call that is answered later
    struct waiter *next;
    struct td_rpc_call *call;
    enum wait_kind kind;
    char *request_id;   // SUBMIT, owned
    struct td_buf spec; // SUBMIT: what was asked for
    uint64_t job;
    uint64_t after, digest; // WATCH: the journal's offset that it has seen; of what was told last
};

struct td_jobs_api {
    struct td_jobs_api_opts opts;
    struct td_coordinator_shell *shell;
    struct waiter *waiters;
    struct td_timer *timer; // watchers are served by it
    bool changed;
};

static void answer_waiters(struct td_jobs_api *api);

static void on_timer(void *user) {
    struct td_jobs_api *api = user;
    if (api->changed) {
        api->changed = false;
        answer_waiters(api);
    }
    td_timer_start(api->timer, WATCH_MS);
}

struct td_jobs_api *td_jobs_api_new(const struct td_jobs_api_opts *opts) {
    struct td_jobs_api *api = td_alloc(sizeof *api);
    api->opts = *opts;
    api->timer = td_timer_new(opts->loop, on_timer, api);
    td_timer_start(api->timer, WATCH_MS);
    return api;
}

void td_jobs_api_set_shell(struct td_jobs_api *api, struct td_coordinator_shell *shell) {
    api->shell = shell;
}

static const struct td_coordinator *machine_of(const struct td_jobs_api *api) {
    return td_coordinator_shell_machine(api->shell);
}

static struct td_jobs_view view_of(const struct td_jobs_api *api) {
    return (struct td_jobs_view){.machine = machine_of(api),
                                 .shared_dir = api->opts.shared_dir,
                                 .now_ms = td_loop_now_ms(api->opts.loop),
                                 .arena = td_arena_new()};
}

// ---- calls that wait ----

static struct waiter *add_waiter(struct td_jobs_api *api, struct td_rpc_call *call,
                                 enum wait_kind kind, uint64_t job) {
    struct waiter *w = td_alloc(sizeof *w);
    *w = (struct waiter){.next = api->waiters, .call = call, .kind = kind, .job = job};
    api->waiters = w;
    td_rpc_call_set(call, w);
    api->changed = true;
    return w;
}

static void remove_waiter(struct td_jobs_api *api, struct waiter *w) {
    struct waiter **at = &api->waiters;
    while (*at != w) {
        at = &(*at)->next;
    }
    *at = w->next;
    td_free(w->request_id);
    td_buf_fini(&w->spec);
    td_free(w);
}

static void gone(void *user, struct td_rpc_call *call) {
    struct waiter *w = td_rpc_call_get(call);
    if (w) {
        remove_waiter(user, w);
    }
}

static void fail_waiter(struct td_jobs_api *api, struct waiter *w, enum td_rpc_status status,
                        const char *why) {
    struct td_rpc_call *call = w->call;
    td_rpc_call_set(call, NULL);
    remove_waiter(api, w);
    td_rpc_fail(call, status, why);
}

void td_jobs_api_close(struct td_jobs_api *api) {
    td_timer_stop(api->timer);
    api->shell = NULL;
    while (api->waiters) {
        fail_waiter(api, api->waiters, TD_RPC_UNAVAILABLE, "this coordinator stops");
    }
}

void td_jobs_api_free(struct td_jobs_api *api) {
    if (api) {
        td_jobs_api_close(api);
        td_timer_close(api->timer);
        td_free(api);
    }
}

static void reply_job(const struct td_jobs_api *api, struct td_rpc_call *call, uint64_t id) {
    struct td_jobs_view v = view_of(api);
    Tandem__V1__Job job;
    char why[64];
    if (td_jobs_view_job(&v, id, &job)) {
        td_rpc_reply(call, &job.base);
    } else {
        snprintf(why, sizeof why, "no job %" PRIu64, id);
        td_rpc_fail(call, TD_RPC_NOT_FOUND, why);
    }
    td_arena_free(v.arena);
}

static void end_with_job(struct td_jobs_api *api, struct waiter *w, uint64_t job) {
    struct td_rpc_call *call = w->call;
    td_rpc_call_set(call, NULL);
    remove_waiter(api, w);
    reply_job(api, call, job);
}

// One event when something of the job changed. How long it waits changes always, and is not news;
// nor is anything to a stream that goes on until the journal has gone on, too.
static void serve_watcher(struct td_jobs_api *api, struct waiter *w) {
    struct td_jobs_view v = view_of(api);
    Tandem__V1__Job job;
    Tandem__V1__JobEvent event = TANDEM__V1__JOB_EVENT__INIT;
    bool there = td_jobs_view_job(&v, w->job, &job);
    bool ended = there && job.state >= TANDEM__V1__JOB_STATE__SUCCEEDED, told = true;
    int64_t since = there ? job.waits_since_ms : 0;
    if (there) {
        job.waits_since_ms = 0;
        size_t n = tandem__v1__job__get_packed_size(&job);
        uint8_t *bytes = td_arena_alloc(v.arena, n + 1);
        tandem__v1__job__pack(&job, bytes);
        uint64_t digest = td_digest64(1, bytes, n);
        job.waits_since_ms = since;
        event.seq = (uint64_t)td_coordinator_state(v.machine)->last.offset;
        event.job = &job;
        struct td_err err;
        bool news = digest != w->digest && (!w->after || event.seq > w->after);
        told = !news || td_rpc_send(w->call, &event.base, &err) == TD_OK;
        w->digest = told && news ? digest : w->digest;
        api->changed |= !told; // a slow reader: again when there is room
    }
    td_arena_free(v.arena);
    if (ended && told) {
        struct td_rpc_call *call = w->call;
        td_rpc_call_set(call, NULL);
        remove_waiter(api, w);
        td_rpc_finish(call);
    }
}

static void answer_waiters(struct td_jobs_api *api) {
    bool leads = td_coordinator_leads(machine_of(api));
    struct waiter *next;
    for (struct waiter *w = api->waiters; w; w = next) {
        next = w->next;
        struct td_job_view view;
        if (!leads) {
            fail_waiter(api, w, TD_RPC_UNAVAILABLE, "another coordinator leads by now");
        } else if (w->kind == WAIT_WATCH) {
            serve_watcher(api, w);
        } else if (w->kind == WAIT_END && td_coordinator_job_view(machine_of(api), w->job, &view) &&
                   view.wait == TD_WAIT_ENDED) {
            end_with_job(api, w, w->job);
        }
    }
}

void td_jobs_api_changed(struct td_jobs_api *api) {
    api->changed = true;
}

static struct waiter *find_submit(const struct td_jobs_api *api, const char *request_id) {
    for (struct waiter *w = api->waiters; w; w = w->next) {
        if (w->kind == WAIT_SUBMIT && strcmp(w->request_id, request_id) == 0) {
            return w;
        }
    }
    return NULL;
}

// A request id names one job: the same one sent for another job is a mistake, told with the keys
// that differ. What another build submitted cannot be compared, and is taken on trust.
static void end_submit(struct td_jobs_api *api, struct waiter *w, uint64_t job) {
    const struct td_job_state *j = td_journal_job(td_coordinator_state(machine_of(api)), job);
    struct td_buf keys = {0}, why = {0};
    int n = td_job_spec_diff(j->job->spec.data, j->job->spec.len, w->spec.data, w->spec.len, &keys);
    if (n > 0) {
        td_buf_printf(&why,
                      "request id %s is job %" PRIu64 ", of other settings:\n%sgive those, or "
                      "another request id",
                      w->request_id, job, td_buf_str(&keys));
        fail_waiter(api, w, TD_RPC_ALREADY_EXISTS, td_buf_str(&why));
    } else {
        end_with_job(api, w, job);
    }
    td_buf_fini(&keys);
    td_buf_fini(&why);
}

void td_jobs_api_accepted(struct td_jobs_api *api, const char *request_id, uint64_t job) {
    struct waiter *w;
    while ((w = find_submit(api, request_id))) { // a client may ask twice
        end_submit(api, w, job);
    }
}

void td_jobs_api_refused(struct td_jobs_api *api, const char *request_id, const char *cause) {
    struct waiter *w;
    while ((w = find_submit(api, request_id))) {
        fail_waiter(api, w, TD_RPC_INVALID_ARGUMENT, cause);
    }
}

// ---- the methods ----

static bool leads(const struct td_jobs_api *api, struct td_rpc_call *call) {
    if (api->shell && td_coordinator_leads(machine_of(api))) {
        return true;
    }
    char why[256];
    const char *leader = api->opts.leader(api->opts.user);
    snprintf(why, sizeof why, "this coordinator does not lead%s%s",
             leader[0] ? "; the leader is at " : "", leader);
    td_rpc_fail(call, TD_RPC_UNAVAILABLE, why);
    return false;
}

static void submit_spec(struct td_jobs_api *api, struct td_rpc_call *call, const char *request_id,
                        const struct td_job_spec *spec) {
    struct waiter *w = add_waiter(api, call, WAIT_SUBMIT, 0);
    struct td_buf bytes = {0};
    td_job_spec_encode_all(spec, &bytes);
    td_buf_put(&w->spec, bytes.data, bytes.len);
    w->request_id = td_strdup(request_id);
    struct td_submit submit = {.request_id = request_id,
                               .spec = bytes.data,
                               .spec_bytes = bytes.len,
                               .rollout_log = spec->tandem.kind == TD_JOB_SFT ? 0 : td_random_id()};
    td_coordinator_shell_submit(api->shell, &submit);
    td_buf_fini(&bytes);
}

static void on_submit(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    struct td_jobs_api *api = user;
    const Tandem__V1__SubmitJobRequest *m = (const Tandem__V1__SubmitJobRequest *)request;
    if (!leads(api, call)) {
        return;
    }
    if (!m->request_id[0]) {
        td_rpc_fail(call, TD_RPC_INVALID_ARGUMENT,
                    "request_id is missing: any string that is new for a new job");
        return;
    }
    struct td_spec_text text = {.name = m->name[0] ? m->name : "job file",
                                .bytes = m->job_file,
                                .n = strlen(m->job_file),
                                .overrides = (const char *const *)m->overrides,
                                .override_count = m->n_overrides};
    struct td_spec_notes notes = {0};
    struct td_job_spec *spec = NULL;
    struct td_err err;
    if (td_job_spec_parse(&text, &spec, &notes, &err) == TD_OK) {
        submit_spec(api, call, m->request_id, spec);
    } else {
        td_rpc_fail(call, TD_RPC_INVALID_ARGUMENT,
                    notes.error_count ? td_buf_str(&notes.errors) : err.msg);
    }
    td_job_spec_free(spec);
    td_spec_notes_fini(&notes);
}

static void on_get(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    if (leads(user, call)) {
        reply_job(user, call, ((const Tandem__V1__GetJobRequest *)request)->id);
    }
}

static void on_list(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    struct td_jobs_api *api = user;
    (void)request;
    if (!leads(api, call)) {
        return;
    }
    struct td_jobs_view v = view_of(api);
    const struct td_journal_state *s = td_coordinator_state(v.machine);
    Tandem__V1__ListJobsResponse r = TANDEM__V1__LIST_JOBS_RESPONSE__INIT;
    r.jobs = td_arena_alloc(v.arena, (s->job_count + 1) * sizeof *r.jobs);
    for (size_t i = 0; i < s->job_count; i++) {
        r.jobs[r.n_jobs] = td_arena_alloc(v.arena, sizeof **r.jobs);
        r.n_jobs += td_jobs_view_job(&v, s->jobs[i]->job->job, r.jobs[r.n_jobs]);
    }
    td_rpc_reply(call, &r.base);
    td_arena_free(v.arena);
}

static bool known(const struct td_jobs_api *api, struct td_rpc_call *call, uint64_t id) {
    if (td_journal_job(td_coordinator_state(machine_of(api)), id)) {
        return true;
    }
    reply_job(api, call, id); // says that there is none
    return false;
}

static void on_cancel(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    struct td_jobs_api *api = user;
    uint64_t id = ((const Tandem__V1__CancelJobRequest *)request)->id;
    if (leads(api, call) && known(api, call, id)) {
        add_waiter(api, call, WAIT_END, id);
        td_coordinator_shell_cancel(api->shell, id);
    }
}

static void on_watch(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    struct td_jobs_api *api = user;
    const Tandem__V1__WatchJobRequest *m = (const Tandem__V1__WatchJobRequest *)request;
    if (leads(api, call) && known(api, call, m->id)) {
        add_waiter(api, call, WAIT_WATCH, m->id)->after = m->after;
    }
}

static void on_rounds(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    struct td_jobs_api *api = user;
    uint64_t id = ((const Tandem__V1__ListRoundsRequest *)request)->id;
    if (!leads(api, call) || !known(api, call, id)) {
        return;
    }
    struct td_jobs_view v = view_of(api);
    Tandem__V1__ListRoundsResponse r;
    td_jobs_view_rounds(&v, id, &r);
    td_rpc_reply(call, &r.base);
    td_arena_free(v.arena);
}

static void on_members(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    struct td_jobs_api *api = user;
    (void)request;
    if (!leads(api, call)) {
        return;
    }
    struct td_jobs_view v = view_of(api);
    Tandem__V1__ListMembersResponse r;
    td_jobs_view_members(&v, &r);
    td_rpc_reply(call, &r.base);
    td_arena_free(v.arena);
}

void td_jobs_api_methods(struct td_jobs_api *api, struct td_rpc_method *out) {
    static const struct td_rpc_method methods[TD_JOBS_API_METHODS] = {
        {"/tandem.v1.Jobs/SubmitJob", &tandem__v1__submit_job_request__descriptor,
         &tandem__v1__job__descriptor, false, on_submit, gone, NULL},
        {"/tandem.v1.Jobs/GetJob", &tandem__v1__get_job_request__descriptor,
         &tandem__v1__job__descriptor, false, on_get, gone, NULL},
        {"/tandem.v1.Jobs/ListJobs", &tandem__v1__list_jobs_request__descriptor,
         &tandem__v1__list_jobs_response__descriptor, false, on_list, gone, NULL},
        {"/tandem.v1.Jobs/CancelJob", &tandem__v1__cancel_job_request__descriptor,
         &tandem__v1__job__descriptor, false, on_cancel, gone, NULL},
        {"/tandem.v1.Jobs/WatchJob", &tandem__v1__watch_job_request__descriptor,
         &tandem__v1__job_event__descriptor, true, on_watch, gone, NULL},
        {"/tandem.v1.Jobs/ListRounds", &tandem__v1__list_rounds_request__descriptor,
         &tandem__v1__list_rounds_response__descriptor, false, on_rounds, gone, NULL},
        {"/tandem.v1.Jobs/ListMembers", &tandem__v1__list_members_request__descriptor,
         &tandem__v1__list_members_response__descriptor, false, on_members, gone, NULL},
    };
    for (size_t i = 0; i < TD_JOBS_API_METHODS; i++) {
        out[i] = methods[i];
        out[i].user = api;
    }
}
