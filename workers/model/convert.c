// 16-bit floating formats: see convert.h. Pure.
#include "workers/model/convert.h"

#include <string.h>

#include "lib/base/check.h"

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 0) { // subnormal: mantissa · 2^-24
        return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
    }
    uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return float_of(sign | wide << 23 | mantissa << 13);
}

// bits >> shift, rounded to nearest even; the carry may run into the exponent, as it should.
static uint32_t shift_even(uint32_t bits, int shift) {
    uint32_t half = 1u << (shift - 1), odd = bits >> shift & 1;
    return (bits + half - 1 + odd) >> shift;
}

static uint16_t to_f16(float x) {
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x7f800000) {
        return (uint16_t)(sign | 0x7c00 | (magnitude > 0x7f800000 ? 0x200 : 0));
    }
    if (magnitude >= 0x477ff000) { // 65520 and more round to infinity
        return (uint16_t)(sign | 0x7c00);
    }
    if (magnitude >= 0x38800000) { // 2^-14 and more: normal
        return (uint16_t)(sign | shift_even(magnitude - (112u << 23), 13));
    }
    if (magnitude < 0x33000000) { // below 2^-25
        return (uint16_t)sign;
    }
    int shift = 126 - (int)(magnitude >> 23);
    return (uint16_t)(sign | shift_even((magnitude & 0x7fffff) | 0x800000, shift));
}

static uint16_t to_bf16(float x) {
    uint32_t bits = bits_of(x);
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : shift_even(bits, 16));
}

void td_convert_to_f32(enum td_dtype dtype, const void *in, int64_t n, float *out) {
    if (dtype == TD_F32) {
        memmove(out, in, (size_t)n * sizeof *out);
        return;
    }
    td_assert(dtype == TD_BF16 || dtype == TD_F16);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)in + 2 * i, sizeof half);
        out[i] = dtype == TD_BF16 ? float_of((uint32_t)half << 16) : from_f16(half);
    }
}

int64_t td_convert_from_f32(enum td_dtype dtype, const float *in, int64_t n, void *out) {
    td_assert(dtype == TD_F32 || dtype == TD_BF16 || dtype == TD_F16);
    int64_t bad = -1;
    uint16_t infinite = dtype == TD_BF16 ? 0x7f80 : 0x7c00;
    for (int64_t i = n - 1; i >= 0; i--) {
        if (dtype == TD_F32) {
            memcpy((char *)out + 4 * i, &in[i], sizeof *in);
            bad = (bits_of(in[i]) & 0x7f800000) == 0x7f800000 ? i : bad;
        } else {
            uint16_t half = dtype == TD_BF16 ? to_bf16(in[i]) : to_f16(in[i]);
            memcpy((char *)out + 2 * i, &half, sizeof half);
            bad = (half & infinite) == infinite ? i : bad;
        }
    }
    return bad;
}
