// Reading one partition of a Kafka log: see log_kafka_int.h. librdkafka fetches on threads of its
// own into the tail's queue; here the queue is looked through, and nothing waits for a broker. A
// tail stands at one place: readers of one partition at different places take turns with it.
#include <endian.h>
#include <errno.h>
#include <librdkafka/rdkafka.h>
#include <poll.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/io/log_kafka_int.h"

enum {
    MARK_FORMAT = 1,
    TURN_MS =
        1000, // for so long a place just taken is left to its reader, until it brings something
    LOST_MS = 1000, // between attempts after an error
};

static const char mark_name[] = "tandem";

// ---- the mark: format, CRC-32C of the record, log id; little-endian

void td_kafka_mark_encode(uint64_t id, uint32_t crc, uint8_t bytes[TD_KAFKA_MARK_BYTES]) {
    uint32_t words[2] = {htole32(MARK_FORMAT), htole32(crc)};
    id = htole64(id);
    memcpy(bytes, words, sizeof words);
    memcpy(bytes + sizeof words, &id, sizeof id);
}

static enum td_rc check_message(const struct td_kafka_tail *tail, const rd_kafka_message_t *message,
                                uint32_t *crc, struct td_err *err) {
    rd_kafka_headers_t *headers = NULL;
    const void *mark = NULL;
    size_t n = 0;
    if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        rd_kafka_header_get_last(headers, mark_name, &mark, &n) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        n != TD_KAFKA_MARK_BYTES) {
        return td_fail(err, TD_ECORRUPT, "it was not written by Tandem");
    }
    uint32_t words[2];
    uint64_t id;
    memcpy(words, mark, sizeof words);
    memcpy(&id, (const uint8_t *)mark + sizeof words, sizeof id);
    *crc = td_crc32c(0, message->payload, message->len);
    if (le32toh(words[0]) != MARK_FORMAT) {
        return td_fail(err, TD_ECORRUPT, "format %u; this program reads format %d",
                       le32toh(words[0]), MARK_FORMAT);
    }
    if (le64toh(id) != tail->id) {
        return td_fail(err, TD_ECORRUPT, "it belongs to log %016llx, this is %016llx",
                       (unsigned long long)le64toh(id), (unsigned long long)tail->id);
    }
    return *crc == le32toh(words[1])
               ? TD_OK
               : td_fail(err, TD_ECORRUPT, "the record has CRC %08x, expected %08x", *crc,
                         le32toh(words[1]));
}

// ---- the place

void td_kafka_tail_init(struct td_kafka_tail *tail, int wake_fd) {
    static const uint64_t one = 1;
    tail->queue = rd_kafka_queue_new(tail->client->rk);
    if (wake_fd >= 0) {
        rd_kafka_queue_io_event_enable(tail->queue, wake_fd, &one, sizeof one);
    }
}

static void drain(struct td_kafka_tail *tail) {
    rd_kafka_message_t *message;
    while ((message = rd_kafka_consume_queue(tail->queue, 0))) {
        rd_kafka_message_destroy(message);
    }
}

static void stop(struct td_kafka_tail *tail) {
    if (tail->started) {
        rd_kafka_consume_stop(tail->topic, (int32_t)tail->partition);
        drain(tail);
        tail->started = false;
    }
}

void td_kafka_tail_fini(struct td_kafka_tail *tail) {
    stop(tail);
    if (tail->queue) {
        rd_kafka_queue_io_event_enable(tail->queue, -1, NULL, 0);
        rd_kafka_queue_destroy(tail->queue);
    }
}

// Sets the tail to a place: what its queue brings next is the record at `at`, or, when that is out
// of range or TD_LOG_FROM_START, the first record there is.
static void set_to(struct td_kafka_tail *tail, int64_t at, bool resets) {
    stop(tail);
    int64_t from = resets || at < 0 ? RD_KAFKA_OFFSET_BEGINNING : at;
    tail->started =
        rd_kafka_consume_start_queue(tail->topic, (int32_t)tail->partition, from, tail->queue) == 0;
    tail->resets = resets;
    tail->ended = false;
    atomic_store(&tail->at, at);
    atomic_store(&tail->moved_ms, td_clock_ms());
    atomic_store(&tail->lost, !tail->started);
}

static bool is_left_alone(const struct td_kafka_tail *tail) {
    int64_t moved = atomic_load(&tail->moved_ms);
    int64_t wait = atomic_load(&tail->lost) ? LOST_MS : TURN_MS;
    return moved != 0 && td_clock_ms() - moved < wait;
}

bool td_kafka_tail_reaches(const struct td_kafka_tail *tail, int64_t offset) {
    if (atomic_load(&tail->at) != offset || atomic_load(&tail->lost)) {
        return !is_left_alone(tail);
    }
    return rd_kafka_queue_length(tail->queue) > 0;
}

// Whether the tail stands at `from` now.
static bool stands_at(struct td_kafka_tail *tail, int64_t from) {
    bool moves = !tail->started || atomic_load(&tail->at) != from || atomic_load(&tail->lost);
    if (moves && is_left_alone(tail)) {
        return false;
    }
    if (moves) {
        set_to(tail, from, false);
    }
    return !atomic_load(&tail->lost);
}

// ---- what the queue brings

// What is left of the batch's first moment: the place is known now.
static void arrive(struct td_kafka_tail *tail, int64_t offset, struct td_log_batch *batch) {
    batch->gap = tail->resets;
    batch->first = offset;
    tail->resets = false;
    atomic_store(&tail->at, offset);
}

static void tell_damage(struct td_kafka_tail *tail, struct td_log_batch *batch) {
    // The next fetch asks for another place, or for this one again: both begin anew.
    atomic_store(&tail->lost, true);
    atomic_store(&tail->moved_ms, 0);
    if (batch->count > 0 || batch->gap) {
        return; // first what comes before it; then it is met again
    }
    batch->rc =
        td_err_in(&batch->err, "topic %s, partition %u: damaged at offset %lld",
                  rd_kafka_topic_name(tail->topic), tail->partition, (long long)batch->first);
    batch->damaged = true;
}

// False: the batch ends here.
static bool take_record(struct td_kafka_tail *tail, const rd_kafka_message_t *message,
                        struct td_log_batch *batch) {
    int64_t at = atomic_load(&tail->at);
    uint32_t crc = 0;
    tail->ended = false;
    if (message->offset < at && !tail->resets) {
        return true; // of the same batch of the broker, before the place asked for
    }
    if (at < 0 || tail->resets) {
        arrive(tail, message->offset, batch);
    } else if (message->offset > at) {
        (void)td_fail(&batch->err, TD_ECORRUPT, "the record is missing");
        tell_damage(tail, batch);
        return false;
    }
    if (check_message(tail, message, &crc, &batch->err) != TD_OK) {
        tell_damage(tail, batch);
        return false;
    }
    if (message->len > TD_LOG_RECORD_BYTES_MAX) {
        (void)td_fail(&batch->err, TD_ECORRUPT, "a record of %zu bytes", message->len);
        tell_damage(tail, batch);
        return false;
    }
    uint8_t *to = td_buf_room(&batch->bytes, message->len);
    if (message->len > 0) {
        memcpy(to, message->payload, message->len);
    }
    td_log_batch_add(batch, message->len, crc);
    atomic_store(&tail->at, message->offset + 1);
    return true;
}

static bool take_error(struct td_kafka_tail *tail, const rd_kafka_message_t *message,
                       struct td_log_batch *batch) {
    int64_t at = atomic_load(&tail->at);
    switch (message->err) {
    case RD_KAFKA_RESP_ERR__PARTITION_EOF:
        if (at < 0 || tail->resets) {
            arrive(tail, message->offset, batch);
        }
        tail->ended = true;
        return !batch->gap;
    case RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET: // out of range
    case RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE:
        set_to(tail, at, at >= 0);
        return false;
    case RD_KAFKA_RESP_ERR__BAD_MSG:
        (void)td_fail(&batch->err, TD_ECORRUPT, "%s", rd_kafka_message_errstr(message));
        tell_damage(tail, batch);
        return false;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
        batch->rc = td_kafka_fail(&batch->err, message->err, tail->client, "topic %s, partition %u",
                                  rd_kafka_topic_name(tail->topic), tail->partition);
        return false;
    default: // an outage, however it shows: begin again in a moment
        td_trace_warn("kafka reader interrupted", "topic=%s partition=%u error=\"%s\"",
                      rd_kafka_topic_name(tail->topic), tail->partition,
                      rd_kafka_message_errstr(message));
        atomic_store(&tail->lost, true);
        atomic_store(&tail->moved_ms, td_clock_ms());
        return false;
    }
}

// Adds what has come; waits for the first of it. False: nothing came.
static bool take(struct td_kafka_tail *tail, int wait_ms, size_t records_max,
                 struct td_log_batch *batch) {
    bool goes_on = true, came = false;
    while (goes_on && batch->count < records_max && batch->bytes.len < TD_LOG_BATCH_BYTES) {
        rd_kafka_message_t *message = rd_kafka_consume_queue(tail->queue, came ? 0 : wait_ms);
        if (!message) {
            break;
        }
        came = true;
        atomic_store(&tail->moved_ms, 0);
        goes_on = message->err == RD_KAFKA_RESP_ERR_NO_ERROR ? take_record(tail, message, batch)
                                                             : take_error(tail, message, batch);
        rd_kafka_message_destroy(message);
    }
    return came;
}

void td_kafka_tail_fetch(struct td_kafka_tail *tail, int64_t from, struct td_log_batch *batch) {
    batch->first = from;
    rd_kafka_poll(tail->client->rk, 0);
    if (stands_at(tail, from)) {
        (void)take(tail, 0, TD_LOG_BATCH_RECORDS, batch);
    }
}

// The replica that is read has no such record. A follower answers fetches, too, of clients that
// have not heard of another leader, and has a little less than is acknowledged: only the leader
// knows. Whether the record is to be looked for again.
static bool leader_has(struct td_kafka_tail *tail, int64_t offset, int64_t deadline_ms,
                       struct td_log_batch *batch) {
    struct td_log_op bounds = {.partition = tail->partition};
    batch->rc =
        td_kafka_topic_bounds(tail->client, rd_kafka_topic_name(tail->topic), &bounds, deadline_ms);
    if (batch->rc != TD_OK) {
        batch->err = bounds.err;
    }
    batch->gap = tail->ended = false;
    batch->first = offset;
    batch->count = 0; // of a gap: another record
    td_buf_clear(&batch->bytes);
    atomic_store(&tail->lost, true); // by now the client knows the leader
    atomic_store(&tail->moved_ms, 0);
    return batch->rc == TD_OK && offset >= bounds.start && offset < bounds.end;
}

static enum td_rc wait_for_one(struct td_kafka_tail *tail, int64_t offset, int64_t deadline_ms,
                               struct td_log_batch *batch) {
    while (batch->rc == TD_OK && batch->count == 0) {
        bool there = stands_at(tail, offset);
        bool came = there && take(tail, td_kafka_left(deadline_ms, TD_KAFKA_LOOK_MS), 1, batch);
        bool absent = tail->ended || batch->gap;
        if (absent && !leader_has(tail, offset, deadline_ms, batch)) {
            break;
        }
        bool over = td_kafka_left(deadline_ms, 1) == 0 || atomic_load(&tail->client->stop);
        if ((!came || absent) && over) {
            return td_kafka_fail(&batch->err, RD_KAFKA_RESP_ERR__TIMED_OUT, tail->client,
                                 "topic %s, partition %u: reading offset %lld",
                                 rd_kafka_topic_name(tail->topic), tail->partition,
                                 (long long)offset);
        }
        if (!there || absent) {
            poll(NULL, 0, td_kafka_left(deadline_ms, TD_KAFKA_RETRY_MS));
        }
    }
    return batch->rc;
}

enum td_rc td_kafka_tail_one(struct td_kafka_tail *tail, int64_t offset, int64_t deadline_ms,
                             struct td_log_batch *batch) {
    batch->first = offset;
    rd_kafka_poll(tail->client->rk, 0);
    atomic_store(&tail->moved_ms, 0); // nobody else reads here
    tail->ended = false;
    enum td_rc rc = wait_for_one(tail, offset, deadline_ms, batch);
    stop(tail);
    return rc;
}
