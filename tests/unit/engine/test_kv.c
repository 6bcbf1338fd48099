// The page allocator against a model: reference counts, leaks, and what each page holds.
#include "workers/engine/kv.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include "tests/unit/cmocka_all.h"

enum { PAGES = 40, CHAINS = 12, PAGE_TOKENS_MAX = 5, TOKENS_MAX = 60 };

struct model {
    struct td_kv *kv;
    int32_t page_tokens;
    struct td_kv_chain chains[CHAINS];
    int32_t tokens[CHAINS];
    uint32_t want[CHAINS][TOKENS_MAX];     // what each chain's tokens are
    uint32_t held[PAGES][PAGE_TOKENS_MAX]; // what the pages hold
};

static void check(const struct model *m) {
    int32_t refs[PAGES] = {0}, used = 0;
    for (int c = 0; c < CHAINS; c++) {
        assert_true(m->chains[c].count == td_kv_pages_of(m->kv, m->tokens[c]));
        for (int32_t i = 0; i < m->chains[c].count; i++) {
            refs[m->chains[c].page[i]]++;
        }
        for (int32_t t = 0; t < m->tokens[c]; t++) {
            int32_t page = m->chains[c].page[t / m->page_tokens];
            assert_int_equal(m->held[page][t % m->page_tokens], m->want[c][t]);
        }
    }
    for (int32_t p = 0; p < PAGES; p++) {
        assert_int_equal(td_kv_refs(m->kv, p), refs[p]);
        used += refs[p] > 0;
    }
    assert_int_equal(td_kv_pages_free(m->kv), PAGES - used);
}

static void grow(struct model *m, int c, struct td_rng *rng) {
    int32_t from = m->tokens[c], upto = from + 1 + (int32_t)td_rng_below(rng, 9);
    if (upto > TOKENS_MAX ||
        td_kv_need(m->kv, &m->chains[c], from, upto) > td_kv_pages_free(m->kv)) {
        return;
    }
    int32_t need = td_kv_need(m->kv, &m->chains[c], from, upto), before = td_kv_pages_free(m->kv);
    struct td_kv_copy copy;
    if (td_kv_extend(m->kv, &m->chains[c], from, upto, &copy)) {
        memcpy(m->held[copy.to], m->held[copy.from], sizeof m->held[0]);
    }
    assert_int_equal(before - td_kv_pages_free(m->kv), need);
    for (int32_t t = from; t < upto; t++) {
        m->want[c][t] = (uint32_t)td_rng_next(rng);
        m->held[m->chains[c].page[t / m->page_tokens]][t % m->page_tokens] = m->want[c][t];
    }
    m->tokens[c] = upto;
}

static void share(struct model *m, int c, int other, struct td_rng *rng) {
    if (m->tokens[c] > 0 || m->tokens[other] == 0) {
        return;
    }
    m->tokens[c] = 1 + (int32_t)td_rng_below(rng, (uint32_t)m->tokens[other]);
    td_kv_share(m->kv, &m->chains[c], &m->chains[other], m->tokens[c]);
    memcpy(m->want[c], m->want[other], sizeof m->want[c]);
}

static void test_kv_random_operations(void **state) {
    (void)state;
    uint64_t seed = (uint64_t)td_clock_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct td_rng rng = {seed};
    for (int32_t page_tokens = 1; page_tokens <= PAGE_TOKENS_MAX; page_tokens++) {
        static struct model m;
        memset(&m, 0, sizeof m);
        m.page_tokens = page_tokens;
        m.kv = td_kv_new(PAGES, page_tokens);
        for (int i = 0; i < 4000; i++) {
            int c = (int)td_rng_below(&rng, CHAINS);
            uint32_t op = td_rng_below(&rng, 10);
            if (op < 6) {
                grow(&m, c, &rng);
            } else if (op < 8) {
                share(&m, c, (int)td_rng_below(&rng, CHAINS), &rng);
            } else {
                td_kv_release(m.kv, &m.chains[c]);
                m.tokens[c] = 0;
            }
            check(&m);
        }
        for (int c = 0; c < CHAINS; c++) {
            td_kv_chain_fini(m.kv, &m.chains[c]);
        }
        assert_int_equal(td_kv_pages_free(m.kv), PAGES);
        td_kv_free(m.kv);
    }
    td_kv_free(NULL);
}

static void test_kv_copies_only_a_shared_partial_page(void **state) {
    (void)state;
    struct td_kv *kv = td_kv_new(8, 4);
    struct td_kv_chain a = {0}, b = {0};
    struct td_kv_copy copy;
    assert_false(td_kv_extend(kv, &a, 0, 6, &copy));
    td_kv_share(kv, &b, &a, 6);
    assert_int_equal(td_kv_need(kv, &b, 6, 8), 1);
    assert_true(td_kv_extend(kv, &b, 6, 8, &copy));
    assert_int_equal(copy.from, a.page[1]);
    assert_int_equal(copy.to, b.page[1]);
    assert_int_equal(b.page[0], a.page[0]);
    assert_int_equal(td_kv_need(kv, &a, 6, 8), 0); // now its own
    assert_false(td_kv_extend(kv, &a, 6, 8, &copy));
    td_kv_release(kv, &b);
    td_kv_share(kv, &b, &a, 8);
    assert_int_equal(td_kv_need(kv, &b, 8, 9), 1); // a full page is never copied
    assert_false(td_kv_extend(kv, &b, 8, 9, &copy));
    td_kv_chain_fini(kv, &a);
    td_kv_chain_fini(kv, &b);
    td_kv_free(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_random_operations),
        cmocka_unit_test(test_kv_copies_only_a_shared_partial_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
