// The coordinators' shell, the client that submits jobs, and the messages between members and
// coordinators.
#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

static void take_orders(struct sim *s, struct event *e) {
    const Tandem__Sync__Orders *o = e->msg->orders;
    if (s->procs[e->proc].kind == TRAINER) {
        struct td_trainc_event r = {.kind = TD_TC_ORDERS, .orders = o};
        trainer_event(s, e->proc, &r);
        return;
    }
    struct roller *roller = &s->rollers[s->procs[e->proc].index];
    if (o->job && roller->job != o->job) {
        roller->job = o->job;
        struct td_rolloutc_event job = {
            .kind = TD_RC_JOB, .job = o->job, .samples = SAMPLES, .eval_samples = 1};
        roller_event(s, e->proc, &job);
    }
    struct td_rolloutc_event r = {.kind = TD_RC_ORDERS, .orders = o};
    roller_event(s, e->proc, &r);
}

static void take_report(struct sim *s, struct event *e) {
    struct td_coordinator_event r = {.kind = TD_CO_REPORT, .report = e->msg->report};
    coordinator_event(s, e->proc, &r);
}

static int64_t message_delay(struct sim *s) {
    return sim_percent(s, s->p.stale_percent) ? sim_between(s, 100, 3000) : sim_between(s, 1, 5);
}

static void send(struct sim *s, int from, int to, sim_fn fn, struct msg *m) {
    int member = s->procs[from].kind == COORDINATOR ? to : from;
    int coordinator = s->procs[from].kind == COORDINATOR ? from : to;
    bool cut = s->faults_on && !s->procs[member].linked[coordinator];
    if (cut || !s->procs[to].alive || sim_percent(s, s->p.loss_percent)) {
        return;
    }
    sim_after(s, message_delay(s), to, fn, sim_msg_ref(m));
    if (sim_percent(s, s->p.dup_percent)) {
        sim_after(s, message_delay(s), to, fn, sim_msg_ref(m));
    }
}

// To all coordinators: those that do not lead pass it over.
void send_report(struct sim *s, int proc, struct msg *report) {
    forge_remember(s, report->report);
    if (s->p.assign) {
        member_report(s, proc, report);
        return;
    }
    for (int i = 0; i < NC; i++) {
        send(s, proc, proc_of(COORDINATOR, i, 0), take_report, report);
    }
    sim_msg_unref(report);
}

static void send_orders(struct sim *s, int proc, struct td_coordinator_effect *e) {
    struct msg *m = sim_msg();
    m->orders = e->orders;
    e->orders = NULL;
    check_orders(s, s->procs[proc].index, m->orders, e->member);
    int to = (int)e->member - 1; // members are named by their process
    if (s->p.assign) {
        link_orders(s, s->procs[proc].index, to, m);
        return;
    }
    send(s, proc, to, take_orders, m);
    sim_msg_unref(m);
}

static void job_accepted(struct sim *s, int proc, const struct td_coordinator_effect *e) {
    int job = e->text[0] - '0';
    if (s->jobs[job].id && s->jobs[job].id != e->job) {
        sim_violation(s, "I12 request %s became jobs %" PRIu64 " and %" PRIu64, e->text,
                      s->jobs[job].id, e->job);
    }
    if (s->p.assign) {
        client_answered(s, s->procs[proc].index, e->text, true);
    }
}

static void job_refused(struct sim *s, int proc, const struct td_coordinator_effect *e) {
    sim_trace(s, "%s refuses job %s: %s", proc_name(proc), e->text, e->cause);
    if (!s->p.assign) {
        sim_violation(s, "job %s refused: %s", e->text, e->cause);
        return;
    }
    client_answered(s, s->procs[proc].index, e->text, false);
}

static void execute(struct sim *s, int proc, struct td_coordinator_effect *e) {
    switch (e->kind) {
    case TD_CO_FETCH_END:
        journal_fetch_end(s, proc);
        break;
    case TD_CO_JOURNAL_RESET:
        journal_reset(s, proc);
        break;
    case TD_CO_STOP:
        sim_violation(s, "%s stops: %s", proc_name(proc), e->text);
        break;
    case TD_CO_APPEND: {
        struct msg *m = sim_msg();
        m->bytes = e->bytes;
        m->n = e->n;
        e->bytes = NULL;
        journal_append(s, proc, m);
        break;
    }
    case TD_CO_TRIM_JOURNAL:
        journal_trim(s, e->offset);
        break;
    case TD_CO_TRIM_ROLLOUT:
        rollout_trim(s, e);
        break;
    case TD_CO_ORDERS:
        send_orders(s, proc, e);
        break;
    case TD_CO_JOB_ACCEPTED:
        job_accepted(s, proc, e);
        break;
    case TD_CO_JOB_REFUSED:
        job_refused(s, proc, e);
        break;
    case TD_CO_JOB_ENDED:
        break;
    }
}

void coordinator_event(struct sim *s, int proc, struct td_coordinator_event *e) {
    struct td_coordinator_effects out = {0};
    td_coordinator_step(s->coordinators[s->procs[proc].index], e, s->now, &out);
    for (size_t i = 0; i < out.count && !s->violated; i++) {
        execute(s, proc, &out.items[i]);
    }
    td_coordinator_effects_fini(&out);
}

static void tick(struct sim *s, struct event *e) {
    struct td_coordinator_event r = {.kind = TD_CO_TICK};
    coordinator_event(s, e->proc, &r);
    if (s->p.assign) {
        clients_tick(s, s->procs[e->proc].index);
    }
    sim_after(s, sim_between(s, 120, 180), e->proc, tick, NULL);
}

static void submit(struct sim *s, struct event *e) {
    int job = (int)e->a;
    char request[2] = {(char)('0' + job), 0};
    uint8_t spec[2] = {(uint8_t)job};
    Tandem__Journal__DataIndex index;
    sim_index(s, job, &index);
    int proc = proc_of(COORDINATOR, (int)sim_below(s, NC), 0);
    if (s->procs[proc].alive && !s->procs[proc].paused) {
        struct td_submit body = {.request_id = request, .spec = spec, .spec_bytes = sizeof spec};
        body.index = &index;
        body.open_max = s->p.batch;
        body.rollout_log = sim_log_id(s, job);
        struct td_coordinator_event r = {.kind = TD_CO_SUBMIT, .submit = &body};
        coordinator_event(s, proc, &r);
    }
    if (!s->jobs[job].id) {
        sim_after(s, sim_between(s, 200, 600), -1, submit, NULL)->a = e->a;
    }
}

void coordinator_start(struct sim *s, int proc) {
    struct td_coordinator_config config = {
        .owner = td_rng_next(&s->rng) | 1,
        .create_journal_id = 0x1A,
        .lead_at_once = s->p.single,
        .assign = s->p.assign,
        .takeover_ms = 1000,
        .beat_ms = 250,
        .member_timeout_ms = 1500,
        .state_every = s->p.state_every,
        .state_chunk_bytes = s->p.chunk,
        .plan_of = sim_plan_coordinator,
        .user = s,
    };
    s->owners[s->procs[proc].index] = config.owner;
    s->coordinators[s->procs[proc].index] = td_coordinator_new(&config);
    journal_open(s, proc);
    sim_after(s, sim_between(s, 1, 150), proc, tick, NULL);
    if (proc == 0 && s->procs[proc].inc == 1 && !s->p.assign) {
        for (int i = 0; i < s->p.jobs; i++) {
            sim_after(s, sim_between(s, 1, 400), -1, submit, NULL)->a = (uint64_t)i;
        }
    }
}

int job_index(const struct sim *s, uint64_t job) {
    for (int i = 0; i < NJ; i++) {
        if (s->jobs[i].id == job && job) {
            return i;
        }
    }
    return -1;
}
