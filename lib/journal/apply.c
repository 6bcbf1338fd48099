// td_journal_apply: header rules in the order of docs/journal.md §1, then what an accepted body
// does. Pure.
#include <inttypes.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"
#include "lib/journal/state_int.h"

#define BODY(name) TANDEM__JOURNAL__RECORD__BODY_##name

static void move_cursor(struct td_job_state *j, const Tandem__Journal__Draw *b) {
    for (uint64_t i = b->from; i < b->to; i++) {
        td_job_open_add(j, (struct td_group){b->data_epoch, i});
    }
    j->cursor = b->to == j->job->index->rows ? (struct td_group){b->data_epoch + 1, 0}
                                             : (struct td_group){b->data_epoch, b->to};
}

// The oldest job that has ended makes room.
static void add_job(struct td_journal_state *s, const Tandem__Journal__Job *b) {
    if (s->job_count == TD_JOBS_MAX) {
        size_t i = td_journal_oldest_ended(s);
        td_job_free(s->jobs[i]);
        s->job_count--;
        memmove(&s->jobs[i], &s->jobs[i + 1], (s->job_count - i) * sizeof *s->jobs);
    }
    struct td_job_state *j = td_alloc(sizeof *j);
    j->job = td_message_dup(b);
    j->initial_kept = true;
    j->max_staleness = b->max_staleness;
    j->open_max = b->open_max;
    s->jobs[s->job_count++] = j;
}

static void set_gangs(struct td_journal_state *s, const Tandem__Journal__Gang *b) {
    for (size_t i = 0; i < b->n_gangs; i++) {
        struct td_job_state *j = td_journal_job_mutable(s, b->gangs[i]->job);
        struct td_gang_state *g = td_job_gang_mutable(j, b->gangs[i]->gang);
        if (g) {
            tandem__journal__gang_spec__free_unpacked(g->spec, NULL);
        } else {
            g = &j->gangs[j->gang_count++];
        }
        *g = (struct td_gang_state){.spec = td_message_dup(b->gangs[i]),
                                    .generation = b->generation};
    }
    s->generation = b->generation;
}

static void set_base(struct td_job_state *j, const Tandem__Journal__Restore *b) {
    struct td_gang_state *g = td_job_gang_mutable(j, b->gang);
    const Tandem__Journal__Checkpoint *kept = td_job_kept(j, b->checkpoint);
    g->has_base = true;
    g->base = b->checkpoint;
    g->base_step = kept ? kept->version->step : 0;
}

static void seal_entries(struct td_job_state *j, struct td_round_state *r, td_entry **entries,
                         size_t n, struct td_pos pos) {
    for (size_t i = 0; i < r->entry_count; i++) { // RESEAL: what it leaves out is open again
        td_job_open_add(j, td_group_of(r->entries[i]->group));
    }
    td_round_free_entries(r);
    r->entries = td_alloc_array(n, sizeof(td_entry *));
    r->entry_count = n;
    for (size_t i = 0; i < n; i++) {
        r->entries[i] = td_message_dup(entries[i]);
    }
    for (size_t i = n; i-- > 0;) { // from the back: nothing has to move up when all of it goes
        td_job_open_remove(j, td_group_of(entries[i]->group));
    }
    r->ref = pos;
}

static void seal(struct td_job_state *j, const Tandem__Journal__Seal *b, struct td_pos pos) {
    for (size_t i = 0; i < b->n_draws; i++) {
        move_cursor(j, b->draws[i]);
    }
    struct td_round_state *r = td_job_round_mutable(j, b->round);
    if (!r) {
        r = td_job_add_round(j, b->round);
    }
    r->parent = td_version_of(b->parent);
    seal_entries(j, r, b->entries, b->n_entries, pos);
    if (b->round > j->sealed) {
        j->sealed = b->round;
    }
}

static void commit(struct td_job_state *j, const Tandem__Journal__Commit *b, struct td_pos pos) {
    struct td_version v = td_version_of(b->version);
    struct td_round_state *r = td_job_round_mutable(j, v.step);
    if (!r) {
        td_assert_op(v.step, ==, 0);
        r = td_job_add_round(j, 0);
    }
    td_round_free_commit(r);
    r->committed = true;
    r->version = v;
    r->commit = pos;
    r->role_count = b->n_roles;
    r->roles = td_alloc_array(b->n_roles, sizeof *r->roles);
    for (size_t i = 0; i < b->n_roles; i++) {
        r->roles[i] = td_message_dup(b->roles[i]);
    }
    j->has_head = true;
    j->head = v;
}

// Rounds below the oldest kept step are never redone; of that step itself only the COMMIT counts.
static void forget_rounds(struct td_job_state *j) {
    uint64_t oldest = td_job_oldest_step(j);
    size_t gone = 0;
    while (gone < j->round_count && j->rounds[gone].round < oldest) {
        td_round_free_entries(&j->rounds[gone]);
        td_round_free_commit(&j->rounds[gone]);
        gone++;
    }
    j->round_count -= gone;
    if (gone) {
        memmove(j->rounds, j->rounds + gone, j->round_count * sizeof *j->rounds);
    }
    if (j->round_count && j->rounds[0].round == oldest) {
        td_round_free_entries(&j->rounds[0]);
    }
}

static void keep(struct td_job_state *j, const Tandem__Journal__Checkpoint *b) {
    if (j->kept_count == TD_KEPT_MAX) {
        tandem__journal__checkpoint__free_unpacked(j->kept[0], NULL);
        j->kept[0] = j->kept[1];
        j->kept_count--;
    }
    j->kept[j->kept_count++] = td_message_dup(b);
    if (j->kept_count == TD_KEPT_MAX) {
        j->initial_kept = false;
    }
    forget_rounds(j);
}

static void fork_from(struct td_job_state *j, const Tandem__Journal__Fork *b) {
    j->lineage = b->lineage;
    for (size_t i = 0; i < j->round_count; i++) {
        if (j->rounds[i].round > b->from) {
            td_round_free_commit(&j->rounds[i]);
        }
    }
    const struct td_round_state *r = td_job_round(j, b->from);
    td_assert(r && r->committed);
    j->head = r->version;
    while (j->kept_count && j->kept[j->kept_count - 1]->version->step > b->from &&
           !TD_PLANTED(FORK_PRUNES)) {
        tandem__journal__checkpoint__free_unpacked(j->kept[--j->kept_count], NULL);
    }
}

static void drop(struct td_job_state *j, const Tandem__Journal__Drop *b) {
    for (size_t i = b->n_groups; i-- > 0;) {
        td_job_open_remove(j, td_group_of(b->groups[i]));
    }
    j->dropped += b->n_groups;
}

static void end_job(struct td_job_state *j, const Tandem__Journal__End *b) {
    j->outcome = b->outcome;
    j->cause = td_strdup(b->cause);
    j->metrics = td_strdup(b->metrics);
}

static void do_body(struct td_journal_state *s, const td_record *r, struct td_pos pos) {
    switch (r->body_case) {
    case BODY(JOB):
        add_job(s, r->job);
        break;
    case BODY(GANG):
        set_gangs(s, r->gang);
        break;
    case BODY(RESTORE):
        set_base(td_journal_job_mutable(s, r->restore->job), r->restore);
        break;
    case BODY(DRAW):
        move_cursor(td_journal_job_mutable(s, r->draw->job), r->draw);
        break;
    case BODY(DROP):
        drop(td_journal_job_mutable(s, r->drop->job), r->drop);
        break;
    case BODY(SEAL):
        seal(td_journal_job_mutable(s, r->seal->job), r->seal, pos);
        break;
    case BODY(RESEAL): {
        struct td_job_state *j = td_journal_job_mutable(s, r->reseal->job);
        seal_entries(j, td_job_round_mutable(j, r->reseal->round), r->reseal->entries,
                     r->reseal->n_entries, pos);
        break;
    }
    case BODY(COMMIT):
        commit(td_journal_job_mutable(s, r->commit->job), r->commit, pos);
        break;
    case BODY(CHECKPOINT):
        keep(td_journal_job_mutable(s, r->checkpoint->job), r->checkpoint);
        break;
    case BODY(FORK):
        fork_from(td_journal_job_mutable(s, r->fork->job), r->fork);
        break;
    case BODY(END):
        end_job(td_journal_job_mutable(s, r->end->job), r->end);
        break;
    default:
        break;
    }
}

static void forget_partial(struct td_journal_state *s) {
    td_buf_clear(&s->partial);
    s->partial_read = 0;
    s->partial_next = s->partial_count = 0;
    s->partial_first = (struct td_pos){.offset = -1};
}

// A part that is the next one. A reader with a base compares it with its own state, one without
// collects it. false: it says something else.
static bool take_part(struct td_journal_state *s, const Tandem__Journal__State *b, char *why) {
    size_t n = b->chunk.len;
    if (s->partial_read + n > TD_STATE_BYTES_MAX) {
        return td_journal_no(why, "STATE longer than %d bytes", TD_STATE_BYTES_MAX);
    }
    if (!s->based) {
        td_buf_put(&s->partial, b->chunk.data, n);
    } else if (s->partial_read + n > s->partial.len ||
               (n && memcmp(s->partial.data + s->partial_read, b->chunk.data, n) != 0)) {
        return td_journal_no(why, "STATE part %u differs from the state", b->part);
    }
    s->partial_read += n;
    s->partial_next = b->part + 1;
    if (b->part == b->parts && s->partial_read != s->partial.len) {
        return td_journal_no(why, "STATE is shorter than the state");
    }
    return true;
}

static bool apply_state(struct td_journal_state *s, const Tandem__Journal__State *b,
                        struct td_pos pos, char *why) {
    if (!td_journal_check_state(s, b, why) || !take_part(s, b, why)) {
        forget_partial(s);
        return false;
    }
    if (b->part == 1) {
        s->partial_first = pos;
        s->partial_count = b->parts;
    }
    if (b->part == b->parts) {
        s->trim = s->partial_first;
        forget_partial(s);
    }
    return true;
}

static enum td_verdict damaged(char *why, const char *what, struct td_pos pos) {
    td_journal_no(why, "journal damaged at %" PRId64 ": %s", pos.offset, what);
    return TD_DAMAGED;
}

static enum td_verdict take_base(struct td_journal_state *s, const Tandem__Journal__State *b,
                                 struct td_pos pos, char *why) {
    if (!td_journal_check_state(s, b, why) || !take_part(s, b, why)) {
        return damaged(why, "the STATE at its start is not whole", pos);
    }
    if (b->part == 1) {
        s->partial_first = pos;
        s->partial_count = b->parts;
    }
    s->last = pos;
    s->accepted++;
    if (b->part < b->parts) {
        return TD_ACCEPTED;
    }
    struct td_buf whole = s->partial;
    s->partial = (struct td_buf){0};
    bool loaded = td_journal_load(s, whole.data, whole.len);
    td_buf_fini(&whole);
    if (!loaded) {
        return damaged(why, "the STATE at its start does not decode", pos);
    }
    s->seq += b->parts;
    s->based = true;
    s->trim = s->partial_first;
    forget_partial(s);
    return TD_ACCEPTED;
}

static enum td_verdict take_init(struct td_journal_state *s, const td_record *r, struct td_pos pos,
                                 char *why) {
    const Tandem__Journal__Init *b = r->init;
    if (b->n_adopted > TD_JOBS_MAX) {
        return damaged(why, "INIT adopts too many jobs", pos);
    }
    for (size_t i = 0; i < b->n_adopted; i++) {
        struct td_job_state *j = td_job_load(b->adopted[i]);
        if (!j) {
            return damaged(why, "an adopted job contradicts itself", pos);
        }
        s->jobs[s->job_count++] = j;
        for (size_t k = 0; k < j->gang_count; k++) {
            s->generation =
                j->gangs[k].generation > s->generation ? j->gangs[k].generation : s->generation;
        }
    }
    s->journal_id = r->journal_id;
    s->term = b->term_floor;
    s->last = pos;
    s->based = true;
    s->accepted++;
    return TD_ACCEPTED;
}

// A reader without a base: only the first record of the log, and what belongs to it, counts.
static enum td_verdict apply_baseless(struct td_journal_state *s, const td_record *r,
                                      struct td_pos pos, char *why) {
    bool first = pos.offset == s->start && s->partial_next == 0;
    if (first && r->body_case == BODY(INIT)) {
        return take_init(s, r, pos, why);
    }
    if (first) {
        if (r->body_case != BODY(STATE) || r->state->part != 1) {
            return damaged(why, "the log starts with neither INIT nor STATE", pos);
        }
        s->journal_id = r->journal_id;
        s->term = r->term;
        s->owner = r->owner;
        return take_base(s, r->state, pos, why);
    }
    if (s->partial_next == 0) {
        return damaged(why, "the reader has no base", pos);
    }
    if (r->journal_id != s->journal_id || r->term != s->term || r->owner != s->owner ||
        !td_pos_equal(td_pos_of(r->prev), s->last)) {
        td_journal_no(why, "not the next part of the STATE at the log's start");
        s->ignored++;
        return TD_IGNORED;
    }
    if (r->body_case != BODY(STATE)) {
        return damaged(why, "the STATE at its start is not whole", pos);
    }
    return take_base(s, r->state, pos, why);
}

static enum td_verdict ignore(struct td_journal_state *s, char *why, const char *what) {
    td_journal_no(why, "%s", what);
    s->ignored++;
    return TD_IGNORED;
}

static enum td_verdict apply_lead(struct td_journal_state *s, const td_record *r, struct td_pos pos,
                                  char *why) {
    if (r->term != s->term + 1) {
        return ignore(s, why, "LEAD of another term than the next");
    }
    forget_partial(s);
    s->term = r->term;
    s->owner = r->owner;
    s->seq = 0;
    s->last = pos;
    s->accepted++;
    return TD_ACCEPTED;
}

static enum td_verdict apply_body(struct td_journal_state *s, const td_record *r, struct td_pos pos,
                                  char *why) {
    bool accepted;
    if (r->body_case == BODY(STATE)) {
        if (r->state->part == 1) { // content = the state before part 1, this record's header too
            forget_partial(s);
            td_journal_snapshot(s, &s->partial);
        }
        accepted = apply_state(s, r->state, pos, why);
    } else {
        forget_partial(s);
        accepted = td_journal_check_body(s, r, why);
    }
    s->last = pos;
    s->seq++;
    if (!accepted) {
        s->rejected++;
        return TD_REJECTED;
    }
    do_body(s, r, pos);
    s->accepted++;
    return TD_ACCEPTED;
}

static bool is_leader(const struct td_journal_state *s, const td_record *r) {
    if (TD_PLANTED(LOWER_TERMS)) {
        return r->term <= s->term;
    }
    return r->term == s->term && r->owner == s->owner;
}

enum td_verdict td_journal_apply(struct td_journal_state *s, const td_record *r, struct td_pos pos,
                                 char *why) {
    if (!s->based) {
        return apply_baseless(s, r, pos, why);
    }
    if (r->journal_id != s->journal_id) {
        return ignore(s, why, "another journal id");
    }
    if (r->body_case == BODY(INIT)) {
        return ignore(s, why, "INIT of a journal that has begun");
    }
    struct td_pos prev = td_pos_of(r->prev);
    if (TD_PLANTED(PREV_LINK)) {
        prev = s->last;
    }
    if (prev.offset > s->last.offset) {
        td_journal_no(why, "prev is %" PRId64 ", the last one read %" PRId64, prev.offset,
                      s->last.offset);
        return TD_REBASE;
    }
    if (prev.offset == s->last.offset && prev.crc != s->last.crc) {
        return damaged(why, "the record before it was rewritten", pos);
    }
    if (prev.offset != s->last.offset) {
        return ignore(s, why, "another record came first");
    }
    if (r->body_case == BODY(LEAD)) {
        return apply_lead(s, r, pos, why);
    }
    return is_leader(s, r) ? apply_body(s, r, pos, why) : ignore(s, why, "not of the leader");
}

bool td_journal_allows(const struct td_journal_state *s, const td_record *r, char *why) {
    if (!s->based) {
        return r->body_case == BODY(INIT) || td_journal_no(why, "the reader has no base");
    }
    if (r->body_case == BODY(LEAD)) {
        return r->term == s->term + 1 || td_journal_no(why, "LEAD of another term than the next");
    }
    return td_journal_check_body(s, r, why);
}

void td_journal_header(const struct td_journal_state *s, td_record *r) {
    r->format = TD_JOURNAL_FORMAT;
    r->journal_id = s->journal_id;
    r->term = r->body_case == BODY(LEAD) ? s->term + 1 : s->term;
    r->seq = r->body_case == BODY(LEAD) ? 0 : s->seq + 1;
    td_assert(r->prev); // the caller's memory
    r->prev->offset = s->last.offset;
    r->prev->crc = s->last.crc;
}
