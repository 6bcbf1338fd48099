// Random numbers: see rng.h. Pure functions.
#include "lib/base/rng.h"

#include "lib/base/check.h"

struct td_philox td_philox4x32(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct td_philox){{c0, c1, c2, c3}};
}

uint64_t td_mix64(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t td_hash_u64(uint64_t hash, uint64_t value) {
    return td_mix64(hash * 0x9E3779B97F4A7C15u + td_mix64(value + 0x632BE59BD9B4E019u));
}

uint64_t td_sampling_key(uint64_t job_seed, uint32_t purpose, uint64_t data_epoch, uint64_t index,
                         uint32_t sample, uint32_t sequence) {
    uint64_t h = td_hash_u64(0x74616E64656D2F31u, job_seed);
    h = td_hash_u64(h, purpose);
    h = td_hash_u64(h, data_epoch);
    h = td_hash_u64(h, index);
    return td_hash_u64(h, (uint64_t)sample << 32 | sequence);
}

uint64_t td_permute(uint64_t seed, uint64_t data_epoch, uint64_t n, uint64_t i) {
    td_assert(n >= 1 && i < n);
    unsigned half = 1;
    while (half < 32 && (uint64_t)1 << (2 * half) < n) {
        half++;
    }
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t key = td_hash_u64(td_hash_u64(0x7065726D75746531u, seed), data_epoch);
    uint64_t x = i;
    do { // cycle walking: the domain is less than four times n
        uint64_t l = x >> half, r = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = (l ^ td_hash_u64(key + round, r)) & mask;
            l = r;
            r = next;
        }
        x = l << half | r;
    } while (x >= n);
    return x;
}

uint64_t td_rng_next(struct td_rng *rng) {
    rng->state += 0x9E3779B97F4A7C15u;
    return td_mix64(rng->state);
}

uint32_t td_rng_below(struct td_rng *rng, uint32_t n) {
    td_assert_op(n, >=, 1);
    return (uint32_t)((td_rng_next(rng) >> 32) * n >> 32);
}

double td_rng_unit(struct td_rng *rng) {
    return (double)(td_rng_next(rng) >> 11) * 0x1p-53;
}
