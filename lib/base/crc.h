// CRC-32C (Castagnoli), as in RFC 3720, and a 64-bit digest of byte streams.
#ifndef TD_BASE_CRC_H
#define TD_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

// Continues crc over n bytes; start with 0. crc32c("123456789") = 0xE3069283. Pure, any thread.
uint32_t td_crc32c(uint32_t crc, const void *bytes, size_t n);

// The same without special instructions: what td_crc32c does on machines that lack them.
uint32_t td_crc32c_portable(uint32_t crc, const void *bytes, size_t n);

// A 64-bit digest of n bytes, for comparing files and parts of them; not cryptographic.
// Continues from hash, so that td_digest64(td_digest64(0, a), b) depends on the cut; start with 0.
uint64_t td_digest64(uint64_t hash, const void *bytes, size_t n);

#endif
