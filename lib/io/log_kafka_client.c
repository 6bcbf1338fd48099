// Clients of librdkafka: settings, errors, complaints. See log_kafka_int.h.
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/io/log_kafka_int.h"

enum {
    TIMEOUT_MS = 10000,
    SETTINGS_BYTES_MAX = 1 << 20,
    TELL_MS = 10000,  // between complaints that are traced
    FRESH_MS = 20000, // a complaint older than that is not what an error is about
    SYSLOG_WARNING = 4,
    END_MS = 3000, // that a client may take to end
};

int64_t td_kafka_timeout(const struct td_log_kafka_opts *opts) {
    return opts->timeout_ms > 0 ? opts->timeout_ms : TIMEOUT_MS;
}

int td_kafka_left(int64_t deadline_ms, int64_t max) {
    int64_t left = deadline_ms - td_clock_ms();
    return (int)(left < 0 ? 0 : left > max ? max : left);
}

// ---- errors

bool td_kafka_passes(int code) {
    switch (code) {
    case RD_KAFKA_RESP_ERR__TRANSPORT:
    case RD_KAFKA_RESP_ERR__RESOLVE:
    case RD_KAFKA_RESP_ERR__SSL:
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR__TIMED_OUT:
    case RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE:
    case RD_KAFKA_RESP_ERR__MSG_TIMED_OUT:
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
    case RD_KAFKA_RESP_ERR__UNKNOWN_BROKER:
    case RD_KAFKA_RESP_ERR__WAIT_CACHE:
    case RD_KAFKA_RESP_ERR__RETRY:
    case RD_KAFKA_RESP_ERR__PURGE_QUEUE:
    case RD_KAFKA_RESP_ERR__PURGE_INFLIGHT:
    case RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE:
    case RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION:
    case RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT:
    case RD_KAFKA_RESP_ERR_BROKER_NOT_AVAILABLE:
    case RD_KAFKA_RESP_ERR_REPLICA_NOT_AVAILABLE:
    case RD_KAFKA_RESP_ERR_NETWORK_EXCEPTION:
    case RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS:
    case RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND:
    case RD_KAFKA_RESP_ERR_NOT_CONTROLLER:
    case RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR:
    case RD_KAFKA_RESP_ERR_FENCED_LEADER_EPOCH:
    case RD_KAFKA_RESP_ERR_UNKNOWN_LEADER_EPOCH:
    case RD_KAFKA_RESP_ERR_OFFSET_NOT_AVAILABLE:
    case RD_KAFKA_RESP_ERR_ELIGIBLE_LEADERS_NOT_AVAILABLE:
    case RD_KAFKA_RESP_ERR_THROTTLING_QUOTA_EXCEEDED:
        return true;
    default:
        return false;
    }
}

bool td_kafka_absent(int code) {
    return code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
           code == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC || code == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION;
}

static enum td_rc rc_of(int code) {
    if (td_kafka_absent(code)) {
        return TD_ENOENT;
    }
    switch (code) {
    case RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS:
        return TD_ECONFLICT;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
        return TD_EPERM;
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
        return TD_ELIMIT;
    case RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE:
    case RD_KAFKA_RESP_ERR_INVALID_PARTITIONS:
    case RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR:
    case RD_KAFKA_RESP_ERR_INVALID_CONFIG:
    case RD_KAFKA_RESP_ERR_INVALID_REQUEST:
    case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
        return TD_EINVAL;
    case RD_KAFKA_RESP_ERR__BAD_MSG:
        return TD_ECORRUPT;
    default:
        return td_kafka_passes(code) ? TD_ETIMEOUT : TD_EIO;
    }
}

enum td_rc td_kafka_fail(struct td_err *err, int code, struct td_kafka_client *client,
                         const char *fmt, ...) {
    char what[512], trouble[sizeof client->trouble] = "";
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (client && td_kafka_passes(code)) {
        pthread_mutex_lock(&client->mutex);
        if (client->trouble[0] && td_clock_ms() - client->trouble_ms < FRESH_MS) {
            memcpy(trouble, client->trouble, sizeof trouble);
        }
        pthread_mutex_unlock(&client->mutex);
    }
    bool told = trouble[0] || !client || !td_kafka_passes(code);
    return td_fail(err, rc_of(code), "%s: %s%s%s", what, rd_kafka_err2str(code),
                   trouble[0] ? "; the client says: "
                   : told     ? ""
                              : "; no answer of the brokers ",
                   told ? trouble : client->brokers);
}

// ---- the settings file

static char *trimmed(char *from, char *to) {
    while (from < to && strchr(" \t\r", *from)) {
        from++;
    }
    while (to > from && strchr(" \t\r", to[-1])) {
        to--;
    }
    return td_strndup(from, (size_t)(to - from));
}

enum td_rc td_kafka_settings_read(const char *path, struct td_kafka_settings *out,
                                  struct td_err *err) {
    struct td_buf bytes = {0};
    enum td_rc rc = path ? td_file_read(path, SETTINGS_BYTES_MAX, &bytes, err) : TD_OK;
    if (rc != TD_OK) {
        return td_err_in(err, "settings for Kafka");
    }
    char *line = (char *)bytes.data, *end = line + bytes.len;
    for (int number = 1; rc == TD_OK && line < end; number++) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        next = next ? next : end;
        char *text = trimmed(line, next);
        char *equals = strchr(text, '=');
        if (text[0] && text[0] != '#' && (!equals || equals == text)) {
            rc = td_fail(err, TD_EINVAL, "%s:%d: expected key=value", path, number);
        } else if (text[0] && text[0] != '#') {
            TD_GROW(out->items, out->cap, out->count + 1);
            out->items[out->count++] = (struct td_kafka_setting){
                trimmed(text, equals), trimmed(equals + 1, text + strlen(text))};
        }
        td_free(text);
        line = next + 1;
    }
    td_buf_fini(&bytes);
    return rc;
}

void td_kafka_settings_fini(struct td_kafka_settings *settings) {
    for (size_t i = 0; i < settings->count; i++) {
        td_free(settings->items[i].key);
        td_free(settings->items[i].value);
    }
    td_free(settings->items);
}

// ---- clients

// Threads of librdkafka.
static void on_complaint(const rd_kafka_t *rk, int level, const char *facility, const char *text) {
    struct td_kafka_client *client = rd_kafka_opaque(rk);
    // CONFWARN: a setting that is for clients of the other kind.
    if (!client || level > SYSLOG_WARNING || strcmp(facility, "CONFWARN") == 0) {
        td_trace_debug("kafka client", "facility=%s text=\"%s\"", facility, text);
        return;
    }
    int64_t now = td_clock_ms();
    pthread_mutex_lock(&client->mutex);
    snprintf(client->trouble, sizeof client->trouble, "%s", text);
    client->trouble_ms = now;
    bool tell = client->told_ms == 0 || now - client->told_ms >= TELL_MS;
    client->told_ms = tell ? now : client->told_ms;
    pthread_mutex_unlock(&client->mutex);
    if (tell) {
        td_trace_warn("kafka client", "facility=%s text=\"%s\"", facility, text);
    }
}

// Without a callback librdkafka prints errors by itself.
static void on_error(rd_kafka_t *rk, int code, const char *reason, void *user) {
    (void)user;
    on_complaint(rk, SYSLOG_WARNING, rd_kafka_err2name(code), reason);
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *user) {
    struct td_kafka_client *client = user;
    (void)rk;
    td_kafka_delivered(client->user, message);
}

static enum td_rc set(rd_kafka_conf_t *conf, const char *key, const char *value,
                      struct td_err *err) {
    char why[256];
    return rd_kafka_conf_set(conf, key, value, why, sizeof why) == RD_KAFKA_CONF_OK
               ? TD_OK
               : td_fail(err, TD_EINVAL, "setting %s=%s for Kafka: %s", key, value, why);
}

static enum td_rc set_number(rd_kafka_conf_t *conf, const char *key, int64_t value,
                             struct td_err *err) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return set(conf, key, text, err);
}

// What a settings file may change.
static enum td_rc set_defaults(rd_kafka_conf_t *conf, enum td_kafka_role role, int64_t timeout_ms,
                               struct td_err *err) {
    static const char *const common[][2] = {
        {"client.id", "tandem"},
        {"reconnect.backoff.ms", "50"},
        {"reconnect.backoff.max.ms", "1000"},
        {"retry.backoff.ms", "50"},
        {"topic.metadata.refresh.fast.interval.ms", "50"},
        {"socket.nagle.disable", "true"},
        {"socket.keepalive.enable", "true"},
    };
    static const char *const reading[][2] = {
        {"fetch.error.backoff.ms", "50"},
        // A reader that has missed a change of the leader goes on at a follower, a little behind.
        {"topic.metadata.refresh.interval.ms", "5000"},
        // For each partition. When it is full the library rests for a second, so there is room for
        // several of the largest usual records.
        {"queued.max.messages.kbytes", "16384"},
    };
    enum td_rc rc = TD_OK;
    for (size_t i = 0; rc == TD_OK && i < sizeof common / sizeof *common; i++) {
        rc = set(conf, common[i][0], common[i][1], err);
    }
    // A request that a broker does not answer is sent again, over a new connection, in time.
    int64_t request_ms = timeout_ms / 2 < 1000 ? 1000 : timeout_ms / 2;
    rc = rc == TD_OK ? set_number(conf, "socket.timeout.ms", request_ms, err) : rc;
    if (role == TD_KAFKA_PRODUCER) {
        return rc == TD_OK ? set(conf, "queue.buffering.max.ms", "0", err) : rc;
    }
    for (size_t i = 0; rc == TD_OK && i < sizeof reading / sizeof *reading; i++) {
        rc = set(conf, reading[i][0], reading[i][1], err);
    }
    // What is asked while a fetch waits for news must wait as long.
    bool tails = role == TD_KAFKA_READER;
    rc = rc == TD_OK ? set_number(conf, "fetch.wait.max.ms", tails ? 100 : 1, err) : rc;
    return rc == TD_OK ? set_number(conf, "fetch.message.max.bytes", tails ? 1 << 20 : 1 << 14, err)
                       : rc;
}

// What the promises of log.h rest on. One request in flight: with more, a batch that a new topic
// refused can be taken for stored when the next one was.
static enum td_rc set_promises(rd_kafka_conf_t *conf, const struct td_log_kafka_opts *opts,
                               enum td_kafka_role role, struct td_err *err) {
    static const char *const producer[][2] = {
        {"enable.idempotence", "true"},
        {"acks", "all"},
        {"max.in.flight.requests.per.connection", "1"},
        {"message.timeout.ms", "0"}, // the log has deadlines of its own
    };
    static const char *const reading[][2] = {
        {"auto.offset.reset", "error"},
        {"enable.auto.commit", "false"},
        {"enable.auto.offset.store", "false"},
        {"enable.partition.eof", "true"},
        {"check.crcs", "true"},
        {"allow.auto.create.topics", "false"},
        {"isolation.level", "read_uncommitted"},
    };
    bool writes = role == TD_KAFKA_PRODUCER;
    const char *const(*pairs)[2] = writes ? producer : reading;
    size_t count = writes ? sizeof producer / sizeof *producer : sizeof reading / sizeof *reading;
    enum td_rc rc = set(conf, "bootstrap.servers", opts->brokers, err);
    rc = rc == TD_OK ? set_number(conf, "message.max.bytes", TD_KAFKA_MESSAGE_BYTES_MAX, err) : rc;
    for (size_t i = 0; rc == TD_OK && i < count; i++) {
        rc = set(conf, pairs[i][0], pairs[i][1], err);
    }
    return rc;
}

static enum td_rc set_all(rd_kafka_conf_t *conf, const struct td_log_kafka_opts *opts,
                          enum td_kafka_role role, struct td_err *err) {
    struct td_kafka_settings settings = {0};
    enum td_rc rc = td_kafka_settings_read(opts->properties, &settings, err);
    rc = rc == TD_OK ? set_defaults(conf, role, td_kafka_timeout(opts), err) : rc;
    for (size_t i = 0; rc == TD_OK && i < settings.count; i++) {
        const struct td_kafka_setting *s = &settings.items[i];
        if (strncmp(s->key, "create.", strlen("create.")) != 0) {
            rc = set(conf, s->key, s->value, err);
            rc = rc == TD_OK ? rc : td_err_in(err, "%s", opts->properties);
        }
    }
    rc = rc == TD_OK ? set_promises(conf, opts, role, err) : rc;
    td_kafka_settings_fini(&settings);
    return rc;
}

enum td_rc td_kafka_client_new(const struct td_log_kafka_opts *opts, enum td_kafka_role role,
                               void *user, struct td_kafka_client **out, struct td_err *err) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    enum td_rc rc = set_all(conf, opts, role, err);
    if (rc != TD_OK) {
        rd_kafka_conf_destroy(conf);
        return rc;
    }
    struct td_kafka_client *client = td_alloc(sizeof *client);
    client->user = user;
    client->brokers = td_strdup(opts->brokers);
    pthread_mutex_init(&client->mutex, NULL);
    rd_kafka_conf_set_opaque(conf, client);
    rd_kafka_conf_set_log_cb(conf, on_complaint);
    rd_kafka_conf_set_error_cb(conf, on_error);
    bool writes = role == TD_KAFKA_PRODUCER;
    if (writes) {
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    }
    char why[256];
    client->rk =
        rd_kafka_new(writes ? RD_KAFKA_PRODUCER : RD_KAFKA_CONSUMER, conf, why, sizeof why);
    if (!client->rk) {
        rd_kafka_conf_destroy(conf);
        td_kafka_client_free(client);
        return td_fail(err, TD_EINVAL, "a client for Kafka: %s", why);
    }
    *out = client;
    return TD_OK;
}

// ---- the end of a client

// librdkafka 2.0 may wait for ever in rd_kafka_destroy where a topic was deleted while it was read.
// So a thread of its own calls it, and is left behind, with the client, when it does not come back.
struct ending {
    struct td_kafka_client *client;
    pthread_mutex_t mutex;
    pthread_cond_t done;
    bool ended, left; // guarded
};

static void client_fini(struct td_kafka_client *client) {
    pthread_mutex_destroy(&client->mutex);
    td_free(client->brokers);
    td_free(client);
}

static void ending_free(struct ending *e) {
    client_fini(e->client);
    pthread_cond_destroy(&e->done);
    pthread_mutex_destroy(&e->mutex);
    td_free(e);
}

static void *destroy(void *user) {
    struct ending *e = user;
    rd_kafka_destroy(e->client->rk);
    pthread_mutex_lock(&e->mutex);
    e->ended = true;
    bool left = e->left;
    pthread_cond_signal(&e->done);
    pthread_mutex_unlock(&e->mutex);
    if (left) {
        ending_free(e);
    }
    return NULL;
}

// Whether it has ended within END_MS.
static bool await_end(struct ending *e) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_MS / 1000;
    pthread_mutex_lock(&e->mutex);
    int rc = 0;
    while (!e->ended && rc == 0) {
        rc = pthread_cond_timedwait(&e->done, &e->mutex, &until);
    }
    bool ended = e->ended;
    e->left = !ended;
    pthread_mutex_unlock(&e->mutex);
    return ended;
}

void td_kafka_client_free(struct td_kafka_client *client) {
    if (!client) {
        return;
    }
    if (!client->rk || client->user) { // a producer reads nothing, and has what is not its own
        if (client->rk) {
            rd_kafka_destroy(client->rk);
        }
        client_fini(client);
        return;
    }
    struct ending *e = td_alloc(sizeof *e);
    e->client = client;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&e->done, &clock);
    pthread_condattr_destroy(&clock);
    pthread_t thread;
    if (pthread_create(&thread, NULL, destroy, e) == 0) {
        pthread_detach(thread);
    } else {
        (void)destroy(e); // here, then
    }
    if (await_end(e)) {
        ending_free(e);
    } else {
        td_trace_warn("kafka client left behind", "cause=\"it does not end within %d ms\"", END_MS);
    }
}
