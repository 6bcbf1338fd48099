// A bench for the coordinator machine: a journal in memory that answers at once, and members whose
// reports the test writes.
#ifndef TD_TESTS_UNIT_COORDINATOR_BENCH_H
#define TD_TESTS_UNIT_COORDINATOR_BENCH_H

#include "coordinator/coordinator.h"
#include "lib/base/mem.h"

enum { COORDINATORS = 2, TRAIN = 0x71, ROLL = 0x80, JOB = 1, LOG = 0x106 };

struct bench {
    struct td_arena *arena;
    struct {
        uint8_t *bytes;
        size_t n;
        struct td_pos pos;
    } log[256];
    size_t log_count;
    bool hidden; // the last record is not to be seen before the next append
    struct td_journal_state truth;
    struct td_coordinator *c[COORDINATORS];
    bool cut[COORDINATORS]; // from the log: appends and fetches are not answered
    size_t read[COORDINATORS];
    int64_t now;
    struct td_job_plan plan;
    bool refuse_spec, assign;
    // what came out
    Tandem__Sync__Orders *orders[512]; // by member, the last; owned
    size_t orders_count;
    uint64_t accepted, ended_job;
    char refused[160], cause[512];
    enum _Tandem__Journal__Outcome outcome;
    int64_t trimmed;
    size_t rollout_trims;
};

void bench_init(struct bench *b);
void bench_fini(struct bench *b);
// Starts coordinator i.
void bench_start(struct bench *b, int i, bool at_once);
void bench_event(struct bench *b, int i, struct td_coordinator_event *e);
// Lets ms pass, a TICK each 50 ms, on all coordinators.
void bench_pass(struct bench *b, int64_t ms);
// rows 0: without an index.
void bench_submit(struct bench *b, int i, const char *request, uint64_t rows, uint64_t open_max);
Tandem__Journal__DataIndex *bench_index(struct bench *b, uint64_t rows);
// "INIT LEAD JOB ...": the accepted records but BEATs, from the from-th record on.
const char *bench_names(struct bench *b, size_t from);

// A report of the train member of what the journal says it should be at: loaded, nothing else.
Tandem__Sync__Report *bench_train(struct bench *b);
Tandem__Sync__Report *bench_roll(struct bench *b, uint64_t member, uint32_t capacity);
void bench_report(struct bench *b, int i, Tandem__Sync__Report *r);
// What training adds to a report: the version after the head, its line closed.
void bench_add_finished(struct bench *b, Tandem__Sync__Report *r);
void bench_add_arrived(struct bench *b, Tandem__Sync__Report *r, struct td_group group,
                       int64_t offset);
void bench_add_checkpoint(struct bench *b, Tandem__Sync__Report *r, uint64_t id);
void *bench_make(struct bench *b, size_t size);
const struct td_job_state *bench_job(const struct bench *b);

#endif
