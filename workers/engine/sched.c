// Continuous batching: see sched.h. Owned by the generator's thread. Allocates nothing after new
// but what a chain needs to grow.
#include "workers/engine/sched.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

struct list {
    struct td_sched_seq *head, *tail;
    int32_t count;
};

struct td_sched {
    struct td_kv *kv;
    int32_t batch_tokens_max;
    struct list idle;             // those with pages, idle longest first
    struct list waiting, running; // by ticket
    uint64_t tickets, preempted;
    struct td_plan_entry *entries; // min(batch_tokens_max, sequences_max)
    struct td_kv_copy *copies;     // as many: each entry writes from one place on
    struct td_plan_ready *ready;   // sequences_max
    int32_t ready_max;
    struct td_plan plan;
};

struct td_sched *td_sched_new(struct td_kv *kv, int32_t batch_tokens_max, int32_t sequences_max) {
    td_assert_op(batch_tokens_max, >=, 1);
    td_assert_op(sequences_max, >=, 1);
    struct td_sched *s = td_alloc(sizeof *s);
    size_t most = (size_t)(batch_tokens_max < sequences_max ? batch_tokens_max : sequences_max);
    s->kv = kv;
    s->batch_tokens_max = batch_tokens_max;
    s->entries = td_alloc_array(most, sizeof *s->entries);
    s->copies = td_alloc_array(most, sizeof *s->copies);
    s->ready = td_alloc_array((size_t)sequences_max, sizeof *s->ready);
    s->ready_max = sequences_max;
    return s;
}

void td_sched_free(struct td_sched *s) {
    if (s) {
        td_assert_op(s->idle.count + s->waiting.count + s->running.count, ==, 0);
        td_free(s->entries);
        td_free(s->copies);
        td_free(s->ready);
        td_free(s);
    }
}

static void unlink_seq(struct list *l, struct td_sched_seq *seq) {
    *(seq->prev ? &seq->prev->next : &l->head) = seq->next;
    *(seq->next ? &seq->next->prev : &l->tail) = seq->prev;
    seq->prev = seq->next = NULL;
    l->count--;
}

static void link_after(struct list *l, struct td_sched_seq *at, struct td_sched_seq *seq) {
    seq->prev = at;
    seq->next = at ? at->next : l->head;
    *(seq->prev ? &seq->prev->next : &l->head) = seq;
    *(seq->next ? &seq->next->prev : &l->tail) = seq;
    l->count++;
}

static void link_by_ticket(struct list *l, struct td_sched_seq *seq) {
    struct td_sched_seq *at = l->tail;
    while (at && at->ticket > seq->ticket) {
        at = at->prev;
    }
    link_after(l, at, seq);
}

static struct list *list_of(struct td_sched *s, const struct td_sched_seq *seq) {
    if (seq->state == TD_SCHED_IDLE) {
        return seq->chain.count > 0 ? &s->idle : NULL;
    }
    return seq->state == TD_SCHED_WAITING ? &s->waiting : &s->running;
}

static void leave_list(struct td_sched *s, struct td_sched_seq *seq) {
    struct list *l = list_of(s, seq);
    if (l) {
        unlink_seq(l, seq);
    }
}

static void lose_pages(struct td_sched *s, struct td_sched_seq *seq) {
    td_kv_release(s->kv, &seq->chain);
    seq->cached = 0;
}

void td_sched_add(struct td_sched *s, struct td_sched_seq *seq) {
    (void)s;
    td_assert(seq->kin_next == NULL && seq->chain.count == 0);
    seq->kin_prev = seq->kin_next = seq;
}

void td_sched_fork(struct td_sched *s, struct td_sched_seq *parent, struct td_sched_seq *child) {
    td_assert_op(parent->state, ==, TD_SCHED_IDLE);
    td_assert(child->kin_next == child && child->chain.count == 0);
    child->kin_prev = parent;
    child->kin_next = parent->kin_next;
    child->kin_prev->kin_next = child->kin_next->kin_prev = child;
    if (parent->cached > 0) {
        td_kv_share(s->kv, &child->chain, &parent->chain, parent->cached);
        child->cached = parent->cached;
        link_after(&s->idle, s->idle.tail, child);
    }
}

void td_sched_start(struct td_sched *s, struct td_sched_seq *seq) {
    td_assert_op(seq->state, ==, TD_SCHED_IDLE);
    td_assert_op(seq->tokens, >, 0);
    leave_list(s, seq);
    seq->state = TD_SCHED_WAITING;
    seq->ticket = ++s->tickets;
    link_by_ticket(&s->waiting, seq);
}

void td_sched_finish(struct td_sched *s, struct td_sched_seq *seq) {
    td_assert_op(seq->state, !=, TD_SCHED_IDLE);
    leave_list(s, seq);
    seq->state = TD_SCHED_IDLE;
    if (seq->chain.count > 0) {
        link_after(&s->idle, s->idle.tail, seq);
    }
}

void td_sched_remove(struct td_sched *s, struct td_sched_seq *seq) {
    leave_list(s, seq);
    seq->state = TD_SCHED_IDLE;
    seq->kin_prev->kin_next = seq->kin_next;
    seq->kin_next->kin_prev = seq->kin_prev;
    seq->kin_prev = seq->kin_next = NULL;
    td_kv_chain_fini(s->kv, &seq->chain);
    seq->cached = 0;
}

static void preempt(struct td_sched *s, struct td_sched_seq *seq) {
    unlink_seq(&s->running, seq);
    lose_pages(s, seq);
    seq->state = TD_SCHED_WAITING;
    link_by_ticket(&s->waiting, seq);
    s->preempted++;
}

// Takes the pages of one sequence that is not under way; false: none has any but keep.
static bool evict(struct td_sched *s, const struct td_sched_seq *keep) {
    struct td_sched_seq *idle = s->idle.head;
    if (idle) {
        unlink_seq(&s->idle, idle);
        lose_pages(s, idle);
        return true;
    }
    for (struct td_sched_seq *w = s->waiting.tail; w; w = w->prev) {
        if (w != keep && w->chain.count > 0) {
            lose_pages(s, w);
            return true;
        }
    }
    return false;
}

// Puts the next count tokens of seq into the plan; the pages are there.
static void plan_entry(struct td_sched *s, struct td_sched_seq *seq, int32_t count) {
    struct td_kv_copy copy;
    if (td_kv_extend(s->kv, &seq->chain, seq->cached, seq->cached + count, &copy)) {
        s->copies[s->plan.copy_count++] = copy;
    }
    s->entries[s->plan.count++] =
        (struct td_plan_entry){.seq = seq, .from = seq->cached, .count = count};
    s->plan.tokens += count;
}

// The last known token is always computed again for its logits when they were lost (a generation
// that ended, a step that failed after its commit).
static int32_t portion(const struct td_sched *s, struct td_sched_seq *seq) {
    if (seq->cached == seq->tokens) {
        seq->cached--;
    }
    int32_t left = s->batch_tokens_max - s->plan.tokens, want = seq->tokens - seq->cached;
    return want < left ? want : left;
}

// Makes room for seq by taking pages from others, younger ones under way included; false: seq is
// the youngest and had to give up its own.
static bool room_for_running(struct td_sched *s, struct td_sched_seq *seq, int32_t upto) {
    while (td_kv_need(s->kv, &seq->chain, seq->cached, upto) > td_kv_pages_free(s->kv)) {
        if (evict(s, NULL)) {
            continue;
        }
        struct td_sched_seq *youngest = s->running.tail;
        preempt(s, youngest);
        if (youngest == seq) {
            return false;
        }
    }
    return true;
}

static void plan_running(struct td_sched *s) {
    struct td_sched_seq *seq = s->running.head;
    while (seq && s->plan.tokens < s->batch_tokens_max) {
        int32_t count = portion(s, seq);
        if (!room_for_running(s, seq, seq->cached + count)) {
            return; // all that come after it are gone too
        }
        plan_entry(s, seq, count);
        seq = seq->next;
    }
}

static int32_t common_prefix(const struct td_sched_seq *a, const struct td_sched_seq *b) {
    int32_t n = a->tokens < b->tokens ? a->tokens : b->tokens, i = 0;
    while (i < n && a->ids[i] == b->ids[i]) {
        i++;
    }
    return i;
}

// Adopts from kin the longest prefix that is computed (but never the last token: its forward gives
// the logits). Returns false if kin is computing more of it just now: then waiting is cheaper.
static bool adopt_from_kin(struct td_sched *s, struct td_sched_seq *seq) {
    const struct td_sched_seq *best = NULL;
    int32_t most = seq->cached;
    for (struct td_sched_seq *m = seq->kin_next; m != seq; m = m->kin_next) {
        bool computing = m->state == TD_SCHED_RUNNING && m->fresh;
        if (!computing && m->cached <= most) {
            continue;
        }
        int32_t common = common_prefix(seq, m);
        if (computing && common > m->cached && common > most) {
            return false;
        }
        int32_t have = common < m->cached ? common : m->cached;
        have = have < seq->tokens ? have : seq->tokens - 1;
        if (have > most) {
            most = have;
            best = m;
        }
    }
    if (best) {
        lose_pages(s, seq);
        td_kv_share(s->kv, &seq->chain, &best->chain, most);
        seq->cached = most;
    }
    return true;
}

// Room for a newcomer's count tokens and a little to spare, so that those under way do not take it
// away at once. Takes nothing from those under way.
static bool room_for_waiting(struct td_sched *s, struct td_sched_seq *seq, int32_t upto) {
    int32_t spare = td_kv_pages_of(s->kv, s->running.count);
    while (td_kv_need(s->kv, &seq->chain, seq->cached, upto) + spare > td_kv_pages_free(s->kv)) {
        if (!evict(s, seq)) {
            return false;
        }
    }
    return true;
}

static void plan_waiting(struct td_sched *s) {
    struct td_sched_seq *seq = s->waiting.head;
    while (seq && s->plan.tokens < s->batch_tokens_max) {
        struct td_sched_seq *next = seq->next;
        if (adopt_from_kin(s, seq)) {
            int32_t count = portion(s, seq);
            if (!room_for_waiting(s, seq, seq->cached + count)) {
                return; // first come, first served
            }
            unlink_seq(&s->waiting, seq);
            seq->state = TD_SCHED_RUNNING;
            seq->fresh = true;
            link_by_ticket(&s->running, seq);
            plan_entry(s, seq, count);
        }
        seq = next;
    }
}

struct td_plan td_sched_plan(struct td_sched *s) {
    uint64_t preempted = s->preempted;
    s->plan = (struct td_plan){.entries = s->entries, .copies = s->copies};
    plan_running(s);
    if (s->preempted == preempted) { // pages are short: nobody new
        plan_waiting(s);
    }
    td_assert(s->plan.count > 0 || !td_sched_busy(s));
    return s->plan;
}

static void put_ready(struct td_sched *s, int32_t *count, struct td_sched_seq *seq, int32_t row) {
    td_assert_op(*count, <, s->ready_max);
    s->ready[(*count)++] = (struct td_plan_ready){.seq = seq, .row = row};
}

// Waiting kin with the very tokens of seq have all it has, the row of logits included.
static void take_twins(struct td_sched *s, struct td_sched_seq *seq, int32_t row, int32_t *count) {
    for (struct td_sched_seq *m = seq->kin_next; m != seq; m = m->kin_next) {
        if (m->state != TD_SCHED_WAITING || m->tokens != seq->tokens ||
            memcmp(m->ids, seq->ids, (size_t)seq->tokens * sizeof *seq->ids) != 0) {
            continue;
        }
        unlink_seq(&s->waiting, m);
        lose_pages(s, m);
        td_kv_share(s->kv, &m->chain, &seq->chain, seq->tokens);
        m->cached = m->tokens;
        m->state = TD_SCHED_RUNNING;
        m->fresh = false;
        link_by_ticket(&s->running, m);
        put_ready(s, count, m, row);
    }
}

const struct td_plan_ready *td_sched_commit(struct td_sched *s, int32_t *count) {
    int32_t row = -1;
    *count = 0;
    for (int32_t i = 0; i < s->plan.count; i++) {
        struct td_sched_seq *seq = s->entries[i].seq;
        td_assert_op(seq->cached, ==, s->entries[i].from);
        seq->cached += s->entries[i].count;
        row += s->entries[i].count;
        if (seq->cached < seq->tokens) {
            continue;
        }
        put_ready(s, count, seq, row);
        if (seq->fresh) {
            seq->fresh = false;
            take_twins(s, seq, row, count);
        }
    }
    s->plan.count = 0;
    return s->ready;
}

bool td_sched_busy(const struct td_sched *s) {
    return s->waiting.count + s->running.count > 0;
}

uint64_t td_sched_preempted(const struct td_sched *s) {
    return s->preempted;
}
