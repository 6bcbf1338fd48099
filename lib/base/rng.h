// Random numbers: Philox4x32-10 for everything whose place is a key (sampling, initial weights,
// permutations), and a small sequential generator for tests and simulations.
#ifndef TD_BASE_RNG_H
#define TD_BASE_RNG_H

#include <stdint.h>

struct td_philox {
    uint32_t v[4];
};

// One block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011). key: 64 bits; counter: 128 bits as four words, least significant first. Pure.
struct td_philox td_philox4x32(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3);

// A 64-bit mix with full avalanche (the finalizer of splitmix64). Pure.
uint64_t td_mix64(uint64_t x);
// Folds value into hash: the order of calls matters. Pure.
uint64_t td_hash_u64(uint64_t hash, uint64_t value);

// The key of one sequence's sampling: design §3.3. Position and vocabulary block are the counter.
// purpose: 0 TRAIN, 1 EVAL.
uint64_t td_sampling_key(uint64_t job_seed, uint32_t purpose, uint64_t data_epoch, uint64_t index,
                         uint32_t sample, uint32_t sequence);

// Element i of the permutation of 0..n-1 keyed by (seed, data epoch): a Feistel walk, so that no
// table is kept. n ≥ 1, i < n. Pure.
uint64_t td_permute(uint64_t seed, uint64_t data_epoch, uint64_t n, uint64_t i);

// splitmix64: for tests and the simulator only.
struct td_rng {
    uint64_t state;
};
uint64_t td_rng_next(struct td_rng *rng);
// Uniform in 0..n-1, n ≥ 1.
uint32_t td_rng_below(struct td_rng *rng, uint32_t n);
// Uniform in [0,1).
double td_rng_unit(struct td_rng *rng);

#endif
