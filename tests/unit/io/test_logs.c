// Logs by name: creating, opening, deleting. Over Kafka when TD_KAFKA=HOST:PORT names a broker.
#include "lib/io/logs.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "tests/unit/io/logs.h"

struct place {
    struct td_loop *loop;
    char *folder;
    struct td_logs logs;
};

static int begin(void **state) {
    struct place *place = td_alloc(sizeof *place);
    place->loop = new_loop();
    place->folder = new_folder();
    place->logs = (struct td_logs){.kind = TD_LOGS_FILE, .folder = place->folder, .fsync = true};
    *state = place;
    return 0;
}

static int end(void **state) {
    struct place *place = *state;
    td_loop_free(place->loop);
    drop_folder(place->folder);
    td_free(place);
    return 0;
}

static struct td_log *open_named(struct place *place, const char *name, uint64_t id) {
    struct td_log *log = NULL;
    struct td_err err;
    if (td_logs_open(place->loop, &place->logs, name, id, &log, &err) != TD_OK) {
        fail_msg("open %s: %s", name, err.msg);
    }
    return log;
}

static void test_logs_are_created_opened_and_deleted(void **state) {
    struct place *place = *state;
    struct td_log *log = NULL;
    struct td_err err;
    for (int fsync = 0; fsync <= 1; fsync++) {
        place->logs.fsync = fsync;
        assert_int_equal(td_logs_open(place->loop, &place->logs, "journal", 0, &log, &err),
                         TD_ENOENT);
        assert_int_equal(td_logs_create(&place->logs, "journal", 7, 1, &err), TD_OK);
        assert_int_equal(td_logs_create(&place->logs, "journal", 7, 1, &err), TD_ECONFLICT);
        assert_int_equal(td_logs_create(&place->logs, "rollout-00000000000000aa", 0xaa, 4, &err),
                         TD_OK);
        log = open_named(place, "journal", 0);
        assert_int_equal(td_log_id(log), 7);
        assert_int_equal(append_ok(place->loop, log, "one"), 0);
        close_log(place->loop, log);
        log = open_named(place, "rollout-00000000000000aa", 0xaa);
        assert_int_equal(td_log_partitions(log), 4);
        close_log(place->loop, log);
        assert_int_equal(td_logs_open(place->loop, &place->logs, "journal", 8, &log, &err),
                         TD_ECONFLICT);
        assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_OK);
        assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_OK); // not there
        assert_int_equal(td_logs_open(place->loop, &place->logs, "journal", 0, &log, &err),
                         TD_ENOENT);
        close_log(place->loop, open_named(place, "rollout-00000000000000aa", 0));
        assert_int_equal(td_logs_delete(&place->logs, "rollout-00000000000000aa", &err), TD_OK);
        assert_int_equal(rmdir(place->folder), 0); // nothing is left
        assert_int_equal(mkdir(place->folder, 0777), 0);
    }
}

// Asked first, then attached with what is known.
static void ask_and_attach(struct place *place, uint64_t id, uint32_t partitions) {
    struct td_logs_known known = {0};
    struct td_log *log = NULL;
    struct td_err err;
    assert_int_equal(td_logs_ask(&place->logs, "journal", &known, &err), TD_OK);
    assert_true(known.id == id && known.partitions == partitions);
    assert_int_equal(td_logs_attach(place->loop, &place->logs, "journal", &known, &log, &err),
                     TD_OK);
    assert_true(td_log_id(log) == id && td_log_partitions(log) == partitions);
    close_log(place->loop, log);
    known.id = id + 1;
    assert_int_equal(td_logs_ask(&place->logs, "journal", &known, &err), TD_ECONFLICT);
}

static void test_logs_are_asked_and_attached(void **state) {
    struct place *place = *state;
    struct td_logs_known known = {0};
    struct td_err err;
    assert_int_equal(td_logs_ask(&place->logs, "journal", &known, &err), TD_ENOENT);
    assert_int_equal(td_logs_ask(&place->logs, "../x", &known, &err), TD_EINVAL);
    assert_int_equal(td_logs_create(&place->logs, "journal", 9, 5, &err), TD_OK);
    ask_and_attach(place, 9, 5);
}

static void test_logs_delete_finishes_what_was_cut_short(void **state) {
    struct place *place = *state;
    struct td_err err;
    assert_int_equal(td_logs_create(&place->logs, "journal", 7, 1, &err), TD_OK);
    char *path = td_asprintf("%s/journal", place->folder);
    char *gone = td_asprintf("%s/journal.deleted", place->folder);
    assert_int_equal(rename(path, gone), 0);
    assert_int_equal(td_logs_create(&place->logs, "journal", 8, 1, &err), TD_OK);
    assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_OK);
    assert_false(td_file_exists(gone));
    assert_false(td_file_exists(path));
    td_free(gone);
    td_free(path);
}

// A name cannot lead out of the folder.
static void test_logs_refuse_other_names(void **state) {
    struct place *place = *state;
    struct td_log *log = NULL;
    struct td_err err;
    static const char *const names[] = {"",    ".",       "..",  "../x", "a/b",
                                        "-rf", "Journal", "a.b", "a b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(td_logs_create(&place->logs, names[i], 1, 1, &err), TD_EINVAL);
        assert_int_equal(td_logs_open(place->loop, &place->logs, names[i], 1, &log, &err),
                         TD_EINVAL);
        assert_int_equal(td_logs_delete(&place->logs, names[i], &err), TD_EINVAL);
        assert_non_null(strstr(err.msg, "is no name of a log"));
    }
}

static void test_logs_delete_only_folders(void **state) {
    struct place *place = *state;
    struct td_err err;
    char *path = td_asprintf("%s/journal", place->folder);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_EINVAL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(td_file_write(path, "x", 1, &err), TD_OK);
    assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_EINVAL);
    assert_true(td_file_exists(path));
    td_free(path);
}

// ---- Kafka

static int begin_kafka(void **state) {
    (void)begin(state);
    struct place *place = *state;
    place->logs = (struct td_logs){.kind = TD_LOGS_KAFKA,
                                   .brokers = getenv("TD_KAFKA"),
                                   .prefix = "test_logs",
                                   .timeout_ms = 20000};
    assert_int_equal(td_logs_delete(&place->logs, "journal", NULL), TD_OK);
    return 0;
}

static int end_kafka(void **state) {
    struct place *place = *state;
    assert_int_equal(td_logs_delete(&place->logs, "journal", NULL), TD_OK);
    return end(state);
}

static void test_logs_on_kafka(void **state) {
    struct place *place = *state;
    struct td_log *log = NULL;
    struct td_err err;
    const uint64_t ids[] = {7, UINT64_C(0xfedcba9876543210)};
    for (int i = 0; i < 2; i++) {
        place->logs.fsync = i;
        assert_int_equal(td_logs_open(place->loop, &place->logs, "journal", 0, &log, &err),
                         TD_ENOENT);
        assert_non_null(strstr(err.msg, "test_logs.journal"));
        assert_int_equal(td_logs_create(&place->logs, "journal", ids[i], 3, &err), TD_OK);
        assert_int_equal(td_logs_create(&place->logs, "journal", ids[i], 3, &err), TD_ECONFLICT);
        assert_int_equal(td_logs_open(place->loop, &place->logs, "journal", 8, &log, &err),
                         TD_ECONFLICT);
        log = open_named(place, "journal", 0); // the topic knows
        assert_int_equal(td_log_id(log), ids[i]);
        assert_int_equal(td_log_partitions(log), 3);
        assert_int_equal(append_ok(place->loop, log, "one"), 0); // nothing of the one before
        struct seen seen;
        read_news(place->loop, log, 0, 1, false, &seen);
        assert_string_equal(td_buf_str(&seen.text), "0=one ");
        seen_fini(&seen);
        close_log(place->loop, log);
        close_log(place->loop, open_named(place, "journal", ids[i]));
        assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_OK);
        assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_OK); // not there
    }
}

static void write_settings(struct place *place, const char *path, const char *text) {
    struct td_err err;
    assert_int_equal(td_file_write(path, text, strlen(text), &err), TD_OK);
    place->logs.properties = path;
}

static void test_logs_on_kafka_with_settings(void **state) {
    struct place *place = *state;
    struct td_err err;
    char *path = td_asprintf("%s/settings", place->folder);
    static const struct {
        const char *text;
        enum td_rc rc;
    } rows[] = {
        {"create.replication.factor=7\n", TD_EINVAL}, // of one broker
        {"create.replication.factor=none\n", TD_EINVAL},
        {"create.no.such=1\n", TD_EINVAL},
        {"create.min.insync.replicas=often\n", TD_EINVAL},
        {"create.replication.factor=1\ncreate.min.insync.replicas=1\nclient.id=x\n", TD_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_settings(place, path, rows[i].text);
        enum td_rc rc = td_logs_create(&place->logs, "journal", 7, 1, &err);
        if (rc != rows[i].rc) {
            fail_msg("%s: %s: %s", rows[i].text, td_rc_name(rc), err.msg);
        }
    }
    close_log(place->loop, open_named(place, "journal", 7));
    place->logs.properties = NULL;
    td_free(path);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, begin, end)
#define KAFKA(test) cmocka_unit_test_setup_teardown(test, begin_kafka, end_kafka)

int main(void) {
    const struct CMUnitTest here[] = {
        ONE(test_logs_are_created_opened_and_deleted),
        ONE(test_logs_are_asked_and_attached),
        ONE(test_logs_delete_finishes_what_was_cut_short),
        ONE(test_logs_refuse_other_names),
        ONE(test_logs_delete_only_folders),
    };
    const struct CMUnitTest kafka[] = {
        KAFKA(test_logs_on_kafka),
        KAFKA(test_logs_on_kafka_with_settings),
        KAFKA(test_logs_are_asked_and_attached),
        KAFKA(test_logs_refuse_other_names),
    };
    return getenv("TD_KAFKA") ? cmocka_run_group_tests(kafka, NULL, NULL)
                              : cmocka_run_group_tests(here, NULL, NULL);
}
