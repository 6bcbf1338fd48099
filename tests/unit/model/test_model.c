// The model: gradients of every parameter kind by central differences on the double backend, modes
// and thread counts that must agree bit for bit, random weights, digests.
#include "workers/model/model.h"

#include <math.h>
#include <stdio.h>

#include "tests/unit/model/tiny.h"

// The double backend and the cpu backend with one and with three threads.
enum { BACKENDS = 3 };
static struct td_backend *backend_at(int i) {
    struct td_backend *be = NULL;
    if (i == 0) {
        return td_backend_ref_new();
    }
    assert_int_equal(td_backend_cpu_new(i == 1 ? 1 : 3, NULL, &be, NULL), TD_OK);
    return be;
}

struct fixture {
    struct td_backend *be;
    struct td_model *m;
    struct td_weights w;
    struct tiny_batch batch;
};

static void set_up(struct fixture *f, struct td_backend *be, const struct tiny_case *t) {
    struct td_model_config config = tiny_config(t);
    f->be = be;
    assert_int_equal(td_model_new(f->be, &config, &f->m, NULL), TD_OK);
    assert_int_equal(td_weights_new(f->m, &f->w, NULL), TD_OK);
    tiny_fill(f->m, &f->w, 11);
    tiny_batch_fill(&f->batch, config.vocab_size, 5);
}

static void tear_down(struct fixture *f) {
    td_weights_fini(f->m, &f->w);
    td_model_free(f->m);
    td_backend_free(f->be);
}

// Log-probs and entropies of all targets at temperature 0.7.
static void score(struct fixture *f, enum td_forward_mode mode, double *logp, double *entropy) {
    struct td_packed packed = tiny_packed(&f->batch);
    struct td_tensor hidden;
    struct td_head_rows rows = {.n = f->batch.n,
                                .rows = f->batch.rows,
                                .target = f->batch.target,
                                .temperature = 0.7,
                                .logp = logp,
                                .entropy = entropy};
    assert_int_equal(td_weights_prepare(f->m, &f->w, NULL), TD_OK);
    assert_int_equal(td_model_forward(f->m, &f->w, &packed, mode, &hidden, NULL), TD_OK);
    assert_int_equal(td_model_logprob(f->m, &f->w, &hidden, &rows, NULL), TD_OK);
}

// A loss that mixes log-probs and entropies with fixed uneven factors.
static void loss_factors(int32_t n, double *dlogp, double *dentropy) {
    struct td_rng rng = {77};
    for (int32_t i = 0; i < n; i++) {
        dlogp[i] = td_rng_unit(&rng) - 0.5;
        dentropy[i] = td_rng_unit(&rng) - 0.5;
    }
}

static double loss_of(struct fixture *f) {
    double logp[TINY_TOKENS], entropy[TINY_TOKENS], a[TINY_TOKENS], b[TINY_TOKENS], sum = 0;
    score(f, TD_FORWARD_SCORE, logp, entropy);
    loss_factors(f->batch.n, a, b);
    for (int32_t i = 0; i < f->batch.n; i++) {
        sum += a[i] * logp[i] + b[i] * entropy[i];
    }
    return sum;
}

static double *flat_at(const struct td_tensor *flat, int64_t i) {
    return (double *)flat->p + i;
}

// Entries of every tensor, central differences of step 1e-5: error O(1e-10) of values about 1.
static void test_model_gradients_by_differences(void **state) {
    (void)state;
    enum { ENTRIES = 10 };
    for (int c = 0; c < TINY_CASES; c++) {
        struct fixture f = {0};
        set_up(&f, td_backend_ref_new(), &tiny_cases[c]);
        double logp[TINY_TOKENS], entropy[TINY_TOKENS], a[TINY_TOKENS], b[TINY_TOKENS];
        struct td_tensor grads;
        assert_int_equal(td_model_flat_new(f.m, &grads, NULL), TD_OK);
        score(&f, TD_FORWARD_TRAIN, logp, entropy);
        loss_factors(f.batch.n, a, b);
        assert_int_equal(td_model_backward(f.m, &f.w, a, b, &grads, NULL), TD_OK);
        struct td_rng rng = {123};
        double worst = 0;
        for (int i = 0; i < td_model_param_count(f.m); i++) {
            const struct td_param *p = td_model_param(f.m, i);
            double norm = 0;
            for (int64_t k = 0; k < p->rows * p->cols; k++) {
                norm = fmax(norm, fabs(*flat_at(&grads, p->offset + k)));
            }
            for (int k = 0; k < ENTRIES; k++) {
                int64_t at = p->offset + td_rng_below(&rng, (uint32_t)(p->rows * p->cols));
                double *x = flat_at(&f.w.flat, at), old = *x, step = 1e-5;
                *x = old + step;
                double up = loss_of(&f);
                *x = old - step;
                double down = loss_of(&f);
                *x = old;
                double error = fabs((up - down) / (2 * step) - *flat_at(&grads, at)) / norm;
                worst = fmax(worst, error);
                if (!(error < 1e-6)) {
                    fail_msg("%s: %s element %lld: relative error %g", tiny_cases[c].name, p->name,
                             (long long)(at - p->offset), error);
                }
            }
        }
        print_message("%s: worst relative error %.2g\n", tiny_cases[c].name, worst);
        f.be->ops->release(f.be, grads.p);
        tear_down(&f);
    }
}

// Whole, in two chunks, and token by token over pages: the same hidden states, bit for bit.
static void check_cached(struct fixture *f, const int32_t *cuts, int cut_count) {
    const struct td_model_config *c = td_model_config(f->m);
    enum { PAGE = 4, PAGES = 8 };
    int32_t start = f->batch.cu[2], n = f->batch.cu[3] - start;
    int32_t table[PAGES] = {5, 2, 7, 0, 1, 3, 4, 6};
    void *pages[2];
    size_t bytes = (size_t)PAGES * 2 * PAGE * (size_t)(c->kv_heads * c->head_dim) *
                   td_dtype_size(f->be->dtype);
    for (int l = 0; l < 2; l++) {
        pages[l] = f->be->ops->alloc(f->be, bytes);
        assert_non_null(pages[l]);
    }
    struct td_packed packed = tiny_packed(&f->batch);
    struct td_tensor hidden;
    size_t row = (size_t)c->hidden_size * td_dtype_size(f->be->dtype);
    char *whole = td_alloc((size_t)n * row);
    assert_int_equal(td_model_forward(f->m, &f->w, &packed, TD_FORWARD_SCORE, &hidden, NULL),
                     TD_OK);
    memcpy(whole, (char *)hidden.p + (size_t)start * row, (size_t)n * row);
    int32_t done = 0;
    for (int k = 0; k < cut_count; k++) {
        int32_t count = cuts[k], kvlen = done + count, cu[2] = {0, count};
        int64_t slot[TINY_TOKENS];
        for (int32_t t = 0; t < count; t++) {
            slot[t] = table[(done + t) / PAGE] * PAGE + (done + t) % PAGE;
        }
        struct td_kv_view kv = {.pages = pages,
                                .page_tokens = PAGE,
                                .slot = slot,
                                .table = table,
                                .table_stride = PAGES,
                                .kvlen = &kvlen};
        struct td_packed part = {.tokens = count,
                                 .batch = 1,
                                 .ids = f->batch.ids + start + done,
                                 .pos = f->batch.pos + start + done,
                                 .cu = cu,
                                 .kv = &kv};
        assert_int_equal(td_model_forward(f->m, &f->w, &part, TD_FORWARD_CACHED, &hidden, NULL),
                         TD_OK);
        assert_memory_equal(hidden.p, whole + (size_t)done * row, (size_t)count * row);
        done += count;
    }
    assert_int_equal(done, n);
    td_free(whole);
    for (int l = 0; l < 2; l++) {
        f->be->ops->release(f->be, pages[l]);
    }
}

static void test_model_cached_equals_whole(void **state) {
    (void)state;
    static const int32_t once[] = {13}, twice[] = {6, 7},
                         each[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int c = 0; c < TINY_CASES * BACKENDS; c++) {
        struct fixture f = {0};
        set_up(&f, backend_at(c % BACKENDS), &tiny_cases[c / BACKENDS]);
        assert_int_equal(td_weights_prepare(f.m, &f.w, NULL), TD_OK);
        check_cached(&f, once, 1);
        check_cached(&f, twice, 2);
        check_cached(&f, each, 13);
        tear_down(&f);
    }
}

// Training and scoring, alone and beside other sequences: the same log-probs, bit for bit.
static void test_model_train_and_score_agree(void **state) {
    (void)state;
    for (int k = 0; k < BACKENDS; k++) {
        struct fixture f = {0};
        set_up(&f, backend_at(k), &tiny_cases[0]);
        double a[TINY_TOKENS], b[TINY_TOKENS], ent[TINY_TOKENS], alone;
        score(&f, TD_FORWARD_TRAIN, a, ent);
        score(&f, TD_FORWARD_SCORE, b, NULL);
        assert_memory_equal(a, b, (size_t)f.batch.n * sizeof *a);
        int32_t start = f.batch.cu[2], cu[2] = {0, 9}, row = 7, target = f.batch.ids[start + 8];
        struct td_packed part = {.tokens = 9,
                                 .batch = 1,
                                 .ids = f.batch.ids + start,
                                 .pos = f.batch.pos + start,
                                 .cu = cu};
        struct td_head_rows rows = {
            .n = 1, .rows = &row, .target = &target, .temperature = 0.7, .logp = &alone};
        struct td_tensor hidden;
        assert_int_equal(td_model_forward(f.m, &f.w, &part, TD_FORWARD_SCORE, &hidden, NULL),
                         TD_OK);
        assert_int_equal(td_model_logprob(f.m, &f.w, &hidden, &rows, NULL), TD_OK);
        // sequence 0 has six targets, sequence 1 none
        assert_memory_equal(&alone, &b[6 + row], sizeof alone);
        tear_down(&f);
    }
}

// Gradients on the cpu backend do not depend on the number of threads.
static void test_model_gradients_are_equal_for_any_threads(void **state) {
    (void)state;
    uint64_t digest[2];
    for (int k = 0; k < 2; k++) {
        struct fixture f = {0};
        struct td_tensor grads;
        double logp[TINY_TOKENS], entropy[TINY_TOKENS], a[TINY_TOKENS], b[TINY_TOKENS];
        set_up(&f, backend_at(k + 1), &tiny_cases[2]);
        assert_int_equal(td_model_flat_new(f.m, &grads, NULL), TD_OK);
        score(&f, TD_FORWARD_TRAIN, logp, entropy);
        loss_factors(f.batch.n, a, b);
        assert_int_equal(td_model_backward(f.m, &f.w, a, b, &grads, NULL), TD_OK);
        digest[k] = td_weights_digest(f.m, &grads);
        f.be->ops->release(f.be, grads.p);
        tear_down(&f);
    }
    assert_true(digest[0] == digest[1]);
}

// Log-probs and the gradients' digest of every third target: over all rows of hidden, or with these
// rows alone wanted.
static uint64_t every_third(struct fixture *f, bool narrow, double *logp, double *entropy) {
    int32_t rows[TINY_TOKENS], target[TINY_TOKENS], n = 0;
    for (int32_t i = 1; i < f->batch.n; i += 3) {
        rows[n] = f->batch.rows[i];
        target[n++] = f->batch.target[i];
    }
    struct td_packed packed = tiny_packed(&f->batch);
    packed.out = narrow ? rows : NULL;
    packed.outs = narrow ? n : 0;
    struct td_head_rows head = {.n = n,
                                .rows = narrow ? NULL : rows,
                                .target = target,
                                .temperature = 0.7,
                                .logp = logp,
                                .entropy = entropy};
    double a[TINY_TOKENS], b[TINY_TOKENS];
    struct td_tensor hidden, grads;
    assert_int_equal(td_weights_prepare(f->m, &f->w, NULL), TD_OK);
    assert_int_equal(td_model_forward(f->m, &f->w, &packed, TD_FORWARD_TRAIN, &hidden, NULL),
                     TD_OK);
    assert_int_equal(hidden.rows, narrow ? n : TINY_TOKENS);
    assert_int_equal(td_model_logprob(f->m, &f->w, &hidden, &head, NULL), TD_OK);
    loss_factors(n, a, b);
    assert_int_equal(td_model_flat_new(f->m, &grads, NULL), TD_OK);
    assert_int_equal(td_model_backward(f->m, &f->w, a, b, &grads, NULL), TD_OK);
    uint64_t digest = td_weights_digest(f->m, &grads);
    f->be->ops->release(f->be, grads.p);
    return digest;
}

static void test_model_unwanted_rows_change_no_bit(void **state) {
    (void)state;
    for (int c = 0; c < TINY_CASES * BACKENDS; c++) {
        struct fixture f = {0};
        double logp[2][TINY_TOKENS] = {0}, entropy[2][TINY_TOKENS] = {0};
        set_up(&f, backend_at(c % BACKENDS), &tiny_cases[c / BACKENDS]);
        uint64_t all = every_third(&f, false, logp[0], entropy[0]);
        assert_true(every_third(&f, true, logp[1], entropy[1]) == all);
        assert_memory_equal(logp[0], logp[1], sizeof logp[0]);
        assert_memory_equal(entropy[0], entropy[1], sizeof entropy[0]);
        assert_true(every_third(&f, false, logp[1], entropy[1]) == all); // and back
        tear_down(&f);
    }
}

static void test_model_logits_give_the_logprobs(void **state) {
    (void)state;
    struct fixture f = {0};
    set_up(&f, td_backend_ref_new(), &tiny_cases[1]);
    double logp[TINY_TOKENS], entropy[TINY_TOKENS];
    score(&f, TD_FORWARD_SCORE, logp, entropy);
    struct td_packed packed = tiny_packed(&f.batch);
    struct td_tensor hidden, z;
    struct td_head_rows rows = {.n = f.batch.n, .rows = f.batch.rows};
    assert_int_equal(td_model_forward(f.m, &f.w, &packed, TD_FORWARD_SCORE, &hidden, NULL), TD_OK);
    assert_int_equal(td_model_logits(f.m, &f.w, &hidden, &rows, &z, NULL), TD_OK);
    for (int32_t i = 0; i < f.batch.n; i++) {
        const double *row = (const double *)z.p + i * z.ld;
        double sum = 0, dot = 0;
        for (int64_t v = 0; v < z.cols; v++) {
            sum += exp(row[v] / 0.7);
            dot += exp(row[v] / 0.7) * row[v] / 0.7;
        }
        assert_true(fabs(row[f.batch.target[i]] / 0.7 - log(sum) - logp[i]) < 1e-12);
        assert_true(fabs(log(sum) - dot / sum - entropy[i]) < 1e-12);
    }
    tear_down(&f);
}

static void test_model_refuses_foreign_ids(void **state) {
    (void)state;
    struct fixture f = {0};
    set_up(&f, td_backend_ref_new(), &tiny_cases[0]);
    assert_int_equal(td_weights_prepare(f.m, &f.w, NULL), TD_OK);
    struct td_packed packed = tiny_packed(&f.batch);
    struct td_tensor hidden;
    struct td_err err;
    f.batch.ids[3] = 83;
    assert_int_equal(td_model_forward(f.m, &f.w, &packed, TD_FORWARD_SCORE, &hidden, &err),
                     TD_EINVAL);
    assert_string_equal(err.msg, "token id 83 is not of the vocabulary 0..82");
    f.batch.ids[3] = 0;
    f.batch.pos[3] = 64;
    assert_int_equal(td_model_forward(f.m, &f.w, &packed, TD_FORWARD_SCORE, &hidden, &err),
                     TD_EINVAL);
    assert_string_equal(err.msg, "position 64: the model has max_position_embeddings 64");
    tear_down(&f);
}

// Normal with the asked deviation; a value depends on seed, name and element only.
static void test_model_random_weights(void **state) {
    (void)state;
    struct td_model_config small = tiny_config(&tiny_cases[2]), deep = small;
    deep.layers = 3;
    struct td_backend *be = td_backend_ref_new();
    struct td_model *m[2];
    struct td_weights w[2];
    const struct td_model_config *configs[] = {&small, &deep};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(td_model_new(be, configs[k], &m[k], NULL), TD_OK);
        assert_int_equal(td_weights_new(m[k], &w[k], NULL), TD_OK);
        td_weights_random(m[k], &w[k], 42);
    }
    for (int i = 0; i < td_model_param_count(m[0]); i++) {
        const struct td_param *p = td_model_param(m[0], i), *q = NULL;
        for (int j = 0; j < td_model_param_count(m[1]); j++) {
            const struct td_param *r = td_model_param(m[1], j);
            q = strcmp(p->name, r->name) == 0 ? r : q;
        }
        assert_non_null(q);
        size_t n = (size_t)(p->rows * p->cols);
        const double *x = flat_at(&w[0].flat, p->offset), *y = flat_at(&w[1].flat, q->offset);
        assert_memory_equal(x, y, n * sizeof *x);
        double sum = 0, square = 0, fourth = 0;
        for (size_t e = 0; e < n; e++) {
            double z = x[e] / small.initializer_range;
            sum += z;
            square += z * z;
            fourth += z * z * z * z;
        }
        if (p->rows > 1) {
            double sigma = 1 / sqrt((double)n);
            assert_true(fabs(sum / (double)n) < 5 * sigma);
            assert_true(fabs(square / (double)n - 1) < 5 * sqrt(2) * sigma);
            assert_true(fabs(fourth / (double)n - 3) < 5 * sqrt(96) * sigma);
        } else {
            assert_true(*x == (strstr(p->name, "norm") ? 1 : 0));
        }
    }
    uint64_t before = td_weights_digest(m[0], &w[0].flat);
    td_weights_random(m[0], &w[0], 43);
    assert_true(before != td_weights_digest(m[0], &w[0].flat));
    td_weights_random(m[0], &w[0], 42);
    assert_true(before == td_weights_digest(m[0], &w[0].flat));
    for (int k = 0; k < 2; k++) {
        td_weights_fini(m[k], &w[k]);
        td_model_free(m[k]);
    }
    td_backend_free(be);
}

// One training pass from nothing; every failure must be TD_ENOMEM and leave nothing behind.
static enum td_rc train_once(struct td_backend *be, const struct td_model_config *config,
                             struct td_err *err) {
    struct td_model *m = NULL;
    struct td_weights w = {0};
    struct td_tensor grads = {0}, hidden;
    struct tiny_batch batch;
    double out[TINY_TOKENS];
    tiny_batch_fill(&batch, config->vocab_size, 5);
    struct td_packed packed = tiny_packed(&batch);
    struct td_head_rows rows = {
        .n = batch.n, .rows = batch.rows, .target = batch.target, .temperature = 1, .logp = out};
    enum td_rc rc = td_model_new(be, config, &m, err);
    rc = rc ? rc : td_weights_new(m, &w, err);
    rc = rc ? rc : td_model_flat_new(m, &grads, err);
    rc = rc ? rc : td_weights_prepare(m, &w, err);
    rc = rc ? rc : td_model_forward(m, &w, &packed, TD_FORWARD_TRAIN, &hidden, err);
    rc = rc ? rc : td_model_logprob(m, &w, &hidden, &rows, err);
    rc = rc ? rc : td_model_backward(m, &w, out, NULL, &grads, err);
    if (grads.p) {
        be->ops->release(be, grads.p);
    }
    if (m) {
        td_weights_fini(m, &w);
        td_model_free(m);
    }
    return rc;
}

static void test_model_survives_every_failed_allocation(void **state) {
    (void)state;
    struct td_model_config config = tiny_config(&tiny_cases[2]);
    struct td_backend *be = backend_at(1);
    enum td_rc rc = TD_ENOMEM;
    int failures = 0;
    for (; rc != TD_OK; failures++) {
        struct td_err err = {0};
        td_mem_fail_at(failures);
        rc = train_once(be, &config, &err);
        td_mem_fail_at(-1);
        assert_true(rc == TD_OK || rc == TD_ENOMEM);
        assert_true(rc == TD_OK || err.msg[0]);
        assert_true(failures < 100);
    }
    print_message("%d allocations failed in turn\n", failures - 1);
    assert_true(failures > 5);
    td_backend_free(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_gradients_by_differences),
        cmocka_unit_test(test_model_cached_equals_whole),
        cmocka_unit_test(test_model_train_and_score_agree),
        cmocka_unit_test(test_model_gradients_are_equal_for_any_threads),
        cmocka_unit_test(test_model_unwanted_rows_change_no_bit),
        cmocka_unit_test(test_model_logits_give_the_logprobs),
        cmocka_unit_test(test_model_refuses_foreign_ids),
        cmocka_unit_test(test_model_random_weights),
        cmocka_unit_test(test_model_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
