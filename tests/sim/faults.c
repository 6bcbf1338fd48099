// What goes wrong, and when. After heal nothing more does, and everything that was down is up.
#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

static void start_again(struct sim *s, struct event *e) {
    sim_start(s, (int)e->a);
}

static void restart_later(struct sim *s, int proc) {
    sim_after(s, sim_between(s, 30, 2500), -1, start_again, NULL)->a = (uint64_t)proc;
}

static void crash(struct sim *s) {
    int proc = (int)sim_below(s, NC + NT + NR);
    sim_kill(s, proc);
    restart_later(s, proc);
}

static void pause_one(struct sim *s) {
    sim_pause(s, (int)sim_below(s, NPROC), sim_between(s, 30, 3500));
}

static void machine(struct sim *s) {
    bool train = sim_below(s, 2);
    int index = (int)sim_below(s, NT);
    int proc = proc_of(train ? TRAINER : ROLLER, index, 0);
    sim_kill(s, proc);
    for (int i = 0; i < NW; i++) {
        sim_kill(s, proc_of(train ? RANK : ROLL_WORKER, index, i));
    }
    restart_later(s, proc);
}

// kill -9 of everything, with its workers or without.
static void tree(struct sim *s) {
    bool workers = sim_below(s, 2);
    int64_t back = sim_between(s, 30, 1500);
    for (int i = 0; i < NC + NT + NR; i++) {
        sim_kill(s, i);
        sim_after(s, back, -1, start_again, NULL)->a = (uint64_t)i;
    }
    for (int i = NC + NT + NR; i < NPROC && workers; i++) {
        sim_kill(s, i);
    }
}

static void worker(struct sim *s) {
    sim_kill(s, NC + NT + NR + (int)sim_below(s, NT * NW + NR * NRW));
}

static void lose_record(struct sim *s) {
    struct partition *p = &s->rollout[sim_below(s, (uint32_t)s->p.jobs)][sim_below(s, NP)];
    int64_t n = (int64_t)p->count - p->start;
    if (n > 0) {
        int64_t back = (int64_t)sim_below(s, n < 6 ? (uint32_t)n : 6); // mostly what is needed soon
        p->records[(int64_t)p->count - 1 - back].gone = true;
        s->lost_record = true;
        sim_trace(s, "a rollout record is lost");
    }
}

static void corrupt(struct sim *s) {
    const struct job_facts *f = &s->jobs[sim_below(s, (uint32_t)s->p.jobs)];
    struct folder *newest =
        f->kept_count ? find_checkpoint(s, f->kept[f->kept_count - 1].id) : NULL;
    const struct folder *older = f->kept_count == 2 ? find_checkpoint(s, f->kept[0].id) : NULL;
    if (newest && older && !older->corrupt) {
        newest->corrupt = true;
        sim_trace(s, "checkpoint of step %" PRIu64 " is corrupt", newest->step);
    }
}

static void log_back(struct sim *s, struct event *e) {
    (void)e;
    s->journal_out = s->rollout_out = false;
}

static void outage(struct sim *s) {
    bool journal = sim_below(s, 2);
    s->journal_out = s->journal_out || journal;
    s->rollout_out = s->rollout_out || !journal;
    sim_trace(s, "outage of the %s", journal ? "journal" : "rollout logs");
    sim_after(s, sim_between(s, 100, 2500), -1, log_back, NULL);
}

static void join(struct sim *s, struct event *e) {
    struct proc *p = &s->procs[e->a];
    p->cut = false;
    for (int i = 0; i < NC; i++) {
        p->linked[i] = true;
    }
    journal_pump_all(s);
}

static void partition(struct sim *s) {
    int proc = (int)sim_below(s, NC + NT + NR);
    struct proc *p = &s->procs[proc];
    p->cut = p->kind != ROLLER && sim_below(s, 2);
    if (p->kind == COORDINATOR && !p->cut) {
        for (int i = NC; i < NC + NT + NR; i++) { // from all members
            s->procs[i].linked[p->index] = false;
            sim_after(s, sim_between(s, 200, 3500), -1, join, NULL)->a = (uint64_t)i;
        }
    } else if (!p->cut) {
        p->linked[sim_below(s, NC)] = false;
    }
    sim_trace(s, "%s is cut off%s", proc_name(proc), p->cut ? " from the journal" : "");
    sim_after(s, sim_between(s, 200, 3500), -1, join, NULL)->a = (uint64_t)proc;
}

static void fast(struct sim *s, struct event *e) {
    s->procs[e->a].slow = false;
}

static void slow(struct sim *s) {
    uint64_t proc = sim_below(s, NC + NT);
    s->procs[proc].slow = true;
    sim_after(s, sim_between(s, 500, 5000), -1, fast, NULL)->a = proc;
}

static void cancel(struct sim *s) {
    int job = (int)sim_below(s, (uint32_t)s->p.jobs), proc = (int)sim_below(s, NC);
    if (s->jobs[job].id && s->procs[proc].alive && !s->procs[proc].paused) {
        s->jobs[job].cancelled_by_user = true;
        struct td_coordinator_event e = {.kind = TD_CO_CANCEL, .job = s->jobs[job].id};
        coordinator_event(s, proc, &e);
    }
}

// ---- at the worst moment ----

static bool triggered(struct sim *s) {
    return sim_percent(s, s->p.trigger_percent);
}

static void kill_now(struct sim *s, struct event *e) {
    int proc = (int)e->a;
    if (s->faults_on && s->procs[proc].alive) {
        sim_kill(s, proc);
        if (s->procs[proc].kind == TRAINER || s->procs[proc].kind == COORDINATOR) {
            restart_later(s, proc);
        }
    }
}

static void kill_soon(struct sim *s, int proc, int64_t within_ms) {
    sim_after(s, sim_between(s, 0, within_ms), -1, kill_now, NULL)->a = (uint64_t)proc;
}

static void lose_now(struct sim *s, struct event *e) {
    struct rollout_record *r = &s->rollout[e->a][e->b].records[e->c];
    if (s->faults_on) {
        r->gone = true;
        s->lost_record = true;
        sim_trace(s, "a sealed record is lost");
    }
}

static int trainer_of(const struct sim *s, uint64_t job) {
    const struct td_job_state *j = td_journal_job(&s->truth, job);
    const struct td_gang_state *g = j ? td_job_gang(j, "actor") : NULL;
    return g ? (int)g->spec->members[0] - 1 - NC : -1;
}

// Before its records are read, or while they are trained on.
void fault_at_seal(struct sim *s, const Tandem__Journal__Seal *b) {
    if (s->p.lose_record && triggered(s) && b->entries[0]->n_parts) {
        const td_entry *entry = b->entries[sim_below(s, (uint32_t)b->n_entries)];
        struct event *e = sim_after(s, sim_between(s, 0, 30), -1, lose_now, NULL);
        if (entry->parts[0]->partition < NP && entry->parts[0]->offset >= 0 &&
            entry->parts[0]->offset <
                (int64_t)s->rollout[job_index(s, b->job)][entry->parts[0]->partition].count) {
            e->a = (uint64_t)job_index(s, b->job);
            e->b = entry->parts[0]->partition;
            e->c = (uint64_t)entry->parts[0]->offset;
        }
    }
    int trainer = trainer_of(s, b->job);
    if (s->p.worker && trainer >= 0 && triggered(s)) {
        kill_soon(s, proc_of(RANK, trainer, (int)sim_below(s, NW)), 80);
    }
}

// Before the checkpoint of the step is there: it will be redone.
void fault_at_commit(struct sim *s, uint64_t job) {
    int trainer = trainer_of(s, job);
    if (s->p.worker && trainer >= 0 && triggered(s)) {
        kill_soon(s, proc_of(RANK, trainer, (int)sim_below(s, NW)), sim_below(s, 2) ? 20 : 250);
    }
}

// Before its COMMIT: the work of this generation may still be reported by somebody.
void fault_at_finish(struct sim *s, int trainer) {
    if (s->p.worker && triggered(s)) {
        kill_soon(s, proc_of(RANK, trainer, (int)sim_below(s, NW)), 20);
    }
}

// The folder was reported, or nearly; the process that knows of it is gone.
void fault_at_save(struct sim *s, int trainer) {
    if (s->p.crash && triggered(s)) {
        kill_soon(s, proc_of(TRAINER, trainer, 0), 15);
    }
}

// The line of a validated step is written; its leader dies before it hears so.
void fault_at_close(struct sim *s) {
    for (int i = 0; i < NC && s->p.crash && s->p.validation; i++) {
        if (s->coordinators[i] && td_coordinator_leads(s->coordinators[i]) && triggered(s)) {
            kill_soon(s, proc_of(COORDINATOR, i, 0), 10);
        }
    }
}

// Between publication and SEAL.
void fault_at_landing(struct sim *s, int job) {
    int trainer = trainer_of(s, s->jobs[job].id);
    if (s->p.crash && trainer >= 0 && triggered(s) && sim_below(s, 4) == 0) {
        kill_soon(s, proc_of(TRAINER, trainer, 0), 15);
    }
}

// One rank applies the update, another misses it; the controller dies before it can learn that.
bool fault_half_applied(struct sim *s, int trainer) {
    if (!s->p.crash || !triggered(s) || sim_below(s, 4)) {
        return false;
    }
    kill_soon(s, proc_of(TRAINER, trainer, 0), 30);
    return true;
}

static void fault(struct sim *s, struct event *e) {
    (void)e;
    if (!s->faults_on) {
        return;
    }
    const struct profile *p = &s->p;
    const struct {
        uint32_t weight;
        void (*fn)(struct sim *s);
    } kinds[] = {{p->crash, crash},         {p->pause, pause_one},
                 {p->machine, machine},     {p->tree, tree},
                 {p->worker, worker},       {p->rows_job ? 0 : p->lose_record, lose_record},
                 {p->corrupt, corrupt},     {p->outage, outage},
                 {p->partition, partition}, {p->slow, slow},
                 {p->cancel, cancel},       {p->careless ? 6 : 0, forge_record}};
    uint32_t total = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        total += kinds[i].weight;
    }
    uint32_t at = total ? sim_below(s, total) : 0;
    for (size_t i = 0; total && i < sizeof kinds / sizeof *kinds; i++) {
        if (at < kinds[i].weight) {
            kinds[i].fn(s);
            break;
        }
        at -= kinds[i].weight;
    }
    sim_after(s, sim_between(s, 1, 2 * p->fault_gap_ms), -1, fault, NULL);
}

void faults_begin(struct sim *s) {
    sim_after(s, sim_between(s, 1, 2 * s->p.fault_gap_ms), -1, fault, NULL);
}

void faults_heal(struct sim *s) {
    if (s->healed_ms) {
        return;
    }
    sim_trace(s, "the faults stop");
    s->healed_ms = s->now;
    s->faults_on = false;
    s->journal_out = s->rollout_out = false;
    for (int i = 0; i < NPROC; i++) {
        s->procs[i].cut = s->procs[i].slow = false;
        if (i < NT) {
            s->trainers[i].disturbed_ms = s->now;
        }
        sim_start(s, i);
        sim_resume(s, i);
    }
    journal_pump_all(s);
}
