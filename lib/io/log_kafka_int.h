// What the files of the Kafka log share. Types of librdkafka go by their struct tags here.
#ifndef TD_IO_LOG_KAFKA_INT_H
#define TD_IO_LOG_KAFKA_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/io/log_int.h"
#include "lib/io/log_kafka.h"

struct rd_kafka_s;
struct rd_kafka_topic_s;
struct rd_kafka_queue_s;
struct rd_kafka_message_s;

enum {
    // Kafka's limit counts what it puts around a record as well.
    TD_KAFKA_MESSAGE_BYTES_MAX = TD_LOG_RECORD_BYTES_MAX + (1 << 20),
    TD_KAFKA_MARK_BYTES = 16, // of the header that each message carries
    TD_KAFKA_RETRY_MS = 50,
    TD_KAFKA_LOOK_MS = 100, // a wait looks so often whether it is to stop
};

// ---- clients: log_kafka_client.c

enum td_kafka_role {
    TD_KAFKA_PRODUCER,
    TD_KAFKA_READER, // reads on and on
    TD_KAFKA_ASKER,  // everything else; reads single records
};

struct td_kafka_client {
    struct rd_kafka_s *rk;
    void *user;    // of the producer: gets td_kafka_delivered
    char *brokers; // owned
    pthread_mutex_t mutex;
    char trouble[200];  // guarded: what the library complained about last
    int64_t trouble_ms; // guarded: when
    int64_t told_ms;    // guarded: when a complaint was last traced
    atomic_bool stop;   // loop → who waits with this client: give up
};

// A line of the settings file.
struct td_kafka_setting {
    char *key, *value;
};
struct td_kafka_settings {
    struct td_kafka_setting *items;
    size_t count, cap;
};
// TD_EINVAL: FILE:LINE: why. path NULL: none.
enum td_rc td_kafka_settings_read(const char *path, struct td_kafka_settings *out,
                                  struct td_err *err) TD_MUST_CHECK;
void td_kafka_settings_fini(struct td_kafka_settings *settings);

enum td_rc td_kafka_client_new(const struct td_log_kafka_opts *opts, enum td_kafka_role role,
                               void *user, struct td_kafka_client **out,
                               struct td_err *err) TD_MUST_CHECK;
// Accepts NULL; blocks until it has ended, but for one that reads not for ever: then it is left.
void td_kafka_client_free(struct td_kafka_client *client);
// Called within td_kafka polls of the producer for each message, with what became of it.
void td_kafka_delivered(void *user, const struct rd_kafka_message_s *message);

// Whether waiting may help against an error of librdkafka.
bool td_kafka_passes(int code);
// No such topic or partition (TD_ENOENT). For a moment brokers that have just started say so of
// some that are there, and a client believes it.
bool td_kafka_absent(int code);
// Sets *err from an error of librdkafka; adds what the client complained about of late (client may
// be NULL). Those that pass are TD_ETIMEOUT, which is retriable, and name the brokers.
enum td_rc td_kafka_fail(struct td_err *err, int code, struct td_kafka_client *client,
                         const char *fmt, ...) TD_PRINTF(4, 5);
int64_t td_kafka_timeout(const struct td_log_kafka_opts *opts);
// Milliseconds until the deadline, 0 … max.
int td_kafka_left(int64_t deadline_ms, int64_t max);

// ---- topics: log_kafka_topic.c

// What the brokers say about the topic: sets opts->id and opts->partitions.
enum td_rc td_kafka_topic_ask(struct td_kafka_client *client, struct td_log_kafka_opts *opts,
                              struct td_err *err) TD_MUST_CHECK;
enum td_rc td_kafka_topic_bounds(struct td_kafka_client *client, const char *topic,
                                 struct td_log_op *op, int64_t deadline_ms) TD_MUST_CHECK;
enum td_rc td_kafka_topic_trim(struct td_kafka_client *client, const char *topic,
                               struct td_log_op *op, int64_t deadline_ms) TD_MUST_CHECK;

// ---- reading one partition: log_kafka_tail.c

// A position in a partition, and what a background thread of librdkafka has fetched from there on.
// Log thread, except where told.
struct td_kafka_tail {
    struct td_kafka_client *client;
    struct rd_kafka_topic_s *topic;
    struct rd_kafka_queue_s *queue;
    uint32_t partition;
    uint64_t id; // of the log
    bool started;
    bool resets; // it begins at the start, because `at` is out of range
    bool ended;  // the last that came was the end of the partition
    // Log thread → loop (td_kafka_tail_reaches).
    _Atomic int64_t at;       // the offset that its reader asks for next
    _Atomic int64_t moved_ms; // when it was set to another place, 0: it has brought something since
    atomic_bool lost;         // must be set to its place again
};

void td_kafka_mark_encode(uint64_t id, uint32_t crc, uint8_t bytes[TD_KAFKA_MARK_BYTES]);
// wake_fd: of an eventfd, −1: none.
void td_kafka_tail_init(struct td_kafka_tail *tail, int wake_fd);
void td_kafka_tail_fini(struct td_kafka_tail *tail);
// As fetch and reaches of a kind; never waits for a broker.
void td_kafka_tail_fetch(struct td_kafka_tail *tail, int64_t from, struct td_log_batch *batch);
bool td_kafka_tail_reaches(const struct td_kafka_tail *tail, int64_t offset); // loop thread
// The record at offset alone, for a tail that nobody fetches from; it stands nowhere afterwards. No
// record in the batch: none is there.
enum td_rc td_kafka_tail_one(struct td_kafka_tail *tail, int64_t offset, int64_t deadline_ms,
                             struct td_log_batch *batch) TD_MUST_CHECK;

#endif
