// The shell of a controller daemon, told again after controllers/common: it serves the one job that
// it is told to, reads the files of jobs that are being submitted, and adds what it knows to the
// reports of its machine. Its workers outlive it; those of another job end.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"
#include "tests/sim/sim.h"

enum { TICK_MS = 500 };

struct member *member_of(struct sim *s, int proc) {
    return &s->members[proc - NC];
}

static bool trains(const struct sim *s, int proc) {
    return s->procs[proc].kind == TRAINER;
}

static int worker_of(const struct sim *s, int proc, int worker) {
    return proc_of(trains(s, proc) ? RANK : ROLL_WORKER, s->procs[proc].index, worker);
}

// The job that its reports name.
static uint64_t says_it_serves(const struct member *m) {
    if (TD_PLANTED(SERVE_KEEPS_OLD) && m->state == SERVICE_RUNNING) {
        return m->wanted;
    }
    return m->state == SERVICE_RUNNING || m->trouble ? m->job : 0;
}

void check_works_for(struct sim *s, int proc, uint64_t job) {
    uint64_t serves = s->p.assign ? says_it_serves(member_of(s, proc)) : job;
    if (serves != job) {
        sim_violation(s, "I12 %s works for job %" PRIu64 " while it says that it serves %" PRIu64,
                      proc_name(proc), job, serves);
    }
}

bool member_runs(const struct sim *s, int proc) {
    const struct proc *p = &s->procs[proc];
    return p->alive && s->members[proc - NC].state == SERVICE_RUNNING;
}

// ---- reports ----

static void add_indexed(struct member *m, Tandem__Sync__Report *r) {
    r->indexed = td_alloc_array(NJ, sizeof *r->indexed);
    for (int i = 0; i < NJ; i++) {
        const struct reading *read = &m->reading[i];
        if (!read->asked || !read->done) {
            continue;
        }
        Tandem__Sync__Indexed *x = td_alloc(sizeof *x);
        tandem__sync__indexed__init(x);
        char request[] = {(char)('0' + i), 0};
        x->request_id = td_strdup(request);
        x->attempt = td_proto_dup(&read->attempt);
        if (read->fails) {
            x->error = td_strdup("no such file");
        } else {
            x->index = td_proto_dup(&read->index);
        }
        r->indexed[r->n_indexed++] = x;
    }
}

// Takes the report.
void member_report(struct sim *s, int proc, struct msg *report) {
    struct member *m = member_of(s, proc);
    Tandem__Sync__Report *r = report->report;
    r->serves = says_it_serves(m);
    if (m->trouble) {
        r->trouble = td_strdup("no such model");
    }
    add_indexed(m, r);
    link_report(s, proc, report);
}

static void report_idle(struct sim *s, int proc) {
    struct member *m = member_of(s, proc);
    struct msg *msg = sim_msg();
    Tandem__Sync__Report *r = msg->report = td_alloc(sizeof *r);
    tandem__sync__report__init(r);
    r->member = (uint64_t)proc + 1;
    r->kind =
        trains(s, proc) ? TANDEM__SYNC__MEMBER_KIND__TRAIN : TANDEM__SYNC__MEMBER_KIND__ROLLOUT;
    r->journal_id = m->journal_id;
    r->term = m->term;
    r->workers = NW;
    r->report = ++m->reports;
    member_report(s, proc, msg);
}

// ---- files of jobs that are being submitted ----

static void read_done(struct sim *s, struct event *e) {
    struct member *m = member_of(s, e->proc);
    struct reading *r = &m->reading[e->a];
    if (r->number != e->b) {
        return;
    }
    r->done = true;
    spec_index(s, r->spec, &r->index);
    r->fails = sim_percent(s, s->p.index_percent);
    if (!r->fails && sim_percent(s, s->p.index_percent)) {
        r->index.rows = 1; // refused by the coordinator
    }
    if (m->state != SERVICE_RUNNING) {
        report_idle(s, e->proc);
    }
}

static bool same_attempt(const struct reading *r, const Tandem__Sync__Index *order) {
    return r->attempt.term == order->attempt->term && r->attempt.n == order->attempt->n;
}

static void read_files(struct sim *s, int proc, const Tandem__Sync__Index *order) {
    struct member *m = member_of(s, proc);
    int job = order->request_id[0] - '0';
    struct reading *r = &m->reading[job];
    if (r->asked && (same_attempt(r, order) || TD_PLANTED(INDEX_TWICE))) {
        return;
    }
    *r = (struct reading){.asked = true, .number = ++s->next_call};
    r->attempt = *order->attempt;
    memcpy(r->spec, order->spec.data, sizeof r->spec);
    int64_t most = s->faults_on && sim_below(s, 2) ? 3000 : 200;
    struct event *e = sim_after_process(s, sim_between(s, 5, most), proc, read_done, NULL);
    e->a = (uint64_t)job;
    e->b = r->number;
}

static void index_orders(struct sim *s, int proc, const Tandem__Sync__Orders *o) {
    struct member *m = member_of(s, proc);
    bool asked[NJ] = {0};
    for (size_t i = 0; i < o->n_index; i++) {
        asked[o->index[i]->request_id[0] - '0'] = true;
        read_files(s, proc, o->index[i]);
    }
    for (int i = 0; i < NJ; i++) {
        m->reading[i].asked = m->reading[i].asked && asked[i];
        m->reading[i].number = asked[i] ? m->reading[i].number : 0;
    }
}

// ---- the job that is served ----

static void drive(struct sim *s, int proc);

static void end_workers(struct sim *s, int proc) {
    for (int i = 0; i < NW; i++) {
        sim_kill(s, worker_of(s, proc, i));
    }
    member_of(s, proc)->workers_job = 0;
}

static void stopped(struct sim *s, struct event *e) {
    struct member *m = member_of(s, e->proc);
    m->state = SERVICE_NONE;
    m->job = 0;
    m->trouble = false;
    drive(s, e->proc);
}

static void end(struct sim *s, int proc) {
    struct member *m = member_of(s, proc);
    sim_trace(s, "%s gives up job %" PRIu64, proc_name(proc), m->job);
    bool ran = m->state == SERVICE_RUNNING;
    m->state = SERVICE_STOPPING;
    if (ran) {
        sim_machine_ends(s, proc);
        end_workers(s, proc);
    }
    sim_after_process(s, sim_between(s, 2, 300), proc, stopped, NULL);
}

// Its workers cannot be started: it goes on and says so.
static void fails(struct sim *s, struct event *e) {
    if (s->faults_on) {
        member_of(s, e->proc)->trouble = true;
    }
}

static void start_machine(struct sim *s, int proc) {
    struct member *m = member_of(s, proc);
    m->state = SERVICE_RUNNING;
    m->workers_job = m->job;
    sim_index(s, job_index(s, m->job), &m->index);
    m->index.data_digest ^= sim_percent(s, s->p.other_files_percent) ? 0xF11E5 : 0;
    if (trains(s, proc)) {
        trainer_start(s, proc);
    } else {
        roller_start(s, proc);
    }
    for (int i = 0; i < NW; i++) {
        sim_start(s, worker_of(s, proc, i));
    }
    if (sim_percent(s, s->p.trouble_percent / 2)) {
        sim_after(s, sim_between(s, 20, 2000), proc, fails, NULL);
    }
}

static void loaded(struct sim *s, struct event *e) {
    struct member *m = member_of(s, e->proc);
    m->state = SERVICE_OPENING;
    m->trouble = sim_percent(s, s->p.trouble_percent);
    drive(s, e->proc);
    if (m->state == SERVICE_OPENING && !m->trouble) {
        start_machine(s, e->proc);
    }
}

static void begin(struct sim *s, int proc) {
    struct member *m = member_of(s, proc);
    sim_trace(s, "%s takes up job %" PRIu64, proc_name(proc), m->wanted);
    m->job = m->wanted;
    m->state = SERVICE_LOADING;
    int64_t most = s->faults_on && sim_below(s, 8) == 0 ? 3000 : 250;
    sim_after_process(s, sim_between(s, 10, most), proc, loaded, NULL);
}

static void drive(struct sim *s, int proc) {
    struct member *m = member_of(s, proc);
    switch (m->state) {
    case SERVICE_NONE:
        if (m->term && !m->swept) {
            m->swept = true;
            if (m->workers_job != m->wanted) {
                end_workers(s, proc);
            }
        }
        if (m->wanted) {
            begin(s, proc);
        }
        break;
    case SERVICE_OPENING:
    case SERVICE_RUNNING:
        if (m->wanted != m->job && !TD_PLANTED(SERVE_KEEPS_OLD)) {
            end(s, proc);
        }
        break;
    case SERVICE_LOADING:
    case SERVICE_STOPPING:
        break;
    }
}

void member_orders(struct sim *s, int proc, const Tandem__Sync__Orders *o) {
    struct member *m = member_of(s, proc);
    if ((m->journal_id && o->journal_id != m->journal_id) || o->term < m->term) {
        return;
    }
    m->journal_id = o->journal_id;
    m->term = o->term;
    m->wanted = o->serve ? o->serve->job : 0;
    index_orders(s, proc, o);
    if (m->state == SERVICE_RUNNING && (m->wanted == m->job || TD_PLANTED(SERVE_KEEPS_OLD))) {
        struct td_trainc_event train = {.kind = TD_TC_ORDERS, .orders = o};
        struct td_rolloutc_event roll = {.kind = TD_RC_ORDERS, .orders = o};
        if (trains(s, proc)) {
            trainer_event(s, proc, &train);
        } else {
            roller_event(s, proc, &roll);
        }
    }
    drive(s, proc);
}

// ---- life ----

static void tick(struct sim *s, struct event *e) {
    link_member_tick(s, e->proc);
    drive(s, e->proc);
    if (member_of(s, e->proc)->state != SERVICE_RUNNING) {
        report_idle(s, e->proc);
    }
    sim_after_process(s, TICK_MS, e->proc, tick, NULL);
}

void member_start(struct sim *s, int proc) {
    struct member *m = member_of(s, proc);
    *m = (struct member){.workers_job = m->workers_job};
    m->incarnation = td_rng_next(&s->rng) | 1;
    link_member_starts(s, proc);
    sim_after_process(s, sim_between(s, 0, 20), proc, tick, NULL);
}
