// The kernels of the cpu backend: one table per instruction set, all built from the same source
// (kernels_*.h over lanes.h) and so equal in every bit. Kernels are pure functions on a range; who
// calls them cuts the work and owns scratch memory.
#ifndef TD_WORKERS_BACKEND_CPU_KERNELS_H
#define TD_WORKERS_BACKEND_CPU_KERNELS_H

#include <stdint.h>

#include "workers/backend/backend.h"

// C[m,n] from panels of B: panel j holds columns j*panel .. as rows of b_row floats; panels are
// b_step apart. A's element (i,k) is a[i*a_row + k], or lies in tiles (pack_tiles). Chains
// start from C when acc, else from 0.
struct td_gemm_block {
    const float *a, *b, *bias; // bias: added at the end, or NULL
    float *c;
    int64_t a_row, b_row, b_step, ldc;
    int64_t m, n, k;
    bool acc, a_tiled;
};

// Copies B(k, n) = from[k*row + n*col], row or col being 1, to panels [k][panel], zero-padded, step
// apart.
struct td_pack_block {
    const float *from;
    float *to;
    int64_t row, col, step;
    int64_t k, n;
};

// Scores: s[i*lds + j] = scale · q_i·k_j. Rows are d floats, d a multiple of 16 (padded by zeros).
struct td_attn_block {
    const float *q, *k; // also: rows dO and V
    float *s;
    int64_t ldq, ldk, lds;
    int64_t rows, keys;
    int d;
    float scale;
};

// Weighted sums: y_i[d] += Σ_j s[i*s_row + j*s_col] · x_j, j ascending over terms + i·grow of them.
struct td_mix_block {
    const float *s, *x;
    float *y;
    int64_t s_row, s_col, ldx, ldy;
    int64_t rows, terms, grow;
    int d;
};

struct td_attn_ds { // one query row of attention's backward pass
    float *s, *dp;
    int64_t n;
    float lse, delta, scale;
};

struct td_row_stats { // of zt = z·inv_temp over the vocabulary
    float max, lse, entropy;
};

struct td_dz { // of one row of logprob_bwd
    float inv_temp, lse, entropy, dlogp, dentropy;
    int32_t target;
};

struct td_draw { // one row of sample
    const float *z;
    const uint8_t *allowed;
    int64_t vocab;
    const struct td_sample_row *row;
    float *scratch; // 2 × td_draw_stride(vocab)
};

static inline int64_t td_draw_stride(int64_t vocab) {
    return (vocab + 63) / 64 * 64;
}

typedef void (*td_range_fn)(const void *args, int64_t lo, int64_t hi);

struct td_kernels {
    const char *name;
    int panel; // of gemm: columns
    void (*gemm)(const struct td_gemm_block *g);
    void (*pack)(const struct td_pack_block *p);
    // A(i, k) = from[k*row + i*col] to the tiles that gemm walks for p->n rows.
    void (*pack_tiles)(const struct td_pack_block *p);
    // Each takes the op's public arguments (add_rows: td_add_rows) and a range of rows, or of
    // columns where marked.
    td_range_fn rmsnorm_fwd, rmsnorm_bwd_dx, rmsnorm_bwd_dw /* columns */, bias_grad /* columns */,
        add_rows /* columns */, rope, swiglu_fwd, swiglu_bwd, axpby, adamw;
    void (*scores)(const struct td_attn_block *b);
    void (*mix)(const struct td_mix_block *b);
    // s[0..n) becomes exp(s − max); gives the inverse of their sum, and the lse. s has room for
    // whole groups of 16, and they are overwritten.
    float (*softmax)(float *s, int64_t n, float *lse);
    // p = exp(s − lse) in place of s; ds = p·(dp − delta)·scale in place of dp.
    void (*attn_ds)(const struct td_attn_ds *a);
    void (*scale)(float *y, const float *x, int64_t n, float by); // y = by·x; may be the same
    float (*dot)(const float *x, const float *y, int64_t n);
    struct td_row_stats (*row_stats)(const float *z, int64_t vocab, float inv_temp);
    void (*logprob_dz)(float *z, int64_t vocab, const struct td_dz *dz); // logits become dz
    int32_t (*draw)(const struct td_draw *d);
    double (*sumsq)(const float *g, int64_t n);
    uint64_t (*digest)(const float *x, int64_t n, uint64_t name, uint64_t index);
};

// dst[idx[i], :] += src[i, :], i ascending.
struct td_add_rows {
    struct td_tensor dst, src;
    const int32_t *idx;
};

// NULL where the compiler's target has no such instructions.
const struct td_kernels *td_kernels_scalar(void);
const struct td_kernels *td_kernels_avx2(void);
const struct td_kernels *td_kernels_avx512(void);

#endif
