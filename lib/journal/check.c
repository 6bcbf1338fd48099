// Preconditions of record bodies: the table of docs/journal.md §2, one function a row. Pure.
#include <inttypes.h>
#include <string.h>

#include "lib/base/plant.h"
#include "lib/journal/state_int.h"

#define no td_journal_no

static const struct td_job_state *live_job(const struct td_journal_state *s, uint64_t job,
                                           char *why) {
    const struct td_job_state *j = td_journal_job(s, job);
    if (!j) {
        no(why, "job %" PRIu64 " is unknown", job);
    } else if (j->outcome != TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
        no(why, "job %" PRIu64 " has ended", job);
        return NULL;
    }
    return j;
}

static bool check_job(const struct td_journal_state *s, const Tandem__Journal__Job *b, char *why) {
    if (b->job == 0 || !b->index || b->index->rows == 0 || b->request_id[0] == '\0') {
        return no(why, "job without id, request id or rows");
    }
    if (s->job_count == TD_JOBS_MAX && td_journal_oldest_ended(s) == s->job_count) {
        return no(why, "%d jobs wait or run already", TD_JOBS_MAX);
    }
    for (size_t i = 0; i < s->job_count; i++) {
        const Tandem__Journal__Job *other = s->jobs[i]->job;
        if (other->job == b->job || strcmp(other->request_id, b->request_id) == 0) {
            return no(why, "job %" PRIu64 " or request id %s is known", b->job, b->request_id);
        }
    }
    return true;
}

static bool check_gang_spec(const struct td_journal_state *s, const Tandem__Journal__Gang *b,
                            size_t i, char *why) {
    const Tandem__Journal__GangSpec *spec = b->gangs[i];
    const struct td_job_state *j = live_job(s, spec->job, why);
    if (!j) {
        return false;
    }
    if (spec->ranks == 0 || spec->n_members == 0 || spec->role[0] == '\0') {
        return no(why, "gang %u without ranks, members or role", spec->gang);
    }
    size_t added = 0;
    for (size_t k = 0; k < b->n_gangs; k++) {
        bool same_job = b->gangs[k]->job == spec->job;
        if (k < i && same_job && b->gangs[k]->gang == spec->gang) {
            return no(why, "gang %u named twice", spec->gang);
        }
        added += same_job && !td_job_gang_by_id(j, b->gangs[k]->gang);
    }
    return j->gang_count + added <= TD_GANGS_MAX ||
           no(why, "more than %d gangs in a job", TD_GANGS_MAX);
}

static bool check_gang(const struct td_journal_state *s, const Tandem__Journal__Gang *b,
                       char *why) {
    if (b->n_gangs == 0) {
        return no(why, "no gang");
    }
    if (b->generation != s->generation + 1) {
        return no(why, "generation %" PRIu64 ", the last one is %" PRIu64, b->generation,
                  s->generation);
    }
    for (size_t i = 0; i < b->n_gangs; i++) {
        if (!check_gang_spec(s, b, i, why)) {
            return false;
        }
    }
    return true;
}

static const struct td_gang_state *current_gang(const struct td_job_state *j, uint32_t gang,
                                                uint64_t generation, char *why) {
    const struct td_gang_state *g = td_job_gang_by_id(j, gang);
    if (!g) {
        no(why, "gang %u is unknown", gang);
    } else if (g->generation != generation) {
        no(why, "generation %" PRIu64 " of gang %u, current is %" PRIu64, generation, gang,
           g->generation);
        return NULL;
    }
    return g;
}

static bool check_restore(const struct td_journal_state *s, const Tandem__Journal__Restore *b,
                          char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    const struct td_gang_state *g = j ? current_gang(j, b->gang, b->generation, why) : NULL;
    if (!g) {
        return false;
    }
    if (g->has_base) {
        return no(why, "generation %" PRIu64 " has a base", b->generation);
    }
    bool kept = b->checkpoint == 0 ? j->initial_kept : td_job_kept(j, b->checkpoint) != NULL;
    return kept || TD_PLANTED(RESTORE_KEPT) ||
           no(why, "checkpoint %016" PRIx64 " is not kept", b->checkpoint);
}

// opened: groups opened by earlier DRAWs of the same record.
static bool check_draw_at(const struct td_job_state *j, struct td_group cursor, uint64_t opened,
                          const Tandem__Journal__Draw *b, char *why) {
    if ((b->data_epoch != cursor.data_epoch || b->from != cursor.index) && !TD_PLANTED(DRAW_FROM)) {
        return no(why,
                  "DRAW from (%" PRIu64 ", %" PRIu64 "), the cursor is at (%" PRIu64 ", %" PRIu64
                  ")",
                  b->data_epoch, b->from, cursor.data_epoch, cursor.index);
    }
    if (b->from >= b->to || b->to > j->job->index->rows) {
        return no(why, "DRAW of %" PRIu64 " to %" PRIu64 " of %" PRIu64 " rows", b->from, b->to,
                  j->job->index->rows);
    }
    uint64_t most = j->open_max < TD_OPEN_MAX ? j->open_max : TD_OPEN_MAX;
    uint64_t taken = j->open_count + opened; // both are bounded, the difference below is not
    if (taken > most || b->to - b->from > most - taken) {
        return no(why, "DRAW opens more than %" PRIu64 " groups", most);
    }
    return true;
}

static struct td_group cursor_behind(const struct td_job_state *j, const Tandem__Journal__Draw *b) {
    return b->to == j->job->index->rows ? (struct td_group){b->data_epoch + 1, 0}
                                        : (struct td_group){b->data_epoch, b->to};
}

static bool check_draw(const struct td_journal_state *s, const Tandem__Journal__Draw *b,
                       char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    return j && check_draw_at(j, j->cursor, 0, b, why);
}

static bool check_drop(const struct td_journal_state *s, const Tandem__Journal__Drop *b,
                       char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    if (!j) {
        return false;
    }
    if (b->n_groups == 0 || b->n_groups != b->n_reasons) {
        return no(why, "DROP of %zu groups with %zu reasons", b->n_groups, b->n_reasons);
    }
    for (size_t i = 0; i < b->n_groups; i++) {
        struct td_group g = td_group_of(b->groups[i]);
        if (!td_job_is_open(j, g) && !TD_PLANTED(DROP_OPEN)) {
            return no(why, "group (%" PRIu64 ", %" PRIu64 ") is not open", g.data_epoch, g.index);
        }
        if (i > 0 && td_group_compare(td_group_of(b->groups[i - 1]), g) >= 0) {
            return no(why, "groups of a DROP are not in order");
        }
    }
    return true;
}

static bool position_allowed(const struct td_job_state *j, const Tandem__Journal__LogPosition *p) {
    if (j->kept_count == 0) {
        return true;
    }
    const Tandem__Journal__Checkpoint *newest = j->kept[j->kept_count - 1];
    for (size_t i = 0; i < newest->n_positions; i++) {
        if (newest->positions[i]->partition == p->partition) {
            return p->offset >= newest->positions[i]->offset;
        }
    }
    return true;
}

bool td_job_allows_entry(const struct td_job_state *j, const td_entry *e, uint64_t head_step,
                         char *why) {
    if (!e->group) {
        return no(why, "entry without a group");
    }
    uint64_t index = e->group->index;
    if (j->job->rollout_log == 0) {
        return (e->min_step == head_step && e->max_step == head_step) ||
               no(why, "row %" PRIu64 " under another step than %" PRIu64, index, head_step);
    }
    if (e->log != j->job->rollout_log || e->n_parts == 0) {
        return no(why, "group %" PRIu64 " of log %016" PRIx64 " with %zu parts", index, e->log,
                  e->n_parts);
    }
    for (size_t i = 0; i < e->n_parts; i++) {
        if (!position_allowed(j, e->parts[i])) {
            return no(why, "group %" PRIu64 " lies at %u:%" PRId64 ", before the newest checkpoint",
                      index, e->parts[i]->partition, e->parts[i]->offset);
        }
    }
    if (e->min_step > e->max_step || e->max_step > head_step ||
        head_step - e->min_step > j->max_staleness) {
        return no(why,
                  "group %" PRIu64 " has steps %" PRIu64 " to %" PRIu64 " at %" PRIu64
                  ", staleness %" PRIu64,
                  index, e->min_step, e->max_step, head_step, j->max_staleness);
    }
    return true;
}

static bool in_order(td_entry *const *entries, size_t n, char *why) {
    for (size_t i = 1; i < n; i++) {
        if (td_group_compare(td_group_of(entries[i - 1]->group), td_group_of(entries[i]->group)) >=
            0) {
            return no(why, "entries are not in (data epoch, index) order");
        }
    }
    return n > 0 || no(why, "no entries");
}

static bool drawn(const Tandem__Journal__Seal *b, struct td_group g) {
    for (size_t i = 0; i < b->n_draws; i++) {
        const Tandem__Journal__Draw *d = b->draws[i];
        if (d->data_epoch == g.data_epoch && d->from <= g.index && g.index < d->to) {
            return true;
        }
    }
    return false;
}

static bool check_seal_draws(const struct td_job_state *j, const Tandem__Journal__Seal *b,
                             char *why) {
    if (b->n_draws > (j->job->rollout_log == 0 ? 2 : 0)) {
        return no(why, "SEAL with %zu DRAWs", b->n_draws);
    }
    struct td_group cursor = j->cursor;
    uint64_t opened = 0;
    for (size_t i = 0; i < b->n_draws; i++) {
        if (!check_draw_at(j, cursor, opened, b->draws[i], why)) {
            return false;
        }
        cursor = cursor_behind(j, b->draws[i]);
        opened += b->draws[i]->to - b->draws[i]->from;
    }
    return true;
}

static bool check_seal(const struct td_journal_state *s, const Tandem__Journal__Seal *b,
                       char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    if (!j) {
        return false;
    }
    if (!j->has_head) {
        return no(why, "SEAL before COMMIT of step 0");
    }
    bool round_open = j->sealed != j->head.step || b->round != j->sealed + 1;
    bool planted = TD_PLANTED(SEAL_ROUND_OPEN) && b->round >= 1 && b->round <= j->sealed + 1;
    if (round_open && !planted) {
        return no(why, "SEAL of round %" PRIu64 " at step %" PRIu64 " with %" PRIu64 " sealed",
                  b->round, j->head.step, j->sealed);
    }
    if (!b->parent || !td_version_equal(td_version_of(b->parent), j->head)) {
        return no(why, "SEAL's parent is not the head (%" PRIu64 ", %" PRIu64 ")", j->head.lineage,
                  j->head.step);
    }
    if (!in_order(b->entries, b->n_entries, why) || !check_seal_draws(j, b, why)) {
        return false;
    }
    for (size_t i = 0; i < b->n_entries; i++) {
        struct td_group g = td_group_of(b->entries[i]->group);
        if (!td_job_is_open(j, g) && !drawn(b, g) && !TD_PLANTED(SEAL_GROUPS_OPEN) &&
            !TD_PLANTED(LATE_ATTEMPT)) {
            return no(why, "group (%" PRIu64 ", %" PRIu64 ") is not open", g.data_epoch, g.index);
        }
        if (!td_job_allows_entry(j, b->entries[i], j->head.step, why)) {
            return false;
        }
    }
    return true;
}

static bool sealed_in(const struct td_round_state *r, struct td_group g) {
    for (size_t i = 0; i < r->entry_count; i++) {
        if (td_group_compare(td_group_of(r->entries[i]->group), g) == 0) {
            return true;
        }
    }
    return false;
}

static bool check_reseal(const struct td_journal_state *s, const Tandem__Journal__Reseal *b,
                         char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    if (!j) {
        return false;
    }
    if (!j->has_head || b->round <= j->head.step || b->round > j->sealed) {
        return no(why, "RESEAL of round %" PRIu64 ", which is not open", b->round);
    }
    const struct td_round_state *r = td_job_round(j, b->round);
    if (!td_pos_equal(td_pos_of(b->old_ref), r->ref)) {
        return no(why, "RESEAL of another seal than that at %" PRId64, r->ref.offset);
    }
    if (!in_order(b->entries, b->n_entries, why)) {
        return false;
    }
    for (size_t i = 0; i < b->n_entries; i++) {
        struct td_group g = td_group_of(b->entries[i]->group);
        if (!td_job_is_open(j, g) && !sealed_in(r, g)) {
            return no(why, "group (%" PRIu64 ", %" PRIu64 ") is neither open nor in the round",
                      g.data_epoch, g.index);
        }
        if (!td_job_allows_entry(j, b->entries[i], b->round - 1, why)) {
            return false;
        }
    }
    return true;
}

static bool check_commit_place(const struct td_job_state *j, const Tandem__Journal__Commit *b,
                               char *why) {
    if (!b->version) {
        return no(why, "COMMIT without a version");
    }
    struct td_version v = td_version_of(b->version);
    uint64_t step = j->has_head ? j->head.step + 1 : 0;
    if (v.lineage != j->lineage && !TD_PLANTED(COMMIT_LINEAGE)) {
        return no(why, "COMMIT in lineage %" PRIu64 ", current is %" PRIu64, v.lineage, j->lineage);
    }
    if (v.step != step && !(TD_PLANTED(COMMIT_STEP) && j->has_head && v.step > 0)) {
        return no(why, "COMMIT of step %" PRIu64 ", the next one is %" PRIu64, v.step, step);
    }
    if (!j->has_head) {
        return !b->ref || b->ref->offset < 0 || no(why, "COMMIT of step 0 with a SEAL");
    }
    const struct td_round_state *r = v.step <= j->sealed ? td_job_round(j, v.step) : NULL;
    if (!r) {
        return no(why, "COMMIT of step %" PRIu64 ", %" PRIu64 " are sealed", v.step, j->sealed);
    }
    return td_pos_equal(td_pos_of(b->ref), r->ref) || TD_PLANTED(COMMIT_REF) ||
           no(why, "COMMIT names a SEAL other than that at %" PRId64, r->ref.offset);
}

static bool check_commit(const struct td_journal_state *s, const Tandem__Journal__Commit *b,
                         char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    if (!j || !check_commit_place(j, b, why)) {
        return false;
    }
    if (b->n_roles == 0) {
        return no(why, "COMMIT without a role");
    }
    for (size_t i = 0; i < b->n_roles; i++) {
        const Tandem__Journal__RoleCommit *role = b->roles[i];
        const struct td_gang_state *g = TD_PLANTED(COMMIT_GENERATION)
                                            ? td_job_gang_by_id(j, role->gang)
                                            : current_gang(j, role->gang, role->generation, why);
        if (!g) {
            return false;
        }
        if ((!g->has_base && !TD_PLANTED(COMMIT_GENERATION)) ||
            strcmp(g->spec->role, role->role) != 0) {
            return no(why, "gang %u has no base, or another role than %s", role->gang, role->role);
        }
        for (size_t k = 0; k < i; k++) {
            if (b->roles[k]->gang == role->gang) {
                return no(why, "gang %u named twice", role->gang);
            }
        }
    }
    return true;
}

static bool same_state(const struct td_round_state *r, uint32_t gang, uint64_t digest) {
    for (size_t i = 0; i < r->role_count; i++) {
        if (r->roles[i]->gang == gang) {
            return r->roles[i]->state_digest == digest;
        }
    }
    return false;
}

// The round of an entry behind step with a record below floor, or 0.
static uint64_t round_below(const struct td_job_state *j, uint64_t step,
                            const Tandem__Journal__LogPosition *floor) {
    for (size_t i = 0; i < j->round_count; i++) {
        const struct td_round_state *r = &j->rounds[i];
        for (size_t k = 0; r->round > step && k < r->entry_count; k++) {
            for (size_t m = 0; m < r->entries[k]->n_parts; m++) {
                const Tandem__Journal__LogPosition *part = r->entries[k]->parts[m];
                if (part->partition == floor->partition && part->offset < floor->offset) {
                    return r->round;
                }
            }
        }
    }
    return 0;
}

static bool positions_below(const struct td_job_state *j, const Tandem__Journal__Checkpoint *b,
                            char *why) {
    for (size_t p = 0; p < b->n_positions; p++) {
        const Tandem__Journal__LogPosition *floor = b->positions[p];
        for (size_t k = 0; k < p; k++) {
            if (b->positions[k]->partition == floor->partition) {
                return no(why, "partition %u named twice", floor->partition);
            }
        }
        uint64_t round = round_below(j, b->version->step, floor);
        if (round) { // behind a step, so never round 0
            return no(why, "a record of round %" PRIu64 " lies below the positions", round);
        }
    }
    return true;
}

static bool check_checkpoint(const struct td_journal_state *s, const Tandem__Journal__Checkpoint *b,
                             char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    if (!j) {
        return false;
    }
    if (b->id == 0 || !b->version || td_job_kept(j, b->id)) {
        return no(why, "checkpoint without id or version, or kept already");
    }
    if (!TD_PLANTED(CHECKPOINT_GENERATION) && !current_gang(j, b->gang, b->generation, why)) {
        return false;
    }
    uint64_t newest = j->kept_count ? j->kept[j->kept_count - 1]->version->step : 0;
    if (b->version->step <= newest) {
        return no(why, "checkpoint of step %" PRIu64 ", the newest kept is of %" PRIu64,
                  b->version->step, newest);
    }
    const struct td_round_state *r = td_job_round(j, b->version->step);
    bool of_commit = r && r->committed && td_version_equal(r->version, td_version_of(b->version));
    if (TD_PLANTED(CHECKPOINT_DIGEST)) {
        return r && positions_below(j, b, why);
    }
    if (!of_commit || !same_state(r, b->gang, b->state_digest)) {
        return no(why, "checkpoint of step %" PRIu64 " holds no committed state", b->version->step);
    }
    return positions_below(j, b, why);
}

static bool check_fork(const struct td_journal_state *s, const Tandem__Journal__Fork *b,
                       char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    if (!j) {
        return false;
    }
    if (b->lineage != j->lineage + 1) {
        return no(why, "FORK to lineage %" PRIu64 ", current is %" PRIu64, b->lineage, j->lineage);
    }
    if (b->reason != TANDEM__JOURNAL__FORK_REASON__FORK_MISMATCH &&
        b->reason != TANDEM__JOURNAL__FORK_REASON__FORK_LOST) {
        return no(why, "FORK without a reason");
    }
    const struct td_gang_state *g = current_gang(j, b->gang, b->generation, why);
    if (!g) {
        return false;
    }
    if (!g->has_base) {
        return no(why, "generation %" PRIu64 " has no base", b->generation);
    }
    uint64_t low = td_job_oldest_step(j);
    low = g->base_step > low ? g->base_step : low;
    if (!j->has_head || b->from < low || b->from >= j->head.step) {
        return no(why, "FORK from step %" PRIu64 ", possible are %" PRIu64 " up to before the head",
                  b->from, low);
    }
    const struct td_round_state *r = td_job_round(j, b->from + 1);
    return (r && r->committed && td_pos_equal(td_pos_of(b->disproved), r->commit)) ||
           no(why, "FORK disproves another COMMIT than that of step %" PRIu64, b->from + 1);
}

static bool check_end(const struct td_journal_state *s, const Tandem__Journal__End *b, char *why) {
    const struct td_job_state *j = live_job(s, b->job, why);
    if (!j) {
        return false;
    }
    switch (b->outcome) {
    case TANDEM__JOURNAL__OUTCOME__SUCCEEDED:
        return (j->has_head && j->sealed == j->head.step) || no(why, "END with an open round");
    case TANDEM__JOURNAL__OUTCOME__FAILED:
    case TANDEM__JOURNAL__OUTCOME__CANCELLED:
        return true;
    default:
        return no(why, "END without an outcome");
    }
}

bool td_journal_check_state(const struct td_journal_state *s, const Tandem__Journal__State *state,
                            char *why) {
    if (state->part == 0 || state->part > state->parts) {
        return no(why, "STATE part %u of %u", state->part, state->parts);
    }
    if (state->part == 1) {
        return true; // what it must say is taken from the state when it is applied
    }
    if (state->part != s->partial_next || state->parts != s->partial_count) {
        return no(why, "STATE part %u of %u does not follow", state->part, state->parts);
    }
    return true;
}

bool td_journal_check_body(const struct td_journal_state *s, const td_record *r, char *why) {
    switch (r->body_case) {
    case TANDEM__JOURNAL__RECORD__BODY_BEAT:
        return true;
    case TANDEM__JOURNAL__RECORD__BODY_STATE:
        return td_journal_check_state(s, r->state, why);
    case TANDEM__JOURNAL__RECORD__BODY_JOB:
        return check_job(s, r->job, why);
    case TANDEM__JOURNAL__RECORD__BODY_GANG:
        return check_gang(s, r->gang, why);
    case TANDEM__JOURNAL__RECORD__BODY_RESTORE:
        return check_restore(s, r->restore, why);
    case TANDEM__JOURNAL__RECORD__BODY_DRAW:
        return check_draw(s, r->draw, why);
    case TANDEM__JOURNAL__RECORD__BODY_DROP:
        return check_drop(s, r->drop, why);
    case TANDEM__JOURNAL__RECORD__BODY_SEAL:
        return check_seal(s, r->seal, why);
    case TANDEM__JOURNAL__RECORD__BODY_RESEAL:
        return check_reseal(s, r->reseal, why);
    case TANDEM__JOURNAL__RECORD__BODY_COMMIT:
        return check_commit(s, r->commit, why);
    case TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT:
        return check_checkpoint(s, r->checkpoint, why);
    case TANDEM__JOURNAL__RECORD__BODY_FORK:
        return check_fork(s, r->fork, why);
    case TANDEM__JOURNAL__RECORD__BODY_END:
        return check_end(s, r->end, why);
    default:
        return no(why, "%s only begins a log", td_record_name(r));
    }
}
