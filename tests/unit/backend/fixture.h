// One script per op, run on any backend: inputs come from a seed, outputs are kept as doubles. So
// the same script serves cpu against ref, and bits of cpu against other bits of cpu.
#ifndef TD_TESTS_BACKEND_FIXTURE_H
#define TD_TESTS_BACKEND_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"
#include "workers/backend/backend.h"

#define FOR_EACH(row, table)                                                                       \
    for (size_t row##_i = 0; row##_i < sizeof(table) / sizeof *(table); row##_i++)                 \
        for (__typeof__(&(table)[0]) row = &(table)[row##_i]; row; row = NULL)

struct shape { // tokens, hidden, head dim, kv heads, heads, ffn, vocabulary
    int64_t t, h, d, k, heads, f, v;
};

enum { OUTS_MAX = 6, OWNED_MAX = 32 };

struct out {
    struct td_tensor x;
    double *values; // rows × cols, after run_script
    bool per_token; // row i belongs to token i
};

struct script_run {
    struct td_backend *be;
    struct shape s;
    int only; // −1: all tokens; else this token alone
    struct td_rng rng;
    struct out out[OUTS_MAX];
    int outs;
    void *owned[OWNED_MAX];
    int owned_count;
};

typedef void (*script)(struct script_run *r);

static inline void put(const struct td_backend *be, void *p, int64_t i, double value) {
    if (be->dtype == TD_F64) {
        ((double *)p)[i] = value;
    } else {
        ((float *)p)[i] = (float)value;
    }
}

static inline double get(const struct td_backend *be, const void *p, int64_t i) {
    return be->dtype == TD_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static inline void *own(struct script_run *r, void *p) {
    assert_non_null(p);
    assert_true(r->owned_count < OWNED_MAX);
    r->owned[r->owned_count++] = p;
    return p;
}

// rows × cols numbers of size about scale, exact in float, in a tensor with a gap between rows.
static inline struct td_tensor in(struct script_run *r, int64_t rows, int64_t cols, double scale) {
    int64_t ld = cols + 5;
    struct td_tensor x = td_tensor_of(r->be, NULL, rows, cols);
    x.ld = rows > 1 ? ld : cols;
    x.p = own(r, r->be->ops->alloc(r->be, (size_t)(rows * x.ld + 1) * td_dtype_size(r->be->dtype)));
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < cols; c++) {
            double u = td_rng_unit(&r->rng) + td_rng_unit(&r->rng) + td_rng_unit(&r->rng) - 1.5;
            put(r->be, x.p, i * x.ld + c, (double)(float)(u * 2 * scale));
        }
    }
    return x;
}

// As in, one row per token; only the chosen one when a token runs alone.
static inline struct td_tensor in_tokens(struct script_run *r, int64_t cols, double scale) {
    struct td_tensor x = in(r, r->s.t, cols, scale);
    if (r->only >= 0) {
        x.p = (char *)x.p + (size_t)(r->only * x.ld) * td_dtype_size(r->be->dtype);
        x.rows = 1;
    }
    return x;
}

static inline struct td_tensor keep(struct script_run *r, struct td_tensor x, bool per_token) {
    assert_true(r->outs < OUTS_MAX);
    r->out[r->outs++] = (struct out){.x = x, .per_token = per_token};
    return x;
}

static inline struct td_tensor out(struct script_run *r, int64_t rows, int64_t cols) {
    return keep(r, in(r, rows, cols, 1), false);
}

static inline struct td_tensor out_tokens(struct script_run *r, int64_t cols) {
    return keep(r, in_tokens(r, cols, 1), true);
}

// n integers in 0..below-1; the chosen token's alone when per_token.
static inline int32_t *ints(struct script_run *r, int64_t n, int64_t below, bool per_token) {
    int32_t *ids = own(r, td_try_alloc_aligned((size_t)n * sizeof *ids));
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)td_rng_below(&r->rng, (uint32_t)below);
    }
    return per_token && r->only >= 0 ? ids + r->only : ids;
}

static inline void run_script(struct script_run *r, script fn) {
    fn(r);
    struct td_err err = {0};
    assert_int_equal(r->be->ops->check(r->be, &err), TD_OK);
    for (int i = 0; i < r->outs; i++) {
        const struct td_tensor *x = &r->out[i].x;
        r->out[i].values = td_alloc_array((size_t)(x->rows * x->cols), sizeof(double));
        for (int64_t j = 0; j < x->rows * x->cols; j++) {
            r->out[i].values[j] = get(r->be, x->p, j / x->cols * x->ld + j % x->cols);
        }
    }
    for (int i = 0; i < r->owned_count; i++) {
        r->be->ops->release(r->be, r->owned[i]);
    }
}

static inline void run_free(struct script_run *r) {
    for (int i = 0; i < r->outs; i++) {
        td_free(r->out[i].values);
    }
}

// A cpu backend, or NULL (said once) where this processor lacks the instructions.
static inline struct td_backend *cpu_new(int threads, const char *isa) {
    struct td_backend *be = NULL;
    struct td_err err = {0};
    enum td_rc rc = td_backend_cpu_new(threads, isa, &be, &err);
    if (rc == TD_EUNSUPPORTED && isa && strncmp(isa, "avx", 3) == 0) {
        print_message("[ SKIPPED  ] %s: %s\n", isa, err.msg);
        return NULL;
    }
    assert_int_equal(rc, TD_OK);
    return be;
}

#endif
