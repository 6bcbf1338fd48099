// Hugging Face folders: round trips, sharded folders, and what is wrong with a bad one.
#include "workers/model/hf.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/base/trace.h"
#include "tests/unit/model/tiny.h"
#include "workers/model/safetensors.h"

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

// A file whose tensors are the model's, with changes.
struct edited {
    struct fixture *f;
    struct td_safetensors_item items[64];
    int param[64]; // −1: extra
    int count;
    float extra_value;
    bool like_embed;
};

static void read_edited(void *user, int item, int64_t first, int64_t n, float *out) {
    struct edited *e = user;
    int p = e->param[item];
    for (int64_t i = 0; i < n; i++) {
        double x = e->extra_value;
        if (p >= 0 || e->like_embed) {
            const struct td_param *param = td_model_param(e->f->m, p < 0 ? 0 : p);
            x = ((double *)e->f->w.flat.p)[param->offset + first + i];
        }
        out[i] = (float)x;
    }
}

static void write_edited(struct fixture *f, const char *file, struct edited *e) {
    char *path = td_asprintf("%s/%s", f->dir, file);
    struct td_safetensors_source source = {
        .dtype = TD_F32, .items = e->items, .count = e->count, .read = read_edited, .user = e};
    e->f = f;
    assert_int_equal(td_safetensors_write(path, &source, NULL), TD_OK);
    td_free(path);
}

static void add_item(struct edited *e, const char *name, int param, int64_t rows, int64_t cols) {
    e->items[e->count] = (struct td_safetensors_item){
        .name = name, .dims = rows == 1 ? 1 : 2, .shape = {rows == 1 ? cols : rows, cols}};
    e->param[e->count++] = param;
}

// The model's tensors [first, end).
static void add_params(struct edited *e, struct td_model *m, int first, int end) {
    for (int i = first; i < end; i++) {
        const struct td_param *p = td_model_param(m, i);
        add_item(e, p->name, i, p->rows, p->cols);
    }
}

static void expect(struct fixture *f, enum td_rc want, const char *part) {
    struct td_weights back;
    struct td_err err = {0};
    assert_int_equal(td_weights_new(f->m, &back, NULL), TD_OK);
    enum td_rc rc = td_weights_load(f->m, &back, f->dir, &err);
    if (rc != want || !strstr(err.msg, part)) {
        fail_msg("code %d, message \"%s\", expected \"%s\"", rc, err.msg, part);
    }
    td_weights_fini(f->m, &back);
}

static void test_hf_names_what_is_wrong(void **state) {
    (void)state;
    struct fixture f;
    set_up(&f, &tiny_cases[0]);
    int n = td_model_param_count(f.m);
    expect(&f, TD_ENOENT, "no model.safetensors and no model.safetensors.index.json");

    struct edited e = {0};
    add_params(&e, f.m, 0, n);
    e.items[1].name = "model.layers.0.input_layernorm.weights"; // missing and unknown
    e.items[2].shape[0] = 44, e.items[2].shape[1] = 60;         // transposed
    write_edited(&f, "model.safetensors", &e);
    expect(&f, TD_EINVAL,
           "tensor model.layers.0.input_layernorm.weight is missing, expected shape [44]");
    expect(&f, TD_EINVAL,
           "tensor model.layers.0.self_attn.q_proj.weight has shape [44, 60], expected [60, 44]");
    expect(&f, TD_EINVAL,
           "tensor model.layers.0.input_layernorm.weights is unknown to this model's config.json");
    expect(&f, TD_EINVAL, "/model.safetensors: tensor");

    e = (struct edited){0};
    add_params(&e, f.m, 0, 3);
    write_edited(&f, "model.safetensors", &e);
    expect(&f, TD_EINVAL, "; and 12 more"); // 21 tensors, 18 missing, 6 named

    e = (struct edited){0};
    add_params(&e, f.m, 0, n);
    add_item(&e, "model.layers.0.self_attn.rotary_emb.inv_freq", -1, 1, 5);
    write_edited(&f, "model.safetensors", &e);
    assert_true(read_back(&f) < 1e-6); // old Llama files have it
    char *path = td_asprintf("%s/model.safetensors", f.dir);
    struct td_buf file = {0};
    assert_int_equal(td_file_read(path, 1 << 30, &file, NULL), TD_OK);
    memset(file.data + file.len - 4, 0xff, 4);
    assert_int_equal(td_file_write(path, file.data, file.len, NULL), TD_OK);
    expect(&f, TD_EINVAL, "is not finite");
    assert_int_equal(td_file_write(path, file.data, file.len - 4, NULL), TD_OK);
    expect(&f, TD_ECORRUPT, "truncated or overlong");
    td_buf_fini(&file);
    td_free(path);
    tear_down(&f);
}

static void test_hf_compares_a_tied_head(void **state) {
    (void)state;
    struct fixture f;
    set_up(&f, &tiny_cases[1]);
    struct edited e = {.like_embed = true};
    add_params(&e, f.m, 0, td_model_param_count(f.m));
    add_item(&e, "lm_head.weight", -1, 83, 44);
    write_edited(&f, "model.safetensors", &e);
    assert_true(read_back(&f) < 1e-6);
    e.like_embed = false;
    e.extra_value = 0.5f;
    write_edited(&f, "model.safetensors", &e);
    expect(&f, TD_EINVAL, "lm_head.weight differs from model.embed_tokens.weight");
    e.items[e.count - 1].shape[0] = 82;
    write_edited(&f, "model.safetensors", &e);
    expect(&f, TD_EINVAL, "tensor lm_head.weight has shape [82, 44], expected [83, 44]");
    tear_down(&f);
}

static void write_index(struct fixture *f, int cut, const char *second, const char *also) {
    json_t *map = json_object();
    for (int i = 0; i < td_model_param_count(f->m); i++) {
        json_object_set_new(map, td_model_param(f->m, i)->name,
                            json_string(i < cut ? "a.safetensors" : second));
    }
    if (also) {
        json_object_set_new(map, also, json_string("a.safetensors"));
    }
    json_t *root = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
    char *path = td_asprintf("%s/model.safetensors.index.json", f->dir);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    td_free(path);
    json_decref(root);
}

static void test_hf_sharded_folder(void **state) {
    (void)state;
    struct fixture f;
    set_up(&f, &tiny_cases[2]);
    int n = td_model_param_count(f.m), cut = 7;
    struct edited a = {0}, b = {0};
    add_params(&a, f.m, 0, cut);
    add_params(&b, f.m, cut, n);
    add_item(&b, "unmapped", -1, 1, 3); // only a warning
    write_edited(&f, "a.safetensors", &a);
    write_edited(&f, "b.safetensors", &b);
    td_trace_set_level(TD_TRACE_ERROR);
    write_index(&f, cut, "b.safetensors", NULL);
    assert_true(read_back(&f) < 1e-6);
    write_index(&f, cut + 1, "b.safetensors", NULL);
    expect(&f, TD_EINVAL, "is not in a.safetensors");
    write_index(&f, cut, "b.safetensors", "ghost");
    expect(&f, TD_EINVAL, "model.safetensors.index.json: tensor ghost is not in a.safetensors");
    write_index(&f, cut, "c.safetensors", NULL);
    expect(&f, TD_ENOENT, "c.safetensors");
    write_index(&f, cut, "../b.safetensors", NULL);
    expect(&f, TD_EINVAL, "\"../b.safetensors\" is no plain file name");
    write_text(f.dir, "model.safetensors.index.json", "{\"weight_map\":3}");
    expect(&f, TD_EINVAL, "weight_map must be an object");
    td_trace_set_level(TD_TRACE_WARN);
    tear_down(&f);
}

// The export of a folder is a folder, with what the source had beside the weights.
static void test_hf_export(void **state) {
    (void)state;
    static const struct {
        bool scaled;
        enum td_dtype dtype;
        const char *name;
    } rows[] = {{true, TD_BF16, "bfloat16"}, {false, TD_F32, "float32"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fixture f;
        set_up(&f, &tiny_cases[rows[i].scaled ? 1 : 0]);
        char *to = td_asprintf("%s/out/actor", f.dir), *path = td_asprintf("%s/config.json", to);
        write_text(f.dir, "config.json",
                   rows[i].scaled
                       ? "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                         "\"vocab_size\":83,\"hidden_size\":44,\"intermediate_size\":52,"
                         "\"num_hidden_layers\":2,\"num_attention_heads\":6,\"head_dim\":10,"
                         "\"num_key_value_heads\":3,\"max_position_embeddings\":64,\"mine\":[1.5],"
                         "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}"
                       : "{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"default\"}}");
        write_text(f.dir, "tokenizer.json", "{\"a\": 1}");
        assert_int_equal(td_hf_export(f.m, &f.w.flat, to, f.dir, rows[i].dtype, NULL), TD_OK);
        json_t *c = json_load_file(path, 0, NULL);
        assert_non_null(c);
        assert_string_equal(json_string_value(json_object_get(c, "dtype")), rows[i].name);
        assert_string_equal(json_string_value(json_object_get(c, "torch_dtype")), rows[i].name);
        assert_true(json_real_value(json_object_get(c, "rope_theta")) == 500);
        json_t *rope = json_object_get(c, "rope_parameters");
        assert_true(json_real_value(json_object_get(rope, "rope_theta")) == 500);
        assert_string_equal(json_string_value(json_object_get(rope, "rope_type")),
                            rows[i].scaled ? "llama3" : "default");
        assert_true(json_is_object(json_object_get(c, "rope_scaling")) == rows[i].scaled);
        assert_true(!rows[i].scaled || json_is_array(json_object_get(c, "mine")));
        json_decref(c);
        td_free(path);
        path = td_asprintf("%s/tokenizer.json", to);
        assert_true(td_file_exists(path));
        if (rows[i].scaled) { // our own reader takes it
            struct td_model_config back;
            assert_int_equal(td_model_config_load(to, &back, NULL), TD_OK);
            assert_true(back.rope.factor == 4 && back.rope_theta == 500 && back.tied &&
                        back.file_dtype == TD_BF16);
        }
        td_free(path);
        td_free(to);
        tear_down(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hf_round_trip),
        cmocka_unit_test(test_hf_names_what_is_wrong),
        cmocka_unit_test(test_hf_compares_a_tied_head),
        cmocka_unit_test(test_hf_sharded_folder),
        cmocka_unit_test(test_hf_export),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
