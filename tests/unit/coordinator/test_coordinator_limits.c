// What must not happen however odd the journal, the clock or a submission is.
#include "tests/unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/unit/coordinator/replay.h"

static const struct replay_train head_closed = {.closed = true};

// The plan of a job that the journal holds is judged like one that is submitted: no endless DRAW
// and DROP, no unit without groups.
static void test_plan_from_the_journal_is_judged(void **unused) {
    (void)unused;
    static const struct td_job_plan wrong[] = {
        {.train_batch_size = 17, .total_steps = 3, .unit_groups = 2, .lease_ms = 100},
        {.train_batch_size = 0, .total_steps = 3, .unit_groups = 2, .lease_ms = 100},
        {.train_batch_size = 4, .total_steps = 3, .unit_groups = 0, .lease_ms = 100},
        {.train_batch_size = 4, .total_steps = 3, .unit_groups = 4097, .lease_ms = 100}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct replay b;
        replay_init(&b);
        replay_start(&b);
        b.plan = wrong[i];
        replay_restart(&b);
        replay_deliver(&b);
        replay_tick(&b, REPLAY_TAKEOVER_MS);
        replay_report_train(&b, 1, &head_closed);
        replay_report_rollout(&b, 2, 8);
        replay_tick(&b, REPLAY_LEASE_MS);
        assert_int_equal(replay_view(&b, 1).wait, TD_WAIT_SPEC);
        replay_fini(&b);
    }
}

static void test_submission_is_refused_with_its_cause(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    replay_start(&b);
    replay_submit(&b, "long", TD_SPEC_BYTES_MAX + 1);
    assert_non_null(strstr(b.refused, "longer than"));
    for (int i = 1; i < TD_JOBS_MAX; i++) {
        char name[16];
        snprintf(name, sizeof name, "job %d", i);
        replay_submit(&b, name, 4);
    }
    assert_int_equal(b.accepted_job, TD_JOBS_MAX);
    replay_submit(&b, "one more", 4);
    assert_non_null(strstr(b.refused, "64 jobs"));
    replay_submit(&b, "first", 4); // known
    assert_int_equal(b.accepted_job, 1);
    replay_event(&b, &(struct td_coordinator_event){.kind = TD_CO_CANCEL, .job = 2});
    replay_deliver(&b);
    struct td_job_view view;
    assert_true(td_coordinator_job_view(b.machine, 2, &view));
    replay_submit(&b, "one more", 4); // what ended makes room
    assert_int_equal(b.accepted_job, TD_JOBS_MAX + 1);
    assert_false(td_coordinator_job_view(b.machine, 2, &view));
    assert_true(td_coordinator_job_view(b.machine, TD_JOBS_MAX + 1, &view));
    replay_tick(&b, REPLAY_TAKEOVER_MS / 2);
    replay_submit(&b, "yet one more", 4);
    assert_non_null(strstr(b.refused, "64 jobs"));
    replay_fini(&b);
}

static void lead_again(struct replay *b, uint64_t other) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Lead body = TANDEM__JOURNAL__LEAD__INIT;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_LEAD;
    record.lead = &body;
    replay_put_foreign(b, &record, other);
    replay_deliver(b);
    assert_false(td_coordinator_leads(b->machine));
    replay_tick(b, REPLAY_TAKEOVER_MS);
    assert_true(td_coordinator_leads(b->machine));
}

static uint64_t last_attempt(const struct replay *b) {
    const Tandem__Sync__Orders *o = b->orders[2];
    return o && o->n_units ? o->units[o->n_units - 1]->attempt->n : 0;
}

// A leader that reads the journal again acts on nothing until it is at the end: no orders from an
// old state, no lease ended, no attempt given twice.
static void test_leader_that_reads_again_is_still(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    replay_start(&b);
    lead_again(&b, 0xBAD); // so that two of its own terms lie in the log
    replay_report_train(&b, 1, &head_closed);
    replay_tick(&b, REPLAY_LEASE_MS / 2);
    replay_tick(&b, REPLAY_LEASE_MS / 2); // the leader before may have leased what is open
    replay_report_train(&b, 1, &head_closed);
    replay_report_rollout(&b, 2, 8);
    replay_tick(&b, 1);
    assert_int_equal(b.orders[2]->n_units, 2);
    uint64_t attempt = last_attempt(&b);
    assert_int_equal(attempt, 2);

    struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_START};
    replay_event(&b, &e);
    size_t sent = b.orders_count;
    for (size_t i = 0; i < b.count; i++) {
        e = (struct td_coordinator_event){.kind = TD_CO_JOURNAL_RECORD,
                                          .pos = b.pos[i],
                                          .bytes = b.log[i].data,
                                          .n = b.log[i].len};
        replay_event(&b, &e);
        replay_event(&b, &(struct td_coordinator_event){.kind = TD_CO_TICK});
        assert_int_equal(b.orders_count, sent);
    }
    replay_deliver(&b);
    replay_report_train(&b, 1, &head_closed);
    replay_report_rollout(&b, 2, 8);
    assert_int_equal(b.orders[2]->n_units, 2);
    assert_int_equal(last_attempt(&b), attempt); // still the same leases
    replay_report_train(&b, 1, &(struct replay_train){.closed = true, .arrived = 4});
    replay_report_train(&b, 1, &(struct replay_train){.finished = true});
    replay_report_train(&b, 1, &head_closed);
    replay_report_rollout(&b, 2, 8);
    replay_tick(&b, 1);
    assert_int_equal(last_attempt(&b), attempt + 2);
    replay_fini(&b);
}

// Reports that lack parts of their messages are taken without harm, and without a record.
static void test_reports_with_holes(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    b.plan.fork_on_mismatch = true;
    replay_start(&b);
    Tandem__Sync__Report r = TANDEM__SYNC__REPORT__INIT;
    Tandem__Sync__TrainReport t = TANDEM__SYNC__TRAIN_REPORT__INIT;
    Tandem__Sync__Finished finished = TANDEM__SYNC__FINISHED__INIT;
    Tandem__Sync__Mismatch mismatch = TANDEM__SYNC__MISMATCH__INIT;
    Tandem__Journal__Checkpoint checkpoint = TANDEM__JOURNAL__CHECKPOINT__INIT;
    Tandem__Sync__Arrived nothing = TANDEM__SYNC__ARRIVED__INIT, half = nothing;
    td_entry entry = TANDEM__JOURNAL__ENTRY__INIT;
    Tandem__Sync__Arrived *arrived[] = {&nothing, &half, &nothing};
    uint32_t missing[] = {7, UINT32_MAX};
    half.entry = &entry;
    checkpoint.job = 1;
    t = (Tandem__Sync__TrainReport){.base = t.base, .job = 1, .generation = 1, .scanned = true};
    t.failed = t.missing_cause = t.waits_for = (char *)"";
    t.finished = &finished;
    t.mismatch = &mismatch;
    t.checkpoint = &checkpoint;
    t.arrived = arrived;
    t.n_arrived = 3;
    t.missing = missing;
    t.n_missing = 2;
    t.missing_round = 1;
    r.member = 1;
    r.kind = TANDEM__SYNC__MEMBER_KIND__TRAIN;
    r.train = &t;
    Tandem__Sync__RolloutReport roll = TANDEM__SYNC__ROLLOUT_REPORT__INIT;
    Tandem__Sync__HeldVersion held = TANDEM__SYNC__HELD_VERSION__INIT, *versions[] = {&held};
    Tandem__Sync__UnitReport unit = TANDEM__SYNC__UNIT_REPORT__INIT, *units[] = {&unit};
    Tandem__Sync__EvalScore score = TANDEM__SYNC__EVAL_SCORE__INIT, *scores[] = {&score};
    unit.job = 1;
    unit.eval = true;
    unit.scores = scores;
    unit.n_scores = 1;
    roll.job = 1;
    roll.versions = versions;
    roll.units = units;
    roll.n_versions = roll.n_units = 1;
    r.rollout = &roll;
    size_t records = b.count;
    replay_event(&b, &(struct td_coordinator_event){.kind = TD_CO_REPORT, .report = &r});
    replay_deliver(&b);
    assert_int_equal(b.count, records);
    assert_int_equal(replay_view(&b, 1).arrived, 0);
    replay_fini(&b);
}

// A rollout controller takes so many units at once; one that it does not take would never end.
static void test_units_of_a_member_are_bounded(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    b.rows = b.plan.train_batch_size = TD_MEMBER_UNITS_MAX + 76;
    b.plan.unit_groups = 1;
    replay_start(&b);
    replay_report_rollout(&b, 2, 4096);
    replay_tick(&b, 1);
    assert_int_equal(b.orders[2]->n_units, TD_MEMBER_UNITS_MAX);
    replay_report_rollout(&b, 3, 100);
    assert_int_equal(b.orders[2]->n_units, TD_MEMBER_UNITS_MAX);
    assert_int_equal(b.orders[3]->n_units, 76);
    replay_fini(&b);
}

// A suspended machine: members were not silent while nobody listened.
static void test_pause_is_no_silence(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    b.config.lead_at_once = true;
    replay_restart(&b);
    replay_start(&b);
    replay_report_rollout(&b, 2, 8);
    replay_tick(&b, 1);
    assert_int_equal(last_attempt(&b), 2);
    replay_tick(&b, 3600 * 1000);
    replay_report_train(&b, 3, &head_closed); // a second train member is heard first
    assert_int_equal(td_coordinator_state(b.machine)->generation, 1);
    replay_report_rollout(&b, 2, 8);
    replay_report_train(&b, 1, &head_closed);
    assert_int_equal(last_attempt(&b), 2);
    for (int i = 0; i < 4; i++) { // silence that was listened to counts
        replay_tick(&b, REPLAY_MEMBER_TIMEOUT_MS / 3);
    }
    replay_report_train(&b, 3, &head_closed);
    assert_int_equal(td_coordinator_state(b.machine)->generation, 2);
    replay_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_from_the_journal_is_judged),
        cmocka_unit_test(test_submission_is_refused_with_its_cause),
        cmocka_unit_test(test_leader_that_reads_again_is_still),
        cmocka_unit_test(test_reports_with_holes),
        cmocka_unit_test(test_units_of_a_member_are_bounded),
        cmocka_unit_test(test_pause_is_no_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
