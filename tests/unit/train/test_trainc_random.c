// The train controller under random faults with a leader that follows its reports. Whatever
// happens: every COMMIT has the state of an undisturbed run, no kept checkpoint is deleted, no name
// is used twice, there is one line per step; and when the faults end, the job goes on.
#include "tests/unit/train/world.h"

#include <inttypes.h>
#include <stdlib.h>

#include "controllers/common/proto.h"
#include "lib/base/rng.h"

enum { STEPS = 6, SCHEDULES = 250, FAULTS = 120, HEALING = 400 };

static bool below(struct td_rng *rng, uint32_t n, uint32_t limit) {
    return td_rng_below(rng, n) < limit;
}

// The last report, when it speaks of the current generation and lineage.
static const Tandem__Sync__TrainReport *current(const struct world *w) {
    const Tandem__Sync__TrainReport *t = w->report ? w->report->train : NULL;
    bool now = t && t->generation == w->lead.generation && t->lineage == world_job(w)->lineage;
    return now ? t : NULL;
}

static bool is_bad(const struct world *w, uint64_t id) {
    for (size_t i = 0; i < w->folder_count; i++) {
        if (w->folders[i].id == id) {
            return w->folders[i].corrupt;
        }
    }
    return true;
}

static void restore(struct world *w) {
    const struct td_job_state *j = world_job(w);
    for (size_t i = j->kept_count; i > 0; i--) {
        if (!is_bad(w, j->kept[i - 1]->id)) {
            world_restore(w, j->kept[i - 1]->id);
            return;
        }
    }
    world_restore(w, 0);
}

static bool commits(const struct world *w, const Tandem__Sync__TrainReport *t) {
    const struct td_job_state *j = world_job(w);
    if (!t->finished || t->finished->version->step != (j->has_head ? j->head.step + 1 : 0)) {
        return false;
    }
    const struct td_round_state *r = td_job_round(j, t->finished->version->step);
    return !j->has_head || (r && t->finished->ref->offset == r->ref.offset);
}

static bool fresh_copy(const struct world *w, struct td_group g) {
    const Tandem__Sync__TrainReport *t = current(w);
    for (size_t i = 0; i < t->n_arrived; i++) {
        const td_entry *e = t->arrived[i]->entry;
        if (td_group_compare(td_proto_to_group(e->group), g) == 0 &&
            e->min_step == world_job(w)->head.step) {
            return true;
        }
    }
    return false;
}

static void next_round(struct world *w, uint64_t *attempt) {
    const struct td_job_state *j = world_job(w);
    if (j->open_count < WORLD_BATCH) {
        world_draw(w, WORLD_BATCH);
    }
    size_t there = 0;
    for (size_t i = 0; i < j->open_count; i++) {
        if (fresh_copy(w, j->open[i])) {
            there++;
        } else {
            world_publish(w, j->open[i].index, j->head.step, ++*attempt);
        }
    }
    if (there >= WORLD_BATCH) {
        world_seal(w);
    }
}

static void replace_missing(struct world *w, const Tandem__Sync__TrainReport *t,
                            uint64_t *attempt) {
    const struct td_round_state *r = td_job_round(world_job(w), t->missing_round);
    if (!r || r->ref.offset != t->missing_ref->offset || r->round <= world_job(w)->head.step) {
        return;
    }
    bool all = true;
    for (size_t i = 0; i < t->n_missing; i++) {
        struct td_group g = td_proto_to_group(r->entries[t->missing[i]]->group);
        if (!fresh_copy(w, g)) {
            world_publish(w, g.index, world_job(w)->head.step, ++*attempt);
            all = false;
        }
    }
    if (all) {
        world_reseal(w, r->round);
    }
}

static void check_commit(const struct world *w) {
    const struct td_job_state *j = world_job(w);
    const struct td_round_state *r = td_job_round(j, j->head.step);
    assert_int_equal(r->roles[0]->state_digest,
                     world_state_digest(world_expected(w, j->head.step)));
}

// One decision of the leader, from the journal and the last report.
static void lead(struct world *w, uint64_t *attempt) {
    const struct td_job_state *j = world_job(w);
    const struct td_gang_state *g = td_job_gang(j, "actor");
    const Tandem__Sync__TrainReport *t = current(w);
    if (!g || (t && t->lost)) {
        world_gang(w, WORLD_MEMBER);
    } else if (!g->has_base) {
        restore(w);
    } else if (!t) {
        return;
    } else if (commits(w, t)) {
        world_commit(w);
        check_commit(w);
    } else if (t->checkpoint && t->checkpoint->version->step == j->head.step &&
               !td_job_kept(j, t->checkpoint->id) &&
               (!j->kept_count ||
                j->kept[j->kept_count - 1]->version->step < t->checkpoint->version->step)) {
        world_checkpoint(w);
    } else if (t->missing_round) {
        replace_missing(w, t, attempt);
    } else if (j->has_head && j->sealed == j->head.step && j->head.step < STEPS && t->scanned) {
        bool closed = t->has_metrics && t->metrics_step == j->head.step && t->saved;
        if (closed) {
            next_round(w, attempt);
        } else {
            world_close_step(w);
        }
    }
}

static bool sealed_open(const struct world *w) {
    return world_job(w)->sealed > world_job(w)->head.step;
}

static void lose_record(struct world *w, struct td_rng *rng) {
    const struct td_job_state *j = world_job(w);
    if (!sealed_open(w)) {
        return;
    }
    const struct td_round_state *r = td_job_round(j, j->sealed);
    const Tandem__Journal__LogPosition *at =
        r->entries[td_rng_below(rng, (uint32_t)r->entry_count)]->parts[0];
    for (size_t i = 0; i < w->rollout_count; i++) {
        struct world_record *q = &w->rollout[i];
        q->gone = q->gone || (q->partition == at->partition && q->offset == at->offset);
    }
}

static void spoil_newest(struct world *w) {
    const struct td_job_state *j = world_job(w);
    for (size_t i = 0; j->kept_count == 2 && i < w->folder_count; i++) {
        if (w->folders[i].id == j->kept[1]->id && !is_bad(w, j->kept[0]->id)) {
            w->folders[i].corrupt = true;
        }
    }
}

// A round sealed anew; only with copies that can be read.
static void reseal(struct world *w) {
    const Tandem__Sync__TrainReport *t = current(w);
    const struct td_round_state *r = td_job_round(world_job(w), world_job(w)->sealed);
    if (!sealed_open(w) || !t || t->missing_round) {
        return;
    }
    for (size_t i = 0; i < r->entry_count; i++) {
        const Tandem__Journal__LogPosition *at = r->entries[i]->parts[0];
        for (size_t q = 0; q < w->rollout_count; q++) {
            const struct world_record *rec = &w->rollout[q];
            if (rec->gone && rec->partition == at->partition && rec->offset == at->offset) {
                return;
            }
        }
    }
    world_reseal(w, world_job(w)->sealed);
}

static void fault(struct world *w, struct td_rng *rng) {
    uint32_t i = td_rng_below(rng, w->workers);
    switch (td_rng_below(rng, 10)) {
    case 0:
        world_crash(w);
        world_start(w);
        break;
    case 1:
        world_worker_dies(w, i);
        break;
    case 2:
        world_crash(w);
        for (uint32_t k = 0; k < w->workers; k++) {
            w->worker[k] = (struct world_worker){.running = true};
        }
        world_start(w);
        break;
    case 3:
        world_disconnect(w, i);
        break;
    case 4:
        reseal(w);
        break;
    case 5:
        lose_record(w, rng);
        break;
    case 6:
        if (w->journal_read + 1 < w->journal_count) {
            w->journal_read++; // a gap, seen at the record behind it
        }
        break;
    case 7:
        spoil_newest(w);
        break;
    case 8:
        world_gang(w, WORLD_MEMBER);
        break;
    default:
        world_tick(w);
        break;
    }
}

static void attach_all(struct world *w) {
    for (uint32_t i = 0; i < w->workers; i++) {
        if (!w->attached[i]) {
            world_attach(w, i);
        }
    }
}

static void some_effects(struct world *w, struct td_rng *rng) {
    if (below(rng, 4, 1)) {
        world_read(w);
    }
    for (uint32_t n = td_rng_below(rng, 12); n > 0 && w->queue_count; n--) {
        bool command = w->queue[0].kind >= TD_TC_SETUP && w->queue[0].kind <= TD_TC_DIGEST;
        if (command && below(rng, 20, 1)) {
            uint32_t worker = w->queue[0].worker;
            world_lose_answer(w);
            world_disconnect(w, worker);
        } else {
            world_run_one(w);
        }
    }
}

static void schedule(uint64_t seed, uint64_t *gangs) {
    struct td_rng rng = {seed};
    struct world *w = world_new(1 + td_rng_below(&rng, 3));
    w->plan.checkpoint_every = 1 + td_rng_below(&rng, 3);
    w->plan.save_freq = td_rng_below(&rng, 3);
    w->plan.total_steps = STEPS;
    uint64_t attempt = 0;
    for (int i = 0; i < FAULTS && world_job(w)->head.step < STEPS; i++) {
        some_effects(w, &rng);
        if (below(&rng, 3, 1)) {
            world_run(w);
        }
        if (below(&rng, 2, 1)) {
            lead(w, &attempt);
        }
        if (below(&rng, 8, 1)) {
            fault(w, &rng);
        }
        if (below(&rng, 3, 1)) {
            attach_all(w);
        }
    }
    int left = HEALING;
    while (left > 0) {
        const Tandem__Sync__TrainReport *t = current(w);
        if (world_job(w)->head.step == STEPS && t && t->has_metrics && t->metrics_step == STEPS &&
            t->saved) {
            break;
        }
        left--;
        attach_all(w);
        world_run(w);
        lead(w, &attempt);
        world_run(w);
        if (world_job(w)->head.step == STEPS && !sealed_open(w)) {
            world_close_step(w);
        }
    }
    const Tandem__Sync__TrainReport *last = current(w);
    if (last && last->missing_round && last->missing_round <= world_job(w)->head.step) {
        world_free(w); // A13: a record of a committed round is gone, the leader ends the job
        return;
    }
    if (!left || w->stopped) {
        struct td_train_view view;
        td_trainc_view(w->x, &view);
        fail_msg("seed %" PRIu64 ": step %" PRIu64 ", waits for \"%s\", stopped \"%s\"", seed,
                 world_job(w)->head.step, view.waits_for, w->stopped ? w->stopped : "");
    }
    assert_int_equal(w->line_count, STEPS + 1);
    for (uint64_t i = 0; i <= STEPS; i++) {
        assert_int_equal(w->lines[i], i);
    }
    *gangs += w->lead.generation;
    world_free(w);
}

static void test_trainc_random(void **state) {
    (void)state;
    const char *given = getenv("TD_TEST_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : 1, gangs = 0;
    uint64_t count = given ? 1 : SCHEDULES;
    for (uint64_t i = 0; i < count; i++) {
        print_message("seed %" PRIu64 "\r", first + i);
        schedule(first + i, &gangs);
    }
    print_message("%" PRIu64 " schedules from seed %" PRIu64 " (TD_TEST_SEED), %" PRIu64
                  " generations\n",
                  count, first, gangs);
    assert_true(given || gangs > 2 * count); // the faults did something
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trainc_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
