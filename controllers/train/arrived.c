// The rollout log as the train controller sees it: which groups lie whole in it, and up to where
// each partition is needed. Whole: all parts of one attempt of one producer (rule A12).
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/train/trainc_int.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"

static void copy_fini(struct td_copy *c) {
    td_free(c->part);
}

static void arrival_fini(struct td_arrival *a) {
    for (size_t i = 0; i < a->copy_count; i++) {
        copy_fini(&a->copies[i]);
    }
    td_free(a->copies);
    td_free(a->low);
}

void td_arrived_fini(struct td_arrivals *a) {
    for (size_t i = 0; i < a->count; i++) {
        arrival_fini(&a->items[i]);
    }
    td_free(a->items);
    td_free(a->tails);
    *a = (struct td_arrivals){0};
}

static struct td_tail *find_tail(struct td_tail *tails, size_t count, uint32_t partition) {
    for (size_t i = 0; i < count; i++) {
        if (tails[i].partition == partition) {
            return &tails[i];
        }
    }
    return NULL;
}

static void raise_tail(struct td_arrivals *a, uint32_t partition, int64_t next) {
    struct td_tail *t = find_tail(a->tails, a->tail_count, partition);
    if (t) {
        t->offset = next > t->offset ? next : t->offset;
    } else if (a->tail_count < TD_PARTITIONS_MAX) {
        TD_GROW(a->tails, a->tail_cap, a->tail_count + 1);
        a->tails[a->tail_count++] = (struct td_tail){partition, next};
    }
}

// ---- where to read ----

static void push_position(struct td_trainc_effect *e, uint32_t partition, int64_t offset,
                          uint32_t crc) {
    Tandem__Journal__LogPosition *p = td_alloc(sizeof *p);
    tandem__journal__log_position__init(p);
    p->partition = partition;
    p->offset = offset;
    p->crc = crc;
    e->positions[e->position_count++] = p;
}

void td_arrived_follow(struct td_trainc *x, bool again, struct td_trainc_effects *out) {
    enum { PLANTED_PARTITIONS = 8 };
    const struct td_job_state *j = td_trainc_job(x);
    uint64_t log = j->job->rollout_log;
    struct td_arrivals *a = &x->arrivals;
    if (!log || (log == a->log && !again)) {
        return;
    }
    td_arrived_fini(a);
    a->log = log;
    struct td_trainc_effect *e = td_trainc_push(out, TD_TC_READ_ROLLOUT);
    e->seq = a->scan = x->next_seq++;
    e->job = x->job;
    e->log = log;
    const Tandem__Journal__Checkpoint *newest = j->kept_count ? j->kept[j->kept_count - 1] : NULL;
    size_t n = newest ? newest->n_positions : 0;
    e->positions = td_alloc_array(n + PLANTED_PARTITIONS, sizeof(void *));
    if (TD_PLANTED(RESCAN)) {
        for (uint32_t p = 0; p < PLANTED_PARTITIONS; p++) {
            push_position(e, p, INT64_MAX, 0);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const Tandem__Journal__LogPosition *p = newest->positions[i];
        push_position(e, p->partition, p->offset, p->crc);
        raise_tail(a, p->partition, p->offset);
    }
}

void td_arrived_scanned(struct td_trainc *x, const struct td_trainc_event *event) {
    struct td_arrivals *a = &x->arrivals;
    if (!a->log || event->seq != a->scan) {
        return;
    }
    a->scanned = true;
    for (size_t i = 0; i < event->position_count; i++) {
        raise_tail(a, event->positions[i]->partition, event->positions[i]->offset);
    }
}

// ---- which groups matter ----

static bool round_has(const struct td_round_state *r, struct td_group group) {
    size_t low = 0, high = r->entry_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int order = td_group_compare(td_proto_to_group(r->entries[mid]->group), group);
        if (order == 0) {
            return true;
        }
        if (order < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return false;
}

// The group can still be sealed: open, in a round without COMMIT, or not drawn yet as far as this
// reader of the journal has come.
static bool matters(const struct td_job_state *j, struct td_group group) {
    if (td_group_compare(group, j->cursor) >= 0 || td_job_is_open(j, group) ||
        TD_PLANTED(LATE_ATTEMPT)) {
        return true;
    }
    for (size_t i = 0; i < j->round_count; i++) {
        const struct td_round_state *r = &j->rounds[i];
        bool committed = j->has_head && r->round <= j->head.step;
        if (!committed && round_has(r, group)) {
            return true;
        }
    }
    return false;
}

void td_arrived_prune(struct td_trainc *x) {
    const struct td_job_state *j = td_trainc_job(x);
    struct td_arrivals *a = &x->arrivals;
    uint64_t step = j->has_head ? j->head.step : 0;
    if (a->pruned_step == step && a->pruned_lineage == j->lineage &&
        a->pruned_dropped == j->dropped) {
        return;
    }
    a->pruned_step = step;
    a->pruned_lineage = j->lineage;
    a->pruned_dropped = j->dropped;
    size_t kept = 0;
    for (size_t i = 0; i < a->count; i++) {
        if (matters(j, a->items[i].group)) {
            a->items[kept++] = a->items[i];
        } else {
            arrival_fini(&a->items[i]);
        }
    }
    a->count = kept;
}

// ---- records ----

static size_t place_of(const struct td_arrivals *a, struct td_group group) {
    size_t low = 0, high = a->count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (td_group_compare(a->items[mid].group, group) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static struct td_arrival *find_arrival(struct td_arrivals *a, struct td_group group) {
    size_t i = place_of(a, group);
    bool found = i < a->count && td_group_compare(a->items[i].group, group) == 0;
    return found ? &a->items[i] : NULL;
}

static struct td_arrival *get_arrival(struct td_arrivals *a, struct td_group group) {
    size_t i = place_of(a, group);
    if (i == a->count || td_group_compare(a->items[i].group, group) != 0) {
        TD_GROW(a->items, a->cap, a->count + 1);
        memmove(&a->items[i + 1], &a->items[i], (a->count - i) * sizeof *a->items);
        a->items[i] = (struct td_arrival){.group = group};
        a->count++;
    }
    return &a->items[i];
}

static struct td_copy *get_copy(struct td_arrival *a, const Tandem__Rollout__Header *h) {
    for (size_t i = 0; i < a->copy_count; i++) {
        struct td_copy *c = &a->copies[i];
        bool same = c->term == h->attempt_term && c->n == h->attempt && c->producer == h->producer;
        if ((same || TD_PLANTED(PARTS_JOINED)) && c->parts == h->parts) {
            return c;
        }
    }
    TD_GROW(a->copies, a->copy_cap, a->copy_count + 1);
    struct td_copy *c = &a->copies[a->copy_count++];
    *c = (struct td_copy){.term = h->attempt_term, .n = h->attempt, .producer = h->producer};
    c->parts = h->parts;
    c->part = td_alloc_array(h->parts, sizeof *c->part);
    c->min_step = UINT64_MAX;
    return c;
}

static bool before(uint32_t partition, int64_t offset, const struct td_part *p) {
    return partition != p->partition ? partition < p->partition : offset < p->offset;
}

static void add_part(struct td_copy *c, const struct td_seen_record *r) {
    const Tandem__Rollout__Header *h = r->header;
    struct td_part *p = &c->part[h->part];
    if (p->seen) {
        // A part stored twice, after an append with an unknown outcome: the lowest place counts.
        if (TD_PLANTED(RECORD_TWICE)) {
            p->samples += r->samples;
            p->tokens += r->tokens;
        }
        if (before(r->partition, r->offset, p)) {
            p->partition = r->partition;
            p->offset = r->offset;
            p->crc = r->crc;
        }
        return;
    }
    *p = (struct td_part){true,       r->partition, r->offset,    r->crc,
                          r->samples, r->tokens,    r->reward_sum};
    c->have++;
    for (size_t i = 0; i < h->n_models; i++) {
        uint64_t step = h->models[i]->step;
        c->min_step = step < c->min_step ? step : c->min_step;
        c->max_step = step > c->max_step ? step : c->max_step;
    }
}

// The header is of this job's log and can be understood.
static bool usable(const struct td_trainc *x, const struct td_job_state *j,
                   const struct td_seen_record *r) {
    const Tandem__Rollout__Header *h = r->header;
    bool ours = h->job == x->job && h->log == j->job->rollout_log &&
                h->journal_id == x->follow.state.journal_id;
    bool whole = h->purpose == TANDEM__ROLLOUT__PURPOSE__TRAIN &&
                 h->kind == TANDEM__ROLLOUT__KIND__FULL && h->parts >= 1 &&
                 h->parts <= TD_PARTS_MAX && h->part < h->parts && h->n_models >= 1;
    bool counted = !x->plan.samples || h->parts > 1 || r->samples == x->plan.samples;
    bool drawable = h->data_epoch <= j->cursor.data_epoch + 1 &&
                    (!j->job->index || h->index < j->job->index->rows);
    return ours && whole && counted && drawable;
}

void td_arrived_record(struct td_trainc *x, const struct td_seen_record *r) {
    struct td_arrivals *a = &x->arrivals;
    const struct td_job_state *j = td_trainc_job(x);
    if (!j || !a->log || r->log != a->log || r->scan != a->scan) {
        return;
    }
    raise_tail(a, r->partition, r->offset + 1);
    if (!r->ok || !usable(x, j, r)) {
        return;
    }
    struct td_group group = {r->header->data_epoch, r->header->index};
    if (!matters(j, group)) {
        return;
    }
    struct td_arrival *arrival = get_arrival(a, group);
    struct td_tail *low = find_tail(arrival->low, arrival->low_count, r->partition);
    if (!low) {
        TD_GROW(arrival->low, arrival->low_cap, arrival->low_count + 1);
        low = &arrival->low[arrival->low_count++];
        *low = (struct td_tail){r->partition, r->offset};
    }
    low->offset = r->offset < low->offset ? r->offset : low->offset;
    add_part(get_copy(arrival, r->header), r);
}

void td_arrived_forget(struct td_trainc *x, const td_entry *entry) {
    struct td_arrival *a = find_arrival(&x->arrivals, td_proto_to_group(entry->group));
    for (size_t i = 0; a && i < a->copy_count; i++) {
        struct td_copy *c = &a->copies[i];
        for (size_t p = 0; p < entry->n_parts; p++) {
            const Tandem__Journal__LogPosition *bad = entry->parts[p];
            bool same = p < c->parts && c->part[p].seen && c->part[p].partition == bad->partition &&
                        c->part[p].offset == bad->offset;
            if (same) {
                c->part[p].seen = false;
                c->have--;
            }
        }
    }
}

// ---- what is reported ----

// The copy that a SEAL under this head would take: none newer than the head, of those the freshest,
// of those the one that lies lowest.
static const struct td_copy *best_copy(const struct td_arrival *a, uint64_t head) {
    const struct td_copy *best = NULL;
    for (size_t i = 0; i < a->copy_count; i++) {
        const struct td_copy *c = &a->copies[i];
        if (c->have < c->parts || c->max_step > head) {
            continue;
        }
        bool better = !best || c->min_step > best->min_step ||
                      (c->min_step == best->min_step &&
                       before(c->part[0].partition, c->part[0].offset, &best->part[0]));
        best = better ? c : best;
    }
    return best;
}

static Tandem__Sync__Arrived *make_arrived(struct td_group group, const struct td_copy *c,
                                           uint64_t log) {
    Tandem__Sync__Arrived *out = td_alloc(sizeof *out);
    tandem__sync__arrived__init(out);
    td_entry *e = td_alloc(sizeof *e);
    tandem__journal__entry__init(e);
    out->entry = e;
    e->group = td_proto_group(group);
    e->log = log;
    e->min_step = c->min_step;
    e->max_step = c->max_step;
    e->parts = td_alloc_array(c->parts, sizeof(void *));
    for (uint32_t p = 0; p < c->parts; p++) {
        const struct td_part *part = &c->part[p];
        Tandem__Journal__LogPosition *at = td_alloc(sizeof *at);
        tandem__journal__log_position__init(at);
        at->partition = part->partition;
        at->offset = part->offset;
        at->crc = part->crc;
        e->parts[e->n_parts++] = at;
        e->samples += part->samples;
        e->tokens += part->tokens;
        out->reward_sum += part->reward_sum;
    }
    return out;
}

// Groups of a round whose records are missing are told too: a newer copy may take their place.
static bool is_missing(const struct td_trainc *x, const struct td_job_state *j,
                       struct td_group group) {
    const struct td_round_state *r = x->missing_round ? td_job_round(j, x->missing_round) : NULL;
    for (size_t i = 0; r && i < x->missing_count; i++) {
        uint32_t n = x->missing[i];
        if (n < r->entry_count &&
            td_group_compare(td_proto_to_group(r->entries[n]->group), group) == 0) {
            return true;
        }
    }
    return false;
}

void td_arrived_report(struct td_trainc *x, Tandem__Sync__TrainReport *report) {
    const struct td_job_state *j = td_trainc_job(x);
    struct td_arrivals *a = &x->arrivals;
    report->scanned = a->scanned || !j->job->rollout_log;
    report->arrived = td_alloc_array(a->count, sizeof(void *));
    for (size_t i = 0; i < a->count; i++) {
        struct td_arrival *arrival = &a->items[i];
        bool wanted = td_job_is_open(j, arrival->group) || is_missing(x, j, arrival->group) ||
                      TD_PLANTED(LATE_ATTEMPT);
        const struct td_copy *c =
            wanted ? best_copy(arrival, j->has_head ? j->head.step : 0) : NULL;
        if (!c || (arrival->reported && TD_PLANTED(ARRIVED_LOST))) {
            continue;
        }
        arrival->reported = true;
        report->arrived[report->n_arrived++] = make_arrived(arrival->group, c, a->log);
    }
}

// ---- rule A7 ----

static void lower(struct td_tail *tails, size_t count, uint32_t partition, int64_t offset) {
    struct td_tail *t = find_tail(tails, count, partition);
    if (t && offset < t->offset) {
        t->offset = offset;
    }
}

static void lower_by_rounds(const struct td_job_state *j, uint64_t step, struct td_tail *tails,
                            size_t count) {
    for (size_t i = 0; i < j->round_count; i++) {
        const struct td_round_state *r = &j->rounds[i];
        for (size_t e = 0; r->round > step && e < r->entry_count; e++) {
            for (size_t p = 0; p < r->entries[e]->n_parts; p++) {
                const Tandem__Journal__LogPosition *at = r->entries[e]->parts[p];
                lower(tails, count, at->partition, at->offset);
            }
        }
    }
}

void td_arrived_low_water(const struct td_trainc *x, Tandem__Journal__Checkpoint *out) {
    const struct td_arrivals *a = &x->arrivals;
    size_t n = a->tail_count;
    struct td_tail *tails = td_memdup(a->tails, n * sizeof *tails);
    // All arrivals that are still held matter: open, sealed and not committed, or not yet drawn.
    for (size_t i = 0; i < a->count && !TD_PLANTED(LOW_WATER); i++) {
        for (size_t p = 0; p < a->items[i].low_count; p++) {
            lower(tails, n, a->items[i].low[p].partition, a->items[i].low[p].offset);
        }
    }
    lower_by_rounds(td_trainc_job(x), out->version->step, tails, n);
    out->positions = td_alloc_array(n, sizeof(void *));
    for (size_t i = 0; i < n; i++) {
        Tandem__Journal__LogPosition *p = td_alloc(sizeof *p);
        tandem__journal__log_position__init(p);
        p->partition = tails[i].partition;
        p->offset = tails[i].offset;
        out->positions[out->n_positions++] = p;
    }
    td_free(tails);
}
