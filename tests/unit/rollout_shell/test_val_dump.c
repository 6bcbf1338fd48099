// Validation samples: one file a step, whole, in the order of rows, whoever scored them.
#include "controllers/rollout/val_dump.h"

#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

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

static void dump(struct rig *r, uint64_t member, uint64_t ticket, uint64_t row, uint64_t step) {
    struct td_err err;
    char *run_dir = tiny_job_path(&r->job, "run");
    struct td_val_dump *d = td_val_dump_new(run_dir, member, r->data, scored(r, ticket, row, step));
    if (td_val_dump_write(d, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_val_dump_free(d);
    td_free(run_dir);
}

static enum td_rc merge(struct rig *r, uint64_t step, const char *dir, struct td_err *err) {
    char *run_dir = tiny_job_path(&r->job, "run"), *parts = td_asprintf("%s/validation", run_dir);
    enum td_rc rc = td_val_parts_merge(run_dir, step, TINY_JOB_VAL_ROWS, dir, err);
    assert_true(rc != TD_OK || !td_file_exists(parts));
    td_free(parts);
    td_free(run_dir);
    return rc;
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

// Rows come in any order, from any member, and some twice.
static void test_val_dump_files(void **state) {
    (void)state;
    struct rig r;
    struct td_err err = {0};
    rig_init(&r);
    char *dir = tiny_job_path(&r.job, "deep/samples");
    uint64_t ticket = 1;
    for (uint64_t step = 0; step <= 4; step += 2) {
        for (uint64_t i = 0; i < TINY_JOB_VAL_ROWS; i++) {
            uint64_t row = (i * 5 + step) % TINY_JOB_VAL_ROWS;
            dump(&r, i % 3, ticket++, row, step);
            dump(&r, step, ticket++, row, step);
        }
        assert_int_equal(merge(&r, step, dir, &err), TD_OK);
        expect_file(&r, dir, step);
    }
    assert_int_equal(merge(&r, 4, dir, &err), TD_OK); // closed again, after a crash
    expect_file(&r, dir, 4);
    td_val_dump_free(NULL);
    td_free(dir);
    rig_fini(&r);
}

// What a kill tore off is written again; rows that nobody has left are missed.
static void test_val_dump_torn(void **state) {
    (void)state;
    struct rig r;
    struct td_err err = {0};
    rig_init(&r);
    char *dir = tiny_job_path(&r.job, "samples"), *path = td_asprintf("%s/3.jsonl", dir);
    char *part = tiny_job_path(&r.job, "run/validation/3/0000000000000007");
    uint64_t ticket = 1;
    for (uint64_t row = 0; row + 1 < TINY_JOB_VAL_ROWS; row++) {
        dump(&r, 7, ticket++, row, 3);
    }
    FILE *f = fopen(part, "a");
    assert_non_null(f);
    assert_true(fputs("\n{\"row\":2,\"li", f) >= 0);
    assert_int_equal(fclose(f), 0);
    dump(&r, 7, ticket++, TINY_JOB_VAL_ROWS - 1, 3);
    assert_int_equal(merge(&r, 3, dir, &err), TD_OK);
    expect_file(&r, dir, 3);
    assert_int_equal(unlink(path), 0);
    dump(&r, 7, ticket++, 0, 3);
    assert_int_equal(merge(&r, 3, dir, &err), TD_OK);
    assert_false(td_file_exists(path));
    td_free(part);
    td_free(path);
    td_free(dir);
    rig_fini(&r);
}

static void test_val_dump_cannot_write(void **state) {
    (void)state;
    struct rig r;
    struct td_err err = {0};
    rig_init(&r);
    tiny_job_put(&r.job, "file", "not a folder");
    char *dir = tiny_job_path(&r.job, "file");
    for (uint64_t row = 0; row < TINY_JOB_VAL_ROWS; row++) {
        dump(&r, 1, row + 1, row, 3);
    }
    assert_int_not_equal(merge(&r, 3, dir, &err), TD_OK);
    assert_non_null(strstr(err.msg, "trainer.validation_data_dir"));
    assert_non_null(strstr(err.msg, dir));
    struct td_val_part part = {dir, 3, 1, 0, "{}\n"};
    assert_int_not_equal(td_val_part_append(&part, &err), TD_OK);
    assert_non_null(strstr(err.msg, dir));
    td_free(dir);
    rig_fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_val_dump_files),
        cmocka_unit_test(test_val_dump_torn),
        cmocka_unit_test(test_val_dump_cannot_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
