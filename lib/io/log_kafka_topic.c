// Topics of the Kafka log: making, asking, trimming, deleting them. Every call blocks, with a
// deadline. See log_kafka_int.h.
#include <librdkafka/rdkafka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/io/log_kafka_int.h"

enum {
    SEGMENT_BYTES = 128 << 20, // trimming frees whole segments; one must hold any record
    ABSENT_MS = 500,           // for so long a broker may not have heard of a new topic
    CALL_MS = 2000,            // one request of those that are made again until the deadline
};

// Two settings that mean nothing for topics that are not compacted: they hold the log's id. Kafka
// has no other place that is written together with the topic and that every client may read.
static const char id_low_key[] = "delete.retention.ms", id_high_key[] = "min.compaction.lag.ms";

// ---- admin calls

// Starts a call, waits for its answer and returns it (owned), or NULL: *err says why.
struct call {
    struct td_kafka_client *client;
    const char *topic, *what;
    int64_t deadline_ms;
    rd_kafka_AdminOptions_t *options;
    rd_kafka_queue_t *queue;
};

static void call_begin(struct call *call, rd_kafka_admin_op_t op) {
    char why[128];
    int left = td_kafka_left(call->deadline_ms, INT32_MAX);
    call->options = rd_kafka_AdminOptions_new(call->client->rk, op);
    call->queue = rd_kafka_queue_new(call->client->rk);
    // Out of range only when nothing is left: then the default stands and the wait ends first.
    (void)rd_kafka_AdminOptions_set_request_timeout(call->options, left, why, sizeof why);
    if (op != RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS) {
        (void)rd_kafka_AdminOptions_set_operation_timeout(call->options, left, why, sizeof why);
    }
}

static rd_kafka_event_t *call_end(struct call *call, struct td_err *err) {
    rd_kafka_event_t *event = NULL;
    bool waits = true;
    while (waits && !event) {
        waits = td_kafka_left(call->deadline_ms, 1) > 0 && !atomic_load(&call->client->stop);
        event =
            rd_kafka_queue_poll(call->queue, td_kafka_left(call->deadline_ms, TD_KAFKA_LOOK_MS));
    }
    int code = event ? rd_kafka_event_error(event) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        (void)td_kafka_fail(err, code, call->client, "topic %s: %s", call->topic, call->what);
        if (event) {
            rd_kafka_event_destroy(event);
        }
        event = NULL;
    }
    rd_kafka_AdminOptions_destroy(call->options);
    rd_kafka_queue_destroy(call->queue);
    return event;
}

// The answer about the one topic of a call.
static enum td_rc answer_of(const struct call *call, const rd_kafka_topic_result_t **results,
                            size_t count, struct td_err *err) {
    td_assert_op(count, ==, 1);
    int code = rd_kafka_topic_result_error(results[0]);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        return TD_OK;
    }
    const char *why = rd_kafka_topic_result_error_string(results[0]);
    return td_kafka_fail(err, code, call->client, "topic %s: %s%s%s", call->topic, call->what,
                         why ? ": " : "", why ? why : "");
}

// ---- metadata

// Partitions and how many of them have no leader; TD_ENOENT: no such topic.
static enum td_rc ask_metadata(struct td_kafka_client *client, const char *topic, int timeout_ms,
                               uint32_t *partitions, uint32_t *leaderless, struct td_err *err) {
    rd_kafka_topic_t *handle = rd_kafka_topic_new(client->rk, topic, NULL);
    const struct rd_kafka_metadata *metadata = NULL;
    int code = handle ? rd_kafka_metadata(client->rk, 0, handle, &metadata, timeout_ms)
                      : rd_kafka_last_error();
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR && metadata->topic_cnt != 1) {
        code = RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    } else if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        code = metadata->topics[0].err;
        *partitions = (uint32_t)metadata->topics[0].partition_cnt;
        *leaderless = 0;
        for (uint32_t p = 0; p < *partitions; p++) {
            *leaderless += metadata->topics[0].partitions[p].leader < 0;
        }
    }
    if (metadata) {
        rd_kafka_metadata_destroy(metadata);
    }
    if (handle) {
        rd_kafka_topic_destroy(handle);
    }
    return code == RD_KAFKA_RESP_ERR_NO_ERROR
               ? TD_OK
               : td_kafka_fail(err, code, client, "topic %s: metadata", topic);
}

// Waits until the topic is there with a leader for each partition, or (wanted 0) is gone.
static enum td_rc await_metadata(struct td_kafka_client *client, const char *topic, uint32_t wanted,
                                 int64_t deadline_ms, struct td_err *err) {
    for (;;) {
        uint32_t partitions = 0, leaderless = 0;
        enum td_rc rc = ask_metadata(client, topic, td_kafka_left(deadline_ms, CALL_MS),
                                     &partitions, &leaderless, err);
        if (wanted ? rc == TD_OK && partitions == wanted && leaderless == 0 : rc == TD_ENOENT) {
            return TD_OK;
        }
        if (td_kafka_left(deadline_ms, 1) == 0) {
            return rc == TD_ETIMEOUT ? rc
                                     : td_kafka_fail(err, RD_KAFKA_RESP_ERR__TIMED_OUT, client,
                                                     "topic %s: waiting until it is %s", topic,
                                                     wanted ? "there" : "gone");
        }
        poll(NULL, 0, TD_KAFKA_RETRY_MS);
    }
}

// ---- create

static enum td_rc add_setting(rd_kafka_NewTopic_t *topic, const char *key, uint64_t value,
                              struct td_err *err) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    int code = rd_kafka_NewTopic_set_config(topic, key, text);
    return code == RD_KAFKA_RESP_ERR_NO_ERROR ? TD_OK
                                              : td_kafka_fail(err, code, NULL, "setting %s", key);
}

static enum td_rc add_settings(rd_kafka_NewTopic_t *topic, const struct td_log_kafka_opts *opts,
                               const struct td_kafka_settings *more, struct td_err *err) {
    static const char *const ours[][2] = {{"cleanup.policy", "delete"},
                                          {"retention.ms", "-1"}, // trimming is the log's
                                          {"retention.bytes", "-1"},
                                          {"unclean.leader.election.enable", "false"}};
    int code = RD_KAFKA_RESP_ERR_NO_ERROR;
    for (size_t i = 0; code == 0 && i < sizeof ours / sizeof *ours; i++) {
        code = rd_kafka_NewTopic_set_config(topic, ours[i][0], ours[i][1]);
    }
    for (size_t i = 0; code == 0 && i < more->count; i++) {
        const struct td_kafka_setting *s = &more->items[i];
        if (strncmp(s->key, "create.", 7) == 0 && strcmp(s->key, "create.replication.factor")) {
            code = rd_kafka_NewTopic_set_config(topic, s->key + 7, s->value);
        }
    }
    enum td_rc rc = code == 0 ? TD_OK : td_kafka_fail(err, code, NULL, "settings of the topic");
    rc = rc == TD_OK ? add_setting(topic, id_low_key, opts->id & UINT32_MAX, err) : rc;
    rc = rc == TD_OK ? add_setting(topic, id_high_key, opts->id >> 32, err) : rc;
    rc = rc == TD_OK ? add_setting(topic, "segment.bytes", SEGMENT_BYTES, err) : rc;
    rc =
        rc == TD_OK ? add_setting(topic, "max.message.bytes", TD_KAFKA_MESSAGE_BYTES_MAX, err) : rc;
    return rc == TD_OK && opts->fsync ? add_setting(topic, "flush.messages", 1, err) : rc;
}

// −1: what the brokers have as their default.
static enum td_rc replication_of(const struct td_kafka_settings *settings, int *replication,
                                 struct td_err *err) {
    *replication = -1;
    for (size_t i = 0; i < settings->count; i++) {
        if (strcmp(settings->items[i].key, "create.replication.factor") == 0) {
            char *end = NULL;
            long value = strtol(settings->items[i].value, &end, 10);
            if (*end || value < 1 || value > 100) {
                return td_fail(err, TD_EINVAL, "create.replication.factor=%s: expected 1 to 100",
                               settings->items[i].value);
            }
            *replication = (int)value;
        }
    }
    return TD_OK;
}

static enum td_rc new_topic(const struct td_log_kafka_opts *opts, rd_kafka_NewTopic_t **out,
                            struct td_err *err) {
    struct td_kafka_settings settings = {0};
    int replication = -1;
    char why[256];
    enum td_rc rc = td_kafka_settings_read(opts->properties, &settings, err);
    rc = rc == TD_OK ? replication_of(&settings, &replication, err) : rc;
    rd_kafka_NewTopic_t *topic = NULL;
    if (rc == TD_OK) {
        topic =
            rd_kafka_NewTopic_new(opts->topic, (int)opts->partitions, replication, why, sizeof why);
        rc = topic ? add_settings(topic, opts, &settings, err)
                   : td_fail(err, TD_EINVAL, "topic %s: %s", opts->topic, why);
    }
    td_kafka_settings_fini(&settings);
    if (rc == TD_OK) {
        *out = topic;
    } else if (topic) {
        rd_kafka_NewTopic_destroy(topic);
    }
    return rc;
}

static enum td_rc call_create(struct call *call, rd_kafka_NewTopic_t *topic, struct td_err *err) {
    call_begin(call, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    rd_kafka_CreateTopics(call->client->rk, &topic, 1, call->options, call->queue);
    rd_kafka_event_t *event = call_end(call, err);
    if (!event) {
        return err->code;
    }
    size_t count = 0;
    const rd_kafka_topic_result_t **results =
        rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &count);
    enum td_rc rc = answer_of(call, results, count, err);
    rd_kafka_event_destroy(event);
    return rc;
}

enum td_rc td_log_kafka_create(const struct td_log_kafka_opts *opts, struct td_err *err) {
    td_assert(opts->partitions >= 1 && opts->partitions <= TD_LOG_PARTITIONS_MAX);
    struct td_err scratch;
    err = err ? err : &scratch;
    struct call call = {.topic = opts->topic, .what = "creating it"};
    call.deadline_ms = td_clock_ms() + td_kafka_timeout(opts);
    rd_kafka_NewTopic_t *topic = NULL;
    enum td_rc rc = new_topic(opts, &topic, err);
    rc = rc == TD_OK ? td_kafka_client_new(opts, TD_KAFKA_ASKER, NULL, &call.client, err) : rc;
    rc = rc == TD_OK ? call_create(&call, topic, err) : rc;
    rc = rc == TD_OK
             ? await_metadata(call.client, opts->topic, opts->partitions, call.deadline_ms, err)
             : rc;
    if (topic) {
        rd_kafka_NewTopic_destroy(topic);
    }
    td_kafka_client_free(call.client);
    return rc;
}

// ---- delete

static enum td_rc call_delete(struct call *call, struct td_err *err) {
    rd_kafka_DeleteTopic_t *topic = rd_kafka_DeleteTopic_new(call->topic);
    call_begin(call, RD_KAFKA_ADMIN_OP_DELETETOPICS);
    rd_kafka_DeleteTopics(call->client->rk, &topic, 1, call->options, call->queue);
    rd_kafka_event_t *event = call_end(call, err);
    rd_kafka_DeleteTopic_destroy(topic);
    if (!event) {
        return err->code;
    }
    size_t count = 0;
    const rd_kafka_topic_result_t **results =
        rd_kafka_DeleteTopics_result_topics(rd_kafka_event_DeleteTopics_result(event), &count);
    enum td_rc rc = answer_of(call, results, count, err);
    rd_kafka_event_destroy(event);
    return rc;
}

enum td_rc td_log_kafka_delete(const struct td_log_kafka_opts *opts, struct td_err *err) {
    struct td_err scratch;
    err = err ? err : &scratch;
    struct call call = {.topic = opts->topic, .what = "deleting it"};
    call.deadline_ms = td_clock_ms() + td_kafka_timeout(opts);
    enum td_rc rc = td_kafka_client_new(opts, TD_KAFKA_ASKER, NULL, &call.client, err);
    rc = rc == TD_OK ? call_delete(&call, err) : rc;
    rc = rc == TD_OK ? await_metadata(call.client, opts->topic, 0, call.deadline_ms, err) : rc;
    td_kafka_client_free(call.client);
    return rc == TD_ENOENT ? TD_OK : rc;
}

// ---- ask

// The value of an entry that was set for this topic; false: it has none of its own.
static bool own_value(const rd_kafka_ConfigEntry_t **entries, size_t count, const char *key,
                      uint64_t *value) {
    for (size_t i = 0; i < count; i++) {
        const char *text = rd_kafka_ConfigEntry_value(entries[i]);
        if (strcmp(rd_kafka_ConfigEntry_name(entries[i]), key) == 0 && text &&
            rd_kafka_ConfigEntry_source(entries[i]) ==
                RD_KAFKA_CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG) {
            *value = strtoull(text, NULL, 10);
            return true;
        }
    }
    return false;
}

static enum td_rc read_id(const struct call *call, const rd_kafka_ConfigResource_t *resource,
                          uint64_t *id, struct td_err *err) {
    int code = rd_kafka_ConfigResource_error(resource);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        return td_kafka_fail(err, code, call->client, "topic %s: %s", call->topic, call->what);
    }
    size_t count = 0;
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(resource, &count);
    uint64_t low = 0, high = 0;
    if (!own_value(entries, count, id_low_key, &low) ||
        !own_value(entries, count, id_high_key, &high)) {
        return td_fail(err, TD_ECONFLICT, "topic %s was not made by Tandem: it has no log id",
                       call->topic);
    }
    *id = high << 32 | low;
    return TD_OK;
}

static enum td_rc ask_id(struct call *call, uint64_t *id, struct td_err *err) {
    rd_kafka_ConfigResource_t *resource =
        rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, call->topic);
    call_begin(call, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
    rd_kafka_DescribeConfigs(call->client->rk, &resource, 1, call->options, call->queue);
    rd_kafka_event_t *event = call_end(call, err);
    rd_kafka_ConfigResource_destroy(resource);
    if (!event) {
        return err->code;
    }
    size_t count = 0;
    const rd_kafka_ConfigResource_t **resources = rd_kafka_DescribeConfigs_result_resources(
        rd_kafka_event_DescribeConfigs_result(event), &count);
    td_assert_op(count, ==, 1);
    enum td_rc rc = read_id(call, resources[0], id, err);
    rd_kafka_event_destroy(event);
    return rc;
}

static enum td_rc ask_partitions(struct td_kafka_client *client, const char *topic,
                                 int64_t deadline_ms, uint32_t *partitions, struct td_err *err) {
    int64_t absent_ms = 0;
    for (;;) {
        uint32_t leaderless = 0;
        enum td_rc rc = ask_metadata(client, topic, td_kafka_left(deadline_ms, CALL_MS), partitions,
                                     &leaderless, err);
        int64_t now = td_clock_ms();
        absent_ms = rc != TD_ENOENT ? 0 : absent_ms ? absent_ms : now;
        bool again = rc == TD_ETIMEOUT || (rc == TD_ENOENT && now - absent_ms < ABSENT_MS);
        if (!again || td_kafka_left(deadline_ms, 1) == 0) {
            return rc;
        }
        poll(NULL, 0, TD_KAFKA_RETRY_MS);
    }
}

enum td_rc td_kafka_topic_ask(struct td_kafka_client *client, struct td_log_kafka_opts *opts,
                              struct td_err *err) {
    struct td_err scratch;
    err = err ? err : &scratch;
    struct call call = {.client = client, .topic = opts->topic, .what = "asking for its settings"};
    call.deadline_ms = td_clock_ms() + td_kafka_timeout(opts);
    uint64_t id = 0;
    uint32_t partitions = 0;
    enum td_rc rc;
    for (;;) {
        rc = ask_partitions(client, opts->topic, call.deadline_ms, &partitions, err);
        if (rc != TD_OK) {
            break;
        }
        rc = ask_id(&call, &id, err);
        if (rc != TD_ENOENT || td_kafka_left(call.deadline_ms, 1) == 0) {
            break;
        }
        poll(NULL, 0, TD_KAFKA_RETRY_MS); // it is there, but one broker has not heard of it
    }
    if (rc == TD_OK && (partitions < 1 || partitions > TD_LOG_PARTITIONS_MAX)) {
        rc = td_fail(err, TD_ECONFLICT, "topic %s has %u partitions; a log has 1 to %d",
                     opts->topic, partitions, TD_LOG_PARTITIONS_MAX);
    } else if (rc == TD_OK && opts->id && opts->id != id) {
        rc = td_fail(err, TD_ECONFLICT, "topic %s holds log %016llx, expected %016llx", opts->topic,
                     (unsigned long long)id, (unsigned long long)opts->id);
    }
    if (rc == TD_OK) {
        opts->id = id;
        opts->partitions = partitions;
    }
    return rc;
}

enum td_rc td_log_kafka_ask(struct td_log_kafka_opts *opts, struct td_err *err) {
    struct td_kafka_client *client = NULL;
    enum td_rc rc = td_kafka_client_new(opts, TD_KAFKA_ASKER, NULL, &client, err);
    rc = rc == TD_OK ? td_kafka_topic_ask(client, opts, err) : rc;
    td_kafka_client_free(client);
    return rc;
}

// ---- bounds and trim

// which: RD_KAFKA_OFFSET_BEGINNING or _END. rd_kafka_query_watermark_offsets asks for both, but as
// long as a broker is down, whatever its timeout.
static int ask_offset(struct td_kafka_client *client, const char *topic, uint32_t partition,
                      int64_t which, int64_t deadline_ms, int64_t *offset) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_t *one =
        rd_kafka_topic_partition_list_add(list, topic, (int32_t)partition);
    one->offset = which;
    int code = rd_kafka_offsets_for_times(client->rk, list, td_kafka_left(deadline_ms, CALL_MS));
    code = code == RD_KAFKA_RESP_ERR_NO_ERROR ? one->err : code;
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR && one->offset < 0) {
        code = RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE;
    }
    *offset = one->offset;
    rd_kafka_topic_partition_list_destroy(list);
    return code;
}

enum td_rc td_kafka_topic_bounds(struct td_kafka_client *client, const char *topic,
                                 struct td_log_op *op, int64_t deadline_ms) {
    for (;;) {
        // End first: should the start pass it in between, that is the end as well.
        int64_t start = 0, end = 0;
        int code = ask_offset(client, topic, op->partition, RD_KAFKA_OFFSET_END, deadline_ms, &end);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            code = ask_offset(client, topic, op->partition, RD_KAFKA_OFFSET_BEGINNING, deadline_ms,
                              &start);
        }
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
            op->start = start;
            op->end = end > start ? end : start;
            return TD_OK;
        }
        bool again = td_kafka_passes(code) || td_kafka_absent(code);
        bool over = td_kafka_left(deadline_ms, 1) == 0 || atomic_load(&client->stop);
        if (!again || over) {
            return td_kafka_fail(&op->err, code, client, "topic %s, partition %u: bounds", topic,
                                 op->partition);
        }
        poll(NULL, 0, TD_KAFKA_RETRY_MS);
    }
}

enum td_rc td_kafka_topic_trim(struct td_kafka_client *client, const char *topic,
                               struct td_log_op *op, int64_t deadline_ms) {
    struct call call = {
        .client = client, .topic = topic, .what = "trimming it", .deadline_ms = deadline_ms};
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, (int32_t)op->partition)->offset = op->below;
    rd_kafka_DeleteRecords_t *records = rd_kafka_DeleteRecords_new(list);
    rd_kafka_topic_partition_list_destroy(list);
    call_begin(&call, RD_KAFKA_ADMIN_OP_DELETERECORDS);
    rd_kafka_DeleteRecords(client->rk, &records, 1, call.options, call.queue);
    rd_kafka_event_t *event = call_end(&call, &op->err);
    rd_kafka_DeleteRecords_destroy(records);
    if (!event) {
        return op->err.code;
    }
    const rd_kafka_topic_partition_list_t *results =
        rd_kafka_DeleteRecords_result_offsets(rd_kafka_event_DeleteRecords_result(event));
    td_assert_op(results->cnt, ==, 1);
    int code = results->elems[0].err;
    rd_kafka_event_destroy(event);
    return code == RD_KAFKA_RESP_ERR_NO_ERROR
               ? TD_OK
               : td_kafka_fail(&op->err, code, client,
                               "topic %s, partition %u: trimming below %lld", topic, op->partition,
                               (long long)op->below);
}
