// The rollout logs: one per job, a few partitions each. Parts of groups that land, are lost, come
// late or twice; records that cannot be read any more; readers that scan and then follow.
#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

uint32_t rollout_crc(struct td_group group, uint32_t part, uint64_t weights) {
    uint64_t h = td_hash_u64(td_hash_u64(0xC4C, group.data_epoch), group.index);
    return (uint32_t)td_hash_u64(td_hash_u64(h, part), weights);
}

static uint32_t partition_of(const struct rollout_record *r) {
    return (uint32_t)td_hash_u64(td_hash_u64(r->group.index, r->group.data_epoch), r->part) % NP;
}

static void schedule_pump(struct sim *s, int trainer);

static void land(struct sim *s, int job, const struct rollout_record *r) {
    struct partition *p = &s->rollout[job][partition_of(r)];
    TD_GROW(p->records, p->cap, p->count + 1);
    p->records[p->count] = *r;
    p->records[p->count++].landed_ms = s->now;
    sim_trace(s,
              "rollout log %d: %u:%zu group (%" PRIu64 ", %" PRIu64 ") part %u attempt %" PRIu64
              ".%" PRIu64 " step %" PRIu64,
              job, partition_of(r), p->count - 1, r->group.data_epoch, r->group.index, r->part,
              r->term, r->attempt, r->version.step);
    for (int i = 0; i < NT; i++) {
        schedule_pump(s, i);
    }
    fault_at_landing(s, job);
}

static void land_late(struct sim *s, struct event *e) {
    land(s, (int)e->a, e->msg->more);
}

// One part's append; false: its outcome is unknown to the producer.
static bool append(struct sim *s, int job, const struct rollout_record *r) {
    if (s->rollout_out) {
        return false;
    }
    if (!sim_percent(s, s->p.publish_percent)) {
        land(s, job, r);
        return true;
    }
    bool told = sim_below(s, 2);
    switch (sim_below(s, 3)) {
    case 0:
        land(s, job, r);
        land(s, job, r);
        return told;
    case 1:
        return false; // lost
    default: {
        struct msg *m = sim_msg();
        m->more = td_memdup(r, sizeof *r);
        sim_after(s, sim_between(s, 20, 2500), -1, land_late, m)->a = (uint64_t)job;
        return false;
    }
    }
}

static void published(struct sim *s, struct event *e) {
    struct td_rolloutc_event r = {.kind = TD_RC_PUBLISHED, .ticket = e->a, .ok = e->b != 0};
    roller_event(s, e->proc, &r);
}

static void publish(struct sim *s, struct event *e) {
    const struct ticket *t = e->msg->more;
    int job = job_index(s, t->job);
    bool ok = job >= 0;
    for (uint32_t part = 0; ok && part < s->p.parts; part++) {
        struct rollout_record r = {.group = t->group, .part = part, .parts = s->p.parts};
        r.crc = rollout_crc(t->group, part, t->weights);
        r.term = t->attempt.term;
        r.attempt = t->attempt.n;
        r.producer = e->c;
        r.version = t->version;
        r.weights = t->weights;
        ok = append(s, job, &r);
    }
    struct proc *p = &s->procs[e->a];
    if (p->alive && p->inc == (uint32_t)e->b) {
        struct event *r = sim_after(s, sim_between(s, 1, 5), (int)e->a, published, NULL);
        r->a = t->id;
        r->b = ok;
    }
}

void rollout_publish(struct sim *s, int proc, const struct ticket *t) {
    struct msg *m = sim_msg();
    m->more = td_memdup(t, sizeof *t);
    struct event *e = sim_after(s, sim_between(s, 1, 10), -1, publish, m);
    e->a = (uint64_t)proc;
    e->b = s->procs[proc].inc;
    e->c = s->rollers[s->procs[proc].index].producer;
}

// ---- readers ----

static void tell(struct sim *s, int trainer, uint32_t partition, int64_t offset) {
    struct trainer *t = &s->trainers[trainer];
    int job = job_index(s, t->scan_job);
    const struct rollout_record *r = &s->rollout[job][partition].records[offset];
    Tandem__Rollout__Header h = TANDEM__ROLLOUT__HEADER__INIT;
    Tandem__Rollout__Model model = TANDEM__ROLLOUT__MODEL__INIT, *models[] = {&model};
    model.name = (char *)"actor";
    model.lineage = r->version.lineage;
    model.step = r->version.step;
    h.log = sim_log_id(s, job);
    h.job = s->jobs[job].id;
    h.journal_id = s->truth.journal_id;
    h.data_epoch = r->group.data_epoch;
    h.index = r->group.index;
    h.part = r->part;
    h.parts = r->parts;
    h.attempt_term = r->term;
    h.attempt = r->attempt;
    h.producer = r->producer;
    h.n_models = 1;
    h.models = models;
    struct td_seen_record seen = {.scan = t->scan,
                                  .log = h.log,
                                  .partition = partition,
                                  .offset = offset,
                                  .crc = r->crc,
                                  .ok = !r->gone,
                                  .header = r->gone ? NULL : &h,
                                  .samples = SAMPLES / r->parts,
                                  .tokens = 10 * SAMPLES / r->parts};
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT, .record = &seen};
    trainer_event(s, proc_of(TRAINER, trainer, 0), &e);
}

static void tell_scanned(struct sim *s, int trainer) {
    struct trainer *t = &s->trainers[trainer];
    Tandem__Journal__LogPosition at[NP], *list[NP];
    for (uint32_t i = 0; i < NP; i++) {
        if (t->next[i] < t->scan_end[i]) {
            return;
        }
        tandem__journal__log_position__init(&at[i]);
        at[i].partition = i;
        at[i].offset = t->scan_end[i];
        list[i] = &at[i];
    }
    t->scanned = true;
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT_SCANNED,
                                .seq = t->scan,
                                .positions = (const Tandem__Journal__LogPosition *const *)list,
                                .position_count = NP};
    trainer_event(s, proc_of(TRAINER, trainer, 0), &e);
}

static void pump(struct sim *s, struct event *e) {
    int trainer = s->procs[e->proc].index;
    struct trainer *t = &s->trainers[trainer];
    t->pumping = false;
    int job = job_index(s, t->scan_job);
    if (!t->scan || job < 0) {
        return;
    }
    uint64_t scan = t->scan;
    bool more = false;
    for (uint32_t i = 0; i < NP; i++) {
        struct partition *p = &s->rollout[job][i];
        t->next[i] = t->next[i] < p->start ? p->start : t->next[i];
        for (int n = 0; n < 6 && t->next[i] < (int64_t)p->count && t->scan == scan; n++) {
            tell(s, trainer, i, t->next[i]++);
        }
        more = more || t->next[i] < (int64_t)p->count;
    }
    if (t->scan == scan && !t->scanned && s->procs[e->proc].alive) {
        tell_scanned(s, trainer);
    }
    if (more) {
        schedule_pump(s, trainer);
    }
}

static void schedule_pump(struct sim *s, int trainer) {
    struct trainer *t = &s->trainers[trainer];
    int proc = proc_of(TRAINER, trainer, 0);
    if (t->pumping || !t->scan || !s->procs[proc].alive) {
        return;
    }
    t->pumping = true;
    bool slow = s->procs[proc].slow && s->faults_on;
    sim_after(s, slow ? sim_between(s, 50, 500) : sim_between(s, 1, 6), proc, pump, NULL);
}

void rollout_follow(struct sim *s, int trainer, const struct td_trainc_effect *e) {
    struct trainer *t = &s->trainers[trainer];
    int job = job_index(s, e->job);
    t->scan = e->seq;
    t->scan_job = e->job;
    t->scanned = false;
    for (uint32_t i = 0; i < NP; i++) {
        const struct partition *p = &s->rollout[job][i];
        t->next[i] = p->start;
        t->scan_end[i] = (int64_t)p->count;
        for (size_t k = 0; k < e->position_count; k++) {
            int64_t from = e->positions[k]->offset;
            if (e->positions[k]->partition == i) {
                t->next[i] = from > (int64_t)p->count ? (int64_t)p->count : from;
            }
        }
    }
    schedule_pump(s, trainer);
}

void rollout_trim(struct sim *s, const struct td_coordinator_effect *e) {
    int job = job_index(s, e->job);
    for (size_t i = 0; i < e->position_count; i++) {
        uint32_t k = e->positions[i].partition;
        int64_t to = e->positions[i].offset;
        if (job >= 0 && k < NP && to > s->rollout[job][k].start) {
            sim_trace(s, "rollout log %d: %u trimmed below %" PRId64, job, k, to);
            s->rollout[job][k].start = to;
        }
    }
}

const struct rollout_record *rollout_at(const struct sim *s, int job,
                                        const Tandem__Journal__LogPosition *p) {
    if (p->partition >= NP) {
        return NULL;
    }
    const struct partition *part = &s->rollout[job][p->partition];
    bool there = p->offset >= part->start && p->offset < (int64_t)part->count;
    return there && !part->records[p->offset].gone ? &part->records[p->offset] : NULL;
}
