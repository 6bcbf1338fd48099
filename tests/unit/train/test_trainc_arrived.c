// The train controller and the rollout log: what has arrived, from where it reads after a restart
// (A8), which positions a checkpoint names (A7), what happens when sealed records are gone.
#include "tests/unit/train/world.h"

#include <string.h>

#include "controllers/common/proto.h"

static const Tandem__Sync__Arrived *arrived(const struct world *w, uint64_t index) {
    const Tandem__Sync__TrainReport *t = world_report(w);
    for (size_t i = 0; i < t->n_arrived; i++) {
        if (t->arrived[i]->entry->group->index == index) {
            return t->arrived[i];
        }
    }
    return NULL;
}

static struct world *drawn(uint64_t n) {
    struct world *w = world_new(1);
    world_to_step0(w);
    world_draw(w, n);
    world_run(w);
    return w;
}

static struct world_record part(uint64_t index, uint32_t part, uint64_t attempt,
                                uint64_t producer) {
    return (struct world_record){
        .group = {0, index}, .part = part, .parts = 2, .attempt = attempt, .producer = producer};
}

static void test_arrived_entry(void **state) {
    (void)state;
    struct world *w = drawn(4);
    world_publish(w, 2, 0, 5);
    world_run(w);
    assert_int_equal(world_report(w)->n_arrived, 1);
    const Tandem__Sync__Arrived *a = arrived(w, 2);
    assert_non_null(a);
    assert_int_equal(a->entry->log, WORLD_LOG);
    assert_int_equal(a->entry->n_parts, 1);
    assert_int_equal(a->entry->parts[0]->crc, w->rollout[0].crc);
    assert_int_equal(a->entry->samples, 4);
    assert_int_equal(a->entry->tokens, 40);
    assert_true(a->reward_sum == 2);
    world_free(w);
}

// A record that comes before its DRAW was read is told once it is open.
static void test_arrived_before_draw(void **state) {
    (void)state;
    struct world *w = drawn(1);
    world_publish(w, 1, 0, 5);
    world_run(w);
    assert_null(arrived(w, 1));
    world_draw(w, 1);
    world_run(w);
    assert_non_null(arrived(w, 1));
    world_drop(w, 1);
    world_run(w);
    assert_null(arrived(w, 1));
    world_publish(w, 1, 0, 6); // late
    world_run(w);
    assert_null(arrived(w, 1));
    world_free(w);
}

// A record stored twice counts once, at its lowest place.
static void test_arrived_stored_twice(void **state) {
    (void)state;
    struct world *w = drawn(1);
    struct world_record r = {.parts = 1, .partition = 1, .attempt = 1};
    world_publish_part(w, &r);
    r.partition = 0;
    world_publish_part(w, &r);
    world_publish_part(w, &r);
    world_run(w);
    const Tandem__Sync__Arrived *a = arrived(w, 0);
    assert_int_equal(a->entry->samples, 4);
    assert_int_equal(a->entry->parts[0]->partition, 0);
    assert_int_equal(a->entry->parts[0]->offset, 0);
    assert_int_equal(a->entry->parts[0]->crc, w->rollout[1].crc);
    world_free(w);
}

// A12: two attempts, or two producers of one attempt, never make one group.
static void test_arrived_parts_of_one_attempt(void **state) {
    (void)state;
    struct world *w = drawn(1);
    struct world_record a = part(0, 0, 1, 3), b = part(0, 1, 2, 3), c = part(0, 1, 1, 4);
    world_publish_part(w, &a);
    world_publish_part(w, &b);
    world_publish_part(w, &c);
    world_run(w);
    assert_null(arrived(w, 0));
    struct world_record d = part(0, 1, 1, 3);
    world_publish_part(w, &d);
    world_run(w);
    const Tandem__Sync__Arrived *got = arrived(w, 0);
    assert_non_null(got);
    assert_int_equal(got->entry->n_parts, 2);
    assert_int_equal(got->entry->parts[0]->crc, w->rollout[0].crc);
    assert_int_equal(got->entry->parts[1]->crc, w->rollout[3].crc);
    assert_int_equal(got->entry->samples, 8);
    world_free(w);
}

// Of several copies the freshest that is not newer than the head.
static void test_arrived_freshest_copy(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_draw(w, 3); // 0, 1 and 2 are open
    world_publish(w, 2, 0, 9);
    world_publish(w, 0, 0, 1);
    world_publish(w, 1, 0, 2);
    world_run(w);
    assert_int_equal(world_report(w)->n_arrived, 3);
    world_seal(w); // 0 and 1
    world_run(w);
    world_publish(w, 2, 1, 10); // of a version that is not committed yet
    world_run(w);
    assert_int_equal(arrived(w, 2)->entry->max_step, 0);
    world_commit(w);
    world_run(w);
    assert_int_equal(arrived(w, 2)->entry->min_step, 1);
    assert_int_equal(arrived(w, 2)->entry->parts[0]->crc, w->rollout[3].crc);
    world_free(w);
}

static void feed(struct world *w, const Tandem__Rollout__Header *h, uint64_t scan, bool ok) {
    struct td_seen_record seen = {
        .scan = scan, .log = WORLD_LOG, .offset = 50, .ok = ok, .header = h, .samples = 4};
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT, .record = &seen};
    world_event(w, &e);
    world_run(w);
}

// Records of others, and such that cannot be understood, are passed over.
static void test_arrived_foreign_records(void **state) {
    (void)state;
    struct world *w = drawn(1);
    Tandem__Rollout__Model model = TANDEM__ROLLOUT__MODEL__INIT, *models[] = {&model};
    Tandem__Rollout__Header good = TANDEM__ROLLOUT__HEADER__INIT;
    good.log = WORLD_LOG;
    good.job = WORLD_JOB;
    good.journal_id = w->lead.journal_id;
    good.parts = 1;
    good.models = models;
    good.n_models = 1;
    Tandem__Rollout__Header bad[9];
    for (size_t i = 0; i < 9; i++) {
        bad[i] = good;
    }
    bad[0].log++;
    bad[1].job++;
    bad[2].journal_id++;
    bad[3].purpose = TANDEM__ROLLOUT__PURPOSE__EVAL;
    bad[4].kind = TANDEM__ROLLOUT__KIND__PARTIAL;
    bad[5].parts = 0;
    bad[6].part = 1;
    bad[7].n_models = 0;
    bad[8].index = 1 << 20;
    for (size_t i = 0; i < 9; i++) {
        feed(w, &bad[i], w->scan, true);
        assert_int_equal(world_report(w)->n_arrived, 0);
    }
    feed(w, &good, w->scan + 1, true); // of a reader that was told to begin anew
    feed(w, &good, w->scan, false);
    assert_int_equal(world_report(w)->n_arrived, 0);
    w->plan.samples = 5;
    world_tick(w);
    feed(w, &good, w->scan, true);
    assert_int_equal(world_report(w)->n_arrived, 0);
    w->plan.samples = 4;
    world_tick(w);
    feed(w, &good, w->scan, true);
    assert_int_equal(world_report(w)->n_arrived, 1);
    world_free(w);
}

// A8: a new process reads again from the newest kept positions and reports every open group.
static void test_arrived_rescan(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->plan.checkpoint_every = 1;
    world_to_step0(w);
    world_round(w);
    world_draw(w, 2);
    world_publish(w, 2, 1, 7);
    world_publish(w, 3, 1, 8);
    world_run(w);
    assert_int_equal(world_report(w)->n_arrived, 2);
    const Tandem__Journal__Checkpoint *kept = world_job(w)->kept[0];
    assert_int_equal(kept->n_positions, 2);
    world_crash(w);
    world_start(w);
    assert_true(world_run_until(w, TD_TC_READ_ROLLOUT));
    assert_int_equal(w->queue[0].position_count, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(w->queue[0].positions[i]->partition, kept->positions[i]->partition);
        assert_int_equal(w->queue[0].positions[i]->offset, kept->positions[i]->offset);
    }
    world_run_one(w);
    assert_true(world_run_until(w, TD_TC_REPORT));
    world_run_one(w);
    assert_false(world_report(w)->scanned);
    world_run(w);
    assert_true(world_report(w)->scanned);
    assert_int_equal(world_report(w)->n_arrived, 2);
    world_free(w);
}

static int64_t position_of(const Tandem__Journal__Checkpoint *c, uint32_t partition) {
    for (size_t i = 0; i < c->n_positions; i++) {
        if (c->positions[i]->partition == partition) {
            return c->positions[i]->offset;
        }
    }
    fail_msg("partition %u is missing", partition);
    return -1;
}

// A7: the lowest record of any copy of an open group, in each partition; else the tail.
static void test_arrived_low_water(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->plan.checkpoint_every = 1;
    world_to_step0(w);
    world_draw(w, 3);
    // Group 2 stays open: a stale copy at partition 0, offset 0, a part of another attempt at
    // partition 1, offset 0, a good one behind.
    world_publish(w, 2, 0, 9);
    struct world_record half = part(2, 1, 10, 3);
    half.partition = 1;
    world_publish_part(w, &half);
    world_publish(w, 0, 0, 1);
    world_publish(w, 1, 0, 2);
    world_publish(w, 2, 0, 11);
    world_run(w);
    world_seal(w); // 0 and 1
    world_run(w);
    world_commit(w);
    world_run(w);
    const Tandem__Journal__Checkpoint *c = world_report(w)->checkpoint;
    assert_non_null(c);
    assert_int_equal(position_of(c, 0), 0);
    assert_int_equal(position_of(c, 1), 0);
    world_checkpoint(w);
    world_close_step(w);
    world_run(w);
    // Sealed and trained, its records matter no more; 3 is open and not there yet.
    world_draw(w, 2);
    world_publish(w, 3, 1, 12);
    world_publish(w, 2, 1, 13);
    world_run(w);
    world_seal(w); // 2 and 3
    world_run(w);
    world_commit(w);
    world_run(w);
    c = world_report(w)->checkpoint;
    assert_int_equal(c->version->step, 2);
    assert_int_equal(position_of(c, 0), w->next_offset[0]);
    assert_int_equal(position_of(c, 1), w->next_offset[1]);
    world_free(w);
}

// The next round may be sealed already when the head is saved: its records are needed.
static void test_arrived_low_water_of_sealed(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->plan.checkpoint_every = 1;
    world_to_step0(w);
    world_next_round(w);
    world_run(w);
    world_commit(w);
    assert_true(world_run_until(w, TD_TC_SAVE));
    world_crash(w); // nothing was saved
    world_start(w);
    int64_t low[2] = {w->next_offset[0], w->next_offset[1]};
    world_draw(w, WORLD_BATCH);
    world_publish(w, 2, 1, 3);
    world_publish(w, 3, 1, 4);
    assert_true(world_run_until(w, TD_TC_SAVE));
    world_crash(w);
    world_start(w);
    while (world_run_until(w, TD_TC_SAVE)) {
        const Tandem__Journal__Checkpoint *c = w->queue[0].checkpoint;
        for (uint32_t p = 0; p < 2; p++) {
            for (size_t i = 0; i < c->n_positions; i++) {
                assert_true(c->positions[i]->partition != p || c->positions[i]->offset <= low[p]);
            }
        }
        world_run_one(w);
    }
    world_free(w);
}

// Sealed records are gone before they are read: told by number; a newer copy takes their place.
static void test_arrived_missing_resealed(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_next_round(w);
    w->rollout[1].gone = true; // group 1
    world_run(w);
    const Tandem__Sync__TrainReport *t = world_report(w);
    assert_int_equal(t->missing_round, 1);
    assert_int_equal(t->missing_ref->offset, td_job_round(world_job(w), 1)->ref.offset);
    assert_int_equal(t->n_missing, 1);
    assert_int_equal(t->missing[0], 1);
    assert_string_equal(t->missing_cause, "gone");
    assert_int_equal(t->n_arrived, 0);
    assert_false(t->lost);
    world_publish(w, 1, 0, 44); // generated again
    world_run(w);
    assert_int_equal(world_report(w)->n_arrived, 1);
    world_reseal(w, 1);
    world_run(w);
    assert_int_equal(world_report(w)->missing_round, 0);
    world_commit(w);
    assert_int_equal(world_job(w)->head.step, 1);
    world_free(w);
}

// A13: in redo the same is told of a committed round.
static void test_arrived_missing_in_redo(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_round(w);
    w->rollout[0].gone = true;
    world_worker_dies(w, 0);
    world_run(w);
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    world_restore(w, 0);
    world_run(w);
    assert_int_equal(world_report(w)->missing_round, 1);
    assert_int_equal(world_report(w)->missing[0], 0);
    struct td_train_view view;
    td_trainc_view(w->x, &view);
    assert_true(view.redo);
    assert_string_equal(view.waits_for, "lost records of round 1 to be replaced");
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrived_entry),
        cmocka_unit_test(test_arrived_before_draw),
        cmocka_unit_test(test_arrived_stored_twice),
        cmocka_unit_test(test_arrived_parts_of_one_attempt),
        cmocka_unit_test(test_arrived_freshest_copy),
        cmocka_unit_test(test_arrived_foreign_records),
        cmocka_unit_test(test_arrived_rescan),
        cmocka_unit_test(test_arrived_low_water),
        cmocka_unit_test(test_arrived_low_water_of_sealed),
        cmocka_unit_test(test_arrived_missing_resealed),
        cmocka_unit_test(test_arrived_missing_in_redo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
