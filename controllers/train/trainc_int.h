// Inside of the train controller machine; nothing outside this folder includes it.
// trainc.c: events and effects · ranks.c: what the ranks are told next · arrived.c: the rollout
// log · store.c: checkpoints, folders, metric lines · report.c: what the leader is told.
#ifndef TD_CONTROLLERS_TRAIN_TRAINC_INT_H
#define TD_CONTROLLERS_TRAIN_TRAINC_INT_H

#include "controllers/train/trainc.h"
#include "lib/journal/follow.h"

enum {
    TD_BAD_CHECKPOINTS_MAX = 16,
    TD_FOLDERS_MAX = 256,
    TD_PARTITIONS_MAX = 256,
    TD_PARTS_MAX = 1024,
    TD_WAIT_TEXT_MAX = 160,
};

// One seat, as far as its answers say.
struct td_rank {
    bool up, set_up, restarting;
    uint64_t job, generation;
    uint64_t ring; // generation of the ring made by this process
    struct td_version version;
    struct td_pos ref; // of the prep held, when prepped
    bool prepped;
    uint32_t applied, updates;
    bool digested; // the two digests are those of version
    uint64_t weight_digest, state_digest;
    bool finished; // version came out of finished_ref under this generation
    struct td_pos finished_ref;
    struct td_metrics *metrics; // owned; of the round that led to version; NULL: unknown
    char *weights;              // owned; where it serves its snapshots; NULL: it does not say
    // the command under way; seq 0: none
    uint64_t seq;
    enum td_trainc_effect_kind command;
    struct td_pos command_ref;
    uint32_t command_k;
};

struct td_tail { // of a partition
    uint32_t partition;
    int64_t offset;
};

struct td_part {
    bool seen;
    uint32_t partition;
    int64_t offset;
    uint32_t crc;
    uint64_t samples, tokens;
    double reward_sum;
};

// One attempt's records of a group. Rule A12: parts of two attempts are never joined; the producer
// belongs to the name because a restarted controller may repeat an attempt.
struct td_copy {
    uint64_t term, n, producer;
    uint64_t min_step, max_step;
    uint32_t parts, have;
    struct td_part *part; // owned
};

struct td_arrival { // all that lies in the log of one group
    struct td_group group;
    struct td_copy *copies;
    size_t copy_count, copy_cap;
    struct td_tail *low; // lowest position per partition of any copy or part
    size_t low_count, low_cap;
    bool reported;
};

struct td_arrivals {
    struct td_arrival *items; // sorted by group
    size_t count, cap;
    struct td_tail *tails; // next offset per partition
    size_t tail_count, tail_cap;
    uint64_t log;  // being read; 0: none
    uint64_t scan; // seq of its READ_ROLLOUT
    bool scanned;
    uint64_t pruned_step, pruned_lineage, pruned_dropped; // of the journal at the last clean-up
};

struct td_known_folder {
    char *name;
    uint64_t id, generation, step;
};

struct td_trainc {
    struct td_trainc_config config; // its pointers: owned copies
    struct td_follower follow;
    bool stopped;

    // What the journal gives to this member; job 0: nothing.
    uint64_t job, generation, lineage;
    struct td_train_plan plan;
    uint64_t may_load; // generation whose base this process may load: it saw it without one (A3)
    uint64_t loaded;   // generation whose base this process has told the ranks to load
    bool lost;
    char lost_cause[TD_WAIT_TEXT_MAX];
    char *failed;
    char *stop_cause; // to stop with, if the journal, read to its end, still gives the gang to here
    Tandem__Sync__Mismatch *mismatch;

    struct td_rank ranks[TD_TRAIN_RANKS_MAX];
    uint32_t rank_count; // of the gang
    uint64_t next_seq;

    // READ_ROUND
    uint64_t round; // asked for; 0: none
    struct td_pos round_ref;
    bool round_ready;
    uint32_t round_updates;
    struct td_metrics *round_metrics;
    // sealed records that cannot be read; missing_round 0: none
    uint64_t missing_round;
    struct td_pos missing_ref;
    uint32_t *missing;
    size_t missing_count;
    char *missing_cause;

    struct td_arrivals arrivals;

    // checkpoints
    uint64_t verifying, verified; // base of the current generation; 0: none
    uint64_t bad[TD_BAD_CHECKPOINTS_MAX];
    size_t bad_count;
    uint64_t save_count;
    Tandem__Journal__Checkpoint *saving; // told to rank 0
    bool saving_user;
    Tandem__Journal__Checkpoint *saved; // whole, to be journaled
    bool user_saved;
    struct td_version user_saved_version;
    uint64_t listed; // generation whose leader asked for the folders
    struct td_known_folder *folders;
    size_t folder_count, folder_cap;

    // metric lines
    bool disk_known;     // to this generation
    uint32_t disk_asked; // METRICS to come; the last of them counts
    struct td_metrics_on_disk disk;

    // orders
    uint64_t term;                // highest seen
    Tandem__Sync__Orders *closed; // the last that closed a step

    uint64_t report_count, report_digest;
    int64_t reported_ms;
    char waits_for[TD_WAIT_TEXT_MAX], wait_next[TD_WAIT_TEXT_MAX];
    int64_t since_ms;
};

// ---- trainc.c ----
struct td_trainc_effect *td_trainc_push(struct td_trainc_effects *out,
                                        enum td_trainc_effect_kind kind);
// What is waited for; the first call of a step counts.
void td_trainc_wait(struct td_trainc *x, const char *fmt, ...) TD_PRINTF(2, 3);
void td_trainc_stop(struct td_trainc *x, struct td_trainc_effects *out, const char *text);
// The job served, NULL: none.
const struct td_job_state *td_trainc_job(const struct td_trainc *x);
const struct td_gang_state *td_trainc_gang(const struct td_trainc *x);
void td_trainc_drop_round(struct td_trainc *x, struct td_trainc_effects *out);
void td_trainc_forget_missing(struct td_trainc *x);

// ---- ranks.c ----
void td_ranks_drive(struct td_trainc *x, struct td_trainc_effects *out);
void td_ranks_up(struct td_trainc *x, uint32_t worker, const Tandem__Worker__Status *status);
void td_ranks_down(struct td_trainc *x, uint32_t worker);
void td_ranks_answer(struct td_trainc *x, const struct td_trainc_event *event,
                     struct td_trainc_effects *out);
void td_ranks_fini(struct td_trainc *x);
void td_ranks_forget_commands(struct td_trainc *x);
void td_ranks_lose(struct td_trainc *x, const char *fmt, ...) TD_PRINTF(2, 3);
void td_ranks_fail(struct td_trainc *x, const char *fmt, ...) TD_PRINTF(2, 3);
// A command to one rank; the caller fills what is special to its kind.
struct td_trainc_effect *td_ranks_command(struct td_trainc *x, uint32_t rank,
                                          enum td_trainc_effect_kind kind,
                                          struct td_trainc_effects *out);
// Reads the sealed records of a round, or says why they are not there. true: ready.
bool td_ranks_round_ready(struct td_trainc *x, uint64_t round, struct td_pos ref,
                          struct td_trainc_effects *out);
bool td_ranks_loaded(const struct td_trainc *x);

// ---- arrived.c ----
void td_arrived_fini(struct td_arrivals *a);
// Starts to read where the newest kept checkpoint says (A8), when it does not already.
void td_arrived_follow(struct td_trainc *x, bool again, struct td_trainc_effects *out);
void td_arrived_record(struct td_trainc *x, const struct td_seen_record *record);
void td_arrived_scanned(struct td_trainc *x, const struct td_trainc_event *event);
// Forgets groups that cannot be sealed any more.
void td_arrived_prune(struct td_trainc *x);
// Forgets the copies that an unreadable sealed entry names.
void td_arrived_forget(struct td_trainc *x, const td_entry *entry);
// The entries for the report.
void td_arrived_report(struct td_trainc *x, Tandem__Sync__TrainReport *report);
// Rule A7.
void td_arrived_low_water(const struct td_trainc *x, Tandem__Journal__Checkpoint *out);

// ---- store.c ----
// Due saves at the head; true: one is under way, the ranks wait.
bool td_store_save(struct td_trainc *x, struct td_trainc_effects *out);
bool td_store_save_due(const struct td_trainc *x);
void td_store_saved(struct td_trainc *x, uint64_t manifest_digest);
// Is base fit to be loaded? false: being checked, or bad (then lost).
bool td_store_base_ok(struct td_trainc *x, const Tandem__Journal__Checkpoint *base,
                      struct td_trainc_effects *out);
void td_store_bad(struct td_trainc *x, uint64_t id, const char *why);
void td_store_folders(struct td_trainc *x, struct td_trainc_effects *out);
void td_store_listed(struct td_trainc *x, const struct td_trainc_event *event);
// The line of the version that the ranks are at is durable (or not wanted). false: not yet.
bool td_store_stage(struct td_trainc *x, uint64_t step, struct td_trainc_effects *out);
void td_store_read_lines(struct td_trainc *x, struct td_trainc_effects *out);
void td_store_close_lines(struct td_trainc *x, struct td_trainc_effects *out);
bool td_store_has_line(const struct td_trainc *x, uint64_t step);
// The disk was looked at, nothing is being written to it, and the head's line is there or waits for
// a leader's word that did not come yet.
bool td_store_lines_known(const struct td_trainc *x);
bool td_store_staged(const struct td_trainc *x, uint64_t step); // under the ref in force

// ---- report.c ----
void td_report_send(struct td_trainc *x, int64_t now_ms, struct td_trainc_effects *out);

#endif
