// Who submits jobs to daemons, and the Jobs API of a coordinator as far as it matters: a client
// asks again under the same request id until it has a job, of another coordinator when the one
// before does not lead or does not answer, with corrected settings when it was refused.
#include <inttypes.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

enum { ANSWER_MS = 2500 }; // its patience

enum answer { ACCEPTED, REFUSED, UNAVAILABLE };

static void ask(struct sim *s, struct event *e);

static void ask_later(struct sim *s, int job) {
    sim_after(s, sim_between(s, 10, 200), -1, ask, NULL)->a = (uint64_t)job;
}

static void on_answer(struct sim *s, struct event *e) {
    struct client *c = &s->clients[e->a];
    if (c->call != e->b) {
        return;
    }
    c->call = 0;
    struct job_facts *f = &s->jobs[e->a];
    switch ((enum answer)e->c) {
    case ACCEPTED:
        if (sim_percent(s, 10)) {
            ask_later(s, (int)e->a); // it forgot that it has it
        }
        return;
    case REFUSED:
        c->revision += sim_below(s, 2);
        break;
    case UNAVAILABLE:
        c->revision += !f->id && sim_percent(s, 30);
        break;
    }
    ask_later(s, (int)e->a);
}

static void on_patience(struct sim *s, struct event *e) {
    e->c = UNAVAILABLE;
    on_answer(s, e);
}

static void answer(struct sim *s, int job, uint64_t call, enum answer what) {
    if (what != UNAVAILABLE && sim_percent(s, s->p.loss_percent)) {
        return;
    }
    struct event *e = sim_after(s, sim_between(s, 1, 5), -1, on_answer, NULL);
    e->a = (uint64_t)job;
    e->b = call;
    e->c = what;
}

static void on_submit(struct sim *s, struct event *e) {
    int coordinator = s->procs[e->proc].index, job = (int)e->a;
    if (!td_coordinator_leads(s->coordinators[coordinator])) {
        answer(s, job, e->b, UNAVAILABLE);
        return;
    }
    s->waiters[coordinator][job] = e->b;
    s->jobs[job].asked = true;
    char request[] = {(char)('0' + job), 0};
    uint8_t spec[2] = {s->p.same_spec ? 0 : (uint8_t)job, (uint8_t)e->c};
    struct td_submit body = {.request_id = request, .spec = spec, .spec_bytes = sizeof spec};
    body.open_max = s->p.batch;
    body.rollout_log = sim_log_id(s, job);
    struct td_coordinator_event r = {.kind = TD_CO_SUBMIT, .submit = &body};
    coordinator_event(s, e->proc, &r);
}

static void ask(struct sim *s, struct event *e) {
    struct client *c = &s->clients[e->a];
    int proc = proc_of(COORDINATOR, (int)sim_below(s, NC), 0);
    if (!s->procs[proc].alive) {
        ask_later(s, (int)e->a);
        return;
    }
    c->call = ++s->next_call;
    struct event *call = sim_after(s, sim_between(s, 1, 5), proc, on_submit, NULL);
    call->a = e->a;
    call->b = c->call;
    call->c = c->revision;
    struct event *over = sim_after(s, ANSWER_MS, -1, on_patience, NULL);
    over->a = e->a;
    over->b = c->call;
}

void clients_begin(struct sim *s) {
    for (int i = 0; i < s->p.jobs; i++) {
        sim_after(s, sim_between(s, 1, 400), -1, ask, NULL)->a = (uint64_t)i;
    }
}

// A coordinator has decided on a submission.
void client_answered(struct sim *s, int coordinator, const char *request_id, bool accepted) {
    int job = request_id[0] - '0';
    uint64_t *waiter = &s->waiters[coordinator][job];
    if (!accepted && s->checked_owner == s->owners[coordinator]) {
        s->jobs[job].asked = false; // whatever was asked before, of whom so ever
    }
    if (*waiter) {
        answer(s, job, *waiter, accepted ? ACCEPTED : REFUSED);
        *waiter = 0;
    }
}

void clients_tick(struct sim *s, int coordinator) {
    bool leads = td_coordinator_leads(s->coordinators[coordinator]);
    for (int i = 0; i < s->p.jobs && !leads; i++) {
        if (s->waiters[coordinator][i]) {
            answer(s, i, s->waiters[coordinator][i], UNAVAILABLE);
            s->waiters[coordinator][i] = 0;
        }
    }
}
