// See fake.h.
#include "tests/unit/cli/fake.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/rpc.h"
#include "proto/jobs.pb-c.h"
#include "tests/unit/io/wait.h"

struct world {
    struct fake_opts opts;
    struct td_loop *loop;
    struct td_rpc *rpc;
    struct td_rpc_server *server;
    uint64_t step;
};

static const char metrics[] =
    "{\"critic/score/mean\": 0.5, \"actor/kl_loss\": 0.25, \"val-core/a/mean@1\": 0.75}";

// Whether a standby's answer was given.
static bool refuse(struct world *w, struct td_rpc_call *call) {
    if (w->opts.standby_calls == 0) {
        return false;
    }
    w->opts.standby_calls -= w->opts.standby_calls > 0;
    td_rpc_fail(call, TD_RPC_UNAVAILABLE, "this coordinator does not lead");
    return true;
}

static Tandem__V1__Job job_of(struct world *w, uint64_t id) {
    Tandem__V1__Job job = TANDEM__V1__JOB__INIT;
    job.id = id;
    job.kind = "grpo";
    job.request_id = "request";
    job.total_steps = job.step = FAKE_STEPS;
    job.folder = "/shared/jobs";
    job.weight_digest = 0xfedcba9876543210;
    job.state_digest = 0x1;
    job.state = TANDEM__V1__JOB_STATE__SUCCEEDED;
    if (id == FAKE_FAILED) {
        job.state = TANDEM__V1__JOB_STATE__FAILED;
        job.cause = "the loss is not finite";
    } else if (id == FAKE_CANCELLED) {
        job.state = TANDEM__V1__JOB_STATE__CANCELLED;
    } else if (id == FAKE_FOREVER || (id == FAKE_RUNS && w->step < FAKE_STEPS)) {
        job.state = TANDEM__V1__JOB_STATE__RUNNING;
        job.step = id == FAKE_RUNS ? w->step : 2;
        job.metrics = (char *)metrics;
        job.waits_for = "group 3 of rollout-1";
        job.waits_since_ms = 65000;
    }
    return job;
}

static void advance(struct world *w) {
    w->step += w->step < FAKE_STEPS;
    if (w->opts.dies_at_step && w->step == (uint64_t)w->opts.dies_at_step) {
        _exit(0);
    }
}

static void on_get(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct world *w = user;
    uint64_t id = ((const Tandem__V1__GetJobRequest *)message)->id;
    if (refuse(w, call)) {
        return;
    }
    if (id == FAKE_DENIED) {
        td_rpc_fail(call, TD_RPC_PERMISSION_DENIED, "not yours");
    } else if (id == FAKE_BROKEN) {
        td_rpc_fail(call, TD_RPC_INTERNAL, "out of order");
    } else if (id > FAKE_FOREVER) {
        td_rpc_fail(call, TD_RPC_NOT_FOUND, "no such job");
    } else {
        if (id == FAKE_RUNS) {
            advance(w);
        }
        Tandem__V1__Job job = job_of(w, id);
        td_rpc_reply(call, &job.base);
    }
}

static void on_list(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    static const uint64_t ids[] = {FAKE_SUCCEEDED, FAKE_FAILED, FAKE_FOREVER};
    struct world *w = user;
    (void)message;
    if (refuse(w, call)) {
        return;
    }
    Tandem__V1__Job jobs[3], *list[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = job_of(w, ids[i]);
        list[i] = &jobs[i];
    }
    Tandem__V1__ListJobsResponse r = TANDEM__V1__LIST_JOBS_RESPONSE__INIT;
    r.jobs = list;
    r.n_jobs = w->opts.empty ? 0 : 3;
    td_rpc_reply(call, &r.base);
}

static void on_submit(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    const Tandem__V1__SubmitJobRequest *m = (const Tandem__V1__SubmitJobRequest *)message;
    struct world *w = user;
    if (refuse(w, call)) {
        return;
    }
    if (w->opts.submitted) {
        struct td_buf out = {0};
        struct td_err err;
        td_buf_printf(&out, "request_id %s\nname %s\n", m->request_id, m->name);
        for (size_t i = 0; i < m->n_overrides; i++) {
            td_buf_printf(&out, "override %s\n", m->overrides[i]);
        }
        td_buf_printf(&out, "%s", m->job_file);
        assert_int_equal(td_file_write(w->opts.submitted, out.data, out.len, &err), TD_OK);
        td_buf_fini(&out);
    }
    if (strcmp(m->request_id, "refused") == 0) {
        td_rpc_fail(call, TD_RPC_INVALID_ARGUMENT, "job.yaml: data.train_files: no such file\n");
        return;
    }
    Tandem__V1__Job job = job_of(w, FAKE_RUNS);
    td_rpc_reply(call, &job.base);
}

static void on_cancel(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct world *w = user;
    uint64_t id = ((const Tandem__V1__CancelJobRequest *)message)->id;
    if (refuse(w, call)) {
        return;
    }
    if (id > FAKE_FOREVER) {
        td_rpc_fail(call, TD_RPC_NOT_FOUND, "no such job");
        return;
    }
    Tandem__V1__Job job = job_of(w, id == FAKE_FOREVER ? FAKE_CANCELLED : id);
    job.id = id;
    td_rpc_reply(call, &job.base);
}

// Every event is a step; of what stands still nothing is told.
static void on_watch(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct world *w = user;
    uint64_t id = ((const Tandem__V1__WatchJobRequest *)message)->id;
    struct td_err err;
    if (refuse(w, call)) {
        return;
    }
    if (id == FAKE_RUNS) {
        advance(w);
        Tandem__V1__Job job = job_of(w, id);
        Tandem__V1__JobEvent event = TANDEM__V1__JOB_EVENT__INIT;
        event.seq = w->step;
        event.job = &job;
        assert_int_equal(td_rpc_send(call, &event.base, &err), TD_OK);
        td_rpc_finish(call);
    }
}

static void on_gone(void *user, struct td_rpc_call *call) {
    (void)user;
    (void)call;
}

static void on_rounds(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct world *w = user;
    (void)message;
    if (refuse(w, call)) {
        return;
    }
    Tandem__V1__Round one = TANDEM__V1__ROUND__INIT, two = TANDEM__V1__ROUND__INIT;
    one.round = 1;
    one.state = "committed";
    one.groups = 8;
    one.tokens = 1234;
    one.generation = 2;
    one.weight_digest = 0xabc;
    one.state_digest = 0xdef;
    two.round = 2;
    two.state = "open";
    two.waits_for = "groups";
    two.waits_since_ms = 1500;
    Tandem__V1__Round *list[] = {&one, &two};
    Tandem__V1__ListRoundsResponse r = TANDEM__V1__LIST_ROUNDS_RESPONSE__INIT;
    r.rounds = list;
    r.n_rounds = 2;
    td_rpc_reply(call, &r.base);
}

static void on_members(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct world *w = user;
    (void)message;
    if (refuse(w, call)) {
        return;
    }
    Tandem__V1__Member m = TANDEM__V1__MEMBER__INIT, *list[] = {&m};
    m.id = 0xa1;
    m.kind = "rollout";
    m.host = "here";
    m.http = "127.0.0.1:80";
    m.workers = 2;
    m.workers_ready = 1;
    Tandem__V1__WorkerState worker = TANDEM__V1__WORKER_STATE__INIT, *states[] = {&worker};
    worker.pid = 4321;
    worker.state = "ready";
    worker.doing = "generate";
    worker.for_ms = 2000;
    m.worker_states = states;
    m.n_worker_states = 1;
    m.device = "cpu";
    m.build = "b1";
    m.heard_ms = 20;
    Tandem__V1__ListMembersResponse r = TANDEM__V1__LIST_MEMBERS_RESPONSE__INIT;
    r.members = list;
    r.n_members = w->opts.empty ? 0 : 1;
    td_rpc_reply(call, &r.base);
}

#define PATH "/tandem.v1.Jobs/"

static void serve(const struct fake_opts *opts, int port_fd) {
    const struct td_rpc_method methods[] = {
        {PATH "GetJob", &tandem__v1__get_job_request__descriptor, &tandem__v1__job__descriptor,
         false, on_get, NULL, NULL},
        {PATH "ListJobs", &tandem__v1__list_jobs_request__descriptor,
         &tandem__v1__list_jobs_response__descriptor, false, on_list, NULL, NULL},
        {PATH "SubmitJob", &tandem__v1__submit_job_request__descriptor,
         &tandem__v1__job__descriptor, false, on_submit, NULL, NULL},
        {PATH "CancelJob", &tandem__v1__cancel_job_request__descriptor,
         &tandem__v1__job__descriptor, false, on_cancel, NULL, NULL},
        {PATH "WatchJob", &tandem__v1__watch_job_request__descriptor,
         &tandem__v1__job_event__descriptor, true, on_watch, on_gone, NULL},
        {PATH "ListRounds", &tandem__v1__list_rounds_request__descriptor,
         &tandem__v1__list_rounds_response__descriptor, false, on_rounds, NULL, NULL},
        {PATH "ListMembers", &tandem__v1__list_members_request__descriptor,
         &tandem__v1__list_members_response__descriptor, false, on_members, NULL, NULL},
    };
    struct world w = {.opts = *opts, .loop = new_loop(), .step = (uint64_t)opts->first_step};
    struct td_err err;
    int port = 0;
    assert_int_equal(td_rpc_new(w.loop, &w.rpc, &err), TD_OK);
    struct td_rpc_server_opts server = {.rpc = w.rpc,
                                        .methods = methods,
                                        .method_count = sizeof methods / sizeof *methods,
                                        .tls = opts->tls,
                                        .user = &w};
    assert_int_equal(td_rpc_server_new(&server, &w.server, &err), TD_OK);
    assert_int_equal(td_rpc_server_listen(w.server, "127.0.0.1:0", &port, &err), TD_OK);
    td_rpc_server_start(w.server);
    assert_int_equal(td_write_all(port_fd, &port, sizeof port, &err), TD_OK);
    close(port_fd);
    td_loop_run(w.loop); // until it is killed
}

void fake_start(struct fake *fake, const struct fake_opts *opts) {
    int ends[2], port = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t parent = getpid();
    fake->pid = fork();
    assert_true(fake->pid >= 0);
    if (fake->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        if (getppid() == parent) {
            serve(opts, ends[1]);
        }
        _exit(1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &port, sizeof port), sizeof port);
    close(ends[0]);
    snprintf(fake->address, sizeof fake->address, "127.0.0.1:%d", port);
}

void fake_stop(struct fake *fake) {
    if (fake->pid > 0) {
        kill(fake->pid, SIGKILL);
        waitpid(fake->pid, NULL, 0);
        fake->pid = 0;
    }
}
