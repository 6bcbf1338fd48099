// The train controller without faults: the order of what it does, what it reports and when.
#include "tests/unit/train/world.h"

#include <stdio.h>
#include <string.h>

static void test_trainc_waits_for_journal_end(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_gang(w, WORLD_MEMBER);
    world_restore(w, 0);
    // Records come, the end does not: nothing but FETCH_END and reports may go out (A2).
    assert_true(world_run_until(w, TD_TC_FETCH_END));
    for (int i = 0; i < 5; i++) {
        struct td_trainc_event e = {.kind = TD_TC_JOURNAL_RECORD,
                                    .pos = w->positions[i],
                                    .bytes = w->journal[i].data,
                                    .n = w->journal[i].len};
        world_event(w, &e);
    }
    for (size_t i = 0; i < w->queue_count; i++) {
        assert_true(w->queue[i].kind == TD_TC_FETCH_END || w->queue[i].kind == TD_TC_REPORT);
        if (w->queue[i].kind == TD_TC_REPORT) {
            assert_null(w->queue[i].report->train);
        }
    }
    world_free(w);
}

static void test_trainc_clean_round(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_run(w);
    assert_string_equal(world_trace(w), "FETCH_END");
    assert_null(w->report->train); // no gang here
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    assert_string_equal(world_trace(w), "READ_ROLLOUT SETUP0 SETUP1");
    assert_false(world_report(w)->loaded);
    world_restore(w, 0);
    world_run(w);
    assert_string_equal(world_trace(w), "LIST_FOLDERS RING0 RING1 LOAD0 LOAD1 DIGEST0 DIGEST1 "
                                        "STAGE_METRICS.0");
    const Tandem__Sync__TrainReport *t = world_report(w);
    assert_true(t->loaded && t->scanned && !t->lost);
    assert_non_null(t->finished);
    assert_int_equal(t->finished->version->step, 0);
    assert_null(t->finished->ref);
    assert_int_equal(t->finished->state_digest, world_state_digest(WORLD_INITIAL_STATE));
    world_commit(w);
    world_run(w);
    assert_string_equal(world_trace(w), "");
    t = world_report(w);
    assert_null(t->finished);
    assert_true(t->metrics_known && !t->has_metrics);
    assert_true(t->saved);
    world_close_step(w);
    world_run(w);
    assert_string_equal(world_trace(w), "CLOSE_METRICS.0");
    assert_true(world_report(w)->metrics_known && world_report(w)->has_metrics);
    world_next_round(w);
    world_run(w);
    assert_string_equal(world_trace(w),
                        "READ_ROUND PREP0 PREP1 STEP0.1 STEP1.1 STEP0.2 STEP1.2 FINISH0 FINISH1 "
                        "STAGE_METRICS.1 DROP_ROUND");
    t = world_report(w);
    assert_int_equal(t->finished->version->step, 1);
    assert_int_equal(t->finished->ref->offset, td_job_round(world_job(w), 1)->ref.offset);
    assert_int_equal(t->finished->weight_digest, world_weight_digest(world_expected(w, 1)));
    assert_int_equal(t->generation, 1);
    world_commit(w);
    world_run(w);
    assert_string_equal(world_trace(w), "");
    assert_int_equal(world_job(w)->head.step, 1);
    world_free(w);
}

// The line is durable before the leader can hear that the version is finished.
static void test_trainc_stages_before_finished(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_next_round(w);
    assert_true(world_run_until(w, TD_TC_STAGE_METRICS));
    assert_null(world_report(w)->finished);
    struct td_trainc_effect *e = &w->queue[0];
    assert_int_equal(e->round, 1);
    assert_true(td_pos_equal(e->ref, td_job_round(world_job(w), 1)->ref));
    assert_non_null(td_metrics_find(e->metrics, "loss"));
    for (size_t i = 0; i < w->queue_count; i++) {
        assert_true(w->queue[i].kind != TD_TC_REPORT || !w->queue[i].report->train->finished);
    }
    world_run(w);
    assert_non_null(world_report(w)->finished);
    world_free(w);
}

// Metrics of all ranks are joined.
static void test_trainc_joins_metrics_of_ranks(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_to_step0(w);
    world_next_round(w);
    world_run(w);
    const struct td_metric *loss = td_metrics_find(&w->staged, "loss");
    assert_non_null(loss);
    assert_true(loss->value == WORLD_RANKS * (double)(world_expected(w, 1) % 1000));
    world_free(w);
}

static void test_trainc_checkpoint_before_next_round(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    w->plan.checkpoint_every = 2;
    world_to_step0(w);
    world_round(w);
    assert_null(world_report(w)->checkpoint);
    world_trace(w);
    world_round(w);
    assert_true(world_traced(w, "SAVE0 "));
    assert_int_equal(world_job(w)->kept_count, 1);
    assert_int_equal(world_job(w)->kept[0]->version->step, 2);
    assert_non_null(strstr(world_job(w)->kept[0]->folder, "step-2-g1-"));
    assert_null(world_report(w)->checkpoint); // kept: not told any more
    // A sealed round waits for the save that is due at the head.
    world_round(w);
    world_next_round(w);
    world_run(w);
    world_commit(w);
    assert_true(world_run_until(w, TD_TC_SAVE));
    world_close_step(w);
    world_trace(w);
    world_run(w);
    world_next_round(w);
    world_run(w);
    const char *trace = world_trace(w);
    assert_true(strstr(trace, "SAVE0") < strstr(trace, "PREP0"));
    world_free(w);
}

static void test_trainc_user_save_gates(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->plan.save_freq = 2;
    w->plan.total_steps = 3;
    world_to_step0(w);
    world_round(w);
    assert_int_equal(w->user_save_count, 0);
    assert_true(world_report(w)->saved);
    world_next_round(w);
    world_run(w);
    world_commit(w);
    assert_true(world_run_until(w, TD_TC_SAVE));
    assert_true(w->queue[0].user);
    assert_string_equal(w->queue[0].text, "global_step_2");
    // Until it is there, no report says saved.
    for (size_t i = 0; i < w->queue_count; i++) {
        assert_true(w->queue[i].kind != TD_TC_REPORT || !w->queue[i].report->train->saved);
    }
    world_run(w);
    assert_true(world_report(w)->saved);
    world_close_step(w);
    world_run(w);
    world_round(w); // the last step is saved whatever the frequency
    assert_int_equal(w->user_save_count, 2);
    assert_int_equal(w->user_saves[1], 3);
    world_end(w);
    world_run(w);
    assert_null(w->report->train);
    world_free(w);
}

static void test_trainc_lines_one_per_step(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    for (int i = 0; i < 4; i++) {
        world_round(w);
    }
    world_close_step(w); // orders come again and again
    world_close_step(w);
    world_run(w);
    assert_int_equal(w->line_count, 5);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(w->lines[i], i);
    }
    world_free(w);
}

// Orders of a deposed leader, of another journal or for another job close nothing.
static void test_trainc_orders_are_fenced(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_commit0(w);
    Tandem__Sync__Orders o = TANDEM__SYNC__ORDERS__INIT;
    o.job = WORLD_JOB;
    o.step_closed = true;
    struct td_trainc_event e = {.kind = TD_TC_ORDERS, .orders = &o};
    o.journal_id = w->lead.journal_id + 1;
    o.term = 9;
    world_event(w, &e);
    o.journal_id = w->lead.journal_id;
    o.term = w->lead.term - 1;
    world_event(w, &e);
    o.term = w->lead.term;
    o.job = WORLD_JOB + 1; // late ones of the job that the gang served before
    world_event(w, &e);
    world_run(w);
    assert_int_equal(w->line_count, 0);
    o.term = w->lead.term + 3;
    o.step_closed = false;
    world_event(w, &e);
    world_close_step(w); // of a term lower than one seen
    world_run(w);
    assert_int_equal(w->line_count, 0);
    assert_int_equal(w->report->term, w->lead.term + 3);
    world_free(w);
}

static void test_trainc_other_members_gang(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_gang(w, WORLD_MEMBER + 1);
    world_restore(w, 0);
    world_run(w);
    assert_string_equal(world_trace(w), "FETCH_END");
    assert_null(w->report->train);
    struct td_train_view view;
    td_trainc_view(w->x, &view);
    assert_int_equal(view.job, 0);
    assert_string_equal(view.waits_for, "a gang on this member");
    world_free(w);
}

// Two jobs of the same settings, and this member has the folders of the other one.
static void test_trainc_gang_of_another_job(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_crash(w);
    w->serves = WORLD_JOB + 1;
    world_start(w);
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    assert_null(w->report->train);
    world_crash(w);
    w->serves = WORLD_JOB;
    world_start(w);
    world_run(w);
    assert_non_null(w->report->train);
    world_free(w);
}

static void test_trainc_reports_when_idle(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    uint64_t before = w->reports;
    for (int i = 0; i < 10; i++) {
        world_tick(w);
    }
    world_run(w);
    assert_int_equal(w->reports, before); // nothing changed
    w->now_ms += 500;
    world_tick(w);
    world_run(w);
    assert_int_equal(w->reports, before + 1);
    struct td_train_view view;
    td_trainc_view(w->x, &view);
    assert_string_equal(view.waits_for, "round 1 to be sealed");
    assert_true(view.since_ms > 0 && view.since_ms < w->now_ms - 500);
    world_free(w);
}

static void expect_weights(struct world *w, const char *want) {
    world_run(w);
    const Tandem__Sync__TrainReport *t = world_report(w);
    char text[64] = "";
    for (size_t i = 0; i < t->n_weights; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", t->weights[i]);
    }
    assert_string_equal(text, want);
}

// Told at once, and of the processes that are there: also while they hold no state.
static void test_trainc_reports_where_weights_are(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_to_step0(w);
    expect_weights(w, "w0.0 w1.0 ");
    world_disconnect(w, 1);
    expect_weights(w, "w0.0 ");
    world_attach(w, 1);
    expect_weights(w, "w0.0 w1.0 ");
    world_worker_dies(w, 0);
    world_run(w);
    assert_true(world_report(w)->lost);
    expect_weights(w, "w0.1 w1.0 ");
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainc_waits_for_journal_end),
        cmocka_unit_test(test_trainc_clean_round),
        cmocka_unit_test(test_trainc_stages_before_finished),
        cmocka_unit_test(test_trainc_joins_metrics_of_ranks),
        cmocka_unit_test(test_trainc_checkpoint_before_next_round),
        cmocka_unit_test(test_trainc_user_save_gates),
        cmocka_unit_test(test_trainc_lines_one_per_step),
        cmocka_unit_test(test_trainc_orders_are_fenced),
        cmocka_unit_test(test_trainc_other_members_gang),
        cmocka_unit_test(test_trainc_gang_of_another_job),
        cmocka_unit_test(test_trainc_reports_when_idle),
        cmocka_unit_test(test_trainc_reports_where_weights_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
