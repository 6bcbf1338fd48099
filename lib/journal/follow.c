// A reader of the journal: see follow.h. Pure.
#include "lib/journal/follow.h"

#include <stdio.h>

#include "lib/base/plant.h"

void td_follower_init(struct td_follower *f) {
    *f = (struct td_follower){.until = -1, .rebased_at = -1};
    td_journal_state_init(&f->state);
}

void td_follower_fini(struct td_follower *f) {
    td_journal_state_fini(&f->state);
}

enum td_follow_want td_follower_start(struct td_follower *f, int64_t start) {
    if (!(TD_PLANTED(REBASE_GAP) && f->state.based)) {
        td_journal_state_fini(&f->state);
    }
    f->state.start = start;
    f->started = true;
    f->next = start;
    return td_follower_refresh(f);
}

enum td_follow_want td_follower_refresh(struct td_follower *f) {
    f->until = -1;
    f->fetches++;
    return TD_WANT_END;
}

static enum td_follow_want stop(struct td_follower *f) {
    f->stopped = true;
    return TD_WANT_STOP;
}

static enum td_follow_want reset(struct td_follower *f) {
    f->started = false; // until the next start nothing is read
    f->until = -1;
    return TD_WANT_RESET;
}

// A record that names one this reader never accepted, or that lies behind a gap.
static enum td_follow_want missed(struct td_follower *f, struct td_pos pos) {
    if (TD_PLANTED(REBASE_GAP)) {
        return TD_WANT_NOTHING;
    }
    if (f->rebased_at != pos.offset) {
        f->rebased_at = pos.offset;
        return reset(f);
    }
    char why[160];
    snprintf(why, sizeof why, "%.150s", f->cause);
    snprintf(f->cause, sizeof f->cause, "journal damaged at %lld: read twice, and %s",
             (long long)pos.offset, why);
    return stop(f);
}

enum td_follow_want td_follower_record(struct td_follower *f, struct td_pos pos, const void *bytes,
                                       size_t n, enum td_verdict *verdict) {
    enum td_verdict unused;
    verdict = verdict ? verdict : &unused;
    *verdict = TD_IGNORED;
    if (!f->started || f->stopped || pos.offset < f->next) {
        return TD_WANT_NOTHING;
    }
    if (pos.offset > f->next && !TD_PLANTED(REBASE_GAP)) {
        snprintf(f->cause, sizeof f->cause, "records %lld to %lld were not read",
                 (long long)f->next, (long long)pos.offset - 1);
        return missed(f, pos);
    }
    f->next = pos.offset + 1;
    struct td_err err;
    td_record *record;
    if (td_record_decode(bytes, n, &record, &err)) {
        snprintf(f->cause, sizeof f->cause, "%.250s", err.msg);
        f->state.ignored++;
        return TD_WANT_NOTHING;
    }
    *verdict = td_journal_apply(&f->state, record, pos, f->cause);
    tandem__journal__record__free_unpacked(record, NULL);
    switch (*verdict) {
    case TD_REBASE:
        return missed(f, pos);
    case TD_DAMAGED:
        return stop(f);
    default:
        f->rebased_at = pos.offset == f->rebased_at ? -1 : f->rebased_at; // healed
        return TD_WANT_NOTHING;
    }
}

void td_follower_end(struct td_follower *f, int64_t end) {
    f->fetches -= f->fetches > 0;
    if (f->started && f->fetches == 0) {
        f->until = end;
    }
}

bool td_follower_ready(const struct td_follower *f) {
    if (TD_PLANTED(CATCH_UP)) {
        return f->started && !f->stopped && f->state.based;
    }
    return f->started && !f->stopped && f->state.based && f->until >= 0 && f->next >= f->until;
}
