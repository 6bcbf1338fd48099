// The sampler: its random numbers, its distribution, what top-k and top-p leave, and that its
// log-prob is the trainer's, bit for bit.
#include "tests/unit/backend/fixture.h"
#include "workers/backend/rules.h"

static const char *isas[] = {"scalar", "avx2", "avx512"};

struct one { // a row of logits and the draw from it
    struct td_backend *be;
    struct td_tensor z;
    const uint8_t *allowed;
};

static int32_t draw(const struct one *o, struct td_sample_row row) {
    int32_t id = -1;
    float logp;
    o->be->ops->sample(
        o->be, &(struct td_sample_args){
                   .z = o->z, .row = &row, .allowed = o->allowed, .id = &id, .logp = &logp});
    return id;
}

// With equal logits the draw is the argmax of the Gumbel numbers alone: of the largest word.
static void test_sample_takes_the_largest_philox_word(void **state) {
    (void)state;
    enum { VOCAB = 203 };
    FOR_EACH(isa, isas) {
        struct one o = {.be = cpu_new(1, *isa)};
        if (!o.be) {
            continue;
        }
        o.z = td_tensor_of(o.be, o.be->ops->alloc(o.be, VOCAB * sizeof(float)), 1, VOCAB);
        for (uint32_t i = 0; i < 200; i++) {
            uint64_t key = td_hash_u64(4, i);
            int32_t best = 0;
            uint32_t least = 0;
            for (int32_t id = 0; id < VOCAB; id++) { // E = −ln(1 − v) grows with the word
                uint32_t w = td_gumbel_words(key, i, (uint32_t)id / 4).v[id % 4];
                if (id == 0 || w < least) {
                    least = w;
                    best = id;
                }
            }
            struct td_sample_row row = {.key = key, .position = i, .inv_temp = 1, .top_p = 1};
            assert_int_equal(draw(&o, row), best);
        }
        o.be->ops->release(o.be, o.z.p);
        td_backend_free(o.be);
    }
}

// χ² of draws against softmax of what is open. Wilson and Hilferty's bound at p = 10⁻⁴.
static void chi_square(const struct one *o, struct td_sample_row row, const double *p, int vocab) {
    enum { DRAWS = 40000, VOCAB_MAX = 64 };
    int count[VOCAB_MAX] = {0}, cells = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        row.position = i;
        count[draw(o, row)]++;
    }
    double chi2 = 0;
    for (int i = 0; i < vocab; i++) {
        double expected = p[i] * DRAWS;
        if (p[i] == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        assert_true(expected >= 5);
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
        cells++;
    }
    double f = cells - 1, c = 2 / (9 * f), bound = f * pow(1 - c + 3.719 * sqrt(c), 3);
    if (chi2 > bound) {
        print_error("chi2 %g > %g with %d cells\n", chi2, bound, cells);
        fail();
    }
}

// Probabilities of what top-k, then top-p keep of open tokens.
static void expect(const float *z, const struct one *o, const struct td_sample_row *row, double *p,
                   int vocab) {
    int rank[64];
    double total = 0, sum = 0;
    int n = 0;
    for (int i = 0; i < vocab; i++) {
        p[i] = 0;
        if (!o->allowed || o->allowed[i]) {
            rank[n++] = i;
        }
    }
    for (int i = 1; i < n; i++) { // insertion sort, z descending
        for (int j = i; j > 0 && z[rank[j]] > z[rank[j - 1]]; j--) {
            int t = rank[j];
            rank[j] = rank[j - 1];
            rank[j - 1] = t;
        }
    }
    n = row->top_k > 0 && row->top_k < n ? row->top_k : n;
    for (int i = 0; i < n; i++) {
        total += exp((double)z[rank[i]] * (double)row->inv_temp);
    }
    int kept = 0;
    while (kept < n && (kept == 0 || sum < (double)row->top_p * total)) {
        sum += exp((double)z[rank[kept++]] * (double)row->inv_temp);
    }
    for (int i = 0; i < kept; i++) {
        p[rank[i]] = exp((double)z[rank[i]] * (double)row->inv_temp) / sum;
    }
}

static void test_sample_distribution(void **state) {
    (void)state;
    enum { VOCAB = 50 };
    static const struct td_sample_row rows[] = {
        {.key = 1, .inv_temp = 1, .top_p = 1},
        {.key = 2, .inv_temp = 0.5f, .top_p = 1},
        {.key = 3, .inv_temp = 1, .top_p = 1, .top_k = 5},
        {.key = 4, .inv_temp = 1, .top_p = 0.7f},
        {.key = 5, .inv_temp = 0.8f, .top_p = 0.6f, .top_k = 20},
        {.key = 6, .inv_temp = 1, .top_p = 1, .top_k = 1000},
        {.key = 7, .inv_temp = 1, .top_p = 0, .top_k = 0},
    };
    uint8_t allowed[VOCAB];
    struct td_backend *backends[] = {cpu_new(1, NULL), td_backend_ref_new()};
    FOR_EACH(be, backends) {
        struct one o = {.be = *be};
        struct script_run r = {.be = *be, .rng = {17}};
        o.z = in(&r, 1, VOCAB, 1.5);
        float z[VOCAB];
        for (int i = 0; i < VOCAB; i++) {
            z[i] = (float)get(*be, o.z.p, i);
            allowed[i] = i % 3 != 1;
        }
        FOR_EACH(row, rows) {
            double p[VOCAB];
            o.allowed = row_i % 2 ? allowed : NULL;
            expect(z, &o, row, p, VOCAB);
            chi_square(&o, *row, p, VOCAB);
        }
        (*be)->ops->release(*be, r.owned[0]);
        td_backend_free(*be);
    }
}

static void test_sample_greedy_takes_the_lowest_of_equals(void **state) {
    (void)state;
    float z[] = {1, 3, 2, 3, 3, -1};
    uint8_t allowed[] = {1, 0, 1, 1, 1, 1};
    struct one o = {.be = cpu_new(1, NULL)};
    o.z = td_tensor_of(o.be, z, 1, 6);
    struct td_sample_row greedy = {.top_p = 1};
    assert_int_equal(draw(&o, greedy), 1);
    o.allowed = allowed;
    assert_int_equal(draw(&o, greedy), 3);
    td_backend_free(o.be);
}

// Equals of the k-th stay; nothing below it is ever drawn.
static void test_sample_top_k_support(void **state) {
    (void)state;
    float z[] = {0, 5, 4, 5, 3, 4, 4, -2};
    struct one o = {.be = cpu_new(1, NULL)};
    o.z = td_tensor_of(o.be, z, 1, 8);
    static const struct {
        int32_t k;
        unsigned support;
    } rows[] = {{1, 0x0a}, {2, 0x0a}, {3, 0x6e}, {5, 0x6e}, {6, 0x7e}};
    FOR_EACH(row, rows) {
        unsigned seen = 0;
        for (uint32_t i = 0; i < 4000; i++) {
            seen |= 1u << draw(&o, (struct td_sample_row){.key = 8,
                                                          .position = i,
                                                          .inv_temp = 0.5f,
                                                          .top_k = row->k,
                                                          .top_p = 1});
        }
        assert_int_equal(seen, row->support);
    }
    td_backend_free(o.be);
}

// logp of sample is logprob_fwd's logp of that token, in any chunk, prepared or not.
static void test_sample_logp_is_the_trainers(void **state) {
    (void)state;
    static const float temps[] = {1, 0.7f, 1.0f / 0.6f, 0};
    FOR_EACH(isa, isas) {
        struct td_backend *be = cpu_new(2, *isa);
        if (!be) {
            continue;
        }
        FOR_EACH(temp, temps) {
            enum { ROWS = 9, HIDDEN = 72, VOCAB = 4999 };
            struct script_run r = {.be = be, .rng = {31}};
            struct td_tensor x = in(&r, ROWS, HIDDEN, 1), w = in(&r, VOCAB, HIDDEN, 0.5);
            struct td_tensor z = in(&r, ROWS, VOCAB, 0);
            struct td_sample_row rows[ROWS];
            int32_t id[ROWS];
            float logp[ROWS], again[ROWS], lse[ROWS];
            for (int i = 0; i < ROWS; i++) {
                rows[i] = (struct td_sample_row){
                    .key = 5 + (uint64_t)i, .inv_temp = *temp, .top_p = 0.95f};
            }
            be->ops->gemm(be, &(struct td_gemm_args){.kind = TD_GEMM_NT, .a = x, .b = w, .c = z});
            be->ops->sample(be,
                            &(struct td_sample_args){.z = z, .row = rows, .id = id, .logp = logp});
            for (int chunk = 1; chunk <= ROWS; chunk += 4) {
                be->ops->logprob_fwd(
                    be, &(struct td_logprob_args){.x = x,
                                                  .w = w,
                                                  .target = id,
                                                  .inv_temp = *temp > 0 ? (double)*temp : 1,
                                                  .chunk = chunk,
                                                  .logp = td_tensor_of(be, again, ROWS, 1),
                                                  .lse = td_tensor_of(be, lse, ROWS, 1)});
                assert_memory_equal(logp, again, sizeof logp);
            }
            for (int i = 0; i < r.owned_count; i++) {
                be->ops->release(be, r.owned[i]);
            }
        }
        td_backend_free(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_takes_the_largest_philox_word),
        cmocka_unit_test(test_sample_distribution),
        cmocka_unit_test(test_sample_greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(test_sample_top_k_support),
        cmocka_unit_test(test_sample_logp_is_the_trainers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
