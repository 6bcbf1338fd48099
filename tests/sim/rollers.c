// The rollout controllers' shell and what their workers do: hold weights, generate, score.
#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

// A command goes over the connection to one process of a worker: when that has ended, nobody
// answers it, not even the process that came after.
static uint64_t addressee(const struct sim *s, int proc, uint32_t worker) {
    return (uint64_t)s->rollers[s->procs[proc].index].workers[worker].attached << 8 | worker;
}

// The worker is the one that the controller knows of.
static bool attached(const struct sim *s, int roller, int worker) {
    const struct proc *w = &s->procs[proc_of(ROLL_WORKER, roller, worker)];
    return w->alive && s->rollers[roller].workers[worker].attached == w->inc;
}

static struct ticket *find_ticket(struct roller *r, uint64_t id) {
    for (size_t i = 0; i < r->ticket_count; i++) {
        if (r->tickets[i].id == id) {
            return &r->tickets[i];
        }
    }
    return NULL;
}

static void scored(struct sim *s, struct event *e) {
    struct roller *r = &s->rollers[s->procs[e->proc].index];
    const struct ticket *t = find_ticket(r, e->a);
    if (!t) {
        return;
    }
    double scores[SAMPLES] = {1};
    struct td_rolloutc_event ev = {.kind = TD_RC_GROUP_SCORED,
                                   .ticket = t->id,
                                   .scores = scores,
                                   .score_count = t->eval ? 1 : SAMPLES};
    if (sim_percent(s, 2)) {
        ev = (struct td_rolloutc_event){
            .kind = TD_RC_GROUP_FAILED, .ticket = t->id, .text = "the grader failed"};
    }
    roller_event(s, e->proc, &ev);
}

static void sample_done(struct sim *s, struct event *e) {
    const struct proc *p = &s->procs[e->proc];
    struct roller *r = &s->rollers[p->index];
    struct ticket *t = find_ticket(r, e->a);
    if (!t) {
        return;
    }
    const struct proc *w = &s->procs[proc_of(ROLL_WORKER, p->index, t->worker)];
    if (!w->alive || w->inc != t->worker_inc) {
        return; // it died with its worker
    }
    if (w->paused) {
        sim_after(s, 40, e->proc, sample_done, NULL)->a = e->a;
        return;
    }
    if (sim_poisoned(s, t->job, t->eval, t->group)) {
        sim_kill(s, proc_of(ROLL_WORKER, p->index, t->worker));
        return;
    }
    t->left--;
    uint64_t id = t->id;
    bool last = t->left == 0;
    struct td_rolloutc_event ev = {.kind = TD_RC_SAMPLE_DONE, .ticket = id};
    roller_event(s, e->proc, &ev);
    if (last) {
        sim_after(s, sim_between(s, 1, 8), e->proc, scored, NULL)->a = id;
    }
}

static void start_group(struct sim *s, int proc, const struct td_rolloutc_effect *e) {
    const struct proc *p = &s->procs[proc];
    struct roller *r = &s->rollers[p->index];
    int worker = (int)e->worker, wp = proc_of(ROLL_WORKER, p->index, worker);
    if (!attached(s, p->index, worker)) {
        return; // its connection is broken
    }
    check_works_for(s, proc, e->job);
    if (!r->workers[worker].has || !td_version_equal(r->workers[worker].version, e->version)) {
        sim_violation(s, "I7 a group is started under a version that its worker does not hold");
        return;
    }
    TD_GROW(r->tickets, r->ticket_cap, r->ticket_count + 1);
    r->tickets[r->ticket_count++] = (struct ticket){.id = e->ticket,
                                                    .job = e->job,
                                                    .weights = r->workers[worker].weights,
                                                    .eval = e->eval,
                                                    .worker = worker,
                                                    .worker_inc = s->procs[wp].inc,
                                                    .left = e->samples,
                                                    .attempt = e->attempt,
                                                    .group = e->group,
                                                    .version = e->version};
    for (uint32_t i = 0; i < e->samples; i++) {
        int64_t most = s->faults_on ? s->p.generate_ms : 60;
        sim_after(s, sim_between(s, 5, most), proc, sample_done, NULL)->a = e->ticket;
    }
}

static void close_group(struct roller *r, uint64_t id) {
    struct ticket *t = find_ticket(r, id);
    if (t) {
        *t = r->tickets[--r->ticket_count];
    }
}

struct pull {
    uint64_t worker; // addressee
    struct td_version version;
    uint64_t digest;
    char sources[NW][32];
    size_t source_count;
};

static void prepared(struct sim *s, struct event *e) {
    const struct pull *pull = e->msg->more;
    struct roller *r = &s->rollers[s->procs[e->proc].index];
    uint64_t got = 0;
    int worker = (int)(pull->worker & 0xFF);
    const struct proc *w = &s->procs[proc_of(ROLL_WORKER, s->procs[e->proc].index, worker)];
    if (pull->worker >> 8 != w->inc || !attached(s, s->procs[e->proc].index, worker)) {
        return;
    }
    for (size_t i = 0; i < pull->source_count && !w->paused && !got; i++) {
        bool there = rank_serves(s, pull->sources[i], pull->version.step, pull->digest);
        got = there ? pull->digest : 0;
    }
    if (got && sim_percent(s, s->p.bad_snapshot_percent)) {
        got ^= 1;
    }
    if (got) {
        r->workers[worker].prepared = got;
        r->workers[worker].prepared_version = pull->version;
    }
    struct td_rolloutc_event ev = {.kind = TD_RC_PREPARED, .worker = (uint32_t)worker};
    ev.version = pull->version;
    ev.ok = got && got == pull->digest;
    roller_event(s, e->proc, &ev);
}

static void prepare(struct sim *s, int proc, const struct td_rolloutc_effect *e) {
    struct msg *m = sim_msg();
    struct pull *pull = m->more = td_alloc(sizeof *pull);
    pull->worker = addressee(s, proc, e->worker);
    pull->version = e->version;
    pull->digest = e->digest;
    for (; pull->source_count < e->source_count && pull->source_count < NW; pull->source_count++) {
        strncpy(pull->sources[pull->source_count], e->sources[pull->source_count],
                sizeof pull->sources[0] - 1);
    }
    sim_after(s, sim_between(s, 3, 30), proc, prepared, m);
}

static void flipped(struct sim *s, struct event *e) {
    struct roller *r = &s->rollers[s->procs[e->proc].index];
    int worker = (int)(e->a & 0xFF);
    if (e->a != addressee(s, e->proc, (uint32_t)worker) ||
        !attached(s, s->procs[e->proc].index, worker)) {
        return;
    }
    struct td_version version = {e->c >> 32, e->c & UINT32_MAX};
    bool ok = r->workers[worker].prepared != 0 &&
              td_version_equal(r->workers[worker].prepared_version, version);
    if (ok) {
        r->workers[worker].has = true;
        r->workers[worker].version = r->workers[worker].prepared_version;
        r->workers[worker].weights = r->workers[worker].prepared;
    }
    struct td_rolloutc_event ev = {.kind = TD_RC_FLIPPED, .worker = (uint32_t)worker};
    ev.version = version;
    ev.ok = ok;
    roller_event(s, e->proc, &ev);
}

static void flip(struct sim *s, int proc, uint32_t worker, struct td_version version) {
    const struct roller *r = &s->rollers[s->procs[proc].index];
    uint32_t inc = s->procs[proc_of(ROLL_WORKER, s->procs[proc].index, (int)worker)].inc;
    for (size_t i = 0; i < r->ticket_count; i++) {
        const struct ticket *t = &r->tickets[i];
        if (t->worker == (int)worker && t->worker_inc == inc && t->left > 0) {
            sim_violation(s, "a worker flips while it generates");
        }
    }
    struct event *e = sim_after(s, sim_between(s, 1, 6), proc, flipped, NULL);
    e->a = addressee(s, proc, worker);
    e->c = version.lineage << 32 | version.step;
}

static void execute(struct sim *s, int proc, struct td_rolloutc_effect *e) {
    struct roller *r = &s->rollers[s->procs[proc].index];
    switch (e->kind) {
    case TD_RC_PREPARE:
        prepare(s, proc, e);
        break;
    case TD_RC_FLIP:
        flip(s, proc, e->worker, e->version);
        break;
    case TD_RC_START_GROUP:
        start_group(s, proc, e);
        break;
    case TD_RC_PUBLISH: {
        const struct ticket *t = find_ticket(r, e->ticket);
        if (t) {
            check_works_for(s, proc, t->job);
            rollout_publish(s, proc, t);
        }
        break;
    }
    case TD_RC_CLOSE_GROUP:
        close_group(r, e->ticket);
        break;
    case TD_RC_REPORT: {
        struct msg *m = sim_msg();
        m->report = e->report;
        e->report = NULL;
        send_report(s, proc, m);
        break;
    }
    }
}

void roller_event(struct sim *s, int proc, struct td_rolloutc_event *e) {
    struct roller *r = &s->rollers[s->procs[proc].index];
    if (!r->machine) {
        return;
    }
    struct td_rolloutc_effects out = {0};
    td_rolloutc_step(r->machine, e, s->now, &out);
    for (size_t i = 0; i < out.count && !s->violated; i++) {
        execute(s, proc, &out.items[i]);
    }
    td_rolloutc_effects_fini(&out);
}

static void tick(struct sim *s, struct event *e) {
    struct td_rolloutc_event r = {.kind = TD_RC_TICK};
    roller_event(s, e->proc, &r);
    sim_after(s, sim_between(s, 120, 180), e->proc, tick, NULL);
}

static void worker_again(struct sim *s, struct event *e) {
    int worker = (int)e->a, index = s->procs[e->proc].index;
    if (s->procs[proc_of(ROLL_WORKER, index, worker)].alive) {
        roll_attach(s, index, worker);
    }
}

static void give_job(struct sim *s, struct event *e) {
    struct roller *r = &s->rollers[s->procs[e->proc].index];
    r->job = member_of(s, e->proc)->job;
    struct td_rolloutc_event job = {
        .kind = TD_RC_JOB, .job = r->job, .samples = SAMPLES, .eval_samples = 1};
    roller_event(s, e->proc, &job);
}

void roller_start(struct sim *s, int proc) {
    struct roller *r = &s->rollers[s->procs[proc].index];
    Tandem__Journal__DataIndex index;
    sim_index(s, sim_job_of_member(s, s->procs[proc].index), &index);
    const struct member *m = member_of(s, proc);
    if (s->p.assign) {
        index = m->index;
    }
    struct td_rolloutc_config config = {
        .member = (uint64_t)proc + 1,
        .workers = NRW,
        .seqs_max = 2 * SAMPLES,
        .build = "build",
        .device = "cpu",
        .index = &index,
        .report_ms = 300,
        .retry_ms = 100,
    };
    r->machine = td_rolloutc_new(&config);
    r->job = 0;
    r->producer = s->p.assign ? m->incarnation : td_rng_next(&s->rng) | 1;
    r->ticket_count = 0;
    if (s->p.assign) {
        sim_after(s, 0, proc, give_job, NULL);
    }
    sim_after(s, sim_between(s, 1, 150), proc, tick, NULL);
    for (int i = 0; i < NRW; i++) {
        bool there = s->procs[proc_of(ROLL_WORKER, s->procs[proc].index, i)].alive;
        if (!s->p.assign || there) { // the others are started by its daemon
            sim_after(s, 1, proc, worker_again, NULL)->a = (uint64_t)i;
        }
    }
}
