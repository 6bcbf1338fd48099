// Rollout members of bench_control: see control.h.
#include "bench/control.h"
#include "lib/base/mem.h"

enum { TICK_MS = 200, RETRY_MS = 50, PULL_MS = 20, PUBLISH_MS = 2 };

struct ticket { // a group under way
    uint64_t id;
    struct td_group group;
    uint64_t step;
};

struct later { // an event that comes when its time is over
    struct roller *roller;
    struct td_rolloutc_event event;
    struct td_timer *timer;
};

static void step(struct roller *r, const struct td_rolloutc_event *event);

static struct ticket *find(struct roller *r, uint64_t id) {
    for (size_t i = 0; i < r->ticket_count; i++) {
        if (r->tickets[i].id == id) {
            return &r->tickets[i];
        }
    }
    return NULL;
}

// All samples of a group end together, and are graded at once.
static void generated(struct roller *r, uint64_t ticket) {
    static const double scores[SAMPLES] = {1};
    for (int i = 0; i <= SAMPLES && find(r, ticket); i++) {
        struct td_rolloutc_event e = {.kind = i < SAMPLES ? TD_RC_SAMPLE_DONE : TD_RC_GROUP_SCORED,
                                      .ticket = ticket,
                                      .scores = scores,
                                      .score_count = SAMPLES};
        step(r, &e);
    }
}

static void published(struct roller *r, const struct td_rolloutc_event *event) {
    const struct ticket *t = find(r, event->ticket);
    if (t) {
        trainer_arrived(&r->member.control->trainer, t->group, t->step);
        step(r, event);
    }
}

static void on_later(void *user) {
    struct later *l = user;
    td_timer_close(l->timer);
    if (l->event.kind == TD_RC_SAMPLE_DONE) {
        generated(l->roller, l->event.ticket);
    } else if (l->event.kind == TD_RC_PUBLISHED) {
        published(l->roller, &l->event);
    } else {
        step(l->roller, &l->event);
    }
    td_free(l);
}

static void after(struct roller *r, int64_t ms, enum td_rolloutc_event_kind kind,
                  const struct td_rolloutc_effect *x) {
    struct later *l = td_alloc(sizeof *l);
    *l = (struct later){.roller = r,
                        .event = {.kind = kind,
                                  .worker = x->worker,
                                  .version = x->version,
                                  .ticket = x->ticket,
                                  .ok = true},
                        .timer = td_timer_new(r->member.control->loop, on_later, l)};
    td_timer_start(l->timer, ms);
}

static void start_group(struct roller *r, const struct td_rolloutc_effect *x) {
    struct control *c = r->member.control;
    TD_GROW(r->tickets, r->ticket_cap, r->ticket_count + 1);
    r->tickets[r->ticket_count++] = (struct ticket){x->ticket, x->group, x->version.step};
    int64_t ms = c->group_ms / 2 + td_rng_below(&c->rng, (uint32_t)c->group_ms);
    after(r, ms, TD_RC_SAMPLE_DONE, x);
}

static void execute(struct roller *r, const struct td_rolloutc_effect *x) {
    struct ticket *t;
    switch (x->kind) {
    case TD_RC_PREPARE:
        after(r, PULL_MS, TD_RC_PREPARED, x);
        break;
    case TD_RC_FLIP:
        after(r, 0, TD_RC_FLIPPED, x);
        break;
    case TD_RC_START_GROUP:
        start_group(r, x);
        break;
    case TD_RC_PUBLISH:
        after(r, PUBLISH_MS, TD_RC_PUBLISHED, x);
        break;
    case TD_RC_CLOSE_GROUP:
        t = find(r, x->ticket);
        if (t) {
            *t = r->tickets[--r->ticket_count];
        }
        break;
    case TD_RC_REPORT:
        member_report(&r->member, x->report);
        break;
    }
}

static void step(struct roller *r, const struct td_rolloutc_event *event) {
    struct td_rolloutc_effects effects = {0};
    td_rolloutc_step(r->machine, event, td_loop_now_ms(r->member.control->loop), &effects);
    for (size_t i = 0; i < effects.count; i++) {
        execute(r, &effects.items[i]);
    }
    td_rolloutc_effects_fini(&effects);
}

static void serve(struct roller *r, const Tandem__Sync__Serve *order) {
    struct control *c = r->member.control;
    struct td_rolloutc_config config = {.member = r->member.id,
                                        .workers = c->workers,
                                        .seqs_max = SAMPLES, // a group at a time
                                        .groups_ahead = 1,
                                        .build = "bench",
                                        .device = "cpu",
                                        .index = &control_index,
                                        .expect_journal_id = r->member.journal_id,
                                        .report_ms = REPORT_MS,
                                        .retry_ms = RETRY_MS};
    r->member.serves = order->job;
    r->machine = td_rolloutc_new(&config);
    struct td_rolloutc_event job = {
        .kind = TD_RC_JOB, .job = order->job, .samples = SAMPLES, .eval_samples = 1};
    step(r, &job);
    Tandem__Worker__Status status = TANDEM__WORKER__STATUS__INIT;
    for (uint32_t i = 0; i < c->workers; i++) {
        struct td_rolloutc_event up = {.kind = TD_RC_WORKER_UP, .worker = i, .status = &status};
        step(r, &up);
    }
}

// What is new in orders was caused by the report that they answer, or by the trainer's.
static void measure(struct roller *r, const Tandem__Sync__Orders *o, bool answer) {
    struct control *c = r->member.control;
    uint64_t highest = r->attempt;
    for (size_t i = 0; i < o->n_units; i++) {
        highest = o->units[i]->attempt->n > highest ? o->units[i]->attempt->n : highest;
    }
    if (highest > r->attempt && answer) {
        control_note(c, &c->leases, r->member.sent_ns[o->report % SENT_MAX]);
    }
    r->attempt = highest;
    if (o->has_target && o->target->step > r->target) {
        r->target = o->target->step;
        if (r->target == c->finished) {
            control_note(c, &c->steps, c->finished_ns);
        }
    }
}

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    struct roller *r = user;
    Tandem__Sync__Orders *o = tandem__sync__orders__unpack(NULL, n, bytes);
    if (!o) {
        control_fail("orders that are none");
        return;
    }
    bool answer = member_orders(&r->member, o, r->machine != NULL);
    if (r->machine) {
        measure(r, o, answer);
        struct td_rolloutc_event e = {.kind = TD_RC_ORDERS, .orders = o};
        step(r, &e);
    } else if (o->serve) {
        serve(r, o->serve);
    }
    tandem__sync__orders__free_unpacked(o, NULL);
}

static void on_timer(void *user) {
    struct roller *r = user;
    if (r->machine) {
        struct td_rolloutc_event e = {.kind = TD_RC_TICK};
        step(r, &e);
    } else {
        member_idle_report(&r->member, TANDEM__SYNC__MEMBER_KIND__ROLLOUT);
    }
    td_timer_start(r->member.timer, r->machine ? TICK_MS : REPORT_MS);
}

void roller_start(struct roller *r, const char *address) {
    member_start(&r->member, address, on_orders, on_timer, r);
}
