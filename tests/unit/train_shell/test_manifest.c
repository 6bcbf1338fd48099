// Recovery folders: a manifest names every file, and whatever is flipped, cut or gone is named.
#include "controllers/train/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/text/folder.h"

static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "trainer.json"};
enum { NAMES = sizeof names / sizeof *names, FILE_BYTES = 3000 };

struct fixture {
    char *dir;
    uint64_t digest;
};

static void make(struct fixture *f) {
    f->dir = folder_new();
    Tandem__Worker__SavedFile file[NAMES], *files[NAMES];
    for (int i = 0; i < NAMES; i++) {
        uint8_t bytes[FILE_BYTES];
        memset(bytes, 'a' + i, sizeof bytes);
        folder_put(f->dir, names[i], bytes, (size_t)(FILE_BYTES - i));
        tandem__worker__saved_file__init(&file[i]);
        char *path = td_asprintf("%s/%s", f->dir, names[i]);
        assert_int_equal(td_file_digest(path, &file[i].digest, &file[i].size, NULL), TD_OK);
        td_free(path);
        file[i].name = (char *)names[i];
        files[i] = &file[i];
    }
    Tandem__Worker__Saved saved = TANDEM__WORKER__SAVED__INIT;
    saved.files = files;
    saved.n_files = NAMES;
    Tandem__Journal__Version version = TANDEM__JOURNAL__VERSION__INIT;
    Tandem__Journal__Checkpoint checkpoint = TANDEM__JOURNAL__CHECKPOINT__INIT;
    version.step = 12;
    checkpoint.id = 0xabcdef;
    checkpoint.version = &version;
    checkpoint.generation = 3;
    checkpoint.state_digest = UINT64_MAX;
    struct td_buf state = {0};
    td_buf_puts(&state, "the journal's state");
    struct td_err err;
    if (td_manifest_write(f->dir, &checkpoint, &saved, &state, &f->digest, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_buf_fini(&state);
}

static char *path_of(const struct fixture *f, const char *name) {
    return td_asprintf("%s/%s", f->dir, name);
}

static void test_manifest_verifies(void **state) {
    (void)state;
    struct fixture f, again;
    make(&f);
    make(&again);
    struct td_err err;
    assert_int_equal(f.digest, again.digest); // nothing of time or place is in it
    assert_int_equal(td_manifest_verify(f.dir, f.digest, &err), TD_OK);
    folder_put(f.dir, "notes.txt", "x", 1); // what it does not name does not matter
    assert_int_equal(td_manifest_verify(f.dir, f.digest, &err), TD_OK);
    assert_int_equal(td_manifest_verify(f.dir, f.digest ^ 1, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "manifest.json"));
    folder_fini(f.dir);
    folder_fini(again.dir);
}

static const char *const every[] = {"model.safetensors", "optimizer.safetensors", "trainer.json",
                                    "journal.state", "manifest.json"};

static void expect_named(const struct fixture *f, const char *name, enum td_rc code) {
    struct td_err err = {0};
    enum td_rc rc = td_manifest_verify(f->dir, f->digest, &err);
    if (rc != code || !strstr(err.msg, name)) {
        fail_msg("%s: %s: %s", name, td_rc_name(rc), err.msg);
    }
}

// One bit of each file in turn, in its first, middle and last byte.
static void test_manifest_flipped_bits(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        char *path = path_of(&f, every[i]);
        struct td_buf text = {0};
        assert_int_equal(td_file_read(path, 1 << 20, &text, NULL), TD_OK);
        const size_t places[] = {0, text.len / 2, text.len - 1};
        for (int k = 0; k < 3; k++) {
            text.data[places[k]] ^= 4;
            folder_put(f.dir, every[i], text.data, text.len);
            expect_named(&f, every[i], TD_ECORRUPT);
            text.data[places[k]] ^= 4;
        }
        folder_put(f.dir, every[i], text.data, text.len - 1); // cut
        expect_named(&f, every[i], TD_ECORRUPT);
        td_buf_puts(&text, "+"); // longer
        folder_put(f.dir, every[i], text.data, text.len);
        expect_named(&f, every[i], TD_ECORRUPT);
        folder_put(f.dir, every[i], text.data, text.len - 1);
        td_buf_fini(&text);
        td_free(path);
    }
    assert_int_equal(td_manifest_verify(f.dir, f.digest, NULL), TD_OK);
    folder_fini(f.dir);
}

static void test_manifest_missing_files(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        struct fixture f;
        make(&f);
        char *path = path_of(&f, every[i]);
        assert_int_equal(unlink(path), 0);
        expect_named(&f, every[i], TD_ENOENT);
        td_free(path);
        folder_fini(f.dir);
    }
}

// A folder that cannot be written is an error, and there is no manifest.
static void test_manifest_not_written(void **state) {
    (void)state;
    Tandem__Worker__Saved saved = TANDEM__WORKER__SAVED__INIT;
    Tandem__Journal__Version version = TANDEM__JOURNAL__VERSION__INIT;
    Tandem__Journal__Checkpoint checkpoint = TANDEM__JOURNAL__CHECKPOINT__INIT;
    checkpoint.version = &version;
    struct td_buf journal = {0};
    uint64_t digest = 7;
    struct td_err err;
    assert_int_equal(
        td_manifest_write("/no/such/folder", &checkpoint, &saved, &journal, &digest, &err),
        TD_ENOENT);
    assert_non_null(strstr(err.msg, "/no/such/folder"));
    assert_int_equal(digest, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manifest_verifies),
        cmocka_unit_test(test_manifest_flipped_bits),
        cmocka_unit_test(test_manifest_missing_files),
        cmocka_unit_test(test_manifest_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
