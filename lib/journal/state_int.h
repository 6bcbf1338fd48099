// Inside of the journal's state: shared by state.c, check.c, apply.c and snapshot.c only.
#ifndef TD_JOURNAL_STATE_INT_H
#define TD_JOURNAL_STATE_INT_H

#include "lib/journal/state.h"

enum { TD_WHY_MAX = 256 };

// Writes the reason into why (may be NULL) and returns false.
bool td_journal_no(char *why, const char *fmt, ...) TD_PRINTF(2, 3);

// The body alone: would it be accepted by s? (check.c)
bool td_journal_check_body(const struct td_journal_state *s, const td_record *record, char *why);
// Whether this STATE part is the one that s waits for, and says what s says.
bool td_journal_check_state(const struct td_journal_state *s, const Tandem__Journal__State *state,
                            char *why);

// Index of the job that goes when there is no room for a new one; job_count: none has ended.
size_t td_journal_oldest_ended(const struct td_journal_state *s);
struct td_job_state *td_journal_job_mutable(struct td_journal_state *s, uint64_t job);
struct td_round_state *td_job_round_mutable(struct td_job_state *j, uint64_t round);
struct td_gang_state *td_job_gang_mutable(struct td_job_state *j, uint32_t gang);
const struct td_gang_state *td_job_gang_by_id(const struct td_job_state *j, uint32_t gang);
// Appends an empty round; the caller keeps rounds in order.
struct td_round_state *td_job_add_round(struct td_job_state *j, uint64_t round);
void td_round_free_entries(struct td_round_state *r);
void td_round_free_commit(struct td_round_state *r);
void td_job_free(struct td_job_state *j);
// Where group is, or would be, in j->open.
size_t td_job_open_index(const struct td_job_state *j, struct td_group group, bool *found);
void td_job_open_add(struct td_job_state *j, struct td_group group);
void td_job_open_remove(struct td_job_state *j, struct td_group group);

// Replaces what is in s by the content of a STATE or INIT (snapshot.c). false: does not decode.
bool td_journal_load(struct td_journal_state *s, const void *bytes, size_t n);
// One job as STATE and INIT carry it. NULL: it contradicts itself.
struct td_job_state *td_job_load(const Tandem__Journal__JobState *from);

#endif
