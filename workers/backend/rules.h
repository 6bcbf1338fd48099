// Arithmetic on which all backends must agree to the bit.
#ifndef TD_WORKERS_BACKEND_RULES_H
#define TD_WORKERS_BACKEND_RULES_H

#include <stdint.h>

#include "lib/base/rng.h"

// The mix of td_digest_args: one element's share of a digest. The finalizer of splitmix64 over a
// combination of place and bits; inline so that it can be vectorized.
static inline uint64_t td_digest_mix(uint64_t name, uint64_t index, uint64_t bits) {
    uint64_t x = (name + (index + 1) * 0x9E3779B97F4A7C15u) ^ bits * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// The random block for tokens 4·block .. 4·block + 3 at a position; word i belongs to token i.
// A word w stands for the uniform number v = (w + 1/2)·2⁻³² and the Gumbel number
// −log(−log(1 − v)): its upper tail, which decides, keeps full relative precision.
static inline struct td_philox td_gumbel_words(uint64_t key, uint32_t position, uint32_t block) {
    return td_philox4x32(key, block, position, 0, 0);
}

#endif
