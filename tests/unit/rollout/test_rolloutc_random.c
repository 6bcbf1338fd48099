// The rollout controller machine under random orders, deaths, answers in any order and lost ones.
// A model beside it knows which tickets are open, what each worker holds and which units the last
// orders named. When the faults end, every leased group is done.
#include "tests/unit/cmocka_all.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/rollout/rolloutc.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"

enum {
    SCHEDULES = 150,
    EVENTS = 400,
    HEALING = 2000,
    WORKERS_MAX = 4,
    TICKETS_MAX = 4096,
    UNITS_MAX = 6,
    GROUPS_MAX = 5,
    SEQS = 9,
    SAMPLES = 3,
    JOB = 1,
};

struct ticket {
    bool open, eval, publishing, scored, orphan; // orphan: its worker went down under it
    uint32_t worker, left;
    uint64_t unit, index, step;
};

struct seat {
    bool up, has, preparing, flipping, prepared;
    uint64_t step, digest, want_step, prepared_step; // of PREPARE under way; verified
};

struct lease {
    uint64_t n, step, from, count;
    bool eval;
};

struct sim {
    struct td_rolloutc *x;
    struct td_rng rng;
    uint64_t seed;
    int64_t now_ms;
    uint32_t workers;
    struct seat seats[WORKERS_MAX];
    struct ticket tickets[TICKETS_MAX];
    uint64_t ticket_count; // tickets are numbered from 1
    struct lease leases[UNITS_MAX];
    size_t lease_count;
    uint64_t target, next_n, next_group;
    Tandem__Sync__Report *report;
    uint64_t started, published, flips;
};

static void need(const struct sim *s, bool ok, const char *what) {
    if (!ok) {
        fail_msg("seed %" PRIu64 ": %s", s->seed, what);
    }
}

static uint64_t digest_of(uint64_t step) {
    return 500 + step;
}

static uint32_t open_on(const struct sim *s, uint32_t worker) {
    uint32_t n = 0;
    for (uint64_t i = 1; i <= s->ticket_count; i++) {
        const struct ticket *t = &s->tickets[i];
        n += t->open && t->worker == worker ? t->left : 0;
    }
    return n;
}

static bool leased(const struct sim *s, const struct ticket *t) {
    for (size_t i = 0; i < s->lease_count; i++) {
        const struct lease *l = &s->leases[i];
        if (l->n == t->unit && t->index >= l->from && t->index < l->from + l->count) {
            return l->step == t->step;
        }
    }
    return false;
}

static void on_start(struct sim *s, const struct td_rolloutc_effect *e) {
    const struct seat *w = &s->seats[e->worker];
    need(s, w->up && w->has && !w->flipping, "a group starts on a worker that is not ready");
    need(s, w->step == e->version.step && w->digest == digest_of(w->step),
         "a group starts under other weights than its unit's");
    need(s, e->version.step == s->target, "a group starts beside the target");
    uint32_t open = open_on(s, e->worker);
    need(s, !open || open + e->samples <= SEQS, "too many sequences on a worker");
    need(s, e->ticket == s->ticket_count + 1 && e->ticket < TICKETS_MAX, "a ticket is used twice");
    struct ticket *t = &s->tickets[++s->ticket_count];
    *t = (struct ticket){.open = true,
                         .eval = e->eval,
                         .worker = e->worker,
                         .left = e->samples,
                         .unit = e->attempt.n,
                         .index = e->group.index,
                         .step = e->version.step};
    need(s, leased(s, t), "a group starts that is not leased");
    s->started++;
}

static void on_effect(struct sim *s, const struct td_rolloutc_effect *e) {
    struct seat *w = &s->seats[e->worker];
    struct ticket *t = &s->tickets[e->ticket];
    switch (e->kind) {
    case TD_RC_PREPARE:
        need(s, w->up && !w->preparing, "PREPARE twice");
        w->preparing = true;
        w->want_step = e->version.step;
        need(s, e->digest == digest_of(e->version.step), "PREPARE with another digest");
        need(s, e->source_count > 0, "PREPARE without sources");
        break;
    case TD_RC_FLIP:
        need(s, w->up && !open_on(s, e->worker), "FLIP with open sequences");
        need(s, w->prepared && w->prepared_step == e->version.step,
             "FLIP to weights that were not verified");
        w->flipping = true;
        s->flips++;
        break;
    case TD_RC_START_GROUP:
        on_start(s, e);
        break;
    case TD_RC_PUBLISH:
        need(s, t->open && !t->eval && t->scored && !t->publishing, "PUBLISH out of place");
        need(s, leased(s, t), "PUBLISH of a late attempt");
        t->publishing = true;
        break;
    case TD_RC_CLOSE_GROUP:
        need(s, e->ticket && e->ticket <= s->ticket_count && t->open, "closed twice");
        t->open = false;
        break;
    case TD_RC_REPORT:
        td_proto_free(s->report);
        s->report = td_proto_dup(e->report);
        break;
    }
}

static void check(const struct sim *s) {
    for (uint64_t i = 1; i <= s->ticket_count; i++) {
        const struct ticket *t = &s->tickets[i];
        need(s, !t->open || leased(s, t), "a group goes on that is not leased any more");
        need(s, !t->open || !t->orphan, "a group goes on whose worker is gone");
    }
}

static void step(struct sim *s, struct td_rolloutc_event e) {
    struct td_rolloutc_effects out = {0};
    td_rolloutc_step(s->x, &e, s->now_ms, &out);
    for (size_t i = 0; i < out.count; i++) {
        on_effect(s, &out.items[i]);
    }
    td_rolloutc_effects_fini(&out);
    check(s);
}

static void send_orders(struct sim *s) {
    static Tandem__Sync__Unit units[UNITS_MAX], *list[UNITS_MAX];
    static Tandem__Sync__Attempt attempts[UNITS_MAX];
    static Tandem__Journal__Version versions[UNITS_MAX + 1];
    static Tandem__Journal__Group groups[UNITS_MAX][GROUPS_MAX], *group_list[UNITS_MAX][GROUPS_MAX];
    static char *sources[] = {(char *)"one", (char *)"two"};
    Tandem__Sync__Orders o = TANDEM__SYNC__ORDERS__INIT;
    o.journal_id = 1;
    o.term = 1;
    o.report = s->report->report;
    o.job = JOB;
    o.has_target = true;
    tandem__journal__version__init(&versions[UNITS_MAX]);
    versions[UNITS_MAX].step = s->target;
    o.target = &versions[UNITS_MAX];
    o.target_digest = digest_of(s->target);
    o.target_sources = sources;
    o.n_target_sources = 1 + td_rng_below(&s->rng, 2);
    o.units = list;
    for (size_t i = 0; i < s->lease_count; i++) {
        const struct lease *l = &s->leases[i];
        tandem__sync__unit__init(&units[i]);
        tandem__sync__attempt__init(&attempts[i]);
        tandem__journal__version__init(&versions[i]);
        attempts[i].term = 1;
        attempts[i].n = l->n;
        versions[i].step = l->step;
        units[i].job = JOB;
        units[i].attempt = &attempts[i];
        units[i].version = &versions[i];
        units[i].eval = l->eval;
        units[i].groups = group_list[i];
        for (uint64_t g = 0; g < l->count; g++) {
            tandem__journal__group__init(&groups[i][g]);
            groups[i][g].index = l->from + g;
            group_list[i][g] = &groups[i][g];
        }
        units[i].n_groups = l->count;
        list[i] = &units[i];
    }
    o.n_units = s->lease_count;
    step(s, (struct td_rolloutc_event){.kind = TD_RC_ORDERS, .orders = &o});
}

static void change_orders(struct sim *s) {
    uint32_t what = td_rng_below(&s->rng, 6);
    if (what == 0) {
        s->target++;
    } else if (what == 1 && s->lease_count) { // a unit goes
        size_t i = td_rng_below(&s->rng, (uint32_t)s->lease_count);
        s->leases[i] = s->leases[--s->lease_count];
    } else if (what == 2 && s->lease_count) { // a unit gets smaller
        struct lease *l = &s->leases[td_rng_below(&s->rng, (uint32_t)s->lease_count)];
        l->from += l->count > 1;
        l->count -= l->count > 1;
    } else if (what == 3 && s->lease_count) { // a unit is wanted under the target
        s->leases[td_rng_below(&s->rng, (uint32_t)s->lease_count)].step = s->target;
    } else if (s->lease_count < UNITS_MAX) {
        struct lease *l = &s->leases[s->lease_count++];
        *l = (struct lease){.n = ++s->next_n,
                            .step = s->target,
                            .from = s->next_group,
                            .count = 1 + td_rng_below(&s->rng, GROUPS_MAX),
                            .eval = td_rng_below(&s->rng, 4) == 0};
        s->next_group += l->count;
    }
    send_orders(s);
}

static void worker_event(struct sim *s, bool healing) {
    uint32_t i = td_rng_below(&s->rng, s->workers);
    struct seat *w = &s->seats[i];
    bool well = healing || td_rng_below(&s->rng, 5) > 0;
    if (!w->up) {
        // A worker that lives on holds what it held.
        Tandem__Worker__Version v = TANDEM__WORKER__VERSION__INIT;
        Tandem__Worker__Status status = TANDEM__WORKER__STATUS__INIT;
        *w = (struct seat){.up = true, .has = w->has && well, .step = w->step, .digest = w->digest};
        status.has_weights = w->has;
        v.step = w->step;
        status.weights = &v;
        status.held_digest = w->digest;
        step(s,
             (struct td_rolloutc_event){.kind = TD_RC_WORKER_UP, .worker = i, .status = &status});
    } else if (w->flipping) {
        w->flipping = false;
        if (well) {
            w->has = true;
            w->step = w->prepared_step;
            w->digest = digest_of(w->step);
            w->prepared = false;
        }
        step(s, (struct td_rolloutc_event){.kind = TD_RC_FLIPPED,
                                           .worker = i,
                                           .version = {0, well ? w->step : w->prepared_step},
                                           .ok = well});
    } else if (w->preparing) {
        w->preparing = false;
        if (well) {
            w->prepared = true;
            w->prepared_step = w->want_step;
        }
        step(s, (struct td_rolloutc_event){
                    .kind = TD_RC_PREPARED, .worker = i, .version = {0, w->want_step}, .ok = well});
    } else if (!healing && td_rng_below(&s->rng, 6) == 0) {
        w->up = false;
        for (uint64_t t = 1; t <= s->ticket_count; t++) {
            bool here = s->tickets[t].worker == i && s->tickets[t].left;
            s->tickets[t].orphan = s->tickets[t].orphan || here;
            s->tickets[t].left = here ? 0 : s->tickets[t].left;
        }
        step(s, (struct td_rolloutc_event){.kind = TD_RC_WORKER_DOWN, .worker = i});
    }
}

static void ticket_event(struct sim *s, bool healing) {
    if (!s->ticket_count) {
        return;
    }
    uint64_t n = 1 + td_rng_below(&s->rng, (uint32_t)s->ticket_count);
    while (healing && n < s->ticket_count && !s->tickets[n].open) {
        n++;
    }
    struct ticket *t = &s->tickets[n];
    bool well = healing || td_rng_below(&s->rng, 6) > 0;
    struct td_rolloutc_event e = {.ticket = n};
    double score = 1;
    if (!t->open) {
        e.kind = TD_RC_GROUP_FAILED; // late words of a closed ticket
    } else if (t->left && well) {
        t->left--;
        e.kind = TD_RC_SAMPLE_DONE;
    } else if (t->left) {
        t->left = 0;
        e.kind = TD_RC_GROUP_FAILED;
    } else if (!t->scored) {
        t->scored = true;
        e.kind = TD_RC_GROUP_SCORED;
        e.scores = &score;
        e.score_count = 1;
    } else if (t->publishing) {
        t->publishing = false;
        e.kind = TD_RC_PUBLISHED;
        e.ok = well;
        s->published += well;
    } else {
        return;
    }
    step(s, e);
}

static bool all_done(const struct sim *s) {
    const Tandem__Sync__RolloutReport *r = s->report->rollout;
    bool done = r->n_units == s->lease_count;
    for (size_t i = 0; i < r->n_units; i++) {
        for (size_t g = 0; g < r->units[i]->n_done; g++) {
            done = done && r->units[i]->done[g];
        }
        done = done && (!r->units[i]->eval || r->units[i]->n_scores == r->units[i]->n_groups);
    }
    return done;
}

static void schedule(uint64_t seed, uint64_t *totals) {
    struct sim *s = td_alloc(sizeof *s);
    s->seed = s->rng.state = seed;
    s->now_ms = 1000;
    s->workers = 1 + td_rng_below(&s->rng, WORKERS_MAX);
    const struct td_rolloutc_config c = {
        .member = 3, .workers = s->workers, .seqs_max = SEQS, .report_ms = 500, .retry_ms = 20};
    s->x = td_rolloutc_new(&c);
    step(s, (struct td_rolloutc_event){
                .kind = TD_RC_JOB, .job = JOB, .samples = SAMPLES, .eval_samples = 1});
    for (int i = 0; i < EVENTS; i++) {
        uint32_t what = td_rng_below(&s->rng, 20);
        s->now_ms += td_rng_below(&s->rng, 10);
        if (what < 2) {
            change_orders(s);
        } else if (what < 8) {
            worker_event(s, false);
        } else if (what < 19) {
            ticket_event(s, false);
        } else {
            step(s, (struct td_rolloutc_event){.kind = TD_RC_TICK});
        }
    }
    for (size_t i = 0; i < s->lease_count; i++) {
        s->leases[i].step = s->target;
    }
    send_orders(s);
    int left = HEALING;
    while (left-- > 0 && !all_done(s)) {
        s->now_ms += 10;
        worker_event(s, true);
        ticket_event(s, true);
        step(s, (struct td_rolloutc_event){.kind = TD_RC_TICK});
    }
    need(s, left > 0, "leased groups are not done when all is well");
    for (uint64_t i = 1; i <= s->ticket_count; i++) {
        need(s, !s->tickets[i].open, "a ticket is never closed");
    }
    totals[0] += s->started;
    totals[1] += s->published;
    totals[2] += s->flips;
    td_rolloutc_free(s->x);
    td_proto_free(s->report);
    td_free(s);
}

static void test_rolloutc_random(void **state) {
    (void)state;
    const char *given = getenv("TD_TEST_SEED");
    uint64_t first = given ? strtoull(given, NULL, 10) : 1, totals[3] = {0};
    uint64_t count = given ? 1 : SCHEDULES;
    for (uint64_t i = 0; i < count; i++) {
        schedule(first + i, totals);
    }
    print_message("%" PRIu64 " schedules from seed %" PRIu64 " (TD_TEST_SEED): %" PRIu64
                  " groups started, %" PRIu64 " published, %" PRIu64 " flips\n",
                  count, first, totals[0], totals[1], totals[2]);
    assert_true(given || (totals[1] > count && totals[2] > count));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rolloutc_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
