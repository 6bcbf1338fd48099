// A journal in memory for tests: short builders of records, and one reader that applies them.
#ifndef TD_TESTS_UNIT_JOURNAL_KIT_H
#define TD_TESTS_UNIT_JOURNAL_KIT_H

#include "lib/base/mem.h"
#include "lib/journal/state.h"

enum { KIT_ROWS = 10, KIT_JOB = 7, KIT_LOG = 0x106, KIT_ME = 0xA, KIT_OTHER = 0xB };

struct kit_record {
    struct td_pos pos;
    uint8_t *bytes; // in the arena
    size_t n;
};

struct kit {
    struct td_arena *arena;
    struct td_journal_state state;
    struct kit_record *log;
    size_t log_count, log_cap;
    char why[256];
};

void kit_init(struct kit *k);
void kit_fini(struct kit *k);

// Gives the record its header (owner KIT_ME), appends it to the log and applies it.
enum td_verdict kit_put(struct kit *k, td_record *r);
// Appends it as it is.
enum td_verdict kit_put_raw(struct kit *k, td_record *r);
// Applies record i of the log to s.
enum td_verdict kit_read(const struct kit *k, size_t i, struct td_journal_state *s, char *why);

// What tests change of a record before it is put: all builders return records whose parts may be
// written to.
td_record *kit_init_record(struct kit *k, uint64_t journal_id, uint64_t term_floor);
td_record *kit_lead(struct kit *k);
td_record *kit_beat(struct kit *k);
td_record *kit_job(struct kit *k, uint64_t job, const char *request);
td_record *kit_gang(struct kit *k, uint64_t generation);
td_record *kit_restore(struct kit *k, uint64_t generation, uint64_t checkpoint);
td_record *kit_draw(struct kit *k, uint64_t epoch, uint64_t from, uint64_t to);
td_record *kit_drop(struct kit *k, uint64_t epoch, uint64_t from, uint64_t to);
// Groups from … to−1 of data epoch 0; group i lies at offset 100 + i of partition 0, made at step.
td_record *kit_seal(struct kit *k, uint64_t round, uint64_t from, uint64_t to, uint64_t step);
td_record *kit_reseal(struct kit *k, uint64_t round, uint64_t from, uint64_t to);
// Of the round's seal in force, under the current generation and lineage.
td_record *kit_commit(struct kit *k, uint64_t step);
td_record *kit_checkpoint(struct kit *k, uint64_t id, uint64_t step);
td_record *kit_fork(struct kit *k, uint64_t from);
td_record *kit_end(struct kit *k, enum _Tandem__Journal__Outcome outcome);
td_record *kit_state(struct kit *k, uint32_t part, uint32_t parts, const void *bytes, size_t n);

td_entry *kit_entry(struct kit *k, uint64_t epoch, uint64_t index, uint64_t step);

enum kit_stage {
    KIT_LED,
    KIT_JOBBED,
    KIT_GANGED,
    KIT_BASED,
    KIT_STARTED, // COMMIT of step 0
    KIT_DRAWN,   // 0..5 open
    KIT_SEALED,  // round 1 = 0, 1
    KIT_STEP1,
    KIT_KEPT1,  // checkpoint 0xC1 of step 1
    KIT_STEP2,  // round 2 = 2, 3
    KIT_KEPT2,  // checkpoint 0xC2 of step 2; 0xC1 is the oldest
    KIT_STEP3,  // round 3 = 4, 5, committed
    KIT_FORKED, // lineage 1, from step 2
};
void kit_go(struct kit *k, enum kit_stage stage);

#endif
