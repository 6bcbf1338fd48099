// Train workers: each holds a state that is a digest of all that was trained into it, in order. An
// update is a collective: it begins when all ranks have been told, and each then applies it alone,
// so that a crash between leaves it half done. Rollout workers only die and come back here.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/plant.h"
#include "tests/sim/sim.h"

uint64_t initial_state(int job) {
    return td_hash_u64(0x1217, (uint64_t)job);
}

uint64_t weights_of(uint64_t state) {
    return td_mix64(state ^ 0x77);
}

uint64_t state_after(uint64_t state, uint64_t batch, uint32_t k) {
    return td_hash_u64(td_hash_u64(state, batch), k);
}

struct command {
    enum td_trainc_effect_kind kind;
    uint64_t seq, generation, job, id, batch;
    struct td_pos ref;
    struct td_version version;
    uint32_t k;
    char folder[64];
};

struct answer {
    struct td_trainc_event event;
    char text[64];
};

static void deliver(struct sim *s, struct event *e) {
    struct answer *a = e->msg->more;
    a->event.text = a->text;
    trainer_event(s, e->proc, &a->event);
}

// The controller that gave the command gets it, if it still lives.
static void answer(struct sim *s, int trainer, uint32_t inc, const struct td_trainc_event *event,
                   const char *text) {
    int proc = proc_of(TRAINER, trainer, 0);
    if (!s->procs[proc].alive || s->procs[proc].inc != inc) {
        return;
    }
    struct msg *m = sim_msg();
    struct answer *a = m->more = td_alloc(sizeof *a);
    a->event = *event;
    strncpy(a->text, text, sizeof a->text - 1);
    sim_after(s, sim_between(s, 1, 4), proc, deliver, m);
}

static void done(struct sim *s, int trainer, uint32_t inc, int worker, uint64_t seq) {
    struct td_trainc_event e = {.kind = TD_TC_DONE, .worker = (uint32_t)worker, .seq = seq};
    answer(s, trainer, inc, &e, "");
}

static struct td_trainc_event failed(int worker, uint64_t seq, enum td_rc rc) {
    return (struct td_trainc_event){
        .kind = TD_TC_FAILED, .worker = (uint32_t)worker, .seq = seq, .rc = rc};
}

static void fail(struct sim *s, int trainer, uint32_t inc, struct td_trainc_event what,
                 const char *text) {
    answer(s, trainer, inc, &what, text);
}

static void digests(struct sim *s, int trainer, uint32_t inc, int worker, uint64_t seq) {
    const struct rank *r = &s->trainers[trainer].ranks[worker];
    struct td_trainc_event e = {.kind = TD_TC_DIGESTED,
                                .worker = (uint32_t)worker,
                                .seq = seq,
                                .weight_digest = weights_of(r->state),
                                .state_digest = r->state};
    answer(s, trainer, inc, &e, "");
}

// ---- the collective ----

static void apply(struct sim *s, struct event *e) {
    const struct proc *p = &s->procs[e->proc];
    struct rank *r = &s->trainers[p->index].ranks[p->worker];
    if (!r->running || r->pending_seq != e->a) {
        return;
    }
    r->running = false;
    add_node(s, r->next_state, r->state, r->batch, r->pending_k);
    r->state = r->next_state;
    r->applied = r->pending_k;
    done(s, p->index, r->attached, p->worker, e->a);
}

static void step_timeout(struct sim *s, struct event *e) {
    const struct proc *p = &s->procs[e->proc];
    struct rank *r = &s->trainers[p->index].ranks[p->worker];
    if (r->pending && r->pending_seq == e->a) {
        r->pending = false;
        fail(s, p->index, r->attached, failed(p->worker, e->a, TD_ETIMEOUT),
             "the ring did not answer");
    }
}

static void try_collective(struct sim *s, int trainer) {
    struct rank *ranks = s->trainers[trainer].ranks;
    for (int i = 0; i < NW; i++) {
        const struct proc *p = &s->procs[proc_of(RANK, trainer, i)];
        if (!p->alive || p->paused || !ranks[i].pending) {
            return;
        }
    }
    for (int i = 1; i < NW; i++) {
        if (ranks[i].generation != ranks[0].generation || ranks[i].job != ranks[0].job ||
            ranks[i].pending_k != ranks[0].pending_k || !td_pos_equal(ranks[i].ref, ranks[0].ref)) {
            sim_violation(s,
                          "I10 ranks of generations %" PRIu64 " and %" PRIu64
                          " in one collective, updates %u and %u",
                          ranks[0].generation, ranks[i].generation, ranks[0].pending_k,
                          ranks[i].pending_k);
            return;
        }
    }
    uint64_t noise = s->p.nondeterministic && sim_below(s, 100) < 30 ? td_rng_next(&s->rng) : 0;
    int left_out = fault_half_applied(s, trainer) ? (int)sim_below(s, NW) : -1;
    for (int i = 0; i < NW; i++) {
        struct rank *r = &ranks[i];
        if (i == left_out) {
            continue; // it misses the end of the collective and gives up later
        }
        r->next_state = state_after(r->state, r->batch, r->pending_k) ^ noise;
        r->pending = false;
        r->running = true;
        sim_after(s, sim_between(s, 1, 25), proc_of(RANK, trainer, i), apply, NULL)->a =
            r->pending_seq;
    }
}

static void step(struct sim *s, int trainer, int worker, uint32_t inc, const struct command *c) {
    struct rank *r = &s->trainers[trainer].ranks[worker];
    bool key = r->prepped && r->generation == c->generation && td_pos_equal(r->ref, c->ref);
    if ((!key || c->k != r->applied + 1) && !TD_PLANTED(WORKER_GENERATION)) {
        fail(s, trainer, inc, failed(worker, c->seq, TD_ECONFLICT), "another key or update");
        return;
    }
    r->pending = true;
    r->running = false;
    r->pending_k = c->k;
    r->pending_seq = c->seq;
    sim_after(s, 600, proc_of(RANK, trainer, worker), step_timeout, NULL)->a = c->seq;
    try_collective(s, trainer);
}

// ---- the other commands ----

// As the worker's server: the same again becomes the newest, and beyond SNAPSHOTS the oldest goes.
static void keep_snapshot(struct rank *r) {
    size_t gone = 0;
    while (gone < r->snapshot_count && (r->snapshots[gone].step != r->version.step ||
                                        r->snapshots[gone].weights != weights_of(r->state))) {
        gone++;
    }
    if (gone == r->snapshot_count && gone == SNAPSHOTS) {
        gone = 0;
    }
    if (gone < r->snapshot_count) {
        r->snapshot_count--;
        memmove(r->snapshots + gone, r->snapshots + gone + 1,
                sizeof *r->snapshots * (r->snapshot_count - gone));
    }
    r->snapshots[r->snapshot_count].step = r->version.step;
    r->snapshots[r->snapshot_count++].weights = weights_of(r->state);
}

// Addresses are those of weights.h as far as the machines know: text.
bool rank_serves(const struct sim *s, const char *address, uint64_t step, uint64_t weights) {
    unsigned trainer, worker;
    if (sscanf(address, "rank %u of %u", &worker, &trainer) != 2 || trainer >= NT || worker >= NW) {
        return false;
    }
    const struct proc *p = &s->procs[proc_of(RANK, (int)trainer, (int)worker)];
    const struct rank *r = &s->trainers[trainer].ranks[worker];
    bool held = false;
    for (size_t i = 0; i < r->snapshot_count; i++) {
        held = held || (r->snapshots[i].step == step && r->snapshots[i].weights == weights);
    }
    return p->alive && !p->paused && held;
}

static void load(struct sim *s, int trainer, int worker, uint32_t inc, const struct command *c) {
    struct rank *r = &s->trainers[trainer].ranks[worker];
    int job = job_index(s, c->job);
    uint64_t state = initial_state(job), at = 0;
    if (c->folder[0]) {
        const struct folder *f = find_folder(s, job, c->folder);
        if (!f || !f->whole) {
            fail(s, trainer, inc, failed(worker, c->seq, TD_ENOENT), "no such folder");
            return;
        }
        if (f->corrupt && !TD_PLANTED(NEWEST_TRUSTED)) {
            fail(s, trainer, inc, failed(worker, c->seq, TD_ECORRUPT), "flipped bits");
            return;
        }
        state = f->corrupt ? f->state ^ 0xBAD : f->state;
        at = f->step;
    }
    struct rank old = *r;
    *r = (struct rank){.set_up = true, .job = old.job, .attached = old.attached};
    memcpy(r->snapshots, old.snapshots, sizeof r->snapshots);
    r->snapshot_count = old.snapshot_count;
    r->generation = c->generation;
    r->version = (struct td_version){c->version.lineage, at};
    r->state = state;
    keep_snapshot(r);
    done(s, trainer, inc, worker, c->seq);
}

static void finish(struct sim *s, int trainer, int worker, uint32_t inc, const struct command *c) {
    struct rank *r = &s->trainers[trainer].ranks[worker];
    bool again = !r->applied && r->finished && td_pos_equal(r->finished_ref, c->ref);
    bool whole = r->prepped && r->applied == r->updates && td_pos_equal(r->ref, c->ref);
    if (!again && !whole) {
        fail(s, trainer, inc, failed(worker, c->seq, TD_ECONFLICT), "nothing to finish");
        return;
    }
    if (!again) {
        r->version = (struct td_version){c->version.lineage, r->version.step + 1};
        r->finished = true;
        r->finished_ref = r->ref;
        r->prepped = false;
        r->applied = r->updates = 0;
        keep_snapshot(r);
        TD_GROW(s->finished, s->finished_cap, s->finished_count + 1);
        s->finished[s->finished_count++] =
            (struct finished){r->generation, r->version.step, r->state};
        fault_at_finish(s, trainer);
    }
    digests(s, trainer, inc, worker, c->seq);
}

static void saved(struct sim *s, struct event *e) {
    const struct command *c = e->msg->more;
    struct folder *f = find_folder(s, job_index(s, c->job), c->folder);
    const struct proc *p = &s->procs[e->proc];
    bool alive = s->procs[proc_of(RANK, p->index, 0)].inc == (uint32_t)e->b;
    if (!alive) {
        return;
    }
    if (!f) {
        fail(s, p->index, e->inc, failed(0, c->seq, TD_ECONFLICT), "the folder is gone");
        return;
    }
    f->whole = true;
    struct td_trainc_event r = {.kind = TD_TC_SAVED, .seq = c->seq, .manifest_digest = f->manifest};
    trainer_event(s, e->proc, &r);
}

static void save(struct sim *s, int trainer, uint32_t inc, struct event *e) {
    const struct command *c = e->msg->more;
    struct td_trainc_effect effect = {.job = c->job,
                                      .text = (char *)c->folder,
                                      .id = c->id,
                                      .generation = c->generation,
                                      .version = c->version};
    disk_save_begin(s, trainer, &effect);
    int proc = proc_of(TRAINER, trainer, 0);
    if (s->procs[proc].alive && s->procs[proc].inc == inc) {
        sim_after(s, sim_between(s, 5, 120), proc, saved, sim_msg_ref(e->msg))->b =
            s->procs[proc_of(RANK, trainer, 0)].inc;
    }
}

static void prep(struct sim *s, int trainer, int worker, uint32_t inc, const struct command *c) {
    struct rank *r = &s->trainers[trainer].ranks[worker];
    r->prepped = true;
    r->ref = c->ref;
    r->batch = c->batch;
    r->applied = 0;
    r->updates = UPDATES;
    done(s, trainer, inc, worker, c->seq);
}

static bool refused(struct sim *s, int trainer, int worker, uint32_t inc, const struct command *c) {
    const struct rank *r = &s->trainers[trainer].ranks[worker];
    if (TD_PLANTED(WORKER_GENERATION)) {
        return false;
    }
    if (!r->attached) {
        return true; // it came to another process of this worker
    }
    if (inc != r->attached || c->generation < r->generation) {
        fail(s, trainer, inc, failed(worker, c->seq, TD_ECONFLICT),
             "a lower generation, or not yours");
        return true;
    }
    return false;
}

static void carry_out(struct sim *s, struct event *e) {
    const struct proc *p = &s->procs[e->proc];
    const struct command *c = e->msg->more;
    int trainer = p->index, worker = p->worker;
    uint32_t inc = (uint32_t)e->a;
    struct rank *r = &s->trainers[trainer].ranks[worker];
    if (refused(s, trainer, worker, inc, c)) {
        return;
    }
    switch (c->kind) {
    case TD_TC_SETUP:
        r->set_up = true;
        r->job = c->job;
        done(s, trainer, inc, worker, c->seq);
        break;
    case TD_TC_RING:
        done(s, trainer, inc, worker, c->seq);
        break;
    case TD_TC_LOAD:
        load(s, trainer, worker, inc, c);
        break;
    case TD_TC_PREP:
        prep(s, trainer, worker, inc, c);
        break;
    case TD_TC_STEP:
        step(s, trainer, worker, inc, c);
        break;
    case TD_TC_FINISH:
        finish(s, trainer, worker, inc, c);
        break;
    case TD_TC_DIGEST:
        digests(s, trainer, inc, worker, c->seq);
        break;
    case TD_TC_SAVE:
        save(s, trainer, inc, e);
        break;
    default:
        break;
    }
}

void rank_command(struct sim *s, int trainer, const struct td_trainc_effect *e) {
    struct trainer *t = &s->trainers[trainer];
    int proc = proc_of(RANK, trainer, (int)e->worker), from = proc_of(TRAINER, trainer, 0);
    if (!s->procs[proc].alive) {
        return;
    }
    check_works_for(s, from, e->job);
    struct msg *m = sim_msg();
    struct command *c = m->more = td_alloc(sizeof *c);
    *c = (struct command){.kind = e->kind,
                          .seq = e->seq,
                          .generation = e->generation,
                          .job = e->job,
                          .id = e->id,
                          .ref = e->ref,
                          .version = e->version,
                          .k = e->k};
    if (e->text) {
        strncpy(c->folder, e->text, sizeof c->folder - 1);
    }
    if (e->kind == TD_TC_PREP) {
        if (t->batch_round != e->round || !td_pos_equal(t->batch_ref, e->ref)) {
            sim_violation(s, "PREP of round %" PRIu64 " without its batch", e->round);
        }
        c->batch = t->batch;
    }
    int64_t delay = sim_between(s, 1, 6);
    if (e->kind != TD_TC_SAVE && sim_percent(s, s->p.late_command_percent)) {
        delay = sim_between(s, 20, 900);
    }
    sim_after(s, delay, proc, carry_out, m)->a = s->procs[from].inc;
}

// ---- up and down ----

static void attach(struct sim *s, struct event *e) {
    int trainer = s->procs[e->proc].index, worker = (int)e->a;
    int proc = proc_of(RANK, trainer, worker);
    if (!s->procs[proc].alive || s->procs[proc].inc != (uint32_t)e->b) {
        return;
    }
    // The thread that takes commands attaches; one in the middle of an update does it afterwards.
    const struct rank *busy = &s->trainers[trainer].ranks[worker];
    if (s->procs[proc].paused || busy->pending || busy->running) {
        struct event *again = sim_after(s, 50, e->proc, attach, NULL);
        again->a = (uint64_t)worker;
        again->b = s->procs[proc].inc;
        return;
    }
    struct rank *r = &s->trainers[trainer].ranks[worker];
    r->attached = e->inc;
    Tandem__Worker__Status st = TANDEM__WORKER__STATUS__INIT;
    Tandem__Worker__Version version = TANDEM__WORKER__VERSION__INIT;
    char address[32];
    version.lineage = r->version.lineage;
    version.step = r->version.step;
    st.version = &version;
    st.set_up = r->set_up;
    st.job = r->job;
    st.generation = r->generation;
    st.ref_offset = r->ref.offset;
    st.ref_crc = r->ref.crc;
    st.prepped = r->prepped;
    st.applied = r->applied;
    st.updates = r->updates;
    st.finished = r->finished;
    st.weight_digest = r->finished ? weights_of(r->state) : 0;
    st.state_digest = r->finished ? r->state : 0;
    st.finished_ref_offset = r->finished_ref.offset;
    st.finished_ref_crc = r->finished_ref.crc;
    snprintf(address, sizeof address, "rank %d of %d", worker, trainer);
    st.weights_address = address;
    struct td_trainc_event up = {
        .kind = TD_TC_WORKER_UP, .worker = (uint32_t)worker, .status = &st};
    trainer_event(s, e->proc, &up);
}

void rank_attach(struct sim *s, int trainer, int worker) {
    int proc = proc_of(TRAINER, trainer, 0);
    if (s->procs[proc].alive) {
        struct event *e = sim_after(s, sim_between(s, 3, 40), proc, attach, NULL);
        e->a = (uint64_t)worker;
        e->b = s->procs[proc_of(RANK, trainer, worker)].inc;
    }
}

static void roll_worker_up(struct sim *s, struct event *e) {
    struct roller *r = &s->rollers[s->procs[e->proc].index];
    int worker = (int)e->a;
    const struct proc *w = &s->procs[proc_of(ROLL_WORKER, s->procs[e->proc].index, worker)];
    if (!w->alive) {
        return;
    }
    r->workers[worker].attached = w->inc;
    Tandem__Worker__Status st = TANDEM__WORKER__STATUS__INIT;
    Tandem__Worker__Version version = TANDEM__WORKER__VERSION__INIT;
    st.set_up = true;
    st.has_weights = r->workers[worker].has;
    version.lineage = r->workers[worker].version.lineage;
    version.step = r->workers[worker].version.step;
    st.weights = &version;
    st.held_digest = r->workers[worker].weights;
    struct td_rolloutc_event up = {
        .kind = TD_RC_WORKER_UP, .worker = (uint32_t)worker, .status = &st};
    roller_event(s, e->proc, &up);
}

void roll_attach(struct sim *s, int roller, int worker) {
    int controller = proc_of(ROLLER, roller, 0);
    if (s->procs[controller].alive) {
        sim_after(s, sim_between(s, 3, 40), controller, roll_worker_up, NULL)->a = (uint64_t)worker;
    }
}

void rank_start(struct sim *s, int proc) {
    const struct proc *p = &s->procs[proc];
    if (p->kind == RANK) {
        s->trainers[p->index].ranks[p->worker] = (struct rank){0};
        rank_attach(s, p->index, p->worker);
        return;
    }
    s->rollers[p->index].workers[p->worker].has = false;
    s->rollers[p->index].workers[p->worker].prepared = 0;
    roll_attach(s, p->index, p->worker);
}

static void down(struct sim *s, struct event *e) {
    if (s->procs[e->b].alive) {
        return; // it is there again, and said so
    }
    if (s->procs[e->proc].kind == TRAINER) {
        struct td_trainc_event r = {.kind = TD_TC_WORKER_DOWN, .worker = (uint32_t)e->a};
        trainer_event(s, e->proc, &r);
    } else {
        struct td_rolloutc_event r = {.kind = TD_RC_WORKER_DOWN, .worker = (uint32_t)e->a};
        roller_event(s, e->proc, &r);
    }
}

static void start_again(struct sim *s, struct event *e) {
    sim_start(s, (int)e->a);
}

// A worker ended; its controller learns of it and it is started again.
void worker_lost(struct sim *s, int proc) {
    const struct proc *p = &s->procs[proc];
    int controller = proc_of(p->kind == RANK ? TRAINER : ROLLER, p->index, 0);
    int64_t found = sim_between(s, 1, 60);
    if (s->procs[controller].alive) {
        struct event *e = sim_after(s, found, controller, down, NULL);
        e->a = (uint64_t)p->worker;
        e->b = (uint64_t)proc;
    }
    sim_after(s, found + sim_between(s, 1, 300), -1, start_again, NULL)->a = (uint64_t)proc;
}
