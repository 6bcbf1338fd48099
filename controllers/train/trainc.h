// The train controller as a pure machine: follows the journal, leads the train gang that the
// journal gives to this member, tells its ranks what to load, prepare, train and save, watches the
// rollout log for groups that lie whole in it, and reports all of it. It needs no order to know
// what is sealed. No I/O, clock, threads or globals: events and the time come in through
// td_trainc_step, all that is to be done comes out as effects.
//
// Where it stands is worked out anew after every event from the journal's state and from what the
// ranks say of themselves, never from what it remembers to have asked (rule A1). So a restarted
// controller that attaches to its old workers simply goes on.
#ifndef TD_CONTROLLERS_TRAIN_TRAINC_H
#define TD_CONTROLLERS_TRAIN_TRAINC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/journal/record.h"
#include "lib/journal/state.h"
#include "lib/rl/loss.h"
#include "proto/rollout.pb-c.h"
#include "proto/sync.pb-c.h"
#include "proto/worker.pb-c.h"

struct td_trainc;

enum { TD_TRAIN_RANKS_MAX = 64 };

// What the machine needs to know of a job's spec.
struct td_train_plan {
    uint64_t total_steps;
    uint64_t checkpoint_every; // recovery checkpoint each so many steps; 0: never
    uint64_t save_freq;        // user's checkpoint each so many steps and at the last; 0: never
    uint32_t samples;          // per group; a record with another number is passed over. 0: any
};

struct td_trainc_config {
    uint64_t member;      // of this controller, never 0
    uint64_t incarnation; // random per process start, never 0: checkpoint ids and folders
    uint64_t job;     // the one that this member serves, whose folders it has; 0: any that it knows
    uint32_t workers; // seats; rank r of the gang sits on worker r
    const char *build, *device;              // copied
    const Tandem__Journal__DataIndex *index; // what this member's files are; copied; NULL: unknown
    uint64_t expect_journal_id;              // STOP when the log has another; 0: any
    int64_t report_ms;                       // a REPORT at least so often
    // The plan of a job found in the journal. false: the spec is not understood; the job is left
    // alone. Called with the user pointer; pure.
    bool (*plan_of)(void *user, const void *spec, size_t n, struct td_train_plan *out);
    void *user;
};

// ---- events: what happened. All pointers are borrowed for the call. ----
enum td_trainc_event_kind {
    TD_TC_JOURNAL_START,   // offset: the reader was (re)set; the log's first record is there
    TD_TC_JOURNAL_RECORD,  // pos, bytes, n
    TD_TC_JOURNAL_END,     // offset: reply to FETCH_END; that of the next record to be appended
    TD_TC_ROLLOUT,         // record: the next one of a partition
    TD_TC_ROLLOUT_SCANNED, // seq (of READ_ROLLOUT), positions: the end that the log had when
                           // READ_ROLLOUT came is reached
    TD_TC_WORKER_UP,       // worker, status: attached (again)
    TD_TC_WORKER_DOWN,     // worker: dead, silent for too long, or its connection broke
    TD_TC_DONE,            // worker, seq: SETUP, RING, LOAD, PREP or STEP was carried out
    TD_TC_DIGESTED,        // worker, seq, digests, metrics: FINISH or DIGEST was
    TD_TC_SAVED,           // seq, manifest_digest: the folder is whole, its manifest was put last
    TD_TC_FAILED,          // worker, seq, rc, text: a command was not carried out
    TD_TC_CHECKPOINT_READ, // id, ok, text: reply to VERIFY
    TD_TC_FOLDERS,         // folders: recovery folders on the disk; reply to LIST_FOLDERS
    TD_TC_ORDERS,          // orders
    TD_TC_METRICS,         // metrics: what is on the disk; after each of READ_METRICS,
                           // STAGE_METRICS, CLOSE_METRICS, CUT_METRICS
    TD_TC_ROUND_READ,      // round: reply to READ_ROUND
    TD_TC_TICK,            // every few hundred ms
};

// One record of the rollout log, decoded and checked by the shell.
struct td_seen_record {
    uint64_t scan; // seq of the READ_ROLLOUT that it answers; others are passed over
    uint64_t log;
    uint32_t partition;
    int64_t offset;
    uint32_t crc;
    bool ok;                               // false: unreadable; only the position counts
    const Tandem__Rollout__Header *header; // when ok
    uint64_t samples, tokens;              // of this part; tokens: trainable ones
    double reward_sum;
};

struct td_folder {
    const char *name;
    uint64_t id, generation, step; // from the name
};

struct td_metrics_on_disk {
    bool has_line; // step: that of the last line of metrics.jsonl
    uint64_t step;
    bool has_staged; // a staged line of (staged_step, staged_ref) is durable
    uint64_t staged_step;
    struct td_pos staged_ref; // step 0: {-1, 0}
};

// One batch per rank of the round's sealed records (or rows) lies ready in the shell, or not.
struct td_round_read {
    uint64_t job, round;
    struct td_pos ref;
    bool ok;
    uint32_t updates;                 // ok: of the batches, ≥ 1, equal on all ranks
    const struct td_metrics *metrics; // ok: of the batch (rewards, lengths); may be NULL
    const uint32_t *missing;          // !ok: numbers of the entries that cannot be read
    size_t missing_count;
    const char *cause; // !ok: position, expected and found CRC of the first
};

struct td_trainc_event {
    enum td_trainc_event_kind kind;
    int64_t offset;
    struct td_pos pos;
    const void *bytes;
    size_t n;
    const struct td_seen_record *record;
    const Tandem__Journal__LogPosition *const *positions; // next offset per partition
    size_t position_count;
    uint32_t worker;
    uint64_t seq; // of the effect that this answers
    const Tandem__Worker__Status *status;
    uint64_t weight_digest, state_digest, manifest_digest;
    const Tandem__Worker__Metric *const *worker_metrics; // FINISH: of the whole round
    size_t worker_metric_count;
    enum td_rc rc;
    const char *text;
    uint64_t id;
    bool ok;
    const struct td_folder *folders;
    size_t folder_count;
    const Tandem__Sync__Orders *orders;
    const struct td_metrics_on_disk *metrics;
    const struct td_round_read *round;
};

// ---- effects: what is to be done, in this order. ----
enum td_trainc_effect_kind {
    TD_TC_FETCH_END,
    TD_TC_JOURNAL_RESET, // make the reader start again at the log's start
    TD_TC_STOP,          // text: this process cannot go on; started again later it will
    TD_TC_READ_ROLLOUT,  // seq, job, log, positions: read on from there, until told otherwise.
                         // Partitions without a position: from their start
    TD_TC_READ_ROUND, // job, round, ref: fetch the sealed records (or rows), check them, build one
                      // batch per rank (ranks). The entries stand in td_trainc_journal
    TD_TC_DROP_ROUND, // the batches of READ_ROUND are not needed any more
    // commands to one worker; each is answered by one event with its seq. Answers with another seq
    // are passed over, and a command that was never answered needs no answer after WORKER_DOWN.
    TD_TC_SETUP,  // job, worker, ranks
    TD_TC_RING,   // generation, worker, ranks: the shell collects addresses; one rank: none
    TD_TC_LOAD,   // generation, version of the base, text = folder ("": the initial state)
    TD_TC_PREP,   // key, round: with this rank's batch
    TD_TC_STEP,   // key, k
    TD_TC_FINISH, // key, version: becomes (lineage, round)
    TD_TC_DIGEST, // answered by DIGESTED without metrics
    TD_TC_SAVE,   // text = folder, user: recovery folder or the user's export. checkpoint: what the
                  // manifest says (id, version, generation, state digest, positions). The worker
                  // writes, the shell puts the manifest last, with the state of td_trainc_journal
                  // in it. user: a folder that is whole for this state digest is SAVED at once
    TD_TC_RESTART_WORKER, // worker: it belongs to another job; stop it and start a new one
    TD_TC_VERIFY,         // id, text = folder, digest: check manifest and files; CHECKPOINT_READ
    TD_TC_LIST_FOLDERS,   // answered by FOLDERS
    TD_TC_DELETE_FOLDER,  // text: rm -r
    TD_TC_READ_METRICS,   // answered by METRICS. Once a gang is led from here, not before: the
                          // member that led until then may still write
    TD_TC_STAGE_METRICS,  // round = step, ref, metrics: make the line durable, beside metrics.jsonl
    TD_TC_CLOSE_METRICS,  // round = step, eval: append the staged line (with the validation's
                          // scores)
    TD_TC_CUT_METRICS,    // round = step: lines of later steps go
    TD_TC_REPORT,         // report
};

struct td_trainc_effect { // owns text, positions, checkpoint, metrics, orders, report
    enum td_trainc_effect_kind kind;
    uint64_t seq;
    uint32_t worker, ranks, k;
    uint64_t job, round, generation, log, id, digest;
    struct td_version version;
    struct td_pos ref; // with generation: the key of PREP, STEP, FINISH
    bool user;
    char *text;
    Tandem__Journal__LogPosition **positions;
    size_t position_count;
    Tandem__Journal__Checkpoint *checkpoint;
    struct td_metrics *metrics;
    Tandem__Sync__Orders *orders; // CLOSE_METRICS: eval of these; NULL: no validation was due
    Tandem__Sync__Report *report;
};

struct td_trainc_effects {
    struct td_trainc_effect *items;
    size_t count, cap;
};

// Any thread, but one at a time. config is copied.
struct td_trainc *td_trainc_new(const struct td_trainc_config *config);
void td_trainc_free(struct td_trainc *x);

// One event. Effects are appended to *out (zeroed by the caller at first).
void td_trainc_step(struct td_trainc *x, const struct td_trainc_event *event, int64_t now_ms,
                    struct td_trainc_effects *out);
// Releases the effects; *out may be used again.
void td_trainc_effects_fini(struct td_trainc_effects *out);

// The journal as this controller has read it; borrowed until the next step.
const struct td_journal_state *td_trainc_journal(const struct td_trainc *x);

// What the controller does and waits for.
struct td_train_view {
    uint64_t job; // 0: none
    uint64_t generation;
    uint64_t round; // under way; 0: none
    uint32_t k, updates;
    bool redo;           // round ≤ head
    char waits_for[160]; // "worker 1 to come up", "" while nothing is waited for
    int64_t since_ms;
};
void td_trainc_view(const struct td_trainc *x, struct td_train_view *out);

#endif
