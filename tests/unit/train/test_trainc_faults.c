// The train controller under faults: crashes at every point, lost ranks, rounds sealed anew, redo.
#include "tests/unit/train/world.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

static void check_lines(const struct world *w, uint64_t head) {
    assert_int_equal(w->line_count, head + 1);
    for (uint64_t i = 0; i <= head; i++) {
        assert_int_equal(w->lines[i], i);
    }
}

static void check_head(const struct world *w, uint64_t head) {
    const struct td_job_state *j = world_job(w);
    assert_int_equal(j->head.step, head);
    assert_int_equal(td_job_round(j, head)->roles[0]->state_digest,
                     world_state_digest(world_expected(w, head)));
}

// What the leader does after a loss, up to where the next report comes from.
static void new_gang(struct world *w, uint64_t checkpoint) {
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    world_restore(w, checkpoint);
    world_run(w);
}

// The controller ends after each number of effects within a round and starts again: it goes on in
// the middle of the round, nothing is loaded or trained twice.
static void test_trainc_restart_at_every_point(void **state) {
    (void)state;
    bool over = false;
    for (int n = 0; !over; n++) {
        struct world *w = world_new(WORLD_RANKS);
        w->plan.checkpoint_every = 2;
        world_to_step0(w);
        world_round(w);
        world_next_round(w);
        for (int i = 0; i < n && !over; i++) {
            // Journal and rollout records count as they come.
            over = !world_run_until(w, w->queue_count ? (int)w->queue[0].kind : TD_TC_READ_ROUND);
            if (!over) {
                world_run_one(w);
            }
        }
        world_crash(w);
        world_trace(w);
        world_start(w);
        world_run(w);
        assert_false(world_traced(w, "LOAD0"));
        assert_false(world_report(w)->lost);
        assert_int_equal(world_report(w)->finished->version->step, 2);
        world_commit(w);
        world_run(w);
        world_close_step(w);
        world_run(w);
        world_checkpoint(w);
        world_round(w);
        check_head(w, 3);
        check_lines(w, 3);
        // The metrics are those of an undisturbed run.
        assert_true(w->line_loss[2] == WORLD_RANKS * (double)(world_expected(w, 2) % 1000));
        world_free(w);
    }
}

// The answer to each command of a round gets lost with its connection; the worker did the work.
static void test_trainc_answer_lost(void **state) {
    (void)state;
    static const enum td_trainc_effect_kind kinds[] = {TD_TC_PREP, TD_TC_FINISH, TD_TC_DIGEST,
                                                       TD_TC_SETUP, TD_TC_RING};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct world *w = world_new(WORLD_RANKS);
        if (kinds[i] == TD_TC_PREP || kinds[i] == TD_TC_FINISH) {
            world_to_step0(w);
            world_next_round(w);
        } else {
            world_gang(w, WORLD_MEMBER);
            world_restore(w, 0);
            world_run_until(w, TD_TC_FETCH_END);
            world_crash(w);
            w->journal_count -= 1; // the RESTORE comes after the start
            world_start(w);
            world_run_until(w, TD_TC_SETUP);
            w->journal_count += 1;
        }
        assert_true(world_run_until(w, (int)kinds[i]));
        uint32_t worker = w->queue[0].worker;
        world_lose_answer(w);
        world_disconnect(w, worker);
        world_run(w);
        world_attach(w, worker);
        world_run(w);
        assert_false(world_report(w)->lost);
        assert_non_null(world_report(w)->finished);
        assert_int_equal(world_report(w)->finished->state_digest,
                         world_state_digest(world_expected(w, world_job(w)->sealed)));
        world_free(w);
    }
}

// A step whose answer is lost on one rank only is whole: both have applied it.
static void test_trainc_step_answer_lost(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_to_step0(w);
    world_next_round(w);
    assert_true(world_run_until(w, TD_TC_STEP));
    world_lose_answer(w);
    world_disconnect(w, 0);
    world_run(w); // the other rank's answer
    struct td_train_view view;
    td_trainc_view(w->x, &view);
    assert_string_equal(view.waits_for, "worker 0 to come up");
    world_attach(w, 0);
    world_run(w);
    world_commit(w);
    check_head(w, 1);
    world_free(w);
}

static void expect_lost(struct world *w, const char *cause) {
    world_run(w);
    assert_true(world_report(w)->lost);
    assert_null(world_report(w)->finished);
    assert_int_equal(world_report(w)->generation, w->lead.generation);
    if (!strstr(world_report(w)->waits_for, cause)) {
        fail_msg("\"%s\" lacks \"%s\"", world_report(w)->waits_for, cause);
    }
    world_trace(w);
    world_tick(w);
    world_run(w);
    assert_string_equal(world_trace(w), ""); // nothing is done until the leader has decided
}

static void recover(struct world *w, uint64_t head) {
    new_gang(w, 0);
    assert_false(world_report(w)->lost);
    while (world_job(w)->head.step < head) {
        world_commit(w);
        world_run(w);
        world_close_step(w);
        world_run(w);
        if (world_job(w)->head.step < head) {
            world_round(w);
        }
    }
    check_head(w, head);
    check_lines(w, head);
}

static void test_trainc_rank_dies(void **state) {
    (void)state;
    static const enum td_trainc_effect_kind when[] = {TD_TC_PREP, TD_TC_STEP, TD_TC_FINISH,
                                                      TD_TC_STAGE_METRICS};
    for (size_t i = 0; i < sizeof when / sizeof when[0]; i++) {
        for (uint32_t rank = 0; rank < WORLD_RANKS; rank++) {
            struct world *w = world_new(WORLD_RANKS);
            world_to_step0(w);
            world_round(w);
            world_next_round(w);
            assert_true(world_run_until(w, (int)when[i]));
            world_worker_dies(w, rank);
            expect_lost(w, "lost the train state of generation 1");
            recover(w, 2);
            world_free(w);
        }
    }
}

// A3: a process that was not there when RESTORE was accepted loads nothing.
static void test_trainc_load_once(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_gang(w, WORLD_MEMBER);
    world_restore(w, 0);
    world_run_until(w, TD_TC_FETCH_END);
    world_crash(w);
    world_start(w);
    expect_lost(w, "gone on 2 of 2 ranks");
    // The new generation is seen without a base: it may be loaded, once.
    new_gang(w, 0);
    assert_true(world_report(w)->loaded);
    world_commit(w);
    world_run(w);
    world_worker_dies(w, 0);
    world_worker_dies(w, 1);
    expect_lost(w, "lost the train state of generation 2");
    world_free(w);
}

static void test_trainc_whole_tree_dies(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    w->plan.checkpoint_every = 1;
    world_to_step0(w);
    world_round(w);
    world_round(w);
    world_next_round(w);
    assert_true(world_run_until(w, TD_TC_FINISH));
    world_crash(w);
    for (uint32_t i = 0; i < WORLD_RANKS; i++) {
        w->worker[i] = (struct world_worker){.running = true};
    }
    world_start(w);
    expect_lost(w, "gone");
    uint64_t newest = world_job(w)->kept[1]->id;
    new_gang(w, newest); // step 2
    world_commit(w);
    check_head(w, 3);
    world_run(w);
    world_close_step(w);
    world_run(w);
    check_lines(w, 3);
    world_free(w);
}

// A rank an update behind: the collective is gone, it cannot be made up.
static void test_trainc_ranks_apart(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_to_step0(w);
    world_next_round(w);
    assert_true(world_run_until(w, TD_TC_FINISH));
    world_crash(w);
    w->worker[0].applied--;
    world_start(w);
    expect_lost(w, "ranks stand apart: step 0 update 1, step 0 update 2");
    recover(w, 1);
    world_free(w);
}

// One that is a FINISH behind is told again.
static void test_trainc_rank_finishes_late(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_to_step0(w);
    world_next_round(w);
    assert_true(world_run_until(w, TD_TC_FINISH));
    world_run_one(w);
    world_crash(w);
    world_trace(w);
    world_start(w);
    world_run(w);
    assert_true(world_traced(w, "FINISH1"));
    assert_false(world_traced(w, "FINISH0"));
    world_commit(w);
    check_head(w, 1);
    world_free(w);
}

static void reseal_at(enum td_trainc_effect_kind when, int more, const char *cause) {
    struct world *w = world_new(1);
    world_to_step0(w);
    world_next_round(w);
    assert_true(world_run_until(w, (int)when));
    for (int i = 0; i < more; i++) {
        world_run_one(w);
    }
    struct td_pos old = td_job_round(world_job(w), 1)->ref;
    world_reseal(w, 1);
    world_read(w);
    world_run(w);
    if (cause) {
        assert_null(world_report(w)->finished);
        expect_lost(w, cause);
        recover(w, 1);
    } else {
        assert_false(world_report(w)->lost);
        assert_false(td_pos_equal(w->worker[0].finished_ref, old));
        world_commit(w);
        check_head(w, 1);
    }
    world_free(w);
}

static void test_trainc_reseal(void **state) {
    (void)state;
    reseal_at(TD_TC_READ_ROUND, 0, NULL);
    reseal_at(TD_TC_PREP, 0, NULL);
    reseal_at(TD_TC_STAGE_METRICS, 0, "sealed anew after it was trained");
    reseal_at(TD_TC_STAGE_METRICS, 1, "sealed anew after it was trained");
}

// The RESEAL comes while a round is half applied, with the controller up or down.
static void test_trainc_reseal_in_round(void **state) {
    (void)state;
    for (int restarted = 0; restarted < 2; restarted++) {
        struct world *w = world_new(1);
        world_to_step0(w);
        world_next_round(w);
        assert_true(world_run_until(w, TD_TC_STEP));
        world_reseal(w, 1);
        if (restarted) {
            world_lose_answer(w);
            world_crash(w);
            world_start(w);
        } else {
            world_read(w);
        }
        expect_lost(w, "sealed anew after update");
        recover(w, 1);
        world_free(w);
    }
}

// Redo compares with what was committed and stops at the first difference.
static void test_trainc_redo_mismatch_and_fork(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_to_step0(w);
    world_round(w);
    world_round(w);
    uint64_t committed = td_job_round(world_job(w), 2)->roles[0]->state_digest;
    struct td_pos commit = td_job_round(world_job(w), 2)->commit;
    world_worker_dies(w, 0);
    world_run(w);
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    world_restore(w, 0);
    world_trace(w);
    assert_true(world_run_until(w, TD_TC_STAGE_METRICS) ||
                world_job(w)->head.step == 2); // no line is written again
    assert_false(world_traced(w, "STAGE_METRICS"));
    check_lines(w, 2);
    // All was equal: the ranks are at the head again. Now one that is not deterministic.
    world_worker_dies(w, 1);
    world_run(w);
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    world_restore(w, 0);
    assert_true(world_run_until(w, TD_TC_FINISH)); // of round 1
    world_run_one(w);
    world_run_one(w);
    w->worker[0].salted = w->worker[1].salted = true;
    world_run(w);
    const Tandem__Sync__TrainReport *t = world_report(w);
    assert_non_null(t->mismatch);
    assert_int_equal(t->mismatch->version->step, 2);
    assert_int_equal(t->mismatch->committed, committed);
    assert_int_equal(t->mismatch->found, world_state_digest(w->worker[0].state));
    assert_int_equal(t->mismatch->commit->offset, commit.offset);
    assert_string_equal(t->mismatch->committed_build, "build-1");
    assert_int_equal(t->lineage, 0);
    assert_null(t->finished);
    world_trace(w);
    world_tick(w);
    world_run(w);
    assert_string_equal(world_trace(w), "");
    // The fork makes the new state the first version of the next lineage.
    uint64_t found = w->worker[0].state;
    world_fork(w, 1);
    world_run(w);
    assert_true(world_traced(w, "CUT_METRICS.1"));
    assert_true(world_traced(w, "READ_ROLLOUT"));
    t = world_report(w);
    assert_null(t->mismatch);
    assert_int_equal(t->lineage, 1);
    assert_int_equal(t->finished->version->lineage, 1);
    assert_int_equal(t->finished->version->step, 2);
    assert_int_equal(t->finished->state_digest, world_state_digest(found));
    world_commit(w);
    world_run(w);
    check_lines(w, 1); // the order to close step 2 was of the lineage before
    world_close_step(w);
    world_run(w);
    check_lines(w, 2);
    world_free(w);
}

// A base that does not verify, or whose state is not the committed one, is named and not used.
static void test_trainc_bad_base(void **state) {
    (void)state;
    for (int manifest = 0; manifest < 2; manifest++) {
        struct world *w = world_new(1);
        w->plan.checkpoint_every = 1;
        world_to_step0(w);
        world_round(w);
        world_round(w);
        uint64_t newest = world_job(w)->kept[1]->id, older = world_job(w)->kept[0]->id;
        for (size_t i = 0; i < w->folder_count; i++) {
            struct world_folder *f = &w->folders[i];
            if (f->id == newest && manifest) {
                f->corrupt = true;
            } else if (f->id == newest) {
                f->state++; // the files are whole, but of another state
            }
        }
        world_worker_dies(w, 0);
        world_run(w);
        new_gang(w, newest);
        assert_true(world_report(w)->lost);
        assert_int_equal(world_report(w)->n_bad_checkpoints, 1);
        assert_int_equal(world_report(w)->bad_checkpoints[0], newest);
        new_gang(w, older);
        assert_false(world_report(w)->lost);
        assert_int_equal(w->worker[0].state, world_expected(w, 2));
        world_round(w);
        check_head(w, 3);
        check_lines(w, 3);
        world_free(w);
    }
}

static void refuse_first(struct world *w, enum td_rc rc) {
    struct td_trainc_event e = {.kind = TD_TC_FAILED,
                                .worker = w->queue[0].worker,
                                .seq = w->queue[0].seq,
                                .rc = rc,
                                .text = "of course"};
    world_event(w, &e);
}

static void test_trainc_refusals(void **state) {
    (void)state;
    enum expected { LOST, FAILED, STOPPED, AGAIN };
    static const struct {
        enum td_trainc_effect_kind command;
        enum td_rc rc;
        enum expected expected;
    } table[] = {
        {TD_TC_STEP, TD_ECONFLICT, LOST},  {TD_TC_STEP, TD_ETIMEOUT, LOST},
        {TD_TC_STEP, TD_ECLOSED, LOST},    {TD_TC_STEP, TD_ENOMEM, FAILED},
        {TD_TC_STEP, TD_ECORRUPT, FAILED}, {TD_TC_PREP, TD_EINVAL, FAILED},
        {TD_TC_PREP, TD_EIO, STOPPED},     {TD_TC_SAVE, TD_ENOSPC, STOPPED},
        {TD_TC_SAVE, TD_ECLOSED, AGAIN},   {TD_TC_SAVE, TD_EPERM, STOPPED},
        {TD_TC_FINISH, TD_ETIMEOUT, LOST},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct world *w = world_new(1);
        w->plan.checkpoint_every = 1;
        world_to_step0(w);
        world_next_round(w);
        if (table[i].command == TD_TC_SAVE) {
            world_run(w);
            world_commit(w);
        }
        assert_true(world_run_until(w, (int)table[i].command));
        uint64_t seq = w->queue[0].seq;
        refuse_first(w, table[i].rc);
        // What was asked is answered; the same answer again changes nothing.
        refuse_first(w, TD_EINVAL);
        struct td_trainc_effects one = {td_memdup(w->queue, sizeof w->queue[0]), 1, 1};
        td_trainc_effects_fini(&one);
        memmove(w->queue, w->queue + 1, --w->queue_count * sizeof w->queue[0]);
        if (table[i].expected == AGAIN) {
            assert_true(world_run_until(w, (int)table[i].command));
            assert_true(w->queue[0].seq > seq);
        }
        world_run(w);
        if (table[i].expected == STOPPED) {
            assert_non_null(w->stopped);
            assert_non_null(strstr(w->stopped, "of course"));
        } else {
            assert_null(w->stopped);
            assert_int_equal(world_report(w)->lost, table[i].expected == LOST);
            assert_int_equal(world_report(w)->failed[0] != 0, table[i].expected == FAILED);
        }
        world_free(w);
    }
}

// The folder of a gang that was replaced is deleted by the new one (A6) while this controller,
// which has not read so far, still writes into it: no reason to stop.
static void test_trainc_save_folder_is_gone(void **state) {
    (void)state;
    for (int replaced = 0; replaced < 2; replaced++) {
        struct world *w = world_new(1);
        w->plan.checkpoint_every = 1;
        world_to_step0(w);
        world_next_round(w);
        world_run(w);
        world_commit(w);
        assert_true(world_run_until(w, TD_TC_SAVE));
        if (replaced) {
            world_gang(w, WORLD_MEMBER + 1);
        }
        refuse_first(w, TD_ENOENT);
        struct td_trainc_effects one = {td_memdup(w->queue, sizeof w->queue[0]), 1, 1};
        td_trainc_effects_fini(&one);
        memmove(w->queue, w->queue + 1, --w->queue_count * sizeof w->queue[0]);
        world_run(w);
        if (replaced) {
            assert_null(w->stopped);
        } else {
            assert_non_null(w->stopped);
            assert_non_null(strstr(w->stopped, "of course"));
        }
        world_free(w);
    }
}

static void test_trainc_ranks_differ_in_digest(void **state) {
    (void)state;
    struct world *w = world_new(WORLD_RANKS);
    world_to_step0(w);
    world_next_round(w);
    w->worker[1].salted = true;
    world_run(w);
    assert_non_null(
        strstr(world_report(w)->failed, "ranks 0 and 1 hold different states at step 1"));
    assert_null(world_report(w)->finished);
    world_free(w);
}

static void test_trainc_worker_of_another_job(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_crash(w);
    w->worker[0] = (struct world_worker){.running = true, .set_up = true, .job = 44};
    world_start(w);
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    assert_true(world_traced(w, "RESTART_WORKER SETUP0"));
    assert_int_equal(w->worker[0].job, WORLD_JOB);
    world_free(w);
}

static void test_trainc_too_few_workers(void **state) {
    (void)state;
    struct world *w = world_new(1);
    w->workers = 2;
    world_gang(w, WORLD_MEMBER);
    world_run(w);
    assert_non_null(strstr(world_report(w)->failed, "2 ranks, this member 1 workers"));
    w->workers = 1;
    world_free(w);
}

// A gap in the journal: the reader starts again, the ranks go on where they are.
static void test_trainc_rebase(void **state) {
    (void)state;
    struct world *w = world_new(1);
    world_to_step0(w);
    world_next_round(w);
    w->journal_read++;
    world_draw(w, 1);
    world_trace(w);
    world_run(w);
    assert_true(world_traced(w, "JOURNAL_RESET"));
    assert_true(world_traced(w, "READ_ROLLOUT"));
    assert_false(world_traced(w, "LOAD"));
    world_commit(w);
    check_head(w, 1);
    world_free(w);
}

static void test_trainc_other_journal(void **state) {
    (void)state;
    struct world *w = world_new(1);
    struct td_trainc_config c = {
        .member = WORLD_MEMBER,
        .incarnation = 1,
        .expect_journal_id = 0xcd,
        .report_ms = 500,
        .plan_of = (bool (*)(void *, const void *, size_t, struct td_train_plan *))1};
    td_trainc_free(w->x);
    w->x = td_trainc_new(&c);
    w->journal_read = 0;
    struct td_trainc_event e = {.kind = TD_TC_JOURNAL_START};
    world_event(w, &e);
    world_run(w);
    assert_non_null(w->stopped);
    assert_non_null(strstr(w->stopped, "00000000000000ab"));
    assert_non_null(strstr(w->stopped, "00000000000000cd"));
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainc_restart_at_every_point),
        cmocka_unit_test(test_trainc_answer_lost),
        cmocka_unit_test(test_trainc_step_answer_lost),
        cmocka_unit_test(test_trainc_rank_dies),
        cmocka_unit_test(test_trainc_load_once),
        cmocka_unit_test(test_trainc_whole_tree_dies),
        cmocka_unit_test(test_trainc_ranks_apart),
        cmocka_unit_test(test_trainc_rank_finishes_late),
        cmocka_unit_test(test_trainc_reseal),
        cmocka_unit_test(test_trainc_reseal_in_round),
        cmocka_unit_test(test_trainc_redo_mismatch_and_fork),
        cmocka_unit_test(test_trainc_bad_base),
        cmocka_unit_test(test_trainc_refusals),
        cmocka_unit_test(test_trainc_save_folder_is_gone),
        cmocka_unit_test(test_trainc_ranks_differ_in_digest),
        cmocka_unit_test(test_trainc_worker_of_another_job),
        cmocka_unit_test(test_trainc_too_few_workers),
        cmocka_unit_test(test_trainc_rebase),
        cmocka_unit_test(test_trainc_other_journal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
