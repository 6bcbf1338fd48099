// The record log: see log.h. Loop thread. Operations wait in one queue and go to the kind together,
// so that a fsync covers many appends; each reader has at most one fetch under way.
#include "lib/io/log.h"

#include <string.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/log_int.h"
#include "lib/io/workq.h"

enum {
    READERS_MAX = 64,
    RECORDS_PER_TURN = 64, // delivered by one reader before others get their turn
    BYTES_PER_TURN = 4 << 20,
    POLL_MS = 20, // how soon records of other processes are seen
};

struct td_log_reader {
    struct td_log *log;
    struct td_log_reader *next_reader;
    uint32_t partition;
    int64_t next;
    struct td_log_reader_fns fns;
    void *user;
    struct td_timer *turn;
    struct td_log_batch batch;
    size_t delivered; // of the batch
    uint64_t news;    // of the log when the batch was asked for
    // fetching: the batch belongs to the log's thread; idle: waits for a new record
    bool fetching, idle, delivering, paused, failed, closed;
};

struct td_log {
    struct td_log_base base;
    struct td_loop *loop;
    struct td_workq *workq; // NULL: not threaded
    struct td_timer *turn, *poll;
    struct td_watch *wake; // NULL: the kind has no wake_fd
    struct td_log_op *queued, **queued_tail, *running;
    size_t outstanding, outstanding_bytes;
    struct td_log_reader *readers;
    size_t reader_count;
    uint64_t news; // counts operations done: readers may have something to read
    bool closing, polling, ending, ended;
    td_loop_fn *on_closed;
    void *closed_user;
};

uint64_t td_log_id(const struct td_log *log) {
    return log->base.id;
}

uint32_t td_log_partitions(const struct td_log *log) {
    return log->base.partitions;
}

void *td_log_backend(struct td_log *log) {
    return log->base.backend_take;
}

pid_t td_log_waits_for(const struct td_log *log) {
    return log->base.kind->waits_for ? log->base.kind->waits_for(log->base.backend_take) : 0;
}

enum td_rc td_log_read_one(struct td_log *log, uint32_t partition, int64_t offset, uint32_t crc,
                           struct td_buf *out, struct td_err *err) {
    td_assert_op(partition, <, log->base.partitions);
    return log->base.kind->read_one(log->base.backend_take, partition, offset, crc, out, err);
}

void td_log_batch_add(struct td_log_batch *batch, size_t n, uint32_t crc) {
    TD_GROW(batch->items, batch->cap, batch->count + 1);
    batch->items[batch->count++] = (struct td_log_item){batch->bytes.len, n, crc};
    batch->bytes.len += n;
}

// ---- readers

static void close_if_done(struct td_log *log);

static void reader_destroy(struct td_log_reader *reader) {
    struct td_log *log = reader->log;
    struct td_log_reader **at = &log->readers;
    while (*at != reader) {
        at = &(*at)->next_reader;
    }
    *at = reader->next_reader;
    log->reader_count--;
    td_buf_fini(&reader->batch.bytes);
    td_free(reader->batch.items);
    td_free(reader);
    close_if_done(log);
}

static void fetch_run(void *user) {
    struct td_log_reader *reader = user;
    struct td_log *log = reader->log;
    log->base.kind->fetch(log->base.backend_take, reader->partition, reader->next, &reader->batch);
}

static void fetch_done(void *user) {
    struct td_log_reader *reader = user;
    reader->fetching = false;
    if (reader->closed) {
        reader_destroy(reader);
        return;
    }
    td_timer_start(reader->turn, 0);
}

static void poll_soon(struct td_log *log) {
    if (!log->polling && log->base.kind->reaches) {
        log->polling = true;
        td_timer_start(log->poll, POLL_MS);
    }
}

static void fetch(struct td_log_reader *reader) {
    struct td_log *log = reader->log;
    td_buf_clear(&reader->batch.bytes);
    reader->batch = (struct td_log_batch){
        .bytes = reader->batch.bytes, .items = reader->batch.items, .cap = reader->batch.cap};
    reader->delivered = 0;
    reader->news = log->news;
    reader->idle = false;
    reader->fetching = true;
    if (!log->workq) {
        fetch_run(reader);
        fetch_done(reader);
    } else {
        // One place for the operations and one for every reader: there is always room.
        bool fits = td_workq_submit(log->workq, fetch_run, fetch_done, reader);
        td_assert(fits);
    }
}

static bool may_deliver(const struct td_log_reader *reader) {
    return !reader->closed && !reader->paused && !reader->failed;
}

static void deliver_records(struct td_log_reader *reader) {
    size_t bytes = 0;
    const struct td_log_batch *batch = &reader->batch;
    for (int i = 0; i < RECORDS_PER_TURN && bytes < BYTES_PER_TURN; i++) {
        if (reader->delivered == batch->count || !may_deliver(reader)) {
            return;
        }
        const struct td_log_item *item = &batch->items[reader->delivered++];
        struct td_log_record record = {reader->next++, item->crc, batch->bytes.data + item->at,
                                       item->n};
        bytes += item->n;
        reader->fns.record(reader->user, &record);
    }
}

// What the fetch brought apart from records.
static void deliver_news(struct td_log_reader *reader) {
    struct td_log_batch *batch = &reader->batch;
    if (batch->rc == TD_ECORRUPT && batch->damaged && reader->fns.damaged) {
        batch->rc = TD_OK;
        reader->next = ++batch->first;
        reader->fns.damaged(reader->user, batch->first - 1, &batch->err);
        return;
    }
    if (batch->rc != TD_OK) {
        reader->failed = true;
        reader->fns.error(reader->user, &batch->err);
        return;
    }
    bool gap = batch->gap;
    reader->next = batch->first;
    batch->gap = false;
    if (gap) {
        reader->fns.gap(reader->user, batch->first);
    }
}

static void on_reader_turn(void *user) {
    struct td_log_reader *reader = user;
    if (!may_deliver(reader) || reader->fetching) {
        return;
    }
    reader->delivering = true;
    if (reader->delivered == 0) {
        deliver_news(reader);
    }
    bool some = reader->batch.count > 0 || reader->batch.damaged;
    deliver_records(reader);
    reader->delivering = false;
    if (reader->closed) {
        reader_destroy(reader);
    } else if (!may_deliver(reader)) {
        return; // td_log_reader_pause goes on
    } else if (reader->delivered < reader->batch.count) {
        td_timer_start(reader->turn, 0);
    } else if (some || reader->news != reader->log->news) {
        fetch(reader);
    } else {
        reader->idle = true;
        poll_soon(reader->log);
    }
}

static void wake_readers(struct td_log *log, bool by_look) {
    for (struct td_log_reader *r = log->readers; r; r = r->next_reader) {
        if (r->idle && !r->closed &&
            (!by_look || log->base.kind->reaches(log->base.backend_take, r->partition, r->next))) {
            fetch(r);
        }
    }
}

static void on_poll(void *user) {
    struct td_log *log = user;
    log->polling = false;
    wake_readers(log, true);
    for (struct td_log_reader *r = log->readers; r; r = r->next_reader) {
        if (r->idle) {
            poll_soon(log);
        }
    }
}

static void on_wake(void *user, int fd, unsigned events) {
    struct td_log *log = user;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
    (void)events;
    log->news++; // for those whose fetch came too early
    wake_readers(log, true);
}

struct td_log_reader *td_log_read(struct td_log *log, uint32_t partition, int64_t from,
                                  const struct td_log_reader_fns *fns, void *user) {
    td_loop_assert(log->loop);
    td_assert(!log->closing && from >= TD_LOG_FROM_START);
    td_assert_op(partition, <, log->base.partitions);
    td_assert_op(log->reader_count, <, READERS_MAX);
    struct td_log_reader *reader = td_alloc(sizeof *reader);
    *reader = (struct td_log_reader){.log = log,
                                     .next_reader = log->readers,
                                     .partition = partition,
                                     .next = from,
                                     .fns = *fns,
                                     .user = user,
                                     .idle = true};
    reader->turn = td_timer_new(log->loop, on_reader_turn, reader);
    log->readers = reader;
    log->reader_count++;
    fetch(reader);
    return reader;
}

void td_log_reader_pause(struct td_log_reader *reader, bool paused) {
    td_loop_assert(reader->log->loop);
    if (reader->paused && !paused && !reader->idle) {
        td_timer_start(reader->turn, 0);
    }
    reader->paused = paused;
}

int64_t td_log_reader_next(const struct td_log_reader *reader) {
    return reader->next;
}

void td_log_reader_close(struct td_log_reader *reader) {
    if (!reader) {
        return;
    }
    td_loop_assert(reader->log->loop);
    td_timer_close(reader->turn);
    reader->turn = NULL;
    reader->closed = true;
    reader->idle = false;
    if (!reader->fetching && !reader->delivering) {
        reader_destroy(reader);
    }
}

// ---- operations

static void answer(struct td_log_op *op) {
    const struct td_err *err = op->rc == TD_OK ? NULL : &op->err;
    if (op->type == TD_LOG_OP_APPEND) {
        struct td_log_result result = {op->outcome, op->offset, op->crc, err};
        op->on_append(op->user, &result);
    } else if (op->type == TD_LOG_OP_BOUNDS) {
        op->on_bounds(op->user, op->rc, op->start, op->end, err);
    } else if (op->on_trim) {
        op->on_trim(op->user, op->rc, err);
    }
}

static void ops_run(void *user) {
    struct td_log *log = user;
    log->base.kind->execute(log->base.backend_take, log->running);
}

static void ops_start(struct td_log *log);

static void ops_done(void *user) {
    struct td_log *log = user;
    struct td_log_op *op = log->running;
    log->news++;
    wake_readers(log, false);
    while (op) {
        struct td_log_op *next = op->next;
        if (op->type == TD_LOG_OP_APPEND) {
            log->outstanding--;
            log->outstanding_bytes -= op->n;
        }
        answer(op);
        td_free(op->bytes);
        td_free(op);
        op = next;
    }
    log->running = NULL;
    ops_start(log);
    close_if_done(log);
}

static void ops_start(struct td_log *log) {
    if (log->running || !log->queued) {
        return;
    }
    if (!log->workq) {
        td_timer_start(log->turn, 0);
        return;
    }
    log->running = log->queued;
    log->queued = NULL;
    log->queued_tail = &log->queued;
    bool fits = td_workq_submit(log->workq, ops_run, ops_done, log);
    td_assert(fits);
}

static void end_run(void *user) {
    struct td_log *log = user;
    log->base.kind->end(log->base.backend_take);
}

static void end_done(void *user) {
    struct td_log *log = user;
    log->ended = true;
    close_if_done(log);
}

static void finish_close(struct td_log *log) {
    if (log->base.kind->end && !log->ended) {
        if (!log->ending) {
            log->ending = td_workq_submit(log->workq, end_run, end_done, log);
            td_assert(log->ending);
        }
        return;
    }
    td_workq_free(log->workq);
    log->base.kind->free(log->base.backend_take);
    td_timer_close(log->turn);
    td_timer_close(log->poll);
    td_loop_fn *closed = log->on_closed;
    void *user = log->closed_user;
    td_free(log);
    if (closed) {
        closed(user);
    }
}

static void on_turn(void *user) {
    struct td_log *log = user;
    if (log->queued && !log->workq) {
        log->running = log->queued;
        log->queued = NULL;
        log->queued_tail = &log->queued;
        ops_run(log);
        ops_done(log);
    } else if (log->closing && !log->running && !log->queued && log->reader_count == 0) {
        finish_close(log);
    }
}

static void close_if_done(struct td_log *log) {
    if (log->closing && !log->running && !log->queued && log->reader_count == 0) {
        td_timer_start(log->turn, 0); // a later turn: the work queue cannot end within its callback
    }
}

static struct td_log_op *enqueue(struct td_log *log, enum td_log_op_type type, uint32_t partition,
                                 void *user) {
    td_loop_assert(log->loop);
    td_assert(!log->closing);
    td_assert_op(partition, <, log->base.partitions);
    struct td_log_op *op = td_alloc(sizeof *op);
    op->type = type;
    op->partition = partition;
    op->user = user;
    op->outcome = TD_LOG_FAILED;
    *log->queued_tail = op;
    log->queued_tail = &op->next;
    return op;
}

enum td_rc td_log_append(struct td_log *log, const struct td_log_append *append,
                         struct td_err *err) {
    if (append->n > TD_LOG_RECORD_BYTES_MAX) {
        return td_fail(err, TD_ELIMIT, "a record of %zu bytes; the limit is %d", append->n,
                       TD_LOG_RECORD_BYTES_MAX);
    }
    if (log->outstanding == TD_LOG_OUTSTANDING_MAX ||
        log->outstanding_bytes + append->n > TD_LOG_OUTSTANDING_BYTES_MAX) {
        return td_fail(err, TD_ELIMIT, "%zu records (%zu bytes) wait for the log", log->outstanding,
                       log->outstanding_bytes);
    }
    struct td_log_op *op = enqueue(log, TD_LOG_OP_APPEND, append->partition, append->user);
    op->bytes = td_memdup(append->bytes, append->n);
    op->n = append->n;
    op->roll = append->roll;
    op->on_append = append->done;
    log->outstanding++;
    log->outstanding_bytes += append->n;
    ops_start(log);
    return TD_OK;
}

void td_log_bounds(struct td_log *log, uint32_t partition, td_log_bounds_fn *fn, void *user) {
    enqueue(log, TD_LOG_OP_BOUNDS, partition, user)->on_bounds = fn;
    ops_start(log);
}

void td_log_trim(struct td_log *log, uint32_t partition, int64_t below, td_log_done_fn *done,
                 void *user) {
    struct td_log_op *op = enqueue(log, TD_LOG_OP_TRIM, partition, user);
    op->below = below;
    op->on_trim = done;
    ops_start(log);
}

// ---- life

// What can fail.
static enum td_rc start(struct td_log *log, struct td_err *err) {
    const struct td_log_kind *kind = log->base.kind;
    enum td_rc rc = TD_OK;
    td_assert(kind->threaded || !kind->end);
    if (kind->threaded) {
        rc = td_workq_new(log->loop, "log", 1, READERS_MAX + 1, &log->workq, err);
    }
    if (rc == TD_OK && kind->wake_fd) {
        rc = td_watch_fd(log->loop, kind->wake_fd(log->base.backend_take), TD_LOOP_READ, on_wake,
                         log, &log->wake);
        rc = rc == TD_OK ? rc : td_fail(err, rc, "cannot watch for news of a log");
    }
    return rc;
}

enum td_rc td_log_new(struct td_loop *loop, const struct td_log_base *base, struct td_log **out,
                      struct td_err *err) {
    struct td_log *log = td_alloc(sizeof *log);
    log->base = *base;
    log->loop = loop;
    log->queued_tail = &log->queued;
    enum td_rc rc = start(log, err);
    if (rc != TD_OK) {
        td_workq_free(log->workq);
        if (base->kind->end) {
            base->kind->end(base->backend_take);
        }
        base->kind->free(base->backend_take);
        td_free(log);
        return rc;
    }
    log->turn = td_timer_new(loop, on_turn, log);
    log->poll = td_timer_new(loop, on_poll, log);
    *out = log;
    return TD_OK;
}

void td_log_stop(struct td_log *log) {
    if (log && log->base.kind->stop) {
        td_loop_assert(log->loop);
        log->base.kind->stop(log->base.backend_take);
    }
}

void td_log_close(struct td_log *log, td_loop_fn *closed, void *user) {
    if (!log) {
        return;
    }
    td_loop_assert(log->loop);
    for (struct td_log_reader *r = log->readers; r; r = r->next_reader) {
        td_assert(r->closed);
    }
    td_timer_stop(log->poll);
    td_watch_close(log->wake);
    log->wake = NULL;
    log->on_closed = closed;
    log->closed_user = user;
    log->closing = true;
    td_log_stop(log);
    close_if_done(log);
}
