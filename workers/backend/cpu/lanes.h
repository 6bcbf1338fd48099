// Vectors of TD_LANES floats, the one thing that differs between the builds of the kernels. Every
// operation rounds each lane as IEEE 754 says, so a lane's bits do not depend on the width.
// Reductions run over 16 partial chains in every build: lane l takes elements l, l+16, ...; then
// lanes l and l+8, l and l+4, l and l+2, l and l+1 are added.
#ifndef TD_WORKERS_BACKEND_CPU_LANES_H
#define TD_WORKERS_BACKEND_CPU_LANES_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if TD_LANES > 4
#include <immintrin.h>
#endif

#define TD_INLINE static inline __attribute__((always_inline, unused))

enum { TD_GROUP = 16, TD_GROUP_VECS = TD_GROUP / TD_LANES };

typedef float vf __attribute__((vector_size(4 * TD_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * TD_LANES)));
typedef float vf_unaligned __attribute__((vector_size(4 * TD_LANES), aligned(4), may_alias));
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef float v4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

struct group { // 16 lanes
    vf v[TD_GROUP_VECS];
};

TD_INLINE vf load(const float *p) {
    return *(const vf_unaligned *)p;
}

TD_INLINE void store(float *p, vf x) {
    *(vf_unaligned *)p = x;
}

#if TD_LANES == 16
TD_INLINE vf fma_v(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
TD_INLINE vf dup(float x) {
    return (vf)_mm512_set1_ps(x);
}
TD_INLINE vf sqrt_v(vf x) {
    return (vf)_mm512_sqrt_ps((__m512)x);
}
TD_INLINE vf load_n(const float *p, int64_t n) { // the first n < TD_LANES; zero beyond
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
TD_INLINE void store_n(float *p, vf x, int64_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
}
TD_INLINE v4 quarter(const struct group *g, int i) { // lanes 4i .. 4i+3
    __m512 x = (__m512)g->v[0];
    return (v4)(i == 0   ? _mm512_extractf32x4_ps(x, 0)
                : i == 1 ? _mm512_extractf32x4_ps(x, 1)
                : i == 2 ? _mm512_extractf32x4_ps(x, 2)
                         : _mm512_extractf32x4_ps(x, 3));
}
#else
#if TD_LANES == 8
TD_INLINE vf fma_v(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
TD_INLINE vf dup(float x) {
    return (vf)_mm256_set1_ps(x);
}
TD_INLINE vf sqrt_v(vf x) {
    return (vf)_mm256_sqrt_ps((__m256)x);
}
TD_INLINE v4 quarter(const struct group *g, int i) {
    __m256 x = (__m256)g->v[i / 2];
    return (v4)(i % 2 ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x));
}
#else
TD_INLINE vf fma_v(vf a, vf b, vf c) {
    for (int i = 0; i < TD_LANES; i++) {
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    }
    return c;
}
TD_INLINE vf dup(float x) {
    return (vf){x, x, x, x};
}
TD_INLINE vf sqrt_v(vf x) {
    for (int i = 0; i < TD_LANES; i++) {
        x[i] = sqrtf(x[i]);
    }
    return x;
}
TD_INLINE v4 quarter(const struct group *g, int i) {
    return g->v[i];
}
#endif
TD_INLINE vf load_n(const float *p, int64_t n) {
    float t[TD_LANES] = {0};
    memcpy(t, p, (size_t)n * sizeof *t);
    return load(t);
}
TD_INLINE void store_n(float *p, vf x, int64_t n) {
    memcpy(p, &x, (size_t)n * sizeof *p);
}
#endif

TD_INLINE vf load_some(const float *p, int64_t n) {
    return n >= TD_LANES ? load(p) : load_n(p, n);
}

TD_INLINE void store_some(float *p, vf x, int64_t n) {
    if (n >= TD_LANES) {
        store(p, x);
    } else {
        store_n(p, x, n);
    }
}

TD_INLINE vi dup_i(int32_t x) {
    vi v;
    for (int i = 0; i < TD_LANES; i++) {
        v[i] = x;
    }
    return v;
}

TD_INLINE vf select_v(vi mask, vf yes, vf no) { // mask lanes are 0 or −1
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

TD_INLINE vf max_v(vf a, vf b) { // b where a is not greater: NaN in b stays
    return select_v(a > b, a, b);
}

TD_INLINE struct group group_dup(float x) {
    struct group g;
    for (int i = 0; i < TD_GROUP_VECS; i++) {
        g.v[i] = dup(x);
    }
    return g;
}

TD_INLINE v4 fold(const struct group *g) {
    return (quarter(g, 0) + quarter(g, 2)) + (quarter(g, 1) + quarter(g, 3));
}

TD_INLINE float fold_add(const struct group *g) {
    v4 x = fold(g);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

TD_INLINE v4 max_v4(v4 a, v4 b) {
    v4i mask = a > b;
    return (v4)((mask & (v4i)a) | (~mask & (v4i)b));
}

TD_INLINE float fold_max(const struct group *g) {
    v4 x = max_v4(max_v4(quarter(g, 0), quarter(g, 2)), max_v4(quarter(g, 1), quarter(g, 3)));
    x = max_v4(x, __builtin_shufflevector(x, x, 2, 3, 0, 1));
    return max_v4(x, __builtin_shufflevector(x, x, 1, 0, 3, 2))[0];
}

// e to the x, 1 ulp. 0 below −87.3, infinity above 88.7, NaN stays.
TD_INLINE vf exp_v(vf x) {
    const vf magic = dup(0x1.8p23f);
    vf y = select_v(x > dup(89.0f), dup(89.0f), x);
    y = select_v(y < dup(-88.0f), dup(-88.0f), y);
    vf t = fma_v(y, dup(0x1.715476p0f), magic); // round(y / ln 2) in the low bits
    vf n = t - magic;
    vf r = fma_v(n, dup(-0.693359375f), y);
    r = fma_v(n, dup(0.00021219444f), r);
    vf p = fma_v(dup(0.0013814467f), r, dup(0.008368781f));
    p = fma_v(p, r, dup(0.041668393f));
    p = fma_v(p, r, dup(0.1666652f));
    p = fma_v(p, r, dup(0.49999994f));
    p = fma_v(p * r, r, r) + dup(1.0f);
    vi k = (vi)t - (vi)magic;
    vi half = k >> 1; // 2^k in two steps: 2^128 is no float
    p = p * (vf)((half + dup_i(127)) << 23) * (vf)((k - half + dup_i(127)) << 23);
    return select_v(x < dup(-87.3f), dup(0.0f), p);
}

// e·ln 2 + ln(1 + f) for f in [√½ − 1, √2 − 1], 1 ulp.
TD_INLINE vf log_core(vf e, vf f) {
    vf p = fma_v(dup(-0.07623294f), f, dup(0.12906605f));
    p = fma_v(p, f, dup(-0.13243459f));
    p = fma_v(p, f, dup(0.1418153f));
    p = fma_v(p, f, dup(-0.16608994f));
    p = fma_v(p, f, dup(0.20001987f));
    p = fma_v(p, f, dup(-0.25001585f));
    p = fma_v(p, f, dup(0.33333325f));
    p = fma_v(p, f, dup(-0.49999988f));
    p = fma_v(p * f, f, e * dup(-0.00021219444f)) + f;
    return fma_v(e, dup(0.693359375f), p);
}

// Splits normal positive x into 2^e · (1 + f).
TD_INLINE void split(vf x, vf *e, vf *f) {
    vi k = ((vi)x - dup_i(0x3f3504f3)) >> 23;
    *e = __builtin_convertvector(k, vf);
    *f = (vf)((vi)x - (k << 23)) - dup(1.0f);
}

// ln x for normal positive x; infinity and NaN stay.
TD_INLINE vf log_v(vf x) {
    vf e, f;
    split(x, &e, &f);
    return select_v(x < dup(INFINITY), log_core(e, f), x);
}

#endif
