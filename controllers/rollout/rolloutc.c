// The rollout controller machine: events in, effects out; workers and their versions; see
// rolloutc.h.
#include "controllers/rollout/rolloutc_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"

struct td_rolloutc *td_rolloutc_new(const struct td_rolloutc_config *config) {
    td_assert(config->member && config->seqs_max);
    td_assert_op(config->workers, <=, TD_ROLLOUT_WORKERS_MAX);
    struct td_rolloutc *x = td_alloc(sizeof *x);
    x->config = *config;
    x->config.build = td_strdup(config->build ? config->build : "");
    x->config.device = td_strdup(config->device ? config->device : "");
    x->config.index = td_proto_dup(config->index);
    x->journal_id = config->expect_journal_id;
    x->next_ticket = 1;
    return x;
}

static void sources_free(char **sources, size_t count) {
    for (size_t i = 0; i < count; i++) {
        td_free(sources[i]);
    }
    td_free(sources);
}

void td_rolloutc_free(struct td_rolloutc *x) {
    if (!x) {
        return;
    }
    td_free((void *)(uintptr_t)x->config.build);
    td_free((void *)(uintptr_t)x->config.device);
    td_proto_free((void *)(uintptr_t)x->config.index);
    td_units_free(x);
    sources_free(x->sources, x->source_count);
    td_free(x);
}

struct td_rolloutc_effect *td_rolloutc_push(struct td_rolloutc_effects *out,
                                            enum td_rolloutc_effect_kind kind) {
    TD_GROW(out->items, out->cap, out->count + 1);
    struct td_rolloutc_effect *e = &out->items[out->count++];
    *e = (struct td_rolloutc_effect){.kind = kind};
    return e;
}

void td_rolloutc_effects_fini(struct td_rolloutc_effects *out) {
    for (size_t i = 0; i < out->count; i++) {
        td_proto_free(out->items[i].report);
        sources_free(out->items[i].sources, out->items[i].source_count);
    }
    td_free(out->items);
    *out = (struct td_rolloutc_effects){0};
}

bool td_held_equal(const struct td_held *a, const struct td_held *b) {
    return a->has && b->has && td_version_equal(a->version, b->version) && a->digest == b->digest;
}

// ---- workers ----

static void worker_up(struct td_rolloutc *x, const struct td_rolloutc_event *e,
                      struct td_rolloutc_effects *out) {
    td_units_worker_empty(x, e->worker, false, out); // its sequences are closed
    const Tandem__Worker__Status *s = e->status;
    struct td_seat *w = &x->seats[e->worker];
    *w = (struct td_seat){.up = true};
    if (s->has_weights && s->weights) {
        w->weights =
            (struct td_held){true, {s->weights->lineage, s->weights->step}, s->held_digest};
    }
}

static void worker_down(struct td_rolloutc *x, uint32_t worker, struct td_rolloutc_effects *out) {
    td_units_worker_empty(x, worker, true, out);
    x->seats[worker] = (struct td_seat){0};
}

static void prepared(struct td_rolloutc *x, const struct td_rolloutc_event *e, int64_t now_ms) {
    struct td_seat *w = &x->seats[e->worker];
    if (!w->preparing.has || !td_version_equal(w->preparing.version, e->version)) {
        return;
    }
    if (e->ok || TD_PLANTED(FLIP_UNVERIFIED)) {
        w->prepared = w->preparing;
        w->failures = 0;
    } else {
        int64_t times = 1LL << w->failures;
        w->retry_ms = now_ms + x->config.retry_ms * times;
        w->failures += times < TD_PREPARE_RETRIES_MAX;
    }
    w->preparing.has = false;
}

static void flipped(struct td_rolloutc *x, const struct td_rolloutc_event *e, int64_t now_ms) {
    struct td_seat *w = &x->seats[e->worker];
    if (!w->flipping || !td_version_equal(w->prepared.version, e->version)) {
        return;
    }
    w->flipping = false;
    if (e->ok) {
        w->weights = w->prepared;
    } else {
        w->retry_ms = now_ms + x->config.retry_ms;
    }
    w->prepared.has = false; // after a refusal it is prepared again
}

// Each worker begins with another source, and with the next one after a failure: they share the
// load, and one that serves wrong bytes does not hold anybody up.
static void add_sources(const struct td_rolloutc *x, struct td_rolloutc_effect *e) {
    size_t first = e->worker + x->seats[e->worker].failures;
    e->source_count = x->source_count;
    e->sources = td_alloc_array(x->source_count, sizeof *e->sources);
    for (size_t i = 0; i < x->source_count; i++) {
        e->sources[i] = td_strdup(x->sources[(first + i) % x->source_count]);
    }
}

// Brings the target to a worker: prepared beside the weights in use, flipped to when its last
// sequence has ended (mode drain). Workers wait for none of the others.
static void drive_version(struct td_rolloutc *x, uint32_t worker, int64_t now_ms,
                          struct td_rolloutc_effects *out) {
    struct td_seat *w = &x->seats[worker];
    if (!w->up || !x->target.has || w->flipping || w->preparing.has || now_ms < w->retry_ms ||
        td_held_equal(&w->weights, &x->target)) {
        return;
    }
    bool ready = td_held_equal(&w->prepared, &x->target);
    if (ready ? w->open > 0 : x->source_count == 0) {
        return;
    }
    struct td_rolloutc_effect *e = td_rolloutc_push(out, ready ? TD_RC_FLIP : TD_RC_PREPARE);
    e->worker = worker;
    e->version = x->target.version;
    e->digest = x->target.digest;
    e->job = x->job;
    if (ready) {
        w->flipping = true;
    } else {
        add_sources(x, e);
        w->preparing = x->target;
    }
}

// ---- the report ----

static bool all_hold(const struct td_rolloutc *x, const struct td_held *version) {
    bool any = false;
    for (uint32_t i = 0; i < x->config.workers; i++) {
        const struct td_seat *w = &x->seats[i];
        if (w->up && !td_held_equal(&w->weights, version) &&
            !td_held_equal(&w->prepared, version)) {
            return false;
        }
        any = any || w->up;
    }
    return any;
}

static void add_held(const struct td_rolloutc *x, const struct td_held *version,
                     Tandem__Sync__RolloutReport *r) {
    for (size_t i = 0; i < r->n_versions; i++) {
        if (td_version_equal(td_proto_to_version(r->versions[i]->version), version->version)) {
            return;
        }
    }
    if (!version->has || !all_hold(x, version)) {
        return;
    }
    Tandem__Sync__HeldVersion *h = td_alloc(sizeof *h);
    tandem__sync__held_version__init(h);
    h->version = td_proto_version(version->version);
    h->digest = version->digest;
    r->versions[r->n_versions++] = h;
}

// Groups it would take now.
static uint32_t capacity(const struct td_rolloutc *x) {
    uint32_t samples = x->job ? x->samples : x->config.seqs_max, room = 0;
    bool any = false;
    for (uint32_t i = 0; i < x->config.workers; i++) {
        const struct td_seat *w = &x->seats[i];
        if (!w->up) {
            continue;
        }
        any = true;
        uint32_t left = w->open < x->config.seqs_max ? x->config.seqs_max - w->open : 0;
        room += samples <= x->config.seqs_max ? left / samples : !w->open;
    }
    size_t waiting = td_units_count(x, TD_GROUP_WAITING);
    room += any ? x->config.groups_ahead : 0;
    return room > waiting ? room - (uint32_t)waiting : 0;
}

static Tandem__Sync__RolloutReport *rollout_report(const struct td_rolloutc *x) {
    Tandem__Sync__RolloutReport *r = td_alloc(sizeof *r);
    tandem__sync__rollout_report__init(r);
    r->job = x->job;
    r->capacity = capacity(x);
    r->versions = td_alloc_array(2 * x->config.workers, sizeof(void *));
    for (uint32_t i = 0; i < x->config.workers; i++) {
        add_held(x, &x->seats[i].weights, r);
        add_held(x, &x->seats[i].prepared, r);
    }
    td_units_report(x, r);
    return r;
}

static void send_report(struct td_rolloutc *x, int64_t now_ms, struct td_rolloutc_effects *out) {
    Tandem__Sync__Report *r = td_alloc(sizeof *r);
    tandem__sync__report__init(r);
    r->member = x->config.member;
    r->kind = TANDEM__SYNC__MEMBER_KIND__ROLLOUT;
    r->journal_id = x->journal_id;
    r->term = x->term;
    r->build = td_strdup(x->config.build);
    r->device = td_strdup(x->config.device);
    r->workers = x->config.workers;
    for (uint32_t i = 0; i < x->config.workers; i++) {
        r->workers_ready += x->seats[i].up;
    }
    r->index = td_proto_dup(x->config.index);
    r->rollout = rollout_report(x);
    uint64_t digest = td_proto_digest(r);
    bool due = !x->report_count || digest != x->report_digest ||
               now_ms - x->reported_ms >= x->config.report_ms;
    if (!due) {
        td_proto_free(r);
        return;
    }
    x->report_digest = digest;
    x->reported_ms = now_ms;
    r->report = ++x->report_count;
    td_rolloutc_push(out, TD_RC_REPORT)->report = r;
}

// ---- events ----

// Orders of a leader that was deposed, or overtaken on the way by newer ones, or meant for an
// earlier process of this member, are passed over.
static bool orders_count(struct td_rolloutc *x, const Tandem__Sync__Orders *o) {
    if ((x->journal_id && o->journal_id != x->journal_id) || o->term < x->term || !o->report ||
        o->report > x->report_count) {
        return false;
    }
    if (o->term == x->term && o->report < x->ordered_report) {
        return false;
    }
    x->journal_id = o->journal_id;
    x->term = o->term;
    x->ordered_report = o->report;
    return true;
}

static bool same_target(const struct td_rolloutc *x, const struct td_held *target,
                        const Tandem__Sync__Orders *o) {
    bool same = target->has == x->target.has && o->n_target_sources == x->source_count &&
                (!target->has || td_held_equal(target, &x->target));
    for (size_t i = 0; same && i < x->source_count; i++) {
        same = strcmp(o->target_sources[i], x->sources[i]) == 0;
    }
    return same;
}

// What failed before says nothing about another version, or about other sources.
static void take_target(struct td_rolloutc *x, const Tandem__Sync__Orders *o) {
    struct td_held target = {o->has_target, td_proto_to_version(o->target), o->target_digest};
    if (same_target(x, &target, o)) {
        return;
    }
    x->target = target;
    sources_free(x->sources, x->source_count);
    x->source_count = o->n_target_sources;
    x->sources = td_alloc_array(x->source_count, sizeof *x->sources);
    for (size_t i = 0; i < x->source_count; i++) {
        x->sources[i] = td_strdup(o->target_sources[i]);
    }
    for (uint32_t i = 0; i < x->config.workers; i++) {
        x->seats[i].retry_ms = 0;
        x->seats[i].failures = 0;
    }
}

static void take_orders(struct td_rolloutc *x, const Tandem__Sync__Orders *o, int64_t now_ms,
                        struct td_rolloutc_effects *out) {
    if (!orders_count(x, o)) {
        return;
    }
    take_target(x, o);
    td_units_orders(x, o, now_ms, out);
}

static void take_event(struct td_rolloutc *x, const struct td_rolloutc_event *e, int64_t now_ms,
                       struct td_rolloutc_effects *out) {
    bool of_worker = e->kind == TD_RC_WORKER_UP || e->kind == TD_RC_WORKER_DOWN ||
                     e->kind == TD_RC_PREPARED || e->kind == TD_RC_FLIPPED;
    if (of_worker && e->worker >= x->config.workers) {
        return;
    }
    switch (e->kind) {
    case TD_RC_ORDERS:
        take_orders(x, e->orders, now_ms, out);
        break;
    case TD_RC_JOB:
        td_assert(e->samples && e->eval_samples);
        x->job = e->job;
        x->samples = e->samples;
        x->eval_samples = e->eval_samples;
        break;
    case TD_RC_WORKER_UP:
        worker_up(x, e, out);
        break;
    case TD_RC_WORKER_DOWN:
        worker_down(x, e->worker, out);
        break;
    case TD_RC_PREPARED:
        prepared(x, e, now_ms);
        break;
    case TD_RC_FLIPPED:
        flipped(x, e, now_ms);
        break;
    case TD_RC_SAMPLE_DONE:
    case TD_RC_GROUP_SCORED:
    case TD_RC_GROUP_FAILED:
    case TD_RC_PUBLISHED:
        td_units_event(x, e, now_ms, out);
        break;
    case TD_RC_TICK:
        break;
    }
}

static void describe_wait(struct td_rolloutc *x, int64_t now_ms) {
    char text[TD_ROLLOUT_TEXT_MAX] = "";
    uint32_t up = 0, at_target = 0;
    for (uint32_t i = 0; i < x->config.workers; i++) {
        up += x->seats[i].up;
        at_target += x->seats[i].up && td_held_equal(&x->seats[i].weights, &x->target);
    }
    size_t publishing = td_units_count(x, TD_GROUP_PUBLISHING) + td_units_count(x, TD_GROUP_UNSURE);
    if (!up) {
        snprintf(text, sizeof text, "workers to come up");
    } else if (!x->target.has) {
        snprintf(text, sizeof text, "the leader to name the weights");
    } else if (!at_target) {
        snprintf(text, sizeof text, "the weights of step %" PRIu64 "%s", x->target.version.step,
                 x->source_count ? "" : "; no train worker serves them");
    } else if (!x->unit_count) {
        snprintf(text, sizeof text, "units");
    } else if (td_units_retry(x, now_ms)) {
        snprintf(text, sizeof text, "a group to be tried again: %s", x->trouble);
    } else if (td_units_count(x, TD_GROUP_WAITING) || td_units_count(x, TD_GROUP_RUNNING)) {
        snprintf(text, sizeof text, "its workers to generate%s%s", x->trouble[0] ? ", after: " : "",
                 x->trouble);
    } else if (td_units_count(x, TD_GROUP_SCORING)) {
        snprintf(text, sizeof text, "rewards");
    } else if (publishing) {
        snprintf(text, sizeof text, "the rollout log to take %zu groups", publishing);
    } else {
        snprintf(text, sizeof text, "what is done to be taken note of");
    }
    if (strcmp(text, x->waits_for) != 0) {
        memcpy(x->waits_for, text, sizeof text);
        x->since_ms = now_ms;
    }
}

void td_rolloutc_step(struct td_rolloutc *x, const struct td_rolloutc_event *event, int64_t now_ms,
                      struct td_rolloutc_effects *out) {
    take_event(x, event, now_ms, out);
    for (uint32_t i = 0; i < x->config.workers; i++) {
        drive_version(x, i, now_ms, out);
    }
    td_units_drive(x, now_ms, out);
    describe_wait(x, now_ms);
    send_report(x, now_ms, out);
}

void td_rolloutc_view(const struct td_rolloutc *x, struct td_rollout_view *out) {
    *out = (struct td_rollout_view){.job = x->job, .since_ms = x->since_ms};
    for (uint32_t i = 0; i < x->config.workers; i++) {
        out->workers_ready += x->seats[i].up;
    }
    out->groups_waiting = td_units_count(x, TD_GROUP_WAITING);
    out->groups_running = td_units_count(x, TD_GROUP_RUNNING) + td_units_count(x, TD_GROUP_SCORING);
    out->groups_publishing =
        td_units_count(x, TD_GROUP_PUBLISHING) + td_units_count(x, TD_GROUP_UNSURE);
    memcpy(out->waits_for, x->waits_for, sizeof out->waits_for);
}
