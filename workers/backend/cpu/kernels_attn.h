// Kernels of attention: included by the isa_*.c files. A score is a sum over the 16 chains of
// lanes.h; a weighted sum is one chain over the keys. So neither depends on the tile around it.
#include "workers/backend/cpu/lanes.h"

#if TD_LANES == 16
enum { SCORE_ROWS = 4, MIX_ROWS = 4 };
#elif TD_LANES == 8
enum { SCORE_ROWS = 1, MIX_ROWS = 2 };
#else
enum { SCORE_ROWS = 1, MIX_ROWS = 1 };
#endif
enum { SCORE_KEYS = 4, MIX_VECS = 4 };

// (x0 + x2) + (x1 + x3) of four vectors at once.
TD_INLINE v4 fold4(v4 a, v4 b, v4 c, v4 d) {
    v4 ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
    v4 cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
    return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) +
           __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

#if TD_LANES == 16
// The folds of four vectors, one in each quarter: lanes l and l+8, then l and l+4.
TD_INLINE vf fold_quarters(const struct group *g) {
    __m512 a = (__m512)g[0].v[0], b = (__m512)g[1].v[0];
    __m512 c = (__m512)g[2].v[0], d = (__m512)g[3].v[0];
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return (vf)_mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),
                             _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// fold4 in each quarter: 4 keys of 4 rows.
TD_INLINE void store_16(const struct td_attn_block *b, float *s,
                        struct group sum[SCORE_ROWS][SCORE_KEYS]) {
    __m512 q0 = (__m512)fold_quarters(sum[0]), q1 = (__m512)fold_quarters(sum[1]);
    __m512 q2 = (__m512)fold_quarters(sum[2]), q3 = (__m512)fold_quarters(sum[3]);
    __m512 x01 = _mm512_add_ps(_mm512_shuffle_ps(q0, q1, 0x44), _mm512_shuffle_ps(q0, q1, 0xee));
    __m512 x23 = _mm512_add_ps(_mm512_shuffle_ps(q2, q3, 0x44), _mm512_shuffle_ps(q2, q3, 0xee));
    __m512 x = _mm512_add_ps(_mm512_shuffle_ps(x01, x23, 0x88), _mm512_shuffle_ps(x01, x23, 0xdd));
    const __m512i by_row = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    x = _mm512_mul_ps(_mm512_permutexvar_ps(by_row, x), _mm512_set1_ps(b->scale));
    _mm_storeu_ps(s, _mm512_extractf32x4_ps(x, 0));
    _mm_storeu_ps(s + b->lds, _mm512_extractf32x4_ps(x, 1));
    _mm_storeu_ps(s + 2 * b->lds, _mm512_extractf32x4_ps(x, 2));
    _mm_storeu_ps(s + 3 * b->lds, _mm512_extractf32x4_ps(x, 3));
}
#endif

TD_INLINE void store_scores(const struct td_attn_block *b, int64_t row, int64_t key, int rows,
                            int keys, struct group sum[SCORE_ROWS][SCORE_KEYS]) {
#if TD_LANES == 16
    if (rows == 4 && keys == 4) {
        store_16(b, b->s + row * b->lds + key, sum);
        return;
    }
#endif
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float *s = b->s + (row + r) * b->lds + key;
        if (keys == SCORE_KEYS) {
            v4 x = fold4(fold(&sum[r][0]), fold(&sum[r][1]), fold(&sum[r][2]), fold(&sum[r][3]));
            *(v4_unaligned *)s = x * (v4){b->scale, b->scale, b->scale, b->scale};
        } else {
            s[0] = fold_add(&sum[r][0]) * b->scale;
        }
    }
}

TD_INLINE void score_tile(const struct td_attn_block *b, int64_t row, int64_t key, int rows,
                          int keys) {
    struct group sum[SCORE_ROWS][SCORE_KEYS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < keys; j++) {
            sum[r][j] = group_dup(0);
        }
    }
    const float *q = b->q + row * b->ldq, *k = b->k + key * b->ldk;
    for (int c = 0; c < b->d; c += TD_GROUP) {
#pragma GCC unroll 4
        for (int v = 0; v < TD_GROUP_VECS; v++) {
            int at = c + v * TD_LANES;
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                vf x = load(q + r * b->ldq + at);
#pragma GCC unroll 4
                for (int j = 0; j < keys; j++) {
                    sum[r][j].v[v] = fma_v(x, load(k + j * b->ldk + at), sum[r][j].v[v]);
                }
            }
        }
    }
    store_scores(b, row, key, rows, keys, sum);
}

TD_INLINE void score_rows(const struct td_attn_block *b, int64_t row, int rows) {
    int64_t j = 0;
    for (; j + SCORE_KEYS <= b->keys; j += SCORE_KEYS) {
        score_tile(b, row, j, rows, SCORE_KEYS);
    }
    for (; j < b->keys; j++) {
        score_tile(b, row, j, rows, 1);
    }
}

static void kernel_scores(const struct td_attn_block *b) {
    int64_t i = 0;
    for (; i + SCORE_ROWS <= b->rows; i += SCORE_ROWS) {
        score_rows(b, i, SCORE_ROWS);
    }
    for (; i < b->rows; i++) {
        score_rows(b, i, 1);
    }
}

TD_INLINE void mix_tile(const struct td_mix_block *b, int64_t row, int col, int rows, int vecs) {
    vf sum[MIX_ROWS][MIX_VECS];
    float *y = b->y + row * b->ldy + col;
    const float *s = b->s + row * b->s_row, *x = b->x + col;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            sum[r][v] = load(y + r * b->ldy + v * TD_LANES);
        }
    }
    int64_t terms = b->terms + row * b->grow;
    for (int64_t j = 0; j < terms; j++, s += b->s_col, x += b->ldx) {
        vf value[MIX_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            value[v] = load(x + v * TD_LANES);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf w = dup(s[r * b->s_row]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) {
                sum[r][v] = fma_v(w, value[v], sum[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 1; r < rows; r++) { // terms that only the later rows have
        for (int64_t j = 0; j < r * b->grow; j++) {
            vf w = dup(s[r * b->s_row + j * b->s_col]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) {
                sum[r][v] = fma_v(w, load(x + j * b->ldx + v * TD_LANES), sum[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            store(y + r * b->ldy + v * TD_LANES, sum[r][v]);
        }
    }
}

TD_INLINE void mix_rows(const struct td_mix_block *b, int64_t row, int rows) {
    int c = 0;
    for (; c + MIX_VECS * TD_LANES <= b->d; c += MIX_VECS * TD_LANES) {
        mix_tile(b, row, c, rows, MIX_VECS);
    }
    for (; c < b->d; c += TD_LANES) {
        mix_tile(b, row, c, rows, 1);
    }
}

static void kernel_mix(const struct td_mix_block *b) {
    int64_t i = 0;
    for (; i + MIX_ROWS <= b->rows; i += MIX_ROWS) {
        mix_rows(b, i, MIX_ROWS);
    }
    for (; i < b->rows; i++) {
        mix_rows(b, i, 1);
    }
}

static float kernel_softmax(float *s, int64_t n, float *lse) {
    int64_t end = (n + TD_GROUP - 1) / TD_GROUP * TD_GROUP;
    for (int64_t j = n; j < end; j++) {
        s[j] = -INFINITY;
    }
    struct group max = group_dup(-INFINITY), sum = group_dup(0);
    for (int64_t j = 0; j < end; j += TD_GROUP) {
        for (int v = 0; v < TD_GROUP_VECS; v++) {
            max.v[v] = max_v(max.v[v], load(s + j + v * TD_LANES));
        }
    }
    float top = fold_max(&max);
    for (int64_t j = 0; j < end; j += TD_GROUP) {
        for (int v = 0; v < TD_GROUP_VECS; v++) {
            vf e = exp_v(load(s + j + v * TD_LANES) - dup(top));
            sum.v[v] += e;
            store(s + j + v * TD_LANES, e);
        }
    }
    float total = fold_add(&sum);
    *lse = top + log_v(dup(total))[0];
    return 1.0f / total;
}

static void kernel_scale(float *y, const float *x, int64_t n, float by) {
    for (int64_t c = 0; c < n; c += TD_LANES) {
        store_some(y + c, load_some(x + c, n - c) * dup(by), n - c);
    }
}

static void kernel_attn_ds(const struct td_attn_ds *a) {
    for (int64_t j = 0; j < a->n; j += TD_LANES) {
        int64_t left = a->n - j;
        vf p = exp_v(load_some(a->s + j, left) - dup(a->lse));
        vf ds = p * (load_some(a->dp + j, left) - dup(a->delta)) * dup(a->scale);
        store_some(a->s + j, p, left);
        store_some(a->dp + j, ds, left);
    }
}
