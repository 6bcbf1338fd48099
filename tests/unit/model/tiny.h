// Tiny models of odd shapes for tests: all sizes distinct, no powers of two, so that swapped
// strides and shapes show.
#ifndef TD_TESTS_UNIT_MODEL_TINY_H
#define TD_TESTS_UNIT_MODEL_TINY_H

#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"
#include "workers/model/model.h"
#include "workers/model/transfer.h"

struct tiny_case {
    const char *name;
    int heads, kv_heads;
    bool tied, bias, scaled;
};

static const struct tiny_case tiny_cases[] = {
    {"llama gqa untied", 6, 2, false, false, false}, {"llama3 rope tied", 6, 3, true, false, true},
    {"qwen2 bias tied", 6, 2, true, true, false},    {"one kv head", 6, 1, false, true, false},
    {"all kv heads", 6, 6, false, false, false},
};
enum { TINY_CASES = sizeof tiny_cases / sizeof *tiny_cases };

static inline struct td_model_config tiny_config(const struct tiny_case *t) {
    struct td_model_config c = {.vocab_size = 83,
                                .hidden_size = 44,
                                .intermediate_size = 52,
                                .layers = 2,
                                .heads = t->heads,
                                .kv_heads = t->kv_heads,
                                .head_dim = 10,
                                .max_positions = 64,
                                .rms_norm_eps = 1e-5,
                                .rope_theta = 500,
                                .initializer_range = 0.15,
                                .tied = t->tied,
                                .qkv_bias = t->bias};
    if (t->scaled) {
        c.rope.factor = 4;
        c.rope.low_freq_factor = 1;
        c.rope.high_freq_factor = 4;
        c.rope.original_max_positions = 32;
    }
    return c;
}

// Random weights in which norms and biases are no constants either.
static inline void tiny_fill(struct td_model *m, struct td_weights *w, uint64_t seed) {
    struct td_rng rng = {seed};
    td_weights_random(m, w, seed);
    for (int i = 0; i < td_model_param_count(m); i++) {
        const struct td_param *p = td_model_param(m, i);
        for (int64_t k = 0; p->rows == 1 && k < p->cols; k++) {
            double base = strstr(p->name, "norm") ? 1 : 0,
                   x = base + 0.4 * (td_rng_unit(&rng) - 0.5);
            td_transfer_put_f64(td_model_backend(m),
                                td_transfer_at(td_model_backend(m), w->flat.p, p->offset + k), &x,
                                1);
        }
    }
}

enum { TINY_TOKENS = 26, TINY_SEQUENCES = 4 };

// Four sequences of 7, 1, 13 and 5 tokens.
struct tiny_batch {
    int32_t ids[TINY_TOKENS], pos[TINY_TOKENS], cu[TINY_SEQUENCES + 1];
    int32_t rows[TINY_TOKENS], target[TINY_TOKENS];
    int32_t n; // every token but the last of each sequence predicts the next
};

static inline void tiny_batch_fill(struct tiny_batch *b, int32_t vocab, uint64_t seed) {
    static const int32_t lengths[TINY_SEQUENCES] = {7, 1, 13, 5};
    struct td_rng rng = {seed};
    int32_t t = 0;
    b->n = 0;
    b->cu[0] = 0;
    for (int s = 0; s < TINY_SEQUENCES; s++) {
        for (int32_t i = 0; i < lengths[s]; i++, t++) {
            b->ids[t] = (int32_t)td_rng_below(&rng, (uint32_t)vocab);
            b->pos[t] = i;
            if (i > 0) {
                b->rows[b->n] = t - 1;
                b->target[b->n++] = b->ids[t];
            }
        }
        b->cu[s + 1] = t;
    }
}

static inline struct td_packed tiny_packed(const struct tiny_batch *b) {
    return (struct td_packed){
        .tokens = TINY_TOKENS, .batch = TINY_SEQUENCES, .ids = b->ids, .pos = b->pos, .cu = b->cu};
}

#endif
