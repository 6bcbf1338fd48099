// The record log: partitions of records at contiguous offsets from 0, each {offset, CRC-32C of its
// bytes, bytes}. Kinds: file (one machine, durable), memory (tests). Loop thread unless told
// otherwise; every callback runs on the loop, in a later turn than the call that asked for it.
// A record exists once it lies below the durable end; nobody may act on an append's outcome alone
// (docs/journal.md).
#ifndef TD_IO_LOG_H
#define TD_IO_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/buf.h"
#include "lib/io/loop.h"

struct td_log;
struct td_log_reader;

enum {
    TD_LOG_RECORD_BYTES_MAX = 64 << 20,
    TD_LOG_OUTSTANDING_MAX = 256,             // appends not yet answered
    TD_LOG_OUTSTANDING_BYTES_MAX = 256 << 20, // and their bytes
    TD_LOG_PARTITIONS_MAX = 64,
    TD_LOG_FROM_START = -1, // for td_log_read
};

enum td_log_outcome {
    TD_LOG_APPENDED,
    TD_LOG_FAILED,  // it is not in the log and will not be
    TD_LOG_UNKNOWN, // it may be in the log, now or later
};

struct td_log_result {
    enum td_log_outcome outcome;
    int64_t offset;           // APPENDED
    uint32_t crc;             // of the bytes
    const struct td_err *err; // why not; NULL when APPENDED
};
typedef void td_log_append_fn(void *user, const struct td_log_result *result);

struct td_log_append {
    uint32_t partition;
    const void *bytes; // copied
    size_t n;
    bool roll; // the record starts a segment (STATE)
    td_log_append_fn *done;
    void *user;
};

struct td_log_record {
    int64_t offset;
    uint32_t crc;
    const uint8_t *bytes; // borrowed for the call
    size_t n;
};

struct td_log_reader_fns {
    void (*record)(void *user, const struct td_log_record *record);
    // The next record wanted is below the start (trimmed) or beyond the end (another log's
    // position, or records lost): the reader goes on at start, its user drops what it knew.
    void (*gap)(void *user, int64_t start);
    // The record at offset is damaged: it is left out and the reader goes on behind it. NULL: that
    // is an error.
    void (*damaged)(void *user, int64_t offset, const struct td_err *err);
    // TD_ECORRUPT "... damaged at offset N", TD_EIO ...: the reader has stopped; close it.
    void (*error)(void *user, const struct td_err *err);
};

// rc: TD_OK, else err says why and the offsets mean nothing.
typedef void td_log_bounds_fn(void *user, enum td_rc rc, int64_t start, int64_t end,
                              const struct td_err *err);
typedef void td_log_done_fn(void *user, enum td_rc rc, const struct td_err *err);

uint64_t td_log_id(const struct td_log *log);
uint32_t td_log_partitions(const struct td_log *log);

// Appends a record. Appends are answered in order; those to one partition land in order, and after
// a failed one those already asked for may fail too. TD_ELIMIT: too long, or too many outstanding.
enum td_rc td_log_append(struct td_log *log, const struct td_log_append *append,
                         struct td_err *err) TD_MUST_CHECK;
// Reads from offset `from` (or TD_LOG_FROM_START: no gap is told) and goes on for ever: every
// record below the durable end, in order, once. A few MiB are read ahead; kafka: at most 16 and a
// record.
struct td_log_reader *td_log_read(struct td_log *log, uint32_t partition, int64_t from,
                                  const struct td_log_reader_fns *fns, void *user);
// While paused no callback is made. May be called within callbacks.
void td_log_reader_pause(struct td_log_reader *reader, bool paused);
// Offset of the next record that will be delivered; −1 before the start is known.
int64_t td_log_reader_next(const struct td_log_reader *reader);
void td_log_reader_close(struct td_log_reader *reader); // accepts NULL; no callback afterwards

// Start and durable end (the offset that the next record will get), as of now.
void td_log_bounds(struct td_log *log, uint32_t partition, td_log_bounds_fn *fn, void *user);
// Drops the records below `below`, which becomes the start. Lower than the start: nothing to do.
// TD_EINVAL: beyond the end.
void td_log_trim(struct td_log *log, uint32_t partition, int64_t below, td_log_done_fn *done,
                 void *user);
// Any thread, blocks on the disk: the bytes of the record at offset, replacing out. TD_ENOENT:
// trimmed, or not below the durable end; TD_ECORRUPT: damaged, or its CRC is not crc (the message
// has both).
enum td_rc td_log_read_one(struct td_log *log, uint32_t partition, int64_t offset, uint32_t crc,
                           struct td_buf *out, struct td_err *err) TD_MUST_CHECK;
// The process for whose lock the oldest append has been waiting, 0: none. For /status.
pid_t td_log_waits_for(const struct td_log *log);
// Nothing more is wanted of the log than to close it: what waits for servers or locks gives up
// soon, td_log_read_one, too (TD_ETIMEOUT), and appends may be answered UNKNOWN or FAILED. Accepts
// NULL.
void td_log_stop(struct td_log *log);
// Finishes what is outstanding, as after td_log_stop, frees the log and calls closed (may be NULL)
// on the loop. Close the readers before; td_log_read_one must not be running.
void td_log_close(struct td_log *log, td_loop_fn *closed, void *user); // accepts NULL

#endif
