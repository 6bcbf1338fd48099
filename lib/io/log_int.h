// What the kinds of the record log give to log.c: blocking functions. log.c makes them
// asynchronous: with `threaded`, on one thread of the log's own (a stalled disk or lock must not
// hold up other work); else in a later turn of the loop.
#ifndef TD_IO_LOG_INT_H
#define TD_IO_LOG_INT_H

#include "lib/io/log.h"

enum td_log_op_type { TD_LOG_OP_APPEND, TD_LOG_OP_BOUNDS, TD_LOG_OP_TRIM };

struct td_log_op {
    struct td_log_op *next;
    enum td_log_op_type type;
    uint32_t partition;
    // append
    uint8_t *bytes; // owned
    size_t n;
    bool roll;
    td_log_append_fn *on_append;
    // trim
    int64_t below;
    td_log_done_fn *on_trim;
    td_log_bounds_fn *on_bounds;
    void *user;
    // results; outcome starts as FAILED, rc as TD_OK
    enum td_log_outcome outcome;
    int64_t offset, start, end;
    uint32_t crc;
    enum td_rc rc;
    struct td_err err;
};

struct td_log_item {
    size_t at, n; // in bytes of the batch
    uint32_t crc;
};

struct td_log_batch { // records first … first + count − 1
    int64_t first;
    bool gap;     // `from` was out of range: first is the start
    bool damaged; // with TD_ECORRUPT: it concerns record first only
    struct td_buf bytes;
    struct td_log_item *items;
    size_t count, cap;
    enum td_rc rc; // not OK: no records
    struct td_err err;
};

enum { TD_LOG_BATCH_RECORDS = 256, TD_LOG_BATCH_BYTES = 1 << 20 };

struct td_log_kind {
    bool threaded;
    // Does the operations in order and sets their results. Log thread.
    void (*execute)(void *backend, struct td_log_op *first);
    // Reads records at `from` (or TD_LOG_FROM_START) up to the limits of a batch, at least one if
    // there is one. Log thread.
    void (*fetch)(void *backend, uint32_t partition, int64_t from, struct td_log_batch *batch);
    // Whether there is a record at offset, by a quick look. Loop thread. NULL: nobody else appends.
    bool (*reaches)(void *backend, uint32_t partition, int64_t offset);
    // An eventfd that is written when `reaches` may answer otherwise than before; NULL: none, the
    // log looks now and then.
    int (*wake_fd)(void *backend);
    enum td_rc (*read_one)(void *backend, uint32_t partition, int64_t offset, uint32_t crc,
                           struct td_buf *out, struct td_err *err);
    pid_t (*waits_for)(void *backend);
    void (*stop)(void *backend); // end waits for locks and servers; loop thread
    void (*end)(void *backend);  // log thread, the last call but free: what takes its time. NULL
    void (*free)(void *backend);
};

// backend_take is consumed, also on failure.
struct td_log_base {
    const struct td_log_kind *kind;
    void *backend_take;
    uint64_t id;
    uint32_t partitions;
};
enum td_rc td_log_new(struct td_loop *loop, const struct td_log_base *base, struct td_log **out,
                      struct td_err *err) TD_MUST_CHECK;
void *td_log_backend(struct td_log *log);
// Adds the record whose n bytes were just written behind the others.
void td_log_batch_add(struct td_log_batch *batch, size_t n, uint32_t crc);

#endif
