// Hugging Face folders: round trips, sharded folders, and what is wrong with a bad one.
#include "workers/model/hf.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/file.h"
#include "tests/unit/model/tiny.h"

static char *make_dir(void) {
    char *dir = td_strdup("/tmp/td_test_hf_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void drop_dir(char *dir) {
    assert_int_equal(td_remove_tree(dir, NULL), TD_OK);
    td_free(dir);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char *path = td_asprintf("%s/%s", dir, name);
    assert_int_equal(td_file_write(path, text, strlen(text), NULL), TD_OK);
    td_free(path);
}

struct fixture {
    struct td_backend *be;
    struct td_model *m;
    struct td_weights w;
    char *dir;
};

static void set_up(struct fixture *f, const struct tiny_case *t) {
    struct td_model_config config = tiny_config(t);
    f->be = td_backend_ref_new();
    assert_int_equal(td_model_new(f->be, &config, &f->m, NULL), TD_OK);
    assert_int_equal(td_weights_new(f->m, &f->w, NULL), TD_OK);
    tiny_fill(f->m, &f->w, 3);
    f->dir = make_dir();
}

static void tear_down(struct fixture *f) {
    td_weights_fini(f->m, &f->w);
    td_model_free(f->m);
    td_backend_free(f->be);
    drop_dir(f->dir);
}

static enum td_rc save(struct fixture *f, const char *file, enum td_dtype dtype, const char *prefix,
                       struct td_err *err) {
    char *path = td_asprintf("%s/%s", f->dir, file);
    struct td_hf_flat flat = {.prefix = prefix, .flat = f->w.flat};
    enum td_rc rc = td_hf_save(f->m, path, dtype, &flat, 1, err);
    td_free(path);
    return rc;
}

// The largest relative difference between what is read back and what was saved.
static double read_back(struct fixture *f) {
    struct td_weights back;
    struct td_err err = {0};
    assert_int_equal(td_weights_new(f->m, &back, NULL), TD_OK);
    if (td_weights_load(f->m, &back, f->dir, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    double worst = 0;
    for (int i = 0; i < td_model_param_count(f->m); i++) {
        const struct td_param *p = td_model_param(f->m, i);
        for (int64_t k = 0; k < p->rows * p->cols; k++) {
            double a = ((double *)f->w.flat.p)[p->offset + k];
            double b = ((double *)back.flat.p)[p->offset + k];
            worst = fmax(worst, fabs(a - b) / (fabs(a) + 1e-3));
        }
    }
    td_weights_fini(f->m, &back);
    return worst;
}

static void test_hf_round_trip(void **state) {
    (void)state;
    static const struct {
        enum td_dtype dtype;
        double bound;
    } rows[] = {{TD_F32, 0x1p-24}, {TD_BF16, 0x1p-8}, {TD_F16, 0x1p-11}};
    for (int c = 0; c < TINY_CASES; c++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct fixture f;
            set_up(&f, &tiny_cases[c]);
            assert_int_equal(save(&f, "model.safetensors", rows[i].dtype, "", NULL), TD_OK);
            double worst = read_back(&f);
            assert_true(worst <= rows[i].bound);
            assert_true(i == 0 || worst > rows[i].bound / 8); // it did round
            tear_down(&f);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hf_round_trip),
    };
    (void)write_text;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
