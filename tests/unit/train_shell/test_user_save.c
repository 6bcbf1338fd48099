// The user's checkpoints: whole or not, and announced when whole.
#include "controllers/train/user_save.h"

#include <jansson.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/text/folder.h"

enum { STATE_DIGEST = 0x51a7e };

static const char *const exported[] = {"actor/optimizer.safetensors",
                                       "actor/huggingface/config.json",
                                       "actor/huggingface/model.safetensors"};

struct fixture {
    char *dir, *folder, *latest;
    Tandem__Journal__Version version;
    Tandem__Journal__Checkpoint checkpoint;
    struct td_user_save save;
};

// The folder as a worker's export leaves it.
static void make(struct fixture *f, uint64_t step) {
    f->dir = folder_new();
    f->folder = td_asprintf("%s/global_step_%llu", f->dir, (unsigned long long)step);
    f->latest = td_asprintf("%s/latest_checkpointed_iteration.txt", f->dir);
    char *deep = td_asprintf("%s/actor/huggingface", f->folder);
    assert_int_equal(td_make_dirs(deep, NULL), TD_OK);
    td_free(deep);
    for (size_t i = 0; i < sizeof exported / sizeof *exported; i++) {
        folder_put(f->folder, exported[i], "contents", 8 - i);
    }
    tandem__journal__version__init(&f->version);
    tandem__journal__checkpoint__init(&f->checkpoint);
    f->version.step = step;
    f->checkpoint.job = 3;
    f->checkpoint.version = &f->version;
    f->checkpoint.state_digest = STATE_DIGEST;
    f->save = (struct td_user_save){f->folder, f->dir, f->dir, &f->checkpoint, {2, 17}, 99};
}

static void fini(struct fixture *f) {
    folder_fini(f->dir);
    td_free(f->folder);
    td_free(f->latest);
}

static json_t *read_json(const struct fixture *f, const char *name) {
    char *path = td_asprintf("%s/%s", f->folder, name);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    td_free(path);
    return root;
}

static void expect_latest(const struct fixture *f, const char *want) {
    struct td_buf text = {0};
    assert_int_equal(td_file_read(f->latest, 100, &text, NULL), TD_OK);
    assert_string_equal(td_buf_str(&text), want);
    td_buf_fini(&text);
}

static void test_user_save_is_whole(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    make(&f, 40);
    assert_false(td_user_save_is_whole(f.folder, STATE_DIGEST));
    assert_int_equal(td_user_save_finish(&f.save, &err), TD_OK);
    assert_true(td_user_save_is_whole(f.folder, STATE_DIGEST));
    assert_false(td_user_save_is_whole(f.folder, STATE_DIGEST + 1)); // of another state
    expect_latest(&f, "40");
    json_t *s = read_json(&f, "state.json");
    json_t *data = json_object_get(s, "data"), *rng = json_object_get(s, "rng");
    assert_int_equal(json_integer_value(json_object_get(s, "global_step")), 40);
    assert_int_equal(json_integer_value(json_object_get(data, "data_epoch")), 2);
    assert_int_equal(json_integer_value(json_object_get(data, "index")), 17);
    assert_int_equal(json_integer_value(json_object_get(rng, "seed")), 99);
    json_decref(s);
    json_t *m = read_json(&f, "manifest.json");
    json_t *files = json_object_get(m, "files");
    assert_int_equal(json_object_size(files), 4); // state.json is one of them
    for (size_t i = 0; i < 3; i++) {
        json_t *size = json_object_get(json_object_get(files, exported[i]), "size");
        assert_int_equal(json_integer_value(size), 8 - i);
    }
    json_decref(m);
    fini(&f);
}

// What somebody removed or cut afterwards is written again instead of believed in.
static void test_user_save_partly_there(void **state) {
    (void)state;
    static const char *const parts[] = {"actor/optimizer.safetensors",
                                        "actor/huggingface/config.json", "state.json",
                                        "manifest.json"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (int cut = 0; cut < 2; cut++) {
            struct fixture f;
            make(&f, 40);
            assert_int_equal(td_user_save_finish(&f.save, NULL), TD_OK);
            char *path = td_asprintf("%s/%s", f.folder, parts[i]);
            if (cut) {
                folder_put(f.folder, parts[i], "{", 1);
            } else {
                assert_int_equal(unlink(path), 0);
            }
            if (td_user_save_is_whole(f.folder, STATE_DIGEST)) {
                fail_msg("%s: %s, and yet whole", parts[i], cut ? "cut" : "removed");
            }
            td_free(path);
            fini(&f);
        }
    }
}

// A process that ended between the manifest and the announcement.
static void test_user_save_announced_later(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    make(&f, 40);
    assert_int_equal(td_user_save_finish(&f.save, &err), TD_OK);
    folder_put(f.dir, "latest_checkpointed_iteration.txt", "20", 2);
    assert_true(td_user_save_is_whole(f.folder, STATE_DIGEST));
    assert_int_equal(td_user_save_announce(&f.save, &err), TD_OK);
    expect_latest(&f, "40");
    fini(&f);
}

static void test_user_save_fails(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    make(&f, 40);
    char *actor = td_asprintf("%s/actor", f.folder);
    assert_int_equal(td_remove_tree(actor, NULL), TD_OK);
    assert_int_equal(td_user_save_finish(&f.save, &err), TD_ENOENT);
    expect_says(&err, "actor", 0);
    assert_false(td_file_exists(f.latest));
    assert_false(td_user_save_is_whole(f.folder, STATE_DIGEST));
    td_free(actor);
    fini(&f);
}

// A member that was stopped goes on with an old step when another one has saved newer ones.
static void test_user_save_announces_nothing_older(void **state) {
    (void)state;
    static const struct {
        uint64_t lineage, step;
        const char *latest;
    } rows[] = {{0, 3, "3"}, {0, 6, "6"}, {0, 3, "6"}, {0, 6, "6"}, {1, 4, "4"}, {0, 6, "4"}};
    struct fixture f;
    make(&f, 3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        f.version.lineage = rows[i].lineage;
        f.version.step = rows[i].step;
        assert_int_equal(td_user_save_announce(&f.save, NULL), TD_OK);
        expect_latest(&f, rows[i].latest);
    }
    fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_user_save_announces_nothing_older),
        cmocka_unit_test(test_user_save_is_whole),
        cmocka_unit_test(test_user_save_partly_there),
        cmocka_unit_test(test_user_save_announced_later),
        cmocka_unit_test(test_user_save_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
