// The coordinator as a pure machine: leads by a record in the journal, decides for every job what
// is appended next, leases units to rollout members. No I/O, clock, threads or globals: events and
// the time come in through td_coordinator_step, all that is to be done comes out as effects. Every
// decision is made from the journal's state, never from a reply (rule A1), and only once the log
// was read to an end (A2); each record is asked of td_journal_allows before it is appended.
#ifndef TD_COORDINATOR_COORDINATOR_H
#define TD_COORDINATOR_COORDINATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/journal/record.h"
#include "lib/journal/state.h"
#include "proto/sync.pb-c.h"

struct td_coordinator;

// What the machine needs to know of a job's spec.
struct td_job_plan {
    bool rows_job;             // trains on rows of the data index (SFT); else on groups
    uint64_t train_batch_size; // groups (rows) a step, ≥ 1
    uint64_t total_steps;
    uint64_t val_rows;  // rows of validation; 0: none
    uint64_t test_freq; // every so many steps and at the last; 0: never
    bool val_before_train;
    uint64_t unit_groups;  // groups of a unit, ≥ 1
    int64_t lease_ms;      // a member silent for that long loses its units
    bool fork_on_mismatch; // else a redo that differs ends the job
    // A group, or the train gang, that failed so often in a row ends the job; 0: none does.
    uint64_t max_attempts;
    bool shuffle; // which row a group stands for, for people
    uint64_t seed;
};

enum {
    TD_MEMBERS_MAX = 1024,
    TD_SUBMITS_MAX = 64,
    TD_MEMBER_UNITS_MAX = 1024,  // leased to one member: a rollout controller takes no more
    TD_LEASE_GROUPS_MAX = 4096,  // groups of one, likewise
    TD_SPEC_BYTES_MAX = 1 << 20, // of a submission
};

struct td_coordinator_config {
    uint64_t owner;             // random per process start, never 0
    uint64_t create_journal_id; // INIT with this id when the log is empty at its end; 0: never
    uint64_t expect_journal_id; // STOP when the log has another; 0: any
    bool lead_at_once;          // `tandem run`: no take-over time, no falling silent
    bool assign; // members are told which job to serve; else each has its job's files
    int64_t takeover_ms, beat_ms, member_timeout_ms;
    uint64_t state_every;       // records between two STATEs; 0: never
    uint64_t state_chunk_bytes; // largest State.chunk; 0: 8 MiB
    // The plan of a job. false: the spec is not understood; the job is left alone. Called with the
    // user pointer; pure. job->index is NULL as long as no member has read its files.
    bool (*plan_of)(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out);
    // Digest of row (data epoch, index in its permutation) for SEALs of rows jobs; NULL: 0.
    uint64_t (*row_digest)(void *user, uint64_t job, struct td_group row);
    void *user;
};

enum td_coordinator_event_kind {
    TD_CO_JOURNAL_START,  // offset: the reader was (re)set; the log's first record is there
    TD_CO_JOURNAL_RECORD, // pos, bytes
    TD_CO_JOURNAL_END,    // offset: reply to FETCH_END; that of the next record to be appended
    TD_CO_APPENDED,       // ok with pos.offset, or unknown: reply to APPEND
    TD_CO_REPORT,         // report
    TD_CO_SUBMIT,         // submit
    TD_CO_CANCEL,         // job
    TD_CO_TICK,           // every few hundred ms, and at td_coordinator_wake_ms
};

struct td_submit {
    const char *request_id; // a repeated one is the same job
    const void *spec;       // tandem.job.Spec
    size_t spec_bytes;
    const Tandem__Journal__DataIndex *index; // NULL (with assign): a member reads the files first
    uint64_t max_staleness, rollout_log;
    uint64_t open_max; // 0: one batch and one data epoch
};

struct td_coordinator_event { // all pointers are borrowed for the call
    enum td_coordinator_event_kind kind;
    int64_t offset;
    struct td_pos pos;
    const void *bytes;
    size_t n;
    bool ok;
    const Tandem__Sync__Report *report;
    const struct td_submit *submit;
    uint64_t job;
};

enum td_coordinator_effect_kind {
    TD_CO_FETCH_END,
    TD_CO_JOURNAL_RESET, // make the reader start again at the log's start
    TD_CO_STOP,          // text: the journal is damaged or another one
    TD_CO_APPEND,        // bytes; answer by APPENDED
    TD_CO_TRIM_JOURNAL,  // offset: everything below may go
    TD_CO_TRIM_ROLLOUT,  // job, positions: per partition, everything below may go
    TD_CO_ORDERS,        // member, orders: the answer to its report, or unasked after a change
    TD_CO_JOB_ACCEPTED,  // text = request id, job
    TD_CO_JOB_REFUSED,   // text = request id, cause
    TD_CO_JOB_ENDED,     // job, outcome, cause
};

struct td_log_position {
    uint32_t partition;
    int64_t offset;
};

struct td_coordinator_effect { // owns bytes, text, cause, orders, positions
    enum td_coordinator_effect_kind kind;
    int64_t offset;
    uint8_t *bytes;
    size_t n;
    char *text, *cause;
    uint64_t job, member;
    Tandem__Sync__Orders *orders;
    struct td_log_position *positions;
    size_t position_count;
    enum _Tandem__Journal__Outcome outcome;
};

struct td_coordinator_effects {
    struct td_coordinator_effect *items; // in the order in which they are to be executed
    size_t count, cap;
};

struct td_coordinator *td_coordinator_new(const struct td_coordinator_config *config);
void td_coordinator_free(struct td_coordinator *c);

// One event. Effects are appended to *out (zeroed by the caller at first).
void td_coordinator_step(struct td_coordinator *c, const struct td_coordinator_event *event,
                         int64_t now_ms, struct td_coordinator_effects *out);
// Releases the effects; *out may be used again.
void td_coordinator_effects_fini(struct td_coordinator_effects *out);

// When a TICK is useful next, at the latest; INT64_MAX: none is.
int64_t td_coordinator_wake_ms(const struct td_coordinator *c);

// Whether this process leads, as far as its state says.
bool td_coordinator_leads(const struct td_coordinator *c);
// What it has waited for in vain for a take-over time, before it can read or write the journal;
// NULL: nothing. Borrowed until the next step.
const char *td_coordinator_log_trouble(const struct td_coordinator *c);
const struct td_journal_state *td_coordinator_state(const struct td_coordinator *c);

// What a job waits for.
enum td_wait {
    TD_WAIT_NOTHING,
    TD_WAIT_JOURNAL,    // the log: to be read, or an append to be answered
    TD_WAIT_LEADER,     // this process does not lead
    TD_WAIT_TRAINER,    // an eligible train member
    TD_WAIT_LOAD,       // the gang loads its base and redoes rounds
    TD_WAIT_SCAN,       // the train member reads the rollout log
    TD_WAIT_ROLLOUT,    // an eligible rollout member with room
    TD_WAIT_GROUPS,     // leased groups to arrive
    TD_WAIT_TRAINING,   // the round's COMMIT
    TD_WAIT_RECORDS,    // lost rollout records of a sealed round to come again
    TD_WAIT_VALIDATION, // EVAL units
    TD_WAIT_SAVE,       // metrics line and the user's checkpoint of the head step
    TD_WAIT_SPEC,       // a program that understands its spec, or a spec that can be done
    TD_WAIT_ENDED,
};

struct td_job_view {
    enum td_wait wait;
    int64_t since_ms;
    uint64_t member; // on whom; 0: nobody in particular
    char text[400];  // "3 of 64 groups to arrive; member 1f2e: ..."
    bool has_head;
    struct td_version head;
    uint64_t sealed, total_steps, open, arrived, units;
    enum _Tandem__Journal__Outcome outcome;
    const char *outcome_cause; // borrowed until the next step
};

// A member as the leader knows it.
struct td_member_view {
    uint64_t id, serves; // serves: the job it is to serve; 0: none
    int64_t heard_ms;    // when its last report came
    bool alive;
    size_t units;                       // leased to it
    const Tandem__Sync__Report *report; // its last one; borrowed until the next step
};

size_t td_coordinator_member_count(const struct td_coordinator *c);
void td_coordinator_member_view(const struct td_coordinator *c, size_t i,
                                struct td_member_view *out);

// A group of the round that is being gathered: where it is.
enum td_group_place {
    TD_GROUP_WAITS,   // for a member with room
    TD_GROUP_LEASED,  // to member, as part of attempt (term, n)
    TD_GROUP_ARRIVED, // whole in the rollout log
};
struct td_group_view {
    struct td_group group;
    enum td_group_place place;
    uint64_t member, term, n;
    const char *waits_for; // borrowed until the next step; "": it arrived
    int64_t since_ms;      // it was leased, or its job began to wait
};
// Fills out with the first groups that are open, in draw order; returns how many.
size_t td_coordinator_groups(const struct td_coordinator *c, uint64_t job,
                             struct td_group_view *out, size_t max);

// false: no such job.
bool td_coordinator_job_view(const struct td_coordinator *c, uint64_t job, struct td_job_view *out);

#endif
