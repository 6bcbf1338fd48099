// The rollout controller machine by scripts: leases, versions, deaths, publishing.
#include "tests/unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/rollout/rolloutc.h"
#include "lib/base/buf.h"
#include "lib/base/mem.h"

enum { WORKERS = 2, SEQS = 8, SAMPLES = 4, JOB = 1, UNITS = 4, GROUPS = 6 };

struct rig {
    struct td_rolloutc *x;
    int64_t now_ms;
    struct td_rolloutc_effects out; // of the last event
    Tandem__Sync__Report *report;   // owned; the last one
    struct td_buf trace;
    const char *sources[2]; // of the orders, as many as there are
};

static void take(struct rig *r) {
    static const char *const names[] = {"PREPARE", "FLIP", "START", "PUBLISH", "CLOSE"};
    for (size_t i = 0; i < r->out.count; i++) {
        const struct td_rolloutc_effect *e = &r->out.items[i];
        if (e->kind == TD_RC_REPORT) {
            td_proto_free(r->report);
            r->report = td_proto_dup(e->report);
            continue;
        }
        td_buf_printf(&r->trace, "%s%s", r->trace.len ? " " : "", names[e->kind]);
        if (e->kind == TD_RC_PREPARE || e->kind == TD_RC_FLIP) {
            td_buf_printf(&r->trace, "%u.%d", e->worker, (int)e->version.step);
        } else if (e->kind == TD_RC_START_GROUP) {
            td_buf_printf(&r->trace, "%u.g%d#%d", e->worker, (int)e->group.index, (int)e->ticket);
        } else {
            td_buf_printf(&r->trace, "#%d", (int)e->ticket);
        }
    }
}

static void event(struct rig *r, struct td_rolloutc_event e) {
    td_rolloutc_effects_fini(&r->out);
    td_rolloutc_step(r->x, &e, ++r->now_ms, &r->out);
    take(r);
}

// The trace since the last call.
static void expect(struct rig *r, const char *want) {
    assert_string_equal(td_buf_str(&r->trace), want);
    td_buf_clear(&r->trace);
}

static void up(struct rig *r, uint32_t worker, int64_t step, uint64_t digest) {
    Tandem__Worker__Version v = TANDEM__WORKER__VERSION__INIT;
    Tandem__Worker__Status s = TANDEM__WORKER__STATUS__INIT;
    v.step = (uint64_t)step;
    s.has_weights = step >= 0;
    s.weights = &v;
    s.held_digest = digest;
    event(r, (struct td_rolloutc_event){.kind = TD_RC_WORKER_UP, .worker = worker, .status = &s});
}

static void new_rig(struct rig *r) {
    *r = (struct rig){.now_ms = 1000, .sources = {"one", "two"}};
    const struct td_rolloutc_config c = {
        .member = 3, .workers = WORKERS, .seqs_max = SEQS, .report_ms = 500, .retry_ms = 100};
    r->x = td_rolloutc_new(&c);
    event(r, (struct td_rolloutc_event){
                 .kind = TD_RC_JOB, .job = JOB, .samples = SAMPLES, .eval_samples = 1});
}

static void end_rig(struct rig *r) {
    td_rolloutc_effects_fini(&r->out);
    td_rolloutc_free(r->x);
    td_proto_free(r->report);
    td_buf_fini(&r->trace);
}

// ---- orders, built by hand ----

struct lease {
    uint64_t n; // attempt; 0: end of the list
    bool eval;
    uint64_t step, from, to; // groups
};

struct draft {
    Tandem__Sync__Orders o;
    Tandem__Journal__Version target, versions[UNITS];
    Tandem__Sync__Unit units[UNITS], *unit_list[UNITS];
    Tandem__Sync__Attempt attempts[UNITS];
    Tandem__Journal__Group groups[UNITS][GROUPS], *group_list[UNITS][GROUPS];
};

static void draft_orders(struct draft *d, const struct rig *r, int64_t target,
                         const struct lease *leases) {
    tandem__sync__orders__init(&d->o);
    d->o.journal_id = 0xab;
    d->o.term = 2;
    d->o.report = r->report->report;
    d->o.job = JOB;
    d->o.has_target = target >= 0;
    tandem__journal__version__init(&d->target);
    d->target.step = (uint64_t)target;
    d->o.target = &d->target;
    d->o.target_digest = 500 + (uint64_t)target;
    d->o.target_sources = (char **)r->sources;
    d->o.n_target_sources = (r->sources[0] != NULL) + (r->sources[1] != NULL);
    d->o.units = d->unit_list;
    for (size_t i = 0; leases && leases[i].n; i++) {
        Tandem__Sync__Unit *u = &d->units[i];
        tandem__sync__unit__init(u);
        tandem__sync__attempt__init(&d->attempts[i]);
        tandem__journal__version__init(&d->versions[i]);
        d->attempts[i].term = 2;
        d->attempts[i].n = leases[i].n;
        d->versions[i].step = leases[i].step;
        u->job = JOB;
        u->attempt = &d->attempts[i];
        u->eval = leases[i].eval;
        u->version = &d->versions[i];
        u->groups = d->group_list[i];
        for (uint64_t g = leases[i].from; g < leases[i].to; g++) {
            Tandem__Journal__Group *group = &d->groups[i][u->n_groups];
            tandem__journal__group__init(group);
            group->index = g;
            u->groups[u->n_groups++] = group;
        }
        d->unit_list[d->o.n_units++] = u;
    }
}

static void orders(struct rig *r, int64_t target, const struct lease *leases) {
    struct draft d;
    draft_orders(&d, r, target, leases);
    event(r, (struct td_rolloutc_event){.kind = TD_RC_ORDERS, .orders = &d.o});
}

static void prepared(struct rig *r, uint32_t worker, uint64_t step, bool ok) {
    event(r, (struct td_rolloutc_event){
                 .kind = TD_RC_PREPARED, .worker = worker, .version = {0, step}, .ok = ok});
}

static void flipped(struct rig *r, uint32_t worker, uint64_t step) {
    event(r, (struct td_rolloutc_event){
                 .kind = TD_RC_FLIPPED, .worker = worker, .version = {0, step}, .ok = true});
}

static void samples_done(struct rig *r, uint64_t ticket, int n) {
    for (int i = 0; i < n; i++) {
        event(r, (struct td_rolloutc_event){.kind = TD_RC_SAMPLE_DONE, .ticket = ticket});
    }
}

static void scored(struct rig *r, uint64_t ticket, double score) {
    event(r, (struct td_rolloutc_event){
                 .kind = TD_RC_GROUP_SCORED, .ticket = ticket, .scores = &score, .score_count = 1});
}

static void published(struct rig *r, uint64_t ticket, bool ok) {
    event(r, (struct td_rolloutc_event){.kind = TD_RC_PUBLISHED, .ticket = ticket, .ok = ok});
}

static void tick(struct rig *r, int64_t ms) {
    r->now_ms += ms;
    event(r, (struct td_rolloutc_event){.kind = TD_RC_TICK});
}

// Both workers at step 0, no units.
static void ready_rig(struct rig *r) {
    new_rig(r);
    up(r, 0, 0, 500);
    up(r, 1, 0, 500);
    orders(r, 0, NULL);
    expect(r, "");
}

static const Tandem__Sync__UnitReport *unit(const struct rig *r, uint64_t n) {
    for (size_t i = 0; i < r->report->rollout->n_units; i++) {
        if (r->report->rollout->units[i]->attempt->n == n) {
            return r->report->rollout->units[i];
        }
    }
    fail_msg("unit %d is not reported", (int)n);
    return NULL;
}

// ---- tests ----

static void test_rolloutc_first_weights(void **state) {
    (void)state;
    struct rig r;
    new_rig(&r);
    up(&r, 0, -1, 0);
    assert_int_equal(r.report->workers_ready, 1);
    assert_int_equal(r.report->rollout->n_versions, 0);
    orders(&r, 0, NULL);
    expect(&r, "PREPARE0.0");
    assert_int_equal(r.out.items[0].digest, 500);
    assert_int_equal(r.report->rollout->n_versions, 0);
    prepared(&r, 0, 0, true);
    expect(&r, "FLIP0.0");
    assert_int_equal(r.report->rollout->n_versions, 1); // held, verified
    flipped(&r, 0, 0);
    expect(&r, "");
    assert_int_equal(r.report->rollout->versions[0]->digest, 500);
    // A second worker without them: not every ready one holds them now.
    up(&r, 1, -1, 0);
    expect(&r, "PREPARE1.0");
    assert_int_equal(r.report->rollout->n_versions, 0);
    end_rig(&r);
}

static void test_rolloutc_group_to_the_log(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    assert_int_equal(r.report->rollout->capacity, 4); // 2 workers × 8 sequences / 4 samples
    const struct lease leases[] = {{1, false, 0, 10, 13}, {0}};
    orders(&r, 0, leases);
    // Each goes to the worker with the fewest sequences.
    expect(&r, "START0.g10#1 START1.g11#2 START0.g12#3");
    assert_int_equal(r.out.items[0].samples, SAMPLES);
    assert_int_equal(r.out.items[0].attempt.n, 1);
    assert_int_equal(r.report->rollout->capacity, 1);
    samples_done(&r, 1, 3);
    expect(&r, "");
    samples_done(&r, 1, 1);
    assert_int_equal(r.report->rollout->capacity, 2);
    scored(&r, 1, 0.5);
    expect(&r, "PUBLISH#1");
    assert_false(unit(&r, 1)->done[0]);
    published(&r, 1, true);
    expect(&r, "CLOSE#1");
    assert_true(unit(&r, 1)->done[0]);
    assert_false(unit(&r, 1)->done[1]);
    published(&r, 1, true); // again: nothing
    scored(&r, 1, 0.5);
    expect(&r, "");
    end_rig(&r);
}

static void test_rolloutc_waits_for_room(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease leases[] = {{1, false, 0, 0, 6}, {0}};
    orders(&r, 0, leases);
    expect(&r, "START0.g0#1 START1.g1#2 START0.g2#3 START1.g3#4");
    assert_int_equal(r.report->rollout->capacity, 0);
    samples_done(&r, 2, 3);
    expect(&r, "");
    samples_done(&r, 2, 1);
    expect(&r, "START1.g4#5");
    end_rig(&r);
}

// A group that is larger than a worker's room goes alone.
static void test_rolloutc_large_group(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    event(&r, (struct td_rolloutc_event){
                  .kind = TD_RC_JOB, .job = JOB, .samples = SEQS + 1, .eval_samples = 1});
    assert_int_equal(r.report->rollout->capacity, 2);
    const struct lease leases[] = {{1, false, 0, 0, 3}, {0}};
    orders(&r, 0, leases);
    expect(&r, "START0.g0#1 START1.g1#2");
    assert_int_equal(r.report->rollout->capacity, 0);
    end_rig(&r);
}

static void test_rolloutc_worker_dies(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease leases[] = {{1, false, 0, 0, 3}, {0}};
    orders(&r, 0, leases);
    expect(&r, "START0.g0#1 START1.g1#2 START0.g2#3");
    samples_done(&r, 1, 4);
    scored(&r, 1, 1); // group 0 is on its way: the death does not touch it
    expect(&r, "PUBLISH#1");
    event(&r, (struct td_rolloutc_event){.kind = TD_RC_WORKER_DOWN, .worker = 0});
    expect(&r, "CLOSE#3 START1.g2#4");
    published(&r, 1, true);
    expect(&r, "CLOSE#1");
    samples_done(&r, 3, 4); // of the closed ticket
    scored(&r, 3, 1);
    expect(&r, "");
    // The other one is attached again: its sequences are closed, its groups begin anew.
    up(&r, 1, 0, 500);
    expect(&r, "CLOSE#2 CLOSE#4 START1.g1#5 START1.g2#6");
    end_rig(&r);
}

static void test_rolloutc_publish_unknown(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease leases[] = {{1, false, 0, 0, 1}, {0}};
    orders(&r, 0, leases);
    samples_done(&r, 1, 4);
    scored(&r, 1, 1);
    expect(&r, "START0.g0#1 PUBLISH#1");
    published(&r, 1, false);
    expect(&r, "");
    assert_false(unit(&r, 1)->done[0]);
    tick(&r, 50);
    expect(&r, "");
    tick(&r, 60);
    expect(&r, "PUBLISH#1");
    published(&r, 1, false);
    tick(&r, 200);
    expect(&r, "PUBLISH#1");
    published(&r, 1, true);
    expect(&r, "CLOSE#1");
    assert_true(unit(&r, 1)->done[0]);
    end_rig(&r);
}

// What is not in the orders any more is over, wherever it stands; nothing of it is published.
static void test_rolloutc_late_attempt(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease two[] = {{1, false, 0, 0, 2}, {2, false, 0, 2, 4}, {0}};
    orders(&r, 0, two);
    expect(&r, "START0.g0#1 START1.g1#2 START0.g2#3 START1.g3#4");
    samples_done(&r, 1, 4);
    scored(&r, 1, 1);
    published(&r, 1, false); // unsure: would be published again
    samples_done(&r, 2, 4);  // its rewards are under way
    expect(&r, "PUBLISH#1");
    const struct lease other[] = {{2, false, 0, 2, 4}, {0}};
    orders(&r, 0, other);
    expect(&r, "CLOSE#1 CLOSE#2");
    tick(&r, 1000);
    scored(&r, 2, 1);
    published(&r, 1, true);
    expect(&r, "");
    assert_int_equal(r.report->rollout->n_units, 1);
    // A new attempt of the same groups has nothing of the old one.
    const struct lease again[] = {{2, false, 0, 2, 4}, {5, false, 0, 0, 1}, {0}};
    orders(&r, 0, again);
    expect(&r, "START0.g0#5");
    // Single groups may leave a unit, too.
    const struct lease fewer[] = {{2, false, 0, 3, 4}, {5, false, 0, 0, 1}, {0}};
    orders(&r, 0, fewer);
    expect(&r, "CLOSE#3");
    end_rig(&r);
}

// A new target is prepared beside the old one, and flipped to when the last sequence has ended.
static void test_rolloutc_drains_and_flips(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease both[] = {{1, false, 0, 0, 2}, {0}};
    orders(&r, 0, both);
    expect(&r, "START0.g0#1 START1.g1#2");
    // The unit of the old version stays leased; the new one has groups for both workers.
    const struct lease more[] = {{1, false, 0, 0, 2}, {2, false, 1, 5, 7}, {0}};
    orders(&r, 1, more);
    expect(&r, "PREPARE0.1 PREPARE1.1");
    prepared(&r, 0, 1, true);
    prepared(&r, 1, 1, true);
    expect(&r, ""); // sequences are open
    assert_int_equal(r.report->rollout->n_versions, 2);
    samples_done(&r, 1, 4);
    expect(&r, "FLIP0.1");
    flipped(&r, 0, 1); // the other worker is not waited for
    expect(&r, "START0.g5#3 START0.g6#4");
    scored(&r, 1, 1); // under the version it was leased for
    expect(&r, "PUBLISH#1");
    // The old unit goes: it is closed and the second worker flips at once.
    const struct lease rest[] = {{2, false, 1, 5, 7}, {0}};
    orders(&r, 1, rest);
    expect(&r, "CLOSE#1 CLOSE#2 FLIP1.1");
    assert_int_equal(r.report->rollout->n_versions, 1);
    end_rig(&r);
}

// The unit is wanted under another version: what runs of it under the old one is closed.
static void test_rolloutc_unit_changes_version(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease old[] = {{1, false, 0, 0, 1}, {0}};
    orders(&r, 0, old);
    const struct lease now[] = {{1, false, 1, 0, 1}, {0}};
    orders(&r, 1, now);
    expect(&r, "START0.g0#1 CLOSE#1 PREPARE0.1 PREPARE1.1");
    end_rig(&r);
}

static void expect_sources(const struct rig *r, size_t effect, const char *first,
                           const char *second) {
    const struct td_rolloutc_effect *e = &r->out.items[effect];
    assert_int_equal(e->kind, TD_RC_PREPARE);
    assert_int_equal(e->source_count, 2);
    assert_string_equal(e->sources[0], first);
    assert_string_equal(e->sources[1], second);
}

// Workers begin with different sources, and with the next one after a failure; nothing is asked for
// while there are none.
static void test_rolloutc_sources(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    r.sources[0] = NULL;
    r.sources[1] = NULL;
    orders(&r, 1, NULL);
    tick(&r, 5000);
    expect(&r, "");
    struct td_rollout_view view;
    td_rolloutc_view(r.x, &view);
    assert_string_equal(view.waits_for, "the weights of step 1; no train worker serves them");
    r.sources[0] = "one";
    r.sources[1] = "two";
    orders(&r, 1, NULL);
    expect(&r, "PREPARE0.1 PREPARE1.1");
    expect_sources(&r, 0, "one", "two");
    expect_sources(&r, 1, "two", "one");
    prepared(&r, 0, 1, false);
    tick(&r, 100);
    expect(&r, "PREPARE0.1");
    expect_sources(&r, 0, "two", "one");
    end_rig(&r);
}

// Longer each time, up to a limit; another source or target ends the waiting.
static void test_rolloutc_prepare_is_no_tight_loop(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    event(&r, (struct td_rolloutc_event){.kind = TD_RC_WORKER_DOWN, .worker = 1});
    orders(&r, 1, NULL);
    for (int i = 0; i < 6; i++) {
        expect(&r, "PREPARE0.1");
        prepared(&r, 0, 1, false);
        tick(&r, (100 << (i < 3 ? i : 3)) - 2);
        expect(&r, "");
        orders(&r, 1, NULL); // the same: the time is now, but for this event
    }
    expect(&r, "PREPARE0.1");
    prepared(&r, 0, 1, false);
    orders(&r, 1, NULL);
    expect(&r, "");
    r.sources[1] = "three";
    orders(&r, 1, NULL);
    expect(&r, "PREPARE0.1");
    prepared(&r, 0, 1, false);
    orders(&r, 2, NULL);
    expect(&r, "PREPARE0.2");
    end_rig(&r);
}

// Weights whose digest is wrong are never flipped to.
static void test_rolloutc_prepare_fails(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    orders(&r, 1, NULL);
    expect(&r, "PREPARE0.1 PREPARE1.1");
    prepared(&r, 0, 1, false);
    prepared(&r, 1, 1, true);
    expect(&r, "FLIP1.1"); // one failure blocks no other
    flipped(&r, 1, 1);
    const struct lease leases[] = {{1, false, 1, 0, 2}, {0}};
    orders(&r, 1, leases);
    expect(&r, "START1.g0#1 START1.g1#2");
    tick(&r, 100);
    expect(&r, "PREPARE0.1"); // again
    assert_int_equal(r.report->rollout->n_versions, 0);
    // An answer about another version than the one asked for counts for nothing.
    prepared(&r, 0, 0, true);
    expect(&r, "");
    // A worker that says it holds the version, but with another digest, gets it again.
    up(&r, 0, 1, 999);
    expect(&r, "PREPARE0.1");
    end_rig(&r);
}

static void test_rolloutc_target_overtaken(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    orders(&r, 1, NULL);
    expect(&r, "PREPARE0.1 PREPARE1.1");
    orders(&r, 2, NULL);
    expect(&r, ""); // one is under way
    prepared(&r, 0, 1, true);
    expect(&r, "PREPARE0.2");
    prepared(&r, 0, 2, true);
    expect(&r, "FLIP0.2");
    end_rig(&r);
}

static void test_rolloutc_eval(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease leases[] = {{1, true, 0, 0, 2}, {0}};
    orders(&r, 0, leases);
    expect(&r, "START0.g0#1 START1.g1#2");
    assert_true(r.out.items[0].eval);
    assert_int_equal(r.out.items[0].samples, 1);
    samples_done(&r, 1, 1);
    scored(&r, 1, 0.75);
    expect(&r, "CLOSE#1"); // scored, not published
    const Tandem__Sync__UnitReport *u = unit(&r, 1);
    assert_true(u->eval && u->done[0] && !u->done[1]);
    assert_int_equal(u->n_scores, 1);
    assert_int_equal(u->scores[0]->index, 0);
    assert_true(u->scores[0]->score[0] == 0.75);
    orders(&r, 0, leases); // the scores stay until the unit goes
    assert_int_equal(unit(&r, 1)->n_scores, 1);
    orders(&r, 0, NULL);
    expect(&r, "CLOSE#2");
    end_rig(&r);
}

static void test_rolloutc_group_fails(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const double score = 1;
    const struct lease leases[] = {{1, false, 0, 0, 1}, {0}};
    orders(&r, 0, leases);
    event(&r,
          (struct td_rolloutc_event){.kind = TD_RC_GROUP_FAILED, .ticket = 1, .text = "no memory"});
    expect(&r, "START0.g0#1 CLOSE#1");
    struct td_rollout_view view;
    td_rolloutc_view(r.x, &view);
    assert_string_equal(view.waits_for, "a group to be tried again: no memory");
    assert_string_equal(r.report->rollout->units[0]->waits_for, view.waits_for);
    tick(&r, 100);
    expect(&r, "START1.g0#2"); // another worker, when there is one
    td_rolloutc_view(r.x, &view);
    assert_string_equal(view.waits_for, "its workers to generate, after: no memory");
    event(&r,
          (struct td_rolloutc_event){.kind = TD_RC_GROUP_FAILED, .ticket = 2, .text = "no luck"});
    tick(&r, 100);
    expect(&r, "CLOSE#2"); // later each time
    tick(&r, 100);
    expect(&r, "START0.g0#3");
    assert_int_equal(r.report->rollout->units[0]->failures[0], 2);
    assert_string_equal(r.report->rollout->units[0]->failed, "no luck");
    event(&r, (struct td_rolloutc_event){
                  .kind = TD_RC_GROUP_SCORED, .ticket = 3, .scores = &score, .score_count = 1});
    td_rolloutc_view(r.x, &view);
    assert_string_equal(view.waits_for, "the rollout log to take 1 groups");
    end_rig(&r);
}

static void expect_failures(const struct rig *r, uint32_t first, uint32_t second, uint32_t third) {
    const Tandem__Sync__UnitReport *u = unit(r, 1);
    assert_int_equal(u->n_failures, 3);
    assert_int_equal(u->failures[0], first);
    assert_int_equal(u->failures[1], second);
    assert_int_equal(u->failures[2], third);
}

// Deaths of workers are counted for what they generated; a group that saw two goes alone, so that
// the third is nobody else's.
static void test_rolloutc_failing_group_goes_alone(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease leases[] = {{1, false, 0, 0, 3}, {0}};
    orders(&r, 0, leases);
    expect(&r, "START0.g0#1 START1.g1#2 START0.g2#3");
    assert_int_equal(unit(&r, 1)->n_failures, 0);
    event(&r, (struct td_rolloutc_event){.kind = TD_RC_WORKER_DOWN, .worker = 0});
    expect(&r, "CLOSE#1 CLOSE#3 START1.g0#4");
    expect_failures(&r, 1, 0, 1);
    assert_string_equal(unit(&r, 1)->failed, "worker 0 ended while it generated it");
    up(&r, 0, 0, 500);
    expect(&r, "START0.g2#5"); // there is no other with room
    event(&r, (struct td_rolloutc_event){.kind = TD_RC_WORKER_DOWN, .worker = 1});
    expect_failures(&r, 2, 1, 1);
    expect(&r, "CLOSE#4 CLOSE#2"); // group 0 waits for a worker of its own, the others for it
    up(&r, 1, 0, 500);
    expect(&r, "START1.g0#6 START0.g1#7");
    event(&r, (struct td_rolloutc_event){.kind = TD_RC_WORKER_DOWN, .worker = 1});
    expect_failures(&r, 3, 1, 1);
    orders(&r, 0, leases); // told again: what was counted stays
    expect_failures(&r, 3, 1, 1);
    end_rig(&r);
}

static void test_rolloutc_orders_fenced(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    const struct lease leases[] = {{1, false, 0, 0, 1}, {0}};
    struct draft d;
    const struct td_rolloutc_event e = {.kind = TD_RC_ORDERS, .orders = &d.o};
    draft_orders(&d, &r, 0, leases);
    d.o.term = 1; // of a deposed leader
    event(&r, e);
    expect(&r, "");
    d.o.term = 3;
    d.o.journal_id++; // of another journal
    event(&r, e);
    expect(&r, "");
    d.o.journal_id--;
    d.o.report = 1000; // to an earlier process of this member
    event(&r, e);
    d.o.report = 0; // to nobody
    event(&r, e);
    expect(&r, "");
    d.o.report = 1;
    event(&r, e);
    expect(&r, "START0.g0#1");
    assert_int_equal(r.report->term, 3);
    // Overtaken on the way: answers an older report of the same term.
    tick(&r, 600);
    d.o.report = r.report->report;
    event(&r, e);
    d.o.report = 1;
    d.o.n_units = 0;
    event(&r, e);
    expect(&r, "");
    d.o.report = r.report->report;
    event(&r, e);
    expect(&r, "CLOSE#1");
    end_rig(&r);
}

static void test_rolloutc_unknown_job(void **state) {
    (void)state;
    struct rig r;
    ready_rig(&r);
    event(&r, (struct td_rolloutc_event){
                  .kind = TD_RC_JOB, .job = JOB + 1, .samples = 1, .eval_samples = 1});
    const struct lease leases[] = {{1, false, 0, 0, 1}, {0}};
    orders(&r, 0, leases);
    expect(&r, "");
    event(&r, (struct td_rolloutc_event){
                  .kind = TD_RC_JOB, .job = JOB, .samples = SAMPLES, .eval_samples = 1});
    expect(&r, "START0.g0#1");
    end_rig(&r);
}

static void test_rolloutc_says_what_it_waits_for(void **state) {
    (void)state;
    struct rig r;
    new_rig(&r);
    struct td_rollout_view v;
    td_rolloutc_view(r.x, &v);
    assert_string_equal(v.waits_for, "workers to come up");
    up(&r, 0, -1, 0);
    td_rolloutc_view(r.x, &v);
    assert_string_equal(v.waits_for, "the leader to name the weights");
    orders(&r, 3, NULL);
    td_rolloutc_view(r.x, &v);
    assert_string_equal(v.waits_for, "the weights of step 3");
    int64_t since = v.since_ms;
    tick(&r, 300);
    td_rolloutc_view(r.x, &v);
    assert_int_equal(v.since_ms, since);
    end_rig(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rolloutc_first_weights),
        cmocka_unit_test(test_rolloutc_group_to_the_log),
        cmocka_unit_test(test_rolloutc_waits_for_room),
        cmocka_unit_test(test_rolloutc_large_group),
        cmocka_unit_test(test_rolloutc_worker_dies),
        cmocka_unit_test(test_rolloutc_publish_unknown),
        cmocka_unit_test(test_rolloutc_late_attempt),
        cmocka_unit_test(test_rolloutc_drains_and_flips),
        cmocka_unit_test(test_rolloutc_unit_changes_version),
        cmocka_unit_test(test_rolloutc_prepare_fails),
        cmocka_unit_test(test_rolloutc_target_overtaken),
        cmocka_unit_test(test_rolloutc_sources),
        cmocka_unit_test(test_rolloutc_prepare_is_no_tight_loop),
        cmocka_unit_test(test_rolloutc_eval),
        cmocka_unit_test(test_rolloutc_group_fails),
        cmocka_unit_test(test_rolloutc_failing_group_goes_alone),
        cmocka_unit_test(test_rolloutc_orders_fenced),
        cmocka_unit_test(test_rolloutc_unknown_job),
        cmocka_unit_test(test_rolloutc_says_what_it_waits_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
