// The bytes of a file log: see log_frame.h.
#include "lib/io/log_frame.h"

#include <endian.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/io/log.h"

static const char header_magic[8] = "tandemlg";
enum { FORMAT = 1, FRAME_MAGIC = 0x31726474 /* tdr1 */, CRC_AT = TD_LOG_HEADER_BYTES - 4 };

static void put32(uint8_t *to, uint32_t value) {
    value = htole32(value);
    memcpy(to, &value, sizeof value);
}

static void put64(uint8_t *to, uint64_t value) {
    value = htole64(value);
    memcpy(to, &value, sizeof value);
}

static uint32_t get32(const uint8_t *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return le32toh(value);
}

static uint64_t get64(const uint8_t *from) {
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return le64toh(value);
}

void td_log_header_encode(const struct td_log_header *header, uint8_t bytes[TD_LOG_HEADER_BYTES]) {
    memset(bytes, 0, TD_LOG_HEADER_BYTES);
    memcpy(bytes, header_magic, sizeof header_magic);
    put32(bytes + 8, FORMAT);
    put32(bytes + 12, header->type);
    put64(bytes + 16, header->id);
    put32(bytes + 24, header->partition);
    put32(bytes + 28, header->partitions);
    put64(bytes + 32, (uint64_t)header->base);
    put32(bytes + CRC_AT, td_crc32c(0, bytes, CRC_AT));
}

enum td_rc td_log_header_decode(const uint8_t bytes[TD_LOG_HEADER_BYTES],
                                struct td_log_header *header, struct td_err *err) {
    if (memcmp(bytes, header_magic, sizeof header_magic) != 0) {
        return td_fail(err, TD_ECORRUPT, "not a file of a record log");
    }
    uint32_t crc = td_crc32c(0, bytes, CRC_AT), stored = get32(bytes + CRC_AT);
    if (crc != stored) {
        return td_fail(err, TD_ECORRUPT, "header has CRC %08x, expected %08x", crc, stored);
    }
    if (get32(bytes + 8) != FORMAT) {
        return td_fail(err, TD_EUNSUPPORTED, "format %u; this program reads format %d",
                       get32(bytes + 8), FORMAT);
    }
    *header = (struct td_log_header){
        .type = get32(bytes + 12),
        .id = get64(bytes + 16),
        .partition = get32(bytes + 24),
        .partitions = get32(bytes + 28),
        .base = (int64_t)get64(bytes + 32),
    };
    return TD_OK;
}

void td_frame_encode(const struct td_frame *frame, uint8_t bytes[TD_FRAME_BYTES]) {
    put32(bytes, FRAME_MAGIC);
    put32(bytes + 4, frame->length);
    put64(bytes + 8, frame->id);
    put64(bytes + 16, (uint64_t)frame->offset);
    put32(bytes + 24, frame->crc);
    put32(bytes + 28, td_crc32c(0, bytes, 28));
}

bool td_frame_decode(const uint8_t bytes[TD_FRAME_BYTES], uint64_t id, struct td_frame *frame) {
    if (get32(bytes) != FRAME_MAGIC || get32(bytes + 28) != td_crc32c(0, bytes, 28)) {
        return false;
    }
    *frame = (struct td_frame){.length = get32(bytes + 4),
                               .id = get64(bytes + 8),
                               .offset = (int64_t)get64(bytes + 16),
                               .crc = get32(bytes + 24)};
    return frame->id == id && frame->offset >= 0 && frame->length <= TD_LOG_RECORD_BYTES_MAX;
}

size_t td_frame_search(const uint8_t *bytes, size_t n) {
    uint8_t magic[4];
    put32(magic, FRAME_MAGIC);
    const uint8_t *found = n ? memmem(bytes, n, magic, sizeof magic) : NULL;
    return found ? (size_t)(found - bytes) : n;
}

enum { MARK_BITS = 40 };

uint64_t td_mark_encode(uint64_t id, uint32_t partition, uint32_t which, int64_t offset) {
    td_assert(offset >= 0 && offset < (int64_t)1 << MARK_BITS);
    uint8_t bytes[24];
    put64(bytes, id);
    put32(bytes + 8, partition);
    put32(bytes + 12, which);
    put64(bytes + 16, (uint64_t)offset);
    uint32_t crc = td_crc32c(0, bytes, sizeof bytes);
    return htole64((uint64_t)(crc ^ crc >> 24) << MARK_BITS | (uint64_t)offset);
}

bool td_mark_decode(uint64_t word, uint64_t id, uint32_t partition, uint32_t which,
                    int64_t *offset) {
    int64_t value = (int64_t)(le64toh(word) & (((uint64_t)1 << MARK_BITS) - 1));
    if (td_mark_encode(id, partition, which, value) != word) {
        return false;
    }
    *offset = value;
    return true;
}
