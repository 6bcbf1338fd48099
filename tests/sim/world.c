// Time, processes and their events. One heap holds everything that will happen; the same seed gives
// the same order.
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "tests/sim/sim.h"

uint32_t sim_below(struct sim *s, uint32_t n) {
    return td_rng_below(&s->rng, n);
}

bool sim_percent(struct sim *s, uint32_t percent) {
    return s->faults_on && percent && sim_below(s, 100) < percent;
}

int64_t sim_between(struct sim *s, int64_t low, int64_t high) {
    return low + (int64_t)sim_below(s, (uint32_t)(high - low + 1));
}

void sim_trace(struct sim *s, const char *fmt, ...) {
    if (!s->trace) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    printf("%8" PRId64 " ", s->now);
    vprintf(fmt, args);
    putchar('\n');
    va_end(args);
}

void sim_violation(struct sim *s, const char *fmt, ...) {
    if (s->violated) {
        return;
    }
    s->violated = true;
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->violation, sizeof s->violation, fmt, args);
    va_end(args);
    sim_trace(s, "VIOLATION %s", s->violation);
}

// ---- messages ----

struct msg *sim_msg(void) {
    struct msg *m = td_alloc(sizeof *m);
    m->refs = 1;
    return m;
}

struct msg *sim_msg_ref(struct msg *m) {
    m->refs++;
    return m;
}

void sim_msg_unref(struct msg *m) {
    if (!m || --m->refs > 0) {
        return;
    }
    if (m->report) {
        tandem__sync__report__free_unpacked(m->report, NULL);
    }
    if (m->orders) {
        tandem__sync__orders__free_unpacked(m->orders, NULL);
    }
    td_free(m->bytes);
    td_free(m->more);
    td_free(m);
}

// ---- heap ----

static bool before(const struct event *a, const struct event *b) {
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static size_t sift_up(struct sim *s, size_t i) {
    struct event moving = s->heap[i];
    while (i > 0 && before(&moving, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = moving;
    return i;
}

static struct event pop(struct sim *s) {
    struct event top = s->heap[0], moving = s->heap[--s->heap_count];
    size_t i = 0, n = s->heap_count;
    while (2 * i + 1 < n) {
        size_t child = 2 * i + 1;
        child += child + 1 < n && before(&s->heap[child + 1], &s->heap[child]);
        if (!before(&s->heap[child], &moving)) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    if (n) {
        s->heap[i] = moving;
    }
    return top;
}

struct event *sim_after(struct sim *s, int64_t delay, int proc, sim_fn fn, struct msg *msg) {
    TD_GROW(s->heap, s->heap_cap, s->heap_count + 1);
    s->heap[s->heap_count] = (struct event){.at = s->now + delay,
                                            .seq = s->next_seq++,
                                            .fn = fn,
                                            .proc = proc,
                                            .inc = proc >= 0 ? s->procs[proc].inc : 0,
                                            .msg = msg};
    return &s->heap[sift_up(s, s->heap_count++)];
}

struct event *sim_after_process(struct sim *s, int64_t delay, int proc, sim_fn fn,
                                struct msg *msg) {
    struct event *e = sim_after(s, delay, proc, fn, msg);
    e->of_process = true;
    e->inc = s->procs[proc].life;
    return e;
}

// ---- processes ----

int proc_of(enum proc_kind kind, int index, int worker) {
    switch (kind) {
    case COORDINATOR:
        return index;
    case TRAINER:
        return NC + index;
    case ROLLER:
        return NC + NT + index;
    case RANK:
        return NC + NT + NR + index * NW + worker;
    case ROLL_WORKER:
        return NC + NT + NR + NT * NW + index * NRW + worker;
    }
    return -1;
}

const char *proc_name(int proc) {
    static const char *const names[NPROC] = {"C0",   "C1",   "C2",   "T0",   "T1",
                                             "R0",   "R1",   "T0w0", "T0w1", "T1w0",
                                             "T1w1", "R0w0", "R0w1", "R1w0", "R1w1"};
    return proc >= 0 && proc < NPROC ? names[proc] : "world";
}

static void free_deferred(struct proc *p) {
    for (size_t i = 0; i < p->deferred_count; i++) {
        sim_msg_unref(p->deferred[i].msg);
    }
    p->deferred_count = 0;
}

static void disturbed(struct sim *s, const struct proc *p) {
    if (p->kind == TRAINER || p->kind == RANK) {
        s->trainers[p->index].disturbed_ms = s->now;
    }
}

// Is there such a process at all? Daemons have workers as long as they serve a job.
static bool exists(const struct sim *s, const struct proc *p) {
    switch (p->kind) {
    case COORDINATOR:
        return !s->p.single || p->index == 0;
    case TRAINER:
        return p->index < s->p.trainers;
    case ROLLER:
        return true;
    case RANK:
        return !s->p.assign || member_runs(s, proc_of(TRAINER, p->index, 0));
    case ROLL_WORKER:
        return !s->p.assign || member_runs(s, proc_of(ROLLER, p->index, 0));
    }
    return false;
}

void sim_start(struct sim *s, int proc) {
    struct proc *p = &s->procs[proc];
    disturbed(s, p);
    if (p->alive || !exists(s, p)) {
        return;
    }
    p->alive = true;
    p->paused = false;
    p->inc++;
    p->life++;
    p->reply_ms = s->now;
    p->pumping = p->reset = false;
    sim_trace(s, "%s starts", proc_name(proc));
    if (s->p.assign && (p->kind == TRAINER || p->kind == ROLLER)) {
        member_start(s, proc);
        return;
    }
    switch (p->kind) {
    case COORDINATOR:
        coordinator_start(s, proc);
        break;
    case TRAINER:
        trainer_start(s, proc);
        break;
    case ROLLER:
        roller_start(s, proc);
        break;
    case RANK:
    case ROLL_WORKER:
        rank_start(s, proc);
        break;
    }
}

void sim_machine_ends(struct sim *s, int proc) {
    struct proc *p = &s->procs[proc];
    p->inc++;
    p->pumping = p->reset = false;
    if (p->kind == TRAINER) {
        td_trainc_free(s->trainers[p->index].machine);
        s->trainers[p->index].machine = NULL;
    } else {
        td_rolloutc_free(s->rollers[p->index].machine);
        s->rollers[p->index].machine = NULL;
        s->rollers[p->index].ticket_count = 0;
    }
}

void sim_kill(struct sim *s, int proc) {
    struct proc *p = &s->procs[proc];
    if (!p->alive) {
        return;
    }
    sim_trace(s, "%s is killed", proc_name(proc));
    p->alive = p->paused = false;
    p->inc++;
    p->life++;
    free_deferred(p);
    switch (p->kind) {
    case COORDINATOR:
        td_coordinator_free(s->coordinators[p->index]);
        s->coordinators[p->index] = NULL;
        memset(s->waiters[p->index], 0, sizeof s->waiters[p->index]);
        link_coordinator_dead(s, p->index);
        break;
    case TRAINER:
    case ROLLER:
        sim_machine_ends(s, proc);
        if (s->p.assign) {
            link_member_dead(s, proc);
        }
        break;
    case RANK:
    case ROLL_WORKER:
        worker_lost(s, proc);
        break;
    }
}

static void resume(struct sim *s, struct event *e) {
    sim_resume(s, (int)e->a);
}

void sim_pause(struct sim *s, int proc, int64_t ms) {
    struct proc *p = &s->procs[proc];
    if (!p->alive || p->paused) {
        return;
    }
    sim_trace(s, "%s pauses for %" PRId64, proc_name(proc), ms);
    p->paused = true;
    struct event *e = sim_after(s, ms, -1, resume, NULL);
    e->a = (uint64_t)proc;
}

void sim_resume(struct sim *s, int proc) {
    struct proc *p = &s->procs[proc];
    if (!p->alive || !p->paused) {
        return;
    }
    sim_trace(s, "%s goes on", proc_name(proc));
    disturbed(s, p);
    p->paused = false;
    for (size_t i = 0; i < p->deferred_count; i++) {
        struct event *from = &p->deferred[i];
        struct event *e = sim_after(s, 0, proc, from->fn, from->msg);
        e->inc = from->inc;
        e->of_process = from->of_process;
        e->a = from->a;
        e->b = from->b;
        e->c = from->c;
    }
    p->deferred_count = 0;
}

// ---- the run ----

static void happen(struct sim *s, struct event *e) {
    if (e->proc >= 0) {
        struct proc *p = &s->procs[e->proc];
        if (!p->alive || (e->of_process ? p->life : p->inc) != e->inc) {
            sim_msg_unref(e->msg);
            return;
        }
        if (p->paused) {
            TD_GROW(p->deferred, p->deferred_cap, p->deferred_count + 1);
            p->deferred[p->deferred_count++] = *e;
            return;
        }
    }
    s->events++;
    e->fn(s, e);
    sim_msg_unref(e->msg);
}

static void heal(struct sim *s, struct event *e) {
    (void)e;
    faults_heal(s);
}

static void begin(struct sim *s) {
    for (int i = 0; i < NPROC; i++) {
        struct proc *p = &s->procs[i];
        p->kind = i < NC ? COORDINATOR : i < NC + NT ? TRAINER : i < NC + NT + NR ? ROLLER : RANK;
        p->index = i < NC ? i : i < NC + NT ? i - NC : i - NC - NT;
        int w = i - NC - NT - NR;
        if (w >= NT * NW) {
            p->kind = ROLL_WORKER;
            p->index = (w - NT * NW) / NRW;
            p->worker = (w - NT * NW) % NRW;
        } else if (w >= 0) {
            p->index = w / NW;
            p->worker = w % NW;
        }
        for (int c = 0; c < NC; c++) {
            p->linked[c] = true;
        }
    }
    for (int i = 0; i < NT; i++) {
        s->trainers[i].sim = s;
    }
    for (int i = NPROC - 1; i >= 0; i--) {
        sim_start(s, i);
    }
    if (s->p.assign) {
        clients_begin(s);
    }
    faults_begin(s);
    sim_after(s, s->p.fault_ms, -1, heal, NULL);
}

static bool all_ended(const struct sim *s) {
    for (int i = 0; i < s->p.jobs; i++) {
        if (!s->jobs[i].seen_end) {
            return false;
        }
    }
    return true;
}

static void trace_views(struct sim *s) {
    for (int i = 0; s->p.assign && i < NM; i++) {
        const struct member *m = &s->members[i];
        sim_trace(s, "%s: state %d, job %" PRIu64 ", is to serve %" PRIu64 "%s", proc_name(NC + i),
                  (int)m->state, m->job, m->wanted, m->trouble ? ", cannot" : "");
    }
    for (int i = 0; i < NT; i++) {
        struct td_train_view v;
        if (s->trainers[i].machine) {
            td_trainc_view(s->trainers[i].machine, &v);
            const struct trainer *t = &s->trainers[i];
            sim_trace(s, "T%d waits for: %s; reads the rollout log to %" PRId64 ", %" PRId64 "%s",
                      i, v.waits_for, t->next[0], t->next[1], t->scanned ? ", scanned" : "");
        }
    }
    for (int i = 0; i < NR; i++) {
        struct td_rollout_view v;
        if (s->rollers[i].machine) {
            td_rolloutc_view(s->rollers[i].machine, &v);
            sim_trace(s, "R%d waits for: %s", i, v.waits_for);
            for (int w = 0; w < NRW; w++) {
                sim_trace(s, "  worker %d holds (%" PRIu64 ", %" PRIu64 ")%s", w,
                          s->rollers[i].workers[w].version.lineage,
                          s->rollers[i].workers[w].version.step,
                          s->rollers[i].workers[w].has ? "" : ", no more");
            }
        }
    }
}

static void trace_job(struct sim *s, int job) {
    const struct td_job_state *j = td_journal_job(&s->truth, s->jobs[job].id);
    if (!j) {
        return;
    }
    sim_trace(s, "job %d: cursor (%" PRIu64 ", %" PRIu64 "), batch %" PRIu64 " of %" PRIu64 " rows",
              job, j->cursor.data_epoch, j->cursor.index, s->p.batch, s->p.rows);
    for (size_t i = 0; i < j->open_count; i++) {
        sim_trace(s, "  open (%" PRIu64 ", %" PRIu64 ")", j->open[i].data_epoch, j->open[i].index);
    }
}

static void say_stuck(struct sim *s) {
    trace_views(s);
    for (int i = 0; i < s->p.jobs; i++) {
        trace_job(s, i);
    }
    char text[600] = "no coordinator leads";
    for (int i = 0; i < NC; i++) {
        const struct td_coordinator *c = s->coordinators[i];
        for (int k = 0; c && td_coordinator_leads(c) && k < s->p.jobs; k++) {
            struct td_job_view v;
            if (!s->jobs[k].seen_end && s->jobs[k].id &&
                td_coordinator_job_view(c, s->jobs[k].id, &v)) {
                snprintf(text, sizeof text,
                         "job %d: step %" PRIu64 ", sealed %" PRIu64 ", open %" PRIu64
                         ", units %" PRIu64 ", wait %d since %" PRId64 ": %s",
                         k, v.head.step, v.sealed, v.open, v.units, (int)v.wait, v.since_ms,
                         v.text);
            }
        }
    }
    sim_violation(s, "L2 no progress to the end after the faults stopped: %s", text);
}

enum { SETTLE_MS = 1500, PATIENCE_MS = 90000 };

bool sim_run(struct sim *s, uint64_t seed, const struct profile *p) {
    bool trace = s->trace;
    *s = (struct sim){.seed = seed, .p = *p, .trace = trace, .rng = {seed}, .faults_on = true};
    s->rng.state = td_mix64(seed + 0x51D);
    td_journal_state_init(&s->truth);
    begin(s);
    while (!s->violated && s->heap_count) {
        struct event e = pop(s);
        s->now = e.at;
        happen(s, &e);
        if (!s->ended_ms && all_ended(s)) {
            s->ended_ms = s->now;
            s->ended_count = (int64_t)s->journal_count;
            faults_heal(s); // whoever is cut off or stopped shall learn of it
        }
        if (s->ended_ms && s->now > s->ended_ms + SETTLE_MS) {
            break;
        }
        if (s->healed_ms && s->now > s->healed_ms + PATIENCE_MS) {
            say_stuck(s);
        }
    }
    if (!s->violated) {
        check_end(s);
    }
    return !s->violated;
}

void sim_fini(struct sim *s) {
    for (size_t i = 0; i < s->heap_count; i++) {
        sim_msg_unref(s->heap[i].msg);
    }
    td_free(s->heap);
    for (int i = 0; i < NPROC; i++) {
        free_deferred(&s->procs[i]);
        td_free(s->procs[i].deferred);
    }
    for (size_t i = 0; i < s->journal_count; i++) {
        td_free(s->journal[i].bytes);
    }
    td_free(s->journal);
    td_free(s->state_starts);
    td_journal_state_fini(&s->truth);
    for (int j = 0; j < NJ; j++) {
        for (int k = 0; k < NP; k++) {
            td_free(s->rollout[j][k].records);
        }
        td_free(s->jobs[j].groups);
    }
    for (int i = 0; i < NC; i++) {
        td_coordinator_free(s->coordinators[i]);
        for (int k = 0; k < NM; k++) {
            sim_msg_unref(s->servers[i][k].kept);
        }
    }
    for (int i = 0; i < NM; i++) {
        sim_msg_unref(s->members[i].report);
    }
    for (int i = 0; i < NT; i++) {
        td_trainc_free(s->trainers[i].machine);
    }
    for (int i = 0; i < NR; i++) {
        td_rolloutc_free(s->rollers[i].machine);
        td_free(s->rollers[i].tickets);
    }
    for (size_t i = 0; i < s->folder_count; i++) {
        td_free(s->folders[i].name);
    }
    for (size_t i = 0; i < s->forgery_count; i++) {
        sim_msg_unref(s->forgeries[i]);
    }
    td_free(s->folders);
    td_free(s->nodes);
    td_free(s->finished);
    td_free(s->forgeries);
}
