// Units and the life of their groups: see rolloutc.h. A unit that is not in the orders any more is
// over: what runs of it is closed, nothing of it is published.
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/rollout/rolloutc_int.h"
#include "lib/base/mem.h"

static void unit_fini(struct td_unit *u) {
    for (size_t i = 0; i < u->group_count; i++) {
        td_free(u->groups[i].scores);
    }
    td_free(u->groups);
}

void td_units_free(struct td_rolloutc *x) {
    for (size_t i = 0; i < x->unit_count; i++) {
        unit_fini(&x->units[i]);
    }
    td_free(x->units);
    x->units = NULL;
    x->unit_count = 0;
}

uint32_t td_units_samples(const struct td_rolloutc *x, const struct td_unit *unit) {
    return unit->eval ? x->eval_samples : x->samples;
}

size_t td_units_count(const struct td_rolloutc *x, enum td_group_state state) {
    size_t n = 0;
    for (size_t i = 0; i < x->unit_count; i++) {
        for (size_t g = 0; g < x->units[i].group_count; g++) {
            n += x->units[i].groups[g].state == state;
        }
    }
    return n;
}

bool td_units_retry(const struct td_rolloutc *x, int64_t now_ms) {
    for (size_t i = 0; i < x->unit_count; i++) {
        for (size_t g = 0; g < x->units[i].group_count; g++) {
            const struct td_leased *l = &x->units[i].groups[g];
            if (l->state == TD_GROUP_WAITING && now_ms < l->retry_ms) {
                return true;
            }
        }
    }
    return false;
}

// ---- groups ----

// The sequences that it still has on its worker are free again.
static void leave_worker(struct td_rolloutc *x, struct td_leased *g) {
    if (g->state == TD_GROUP_RUNNING) {
        x->seats[g->worker].open -= g->samples - g->done;
        g->done = g->samples;
    }
}

static void close_group(struct td_rolloutc *x, struct td_leased *g,
                        struct td_rolloutc_effects *out) {
    leave_worker(x, g);
    if (g->ticket) {
        td_rolloutc_push(out, TD_RC_CLOSE_GROUP)->ticket = g->ticket;
    }
    g->ticket = 0;
}

// How long a group that failed waits: the cause may pass.
static int64_t pause_ms(const struct td_rolloutc *x, const struct td_leased *g) {
    int64_t times = g->failures < 16 ? 1LL << g->failures : TD_GROUP_RETRIES_MAX;
    return x->config.retry_ms * (times < TD_GROUP_RETRIES_MAX ? times : TD_GROUP_RETRIES_MAX);
}

static void put_back(struct td_rolloutc *x, struct td_leased *g, int64_t retry_ms,
                     struct td_rolloutc_effects *out) {
    close_group(x, g, out);
    g->state = TD_GROUP_WAITING;
    g->retry_ms = retry_ms;
}

void td_units_worker_empty(struct td_rolloutc *x, uint32_t worker, bool failed,
                           struct td_rolloutc_effects *out) {
    for (size_t i = 0; i < x->unit_count; i++) {
        for (size_t k = 0; k < x->units[i].group_count; k++) {
            struct td_leased *g = &x->units[i].groups[k];
            if (g->state != TD_GROUP_RUNNING || g->worker != worker) {
                continue;
            }
            put_back(x, g, 0, out);
            if (failed) {
                g->failures++;
                snprintf(x->trouble, sizeof x->trouble, "worker %u ended while it generated it",
                         worker);
            }
        }
    }
}

// ---- orders ----

static struct td_unit *find_unit(struct td_rolloutc *x, const Tandem__Sync__Unit *u) {
    for (size_t i = 0; i < x->unit_count; i++) {
        struct td_unit *have = &x->units[i];
        if (have->attempt.term == u->attempt->term && have->attempt.n == u->attempt->n &&
            have->job == u->job && have->eval == u->eval) {
            return have;
        }
    }
    return NULL;
}

// Moves what is there of a group out of the old unit.
static bool take_group(struct td_unit *old, struct td_group group, struct td_leased *out) {
    for (size_t i = 0; old && i < old->group_count; i++) {
        if (td_group_compare(old->groups[i].group, group) == 0) {
            *out = old->groups[i];
            old->groups[i] = old->groups[--old->group_count];
            return true;
        }
    }
    return false;
}

static void make_unit(struct td_rolloutc *x, const Tandem__Sync__Unit *u, int64_t now_ms,
                      struct td_unit *out, struct td_rolloutc_effects *effects) {
    struct td_unit *old = find_unit(x, u);
    *out = (struct td_unit){.job = u->job,
                            .attempt = {u->attempt->term, u->attempt->n},
                            .eval = u->eval,
                            .version = td_proto_to_version(u->version),
                            .since_ms = old ? old->since_ms : now_ms};
    size_t n = u->n_groups < TD_UNIT_GROUPS_MAX ? u->n_groups : TD_UNIT_GROUPS_MAX;
    out->groups = td_alloc_array(n, sizeof *out->groups);
    for (size_t i = 0; i < n; i++) {
        struct td_leased *g = &out->groups[out->group_count++];
        struct td_group group = td_proto_to_group(u->groups[i]);
        if (!take_group(old, group, g)) {
            *g = (struct td_leased){.group = group};
        }
        bool running = g->state != TD_GROUP_WAITING && g->state != TD_GROUP_DONE;
        if (running && !td_version_equal(g->version, out->version)) {
            put_back(x, g, 0, effects); // what it would become is not wanted any more
        }
    }
}

void td_units_orders(struct td_rolloutc *x, const Tandem__Sync__Orders *o, int64_t now_ms,
                     struct td_rolloutc_effects *out) {
    size_t n = o->n_units < TD_UNITS_MAX ? o->n_units : TD_UNITS_MAX, count = 0;
    struct td_unit *units = td_alloc_array(n, sizeof *units);
    for (size_t i = 0; i < n; i++) {
        if (o->units[i]->attempt) {
            make_unit(x, o->units[i], now_ms, &units[count++], out);
        }
    }
    for (size_t i = 0; i < x->unit_count; i++) {
        for (size_t g = 0; g < x->units[i].group_count; g++) {
            close_group(x, &x->units[i].groups[g], out);
        }
    }
    td_units_free(x);
    x->units = units;
    x->unit_count = count;
}

// ---- events of groups ----

static struct td_leased *find_ticket(struct td_rolloutc *x, uint64_t ticket,
                                     struct td_unit **unit) {
    for (size_t i = 0; ticket && i < x->unit_count; i++) {
        for (size_t g = 0; g < x->units[i].group_count; g++) {
            if (x->units[i].groups[g].ticket == ticket) {
                *unit = &x->units[i];
                return &x->units[i].groups[g];
            }
        }
    }
    return NULL;
}

static void publish(struct td_leased *g, struct td_rolloutc_effects *out) {
    g->state = TD_GROUP_PUBLISHING;
    struct td_rolloutc_effect *e = td_rolloutc_push(out, TD_RC_PUBLISH);
    e->ticket = g->ticket;
    e->group = g->group;
}

static void scored(struct td_rolloutc *x, const struct td_unit *u, struct td_leased *g,
                   const struct td_rolloutc_event *e, struct td_rolloutc_effects *out) {
    if (g->state != TD_GROUP_RUNNING && g->state != TD_GROUP_SCORING) {
        return;
    }
    leave_worker(x, g);
    x->trouble[0] = '\0';
    if (!u->eval) {
        publish(g, out);
        return;
    }
    td_free(g->scores);
    g->scores = td_memdup(e->scores, e->score_count * sizeof *e->scores);
    g->score_count = e->score_count;
    g->state = TD_GROUP_DONE;
    close_group(x, g, out);
}

void td_units_event(struct td_rolloutc *x, const struct td_rolloutc_event *e, int64_t now_ms,
                    struct td_rolloutc_effects *out) {
    struct td_unit *u = NULL;
    struct td_leased *g = find_ticket(x, e->ticket, &u);
    if (!g) {
        return;
    }
    switch (e->kind) {
    case TD_RC_SAMPLE_DONE:
        if (g->state == TD_GROUP_RUNNING) {
            x->seats[g->worker].open--;
            g->done++;
            g->state = g->done == g->samples ? TD_GROUP_SCORING : TD_GROUP_RUNNING;
        }
        break;
    case TD_RC_GROUP_SCORED:
        scored(x, u, g, e, out);
        break;
    case TD_RC_GROUP_FAILED:
        snprintf(x->trouble, sizeof x->trouble, "%s", e->text ? e->text : "no cause");
        put_back(x, g, now_ms + pause_ms(x, g), out);
        g->failures++;
        break;
    case TD_RC_PUBLISHED:
        if (g->state == TD_GROUP_PUBLISHING && e->ok) {
            g->state = TD_GROUP_DONE;
            close_group(x, g, out);
        } else if (g->state == TD_GROUP_PUBLISHING) {
            g->state = TD_GROUP_UNSURE;
            g->retry_ms = now_ms + x->config.retry_ms;
        }
        break;
    default:
        break;
    }
}

// ---- scheduling ----

// A group that failed more often than by chance goes alone, so that those beside it do not fail
// with it.
static bool goes_alone(const struct td_leased *g) {
    enum { FAILURES_BY_CHANCE = 1 };
    return g->failures > FAILURES_BY_CHANCE;
}

// The worker that holds the target, has room for so many sequences and the fewest under way; the
// one that the group failed on last only when there is no other.
static struct td_seat *pick_worker(struct td_rolloutc *x, const struct td_leased *g,
                                   uint32_t samples, uint32_t *worker) {
    struct td_seat *best = NULL;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < x->config.workers; i++) {
        struct td_seat *w = &x->seats[i];
        bool beside = !w->alone && !goes_alone(g) && w->open + samples <= x->config.seqs_max;
        bool ready = w->up && !w->flipping && td_held_equal(&w->weights, &x->target);
        uint32_t load = w->open + (g->failures && g->worker == i ? x->config.seqs_max : 0);
        if (ready && (!w->open || beside) && load < least) {
            best = w;
            least = load;
            *worker = i;
        }
    }
    return best;
}

static bool start(struct td_rolloutc *x, const struct td_unit *u, struct td_leased *g,
                  struct td_rolloutc_effects *out) {
    uint32_t worker = 0, samples = td_units_samples(x, u);
    struct td_seat *w = pick_worker(x, g, samples, &worker);
    if (!w) {
        return false;
    }
    g->state = TD_GROUP_RUNNING;
    g->ticket = x->next_ticket++;
    g->worker = worker;
    g->samples = samples;
    g->done = 0;
    g->version = u->version;
    w->open += samples;
    w->alone = goes_alone(g);
    struct td_rolloutc_effect *e = td_rolloutc_push(out, TD_RC_START_GROUP);
    e->worker = worker;
    e->ticket = g->ticket;
    e->job = u->job;
    e->attempt = u->attempt;
    e->eval = u->eval;
    e->group = g->group;
    e->version = u->version;
    e->samples = samples;
    return true;
}

void td_units_drive(struct td_rolloutc *x, int64_t now_ms, struct td_rolloutc_effects *out) {
    bool room = true;
    for (size_t i = 0; i < x->unit_count; i++) {
        struct td_unit *u = &x->units[i];
        bool wanted = x->target.has && x->job && u->job == x->job &&
                      td_version_equal(u->version, x->target.version);
        for (size_t k = 0; k < u->group_count; k++) {
            struct td_leased *g = &u->groups[k];
            if (now_ms < g->retry_ms) {
                continue;
            }
            if (g->state == TD_GROUP_UNSURE) {
                publish(g, out);
            } else if (g->state == TD_GROUP_WAITING && wanted && room) {
                room = start(x, u, g, out);
            }
        }
    }
}

// ---- the report ----

static void add_score(Tandem__Sync__UnitReport *r, const struct td_leased *g) {
    Tandem__Sync__EvalScore *s = td_alloc(sizeof *s);
    tandem__sync__eval_score__init(s);
    s->index = g->group.index;
    s->n_score = g->score_count;
    s->score = td_memdup(g->scores, g->score_count * sizeof *g->scores);
    r->scores[r->n_scores++] = s;
}

static void add_failures(const struct td_rolloutc *x, const struct td_unit *u,
                         Tandem__Sync__UnitReport *r) {
    uint32_t any = 0;
    for (size_t i = 0; i < u->group_count; i++) {
        any |= u->groups[i].failures;
    }
    if (!any) {
        return;
    }
    r->failures = td_alloc_array(u->group_count, sizeof *r->failures);
    r->n_failures = u->group_count;
    for (size_t i = 0; i < u->group_count; i++) {
        r->failures[i] = u->groups[i].failures;
    }
    r->failed = td_strdup(x->trouble);
}

static Tandem__Sync__UnitReport *unit_report(const struct td_rolloutc *x, const struct td_unit *u) {
    Tandem__Sync__UnitReport *r = td_alloc(sizeof *r);
    tandem__sync__unit_report__init(r);
    r->job = u->job;
    r->eval = u->eval;
    r->since_ms = u->since_ms;
    r->attempt = td_alloc(sizeof *r->attempt);
    tandem__sync__attempt__init(r->attempt);
    r->attempt->term = u->attempt.term;
    r->attempt->n = u->attempt.n;
    r->groups = td_alloc_array(u->group_count, sizeof(void *));
    r->done = td_alloc_array(u->group_count, sizeof *r->done);
    r->scores = td_alloc_array(u->group_count, sizeof(void *));
    r->n_groups = r->n_done = u->group_count;
    bool done = true;
    for (size_t i = 0; i < u->group_count; i++) {
        const struct td_leased *g = &u->groups[i];
        r->groups[i] = td_proto_group(g->group);
        r->done[i] = g->state == TD_GROUP_DONE;
        done = done && r->done[i];
        if (u->eval && r->done[i]) {
            add_score(r, g);
        }
    }
    r->waits_for = td_strdup(!done     ? x->waits_for
                             : u->eval ? "the leader to hear of its scores"
                                       : "the train member to read it");
    add_failures(x, u, r);
    return r;
}

void td_units_report(const struct td_rolloutc *x, Tandem__Sync__RolloutReport *report) {
    report->units = td_alloc_array(x->unit_count, sizeof(void *));
    for (size_t i = 0; i < x->unit_count; i++) {
        report->units[report->n_units++] = unit_report(x, &x->units[i]);
    }
}
