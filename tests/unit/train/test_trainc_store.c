// The train controller's disk: which folders may go (A6), names that are used once, metric lines
// that are written once.
#include "tests/unit/train/world.h"

#include <stdio.h>
#include <string.h>

static size_t folders_there(const struct world *w) {
    size_t n = 0;
    for (size_t i = 0; i < w->folder_count; i++) {
        n += w->folders[i].there;
    }
    return n;
}

static void add_folder(struct world *w, uint64_t id, uint64_t generation) {
    struct world_folder *f = &w->folders[w->folder_count++];
    *f = (struct world_folder){.id = id, .generation = generation, .step = 1, .there = true};
    snprintf(f->name, sizeof f->name, "step-1-g%d-%d", (int)generation, (int)id);
}

static bool there(const struct world *w, uint64_t id) {
    for (size_t i = 0; i < w->folder_count; i++) {
        if (w->folders[i].id == id) {
            return w->folders[i].there;
        }
    }
    return false;
}

// The leader may take a line for absent only while nothing can bring it but its own word.
static void test_store_absent_lines_stay_absent(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_gang(w, WORLD_MEMBER);
    assert_true(world_run_until(w, TD_TC_READ_METRICS));
    for (size_t i = 0; i < w->queue_count; i++) {
        bool known = w->queue[i].kind == TD_TC_REPORT && w->queue[i].report->train->metrics_known;
        assert_false(known);
    }
    world_run(w);
    assert_true(world_report(w)->metrics_known);
    world_restore(w, 0);
    world_run(w);
    world_commit(w);
    world_run(w);
    assert_true(world_report(w)->metrics_known && !world_report(w)->has_metrics);
    world_close_step(w);
    assert_true(world_run_until(w, TD_TC_CLOSE_METRICS));
    assert_int_equal(w->queue_count, 2);
    assert_int_equal(w->queue[1].kind, TD_TC_REPORT);
    assert_false(w->queue[1].report->train->metrics_known);
    world_crash(w); // the order is forgotten with the process, the line is not written
    world_start(w);
    world_attach(w, 0);
    world_run(w);
    assert_true(world_report(w)->metrics_known && !world_report(w)->has_metrics);
    world_free(w);
}

// Two are kept; the third pushes the oldest out, and only then is it deleted.
static void test_store_pushed_out(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->plan.checkpoint_every = 1;
    world_to_step0(w);
    world_round(w);
    world_round(w);
    assert_int_equal(folders_there(w), 2);
    world_next_round(w);
    world_run(w);
    world_commit(w);
    world_run(w);
    assert_int_equal(folders_there(w), 3); // saved, not journaled: nothing may go
    world_checkpoint(w);
    world_run(w);
    assert_int_equal(folders_there(w), 2);
    for (size_t i = 0; i < world_job(w)->kept_count; i++) {
        assert_true(there(w, world_job(w)->kept[i]->id));
    }
    world_free(w);
}

// Leftovers of lower generations go; those of this one may still be journaled, those of a higher
// one are none of this controller's business.
static void test_store_generations(void **state) {
    (void)state;
    struct world *w = world_new(1);
    add_folder(w, 100, 1);
    add_folder(w, 101, 2);
    add_folder(w, 102, 3);
    add_folder(w, 103, 4);
    world_gang(w, WORLD_MEMBER);
    world_gang(w, WORLD_MEMBER);
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    assert_int_equal(folders_there(w), 4); // the generation has no base yet
    world_restore(w, 0);
    world_run(w);
    assert_false(there(w, 100));
    assert_false(there(w, 101));
    assert_true(there(w, 102));
    assert_true(there(w, 103));
    world_free(w);
}

// A checkpoint whose CHECKPOINT is on its way while the controller starts again is not touched, and
// its name is not used again.
static void test_store_restart_keeps_unjournaled(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->plan.checkpoint_every = 1;
    world_to_step0(w);
    world_next_round(w);
    world_run(w);
    world_commit(w);
    world_run(w);
    assert_int_equal(folders_there(w), 1);
    uint64_t first = w->folders[0].id;
    world_crash(w);
    world_start(w);
    world_run(w); // saved again, under another name
    assert_int_equal(folders_there(w), 2);
    assert_true(there(w, first));
    assert_int_not_equal(world_report(w)->checkpoint->id, first);
    world_checkpoint(w);
    world_close_step(w);
    world_run(w);
    assert_true(there(w, first)); // until the next generation
    world_worker_dies(w, 0);
    world_run(w);
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    world_restore(w, world_job(w)->kept[0]->id);
    world_run(w);
    assert_false(there(w, first));
    assert_true(world_report(w)->loaded);
    world_free(w);
}

// A retired controller deletes nothing.
static void test_store_retired(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->plan.checkpoint_every = 1;
    world_to_step0(w);
    world_round(w);
    add_folder(w, 200, 1);
    world_gang(w, WORLD_MEMBER + 1);
    world_restore(w, world_job(w)->kept[0]->id);
    world_trace(w);
    world_run(w);
    assert_false(world_traced(w, "DELETE_FOLDER"));
    assert_null(w->report->train);
    world_free(w);
}

// Redo writes no second line; a line that is missing is written by it.
static void test_store_lines_in_redo(void **state) {
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        struct world *w = world_new(1);
        world_to_step0(w);
        world_round(w);
        world_round(w);
        world_worker_dies(w, 0);
        world_run(w);
        if (lost) { // another disk: the gang came from elsewhere
            w->disk = (struct td_metrics_on_disk){0};
            w->line_count = 0;
            world_crash(w);
            w->worker[0] = (struct world_worker){.running = true};
            world_start(w);
        }
        world_gang(w, WORLD_MEMBER);
        world_run(w);
        world_restore(w, 0);
        world_trace(w);
        world_run(w);
        assert_int_equal(world_traced(w, "STAGE_METRICS"), lost);
        world_close_step(w);
        world_run(w);
        assert_int_equal(w->line_count, 3);
        for (uint64_t i = 0; i < 3; i++) {
            assert_int_equal(w->lines[i], i);
        }
        world_free(w);
    }
}

// The gang was elsewhere for a while: what was written there is not written again.
static void test_store_lines_of_another_gang(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_next_round(w);
    world_run(w);
    world_commit(w);
    world_run(w);
    assert_int_equal(w->disk.staged_step, 1);
    assert_int_equal(w->line_count, 1);
    world_gang(w, WORLD_MEMBER + 1);
    world_run(w);
    w->lines[w->line_count++] = w->disk.step = 1; // it had the same folder
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    world_restore(w, 0);
    world_run(w);
    world_close_step(w);
    world_run(w);
    assert_int_equal(w->line_count, 2);
    world_free(w);
}

// After a RESEAL the staged line of the old ref does not count.
static void test_store_staged_under_old_ref(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_next_round(w);
    world_run(w);
    struct td_pos old = w->disk.staged_ref;
    world_reseal(w, 1);
    world_run(w);
    assert_true(world_report(w)->lost);
    world_to_commit0(w);
    assert_false(td_pos_equal(w->disk.staged_ref, old));
    assert_true(td_pos_equal(w->disk.staged_ref, td_job_round(world_job(w), 1)->ref));
    world_close_step(w);
    world_run(w);
    assert_int_equal(w->line_count, 2);
    world_free(w);
}

// Killed between FINISH and the staging of its line: the new process gets the metrics from the
// worker and from the records.
static void test_store_stages_after_restart(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_next_round(w);
    assert_true(world_run_until(w, TD_TC_STAGE_METRICS));
    world_crash(w);
    world_trace(w);
    world_start(w);
    world_run(w);
    assert_true(world_traced(w, "READ_ROUND STAGE_METRICS.1"));
    const struct td_metric *loss = td_metrics_find(&w->staged, "loss");
    assert_non_null(loss);
    assert_true(loss->value == (double)(world_expected(w, 1) % 1000));
    assert_non_null(world_report(w)->finished);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_absent_lines_stay_absent),
        cmocka_unit_test(test_store_pushed_out),
        cmocka_unit_test(test_store_generations),
        cmocka_unit_test(test_store_restart_keeps_unjournaled),
        cmocka_unit_test(test_store_retired),
        cmocka_unit_test(test_store_lines_in_redo),
        cmocka_unit_test(test_store_lines_of_another_gang),
        cmocka_unit_test(test_store_staged_under_old_ref),
        cmocka_unit_test(test_store_stages_after_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
