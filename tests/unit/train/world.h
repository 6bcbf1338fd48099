// A world for the train controller machine: a journal with a leader that does as it is told,
// workers that keep rule A4, a rollout log, a disk. Effects are carried out in order; each leaves a
// word in the trace.
#ifndef TD_TESTS_TRAIN_WORLD_H
#define TD_TESTS_TRAIN_WORLD_H

#include "tests/unit/cmocka_all.h"

#include <stdbool.h>

#include "controllers/train/trainc.h"
#include "lib/base/buf.h"

enum {
    WORLD_MEMBER = 7,
    WORLD_JOB = 1,
    WORLD_LOG = 99,
    WORLD_RANKS = 2,
    WORLD_UPDATES = 2,
    WORLD_BATCH = 2,
    WORLD_RECORDS_MAX = 4096,
    WORLD_FOLDERS_MAX = 256,
    WORLD_QUEUE_MAX = 1024,
    WORLD_INITIAL_STATE = 777,
};

struct world_worker {
    bool running, set_up;
    uint64_t job, generation;
    struct td_version version;
    struct td_pos ref, finished_ref;
    bool prepped, finished;
    uint32_t applied;
    uint64_t state, next, batch; // state: of the version; next: with the updates so far
    uint32_t starts;             // processes before this one
    uint64_t stepping;           // seq of the STEP that waits for the other ranks; 0: none
    bool salted;                 // not deterministic: other digests than the first time
};

struct world_record { // of the rollout log
    struct td_group group;
    uint64_t step, attempt, producer;
    uint32_t partition, part, parts, crc;
    int64_t offset;
    bool gone;
};

struct world_folder {
    char name[96];
    uint64_t id, generation, step, state;
    bool there, corrupt;
};

struct world {
    struct td_trainc *x;
    uint64_t incarnation;
    int64_t now_ms;
    struct td_train_plan plan;
    bool rows;
    // journal
    struct td_journal_state lead;
    struct td_buf journal[WORLD_RECORDS_MAX];
    struct td_pos positions[WORLD_RECORDS_MAX];
    size_t journal_count, journal_read;
    // workers
    uint32_t workers;
    uint64_t serves; // td_trainc_config.job
    struct world_worker worker[4];
    bool attached[4];
    // rollout log
    struct world_record rollout[WORLD_RECORDS_MAX];
    size_t rollout_count, rollout_read;
    int64_t next_offset[2];
    int64_t scan_from[2];
    uint64_t scan, scan_seq; // scan_seq: its end is to be told
    // disk
    struct world_folder folders[WORLD_FOLDERS_MAX];
    size_t folder_count;
    uint64_t user_saves[64];
    size_t user_save_count;
    struct td_metrics_on_disk disk;
    struct td_metrics staged;
    uint64_t lines[256];
    double line_loss[256]; // metric "loss" of the line
    size_t line_count;
    // what the machine wants done
    struct td_trainc_effect queue[WORLD_QUEUE_MAX];
    size_t queue_count;
    struct td_buf trace;
    Tandem__Sync__Report *report; // the last one; owned
    uint64_t reports;
    char *stopped;
    uint64_t batches[256]; // what each committed step was trained on
};

// A world with a job (and a machine that has read its journal), no gang yet.
struct world *world_new(uint32_t ranks);
void world_free(struct world *w);
// The controller's process ends; its workers live on.
void world_crash(struct world *w);
// A new process: reads the journal, attaches to the workers that run.
void world_start(struct world *w);
void world_worker_dies(struct world *w, uint32_t i); // and a blank one comes up
void world_disconnect(struct world *w, uint32_t i);  // it lives on; attached again
void world_attach(struct world *w, uint32_t i);

// Carries out effects until none is left, or one of this kind comes up (it stays; −1: none).
// Returns whether it stopped there.
bool world_run_until(struct world *w, int kind);
void world_run(struct world *w);
void world_read(struct world *w); // the journal, before any effect
// Carries out the first effect that is left.
void world_run_one(struct world *w);
// As if the first effect were carried out, but its answer got lost.
void world_lose_answer(struct world *w);
void world_event(struct world *w, const struct td_trainc_event *e);
void world_tick(struct world *w);
// The trace since the last call.
const char *world_trace(struct world *w);
bool world_traced(const struct world *w, const char *word);

// The leader's records. All are accepted.
void world_gang(struct world *w, uint64_t member);
void world_restore(struct world *w, uint64_t checkpoint);
void world_draw(struct world *w, uint64_t n);
void world_drop(struct world *w, uint64_t index);
void world_seal(struct world *w); // the next batch, from what the report says has arrived
void world_reseal(struct world *w, uint64_t round); // the same groups again
void world_commit(struct world *w);                 // what the report says is finished
void world_checkpoint(struct world *w);
void world_fork(struct world *w, uint64_t from);
void world_end(struct world *w);
void world_close_step(struct world *w); // orders: head closed

void world_publish(struct world *w, uint64_t index, uint64_t step, uint64_t attempt);
void world_publish_part(struct world *w, const struct world_record *r);
// Draws, publishes and seals the next batch; needs a report with its arrivals.
void world_next_round(struct world *w);
// GANG, RESTORE, load, COMMIT of step 0.
void world_to_commit0(struct world *w);
// The same, and its line closed.
void world_to_step0(struct world *w);
// One whole round from the head on: sealed, trained, committed, closed.
void world_round(struct world *w);

const struct td_job_state *world_job(const struct world *w);
const Tandem__Sync__TrainReport *world_report(const struct world *w);
// The state that the rounds up to step must give.
uint64_t world_expected(const struct world *w, uint64_t step);
// What a round trains on.
uint64_t world_batch_of(const struct td_round_state *r);
void world_add_job(struct world *w); // INIT, LEAD, JOB
uint64_t world_weight_digest(uint64_t state);
uint64_t world_state_digest(uint64_t state);

#endif
