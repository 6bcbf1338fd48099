// The Kafka kind of the record log: a log is a topic. lib/io/README.md describes messages and
// topics.
#ifndef TD_IO_LOG_KAFKA_H
#define TD_IO_LOG_KAFKA_H

#include "lib/io/log.h"

struct td_log_kafka_opts { // strings are borrowed
    const char *brokers;   // "host:port,..."
    const char *topic;
    const char *properties; // file of librdkafka settings; NULL: none
    int64_t timeout_ms;     // for one operation; 0: 10 s
    uint64_t id;            // create: the new log's id; open: must match unless 0
    uint32_t partitions;    // create: 1 … TD_LOG_PARTITIONS_MAX
    bool fsync;             // create: the brokers sync each batch before they acknowledge it
};

// Blocks, any thread, until every broker asked shows the topic. TD_ECONFLICT: there is one already;
// TD_ETIMEOUT: no broker answered, it may exist or come to exist; TD_EINVAL: the brokers refuse the
// settings.
enum td_rc td_log_kafka_create(const struct td_log_kafka_opts *opts,
                               struct td_err *err) TD_MUST_CHECK;
// Blocks until the brokers have told what the topic is. TD_ENOENT; TD_ETIMEOUT; TD_ECONFLICT:
// another id, or a topic that td_log_kafka_create did not make.
enum td_rc td_log_kafka_open(struct td_loop *loop, const struct td_log_kafka_opts *opts,
                             struct td_log **out, struct td_err *err) TD_MUST_CHECK;
// Blocks, any thread: what the brokers say the topic is, into opts->id (which must match unless 0)
// and opts->partitions. Errors as of open.
enum td_rc td_log_kafka_ask(struct td_log_kafka_opts *opts, struct td_err *err) TD_MUST_CHECK;
// As open, but takes id and partitions as given and asks nobody; does not block.
enum td_rc td_log_kafka_attach(struct td_loop *loop, const struct td_log_kafka_opts *opts,
                               struct td_log **out, struct td_err *err) TD_MUST_CHECK;
// Blocks, any thread, until the topic is gone; one that is not there is no error.
enum td_rc td_log_kafka_delete(const struct td_log_kafka_opts *opts,
                               struct td_err *err) TD_MUST_CHECK;

#endif
