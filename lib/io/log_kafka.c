// The Kafka kind of the record log: see log_kafka.h and README.md. The log thread produces and
// waits for acknowledgements; reading is log_kafka_tail.c, topics are log_kafka_topic.c. A producer
// that left an append unanswered, or that librdkafka gave up, is ended and another one made: so
// nothing that was answered UNKNOWN is sent again behind the back of later appends.
#include "lib/io/log_kafka.h"

#include <errno.h>
#include <librdkafka/rdkafka.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/io/log_kafka_int.h"

enum {
    ANSWER_MS = 20,   // how long one wait for acknowledgements lasts
    STOP_MS = 1000,   // after a close, for what is outstanding
    GIVE_UP_MS = 500, // for the answers about messages that were given up
};

// Three clients, because a broker answers the requests of one in order: behind a fetch that waits
// for news everything else would wait too.
struct kafka_log {
    struct td_log_kafka_opts opts; // strings owned
    int wake_fd;                   // eventfd: a queue has got something
    struct td_kafka_client *asker; // bounds, trimming, td_log_read_one
    struct rd_kafka_topic_s *asker_topic;
    // Log thread; NULL until an append or a reader needs them.
    struct td_kafka_client *producer, *reader;
    struct rd_kafka_topic_s *producer_topic, *reader_topic;
    struct td_kafka_tail *tails; // made before the first fetch ends, so before `reaches` looks
    size_t unanswered;           // appends
    bool misled;                 // the producer takes the topic for absent
    pthread_mutex_t lookup_mutex;
    struct td_kafka_tail *lookups; // guarded; NULL until needed
};

// ---- the producer

static void end_producer(struct kafka_log *log) {
    if (!log->producer) {
        return;
    }
    rd_kafka_topic_destroy(log->producer_topic);
    td_kafka_client_free(log->producer);
    log->producer = NULL;
    log->producer_topic = NULL;
    log->unanswered = 0;
    log->misled = false;
}

static enum td_rc need_producer(struct kafka_log *log, struct td_err *err) {
    char why[128];
    if (log->producer && (rd_kafka_fatal_error(log->producer->rk, why, sizeof why) != 0 ||
                          (log->misled && log->unanswered == 0))) {
        end_producer(log);
    }
    if (log->producer) {
        return TD_OK;
    }
    enum td_rc rc = td_kafka_client_new(&log->opts, TD_KAFKA_PRODUCER, log, &log->producer, err);
    if (rc != TD_OK) {
        return rc;
    }
    log->producer_topic = rd_kafka_topic_new(log->producer->rk, log->opts.topic, NULL);
    td_assert(log->producer_topic); // as the asker's, in make_log
    return TD_OK;
}

// Whether an error means that the record is not there and will not be, however often it is tried.
static bool is_refusal(const rd_kafka_message_t *message) {
    return rd_kafka_message_status(message) == RD_KAFKA_MSG_STATUS_NOT_PERSISTED &&
           (message->err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE ||
            message->err == RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE ||
            message->err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED ||
            message->err == RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED ||
            message->err == RD_KAFKA_RESP_ERR_INVALID_RECORD);
}

void td_kafka_delivered(void *user, const struct rd_kafka_message_s *message) {
    struct kafka_log *log = user;
    struct td_log_op *op = message->_private;
    log->unanswered--;
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR && message->offset >= 0) {
        op->outcome = TD_LOG_APPENDED;
        op->offset = message->offset;
        op->rc = TD_OK;
    } else if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        // Taken for one that was stored before; where, if at all, the broker does not say.
        op->rc =
            td_fail(&op->err, TD_ETIMEOUT, "topic %s, partition %u: acknowledged without an offset",
                    log->opts.topic, op->partition);
    } else {
        op->outcome = is_refusal(message) ? TD_LOG_FAILED : TD_LOG_UNKNOWN;
        op->rc = td_kafka_fail(&op->err, message->err, log->producer,
                               "topic %s, partition %u: append", log->opts.topic, op->partition);
    }
}

static int send_message(struct kafka_log *log, struct td_log_op *op) {
    uint8_t mark[TD_KAFKA_MARK_BYTES];
    td_kafka_mark_encode(log->opts.id, op->crc, mark);
    rd_kafka_headers_t *headers = rd_kafka_headers_new(1);
    rd_kafka_resp_err_t code = rd_kafka_header_add(headers, "tandem", -1, mark, sizeof mark);
    // The bytes stay where they are until execute returns: end_producer comes before.
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        code = rd_kafka_producev(log->producer->rk, RD_KAFKA_V_RKT(log->producer_topic),
                                 RD_KAFKA_V_PARTITION((int32_t)op->partition),
                                 RD_KAFKA_V_VALUE(op->bytes, op->n), RD_KAFKA_V_HEADERS(headers),
                                 RD_KAFKA_V_OPAQUE(op), RD_KAFKA_V_END);
    }
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        rd_kafka_headers_destroy(headers);
    }
    return code;
}

static void append(struct kafka_log *log, struct td_log_op *op) {
    op->crc = td_crc32c(0, op->bytes, op->n);
    op->rc = need_producer(log, &op->err);
    if (op->rc != TD_OK) {
        return;
    }
    int code = send_message(log, op);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        bool absent = td_kafka_absent(code), passes = absent || code == RD_KAFKA_RESP_ERR__FATAL;
        log->misled = log->misled || absent;
        op->outcome = passes ? TD_LOG_UNKNOWN : TD_LOG_FAILED;
        op->rc = td_kafka_fail(&op->err, code, log->producer, "topic %s, partition %u: append",
                               log->opts.topic, op->partition);
        return;
    }
    log->unanswered++;
    op->outcome = TD_LOG_UNKNOWN; // until it is answered
    op->rc = TD_ETIMEOUT;
}

static void give_up(struct kafka_log *log, struct td_log_op *first, const struct td_log_op *end) {
    rd_kafka_purge(log->producer->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    int64_t until = td_clock_ms() + GIVE_UP_MS;
    while (log->unanswered > 0 && td_clock_ms() < until) {
        rd_kafka_poll(log->producer->rk, ANSWER_MS);
    }
    for (struct td_log_op *op = first; op != end; op = op->next) {
        if (op->type == TD_LOG_OP_APPEND && op->outcome == TD_LOG_UNKNOWN) {
            op->rc =
                td_kafka_fail(&op->err, RD_KAFKA_RESP_ERR__TIMED_OUT, log->producer,
                              "topic %s, partition %u: append", log->opts.topic, op->partition);
        }
    }
    end_producer(log);
}

// Waits until the appends from first to end (exclusive) are answered, at most until the deadline.
static void settle(struct kafka_log *log, struct td_log_op *first, const struct td_log_op *end,
                   int64_t deadline_ms) {
    char why[128];
    int64_t until = deadline_ms;
    bool stopping = false, fatal = false;
    while (log->unanswered > 0 && td_clock_ms() < until && !fatal) {
        rd_kafka_poll(log->producer->rk, ANSWER_MS);
        fatal = rd_kafka_fatal_error(log->producer->rk, why, sizeof why) != 0;
        if (!stopping && atomic_load(&log->asker->stop)) {
            stopping = true;
            until = td_clock_ms() + STOP_MS < until ? td_clock_ms() + STOP_MS : until;
        }
    }
    if (fatal) {
        td_trace_warn("kafka producer given up", "topic=%s error=\"%s\"", log->opts.topic, why);
    }
    if (log->unanswered > 0) {
        give_up(log, first, end);
    }
}

static void execute(void *backend, struct td_log_op *first) {
    struct kafka_log *log = backend;
    int64_t deadline_ms = td_clock_ms() + td_kafka_timeout(&log->opts);
    struct td_log_op *open = first; // the first that may be unanswered
    for (struct td_log_op *op = first; op; op = op->next) {
        if (op->type == TD_LOG_OP_APPEND) {
            append(log, op);
            continue;
        }
        settle(log, open, op, deadline_ms);
        open = op->next;
        op->rc = op->type == TD_LOG_OP_BOUNDS
                     ? td_kafka_topic_bounds(log->asker, log->opts.topic, op, deadline_ms)
                     : td_kafka_topic_trim(log->asker, log->opts.topic, op, deadline_ms);
    }
    settle(log, open, NULL, deadline_ms);
}

// ---- reading

static struct td_kafka_tail *new_tails(const struct kafka_log *log, struct td_kafka_client *client,
                                       struct rd_kafka_topic_s *topic, int fd) {
    struct td_kafka_tail *tails = td_alloc_array(log->opts.partitions, sizeof *tails);
    for (uint32_t p = 0; p < log->opts.partitions; p++) {
        tails[p].client = client;
        tails[p].topic = topic;
        tails[p].partition = p;
        tails[p].id = log->opts.id;
        td_kafka_tail_init(&tails[p], fd);
    }
    return tails;
}

static void free_tails(const struct kafka_log *log, struct td_kafka_tail *tails) {
    for (uint32_t p = 0; tails && p < log->opts.partitions; p++) {
        td_kafka_tail_fini(&tails[p]);
    }
    td_free(tails);
}

static void fetch(void *backend, uint32_t partition, int64_t from, struct td_log_batch *batch) {
    struct kafka_log *log = backend;
    if (!log->reader) {
        batch->rc =
            td_kafka_client_new(&log->opts, TD_KAFKA_READER, NULL, &log->reader, &batch->err);
        if (batch->rc != TD_OK) {
            return;
        }
        log->reader_topic = rd_kafka_topic_new(log->reader->rk, log->opts.topic, NULL);
        td_assert(log->reader_topic); // as the asker's, in make_log
        log->tails = new_tails(log, log->reader, log->reader_topic, log->wake_fd);
    }
    td_kafka_tail_fetch(&log->tails[partition], from, batch);
}

static bool reaches(void *backend, uint32_t partition, int64_t offset) {
    struct kafka_log *log = backend;
    return td_kafka_tail_reaches(&log->tails[partition], offset);
}

static int wake_fd(void *backend) {
    struct kafka_log *log = backend;
    return log->wake_fd;
}

// What the tail brought: that record or none.
static enum td_rc take_one(const struct kafka_log *log, uint32_t partition, int64_t offset,
                           struct td_log_batch *batch, struct td_err *err) {
    if (batch->rc != TD_OK) {
        if (err) {
            *err = batch->err;
        }
        return batch->rc;
    }
    return batch->count > 0 && !batch->gap
               ? TD_OK
               : td_fail(err, TD_ENOENT, "topic %s, partition %u: no record at offset %lld",
                         log->opts.topic, partition, (long long)offset);
}

static enum td_rc read_one(void *backend, uint32_t partition, int64_t offset, uint32_t crc,
                           struct td_buf *out, struct td_err *err) {
    struct kafka_log *log = backend;
    int64_t deadline_ms = td_clock_ms() + td_kafka_timeout(&log->opts);
    struct td_log_batch batch = {0};
    pthread_mutex_lock(&log->lookup_mutex);
    if (!log->lookups) {
        log->lookups = new_tails(log, log->asker, log->asker_topic, -1);
    }
    batch.rc = td_kafka_tail_one(&log->lookups[partition], offset, deadline_ms, &batch);
    pthread_mutex_unlock(&log->lookup_mutex);
    enum td_rc rc = take_one(log, partition, offset, &batch, err);
    if (rc == TD_OK && batch.items[0].crc != crc) {
        rc = td_fail(err, TD_ECORRUPT,
                     "topic %s, partition %u: the record at offset %lld has CRC %08x, expected "
                     "%08x",
                     log->opts.topic, partition, (long long)offset, batch.items[0].crc, crc);
    } else if (rc == TD_OK) {
        td_buf_clear(out);
        td_buf_put(out, batch.bytes.data, batch.items[0].n);
    }
    td_buf_fini(&batch.bytes);
    td_free(batch.items);
    return rc;
}

// ---- life

static void stop(void *backend) {
    struct kafka_log *log = backend;
    atomic_store(&log->asker->stop, true);
}

static void end(void *backend) {
    struct kafka_log *log = backend;
    end_producer(log);
    free_tails(log, log->tails);
    free_tails(log, log->lookups);
    if (log->reader_topic) {
        rd_kafka_topic_destroy(log->reader_topic);
    }
    if (log->asker_topic) {
        rd_kafka_topic_destroy(log->asker_topic);
    }
    td_kafka_client_free(log->reader);
    td_kafka_client_free(log->asker);
}

static void free_backend(void *backend) {
    struct kafka_log *log = backend;
    if (log->wake_fd >= 0) {
        close(log->wake_fd);
    }
    pthread_mutex_destroy(&log->lookup_mutex);
    td_free((char *)log->opts.brokers);
    td_free((char *)log->opts.topic);
    td_free((char *)log->opts.properties);
    td_free(log);
}

static const struct td_log_kind kafka_kind = {.threaded = true,
                                              .execute = execute,
                                              .fetch = fetch,
                                              .reaches = reaches,
                                              .wake_fd = wake_fd,
                                              .read_one = read_one,
                                              .stop = stop,
                                              .end = end,
                                              .free = free_backend};

// Takes the client, also on failure.
static enum td_rc make_log(struct td_loop *loop, const struct td_log_kafka_opts *opts,
                           struct td_kafka_client *client_take, struct td_log **out,
                           struct td_err *err) {
    struct kafka_log *log = td_alloc(sizeof *log);
    log->opts = *opts;
    log->opts.brokers = td_strdup(opts->brokers);
    log->opts.topic = td_strdup(opts->topic);
    log->opts.properties = td_strdup(opts->properties);
    log->asker = client_take;
    pthread_mutex_init(&log->lookup_mutex, NULL);
    log->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    log->asker_topic = rd_kafka_topic_new(client_take->rk, opts->topic, NULL);
    enum td_rc rc = TD_OK;
    if (log->wake_fd < 0) {
        rc = td_fail_errno(err, errno, "eventfd");
    } else if (!log->asker_topic) {
        rc = td_kafka_fail(err, rd_kafka_last_error(), NULL, "topic %s", opts->topic);
    }
    if (rc == TD_OK) {
        struct td_log_base base = {&kafka_kind, log, opts->id, opts->partitions};
        return td_log_new(loop, &base, out, err);
    }
    end(log);
    free_backend(log);
    return rc;
}

enum td_rc td_log_kafka_attach(struct td_loop *loop, const struct td_log_kafka_opts *opts,
                               struct td_log **out, struct td_err *err) {
    struct td_kafka_client *client = NULL;
    enum td_rc rc = td_kafka_client_new(opts, TD_KAFKA_ASKER, NULL, &client, err);
    return rc == TD_OK ? make_log(loop, opts, client, out, err) : rc;
}

enum td_rc td_log_kafka_open(struct td_loop *loop, const struct td_log_kafka_opts *opts,
                             struct td_log **out, struct td_err *err) {
    struct td_kafka_client *client = NULL;
    struct td_log_kafka_opts known = *opts;
    enum td_rc rc = td_kafka_client_new(opts, TD_KAFKA_ASKER, NULL, &client, err);
    rc = rc == TD_OK ? td_kafka_topic_ask(client, &known, err) : rc;
    if (rc != TD_OK) {
        td_kafka_client_free(client);
        return rc;
    }
    return make_log(loop, &known, client, out, err);
}
