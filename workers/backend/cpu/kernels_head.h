// Kernels of the vocabulary: included by the isa_*.c files. Log-probabilities of training and of
// sampling come from the same kernel_row_stats.
#include "workers/backend/cpu/lanes.h"
#include "workers/backend/rules.h"

enum { STATS_BLOCK = 4096, DRAW_BLOCK = 64 };

static float row_max(const float *z, int64_t n, float inv_temp) {
    struct group max = group_dup(-INFINITY);
    for (int64_t i = 0; i < n; i += TD_GROUP) {
        struct group x = load_group_or(z + i, n - i, z[i]);
        for (int v = 0; v < TD_GROUP_VECS; v++) {
            max.v[v] = max_v(max.v[v], x.v[v] * dup(inv_temp));
        }
    }
    return fold_max(&max);
}

// Sums are kept per block of 4096 and added in order.
static struct td_row_stats kernel_row_stats(const float *z, int64_t vocab, float inv_temp) {
    float max = row_max(z, vocab, inv_temp), total = 0, weighted = 0;
    for (int64_t lo = 0; lo < vocab; lo += STATS_BLOCK) {
        int64_t hi = vocab - lo < STATS_BLOCK ? vocab : lo + STATS_BLOCK;
        struct group sum = group_dup(0), moment = group_dup(0);
        for (int64_t i = lo; i < hi; i += TD_GROUP) {
            struct group x = load_group_or(z + i, hi - i, -FLT_MAX);
            for (int v = 0; v < TD_GROUP_VECS; v++) {
                vf below = x.v[v] * dup(inv_temp) - dup(max);
                vf e = exp_v(below);
                sum.v[v] += e;
                moment.v[v] = fma_v(e, max_v(below, dup(-FLT_MAX)), moment.v[v]);
            }
        }
        total += fold_add(&sum);
        weighted += fold_add(&moment);
    }
    float log_total = log_v(dup(total))[0];
    return (struct td_row_stats){
        .max = max, .lse = max + log_total, .entropy = log_total - weighted / total};
}

static void kernel_logprob_dz(float *z, int64_t vocab, const struct td_dz *dz) {
    vf lse = dup(dz->lse), entropy = dup(dz->entropy), inv_temp = dup(dz->inv_temp);
    for (int64_t i = 0; i < vocab; i += TD_LANES) {
        int64_t left = vocab - i;
        vf below = load_some(z + i, left) * inv_temp - lse;
        vf slope = fma_v(dup(dz->dentropy), below + entropy, dup(dz->dlogp));
        store_some(z + i, -(exp_v(below) * slope) * inv_temp, left);
    }
    z[dz->target] += dz->dlogp * dz->inv_temp;
}

// The Gumbel number of each word: see td_gumbel_words. With v = (w + 1/2)·2⁻³², ln(1 − v) is taken
// from v itself where that is small, else from 1 − v, which is exact.
TD_INLINE vf gumbel_v(vi word) {
    vi low = word & dup_i(0xffff), high = (word >> 16) & dup_i(0xffff);
    vf scale = dup(0x1p-16f), half = dup(0.5f);
    vf v = fma_v(__builtin_convertvector(high, vf), scale,
                 (__builtin_convertvector(low, vf) + half) * dup(0x1p-32f));
    vf rest = fma_v(__builtin_convertvector(dup_i(0xffff) - high, vf), scale,
                    (__builtin_convertvector(dup_i(0xffff) - low, vf) + half) * dup(0x1p-32f));
    vf e, f;
    split(rest, &e, &f);
    vi small = v < dup(0.2929f);
    vf exponential = -log_core(select_v(small, dup(0), e), select_v(small, -v, f));
    return -log_v(exponential);
}

// Gumbel numbers of 64 tokens from 16 blocks of Philox4x32-10, side by side.
static void gumbels(const struct td_sample_row *row, uint32_t block, float *out) {
    uint32_t c0[TD_GROUP], c1[TD_GROUP], c2[TD_GROUP], c3[TD_GROUP];
    for (uint32_t i = 0; i < TD_GROUP; i++) {
        c0[i] = block + i;
        c1[i] = row->position;
        c2[i] = c3[i] = 0;
    }
    uint32_t k0 = (uint32_t)row->key, k1 = (uint32_t)(row->key >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < TD_GROUP; i++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0[i], b = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)b;
            c3[i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    int32_t words[4 * TD_GROUP];
    for (int i = 0; i < TD_GROUP; i++) {
        words[4 * i] = (int32_t)c0[i];
        words[4 * i + 1] = (int32_t)c1[i];
        words[4 * i + 2] = (int32_t)c2[i];
        words[4 * i + 3] = (int32_t)c3[i];
    }
    for (int i = 0; i < 4 * TD_GROUP; i += TD_LANES) {
        vi w;
        memcpy(&w, words + i, sizeof w);
        store(out + i, gumbel_v(w));
    }
}

// Bits of floats as integers in the same order.
TD_INLINE vi ordered(vf x) {
    return (vi)x ^ (((vi)x >> 31) & dup_i(0x7fffffff));
}

static int64_t count_from(const float *w, int64_t n, int32_t least) {
    vi count = dup_i(0);
    for (int64_t i = 0; i < n; i += TD_LANES) {
        count -= ordered(load(w + i)) >= dup_i(least);
    }
    int64_t total = 0;
    for (int i = 0; i < TD_LANES; i++) {
        total += count[i];
    }
    return total;
}

static float sum_from(const float *e, int64_t n, int32_t least) {
    float total = 0;
    for (int64_t lo = 0; lo < n; lo += STATS_BLOCK) {
        int64_t hi = n - lo < STATS_BLOCK ? n : lo + STATS_BLOCK;
        struct group sum = group_dup(0);
        for (int64_t i = lo; i < hi; i += TD_GROUP) {
            for (int v = 0; v < TD_GROUP_VECS; v++) {
                vf x = load(e + i + v * TD_LANES);
                sum.v[v] += select_v((vi)x >= dup_i(least), x, dup(0));
            }
        }
        total += fold_add(&sum);
    }
    return total;
}

// w below the k-th largest becomes −∞; its equals stay.
static void keep_top_k(float *w, int64_t n, int32_t k) {
    int64_t lo = INT32_MIN, hi = (int64_t)INT32_MAX + 1; // count(lo) ≥ k > count(hi)
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        *(count_from(w, n, (int32_t)mid) >= k ? &lo : &hi) = mid;
    }
    for (int64_t i = 0; i < n; i += TD_LANES) {
        vf x = load(w + i);
        store(w + i, select_v(ordered(x) >= dup_i((int32_t)lo), x, dup(-INFINITY)));
    }
}

// Keeps the likeliest tokens that together reach share p of what w holds; equals of the last stay.
static void keep_top_p(float *w, float *e, int64_t n, float p) {
    vf max = dup(row_max(w, n, 1.0f));
    for (int64_t i = 0; i < n; i += TD_LANES) {
        store(e + i, exp_v(load(w + i) - max));
    }
    float need = p * sum_from(e, n, 0);
    int64_t lo = 0, hi = 0x3f800001; // bits of e: sum(lo) ≥ need; the largest e is 1
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        *(sum_from(e, n, (int32_t)mid) >= need ? &lo : &hi) = mid;
    }
    for (int64_t i = 0; i < n; i += TD_LANES) {
        vi keep = (vi)load(e + i) >= dup_i((int32_t)lo);
        store(w + i, select_v(keep, load(w + i), dup(-INFINITY)));
    }
}

struct best {
    float value;
    int64_t id;
};

static void best_of_block(const struct td_sample_row *row, const float *w, int64_t at,
                          struct best *best) {
    float g[DRAW_BLOCK];
    gumbels(row, (uint32_t)(at / 4), g);
    for (int i = 0; i < DRAW_BLOCK; i++) {
        float value = w[at + i] + g[i];
        if (value > best->value || (value == best->value && at + i < best->id)) {
            *best = (struct best){.value = value, .id = at + i};
        }
    }
}

static int64_t argmax(const float *w, int64_t n, int64_t none) {
    float max = row_max(w, n, 1.0f);
    for (int64_t i = 0; i < n && max > -INFINITY; i++) {
        if (w[i] == max) {
            return i;
        }
    }
    return none;
}

// Blocks that could not win with the largest Gumbel number there is (33·ln 2) are passed over.
static int64_t gumbel_argmax(const struct td_sample_row *row, const float *w, int64_t n,
                             int64_t start) {
    struct best best = {.value = -INFINITY, .id = start};
    best_of_block(row, w, start / DRAW_BLOCK * DRAW_BLOCK, &best);
    for (int64_t at = 0; at < n; at += DRAW_BLOCK) {
        if (row_max(w + at, DRAW_BLOCK, 1.0f) + 22.9f >= best.value) {
            best_of_block(row, w, at, &best);
        }
    }
    return best.id;
}

// w = z / T of open tokens, −∞ of others and of the padding.
static void fill_open(const struct td_draw *d, float *w, int64_t n, float inv_temp) {
    const float *z = d->z;
    const uint8_t *allowed = d->allowed;
    for (int64_t i = 0; i < d->vocab; i += TD_LANES) {
        store_some(w + i, load_some(z + i, d->vocab - i) * dup(inv_temp), d->vocab - i);
    }
    for (int64_t i = 0; allowed && i < d->vocab; i++) {
        w[i] = allowed[i] ? w[i] : -INFINITY;
    }
    for (int64_t i = d->vocab; i < n; i++) {
        w[i] = -INFINITY;
    }
}

static int64_t first_open(const struct td_draw *d) {
    for (int64_t i = 0; i < d->vocab; i++) {
        if (!d->allowed || d->allowed[i]) {
            return i;
        }
    }
    return -1;
}

static int32_t kernel_draw(const struct td_draw *d) {
    int64_t n = td_draw_stride(d->vocab);
    bool greedy = !(d->row->inv_temp > 0);
    float *w = d->scratch;
    fill_open(d, w, n, greedy ? 1.0f : d->row->inv_temp);
    int64_t top = argmax(w, n, first_open(d));
    if (top < 0 || greedy) {
        return (int32_t)top;
    }
    if (d->row->top_k > 0 && d->row->top_k < d->vocab) {
        keep_top_k(w, n, d->row->top_k);
    }
    if (d->row->top_p < 1) {
        keep_top_p(w, w + n, n, d->row->top_p);
    }
    return (int32_t)gumbel_argmax(d->row, w, n, top);
}
