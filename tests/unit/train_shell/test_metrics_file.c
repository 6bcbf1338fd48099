// metrics.jsonl: one line per step, in order, whatever a crash leaves behind.
#include "controllers/train/metrics_file.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/text/folder.h"

static struct td_metrics metrics_of(double loss) {
    struct td_metrics m = {0};
    td_metrics_add(&m, "train/loss", loss, TD_FOLD_LAST);
    return m;
}

static void stage(const char *dir, uint64_t step, double loss) {
    struct td_metrics m = metrics_of(loss);
    struct td_err err;
    const struct td_pos ref = {step ? (int64_t)step * 100 : -1, step ? 0xffffffff : 0};
    if (td_metrics_file_stage(dir, step, ref, &m, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

static void close_step(const char *dir, uint64_t step) {
    struct td_err err;
    if (td_metrics_file_close(dir, step, NULL, NULL, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

static struct td_metrics_on_disk open_file(const char *dir) {
    struct td_metrics_on_disk d = {0};
    struct td_err err;
    if (td_metrics_file_open(dir, &d, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return d;
}

static void read_lines(const char *dir, struct td_buf *out) {
    char *path = td_asprintf("%s/metrics.jsonl", dir);
    assert_int_equal(td_file_read(path, 1 << 20, out, NULL), TD_OK);
    td_free(path);
}

static void expect_steps(const char *dir, uint64_t first, uint64_t last) {
    struct td_buf text = {0};
    read_lines(dir, &text);
    const char *at = td_buf_str(&text);
    for (uint64_t step = first; step <= last; step++) {
        json_error_t why;
        json_t *line = json_loads(at, JSON_DISABLE_EOF_CHECK, &why);
        assert_non_null(line);
        assert_int_equal(json_integer_value(json_object_get(line, "step")), step);
        assert_int_equal(json_integer_value(json_object_get(line, "training/global_step")), step);
        json_decref(line);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    td_buf_fini(&text);
}

static void test_metrics_stage_and_close(void **state) {
    (void)state;
    char *dir = folder_new();
    struct td_metrics_on_disk d = open_file(dir);
    assert_true(!d.has_line && !d.has_staged);
    for (uint64_t step = 0; step < 4; step++) {
        stage(dir, step, 0.1 * (double)step);
        d = open_file(dir);
        assert_true(d.has_staged && d.staged_step == step && d.has_line == (step > 0));
        assert_int_equal(d.staged_ref.offset, step ? (int64_t)step * 100 : -1);
        assert_int_equal(d.staged_ref.crc, step ? 0xffffffff : 0);
        close_step(dir, step);
        d = open_file(dir);
        assert_true(d.has_line && d.step == step);
    }
    expect_steps(dir, 0, 3);
    folder_fini(dir);
}

// The line is there already: a member that led before was late.
static void test_metrics_closed_twice(void **state) {
    (void)state;
    char *dir = folder_new();
    struct td_metrics long_line = {0};
    char name[TD_METRIC_NAME_MAX];
    for (int i = 0; i < 60; i++) { // so that the end of the file does not begin with a line
        snprintf(name, sizeof name, "metric-%d", i);
        td_metrics_add(&long_line, name, 1.0 / 3, TD_FOLD_LAST);
    }
    for (uint64_t step = 0; step < 100; step++) {
        struct td_err err;
        const struct td_pos ref = {(int64_t)step, 1};
        assert_int_equal(td_metrics_file_stage(dir, step, ref, &long_line, &err), TD_OK);
        close_step(dir, step);
        close_step(dir, step);
    }
    stage(dir, 98, 0.5);
    close_step(dir, 98);
    assert_int_equal(open_file(dir).step, 99);
    folder_fini(dir);
}

// Numbers survive exactly; what is no number is null; extra metrics join the staged ones.
static void test_metrics_values(void **state) {
    (void)state;
    char *dir = folder_new();
    struct td_metrics m = metrics_of(1.0 / 3), extra = {0};
    td_metrics_add(&m, "actor/grad_norm", NAN, TD_FOLD_LAST);
    td_metrics_add(&m, "actor/lr", INFINITY, TD_FOLD_LAST);
    td_metrics_add(&extra, "val-core/sum/reward/mean@1", 0.25, TD_FOLD_LAST);
    struct td_err err;
    struct td_buf line = {0};
    td_buf_puts(&line, "what was here before");
    assert_int_equal(td_metrics_file_stage(dir, 1, (struct td_pos){5, 6}, &m, &err), TD_OK);
    assert_int_equal(td_metrics_file_close(dir, 1, &extra, &line, &err), TD_OK);
    struct td_buf text = {0};
    read_lines(dir, &text);
    assert_string_equal(td_buf_str(&text), td_buf_str(&line));
    json_t *root = json_loads(td_buf_str(&text), 0, NULL);
    assert_true(json_real_value(json_object_get(root, "train/loss")) == 1.0 / 3);
    assert_true(json_real_value(json_object_get(root, "val-core/sum/reward/mean@1")) == 0.25);
    assert_true(json_is_null(json_object_get(root, "actor/grad_norm")));
    assert_true(json_is_null(json_object_get(root, "actor/lr")));
    json_decref(root);
    td_buf_fini(&text);
    td_buf_fini(&line);
    folder_fini(dir);
}

// A line that was cut by a crash goes, at every possible place of the cut.
static void test_metrics_torn_line(void **state) {
    (void)state;
    char *dir = folder_new(), *path = td_asprintf("%s/metrics.jsonl", dir);
    struct td_buf text = {0};
    for (uint64_t step = 1; step <= 2; step++) {
        stage(dir, step, 0.5);
        close_step(dir, step);
    }
    read_lines(dir, &text);
    size_t first = (size_t)(strchr(td_buf_str(&text), '\n') + 1 - td_buf_str(&text));
    for (size_t n = first + 1; n < text.len; n++) {
        folder_put(dir, "metrics.jsonl", text.data, n);
        struct td_metrics_on_disk d = open_file(dir);
        assert_true(d.has_line && d.step == 1);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, first);
    }
    close_step(dir, 2); // the staged line is still there
    expect_steps(dir, 1, 2);
    folder_put(dir, "metrics.jsonl", "{\"st", 4); // the very first one
    assert_false(open_file(dir).has_line);
    td_buf_fini(&text);
    td_free(path);
    folder_fini(dir);
}

static void test_metrics_cut(void **state) {
    (void)state;
    char *dir = folder_new();
    struct td_err err;
    assert_int_equal(td_metrics_file_cut(dir, 3, &err), TD_OK); // there is none
    for (uint64_t step = 0; step <= 6; step++) {
        stage(dir, step, 0.5);
        close_step(dir, step);
    }
    assert_int_equal(td_metrics_file_cut(dir, 9, &err), TD_OK);
    expect_steps(dir, 0, 6);
    assert_int_equal(td_metrics_file_cut(dir, 4, &err), TD_OK);
    expect_steps(dir, 0, 4);
    assert_int_equal(open_file(dir).step, 4);
    assert_int_equal(td_metrics_file_cut(dir, 0, &err), TD_OK);
    expect_steps(dir, 0, 0);
    folder_fini(dir);
}

static void test_metrics_refuses(void **state) {
    (void)state;
    static const struct {
        const char *name, *text, *part;
    } cases[] = {
        {"metrics.jsonl", "{\"step\": 1}\n{\"step\": 1}\n", "metrics.jsonl:2"},
        {"metrics.jsonl", "{\"step\": 2}\n{\"step\": 1}\n", "metrics.jsonl:2"},
        {"metrics.jsonl", "{\"step\": 1}\nhello\n{\"step\": 3}\n", "metrics.jsonl:2"},
        {"metrics.jsonl", "{\"step\": \"1\"}\n", "metrics.jsonl:1"},
        {"metrics.jsonl", "{\"step\": -1}\n", "metrics.jsonl:1"},
        {"metrics.jsonl", "\n", "metrics.jsonl:1"},
        {"metrics.staged.json", "{\"step\": 1}", "metrics.staged.json"},
        {"metrics.staged.json", "", "metrics.staged.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dir = folder_new();
        struct td_metrics_on_disk d;
        struct td_err err = {0};
        folder_put(dir, cases[i].name, cases[i].text, strlen(cases[i].text));
        assert_int_equal(td_metrics_file_open(dir, &d, &err), TD_ECORRUPT);
        expect_says(&err, cases[i].part, i);
        folder_fini(dir);
    }
}

// Only what was staged can be closed.
static void test_metrics_close_without_stage(void **state) {
    (void)state;
    char *dir = folder_new();
    struct td_err err;
    assert_int_equal(td_metrics_file_close(dir, 1, NULL, NULL, &err), TD_ECORRUPT);
    expect_says(&err, "no line of step 1", 0);
    stage(dir, 2, 0.5);
    assert_int_equal(td_metrics_file_close(dir, 1, NULL, NULL, &err), TD_ECORRUPT);
    assert_false(open_file(dir).has_line);
    stage(dir, 1, 0.5);
    stage(dir, 1, 0.75); // made durable again after a crash
    close_step(dir, 1);
    expect_steps(dir, 1, 1);
    char *missing = td_asprintf("%s/gone", dir);
    struct td_metrics m = metrics_of(1);
    assert_int_equal(td_metrics_file_stage(missing, 1, (struct td_pos){0}, &m, &err), TD_ENOENT);
    expect_says(&err, "metrics.staged.json", 1);
    td_free(missing);
    folder_fini(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_stage_and_close),
        cmocka_unit_test(test_metrics_closed_twice),
        cmocka_unit_test(test_metrics_values),
        cmocka_unit_test(test_metrics_torn_line),
        cmocka_unit_test(test_metrics_cut),
        cmocka_unit_test(test_metrics_refuses),
        cmocka_unit_test(test_metrics_close_without_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
