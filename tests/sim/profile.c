// What a seed decides before the first event: the job, and which faults there are at all. Not every
// schedule has every fault: rare combinations need the others out of the way.
#include "lib/base/mem.h"
#include "tests/sim/sim.h"

#include <string.h>

static uint32_t sometimes(struct td_rng *rng, uint32_t percent, uint32_t value) {
    return td_rng_below(rng, 100) < percent ? value : 0;
}

static void job_of(struct profile *p, struct td_rng *rng) {
    p->jobs = 1 + (td_rng_below(rng, 100) < 12);
    p->rows_job = td_rng_below(rng, 100) < 12;
    p->nondeterministic = td_rng_below(rng, 100) < 30;
    p->fork = td_rng_below(rng, 100) < 85;
    p->careless = td_rng_below(rng, 100) < 15;
    p->validation = td_rng_below(rng, 100) < 40;
    p->single = td_rng_below(rng, 100) < 20;
    p->parts = 1 + td_rng_below(rng, 2);
    p->batch = 2 + td_rng_below(rng, 3);
    p->unit = 1 + td_rng_below(rng, 3);
    p->rows = p->batch * 3 + td_rng_below(rng, 4);
    p->checkpoint_every = 1 + td_rng_below(rng, 3);
    p->save_freq = td_rng_below(rng, 3);
    p->state_every = 10 + td_rng_below(rng, 30);
    p->chunk = td_rng_below(rng, 2) ? 1 << 20 : 200 + td_rng_below(rng, 800);
}

// Daemons on gRPC. By numbers of its own, so that the other schedules stay what they were.
static void daemons(struct profile *p, uint64_t seed) {
    struct td_rng rng = {td_mix64(seed * 5 + 2)};
    p->trainers = NT;
    p->assign = !p->single && td_rng_below(&rng, 2);
    if (!p->assign) {
        return;
    }
    p->jobs = 1 + (td_rng_below(&rng, 100) < 40);
    p->trainers = 1 + (td_rng_below(&rng, 100) < 60);
    p->same_spec = td_rng_below(&rng, 2);
    p->trouble_percent = sometimes(&rng, 40, 25);
    p->other_files_percent = sometimes(&rng, 30, 20);
    p->index_percent = sometimes(&rng, 60, 40);
}

// Likewise.
static void poisons(struct profile *p, uint64_t seed) {
    struct td_rng rng = {td_mix64(seed * 7 + 3)};
    p->poison = !p->rows_job && td_rng_below(&rng, 100) < 5;
}

static void faults_of(struct profile *p, struct td_rng *rng) {
    p->fault_ms = 4000 + td_rng_below(rng, 16000);
    p->fault_gap_ms = 80 + td_rng_below(rng, 700);
    p->crash = sometimes(rng, 70, 3);
    p->pause = sometimes(rng, 60, 3);
    p->machine = sometimes(rng, 40, 1);
    p->tree = sometimes(rng, p->single ? 70 : 20, p->single ? 3 : 1);
    p->worker = sometimes(rng, 50, 3);
    p->lose_record = sometimes(rng, 40, 2);
    p->corrupt = sometimes(rng, 40, 1);
    p->outage = sometimes(rng, 40, 1);
    p->partition = sometimes(rng, 50, 2);
    p->slow = sometimes(rng, 50, 2);
    p->cancel = sometimes(rng, 4, 1);
    p->append_percent = sometimes(rng, 70, 25);
    p->publish_percent = sometimes(rng, 60, 20);
    p->loss_percent = sometimes(rng, 50, 10);
    p->dup_percent = sometimes(rng, 50, 10);
    p->stale_percent = sometimes(rng, 50, 10);
    p->late_command_percent = sometimes(rng, 40, 15);
    p->bad_snapshot_percent = sometimes(rng, 40, 15);
    p->trigger_percent = sometimes(rng, 60, 12);
    p->generate_ms = td_rng_below(rng, 100) < 25 ? 2500 : 60;
}

// ---- directed: schedules in which a rare condition is frequent ----

static void common(struct profile *p) {
    *p = (struct profile){.rounds = p->rounds,
                          .jobs = 1,
                          .trainers = NT,
                          .fork = true,
                          .parts = p->parts,
                          .batch = p->batch,
                          .unit = p->unit,
                          .rows = p->rows,
                          .checkpoint_every = 1,
                          .state_every = 40,
                          .chunk = 1 << 20,
                          .fault_ms = p->fault_ms,
                          .fault_gap_ms = 300,
                          .trigger_percent = 40,
                          .generate_ms = 60};
}

static void forks(struct profile *p) {
    p->nondeterministic = true;
    p->worker = 3;
    p->crash = 1;
    p->stale_percent = 20;
}

static void old_work(struct profile *p) {
    p->careless = true;
    p->worker = 1;
    p->fault_gap_ms = 100;
    p->trigger_percent = 25;
    p->stale_percent = 10;
}

// The newest checkpoint is bad, so that a redo starts before it.
static void deep_forks(struct profile *p) {
    forks(p);
    p->corrupt = 3;
    p->crash = 0;
}

static void careless_forks(struct profile *p) {
    forks(p);
    p->careless = true;
}

static void single_groups(struct profile *p) {
    p->unit = 1;
    p->batch = 4;
    p->rows = 14;
}

static void low_water(struct profile *p) {
    p->worker = 3;
    p->generate_ms = 1500;
    single_groups(p);
}

static void folders(struct profile *p) {
    p->crash = 3;
    p->stale_percent = 40;
}

static void rescan(struct profile *p) {
    p->crash = 3;
    single_groups(p);
    p->parts = 1;
    p->generate_ms = 400;
}

static void takeover(struct profile *p) {
    p->crash = 2;
    p->outage = 1;
    p->trigger_percent = 0;
    p->generate_ms = 2500;
    single_groups(p);
}

// Submissions whose leader dies, or whose answers do, while their files are read.
static void submissions(struct profile *p) {
    p->assign = true;
    p->jobs = NJ;
    p->index_percent = 30;
    p->crash = 3;
    p->fault_gap_ms = 150;
    p->loss_percent = 15;
    p->stale_percent = 15;
    p->append_percent = 25;
}

// Between the updates of the ranks.
static void half_applied(struct profile *p) {
    p->crash = 2;
    p->trigger_percent = 60;
}

static const struct {
    const char *name;
    void (*direct)(struct profile *p);
} directed[] = {
    {"COMMIT_REF", old_work},
    {"COMMIT_GENERATION", old_work},
    {"CHECKPOINT_GENERATION", old_work},
    {"RESTORE_KEPT", old_work},
    {"COMMIT_LINEAGE", careless_forks},
    {"FORK_LINEAGE", forks},
    {"FORK_PRUNES", deep_forks},
    {"LOW_WATER", low_water},
    {"FOLDER_DELETION", folders},
    {"RESCAN", rescan},
    {"RESEAL_VOIDS", old_work},
    {"TAKEOVER_EXPIRES", takeover},
    {"INDEX_TWICE", submissions},
    {"HALF_APPLIED", half_applied},
};

static void direct(struct profile *p, uint64_t seed) {
    size_t n = sizeof directed / sizeof *directed;
    for (size_t i = 0; i < n; i++) {
        bool chosen = strcmp(p->focus, directed[i].name) == 0 ||
                      (strcmp(p->focus, "each") == 0 && seed % n == i);
        if (chosen) {
            common(p);
            directed[i].direct(p);
            return;
        }
    }
}

struct profile profile_of(uint64_t seed, uint64_t rounds, const char *focus) {
    struct td_rng rng = {td_mix64(seed * 3 + 1)};
    struct profile p = {.rounds = rounds, .focus = focus ? focus : ""};
    job_of(&p, &rng);
    faults_of(&p, &rng);
    daemons(&p, seed);
    poisons(&p, seed);
    direct(&p, seed);
    return p;
}

bool sim_plan_coordinator(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out) {
    const struct sim *s = user;
    *out = (struct td_job_plan){
        .rows_job = s->p.rows_job,
        .train_batch_size = s->p.batch,
        .total_steps = s->p.rounds,
        .val_rows = s->p.validation && !s->p.rows_job ? 3 : 0,
        .test_freq = 2,
        .val_before_train = s->p.unit == 2,
        .unit_groups = s->p.unit,
        .lease_ms = 1200,
        .fork_on_mismatch = s->p.fork,
        .max_attempts = s->p.poison ? ATTEMPTS : 0,
    };
    return job->spec.len == 2;
}

bool sim_poisoned(const struct sim *s, uint64_t job, bool eval, struct td_group group) {
    bool first = s->jobs[0].id == job;
    return s->p.poison && first && !eval && group.data_epoch == 0 && group.index == s->p.batch;
}

bool sim_plan_train(void *user, const void *spec, size_t n, struct td_train_plan *out) {
    const struct trainer *t = user;
    const struct sim *s = t->sim;
    *out = (struct td_train_plan){
        .total_steps = s->p.rounds,
        .checkpoint_every = s->p.checkpoint_every,
        .save_freq = s->p.save_freq,
        .samples = SAMPLES,
    };
    return n == 2 && (!s->p.assign || memcmp(spec, t->spec, n) == 0);
}

void spec_index(const struct sim *s, const uint8_t spec[2], Tandem__Journal__DataIndex *out) {
    tandem__journal__data_index__init(out);
    out->rows = s->p.rows;
    out->data_digest = 0xDA + (uint64_t)spec[0] + 256 * (uint64_t)spec[1];
}

void sim_index(const struct sim *s, int job, Tandem__Journal__DataIndex *out) {
    uint8_t unchanged[2] = {(uint8_t)job};
    spec_index(s, s->jobs[job].id ? s->jobs[job].spec : unchanged, out);
}

int sim_job_of_member(const struct sim *s, int index) {
    return s->p.jobs == 1 ? 0 : index;
}

uint64_t sim_log_id(const struct sim *s, int job) {
    return s->p.rows_job ? 0 : 0x106 + (uint64_t)job;
}
