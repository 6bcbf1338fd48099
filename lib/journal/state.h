// The journal's state and the only judge of records: td_journal_apply. Pure: no I/O, clock, threads
// or globals. Every coordinator and every train controller runs it over the same bytes and gets the
// same state.
#ifndef TD_JOURNAL_STATE_H
#define TD_JOURNAL_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/journal/record.h"

enum {
    TD_KEPT_MAX = 2,
    TD_JOBS_MAX = 64, // with those that have ended: of them the oldest goes for a new one
    TD_GANGS_MAX = 8,
    TD_OPEN_MAX = 1 << 18,          // open groups of a job, whatever its open_max: a SEAL of so
                                    // many fits into a record
    TD_STATE_BYTES_MAX = 256 << 20, // content of a STATE
};

struct td_gang_state {
    Tandem__Journal__GangSpec *spec; // owned
    uint64_t generation;
    bool has_base;
    uint64_t base; // checkpoint id; 0: initial state
    uint64_t base_step;
};

struct td_round_state { // rounds (oldest kept step)+1 … sealed, and the COMMIT of the oldest kept
                        // step itself
    uint64_t round;
    struct td_pos ref; // SEAL or RESEAL in force; round 0: none
    struct td_version parent;
    td_entry **entries; // owned, in (data epoch, index) order
    size_t entry_count;
    bool committed;
    struct td_version version;
    struct td_pos commit;                // position of the COMMIT in force
    Tandem__Journal__RoleCommit **roles; // owned; of the COMMIT
    size_t role_count;
};

struct td_job_state {
    Tandem__Journal__Job *job; // owned: id, spec, data index, rollout log
    struct td_group cursor;
    struct td_group *open; // sorted
    size_t open_count, open_cap;
    uint64_t sealed, dropped;
    bool has_head;
    struct td_version head;
    uint64_t lineage;
    struct td_round_state *rounds;
    size_t round_count, round_cap;
    struct td_gang_state gangs[TD_GANGS_MAX];
    size_t gang_count;
    Tandem__Journal__Checkpoint *kept[TD_KEPT_MAX]; // owned, oldest first
    size_t kept_count;
    bool initial_kept;                // checkpoint 0 counts until two CHECKPOINTs exist
    uint64_t max_staleness, open_max; // from the spec's fields of Job
    enum _Tandem__Journal__Outcome outcome;
    char *cause, *metrics; // owned; of END, NULL before it
};

struct td_journal_state {
    bool based;                                        // INIT or STATE was read
    uint64_t journal_id, term, owner, seq, generation; // generation: the highest ever given
    struct td_pos last;
    int64_t start; // where the log begins: the only place a base is taken from; the reader sets it
    struct td_job_state *jobs[TD_JOBS_MAX];
    size_t job_count;
    uint64_t accepted, rejected, ignored;
    // STATE under way
    struct td_buf partial; // with a base: what the parts must say; without: what they said so far
    size_t partial_read;   // bytes of it that the parts so far cover
    uint32_t partial_next, partial_count; // next 0: no STATE under way
    struct td_pos partial_first;
    struct td_pos trim; // offset of part 1 of the last whole STATE; −1: none
};

enum td_verdict {
    TD_ACCEPTED,
    TD_REJECTED, // the chain goes on, no effect; a correct leader never causes it
    TD_IGNORED,
    TD_REBASE, // prev is beyond last: this reader missed a record; it must start again at the log's
               // start
    TD_DAMAGED, // the log was rewritten: stop
};

void td_journal_state_init(struct td_journal_state *s);
void td_journal_state_fini(struct td_journal_state *s);

// Applies the record at pos. why (≥ 256 bytes, may be NULL) receives the reason of anything but
// ACCEPTED.
enum td_verdict td_journal_apply(struct td_journal_state *s, const td_record *record,
                                 struct td_pos pos, char *why);

// Would the body be accepted now? The leader asks before it appends. Same code as apply's.
bool td_journal_allows(const struct td_journal_state *s, const td_record *record, char *why);

// The clauses of SEAL and RESEAL that concern one entry alone (log, positions, steps): could a
// round that starts from the weights of head_step take it?
bool td_job_allows_entry(const struct td_job_state *j, const td_entry *entry, uint64_t head_step,
                         char *why);

// Fills the header of the next record: format, journal id, term (of a LEAD: the next one), seq and
// *record->prev, which the caller provides. owner is the caller's to set.
void td_journal_header(const struct td_journal_state *s, td_record *record);

const struct td_job_state *td_journal_job(const struct td_journal_state *s,
                                          uint64_t job); // NULL: unknown
const struct td_round_state *td_job_round(const struct td_job_state *j,
                                          uint64_t round); // NULL: not held
const struct td_gang_state *td_job_gang(const struct td_job_state *j,
                                        const char *role); // NULL: none
bool td_job_is_open(const struct td_job_state *j, struct td_group group);
const Tandem__Journal__Checkpoint *td_job_kept(const struct td_job_state *j,
                                               uint64_t id); // NULL: not kept
// Lowest step among what is kept (0 while checkpoint 0 counts).
uint64_t td_job_oldest_step(const struct td_job_state *j);

// The content of STATE (a JournalState message), appended to whole; the leader cuts it into
// State.chunk parts.
void td_journal_snapshot(const struct td_journal_state *s, struct td_buf *whole);
// A digest over everything apply reads: two readers at the same position must agree.
uint64_t td_journal_digest(const struct td_journal_state *s);

#endif
