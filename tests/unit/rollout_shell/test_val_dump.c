// Validation samples: one file a step, whole, in the order of rows.
#include "controllers/rollout/val_dump.h"

#include <jansson.h>
#include <stdio.h>

#include "tests/unit/rollout_shell/rig.h"

enum { SAMPLES = 2 };

static struct td_episode *scored(struct rig *r, uint64_t ticket, uint64_t row, uint64_t step) {
    struct td_episode *g = rig_start(r, ticket, true, row, SAMPLES);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d%c", (int)(row * 7 + i), i ? '!' : '?');
        take(r, g, i, text);
    }
    g->version.step = step; // after take: only the dump looks at it from here on
    rig_score(r, g);
    return g;
}

static char *make_dump(struct rig *r, struct td_val_dump **out) {
    char *dir = tiny_job_path(&r->job, "deep/samples");
    *out = td_val_dump_new(dir, r->data);
    return dir;
}

static void expect_file(struct rig *r, const char *dir, uint64_t step) {
    char *path = td_asprintf("%s/%llu.jsonl", dir, (unsigned long long)step);
    struct td_buf text = {0}, prompt = {0};
    assert_int_equal(td_file_read(path, 1 << 20, &text, NULL), TD_OK);
    const char *at = td_buf_str(&text);
    for (uint64_t i = 0; i < TINY_JOB_VAL_ROWS * SAMPLES; i++) {
        struct td_row row;
        td_dataset_row(r->data->val, i / SAMPLES, &row);
        td_buf_clear(&prompt);
        td_tokenizer_decode(r->data->tokenizer, row.ids, row.n, true, &prompt);
        char want[16];
        snprintf(want, sizeof want, "%d%c", (int)(i / SAMPLES * 7 + i % SAMPLES),
                 i % SAMPLES ? '!' : '?');
        json_t *line = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(line);
        assert_string_equal(json_string_value(json_object_get(line, "input")), td_buf_str(&prompt));
        assert_string_equal(json_string_value(json_object_get(line, "output")), want);
        assert_string_equal(json_string_value(json_object_get(line, "gts")), row.ground_truth);
        assert_int_equal(json_integer_value(json_object_get(line, "step")), step);
        double score = json_real_value(json_object_get(line, "score"));
        assert_true(score == 0 || score == 1);
        json_decref(line);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    td_buf_fini(&text);
    td_buf_fini(&prompt);
    td_free(path);
}

static void write_and_free(struct td_val_file *f) {
    struct td_err err;
    assert_non_null(f);
    if (td_val_file_write(f, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_val_file_free(f);
}

// Rows come in any order, and some twice; the next validation makes the next file.
static void test_val_dump_files(void **state) {
    (void)state;
    struct rig r;
    struct td_val_dump *d;
    rig_init(&r);
    char *dir = make_dump(&r, &d);
    uint64_t ticket = 1;
    for (uint64_t step = 0; step <= 4; step += 2) {
        for (uint64_t i = 0; i < TINY_JOB_VAL_ROWS; i++) {
            uint64_t row = (i * 5 + step) % TINY_JOB_VAL_ROWS;
            struct td_val_file *f = td_val_dump_add(d, scored(&r, ticket++, row, step));
            if (i + 1 < TINY_JOB_VAL_ROWS) {
                assert_null(f);
                assert_null(td_val_dump_add(d, scored(&r, ticket++, row, step)));
            } else {
                write_and_free(f);
            }
        }
        expect_file(&r, dir, step);
    }
    td_val_dump_free(d);
    td_val_dump_free(NULL);
    td_val_file_free(NULL);
    td_free(dir);
    rig_fini(&r);
}

// A validation that was not finished leaves nothing in the next one, and no file.
static void test_val_dump_abandoned(void **state) {
    (void)state;
    struct rig r;
    struct td_val_dump *d;
    rig_init(&r);
    char *dir = make_dump(&r, &d), *path = td_asprintf("%s/1.jsonl", dir);
    uint64_t ticket = 1;
    for (uint64_t row = 0; row + 1 < TINY_JOB_VAL_ROWS; row++) {
        assert_null(td_val_dump_add(d, scored(&r, ticket++, row, 1)));
    }
    for (uint64_t row = 0; row < TINY_JOB_VAL_ROWS; row++) {
        struct td_val_file *f = td_val_dump_add(d, scored(&r, ticket++, row, 3));
        if (row + 1 < TINY_JOB_VAL_ROWS) {
            assert_null(f);
        } else {
            write_and_free(f);
        }
    }
    assert_false(td_file_exists(path));
    expect_file(&r, dir, 3);
    // The same step again, after a crash.
    for (uint64_t row = 0; row < TINY_JOB_VAL_ROWS; row++) {
        struct td_val_file *f = td_val_dump_add(d, scored(&r, ticket++, row, 3));
        if (f) {
            write_and_free(f);
        }
    }
    expect_file(&r, dir, 3);
    struct td_episode *beyond = scored(&r, ticket++, 0, 3);
    beyond->group.index = TINY_JOB_VAL_ROWS;
    assert_null(td_val_dump_add(d, beyond));
    td_val_dump_free(d);
    td_free(path);
    td_free(dir);
    rig_fini(&r);
}

static void test_val_dump_cannot_write(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r);
    tiny_job_put(&r.job, "file", "not a folder");
    char *dir = tiny_job_path(&r.job, "file");
    struct td_val_dump *d = td_val_dump_new(dir, r.data);
    for (uint64_t row = 0; row < TINY_JOB_VAL_ROWS; row++) {
        struct td_val_file *f = td_val_dump_add(d, scored(&r, row + 1, row, 3));
        struct td_err err = {0};
        if (f) {
            assert_int_not_equal(td_val_file_write(f, &err), TD_OK);
            assert_non_null(strstr(err.msg, "trainer.validation_data_dir"));
            assert_non_null(strstr(err.msg, dir));
        }
        td_val_file_free(f);
    }
    td_val_dump_free(d);
    td_free(dir);
    rig_fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_val_dump_files),
        cmocka_unit_test(test_val_dump_abandoned),
        cmocka_unit_test(test_val_dump_cannot_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
