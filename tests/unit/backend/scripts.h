// The scripts: one per op. Included by the tests that run them.
#ifndef TD_TESTS_BACKEND_SCRIPTS_H
#define TD_TESTS_BACKEND_SCRIPTS_H

#include "tests/unit/backend/fixture.h"

static inline int64_t tokens(const struct script_run *r) {
    return r->only >= 0 ? 1 : r->s.t;
}

static inline void script_fill(struct script_run *r) {
    struct td_fill_args a = {.y = out_tokens(r, r->s.h), .value = 0.25};
    r->be->ops->fill(r->be, &a);
}

static inline void script_embed_fwd(struct script_run *r) {
    struct td_embed_args a = {.w = in(r, r->s.v, r->s.h, 1), .ids = ints(r, r->s.t, r->s.v, true)};
    a.y = out_tokens(r, r->s.h);
    r->be->ops->embed_fwd(r->be, &a);
}

static inline void script_embed_bwd(struct script_run *r) {
    struct td_embed_args a = {.y = in(r, r->s.t, r->s.h, 1), .ids = ints(r, r->s.t, 7, false)};
    a.w = out(r, 7, r->s.h);
    r->be->ops->embed_bwd(r->be, &a);
}

static inline void script_rmsnorm_fwd(struct script_run *r) {
    struct td_rmsnorm_args a = {.res = in_tokens(r, r->s.h, 1), .w = in(r, 1, r->s.h, 1)};
    a.eps = 1e-5;
    a.x = out_tokens(r, r->s.h);
    a.y = out_tokens(r, r->s.h);
    a.rstd = in(r, 1, r->s.t, 1);
    a.rstd.rows = tokens(r);
    a.rstd.cols = a.rstd.ld = 1;
    keep(r, a.rstd, true);
    r->be->ops->rmsnorm_fwd(r->be, &a);
}

static inline void rmsnorm_bwd(struct script_run *r, bool acc) {
    struct td_rmsnorm_bwd_args a = {
        .dy = in_tokens(r, r->s.h, 1), .x = in_tokens(r, r->s.h, 1), .w = in(r, 1, r->s.h, 1)};
    a.rstd = in(r, 1, r->s.t, 1);
    for (int64_t t = 0; t < tokens(r); t++) {
        put(r->be, a.rstd.p, t, 0.75);
    }
    a.acc = acc;
    a.dx = out_tokens(r, r->s.h);
    a.dw = r->only < 0 ? out(r, 1, r->s.h) : in(r, 1, r->s.h, 1);
    r->be->ops->rmsnorm_bwd(r->be, &a);
}

static inline void script_rmsnorm_bwd(struct script_run *r) {
    rmsnorm_bwd(r, false);
}

static inline void script_rmsnorm_bwd_acc(struct script_run *r) {
    rmsnorm_bwd(r, true);
}

static inline void gemm_nt(struct script_run *r, bool prepared, bool bias, bool acc) {
    struct td_gemm_args a = {.kind = TD_GEMM_NT,
                             .a = in_tokens(r, r->s.h, 1),
                             .b = in(r, r->s.f, r->s.h, 0.3),
                             .acc = acc};
    if (bias) {
        a.bias = in(r, 1, r->s.f, 1);
    }
    a.c = out_tokens(r, r->s.f);
    size_t bytes = r->be->ops->gemm_prepared_bytes(r->be, r->s.f, r->s.h);
    if (prepared && bytes) {
        void *packed = own(r, r->be->ops->alloc(r->be, bytes));
        r->be->ops->gemm_prepare(r->be, &a.b, packed);
        a.packed = packed;
    }
    r->be->ops->gemm(r->be, &a);
}

static inline void script_gemm_nt(struct script_run *r) {
    gemm_nt(r, false, false, false);
}

static inline void script_gemm_nt_bias(struct script_run *r) {
    gemm_nt(r, false, true, false);
}

static inline void script_gemm_nt_prepared(struct script_run *r) {
    gemm_nt(r, true, true, false);
}

static inline void script_gemm_nt_acc(struct script_run *r) {
    gemm_nt(r, true, false, true);
}

static inline void gemm_nn(struct script_run *r, bool acc) {
    struct td_gemm_args a = {.kind = TD_GEMM_NN,
                             .a = in_tokens(r, r->s.f, 1),
                             .b = in(r, r->s.f, r->s.h, 0.3),
                             .acc = acc};
    a.c = out_tokens(r, r->s.h);
    r->be->ops->gemm(r->be, &a);
}

static inline void script_gemm_nn(struct script_run *r) {
    gemm_nn(r, false);
}

static inline void script_gemm_nn_acc(struct script_run *r) {
    gemm_nn(r, true);
}

static inline void gemm_tn(struct script_run *r, bool acc) {
    struct td_gemm_args a = {.kind = TD_GEMM_TN,
                             .a = in(r, r->s.t, r->s.f, 1),
                             .b = in(r, r->s.t, r->s.h, 1),
                             .acc = acc};
    a.c = out(r, r->s.f, r->s.h);
    r->be->ops->gemm(r->be, &a);
}

static inline void script_gemm_tn(struct script_run *r) {
    gemm_tn(r, false);
}

static inline void script_gemm_tn_acc(struct script_run *r) {
    gemm_tn(r, true);
}

static inline void script_bias_grad(struct script_run *r) {
    struct td_bias_grad_args a = {.dy = in(r, r->s.t, r->s.f, 1)};
    a.db = out(r, 1, r->s.f);
    r->be->ops->bias_grad(r->be, &a);
}

static inline void rope(struct script_run *r, bool inverse) {
    int64_t positions = 50;
    struct td_tensor tab = in(r, positions, r->s.d, 1);
    struct td_rope_args a = {.tab = &tab,
                             .pos = ints(r, r->s.t, positions, true),
                             .heads = (int)r->s.heads,
                             .head_dim = (int)r->s.d,
                             .inverse = inverse};
    a.x = out_tokens(r, r->s.heads * r->s.d + 3); // columns behind the heads stay
    r->be->ops->rope(r->be, &a);
}

static inline void script_rope(struct script_run *r) {
    rope(r, false);
}

static inline void script_rope_inverse(struct script_run *r) {
    rope(r, true);
}

// Three sequences, the second of one token, when there are enough tokens.
static inline int32_t *offsets(struct script_run *r, int *batch) {
    int32_t *cu = own(r, td_try_alloc_aligned(4 * sizeof *cu));
    int32_t t = (int32_t)r->s.t;
    *batch = t >= 4 ? 3 : 1;
    cu[1] = t >= 4 ? t / 3 : t;
    cu[2] = cu[1] + 1;
    cu[3] = t;
    return cu;
}

static inline struct td_attn_args attention(struct script_run *r) {
    struct td_attn_args a = {.heads = (int)r->s.heads,
                             .kv_heads = (int)r->s.k,
                             .head_dim = (int)r->s.d,
                             .scale = 1 / sqrt((double)r->s.d)};
    a.q = in(r, r->s.t, r->s.heads * r->s.d, 1.5);
    a.k = in(r, r->s.t, r->s.k * r->s.d, 1.5);
    a.v = in(r, r->s.t, r->s.k * r->s.d, 1);
    a.cu = offsets(r, &a.batch);
    a.o = out(r, r->s.t, r->s.heads * r->s.d);
    a.lse = out(r, r->s.t, r->s.heads);
    return a;
}

static inline void script_attn_fwd(struct script_run *r) {
    struct td_attn_args a = attention(r);
    r->be->ops->attn_fwd(r->be, &a);
}

static inline void script_attn_bwd(struct script_run *r) {
    struct td_attn_bwd_args a = {.fwd = attention(r)};
    a.d_o = in(r, r->s.t, r->s.heads * r->s.d, 1);
    a.dq = out(r, r->s.t, r->s.heads * r->s.d);
    a.dk = out(r, r->s.t, r->s.k * r->s.d);
    a.dv = out(r, r->s.t, r->s.k * r->s.d);
    r->be->ops->attn_fwd(r->be, &a.fwd);
    r->be->ops->attn_bwd(r->be, &a);
}

static inline void script_swiglu_fwd(struct script_run *r) {
    struct td_swiglu_args a = {.gu = in_tokens(r, 2 * r->s.f, 3)};
    a.y = out_tokens(r, r->s.f);
    r->be->ops->swiglu_fwd(r->be, &a);
}

static inline void script_swiglu_bwd(struct script_run *r) {
    struct td_swiglu_args a = {.gu = in_tokens(r, 2 * r->s.f, 3), .dy = in_tokens(r, r->s.f, 1)};
    a.dgu = out_tokens(r, 2 * r->s.f);
    a.y = out_tokens(r, r->s.f);
    r->be->ops->swiglu_bwd(r->be, &a);
}

static inline void script_axpby(struct script_run *r) {
    struct td_axpby_args a = {.x = in_tokens(r, r->s.h, 1), .alpha = 0.5, .beta = -1.25};
    a.y = out_tokens(r, r->s.h);
    r->be->ops->axpby(r->be, &a);
}

static inline void script_rows_gather(struct script_run *r) {
    struct td_rows_args a = {.x = in(r, 9, r->s.h, 1), .idx = ints(r, r->s.t, 9, true)};
    a.y = out_tokens(r, r->s.h);
    r->be->ops->rows_gather(r->be, &a);
}

static inline void script_rows_scatter_add(struct script_run *r) {
    struct td_rows_args a = {.y = in(r, r->s.t, r->s.h, 1), .idx = ints(r, r->s.t, 9, false)};
    a.x = out(r, 9, r->s.h);
    r->be->ops->rows_scatter_add(r->be, &a);
}

static inline struct td_logprob_args logprob(struct script_run *r) {
    struct td_logprob_args a = {.x = in_tokens(r, r->s.h, 1),
                                .w = in(r, r->s.v, r->s.h, 3 / sqrt((double)r->s.h)),
                                .target = ints(r, r->s.t, r->s.v, true),
                                .inv_temp = 1.25,
                                .chunk = 3};
    a.logp = out_tokens(r, 1);
    a.lse = out_tokens(r, 1);
    a.entropy = out_tokens(r, 1);
    return a;
}

static inline void script_logprob_fwd(struct script_run *r) {
    struct td_logprob_args a = logprob(r);
    r->be->ops->logprob_fwd(r->be, &a);
}

static inline void script_logprob_bwd(struct script_run *r) {
    struct td_logprob_bwd_args a = {.fwd = logprob(r)};
    a.dlogp = in_tokens(r, 1, 1);
    a.dentropy = in_tokens(r, 1, 1);
    a.dx = out_tokens(r, r->s.h);
    a.dw = r->only < 0 ? out(r, r->s.v, r->s.h) : in(r, r->s.v, r->s.h, 1);
    r->be->ops->logprob_fwd(r->be, &a.fwd);
    r->be->ops->logprob_bwd(r->be, &a);
}

static inline void script_sample(struct script_run *r) {
    struct td_tensor z = in_tokens(r, r->s.v, 3);
    struct td_tensor ids = out_tokens(r, 1), logp = out_tokens(r, 1);
    struct td_sample_row *rows = own(r, td_try_alloc_aligned((size_t)r->s.t * sizeof *rows));
    uint8_t *allowed = own(r, td_try_alloc_aligned((size_t)r->s.v));
    for (int64_t i = 0; i < r->s.v; i++) {
        allowed[i] = i % 5 != 2;
    }
    for (int64_t t = 0; t < r->s.t; t++) {
        rows[t] = (struct td_sample_row){.key = td_rng_next(&r->rng),
                                         .position = (uint32_t)t,
                                         .inv_temp = (float)(t % 4) * 0.75f,
                                         .top_k = t % 3 ? 0 : 9,
                                         .top_p = t % 5 ? 1 : 0.8f};
    }
    int32_t *id = own(r, td_try_alloc_aligned((size_t)r->s.t * sizeof *id));
    float *lp = own(r, td_try_alloc_aligned((size_t)r->s.t * sizeof *lp));
    struct td_sample_args a = {.z = z,
                               .row = rows + (r->only >= 0 ? r->only : 0),
                               .allowed = allowed,
                               .id = id,
                               .logp = lp};
    r->be->ops->sample(r->be, &a);
    for (int64_t t = 0; t < tokens(r); t++) {
        assert_true(allowed[id[t]]);
        put(r->be, ids.p, t * ids.ld, id[t]);
        put(r->be, logp.p, t * logp.ld, (double)lp[t]);
    }
}

static inline void script_sumsq(struct script_run *r) {
    double sum = 0.5;
    struct td_tensor y = out(r, 1, 1);
    struct td_sumsq_args a = {.g = in(r, 2, r->s.t * r->s.f + 4097, 1), .out = &sum};
    r->be->ops->sumsq(r->be, &a);
    put(r->be, y.p, 0, sum);
}

static inline void script_adamw(struct script_run *r) {
    int64_t n = r->s.t * r->s.f + 4100;
    struct td_adamw_args a = {.lr = 0.01,
                              .beta1 = 0.9,
                              .beta2 = 0.99,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .bc1 = 1 - 0.9 * 0.9,
                              .bc2 = 1 - 0.99 * 0.99,
                              .grad_scale = 0.5};
    a.g = in(r, 2, n, 1);
    a.p = out(r, 2, n);
    a.m = out(r, 2, n);
    a.v = out(r, 2, n);
    for (int64_t i = 0; i < 2 * a.v.ld; i++) {
        put(r->be, a.v.p, i, fabs(get(r->be, a.v.p, i)));
    }
    r->be->ops->adamw(r->be, &a);
}

struct script_row {
    const char *name;
    script run;
    double tolerance; // of cpu against ref, in units of the output's largest value
    bool per_token;   // a token's outputs depend on that token's inputs only
};

static const struct script_row scripts[] = {
    {"fill", script_fill, 0, true},
    {"embed_fwd", script_embed_fwd, 0, true},
    {"embed_bwd", script_embed_bwd, 1e-6, false},
    {"rmsnorm_fwd", script_rmsnorm_fwd, 1e-6, true},
    {"rmsnorm_bwd", script_rmsnorm_bwd, 2e-6, true},
    {"rmsnorm_bwd acc", script_rmsnorm_bwd_acc, 2e-6, true},
    {"gemm NT", script_gemm_nt, 3e-6, true},
    {"gemm NT bias", script_gemm_nt_bias, 3e-6, true},
    {"gemm NT prepared", script_gemm_nt_prepared, 3e-6, true},
    {"gemm NT acc", script_gemm_nt_acc, 3e-6, true},
    {"gemm NN", script_gemm_nn, 3e-6, true},
    {"gemm NN acc", script_gemm_nn_acc, 3e-6, true},
    {"gemm TN", script_gemm_tn, 3e-6, false},
    {"gemm TN acc", script_gemm_tn_acc, 3e-6, false},
    {"bias_grad", script_bias_grad, 2e-6, false},
    {"rope", script_rope, 1e-6, true},
    {"rope inverse", script_rope_inverse, 1e-6, true},
    {"attn_fwd", script_attn_fwd, 3e-6, false},
    {"attn_bwd", script_attn_bwd, 1e-5, false},
    {"swiglu_fwd", script_swiglu_fwd, 1e-6, true},
    {"swiglu_bwd", script_swiglu_bwd, 1e-6, true},
    {"axpby", script_axpby, 1e-6, true},
    {"rows_gather", script_rows_gather, 0, true},
    {"rows_scatter_add", script_rows_scatter_add, 1e-6, false},
    {"logprob_fwd", script_logprob_fwd, 5e-6, true},
    {"logprob_bwd", script_logprob_bwd, 2e-5, true},
    {"sample", script_sample, 1e-6, true},
    {"sumsq", script_sumsq, 1e-7, false},
    {"adamw", script_adamw, 1e-6, false},
};

static const struct shape shapes[] = {
    {.t = 1, .h = 48, .d = 12, .k = 2, .heads = 6, .f = 80, .v = 331},
    {.t = 7, .h = 48, .d = 12, .k = 2, .heads = 6, .f = 80, .v = 331},
    {.t = 35, .h = 64, .d = 16, .k = 1, .heads = 3, .f = 130, .v = 257},
    {.t = 13, .h = 450, .d = 80, .k = 3, .heads = 3, .f = 97, .v = 5003},
    {.t = 401, .h = 33, .d = 8, .k = 2, .heads = 4, .f = 40, .v = 40},
};

#endif
