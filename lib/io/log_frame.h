// The bytes of a file log: file headers, record frames, marks. Little-endian. Pure.
#ifndef TD_IO_LOG_FRAME_H
#define TD_IO_LOG_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

enum {
    TD_LOG_HEADER_BYTES = 64, // of each file of the log
    TD_FRAME_BYTES = 32,      // before each record
    TD_MARK_BYTES = 8,
};

enum td_log_file_type { TD_LOG_FILE_ROOT = 1, TD_LOG_FILE_MARKS, TD_LOG_FILE_SEGMENT };

struct td_log_header {
    enum td_log_file_type type;
    uint64_t id;
    uint32_t partition;  // MARKS, SEGMENT
    uint32_t partitions; // ROOT
    int64_t base;        // SEGMENT: offset of its first record
};

void td_log_header_encode(const struct td_log_header *header, uint8_t bytes[TD_LOG_HEADER_BYTES]);
// TD_ECORRUPT: no such header, or its checksum is wrong; TD_EUNSUPPORTED: another format.
enum td_rc td_log_header_decode(const uint8_t bytes[TD_LOG_HEADER_BYTES],
                                struct td_log_header *header, struct td_err *err) TD_MUST_CHECK;

struct td_frame {
    uint64_t id; // of the log
    int64_t offset;
    uint32_t length, crc; // of the record's bytes
};

void td_frame_encode(const struct td_frame *frame, uint8_t bytes[TD_FRAME_BYTES]);
// Whether bytes are the frame of a record of log id.
bool td_frame_decode(const uint8_t bytes[TD_FRAME_BYTES], uint64_t id, struct td_frame *frame);
// The place of the next bytes that look like the start of a frame, or n.
size_t td_frame_search(const uint8_t *bytes, size_t n);

// A mark is an offset below 2^40 and 24 bits of checksum in one word, so that a reader sees the old
// or the new one, or knows that it saw neither.
uint64_t td_mark_encode(uint64_t id, uint32_t partition, uint32_t which, int64_t offset);
bool td_mark_decode(uint64_t word, uint64_t id, uint32_t partition, uint32_t which,
                    int64_t *offset);

#endif
