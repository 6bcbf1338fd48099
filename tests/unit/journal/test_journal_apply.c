// Every row of the table of preconditions (docs/journal.md §2): accepted once, and refused for each
// of its reasons; then the header rules.
#include "tests/unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/journal/kit.h"

#define CASE(name) static td_record *name(struct kit *k)

CASE(beat) {
    return kit_beat(k);
}

// JOB
CASE(job_second) {
    return kit_job(k, 8, "second");
}
CASE(job_known_id) {
    return kit_job(k, KIT_JOB, "second");
}
CASE(job_known_request) {
    return kit_job(k, 8, "first");
}
CASE(job_without_rows) {
    td_record *r = kit_job(k, 8, "second");
    r->job->index->rows = 0;
    return r;
}
CASE(job_without_index) {
    td_record *r = kit_job(k, 8, "second");
    r->job->index = NULL;
    return r;
}

// GANG
CASE(gang_first) {
    return kit_gang(k, 1);
}
CASE(gang_next) {
    return kit_gang(k, 2);
}
CASE(gang_same_generation) {
    return kit_gang(k, 1);
}
CASE(gang_skips) {
    return kit_gang(k, 3);
}
CASE(gang_unknown_job) {
    td_record *r = kit_gang(k, 2);
    r->gang->gangs[0]->job = 9;
    return r;
}
CASE(gang_without_ranks) {
    td_record *r = kit_gang(k, 2);
    r->gang->gangs[0]->ranks = 0;
    return r;
}
CASE(gang_twice) {
    td_record *r = kit_gang(k, 2);
    r->gang->gangs[1] = r->gang->gangs[0];
    r->gang->n_gangs = 2;
    return r;
}
CASE(gang_none) {
    td_record *r = kit_gang(k, 2);
    r->gang->n_gangs = 0;
    return r;
}

// RESTORE
CASE(restore_initial) {
    return kit_restore(k, 1, 0);
}
CASE(restore_twice) {
    return kit_restore(k, 1, 0);
}
CASE(restore_old_generation) {
    kit_put(k, kit_gang(k, 2));
    return kit_restore(k, 1, 0);
}
CASE(restore_unknown) {
    kit_put(k, kit_gang(k, 2));
    return kit_restore(k, 2, 0xC9);
}
CASE(restore_kept) {
    kit_put(k, kit_gang(k, 2));
    return kit_restore(k, 2, 0xC1);
}
CASE(restore_initial_no_longer_kept) {
    kit_put(k, kit_gang(k, 2));
    return kit_restore(k, 2, 0);
}
CASE(restore_unknown_gang) {
    td_record *r = kit_restore(k, 1, 0);
    r->restore->gang = 4;
    return r;
}

// DRAW
CASE(draw_first) {
    return kit_draw(k, 0, 0, 6);
}
CASE(draw_elsewhere) {
    return kit_draw(k, 0, 1, 6);
}
CASE(draw_other_epoch) {
    return kit_draw(k, 1, 0, 6);
}
CASE(draw_nothing) {
    return kit_draw(k, 0, 0, 0);
}
CASE(draw_beyond_rows) {
    td_journal_job(&k->state, KIT_JOB);
    k->state.jobs[0]->open_max = 100;
    return kit_draw(k, 0, 0, KIT_ROWS + 1);
}
CASE(draw_too_many_open) {
    return kit_draw(k, 0, 0, 7);
}
CASE(draw_unknown_job) {
    td_record *r = kit_draw(k, 0, 0, 6);
    r->draw->job = 9;
    return r;
}

// DROP
CASE(drop_open) {
    return kit_drop(k, 0, 3, 5);
}
CASE(drop_sealed) {
    return kit_drop(k, 0, 1, 3);
}
CASE(drop_undrawn) {
    return kit_drop(k, 0, 7, 8);
}
CASE(drop_twice) {
    td_record *r = kit_drop(k, 0, 3, 5);
    r->drop->groups[1] = r->drop->groups[0];
    return r;
}
CASE(drop_without_reason) {
    td_record *r = kit_drop(k, 0, 3, 5);
    r->drop->n_reasons = 1;
    return r;
}
CASE(drop_none) {
    return kit_drop(k, 0, 3, 3);
}

// SEAL
CASE(seal) {
    return kit_seal(k, 1, 0, 2, 0);
}
CASE(seal_before_step_0) {
    return kit_seal(k, 1, 0, 2, 0);
}
CASE(seal_while_open) {
    return kit_seal(k, 2, 2, 4, 0);
}
CASE(seal_skips_round) {
    return kit_seal(k, 2, 0, 2, 0);
}
CASE(seal_other_parent) {
    td_record *r = kit_seal(k, 1, 0, 2, 0);
    r->seal->parent->lineage = 1;
    return r;
}
CASE(seal_without_parent) {
    td_record *r = kit_seal(k, 1, 0, 2, 0);
    r->seal->parent = NULL;
    return r;
}
CASE(seal_not_open) {
    return kit_seal(k, 1, 5, 7, 0);
}
CASE(seal_twice_the_same) {
    td_record *r = kit_seal(k, 1, 0, 2, 0);
    r->seal->entries[1] = r->seal->entries[0];
    return r;
}
CASE(seal_out_of_order) {
    td_record *r = kit_seal(k, 1, 0, 2, 0);
    td_entry *first = r->seal->entries[0];
    r->seal->entries[0] = r->seal->entries[1];
    r->seal->entries[1] = first;
    return r;
}
CASE(seal_empty) {
    return kit_seal(k, 1, 0, 0, 0);
}
CASE(seal_other_log) {
    td_record *r = kit_seal(k, 1, 0, 2, 0);
    r->seal->entries[0]->log++;
    return r;
}
CASE(seal_without_position) {
    td_record *r = kit_seal(k, 1, 0, 2, 0);
    r->seal->entries[1]->n_parts = 0;
    return r;
}
CASE(seal_before_checkpoint) { // positions of 0xC1 start at 102
    td_record *r = kit_seal(k, 2, 2, 4, 1);
    r->seal->entries[0]->parts[0]->offset = 101;
    return r;
}
CASE(seal_other_partition) { // of which 0xC1 says nothing
    td_record *r = kit_seal(k, 2, 2, 4, 1);
    r->seal->entries[0]->parts[0]->offset = 101;
    r->seal->entries[0]->parts[0]->partition = 3;
    return r;
}
CASE(seal_future_step) {
    return kit_seal(k, 1, 0, 2, 1);
}
CASE(seal_stale) {
    return kit_seal(k, 2, 2, 4, 0);
}
CASE(seal_stale_allowed) {
    k->state.jobs[0]->max_staleness = 1;
    return kit_seal(k, 2, 2, 4, 0);
}
CASE(seal_steps_reversed) {
    k->state.jobs[0]->max_staleness = 1;
    td_record *r = kit_seal(k, 2, 2, 4, 1);
    r->seal->entries[0]->max_step = 0;
    return r;
}
CASE(seal_draws_for_groups) {
    td_record *r = kit_seal(k, 1, 0, 2, 0);
    r->seal->draws[0] = kit_draw(k, 0, 6, 8)->draw;
    r->seal->n_draws = 1;
    return r;
}

// RESEAL
CASE(reseal_same) {
    return kit_reseal(k, 1, 0, 2);
}
CASE(reseal_swaps) {
    return kit_reseal(k, 1, 1, 3);
}
CASE(reseal_committed) {
    return kit_reseal(k, 1, 0, 2);
}
CASE(reseal_unsealed) {
    return kit_reseal(k, 2, 2, 4);
}
CASE(reseal_other_ref) {
    td_record *r = kit_reseal(k, 1, 0, 2);
    r->reseal->old_ref->crc++;
    return r;
}
CASE(reseal_undrawn) {
    return kit_reseal(k, 1, 5, 7);
}
CASE(reseal_future_step) {
    td_record *r = kit_reseal(k, 1, 0, 2);
    r->reseal->entries[0]->max_step = 1;
    return r;
}
CASE(reseal_empty) {
    return kit_reseal(k, 1, 0, 0);
}

// COMMIT
CASE(commit_0) {
    return kit_commit(k, 0);
}
CASE(commit_0_without_base) {
    return kit_commit(k, 0);
}
CASE(commit_0_with_ref) {
    td_record *r = kit_commit(k, 0);
    r->commit->ref = kit_beat(k)->prev;
    return r;
}
CASE(commit_0_twice) {
    return kit_commit(k, 0);
}
CASE(commit_1) {
    return kit_commit(k, 1);
}
CASE(commit_unsealed) {
    return kit_commit(k, 1);
}
CASE(commit_skips) {
    return kit_commit(k, 2);
}
CASE(commit_other_lineage) {
    td_record *r = kit_commit(k, 1);
    r->commit->version->lineage = 1;
    return r;
}
CASE(commit_other_ref) {
    td_record *r = kit_commit(k, 1);
    r->commit->ref->offset--;
    return r;
}
CASE(commit_without_ref) {
    td_record *r = kit_commit(k, 1);
    r->commit->ref = NULL;
    return r;
}
CASE(commit_old_generation) {
    kit_put(k, kit_gang(k, 2));
    kit_put(k, kit_restore(k, 2, 0));
    td_record *r = kit_commit(k, 1);
    r->commit->roles[0]->generation = 1;
    return r;
}
CASE(commit_without_version) {
    td_record *r = kit_commit(k, 0);
    r->commit->version = NULL;
    return r;
}
CASE(commit_no_base) {
    kit_put(k, kit_gang(k, 2));
    return kit_commit(k, 1);
}
CASE(commit_no_role) {
    td_record *r = kit_commit(k, 1);
    r->commit->n_roles = 0;
    return r;
}
CASE(commit_role_twice) {
    td_record *r = kit_commit(k, 1);
    r->commit->roles[1] = r->commit->roles[0];
    r->commit->n_roles = 2;
    return r;
}
CASE(commit_other_role) {
    td_record *r = kit_commit(k, 1);
    r->commit->roles[0]->role = (char *)"critic";
    return r;
}
CASE(commit_resealed) { // the work of the first seal is void
    td_record *r = kit_commit(k, 1);
    kit_put(k, kit_reseal(k, 1, 0, 2));
    return r;
}

// CHECKPOINT
CASE(checkpoint) {
    return kit_checkpoint(k, 0xC1, 1);
}
CASE(checkpoint_of_0) {
    return kit_checkpoint(k, 0xC1, 0);
}
CASE(checkpoint_uncommitted) {
    return kit_checkpoint(k, 0xC1, 1);
}
CASE(checkpoint_other_digest) {
    td_record *r = kit_checkpoint(k, 0xC1, 1);
    r->checkpoint->state_digest++;
    return r;
}
CASE(checkpoint_other_lineage) {
    td_record *r = kit_checkpoint(k, 0xC1, 1);
    r->checkpoint->version->lineage = 1;
    return r;
}
CASE(checkpoint_old_generation) {
    kit_put(k, kit_gang(k, 2));
    td_record *r = kit_checkpoint(k, 0xC1, 1);
    r->checkpoint->generation = 1;
    return r;
}
CASE(checkpoint_again) {
    return kit_checkpoint(k, 0xC1, 1);
}
CASE(checkpoint_not_newer) {
    return kit_checkpoint(k, 0xC3, 1);
}
CASE(checkpoint_above_entries) { // round 3 has 104 and 105
    kit_put(k, kit_seal(k, 3, 4, 6, 2));
    td_record *r = kit_checkpoint(k, 0xC3, 2);
    r->checkpoint->positions[0]->offset = 105;
    return r;
}
CASE(checkpoint_partition_twice) {
    td_record *r = kit_checkpoint(k, 0xC1, 1);
    r->checkpoint->positions[1] = r->checkpoint->positions[0];
    r->checkpoint->n_positions = 2;
    return r;
}

// FORK
CASE(fork_from_2) {
    return kit_fork(k, 2);
}
CASE(fork_other_lineage) {
    td_record *r = kit_fork(k, 2);
    r->fork->lineage = 2;
    return r;
}
CASE(fork_below_kept) {
    return kit_fork(k, 0);
}
CASE(fork_from_head) {
    return kit_fork(k, 3);
}
CASE(fork_below_base) {
    kit_put(k, kit_gang(k, 2));
    kit_put(k, kit_restore(k, 2, 0xC2));
    return kit_fork(k, 1);
}
CASE(fork_old_generation) {
    kit_put(k, kit_gang(k, 2));
    kit_put(k, kit_restore(k, 2, 0xC2));
    td_record *r = kit_fork(k, 2);
    r->fork->generation = 1;
    return r;
}
CASE(fork_without_base) {
    kit_put(k, kit_gang(k, 2));
    return kit_fork(k, 2);
}
CASE(fork_other_commit) {
    td_record *r = kit_fork(k, 2);
    r->fork->disproved->offset--;
    return r;
}
CASE(fork_no_reason) {
    td_record *r = kit_fork(k, 2);
    r->fork->reason = TANDEM__JOURNAL__FORK_REASON__FORK_NONE;
    return r;
}

// END
CASE(end_succeeded) {
    return kit_end(k, TANDEM__JOURNAL__OUTCOME__SUCCEEDED);
}
CASE(end_failed) {
    return kit_end(k, TANDEM__JOURNAL__OUTCOME__FAILED);
}
CASE(end_nothing) {
    return kit_end(k, TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE);
}
CASE(draw_after_end) {
    kit_put(k, kit_end(k, TANDEM__JOURNAL__OUTCOME__CANCELLED));
    return kit_draw(k, 0, 0, 6);
}
CASE(gang_after_end) {
    kit_put(k, kit_end(k, TANDEM__JOURNAL__OUTCOME__CANCELLED));
    return kit_gang(k, 2);
}

// STATE
CASE(state_second_part) {
    return kit_state(k, 2, 2, "", 0);
}
CASE(state_wrong) {
    return kit_state(k, 1, 1, "abc", 3);
}

struct row {
    const char *name;
    td_record *(*build)(struct kit *k);
    enum kit_stage stage;
    const char *why; // NULL: accepted; else a part of the reason
};

#define ROW(build, stage, why)                                                                     \
    { #build, build, stage, why }

static const struct row rows[] = {
    ROW(beat, KIT_LED, NULL),
    ROW(job_second, KIT_JOBBED, NULL),
    ROW(job_known_id, KIT_JOBBED, "known"),
    ROW(job_known_request, KIT_JOBBED, "known"),
    ROW(job_without_rows, KIT_JOBBED, "without"),
    ROW(job_without_index, KIT_JOBBED, "without"),
    ROW(gang_first, KIT_JOBBED, NULL),
    ROW(gang_next, KIT_GANGED, NULL),
    ROW(gang_next, KIT_SEALED, NULL),
    ROW(gang_same_generation, KIT_GANGED, "the last one is 1"),
    ROW(gang_skips, KIT_GANGED, "the last one is 1"),
    ROW(gang_unknown_job, KIT_GANGED, "unknown"),
    ROW(gang_without_ranks, KIT_GANGED, "without ranks"),
    ROW(gang_twice, KIT_GANGED, "twice"),
    ROW(gang_none, KIT_GANGED, "no gang"),
    ROW(restore_initial, KIT_GANGED, NULL),
    ROW(restore_twice, KIT_BASED, "has a base"),
    ROW(restore_old_generation, KIT_BASED, "current is 2"),
    ROW(restore_unknown, KIT_KEPT1, "not kept"),
    ROW(restore_kept, KIT_KEPT2, NULL),
    ROW(restore_initial_no_longer_kept, KIT_KEPT2, "not kept"),
    ROW(restore_unknown_gang, KIT_GANGED, "gang 4"),
    ROW(draw_first, KIT_STARTED, NULL),
    ROW(draw_first, KIT_JOBBED, NULL),
    ROW(draw_elsewhere, KIT_STARTED, "cursor"),
    ROW(draw_other_epoch, KIT_STARTED, "cursor"),
    ROW(draw_nothing, KIT_STARTED, "of 10 rows"),
    ROW(draw_beyond_rows, KIT_STARTED, "of 10 rows"),
    ROW(draw_too_many_open, KIT_STARTED, "more than 6"),
    ROW(draw_unknown_job, KIT_STARTED, "unknown"),
    ROW(draw_first, KIT_DRAWN, "cursor"),
    ROW(drop_open, KIT_SEALED, NULL),
    ROW(drop_sealed, KIT_SEALED, "not open"),
    ROW(drop_undrawn, KIT_SEALED, "not open"),
    ROW(drop_twice, KIT_SEALED, "order"),
    ROW(drop_without_reason, KIT_SEALED, "reasons"),
    ROW(drop_none, KIT_SEALED, "DROP of 0"),
    ROW(seal, KIT_DRAWN, NULL),
    ROW(seal_before_step_0, KIT_BASED, "before COMMIT"),
    ROW(seal_while_open, KIT_SEALED, "SEAL of round 2"),
    ROW(seal_skips_round, KIT_DRAWN, "SEAL of round 2"),
    ROW(seal, KIT_STEP1, "SEAL of round 1"),
    ROW(seal_other_parent, KIT_DRAWN, "parent"),
    ROW(seal_without_parent, KIT_DRAWN, "parent"),
    ROW(seal_not_open, KIT_DRAWN, "not open"),
    ROW(seal_twice_the_same, KIT_DRAWN, "order"),
    ROW(seal_out_of_order, KIT_DRAWN, "order"),
    ROW(seal_empty, KIT_DRAWN, "no entries"),
    ROW(seal_other_log, KIT_DRAWN, "of log 0000000000000107"),
    ROW(seal_without_position, KIT_DRAWN, "0 parts"),
    ROW(seal_before_checkpoint, KIT_KEPT1, "before the newest"),
    ROW(seal_other_partition, KIT_KEPT1, NULL),
    ROW(seal_future_step, KIT_DRAWN, "steps 1 to 1 at 0"),
    ROW(seal_stale, KIT_STEP1, "staleness 0"),
    ROW(seal_stale_allowed, KIT_STEP1, NULL),
    ROW(seal_steps_reversed, KIT_STEP1, "steps 1 to 0"),
    ROW(seal_draws_for_groups, KIT_DRAWN, "DRAWs"),
    ROW(reseal_same, KIT_SEALED, NULL),
    ROW(reseal_swaps, KIT_SEALED, NULL),
    ROW(reseal_committed, KIT_STEP1, "not open"),
    ROW(reseal_unsealed, KIT_SEALED, "not open"),
    ROW(reseal_other_ref, KIT_SEALED, "another seal"),
    ROW(reseal_undrawn, KIT_SEALED, "neither open"),
    ROW(reseal_future_step, KIT_SEALED, "steps 0 to 1"),
    ROW(reseal_empty, KIT_SEALED, "no entries"),
    ROW(commit_0, KIT_BASED, NULL),
    ROW(commit_0_without_base, KIT_GANGED, "no base"),
    ROW(commit_0_with_ref, KIT_BASED, "with a SEAL"),
    ROW(commit_0_twice, KIT_STARTED, "the next one is 1"),
    ROW(commit_1, KIT_SEALED, NULL),
    ROW(commit_unsealed, KIT_DRAWN, "0 are sealed"),
    ROW(commit_skips, KIT_SEALED, "the next one is 1"),
    ROW(commit_other_lineage, KIT_SEALED, "lineage 1"),
    ROW(commit_other_ref, KIT_SEALED, "names a SEAL"),
    ROW(commit_without_ref, KIT_SEALED, "names a SEAL"),
    ROW(commit_old_generation, KIT_SEALED, "current is 2"),
    ROW(commit_without_version, KIT_BASED, "without a version"),
    ROW(commit_no_base, KIT_SEALED, "no base"),
    ROW(commit_no_role, KIT_SEALED, "without a role"),
    ROW(commit_role_twice, KIT_SEALED, "twice"),
    ROW(commit_other_role, KIT_SEALED, "another role"),
    ROW(commit_resealed, KIT_SEALED, "names a SEAL"),
    ROW(checkpoint, KIT_STEP1, NULL),
    ROW(checkpoint_of_0, KIT_STEP1, "step 0"),
    ROW(checkpoint_uncommitted, KIT_SEALED, "no committed state"),
    ROW(checkpoint_other_digest, KIT_STEP1, "no committed state"),
    ROW(checkpoint_other_lineage, KIT_STEP1, "no committed state"),
    ROW(checkpoint_old_generation, KIT_STEP1, "current is 2"),
    ROW(checkpoint_again, KIT_KEPT1, "kept already"),
    ROW(checkpoint_not_newer, KIT_KEPT1, "newest kept is of 1"),
    ROW(checkpoint_above_entries, KIT_STEP2, "lies below"),
    ROW(checkpoint_partition_twice, KIT_STEP1, "twice"),
    ROW(fork_from_2, KIT_STEP3, NULL),
    ROW(fork_other_lineage, KIT_STEP3, "lineage 2"),
    ROW(fork_below_kept, KIT_STEP3, "possible are 1"),
    ROW(fork_from_head, KIT_STEP3, "possible are 1"),
    ROW(fork_below_base, KIT_STEP3, "possible are 2"),
    ROW(fork_old_generation, KIT_STEP3, "current is 2"),
    ROW(fork_without_base, KIT_STEP3, "no base"),
    ROW(fork_other_commit, KIT_STEP3, "another COMMIT"),
    ROW(fork_no_reason, KIT_STEP3, "without a reason"),
    ROW(end_succeeded, KIT_STEP1, NULL),
    ROW(end_succeeded, KIT_SEALED, "open round"),
    ROW(end_failed, KIT_SEALED, NULL),
    ROW(end_nothing, KIT_STEP1, "without an outcome"),
    ROW(draw_after_end, KIT_STARTED, "has ended"),
    ROW(gang_after_end, KIT_GANGED, "has ended"),
    ROW(state_second_part, KIT_STEP1, "does not follow"),
    ROW(state_wrong, KIT_STEP1, "differs"),
};

static void test_apply_rows(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        struct kit k;
        kit_init(&k);
        kit_go(&k, row->stage);
        td_record *r = row->build(&k);
        bool allowed = td_journal_allows(&k.state, r, NULL);
        uint64_t seq = k.state.seq;
        enum td_verdict verdict = kit_put(&k, r);
        bool ok = row->why ? verdict == TD_REJECTED && strstr(k.why, row->why) != NULL
                           : verdict == TD_ACCEPTED;
        bool is_state = r->body_case == TANDEM__JOURNAL__RECORD__BODY_STATE; // content: apply only
        if (!ok || (allowed != !row->why && !is_state)) {
            print_error("row %zu %s at stage %d: verdict %d, allowed %d: %s\n", i, row->name,
                        (int)row->stage, (int)verdict, (int)allowed, k.why);
            fail();
        }
        assert_int_equal(k.state.seq, seq + 1); // the chain goes on, accepted or not
        assert_int_equal(k.state.last.offset, (int64_t)k.log_count - 1);
        assert_int_equal(k.state.rejected, row->why ? 1 : 0);
        kit_fini(&k);
    }
}

// What a DRAW opens is bounded, whatever the job says of itself; sums do not wrap around.
static void test_apply_draw_is_bounded(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_LED);
    td_record *job = kit_job(&k, KIT_JOB, "large");
    job->job->index->rows = job->job->open_max = UINT64_MAX;
    assert_int_equal(kit_put(&k, job), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, 0, UINT64_MAX)), TD_REJECTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, 0, 5)), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, 5, UINT64_MAX)), TD_REJECTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, 5, TD_OPEN_MAX)), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, TD_OPEN_MAX, TD_OPEN_MAX + 1)), TD_REJECTED);
    assert_non_null(strstr(k.why, "opens more than"));
    kit_fini(&k);
}

// There is always room for a new job but when none of the others has ended.
static void test_apply_ended_jobs_make_room(void **unused) {
    (void)unused;
    struct kit k;
    char request[24];
    kit_init(&k);
    kit_go(&k, KIT_JOBBED);
    for (uint64_t i = 1; i < TD_JOBS_MAX; i++) {
        snprintf(request, sizeof request, "request %llu", (unsigned long long)i);
        assert_int_equal(kit_put(&k, kit_job(&k, 100 + i, request)), TD_ACCEPTED);
    }
    assert_int_equal(kit_put(&k, kit_job(&k, 200, "one more")), TD_REJECTED);
    assert_non_null(strstr(k.why, "64 jobs wait or run already"));
    for (uint64_t job = 102; job <= 103; job++) {
        td_record *end = kit_end(&k, TANDEM__JOURNAL__OUTCOME__CANCELLED);
        end->end->job = job;
        assert_int_equal(kit_put(&k, end), TD_ACCEPTED);
    }
    assert_int_equal(kit_put(&k, kit_job(&k, 200, "one more")), TD_ACCEPTED);
    assert_null(td_journal_job(&k.state, 102));
    assert_non_null(td_journal_job(&k.state, 103));
    assert_non_null(td_journal_job(&k.state, KIT_JOB));
    assert_int_equal(kit_put(&k, kit_job(&k, 201, "request 2")), TD_ACCEPTED); // forgotten, too
    assert_null(td_journal_job(&k.state, 103));
    assert_int_equal(kit_put(&k, kit_job(&k, 202, "another")), TD_REJECTED);
    assert_int_equal(k.state.job_count, TD_JOBS_MAX);
    kit_fini(&k);
}

// A rejected body has no effect but on the chain.
static void test_apply_rejected_changes_nothing(void **unused) {
    (void)unused;
    struct kit a, b;
    kit_init(&a);
    kit_init(&b);
    kit_go(&a, KIT_STEP3);
    kit_go(&b, KIT_STEP3);
    assert_int_equal(kit_put(&a, kit_commit(&a, 5)), TD_REJECTED);
    assert_int_equal(kit_put(&b, kit_beat(&b)), TD_ACCEPTED);
    b.state.last = a.state.last;
    assert_int_equal(td_journal_digest(&a.state), td_journal_digest(&b.state));
    kit_fini(&a);
    kit_fini(&b);
}

static void test_apply_header_rules(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STARTED);
    struct td_pos last = k.state.last;
    uint64_t digest = td_journal_digest(&k.state);
#define PUT(change, expected)                                                                      \
    do {                                                                                           \
        td_record *r = kit_draw(&k, 0, 0, 6);                                                      \
        td_journal_header(&k.state, r);                                                            \
        r->owner = KIT_ME;                                                                         \
        change;                                                                                    \
        assert_int_equal(kit_put_raw(&k, r), expected);                                            \
        assert_int_equal(td_journal_digest(&k.state), digest);                                     \
    } while (0)
    PUT(r->journal_id++, TD_IGNORED);
    PUT(r->prev->offset = last.offset + 1, TD_REBASE);
    PUT(r->prev->crc++, TD_DAMAGED);
    PUT(r->prev->offset--, TD_IGNORED);
    PUT(r->prev = NULL, TD_IGNORED);
    PUT(r->term--, TD_IGNORED);
    PUT(r->term++, TD_IGNORED);
    PUT(r->owner = KIT_OTHER, TD_IGNORED);
    PUT(r = kit_init_record(&k, 0x1D, 9), TD_IGNORED);
#undef PUT
    assert_int_equal(k.state.ignored, 7);
    td_record *late = kit_lead(&k); // a LEAD prepared now …
    td_journal_header(&k.state, late);
    late->owner = KIT_OTHER;
    td_record *again = kit_draw(&k, 0, 0, 6);
    assert_int_equal(kit_put(&k, again), TD_ACCEPTED);
    assert_int_equal(kit_put_raw(&k, again), TD_IGNORED); // a repeat
    assert_int_equal(kit_put_raw(&k, late), TD_IGNORED);  // … cannot depose who wrote since
    td_record *lead = kit_lead(&k);
    td_journal_header(&k.state, lead);
    lead->owner = KIT_OTHER;
    lead->term++;
    assert_int_equal(kit_put_raw(&k, lead), TD_IGNORED);
    lead->term--;
    assert_int_equal(kit_put_raw(&k, lead), TD_ACCEPTED);
    assert_int_equal(k.state.term, 2);
    assert_int_equal(k.state.owner, KIT_OTHER);
    assert_int_equal(kit_put(&k, kit_beat(&k)), TD_IGNORED); // KIT_ME leads no more
    kit_fini(&k);
}

static td_record *rows_seal(struct kit *k, uint64_t round, uint64_t epoch, uint64_t from,
                            uint64_t n) {
    td_record *r = kit_seal(k, round, 0, n, round - 1);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = from + i;
        r->seal->entries[i]->group->data_epoch = epoch + at / KIT_ROWS;
        r->seal->entries[i]->group->index = at % KIT_ROWS;
        r->seal->entries[i]->n_parts = 0;
        r->seal->entries[i]->log = 0;
    }
    r->seal->draws[0] = kit_draw(k, epoch, from, from + n < KIT_ROWS ? from + n : KIT_ROWS)->draw;
    r->seal->n_draws = 1;
    if (from + n > KIT_ROWS) {
        r->seal->draws[1] = kit_draw(k, epoch + 1, 0, from + n - KIT_ROWS)->draw;
        r->seal->n_draws = 2;
    }
    return r;
}

// A job over rows seals and draws in one record, over the end of a data epoch too.
static void test_apply_rows_job(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_LED);
    td_record *job = kit_job(&k, KIT_JOB, "first");
    job->job->rollout_log = 0;
    assert_int_equal(kit_put(&k, job), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_gang(&k, 1)), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_restore(&k, 1, 0)), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_commit(&k, 0)), TD_ACCEPTED);
    for (uint64_t round = 1; round <= 2; round++) {
        assert_int_equal(kit_put(&k, rows_seal(&k, round, 0, (round - 1) * 4, 4)), TD_ACCEPTED);
        assert_int_equal(kit_put(&k, kit_commit(&k, round)), TD_ACCEPTED);
    }
    td_record *wrong = rows_seal(&k, 3, 0, 8, 4); // 8, 9 of epoch 0; 0, 1 of epoch 1
    wrong->seal->draws[1]->to = 1;
    assert_int_equal(kit_put(&k, wrong), TD_REJECTED);
    assert_non_null(strstr(k.why, "not open"));
    wrong = rows_seal(&k, 3, 0, 8, 4);
    wrong->seal->entries[3]->min_step = 1;
    assert_int_equal(kit_put(&k, wrong), TD_REJECTED);
    wrong = rows_seal(&k, 3, 0, 8, 4);
    wrong->seal->draws[2] = kit_draw(&k, 1, 2, 3)->draw;
    wrong->seal->n_draws = 3;
    assert_int_equal(kit_put(&k, wrong), TD_REJECTED);
    assert_int_equal(kit_put(&k, rows_seal(&k, 3, 0, 8, 4)), TD_ACCEPTED);
    const struct td_job_state *j = td_journal_job(&k.state, KIT_JOB);
    assert_int_equal(j->cursor.data_epoch, 1);
    assert_int_equal(j->cursor.index, 2);
    assert_int_equal(j->open_count, 0);
    kit_fini(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apply_rows),
        cmocka_unit_test(test_apply_draw_is_bounded),
        cmocka_unit_test(test_apply_ended_jobs_make_room),
        cmocka_unit_test(test_apply_rejected_changes_nothing),
        cmocka_unit_test(test_apply_header_rules),
        cmocka_unit_test(test_apply_rows_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
