// CRC-32C and a byte digest: see crc.h.
#include "lib/base/crc.h"

#include <stdbool.h>
#include <string.h>

#include "lib/base/rng.h"

#define B8(x, n) ((n)&1 ? 0x82F63B78u ^ ((x) >> 1) : (x) >> 1)

static uint32_t crc_soft(uint32_t crc, const uint8_t *p, size_t n) {
    // Sixteen entries, one per nibble: small enough to build on the stack for every call.
    uint32_t table[16];
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t x = i;
        for (int k = 0; k < 4; k++) {
            x = B8(x, x);
        }
        table[i] = x;
    }
    for (size_t i = 0; i < n; i++) {
        crc = table[(crc ^ p[i]) & 15] ^ crc >> 4;
        crc = table[(crc ^ p[i] >> 4) & 15] ^ crc >> 4;
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_hard(uint32_t crc, const uint8_t *p,
                                                           size_t n) {
    uint64_t c = crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    uint32_t c32 = (uint32_t)c;
    for (; n; n--, p++) {
        c32 = __builtin_ia32_crc32qi(c32, *p);
    }
    return c32;
}
#endif

uint32_t td_crc32c_portable(uint32_t crc, const void *bytes, size_t n) {
    return ~crc_soft(~crc, bytes, n);
}

uint32_t td_crc32c(uint32_t crc, const void *bytes, size_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        return ~crc_hard(~crc, bytes, n);
    }
#endif
    return td_crc32c_portable(crc, bytes, n);
}

uint64_t td_digest64(uint64_t hash, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    hash = td_hash_u64(hash, n);
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = td_hash_u64(hash, word);
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < n; i++) {
        tail |= (uint64_t)p[i] << (8 * i);
    }
    return td_hash_u64(hash, tail);
}
