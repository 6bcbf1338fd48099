// A job from its submission to its end, and what it waits for in each phase.
#include "tests/unit/cmocka_all.h"

#include <string.h>

#include "tests/unit/coordinator/replay.h"

static const struct replay_train nothing_yet = {0}, head_closed = {.closed = true};

static void assert_wait(const struct replay *b, enum td_wait wait, uint64_t member) {
    struct td_job_view view = replay_view(b, 1);
    if (view.wait != wait || view.member != member) {
        fail_msg("waits for %d on %llx: %s", (int)view.wait, (unsigned long long)view.member,
                 view.text);
    }
    size_t n = strlen(view.text);
    if (n < 2 || strcmp(view.text + n - 2, ": ") == 0) {
        fail_msg("does not say for what: %s", view.text);
    }
}

static void test_job_names_what_it_waits_for(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    replay_deliver(&b);
    replay_tick(&b, REPLAY_TAKEOVER_MS);
    assert_true(td_coordinator_leads(b.machine));
    replay_submit(&b, "first", 4);
    assert_int_equal(b.accepted_job, 1);
    assert_wait(&b, TD_WAIT_TRAINER, 0);
    replay_report_train(&b, 1, &nothing_yet); // GANG
    assert_wait(&b, TD_WAIT_LOAD, 1);
    replay_report_train(&b, 1, &nothing_yet); // RESTORE
    assert_wait(&b, TD_WAIT_LOAD, 1);
    replay_report_train(&b, 1, &(struct replay_train){.finished = true}); // COMMIT 0
    assert_wait(&b, TD_WAIT_SAVE, 1);
    replay_report_train(&b, 1, &(struct replay_train){.closed = true, .unscanned = true}); // DRAW
    assert_int_equal(replay_job(&b, 1)->open_count, 4);
    assert_wait(&b, TD_WAIT_SCAN, 1);
    replay_report_train(&b, 1, &head_closed);
    assert_wait(&b, TD_WAIT_ROLLOUT, 0);
    replay_report_rollout(&b, 2, 8);
    replay_tick(&b, 1);
    assert_wait(&b, TD_WAIT_GROUPS, 2);
    assert_int_equal(b.orders[2]->n_units, 2);
    replay_report_train(&b, 1, &(struct replay_train){.closed = true, .arrived = 3});
    assert_wait(&b, TD_WAIT_GROUPS, 2);
    assert_int_equal(b.orders[2]->n_units, 1); // the one whose groups all arrived is over
    replay_report_train(&b, 1,
                        &(struct replay_train){.closed = true, .arrived = 4, .backwards = true});
    assert_int_equal(replay_job(&b, 1)->sealed, 1);
    assert_wait(&b, TD_WAIT_TRAINING, 1);
    replay_report_train(&b, 1, &(struct replay_train){.missing = 2});
    assert_wait(&b, TD_WAIT_RECORDS, 0);
    replay_report_train(&b, 1, &(struct replay_train){.finished = true});
    assert_int_equal(replay_job(&b, 1)->head.step, 1);
    replay_fini(&b);
}

static void test_job_names_validation(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    b.plan.val_rows = 3;
    b.plan.val_before_train = true;
    replay_deliver(&b);
    replay_tick(&b, REPLAY_TAKEOVER_MS);
    replay_submit(&b, "first", 4);
    replay_report_train(&b, 1, &nothing_yet);
    replay_report_train(&b, 1, &nothing_yet);
    replay_report_train(&b, 1, &(struct replay_train){.finished = true});
    assert_wait(&b, TD_WAIT_ROLLOUT, 0);
    replay_restart(&b); // whether the step was closed meanwhile is not known to who leads now
    replay_deliver(&b);
    replay_tick(&b, REPLAY_TAKEOVER_MS);
    replay_tick(&b, REPLAY_TAKEOVER_MS);
    assert_wait(&b, TD_WAIT_TRAINER, 0);
    replay_report_train(&b, 1, &nothing_yet);
    assert_wait(&b, TD_WAIT_ROLLOUT, 0);
    replay_report_rollout(&b, 2, 8);
    replay_tick(&b, 1);
    assert_wait(&b, TD_WAIT_VALIDATION, 2);
    replay_fini(&b);
}

// A row of the data set never comes again, as a generated record does.
static void test_lost_rows_end_the_job(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    b.rollout_log = 0;
    b.plan.rows_job = true;
    replay_start(&b);
    assert_int_equal(replay_job(&b, 1)->sealed, 1);
    replay_report_train(&b, 1, &(struct replay_train){.missing = 1});
    assert_true(b.ended);
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__FAILED);
    assert_non_null(strstr(b.cause, "row (0, 1) has digest 5"));
    replay_fini(&b);
}

// A job that is led, and so many of the reports said.
static void begin_at(struct replay *b, const struct replay_train *said, size_t phase) {
    replay_init(b);
    replay_deliver(b);
    replay_tick(b, REPLAY_TAKEOVER_MS);
    replay_submit(b, "first", 4);
    for (size_t i = 0; i < phase; i++) {
        replay_report_train(b, 1, &said[i]);
        replay_report_rollout(b, 2, 8);
    }
}

static void test_cancel_in_every_phase(void **unused) {
    (void)unused;
    static const struct replay_train said[] = {
        {0}, {0}, {.finished = true}, {.closed = true}, {.closed = true, .arrived = 4}};
    for (size_t phase = 0; phase <= sizeof said / sizeof *said; phase++) {
        struct replay b;
        begin_at(&b, said, phase);
        replay_event(&b, &(struct td_coordinator_event){.kind = TD_CO_CANCEL, .job = 1});
        replay_deliver(&b);
        assert_true(b.ended);
        assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__CANCELLED);
        assert_int_equal(replay_view(&b, 1).wait, TD_WAIT_ENDED);
        replay_report_rollout(&b, 2, 8);
        assert_true(!b.orders[2] || b.orders[2]->n_units == 0);
        replay_fini(&b);
    }
}

// One train member: the second job waits, and gets the gang when the first has ended.
static void test_jobs_queue_for_the_trainer(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    replay_start(&b);
    replay_submit(&b, "second", 4);
    assert_int_equal(b.accepted_job, 2);
    replay_report_train(&b, 1, &head_closed);
    assert_null(td_job_gang(replay_job(&b, 2), "actor"));
    assert_int_equal(replay_view(&b, 2).wait, TD_WAIT_TRAINER);
    replay_event(&b, &(struct td_coordinator_event){.kind = TD_CO_CANCEL, .job = 1});
    replay_deliver(&b);
    replay_report_train(&b, 1, &(struct replay_train){.job = 2});
    assert_int_equal(td_job_gang(replay_job(&b, 2), "actor")->generation, 2);
    replay_fini(&b);
}

static void train_to(struct replay *b, uint64_t step) {
    for (int i = 0; i < 64 && replay_job(b, 1)->head.step < step; i++) {
        replay_report_train(b, 1, &head_closed);
        replay_report_train(b, 1, &(struct replay_train){.closed = true, .arrived = 4});
        replay_report_train(b, 1, &(struct replay_train){.finished = true});
    }
    replay_report_train(b, 1, &head_closed);
}

static void test_epoch_ends(void **unused) {
    (void)unused;
    static const struct {
        uint64_t rows, dropped;
    } cases[] = {{4, 0}, {5, 2}, {7, 6}, {8, 0}, {11, 3}};
    for (int rows_job = 0; rows_job < 2; rows_job++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct replay b;
            replay_init(&b);
            b.rows = cases[i].rows;
            b.plan.rows_job = rows_job;
            b.rollout_log = rows_job ? 0 : REPLAY_LOG;
            replay_start(&b);
            train_to(&b, 3);
            assert_true(b.ended);
            assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__SUCCEEDED);
            const struct td_job_state *j = replay_job(&b, 1);
            assert_int_equal(td_coordinator_state(b.machine)->rejected, 0);
            assert_int_equal(j->dropped, cases[i].dropped);
            assert_int_equal(j->open_count, 0);
            replay_fini(&b);
        }
    }
}

// Whatever the phase, a new process takes the job up where the journal has it, and no record of it
// is refused.
static void test_restart_in_every_phase(void **unused) {
    (void)unused;
    static const struct replay_train said[] = {{0},
                                               {0},
                                               {.finished = true},
                                               {.closed = true},
                                               {.closed = true, .arrived = 4},
                                               {.missing = 1},
                                               {.finished = true},
                                               {.closed = true}};
    for (size_t phase = 0; phase <= sizeof said / sizeof *said; phase++) {
        struct replay b;
        begin_at(&b, said, phase);
        replay_restart(&b);
        replay_deliver(&b);
        replay_tick(&b, REPLAY_TAKEOVER_MS);
        assert_true(td_coordinator_leads(b.machine));
        for (size_t i = 0; i < 3; i++) {
            replay_report_train(&b, 1, &said[i]);
        }
        train_to(&b, 3);
        assert_true(b.ended);
        assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__SUCCEEDED);
        assert_int_equal(td_coordinator_state(b.machine)->rejected, 0);
        assert_int_equal(td_job_gang(replay_job(&b, 1), "actor")->generation, 1);
        replay_fini(&b);
    }
}

static void test_no_steps_succeed_at_once(void **unused) {
    (void)unused;
    struct replay b;
    replay_init(&b);
    b.plan.total_steps = 0;
    replay_start(&b);
    assert_true(b.ended);
    assert_int_equal(b.outcome, TANDEM__JOURNAL__OUTCOME__SUCCEEDED);
    replay_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_names_what_it_waits_for),
        cmocka_unit_test(test_job_names_validation),
        cmocka_unit_test(test_lost_rows_end_the_job),
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_jobs_queue_for_the_trainer),
        cmocka_unit_test(test_epoch_ends),
        cmocka_unit_test(test_restart_in_every_phase),
        cmocka_unit_test(test_no_steps_succeed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
