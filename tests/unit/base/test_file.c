// Files: whole reads with a limit, atomic writes, folders, removal, digests, and their errors.
#include "lib/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"

struct place {
    char dir[64];
    char *path; // dir/x
};

static int begin(void **state) {
    struct place *place = td_alloc(sizeof *place);
    memcpy(place->dir, "/tmp/td_file_XXXXXX", 20);
    assert_non_null(mkdtemp(place->dir));
    place->path = td_asprintf("%s/x", place->dir);
    *state = place;
    return 0;
}

static int end(void **state) {
    struct place *place = *state;
    assert_int_equal(td_remove_tree(place->dir, NULL), TD_OK);
    assert_false(td_file_exists(place->dir));
    td_free(place->path);
    td_free(place);
    return 0;
}

static void test_file_reads_with_a_limit(void **state) {
    struct place *place = *state;
    struct td_buf out = {0};
    struct td_err err;
    td_buf_puts(&out, "old");
    assert_int_equal(td_file_read(place->path, 10, &out, &err), TD_ENOENT);
    assert_non_null(strstr(err.msg, place->path));
    assert_int_equal(td_file_write(place->path, "0123456789", 10, &err), TD_OK);
    assert_int_equal(td_file_read(place->path, 10, &out, &err), TD_OK);
    assert_string_equal(td_buf_str(&out), "0123456789");
    assert_int_equal(td_file_read(place->path, 9, &out, &err), TD_ELIMIT);
    assert_non_null(strstr(err.msg, "9 bytes"));
    assert_int_equal(td_file_read(place->dir, 10, &out, &err), TD_EIO); // a folder
    assert_int_equal(td_file_write(place->path, "", 0, &err), TD_OK);
    assert_int_equal(td_file_read(place->path, 0, &out, &err), TD_OK);
    assert_string_equal(td_buf_str(&out), "");
    td_buf_fini(&out);
}

// A write that fails leaves the old content and no temporary file.
static void test_file_write_is_all_or_nothing(void **state) {
    struct place *place = *state;
    struct td_buf out = {0};
    struct td_err err;
    uint8_t *big = td_alloc(1 << 20);
    struct rlimit before, small = {1 << 16, RLIM_INFINITY};
    assert_int_equal(td_file_write(place->path, "old", 3, &err), TD_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum td_rc rc = td_file_write(place->path, big, 1 << 20, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, TD_ENOSPC);
    assert_non_null(strstr(err.msg, place->path));
    assert_int_equal(td_file_read(place->path, 100, &out, &err), TD_OK);
    assert_string_equal(td_buf_str(&out), "old");
    assert_int_equal(unlink(place->path), 0);
    assert_int_equal(rmdir(place->dir), 0); // nothing else was left
    assert_int_equal(mkdir(place->dir, 0777), 0);
    assert_int_equal(td_file_write(place->path, big, 1 << 20, &err), TD_OK);
    uint64_t digest = 0, size = 0;
    assert_int_equal(td_file_digest(place->path, &digest, &size, &err), TD_OK);
    assert_true(size == 1 << 20 && digest == td_digest64(0, big, 1 << 20));
    td_free(big);
    td_buf_fini(&out);
}

// What a killed writer left goes; everything else stays.
static void test_file_sweep(void **state) {
    struct place *place = *state;
    static const struct {
        const char *name;
        bool stays;
    } files[] = {{"1.jsonl.tmp.77", false},   {"a.tmp.3.jsonl.tmp.9", false},
                 {"1.jsonl", true},           {"1.json.tmp.77", true},
                 {"1.jsonl.tmp.", true},      {"1.jsonl.tmp.7x", true},
                 {"1.jsonl.tmp.7.tmp", true}, {"jsonl.tmp.7", true}};
    struct td_err err;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = td_asprintf("%s/%s", place->dir, files[i].name);
        assert_int_equal(td_file_write(path, "x", 1, &err), TD_OK);
        td_free(path);
    }
    assert_int_equal(td_file_sweep(place->dir, ".jsonl", &err), TD_OK);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = td_asprintf("%s/%s", place->dir, files[i].name);
        assert_int_equal(td_file_exists(path), files[i].stays);
        (void)unlink(path);
        td_free(path);
    }
    assert_int_equal(td_file_sweep("/no/such/folder", ".jsonl", &err), TD_OK);
    assert_int_equal(td_file_write(place->path, "a", 1, &err), TD_OK);
    assert_int_equal(td_file_sweep(place->path, ".jsonl", &err), TD_ENOENT); // a file
}

static void test_file_write_errors_name_the_path(void **state) {
    struct place *place = *state;
    struct td_err err;
    char *path = td_asprintf("%s/none/x", place->dir);
    assert_int_equal(td_file_write(path, "a", 1, &err), TD_ENOENT);
    assert_non_null(strstr(err.msg, path));
    td_free(path);
    path = td_asprintf("%s/folder", place->dir);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(td_file_write(path, "a", 1, &err), TD_EIO); // rename over a folder
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(place->dir), 0); // no temporary file was left
    assert_int_equal(mkdir(place->dir, 0777), 0);
    td_free(path);
}

static void test_file_digest_is_of_pieces(void **state) {
    struct place *place = *state;
    struct td_err err;
    size_t n = (1 << 20) + 5;
    uint8_t *bytes = td_alloc(n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(i * 7);
    }
    uint64_t digest = 0, size = 0, want = td_digest64(0, bytes, 1 << 20);
    want = td_digest64(want, bytes + (1 << 20), 5);
    assert_int_equal(td_file_digest(place->path, &digest, &size, &err), TD_ENOENT);
    assert_int_equal(td_file_write(place->path, bytes, n, &err), TD_OK);
    assert_int_equal(td_file_digest(place->path, &digest, &size, &err), TD_OK);
    assert_true(digest == want && size == n);
    td_free(bytes);
}

static void test_file_write_all_and_pread_all(void **state) {
    struct place *place = *state;
    struct td_err err;
    int fd = open(place->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    char got[6] = {0};
    assert_int_equal(td_write_all(fd, "hello", 5, &err), TD_OK);
    assert_int_equal(td_pread_all(fd, got, 4, 1, &err), TD_OK);
    assert_string_equal(got, "ello");
    assert_int_equal(td_pread_all(fd, got, 5, 1, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "ends early at byte 5"));
    close(fd);
    assert_int_equal(td_write_all(-1, "x", 1, &err), TD_EIO);
    assert_int_equal(td_pread_all(-1, got, 1, 0, &err), TD_EIO);
    fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_int_equal(td_write_all(fd, "x", 1, &err), TD_ENOSPC);
    close(fd);
}

static void test_file_makes_folders(void **state) {
    struct place *place = *state;
    struct td_err err;
    char *deep = td_asprintf("%s/a/b//c/", place->dir), *under = td_asprintf("%s/y", place->path);
    assert_int_equal(td_make_dirs(deep, &err), TD_OK);
    assert_int_equal(td_make_dirs(deep, &err), TD_OK);
    assert_true(td_file_exists(deep));
    assert_int_equal(td_sync_dir(deep, &err), TD_OK);
    assert_int_equal(td_make_dirs("", &err), TD_EINVAL);
    assert_int_equal(td_make_dirs("/", &err), TD_OK);
    assert_int_equal(td_file_write(place->path, "", 0, &err), TD_OK);
    assert_int_equal(td_make_dirs(place->path, &err), TD_EIO); // a file is there
    assert_non_null(strstr(err.msg, "not a folder"));
    assert_int_equal(td_make_dirs(under, &err), TD_ENOENT);
    assert_int_equal(td_sync_dir(place->path, &err), TD_ENOENT);
    td_free(deep);
    td_free(under);
}

// Links are removed, never followed; what they point to stays.
static void test_file_removes_trees(void **state) {
    struct place *place = *state;
    struct td_err err;
    char *tree = td_asprintf("%s/t", place->dir), *deep = td_asprintf("%s/t/a/b", place->dir);
    char *file = td_asprintf("%s/file", deep), *link = td_asprintf("%s/link", deep);
    char *dir_link = td_asprintf("%s/t/loop", place->dir);
    assert_int_equal(td_file_write(place->path, "kept", 4, &err), TD_OK);
    assert_int_equal(td_make_dirs(deep, &err), TD_OK);
    assert_int_equal(td_file_write(file, "", 0, &err), TD_OK);
    assert_int_equal(symlink(place->path, link), 0);
    assert_int_equal(symlink("..", dir_link), 0);
    assert_int_equal(td_remove_tree(tree, &err), TD_OK);
    assert_false(td_file_exists(tree));
    assert_true(td_file_exists(place->path));
    assert_int_equal(td_remove_tree(tree, &err), TD_OK); // not there: fine
    assert_int_equal(td_remove_tree(place->path, &err), TD_OK);
    assert_false(td_file_exists(place->path));
    void *const all[] = {tree, deep, file, link, dir_link};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        ONE(test_file_reads_with_a_limit),
        ONE(test_file_write_is_all_or_nothing),
        ONE(test_file_write_errors_name_the_path),
        ONE(test_file_sweep),
        ONE(test_file_digest_is_of_pieces),
        ONE(test_file_write_all_and_pread_all),
        ONE(test_file_makes_folders),
        ONE(test_file_removes_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
