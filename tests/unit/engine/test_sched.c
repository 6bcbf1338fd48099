// The scheduler against a model of the device: pages hold a hash of each token's prefix, the next
// token is a hash of the whole sequence. Whatever is planned, every sequence must end with the
// tokens it has alone.
#include "workers/engine/sched.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"

#include "tests/unit/cmocka_all.h"

enum { SEQS_MAX = 24, TOKENS_MAX = 64, PAGES_MAX = 200, VOCAB = 3 };

struct seq {
    struct td_sched_seq sched; // first
    int32_t ids[TOKENS_MAX];
    int32_t limit;
    bool open;
};

struct world {
    struct td_kv *kv;
    struct td_sched *sched;
    int32_t page_tokens, budget;
    struct seq seqs[SEQS_MAX];
    uint64_t held[PAGES_MAX * 8];
    uint64_t computed, sampled, steps;
};

static uint64_t prefix_hash(const int32_t *ids, int32_t n) {
    uint64_t h = 0;
    for (int32_t i = 0; i < n; i++) {
        h = td_hash_u64(h, (uint64_t)ids[i]);
    }
    return h;
}

static int32_t next_token(const int32_t *ids, int32_t n) {
    return (int32_t)(prefix_hash(ids, n) % VOCAB);
}

static struct world *world_new(int32_t pages, int32_t page_tokens, int32_t budget) {
    struct world *w = td_alloc(sizeof *w);
    w->kv = td_kv_new(pages, page_tokens);
    w->sched = td_sched_new(w->kv, budget, SEQS_MAX);
    w->page_tokens = page_tokens;
    w->budget = budget;
    return w;
}

static void world_free(struct world *w) {
    for (int i = 0; i < SEQS_MAX; i++) {
        if (w->seqs[i].open) {
            td_sched_remove(w->sched, &w->seqs[i].sched);
        }
    }
    assert_int_equal(td_kv_pages_free(w->kv), td_kv_pages(w->kv));
    td_sched_free(w->sched);
    td_kv_free(w->kv);
    td_free(w);
}

static struct seq *seq_open(struct world *w, int i, const int32_t *ids, int32_t n) {
    struct seq *q = &w->seqs[i];
    assert_false(q->open);
    memset(q, 0, sizeof *q);
    memcpy(q->ids, ids, (size_t)n * sizeof *ids);
    q->open = true;
    q->sched.ids = q->ids;
    q->sched.tokens = n;
    td_sched_add(w->sched, &q->sched);
    return q;
}

static void seq_start(struct world *w, struct seq *q, int32_t more) {
    q->limit = q->sched.tokens + more;
    td_sched_start(w->sched, &q->sched);
}

static void check_pages(const struct world *w, const struct seq *q) {
    uint64_t h = 0;
    for (int32_t t = 0; t < q->sched.cached; t++) {
        h = td_hash_u64(h, (uint64_t)q->ids[t]);
        int32_t page = q->sched.chain.page[t / w->page_tokens];
        assert_true(w->held[page * w->page_tokens + t % w->page_tokens] == h);
    }
}

static void forward(struct world *w, const struct td_plan *plan) {
    for (int32_t i = 0; i < plan->copy_count; i++) {
        memcpy(&w->held[plan->copies[i].to * w->page_tokens],
               &w->held[plan->copies[i].from * w->page_tokens],
               (size_t)w->page_tokens * sizeof w->held[0]);
    }
    for (int32_t i = 0; i < plan->count; i++) {
        const struct td_plan_entry *e = &plan->entries[i];
        assert_true(e->count >= 1 && e->from == e->seq->cached);
        for (int32_t t = e->from; t < e->from + e->count; t++) {
            int32_t page = e->seq->chain.page[t / w->page_tokens];
            w->held[page * w->page_tokens + t % w->page_tokens] = prefix_hash(e->seq->ids, t + 1);
        }
    }
    w->computed += (uint64_t)plan->tokens;
}

static const struct td_plan_entry *entry_of_row(const struct td_plan *plan, int32_t row) {
    int32_t at = 0;
    for (int32_t i = 0; i < plan->count; i++) {
        at += plan->entries[i].count;
        if (row == at - 1) {
            return &plan->entries[i];
        }
    }
    return NULL;
}

static void step(struct world *w, bool fails) {
    struct td_plan plan = td_sched_plan(w->sched);
    assert_true(plan.tokens <= w->budget);
    forward(w, &plan);
    w->steps++;
    if (fails) {
        return; // no commit: the tokens are planned again
    }
    int32_t count = 0;
    const struct td_plan_ready *ready = td_sched_commit(w->sched, &count);
    for (int i = 0; i < SEQS_MAX; i++) {
        if (w->seqs[i].open) {
            check_pages(w, &w->seqs[i]);
        }
    }
    for (int32_t i = 0; i < count; i++) {
        struct seq *q = (struct seq *)(void *)ready[i].seq;
        assert_int_equal(q->sched.cached, q->sched.tokens);
        const struct td_plan_entry *e = entry_of_row(&plan, ready[i].row);
        assert_non_null(e); // the row is that of a last token, with our very prefix
        assert_memory_equal(e->seq->ids, q->ids, (size_t)q->sched.cached * sizeof q->ids[0]);
        q->ids[q->sched.tokens] = next_token(q->ids, q->sched.tokens);
        q->sched.tokens++;
        w->sampled++;
        if (q->sched.tokens == q->limit) {
            td_sched_finish(w->sched, &q->sched);
        }
    }
}

static void run_dry(struct world *w) {
    for (int i = 0; td_sched_busy(w->sched); i++) {
        assert_true(i < 100000);
        step(w, false);
    }
}

static void check_tokens(const struct seq *q, int32_t prompt) {
    for (int32_t t = prompt; t < q->sched.tokens; t++) {
        assert_int_equal(q->ids[t], next_token(q->ids, t));
    }
}

static void test_sched_group_computes_its_prompt_once(void **state) {
    (void)state;
    static const int32_t prompt[] = {1, 2, 0, 1, 2, 2, 0};
    static const struct {
        int32_t budget, page_tokens;
        bool close_parent;
    } rows[] = {{100, 4, true}, {100, 4, false}, {3, 4, true}, {8, 1, true}, {9, 8, false}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        struct world *w = world_new(100, rows[k].page_tokens, rows[k].budget);
        struct seq *parent = seq_open(w, 0, prompt, 7);
        for (int i = 1; i <= 8; i++) {
            struct seq *child = seq_open(w, i, prompt, 7);
            td_sched_fork(w->sched, &parent->sched, &child->sched);
            seq_start(w, child, 4);
        }
        if (rows[k].close_parent) {
            td_sched_remove(w->sched, &parent->sched);
            parent->open = false;
        }
        run_dry(w);
        assert_int_equal(w->sampled, 8 * 4);
        assert_int_equal(w->computed, 7 + 8 * 3); // the last token of each is never computed
        for (int i = 1; i <= 8; i++) {
            check_tokens(&w->seqs[i], 7);
        }
        world_free(w);
    }
}

static void test_sched_fifo_and_budget(void **state) {
    (void)state;
    static const int32_t prompt[] = {0, 1, 0, 1, 0, 1};
    struct world *w = world_new(100, 4, 8);
    for (int i = 0; i < 3; i++) { // no kin: nothing is shared
        seq_start(w, seq_open(w, i, prompt, 6), 3);
    }
    struct td_plan plan = td_sched_plan(w->sched);
    assert_int_equal(plan.count, 2);
    assert_ptr_equal(plan.entries[0].seq, &w->seqs[0].sched);
    assert_int_equal(plan.entries[0].count, 6);
    assert_ptr_equal(plan.entries[1].seq, &w->seqs[1].sched);
    assert_int_equal(plan.entries[1].count, 2); // the rest of the budget
    run_dry(w);
    assert_int_equal(w->computed, 3 * (6 + 2));
    assert_int_equal(td_sched_preempted(w->sched), 0);
    assert_int_equal(td_sched_plan(w->sched).count, 0);
    world_free(w);
}

static void test_sched_preempts_the_youngest(void **state) {
    (void)state;
    static const int32_t prompt[] = {2, 2, 2, 2};
    struct world *w = world_new(4, 4, 64); // 16 tokens; each wants 12 in the end
    seq_start(w, seq_open(w, 0, prompt, 4), 8);
    seq_start(w, seq_open(w, 1, prompt, 4), 8);
    while (td_sched_preempted(w->sched) == 0) {
        step(w, false);
    }
    assert_int_equal(w->seqs[0].sched.state, TD_SCHED_RUNNING);
    assert_int_equal(w->seqs[1].sched.state, TD_SCHED_WAITING);
    assert_int_equal(w->seqs[1].sched.chain.count, 0);
    run_dry(w);
    check_tokens(&w->seqs[0], 4);
    check_tokens(&w->seqs[1], 4);
    assert_int_equal(w->seqs[1].sched.tokens, 12);
    world_free(w);
}

static void test_sched_takes_idle_pages_first(void **state) {
    (void)state;
    static const int32_t prompt[] = {2, 1, 2, 1};
    struct world *w = world_new(4, 4, 64);
    seq_start(w, seq_open(w, 0, prompt, 4), 2);
    run_dry(w);
    assert_int_equal(w->seqs[0].sched.chain.count, 2); // kept for what may follow
    seq_start(w, seq_open(w, 1, prompt, 4), 12);
    run_dry(w);
    assert_int_equal(w->seqs[0].sched.chain.count, 0);
    assert_int_equal(td_sched_preempted(w->sched), 0);
    seq_start(w, &w->seqs[0], 3); // computed anew
    run_dry(w);
    check_tokens(&w->seqs[0], 4);
    world_free(w);
}

static void random_event(struct world *w, struct td_rng *rng) {
    int i = (int)td_rng_below(rng, SEQS_MAX), k = (int)td_rng_below(rng, SEQS_MAX);
    struct seq *q = &w->seqs[i], *child = &w->seqs[k];
    if (!q->open) {
        int32_t ids[20], n = 1 + (int32_t)td_rng_below(rng, 20);
        for (int32_t t = 0; t < n; t++) {
            ids[t] = (int32_t)td_rng_below(rng, 2);
        }
        (void)seq_open(w, i, ids, n);
    } else if (q->sched.state != TD_SCHED_IDLE) {
        if (td_rng_below(rng, 8) == 0) {
            td_sched_finish(w->sched, &q->sched); // aborted
        }
    } else if (!child->open) {
        (void)seq_open(w, k, q->ids, q->sched.tokens);
        td_sched_fork(w->sched, &q->sched, &child->sched);
    } else if (q->sched.tokens + 8 > 40 || td_rng_below(rng, 10) == 0) {
        td_sched_remove(w->sched, &q->sched);
        q->open = false;
    } else if (td_rng_below(rng, 3) == 0) {
        q->ids[q->sched.tokens++] = (int32_t)td_rng_below(rng, VOCAB);
    } else {
        seq_start(w, q, 1 + (int32_t)td_rng_below(rng, 8));
    }
}

static void test_sched_random_events(void **state) {
    (void)state;
    uint64_t seed = (uint64_t)td_clock_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct td_rng rng = {seed};
    uint64_t preempted = 0;
    for (int round = 0; round < 60; round++) {
        int32_t page_tokens = 1 + (int32_t)td_rng_below(&rng, 8);
        int32_t least = (40 + page_tokens - 1) / page_tokens; // one sequence at full length
        int32_t pages = least + (int32_t)td_rng_below(&rng, (uint32_t)(PAGES_MAX - least));
        if (round % 2 == 0) {
            pages = least + (int32_t)td_rng_below(&rng, 4); // hard pressed
        }
        struct world *w = world_new(pages, page_tokens, 1 + (int32_t)td_rng_below(&rng, 40));
        for (int i = 0; i < 400; i++) {
            if (td_rng_below(&rng, 2) == 0) {
                random_event(w, &rng);
            } else {
                step(w, td_rng_below(&rng, 20) == 0);
            }
        }
        run_dry(w);
        preempted += td_sched_preempted(w->sched);
        world_free(w);
    }
    assert_true(preempted > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sched_group_computes_its_prompt_once),
        cmocka_unit_test(test_sched_fifo_and_budget),
        cmocka_unit_test(test_sched_preempts_the_youngest),
        cmocka_unit_test(test_sched_takes_idle_pages_first),
        cmocka_unit_test(test_sched_random_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
