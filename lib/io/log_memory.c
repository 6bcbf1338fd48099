// The memory kind of the record log: see log_memory.h. The mutex is for td_log_read_one, which any
// thread may call.
#include "lib/io/log_memory.h"

#include <pthread.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/io/log_int.h"

struct record {
    uint8_t *bytes; // owned; NULL once trimmed
    size_t n;
    uint32_t crc;
};

struct partition {
    struct record *records; // by offset
    size_t count, cap;
    int64_t start;
};

struct memory {
    pthread_mutex_t mutex;
    struct partition *partitions;
    uint32_t partition_count;
    bool injected, landed; // loop thread
    enum td_log_outcome outcome;
    bool outage; // guarded by the mutex
};

static enum td_rc no_answer(struct td_err *err) {
    return td_fail(err, TD_ETIMEOUT, "no answer");
}

static void append(struct memory *memory, struct td_log_op *op) {
    struct partition *part = &memory->partitions[op->partition];
    bool injected = memory->injected;
    memory->injected = false;
    op->crc = td_crc32c(0, op->bytes, op->n);
    if (!injected || memory->landed) {
        TD_GROW(part->records, part->cap, part->count + 1);
        part->records[part->count++] = (struct record){op->bytes, op->n, op->crc};
        op->bytes = NULL;
    }
    if (injected) {
        op->outcome = memory->outcome;
        op->rc = td_fail(&op->err, TD_ETIMEOUT, "injected");
    } else {
        op->outcome = TD_LOG_APPENDED;
        op->offset = (int64_t)part->count - 1;
    }
}

static void trim(struct partition *part, struct td_log_op *op) {
    if (op->below > (int64_t)part->count) {
        op->rc = td_fail(&op->err, TD_EINVAL, "trim below %lld, but the log ends at %zu",
                         (long long)op->below, part->count);
        return;
    }
    for (; part->start < op->below; part->start++) {
        td_free(part->records[part->start].bytes);
        part->records[part->start].bytes = NULL;
    }
}

static void execute(void *backend, struct td_log_op *op) {
    struct memory *memory = backend;
    pthread_mutex_lock(&memory->mutex);
    for (; op; op = op->next) {
        struct partition *part = &memory->partitions[op->partition];
        if (memory->outage) {
            op->outcome = TD_LOG_UNKNOWN;
            op->rc = no_answer(&op->err);
        } else if (op->type == TD_LOG_OP_APPEND) {
            append(memory, op);
        } else if (op->type == TD_LOG_OP_TRIM) {
            trim(part, op);
        } else {
            op->start = part->start;
            op->end = (int64_t)part->count;
        }
    }
    pthread_mutex_unlock(&memory->mutex);
}

static void fetch(void *backend, uint32_t partition, int64_t from, struct td_log_batch *batch) {
    struct memory *memory = backend;
    struct partition *part = &memory->partitions[partition];
    pthread_mutex_lock(&memory->mutex);
    if (memory->outage) {
        batch->first = from;
        pthread_mutex_unlock(&memory->mutex);
        return;
    }
    batch->gap = from != TD_LOG_FROM_START && (from < part->start || from > (int64_t)part->count);
    batch->first = batch->gap || from == TD_LOG_FROM_START ? part->start : from;
    for (int64_t i = batch->first; i < (int64_t)part->count; i++) {
        if (batch->count == TD_LOG_BATCH_RECORDS || batch->bytes.len >= TD_LOG_BATCH_BYTES) {
            break;
        }
        const struct record *record = &part->records[i];
        uint8_t *to = td_buf_room(&batch->bytes, record->n);
        memcpy(to, record->bytes, record->n);
        td_log_batch_add(batch, record->n, record->crc);
    }
    pthread_mutex_unlock(&memory->mutex);
}

static enum td_rc read_one(void *backend, uint32_t partition, int64_t offset, uint32_t crc,
                           struct td_buf *out, struct td_err *err) {
    struct memory *memory = backend;
    struct partition *part = &memory->partitions[partition];
    enum td_rc rc = TD_OK;
    pthread_mutex_lock(&memory->mutex);
    if (memory->outage) {
        rc = no_answer(err);
    } else if (offset < part->start || offset >= (int64_t)part->count) {
        rc = td_fail(err, TD_ENOENT, "no record at offset %lld", (long long)offset);
    } else if (part->records[offset].crc != crc) {
        rc = td_fail(err, TD_ECORRUPT, "offset %lld has CRC %08x, expected %08x", (long long)offset,
                     part->records[offset].crc, crc);
    } else {
        td_buf_clear(out);
        td_buf_put(out, part->records[offset].bytes, part->records[offset].n);
    }
    pthread_mutex_unlock(&memory->mutex);
    return rc;
}

static void free_backend(void *backend) {
    struct memory *memory = backend;
    for (uint32_t p = 0; p < memory->partition_count; p++) {
        for (size_t i = 0; i < memory->partitions[p].count; i++) {
            td_free(memory->partitions[p].records[i].bytes);
        }
        td_free(memory->partitions[p].records);
    }
    td_free(memory->partitions);
    pthread_mutex_destroy(&memory->mutex);
    td_free(memory);
}

static const struct td_log_kind memory_kind = {
    .execute = execute, .fetch = fetch, .read_one = read_one, .free = free_backend};

struct td_log *td_log_memory_new(struct td_loop *loop, uint64_t id, uint32_t partitions) {
    td_assert(partitions >= 1 && partitions <= TD_LOG_PARTITIONS_MAX);
    struct memory *memory = td_alloc(sizeof *memory);
    memory->partitions = td_alloc_array(partitions, sizeof *memory->partitions);
    memory->partition_count = partitions;
    pthread_mutex_init(&memory->mutex, NULL);
    struct td_log *log = NULL;
    enum td_rc rc =
        td_log_new(loop, &(struct td_log_base){&memory_kind, memory, id, partitions}, &log, NULL);
    td_assert_op(rc, ==, TD_OK); // nothing but a thread can fail
    return log;
}

void td_log_memory_inject(struct td_log *log, enum td_log_outcome outcome, bool landed) {
    struct memory *memory = td_log_backend(log);
    td_assert(outcome != TD_LOG_APPENDED && (!landed || outcome == TD_LOG_UNKNOWN));
    memory->injected = true;
    memory->outcome = outcome;
    memory->landed = landed;
}

void td_log_memory_set_outage(struct td_log *log, bool outage) {
    struct memory *memory = td_log_backend(log);
    pthread_mutex_lock(&memory->mutex);
    memory->outage = outage;
    pthread_mutex_unlock(&memory->mutex);
}
