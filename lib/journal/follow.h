// A reader of the journal: applies what it reads, knows whether it has read to the end (rule A2)
// and when it must start again or stop. Pure; the coordinator and the train controller each hold
// one.
#ifndef TD_JOURNAL_FOLLOW_H
#define TD_JOURNAL_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/journal/state.h"

// What the reader wants of its shell now. Each is said once.
enum td_follow_want {
    TD_WANT_NOTHING,
    TD_WANT_END,   // fetch the log's end and hand it to td_follower_end
    TD_WANT_RESET, // start again at the log's start; td_follower_start comes next
    TD_WANT_STOP,  // the journal is damaged: td_follower.cause says where
};

struct td_follower {
    struct td_journal_state state;
    bool started; // td_follower_start was called
    bool stopped;
    int64_t next;       // offset of the record to be read next
    uint32_t fetches;   // ends asked for and not answered
    int64_t until;      // an end fetched since the start; −1: none yet
    int64_t rebased_at; // record at which one was missed before the last reset; −1: none
    char cause[256];    // of STOP; else of the last record that was not accepted
};

void td_follower_init(struct td_follower *f);
void td_follower_fini(struct td_follower *f);

// The log's first record is at start: drops the state. Returns TD_WANT_END.
enum td_follow_want td_follower_start(struct td_follower *f, int64_t start);

// The next record. Repeats of what was read are passed over (IGNORED); a gap or a missed record
// gives RESET, the same one again STOP, as damage does. *verdict (may be NULL): what apply said.
enum td_follow_want td_follower_record(struct td_follower *f, struct td_pos pos, const void *bytes,
                                       size_t n, enum td_verdict *verdict);

// The answer to one TD_WANT_END: offset of the next record to be appended. Every one is answered,
// in order; an answer to one asked for before the last start or refresh does not count.
void td_follower_end(struct td_follower *f, int64_t end);

// The log may have grown (an append of this process): not ready until an end fetched from now on is
// reached. Returns TD_WANT_END.
enum td_follow_want td_follower_refresh(struct td_follower *f);

// Rule A2: the state has a base and an end fetched since the start was reached.
bool td_follower_ready(const struct td_follower *f);

#endif
