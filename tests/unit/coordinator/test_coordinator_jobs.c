// Jobs: what is appended when, which units go to whom, what a job waits for and how it ends.
#include "tests/unit/cmocka_all.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/rng.h"
#include "tests/unit/coordinator/bench.h"

// A job whose gang has loaded the initial state and whose step 0 is committed and closed.
static void begin(struct bench *b) {
    bench_start(b, 0, true);
    bench_submit(b, 0, "first", 5, 4);
    bench_report(b, 0, bench_train(b)); // eligible: GANG
    bench_report(b, 0, bench_train(b)); // has seen it: RESTORE
    Tandem__Sync__Report *r = bench_train(b);
    bench_add_finished(b, r);
    bench_report(b, 0, r);
    assert_non_null(bench_job(b));
    bench_report(b, 0, bench_train(b));
}

static void train(struct bench *b) {
    Tandem__Sync__Report *r = bench_train(b);
    bench_add_finished(b, r);
    bench_report(b, 0, r);
    bench_report(b, 0, bench_train(b)); // its line is closed
}

static enum td_wait wait_of(struct bench *b, struct td_job_view *view) {
    assert_true(td_coordinator_job_view(b->c[0], JOB, view));
    return view->wait;
}

static void test_jobs_rows(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    b.plan.rows_job = true;
    begin(&b);
    for (int i = 0; i < 3; i++) {
        train(&b);
    }
    // 5 rows, 2 a step: the fifth is drawn and dropped before the next epoch begins
    assert_string_equal(
        bench_names(&b, 2),
        "JOB GANG RESTORE COMMIT SEAL COMMIT SEAL COMMIT DRAW DROP SEAL COMMIT END");
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__SUCCEEDED);
    const struct td_round_state *r = td_job_round(bench_job(&b), 3);
    assert_int_equal(r->entries[1]->group->data_epoch, 1);
    assert_int_equal(r->entries[1]->row_digest, 1101);
    assert_int_equal(b.truth.rejected, 0);
    bench_fini(&b);
}

static size_t units_of(const struct bench *b, uint64_t member) {
    const Tandem__Sync__Orders *o = b->orders[member % 512];
    return o ? o->n_units : 0;
}

// Where the trainer's workers serve them; told at once when that changes.
static void weights_have_sources(struct bench *b) {
    char *weights[] = {(char *)"zero", (char *)"one"};
    Tandem__Sync__Report *t = bench_train(b);
    t->train->weights = weights;
    t->train->n_weights = 2;
    bench_report(b, 0, t);
    const Tandem__Sync__Orders *o = b->orders[ROLL % 512];
    assert_int_equal(o->n_target_sources, 2);
    assert_string_equal(o->target_sources[0], "zero");
    assert_string_equal(o->target_sources[1], "one");
    t = bench_train(b);
    t->train->weights = weights + 1;
    t->train->n_weights = 1;
    bench_report(b, 0, t);
    o = b->orders[ROLL % 512];
    assert_int_equal(o->n_target_sources, 1);
    t = bench_train(b);
    t->train->job++; // it speaks of another one
    t->train->weights = weights;
    t->train->n_weights = 2;
    bench_report(b, 0, t);
    assert_int_equal(b->orders[ROLL % 512]->n_target_sources, 0);
}

// Where each group of the open round is, for people.
static void check_groups(const struct bench *b, enum td_group_place first,
                         enum td_group_place second, int64_t leased_ms) {
    struct td_group_view g[4];
    assert_int_equal(td_coordinator_groups(b->c[0], JOB, g, 4), 2);
    assert_int_equal(td_coordinator_groups(b->c[0], JOB, g, 1), 1);
    assert_int_equal(td_coordinator_groups(b->c[0], JOB + 1, g, 4), 0);
    assert_true(g[0].group.index == 0 && g[1].group.index == 1);
    assert_int_equal(g[0].place, first);
    assert_int_equal(g[1].place, second);
    assert_int_equal(g[1].member, second == TD_GROUP_LEASED ? ROLL + 1 : 0);
    static const char *const waits[] = {"a rollout member with room", "its report", ""};
    for (int i = 0; i < 2; i++) {
        assert_non_null(strstr(g[i].waits_for, waits[g[i].place]));
        assert_true(g[i].place != TD_GROUP_LEASED || g[i].since_ms == leased_ms);
    }
}

static void test_jobs_groups_are_leased_where_there_is_room(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    begin(&b);
    struct td_job_view view;
    bench_report(&b, 0, bench_train(&b));
    assert_string_equal(bench_names(&b, 5), "COMMIT DRAW");
    assert_int_equal(wait_of(&b, &view), TD_WAIT_ROLLOUT);
    Tandem__Sync__Report *full = bench_roll(&b, ROLL, 0);
    bench_report(&b, 0, full);
    assert_int_equal(units_of(&b, ROLL), 0);
    Tandem__Sync__Report *stale = bench_roll(&b, ROLL + 1, 4);
    stale->rollout->versions[0]->digest++; // other weights than the committed ones
    bench_report(&b, 0, stale);
    assert_int_equal(units_of(&b, ROLL + 1), 0);
    bench_report(&b, 0, bench_roll(&b, ROLL, 1));
    assert_int_equal(units_of(&b, ROLL), 1); // as much as it has room for
    int64_t leased_ms = b.now;
    bench_pass(&b, 100);
    check_groups(&b, TD_GROUP_LEASED, TD_GROUP_WAITS, leased_ms);
    bench_report(&b, 0, bench_roll(&b, ROLL + 1, 4));
    assert_int_equal(units_of(&b, ROLL + 1), 1);
    const Tandem__Sync__Orders *o = b.orders[(ROLL + 1) % 512];
    assert_int_equal(o->units[0]->groups[0]->index, 1);
    assert_int_equal(o->target_digest, 0xDD00);
    assert_int_equal(o->n_target_sources, 0);
    weights_have_sources(&b);
    bench_report(&b, 0, bench_train(&b));
    assert_int_equal(wait_of(&b, &view), TD_WAIT_GROUPS);
    // both arrive: SEAL, and the units are over
    Tandem__Sync__Report *t = bench_train(&b);
    bench_add_arrived(&b, t, (struct td_group){0, 0}, 10);
    bench_report(&b, 0, t);
    check_groups(&b, TD_GROUP_ARRIVED, TD_GROUP_LEASED, leased_ms + 100);
    t = bench_train(&b);
    bench_add_arrived(&b, t, (struct td_group){0, 0}, 10);
    bench_add_arrived(&b, t, (struct td_group){0, 1}, 11);
    bench_report(&b, 0, t);
    assert_string_equal(bench_names(&b, 5), "COMMIT DRAW SEAL");
    assert_int_equal(units_of(&b, ROLL) + units_of(&b, ROLL + 1), 0);
    bench_report(&b, 0, bench_train(&b));
    assert_int_equal(wait_of(&b, &view), TD_WAIT_TRAINING);
    bench_fini(&b);
}

// The trainer has read a SEAL that the leader has not: what it reports no longer is sealed, not
// lost.
static void test_jobs_nothing_is_leased_while_a_record_is_on_its_way(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    begin(&b);
    bench_report(&b, 0, bench_train(&b));
    bench_report(&b, 0, bench_roll(&b, ROLL, 4));
    assert_int_equal(units_of(&b, ROLL), 2);
    uint64_t attempt = b.orders[ROLL % 512]->units[0]->attempt->n;
    b.cut[0] = true;
    Tandem__Sync__Report *t = bench_train(&b);
    bench_add_arrived(&b, t, (struct td_group){0, 0}, 10);
    bench_add_arrived(&b, t, (struct td_group){0, 1}, 11);
    bench_report(&b, 0, t); // SEAL goes out
    bench_report(&b, 0, bench_train(&b));
    bench_report(&b, 0, bench_roll(&b, ROLL, 4));
    assert_int_equal(units_of(&b, ROLL), 2);
    assert_int_equal(b.orders[ROLL % 512]->units[0]->attempt->n, attempt);
    bench_fini(&b);
}

static void test_jobs_unit_of_a_silent_member_goes_to_another(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    begin(&b);
    bench_report(&b, 0, bench_train(&b));
    bench_report(&b, 0, bench_roll(&b, ROLL, 2));
    assert_int_equal(units_of(&b, ROLL), 2);
    uint64_t n = b.orders[ROLL]->units[0]->attempt->n;
    for (int i = 0; i < 11; i++) { // a lease is 1000 ms
        bench_pass(&b, 100);
        bench_report(&b, 0, bench_train(&b));
        bench_report(&b, 0, bench_roll(&b, ROLL + 1, 4));
        assert_int_equal(units_of(&b, ROLL + 1), i < 9 ? 0 : 2);
    }
    assert_true(b.orders[ROLL + 1]->units[0]->attempt->n > n);
    bench_fini(&b);
}

// What only its units tell is answered without a look at the rest: with what was left for want of
// room, and only to the member that reported.
static void test_jobs_report_of_units_is_answered_alone(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    begin(&b);
    bench_report(&b, 0, bench_train(&b));
    bench_report(&b, 0, bench_roll(&b, ROLL, 1));
    bench_report(&b, 0, bench_roll(&b, ROLL + 1, 0));
    assert_int_equal(units_of(&b, ROLL), 1);
    assert_int_equal(units_of(&b, ROLL + 1), 0);
    size_t orders = b.orders_count;
    bench_report(&b, 0, bench_roll(&b, ROLL + 1, 4));
    assert_int_equal(units_of(&b, ROLL + 1), 1);
    assert_int_equal(b.orders[ROLL + 1]->units[0]->groups[0]->index, 1);
    assert_int_equal(b.orders_count, orders + 1);
    bench_report(&b, 0, bench_roll(&b, ROLL, 4)); // nothing is left
    assert_int_equal(units_of(&b, ROLL), 1);
    assert_int_equal(b.orders_count, orders + 2);
    // groups arrive: theirs are told that the units are over, without a report of theirs
    Tandem__Sync__Report *t = bench_train(&b);
    bench_add_arrived(&b, t, (struct td_group){0, 1}, 10);
    bench_report(&b, 0, t);
    assert_int_equal(units_of(&b, ROLL), 1);
    assert_int_equal(units_of(&b, ROLL + 1), 0);
    assert_int_equal(b.orders_count, orders + 4);
    bench_fini(&b);
}

static void test_jobs_nothing_is_leased_before_the_log_was_read(void **unused) {
    (void)unused;
    struct bench b;
    struct td_job_view view;
    bench_init(&b);
    begin(&b);
    Tandem__Sync__Report *t = bench_train(&b);
    t->train->scanned = false;
    bench_report(&b, 0, t);
    bench_report(&b, 0, bench_roll(&b, ROLL, 2));
    assert_int_equal(units_of(&b, ROLL), 0);
    assert_int_equal(wait_of(&b, &view), TD_WAIT_SCAN);
    bench_report(&b, 0, bench_train(&b));
    assert_int_equal(units_of(&b, ROLL), 2);
    bench_fini(&b);
}

// The head's line of metrics is known to be absent.
static Tandem__Sync__Report *no_line(struct bench *b) {
    Tandem__Sync__Report *r = bench_train(b);
    r->train->has_metrics = false;
    return r;
}

static void begin_validated(struct bench *b) {
    bench_init(b);
    b->plan.val_rows = 3;
    b->plan.val_before_train = true;
    bench_start(b, 0, true);
    bench_submit(b, 0, "first", 5, 4);
    bench_report(b, 0, bench_train(b));
    bench_report(b, 0, bench_train(b));
    Tandem__Sync__Report *r = bench_train(b);
    bench_add_finished(b, r);
    r->train->metrics_known = false;
    bench_report(b, 0, r);
    assert_string_equal(bench_names(b, 5), "COMMIT");
}

static void score_all(struct bench *b) {
    const Tandem__Sync__Orders *o = b->orders[ROLL];
    Tandem__Sync__Report *r = bench_roll(b, ROLL, 1);
    for (size_t i = 0; i < 3; i++) {
        Tandem__Sync__UnitReport *u = bench_make(b, sizeof *u);
        tandem__sync__unit_report__init(u);
        u->job = JOB;
        u->eval = true;
        u->attempt = (Tandem__Sync__Attempt *)td_message_dup(o->units[i]->attempt);
        u->scores = bench_make(b, sizeof *u->scores);
        u->scores[0] = bench_make(b, sizeof **u->scores);
        tandem__sync__eval_score__init(u->scores[0]);
        u->scores[0]->index = i;
        u->scores[0]->n_score = 1;
        u->scores[0]->score = bench_make(b, sizeof(double));
        u->scores[0]->score[0] = 0.5 * (double)i;
        u->n_scores = 1;
        r->rollout->units[r->rollout->n_units++] = u;
    }
    bench_report(b, 0, r);
    for (size_t i = 0; i < 3; i++) {
        tandem__sync__attempt__free_unpacked(r->rollout->units[i]->attempt, NULL);
    }
}

static void test_jobs_validation_comes_before_the_next_draw(void **unused) {
    (void)unused;
    struct bench b;
    struct td_job_view view;
    begin_validated(&b);
    bench_report(&b, 0, no_line(&b));
    assert_int_equal(wait_of(&b, &view), TD_WAIT_ROLLOUT);
    assert_false(b.orders[TRAIN]->step_closed);
    bench_report(&b, 0, bench_roll(&b, ROLL, 4));
    assert_int_equal(units_of(&b, ROLL), 3);
    assert_true(b.orders[ROLL]->units[0]->eval);
    score_all(&b);
    assert_true(b.orders[TRAIN]->step_closed);
    assert_int_equal(b.orders[TRAIN]->n_eval, 3);
    assert_true(b.orders[TRAIN]->eval[2]->score[0] == 1.0);
    assert_int_equal(b.orders[TRAIN]->closed_lineage, bench_job(&b)->head.lineage);
    assert_int_equal(wait_of(&b, &view), TD_WAIT_SAVE);
    bench_report(&b, 0, bench_train(&b));
    assert_string_equal(bench_names(&b, 6), "DRAW");
    bench_fini(&b);
}

// What is not known to be absent is not validated; which reports do not say so.
static void test_jobs_validation_waits_for_the_line_to_be_absent(void **unused) {
    (void)unused;
    for (int lacking = 0; lacking < 4; lacking++) {
        struct bench b;
        struct td_job_view view;
        begin_validated(&b);
        Tandem__Sync__Report *r = no_line(&b);
        r->train->metrics_known = lacking != 0;
        r->term -= lacking == 1; // it may still close the step on an older leader's word
        r->train->generation -= lacking == 2;
        r->train->lineage += lacking == 3;
        bench_report(&b, 0, r);
        bench_report(&b, 0, bench_roll(&b, ROLL, 4));
        assert_int_equal(units_of(&b, ROLL), 0);
        assert_int_equal(wait_of(&b, &view), TD_WAIT_SAVE);
        assert_int_equal(view.member, TRAIN);
        assert_false(b.orders[TRAIN]->step_closed);
        bench_report(&b, 0, no_line(&b));
        assert_int_equal(units_of(&b, ROLL), 3);
        bench_fini(&b);
    }
}

// A leader that was not there when the step was closed hears that it is.
static void test_jobs_closed_step_is_not_validated_again(void **unused) {
    (void)unused;
    struct bench b;
    begin_validated(&b);
    bench_report(&b, 0, bench_roll(&b, ROLL, 4));
    assert_int_equal(units_of(&b, ROLL), 0);
    Tandem__Sync__Report *r = bench_train(&b);
    r->train->saved = false;
    bench_report(&b, 0, r);
    assert_int_equal(units_of(&b, ROLL), 0);
    struct td_job_view view;
    assert_int_equal(wait_of(&b, &view), TD_WAIT_SAVE);
    bench_report(&b, 0, bench_train(&b));
    assert_string_equal(bench_names(&b, 6), "DRAW");
    assert_int_equal(b.orders[TRAIN]->n_eval, 0);
    bench_fini(&b);
}

// A line that comes while the step is validated (from a member that led its gang before) ends that.
static void test_jobs_line_ends_a_validation(void **unused) {
    (void)unused;
    struct bench b;
    begin_validated(&b);
    bench_report(&b, 0, no_line(&b));
    bench_report(&b, 0, bench_roll(&b, ROLL, 4));
    assert_int_equal(units_of(&b, ROLL), 3);
    bench_report(&b, 0, bench_train(&b));
    assert_string_equal(bench_names(&b, 6), "DRAW");
    bench_report(&b, 0, bench_roll(&b, ROLL, 4));
    assert_int_equal(units_of(&b, ROLL), 2);
    assert_false(b.orders[ROLL]->units[0]->eval);
    assert_int_equal(b.orders[TRAIN]->n_eval, 0); // half of a validation is none
    bench_fini(&b);
}

// The unit at that place of its orders has failed so often.
static void report_failures(struct bench *b, uint32_t failures, uint64_t attempt_off) {
    const Tandem__Sync__Unit *leased = b->orders[ROLL]->units[1];
    Tandem__Sync__Report *r = bench_roll(b, ROLL, 0);
    Tandem__Sync__UnitReport u = TANDEM__SYNC__UNIT_REPORT__INIT;
    Tandem__Sync__Attempt attempt = *leased->attempt;
    attempt.n += attempt_off;
    u.job = JOB;
    u.attempt = &attempt;
    u.groups = leased->groups;
    u.n_groups = u.n_failures = 1;
    u.failures = &failures;
    u.failed = (char *)"worker 1 ended";
    r->rollout->units[r->rollout->n_units++] = &u;
    bench_report(b, 0, r);
}

// L1: a group that fails again and again ends its job.
static void test_jobs_group_that_fails_ends_the_job(void **unused) {
    (void)unused;
    for (uint64_t max = 0; max <= 3; max += 3) {
        struct bench b;
        bench_init(&b);
        b.plan.max_attempts = max;
        b.plan.shuffle = true;
        b.plan.seed = 7;
        begin(&b);
        bench_report(&b, 0, bench_roll(&b, ROLL, 4));
        assert_int_equal(units_of(&b, ROLL), 2);
        report_failures(&b, 2, 0);
        report_failures(&b, 3, 9); // of a unit that it does not have any more
        assert_int_equal(b.ended_job, 0);
        report_failures(&b, 3, 0);
        assert_int_equal(b.ended_job, max ? JOB : 0);
        if (max) {
            char row[64];
            snprintf(row, sizeof row,
                     "row %d (from 0, of those kept) of data.train_files failed 3 ",
                     (int)td_permute(7, 0, 5, 1));
            assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__FAILED);
            assert_non_null(strstr(b.cause, row));
            assert_non_null(strstr(b.cause, "worker 1 ended"));
        }
        bench_fini(&b);
    }
}

static void lose_gang(struct bench *b) {
    Tandem__Sync__Report *r = bench_train(b);
    r->train->lost = true;
    r->train->lost_cause = (char *)"rank 0 could not load the base: timeout";
    bench_report(b, 0, r);
    bench_report(b, 0, r); // told twice is counted once
    bench_report(b, 0, bench_train(b));
}

// L1: so does a train gang that cannot keep what it loaded.
static void test_jobs_gang_that_is_lost_ends_the_job(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    b.plan.max_attempts = 3;
    b.plan.rows_job = true;
    begin(&b);
    lose_gang(&b);
    lose_gang(&b);
    train(&b); // a COMMIT in between: from the beginning
    lose_gang(&b);
    lose_gang(&b);
    assert_int_equal(b.ended_job, 0);
    lose_gang(&b);
    assert_int_equal(b.ended_job, JOB);
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__FAILED);
    assert_non_null(strstr(b.cause, "3 times in a row behind step 1"));
    assert_non_null(strstr(b.cause, "could not load the base"));
    bench_fini(&b);
}

// A round of two groups that lie at 10 and 11, sealed and not trained.
static void seal_one(struct bench *b) {
    begin(b);
    bench_report(b, 0, bench_train(b));
    Tandem__Sync__Report *t = bench_train(b);
    bench_add_arrived(b, t, (struct td_group){0, 0}, 10);
    bench_add_arrived(b, t, (struct td_group){0, 1}, 11);
    bench_report(b, 0, t);
    assert_int_equal(bench_job(b)->sealed, 1);
}

static Tandem__Sync__Report *missing(struct bench *b, uint64_t round) {
    Tandem__Sync__Report *r = bench_train(b);
    const struct td_round_state *at = td_job_round(bench_job(b), round);
    r->train->missing_round = round;
    r->train->missing_ref = bench_make(b, sizeof *r->train->missing_ref);
    tandem__journal__position__init(r->train->missing_ref);
    r->train->missing_ref->offset = at->ref.offset;
    r->train->missing_ref->crc = at->ref.crc;
    r->train->missing_cause = td_arena_strndup(b->arena, "0:11 gone", 9);
    r->train->missing = bench_make(b, sizeof *r->train->missing);
    r->train->missing[0] = 1;
    r->train->n_missing = 1;
    return r;
}

static void test_jobs_lost_record_is_generated_again_and_sealed_anew(void **unused) {
    (void)unused;
    struct bench b;
    struct td_job_view view;
    bench_init(&b);
    seal_one(&b);
    bench_report(&b, 0, missing(&b, 1));
    assert_int_equal(wait_of(&b, &view), TD_WAIT_RECORDS);
    bench_report(&b, 0, bench_roll(&b, ROLL, 2));
    assert_int_equal(units_of(&b, ROLL), 1);
    assert_int_equal(b.orders[ROLL]->units[0]->groups[0]->index, 1);
    Tandem__Sync__Report *same = missing(&b, 1);
    bench_add_arrived(&b, same, (struct td_group){0, 1}, 11); // the copy that is gone
    bench_report(&b, 0, same);
    assert_string_equal(bench_names(&b, 7), "SEAL");
    Tandem__Sync__Report *newer = missing(&b, 1);
    bench_add_arrived(&b, newer, (struct td_group){0, 1}, 20);
    bench_report(&b, 0, newer);
    assert_string_equal(bench_names(&b, 7), "SEAL RESEAL");
    assert_int_equal(td_job_round(bench_job(&b), 1)->entries[1]->parts[0]->offset, 20);
    bench_fini(&b);
}

static void test_jobs_lost_record_of_a_committed_round_ends_the_job(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    seal_one(&b);
    train(&b);
    assert_int_equal(bench_job(&b)->head.step, 1);
    bench_report(&b, 0, missing(&b, 1));
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__FAILED);
    assert_non_null(strstr(b.cause, "0:11 gone"));
    assert_non_null(strstr(b.cause, "start again from step 0"));
    bench_fini(&b);
}

static Tandem__Sync__Report *mismatch(struct bench *b) {
    Tandem__Sync__Report *r = bench_train(b);
    Tandem__Sync__Mismatch *m = bench_make(b, sizeof *m);
    const struct td_round_state *at = td_job_round(bench_job(b), 1);
    tandem__sync__mismatch__init(m);
    m->version = bench_make(b, sizeof *m->version);
    tandem__journal__version__init(m->version);
    m->version->step = 1;
    m->commit = bench_make(b, sizeof *m->commit);
    tandem__journal__position__init(m->commit);
    m->commit->offset = at->commit.offset;
    m->commit->crc = at->commit.crc;
    m->committed = 0xEE01;
    m->found = 0xBAD;
    m->committed_build = td_arena_strndup(b->arena, "then", 4);
    r->train->mismatch = m;
    return r;
}

static void test_jobs_mismatch_ends_the_job_with_both_digests_or_forks(void **unused) {
    (void)unused;
    enum { FAIL, FORK, OTHER_BUILD, OTHER_RANKS, CASES };
    for (int how = FAIL; how < CASES; how++) {
        struct bench b;
        bench_init(&b);
        b.plan.fork_on_mismatch = how == FORK;
        seal_one(&b);
        train(&b);
        if (how == OTHER_BUILD || how == OTHER_RANKS) { // the next generation is another gang
            Tandem__Sync__Report *r = bench_train(&b);
            r->build = (char *)(how == OTHER_BUILD ? "later" : "now");
            r->workers = r->workers_ready = how == OTHER_RANKS ? 1 : 2;
            r->train->lost = true;
            bench_report(&b, 0, r);
            bench_report(&b, 0, bench_train(&b)); // RESTORE
        }
        bench_report(&b, 0, mismatch(&b));
        if (how != FAIL) {
            assert_int_equal(bench_job(&b)->lineage, 1);
            assert_int_equal(bench_job(&b)->head.step, 0);
        } else {
            assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__FAILED);
            static const char *const words[] = {"0000000000000bad", "000000000000ee01", "build now",
                                                "build then"};
            for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
                assert_non_null(strstr(b.cause, words[i]));
            }
        }
        bench_fini(&b);
    }
}

static void test_jobs_lost_state_gets_a_new_generation_and_the_newest_good_checkpoint(void **u) {
    (void)u;
    struct bench b;
    bench_init(&b);
    b.plan.rows_job = true;
    begin(&b);
    for (uint64_t step = 1; step <= 2; step++) {
        Tandem__Sync__Report *r = bench_train(&b);
        bench_add_finished(&b, r);
        bench_report(&b, 0, r);
        r = bench_train(&b);
        bench_add_checkpoint(&b, r, 0xC0 + step);
        bench_report(&b, 0, r);
    }
    assert_int_equal(bench_job(&b)->kept_count, 2);
    assert_int_equal(b.rollout_trims, 1);
    size_t from = b.log_count;
    uint64_t bad[] = {0xC2, 0xC1};
    for (size_t n = 0; n <= 2; n++) {
        Tandem__Sync__Report *r = bench_train(&b);
        r->train->lost = true;
        bench_report(&b, 0, r);
        r = bench_train(&b);
        r->train->n_bad_checkpoints = n;
        r->train->bad_checkpoints = bad;
        bench_report(&b, 0, r);
        if (n < 2) {
            assert_int_equal(td_job_gang(bench_job(&b), "actor")->base, n ? 0xC1 : 0xC2);
        }
    }
    assert_string_equal(bench_names(&b, from), "GANG RESTORE GANG RESTORE GANG END");
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__FAILED);
    assert_non_null(strstr(b.cause, "odd and even are bad"));
    bench_fini(&b);
}

static void test_jobs_gone_trainer_is_replaced(void **unused) {
    (void)unused;
    struct bench b;
    struct td_job_view view;
    bench_init(&b);
    b.plan.rows_job = true;
    begin(&b);
    bench_pass(&b, 1600);
    assert_int_equal(wait_of(&b, &view), TD_WAIT_TRAINER);
    Tandem__Sync__Report *other = bench_train(&b);
    other->member = TRAIN + 1;
    other->train = NULL;
    other->index->data_digest++;
    bench_report(&b, 0, other); // other files: not eligible
    assert_int_equal(td_job_gang(bench_job(&b), "actor")->generation, 1);
    other->index->data_digest--;
    other->workers_ready = 1;
    bench_report(&b, 0, other); // not all workers: not eligible
    assert_int_equal(td_job_gang(bench_job(&b), "actor")->generation, 1);
    other->workers_ready = 2;
    bench_report(&b, 0, other);
    assert_int_equal(td_job_gang(bench_job(&b), "actor")->generation, 2);
    assert_int_equal(td_job_gang(bench_job(&b), "actor")->spec->members[0], TRAIN + 1);
    bench_fini(&b);
}

static void test_jobs_failure_and_cancel_end_the_job(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    seal_one(&b);
    Tandem__Sync__Report *r = bench_train(&b);
    r->train->failed = td_arena_strndup(b.arena, "no room on the disk", 19);
    bench_report(&b, 0, r);
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__FAILED);
    assert_string_equal(b.cause, "no room on the disk");
    bench_fini(&b);
    bench_init(&b);
    seal_one(&b);
    struct td_coordinator_event e = {.kind = TD_CO_CANCEL, .job = JOB};
    bench_event(&b, 0, &e);
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__CANCELLED);
    struct td_job_view view;
    assert_int_equal(wait_of(&b, &view), TD_WAIT_ENDED);
    bench_fini(&b);
}

static void test_jobs_new_leader_leaves_units_with_their_holders(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    begin(&b);
    bench_start(&b, 1, false);
    bench_report(&b, 0, bench_train(&b));
    bench_report(&b, 0, bench_roll(&b, ROLL, 2));
    assert_int_equal(units_of(&b, ROLL), 2);
    Tandem__Sync__Orders *o = td_message_dup(b.orders[ROLL]);
    td_coordinator_free(b.c[0]);
    b.c[0] = NULL;
    bench_pass(&b, 1300);
    assert_true(td_coordinator_leads(b.c[1]));
    bench_report(&b, 1, bench_train(&b));
    bench_report(&b, 1, bench_roll(&b, ROLL + 1, 4));
    assert_int_equal(units_of(&b, ROLL + 1), 0); // ROLL may still be at it
    Tandem__Sync__Report *r = bench_roll(&b, ROLL, 0);
    for (size_t i = 0; i < 2; i++) {
        Tandem__Sync__UnitReport *u = bench_make(&b, sizeof *u);
        tandem__sync__unit_report__init(u);
        u->job = JOB;
        u->attempt = o->units[i]->attempt;
        u->n_groups = 1;
        u->groups = o->units[i]->groups;
        r->rollout->units[r->rollout->n_units++] = u;
    }
    bench_report(&b, 1, r);
    assert_int_equal(units_of(&b, ROLL), 2);
    assert_int_equal(b.orders[ROLL]->term, 2);
    assert_int_equal(b.orders[ROLL]->units[0]->attempt->term, 1); // the same attempt
    tandem__sync__orders__free_unpacked(o, NULL);
    bench_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_rows),
        cmocka_unit_test(test_jobs_groups_are_leased_where_there_is_room),
        cmocka_unit_test(test_jobs_nothing_is_leased_while_a_record_is_on_its_way),
        cmocka_unit_test(test_jobs_unit_of_a_silent_member_goes_to_another),
        cmocka_unit_test(test_jobs_report_of_units_is_answered_alone),
        cmocka_unit_test(test_jobs_nothing_is_leased_before_the_log_was_read),
        cmocka_unit_test(test_jobs_validation_comes_before_the_next_draw),
        cmocka_unit_test(test_jobs_validation_waits_for_the_line_to_be_absent),
        cmocka_unit_test(test_jobs_closed_step_is_not_validated_again),
        cmocka_unit_test(test_jobs_line_ends_a_validation),
        cmocka_unit_test(test_jobs_group_that_fails_ends_the_job),
        cmocka_unit_test(test_jobs_gang_that_is_lost_ends_the_job),
        cmocka_unit_test(test_jobs_lost_record_is_generated_again_and_sealed_anew),
        cmocka_unit_test(test_jobs_lost_record_of_a_committed_round_ends_the_job),
        cmocka_unit_test(test_jobs_mismatch_ends_the_job_with_both_digests_or_forks),
        cmocka_unit_test(test_jobs_lost_state_gets_a_new_generation_and_the_newest_good_checkpoint),
        cmocka_unit_test(test_jobs_gone_trainer_is_replaced),
        cmocka_unit_test(test_jobs_failure_and_cancel_end_the_job),
        cmocka_unit_test(test_jobs_new_leader_leaves_units_with_their_holders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
