// The Kafka log over librdkafka's mock cluster: what brokers answer when things go wrong. What must
// survive a broker is tested with a real one (tests/integration/logs.py): the mock keeps
// nothing, and can neither make nor trim topics.
#include "lib/io/log_kafka.h"

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/io/log_kafka_int.h"
#include "lib/io/workq.h"
#include "tests/unit/io/logs.h"

enum { LOG_ID = 0x1234, PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, PARTITIONS = 2 };

static const char topic[] = "unit.journal";

struct place {
    struct td_loop *loop;
    char *folder, *settings;
    rd_kafka_t *rk; // of the cluster, and of messages that are not the log's
    rd_kafka_mock_cluster_t *cluster;
    struct td_log_kafka_opts opts;
    struct td_log *log;
};

static struct td_log *attach(struct place *place) {
    struct td_log *log = NULL;
    struct td_err err;
    if (td_log_kafka_attach(place->loop, &place->opts, &log, &err) != TD_OK) {
        fail_msg("attach: %s", err.msg);
    }
    return log;
}

static int begin(void **state) {
    struct place *place = td_alloc(sizeof *place);
    place->loop = new_loop();
    place->folder = new_folder();
    place->settings = td_asprintf("%s/settings", place->folder);
    // The mock lets an empty fetch wait for its whole time.
    static const char text[] = "# of the mock\n\nfetch.wait.max.ms = 5\ncreate.x=ignored\n";
    assert_int_equal(td_file_write(place->settings, text, strlen(text), NULL), TD_OK);
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    assert_int_equal(rd_kafka_conf_set(conf, "log_level", "0", why, sizeof why), 0);
    place->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    assert_non_null(place->rk);
    place->cluster = rd_kafka_mock_cluster_new(place->rk, 1);
    assert_int_equal(rd_kafka_mock_topic_create(place->cluster, topic, PARTITIONS, 1), 0);
    place->opts = (struct td_log_kafka_opts){
        .brokers = rd_kafka_mock_cluster_bootstraps(place->cluster),
        .topic = topic,
        .properties = place->settings,
        .timeout_ms = 20000,
        .id = LOG_ID,
        .partitions = PARTITIONS,
    };
    *state = place;
    return 0;
}

static int end(void **state) {
    struct place *place = *state;
    if (place->log) {
        close_log(place->loop, place->log);
    }
    rd_kafka_mock_cluster_destroy(place->cluster);
    rd_kafka_destroy(place->rk);
    td_loop_free(place->loop);
    drop_folder(place->folder);
    td_free(place->settings);
    td_free(place);
    return 0;
}

static void expect(struct place *place, int news, const char *want) {
    struct seen seen;
    read_news(place->loop, place->log, 0, news, true, &seen);
    assert_string_equal(td_buf_str(&seen.text), want);
    seen_fini(&seen);
}

// Errors that pass are nobody's business: every record is there, once, in order.
static void test_log_kafka_rides_out_what_passes(void **state) {
    struct place *place = *state;
    place->log = attach(place);
    rd_kafka_mock_push_request_errors(
        place->cluster, PRODUCE, 6, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, RD_KAFKA_RESP_ERR__TRANSPORT,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION);
    rd_kafka_mock_push_request_errors(place->cluster, FETCH, 3,
                                      RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
                                      RD_KAFKA_RESP_ERR__TRANSPORT, RD_KAFKA_RESP_ERR_UNKNOWN);
    struct td_buf want = {0};
    struct appended appended[30] = {0};
    for (int i = 0; i < 30; i++) {
        char text[16];
        snprintf(text, sizeof text, "r%d", i);
        append_begin(place->log, 0, text, false, &appended[i]);
        td_buf_printf(&want, "%d=%s ", i, text);
    }
    for (int i = 0; i < 30; i++) {
        wait_until(place->loop, &appended[i].count, 1);
        assert_int_equal(appended[i].outcome, TD_LOG_APPENDED);
        assert_int_equal(appended[i].offset, i);
    }
    expect(place, 30, td_buf_str(&want));
    td_buf_fini(&want);
}

// What the brokers answer to an append, and what it comes to.
static void test_log_kafka_outcomes(void **state) {
    struct place *place = *state;
    static const struct {
        rd_kafka_resp_err_t answer;
        enum td_log_outcome outcome;
        enum td_rc rc; // TD_OK: whatever
    } rows[] = {
        {RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, TD_LOG_FAILED, TD_ELIMIT},
        {RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER, TD_LOG_UNKNOWN, TD_OK},
        {RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH, TD_LOG_UNKNOWN, TD_OK},
        {RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, TD_LOG_UNKNOWN, TD_OK}, // fatal
    };
    place->log = attach(place);
    struct td_buf want = {0};
    int records = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rd_kafka_mock_push_request_errors(place->cluster, PRODUCE, 1, rows[i].answer);
        struct appended appended = append_text(place->loop, place->log, 0, "lost", false);
        if (appended.outcome != rows[i].outcome ||
            (rows[i].rc != TD_OK && appended.err.code != rows[i].rc)) {
            fail_msg("%s: outcome %d, %s: %s", rd_kafka_err2name(rows[i].answer), appended.outcome,
                     td_rc_name(appended.err.code), appended.err.msg);
        }
        assert_non_null(strstr(appended.err.msg, topic));
        assert_int_equal(append_ok(place->loop, place->log, "next"), records); // it goes on
        td_buf_printf(&want, "%d=next ", records++);
    }
    expect(place, records, td_buf_str(&want));
    td_buf_fini(&want);
    rd_kafka_mock_push_request_errors(place->cluster, PRODUCE, 1,
                                      RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    struct appended appended = append_text(place->loop, place->log, 0, "lost", false);
    assert_int_equal(appended.outcome, TD_LOG_FAILED);
    assert_int_equal(appended.err.code, TD_EPERM);
}

// The brokers are away: nothing ends, nothing fails for good, and all goes on when they are back.
static void test_log_kafka_outage(void **state) {
    struct place *place = *state;
    place->opts.timeout_ms = 1000;
    place->log = attach(place);
    struct seen tail, early;
    append_ok(place->loop, place->log, "before");
    read_news(place->loop, place->log, 0, 1, false, &tail);
    assert_int_equal(rd_kafka_mock_broker_set_down(place->cluster, -1), 0);
    struct appended appended = append_text(place->loop, place->log, 0, "x", false);
    assert_int_equal(appended.outcome, TD_LOG_UNKNOWN);
    assert_int_equal(appended.err.code, TD_ETIMEOUT);
    assert_true(appended.err.retriable);
    struct bounds bounds = bounds_of(place->loop, place->log, 0);
    assert_int_equal(bounds.rc, TD_ETIMEOUT);
    struct td_buf out = {0};
    assert_int_equal(td_log_read_one(place->log, 0, 0, td_crc32c(0, "before", 6), &out, NULL),
                     TD_ETIMEOUT);
    early = (struct seen){0}; // begins during the outage
    early.reader = td_log_read(place->log, 1, TD_LOG_FROM_START, &strict_fns, &early);
    assert_int_equal(rd_kafka_mock_broker_set_up(place->cluster, -1), 0);
    place->opts.timeout_ms = 20000;
    struct td_log *other = attach(place);
    assert_int_equal(append_ok(place->loop, other, "after"), 1); // "x" was given up for good
    wait_until(place->loop, &tail.news, 2);
    assert_string_equal(td_buf_str(&tail.text), "0=before 1=after ");
    assert_int_equal(append_text(place->loop, other, 1, "there", false).offset, 0);
    wait_until(place->loop, &early.news, 1);
    assert_string_equal(td_buf_str(&early.text), "0=there ");
    assert_int_equal(td_log_read_one(other, 0, 1, td_crc32c(0, "after", 5), &out, NULL), TD_OK);
    assert_true(tail.errors == 0 && early.errors == 0);
    seen_fini(&tail);
    seen_fini(&early);
    td_buf_fini(&out);
    close_log(place->loop, other);
}

// Closed amid an outage it does not wait for the whole deadline, and answers everything.
static void test_log_kafka_close_amid_an_outage(void **state) {
    struct place *place = *state;
    struct td_log *log = attach(place);
    append_ok(place->loop, log, "before");
    assert_int_equal(rd_kafka_mock_broker_set_down(place->cluster, -1), 0);
    struct appended appended = {0};
    append_begin(log, 0, "x", false, &appended);
    append_begin(log, 1, "y", false, &appended);
    int64_t began = td_clock_ms();
    close_log(place->loop, log);
    assert_int_equal(appended.count, 2);
    assert_int_equal(appended.outcome, TD_LOG_UNKNOWN);
    assert_true(td_clock_ms() - began < place->opts.timeout_ms);
}

struct read_call {
    struct td_log *log;
    enum td_rc rc;
    int done;
};

static void run_read(void *user) {
    struct read_call *c = user;
    struct td_buf out = {0};
    c->rc = td_log_read_one(c->log, 0, 0, 0, &out, NULL);
    td_buf_fini(&out);
}

static void end_read(void *user) {
    struct read_call *c = user;
    c->done = 1;
}

// A log that is to be closed can be, amid an outage: what waits for brokers gives up.
static void test_log_kafka_stop_amid_an_outage(void **state) {
    struct place *place = *state;
    place->log = attach(place);
    append_ok(place->loop, place->log, "before");
    assert_int_equal(rd_kafka_mock_broker_set_down(place->cluster, -1), 0);
    struct td_workq *workq = NULL;
    assert_int_equal(td_workq_new(place->loop, "read", 1, 1, &workq, NULL), TD_OK);
    int64_t began = td_clock_ms();
    struct read_call call = {.log = place->log};
    assert_true(td_workq_submit(workq, run_read, end_read, &call));
    td_log_stop(place->log);
    wait_until(place->loop, &call.done, 1);
    assert_int_equal(call.rc, TD_ETIMEOUT);
    struct bounds bounds = bounds_of(place->loop, place->log, 0);
    assert_int_equal(bounds.rc, TD_ETIMEOUT);
    assert_true(td_clock_ms() - began < place->opts.timeout_ms);
    td_workq_free(workq);
}

// ---- messages that are not the log's

static void put_message(struct place *place, const char *text, const void *mark, size_t n) {
    rd_kafka_headers_t *headers = rd_kafka_headers_new(1);
    if (mark) {
        assert_int_equal(rd_kafka_header_add(headers, "tandem", -1, mark, (ssize_t)n), 0);
    }
    assert_int_equal(rd_kafka_producev(place->rk, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(0),
                                       RD_KAFKA_V_VALUE((void *)text, strlen(text)),
                                       RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                                       RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END),
                     0);
    assert_int_equal(rd_kafka_flush(place->rk, WAIT_MS), 0);
}

static void test_log_kafka_foreign_messages(void **state) {
    struct place *place = *state;
    uint8_t mark[TD_KAFKA_MARK_BYTES];
    rd_kafka_brokers_add(place->rk, place->opts.brokers);
    place->log = attach(place);
    append_ok(place->loop, place->log, "ours");
    put_message(place, "plain", NULL, 0);
    td_kafka_mark_encode(LOG_ID + 1, td_crc32c(0, "other", 5), mark);
    put_message(place, "other", mark, sizeof mark);
    td_kafka_mark_encode(LOG_ID, td_crc32c(0, "wrong", 5), mark);
    put_message(place, "bytes", mark, sizeof mark);
    put_message(place, "short", mark, sizeof mark - 1);
    mark[0] = 2;
    put_message(place, "format", mark, sizeof mark);
    append_ok(place->loop, place->log, "ours");
    expect(place, 7, "0=ours bad1 bad2 bad3 bad4 bad5 6=ours ");
    struct seen strict;
    read_news(place->loop, place->log, 0, 2, false, &strict);
    assert_string_equal(td_buf_str(&strict.text), "0=ours error ");
    assert_int_equal(strict.err.code, TD_ECORRUPT);
    assert_non_null(strstr(strict.err.msg, "damaged at offset 1"));
    seen_fini(&strict);
    struct td_buf out = {0};
    struct td_err err;
    assert_int_equal(td_log_read_one(place->log, 0, 2, 0, &out, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "0000000000001235")); // whose it is
    assert_int_equal(td_log_read_one(place->log, 0, 6, td_crc32c(0, "ours", 4), &out, &err), TD_OK);
    td_buf_fini(&out);
}

// The mock keeps 5 MiB for a partition: the start moves, as when another process trims.
static void test_log_kafka_start_moves(void **state) {
    struct place *place = *state;
    enum { BYTES = 900000, COUNT = 12 };
    place->log = attach(place);
    char *text = td_alloc(BYTES + 1);
    memset(text, 'm', BYTES);
    struct seen late = {0};
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(append_ok(place->loop, place->log, text), i);
    }
    struct bounds bounds = bounds_of(place->loop, place->log, 0);
    assert_true(bounds.rc == TD_OK && bounds.start > 0 && bounds.end == COUNT);
    late.reader = td_log_read(place->log, 0, 1, &strict_fns, &late);
    wait_until(place->loop, &late.records, COUNT - (int)bounds.start);
    char want[32];
    snprintf(want, sizeof want, "gap%lld ", (long long)bounds.start);
    assert_int_equal(strncmp(td_buf_str(&late.text), want, strlen(want)), 0);
    assert_true(late.gaps == 1 && late.next == COUNT);
    struct td_buf out = {0};
    assert_int_equal(td_log_read_one(place->log, 0, 0, 0, &out, NULL), TD_ENOENT);
    assert_int_equal(td_log_read_one(place->log, 0, COUNT, 0, &out, NULL), TD_ENOENT);
    td_buf_fini(&out);
    seen_fini(&late);
    td_free(text);
}

static void *know_it_again(void *user) {
    struct place *place = user;
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    rd_kafka_mock_topic_set_error(place->cluster, topic, RD_KAFKA_RESP_ERR_NO_ERROR);
    return NULL;
}

// Brokers that have just started say of a topic that it is unknown: nobody gives up for that.
static void test_log_kafka_topic_unknown_for_a_moment(void **state) {
    struct place *place = *state;
    static const char text[] = "fetch.wait.max.ms=5\ntopic.metadata.refresh.interval.ms=50\n";
    assert_int_equal(td_file_write(place->settings, text, strlen(text), NULL), TD_OK);
    place->log = attach(place);
    assert_int_equal(append_ok(place->loop, place->log, "a"), 0);
    rd_kafka_mock_topic_set_error(place->cluster, topic, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
    enum td_log_outcome outcome = TD_LOG_APPENDED;
    int unseen = 0;
    for (; unseen < 200 && outcome == TD_LOG_APPENDED; unseen++) { // until the producer hears of it
        outcome = append_text(place->loop, place->log, 0, "b", false).outcome;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_int_equal(outcome, TD_LOG_UNKNOWN);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, know_it_again, place), 0);
    struct bounds bounds = bounds_of(place->loop, place->log, 0);
    assert_true(bounds.rc == TD_OK && bounds.start == 0 && bounds.end >= unseen);
    pthread_join(thread, NULL);
    struct appended last = {.outcome = TD_LOG_UNKNOWN};
    for (int i = 0; i < 200 && last.outcome == TD_LOG_UNKNOWN; i++) { // nothing is appended by it
        last = append_text(place->loop, place->log, 0, "c", false);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_int_equal(last.outcome, TD_LOG_APPENDED);
    assert_int_equal(last.offset, bounds.end);
}

static void test_log_kafka_reader_without_permission(void **state) {
    struct place *place = *state;
    place->log = attach(place);
    append_ok(place->loop, place->log, "r"); // an error at the very end would count as the end
    rd_kafka_mock_push_request_errors(place->cluster, FETCH, 1,
                                      RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    struct seen seen;
    read_news(place->loop, place->log, 0, 1, false, &seen);
    assert_int_equal(seen.errors, 1);
    assert_int_equal(seen.err.code, TD_EPERM);
    seen_fini(&seen);
}

static void test_log_kafka_settings(void **state) {
    struct place *place = *state;
    struct td_log *log = NULL;
    struct td_err err;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"a=b\n", "setting a=b"},
        {"fetch.wait.max.ms=5\nno equals\n", "settings:2: expected key=value"},
        {"=x", "settings:1: expected key=value"},
        {"fetch.wait.max.ms=often", "fetch.wait.max.ms=often"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(td_file_write(place->settings, rows[i].text, strlen(rows[i].text), NULL),
                         TD_OK);
        assert_int_equal(td_log_kafka_attach(place->loop, &place->opts, &log, &err), TD_EINVAL);
        assert_non_null(strstr(err.msg, rows[i].want));
    }
    place->opts.properties = "/nowhere/settings";
    assert_int_equal(td_log_kafka_attach(place->loop, &place->opts, &log, &err), TD_ENOENT);
    assert_non_null(strstr(err.msg, "/nowhere/settings"));
}

// Nobody listens: told at the deadline, with what the client saw.
static void test_log_kafka_no_broker(void **state) {
    struct place *place = *state;
    struct td_log *log = NULL;
    struct td_err err;
    place->opts.brokers = "127.0.0.1:1";
    place->opts.timeout_ms = 500;
    assert_int_equal(td_log_kafka_open(place->loop, &place->opts, &log, &err), TD_ETIMEOUT);
    assert_true(err.retriable);
    assert_non_null(strstr(err.msg, "127.0.0.1:1"));
    assert_int_equal(td_log_kafka_create(&place->opts, &err), TD_ETIMEOUT);
    assert_int_equal(td_log_kafka_delete(&place->opts, &err), TD_ETIMEOUT);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        ONE(test_log_kafka_rides_out_what_passes),
        ONE(test_log_kafka_outcomes),
        ONE(test_log_kafka_outage),
        ONE(test_log_kafka_close_amid_an_outage),
        ONE(test_log_kafka_stop_amid_an_outage),
        ONE(test_log_kafka_foreign_messages),
        ONE(test_log_kafka_start_moves),
        ONE(test_log_kafka_topic_unknown_for_a_moment),
        ONE(test_log_kafka_reader_without_permission),
        ONE(test_log_kafka_settings),
        ONE(test_log_kafka_no_broker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
