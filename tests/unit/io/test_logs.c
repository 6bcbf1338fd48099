// Logs by name, file kind: creating, opening, deleting.
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
    assert_int_equal(td_remove_tree(place->folder, NULL), TD_OK);
    td_free(place->folder);
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

// A name cannot lead out of the folder, and only folders are deleted.
static void test_logs_refuse_other_names_and_things(void **state) {
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
    char *path = td_asprintf("%s/journal", place->folder);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_EINVAL);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(td_file_write(path, "x", 1, &err), TD_OK);
    assert_int_equal(td_logs_delete(&place->logs, "journal", &err), TD_EINVAL);
    assert_true(td_file_exists(path));
    td_free(path);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        ONE(test_logs_are_created_opened_and_deleted),
        ONE(test_logs_delete_finishes_what_was_cut_short),
        ONE(test_logs_refuse_other_names_and_things),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
