// config.json and generation_config.json of a Hugging Face folder: see model.h. Whatever would
// change results and is not built is refused by name. Any thread; keeps nothing.
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "workers/model/model_int.h"

enum { CONFIG_BYTES_MAX = 4 << 20, SIZE_MAX_DIM = 1 << 24 };

// One open file: its object and the path that errors name.
struct config_file {
    json_t *root;
    const char *path;
};

enum td_rc td_json_load(const char *path, json_t **out, struct td_err *err) {
    struct td_buf text = {0};
    enum td_rc rc = td_file_read(path, CONFIG_BYTES_MAX, &text, err);
    if (rc == TD_OK) {
        json_error_t where;
        json_t *root = json_loadb(td_buf_str(&text), text.len, JSON_REJECT_DUPLICATES, &where);
        if (!root) {
            rc =
                td_fail(err, TD_EINVAL, "%s:%d:%d: %s", path, where.line, where.column, where.text);
        } else if (!json_is_object(root)) {
            json_decref(root);
            rc = td_fail(err, TD_EINVAL, "%s: must be a JSON object", path);
        } else {
            *out = root;
        }
    }
    td_buf_fini(&text);
    return rc;
}

// The value of key; absent and null are the same to Hugging Face.
static json_t *field(const struct config_file *f, const char *key) {
    json_t *v = json_object_get(f->root, key);
    return json_is_null(v) ? NULL : v;
}

// An integer of 1..SIZE_MAX_DIM; fallback ≥ 0 stands in for an absent one (−1: it is required).
static enum td_rc read_size(const struct config_file *f, const char *key, int32_t fallback,
                            int32_t *out, struct td_err *err) {
    json_t *v = field(f, key);
    if (!v && fallback >= 0) {
        *out = fallback;
        return TD_OK;
    }
    if (!v) {
        return td_fail(err, TD_EINVAL, "%s: %s is missing", f->path, key);
    }
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 1 || n > SIZE_MAX_DIM) {
        return td_fail(err, TD_EINVAL, "%s: %s must be an integer of 1..%d", f->path, key,
                       SIZE_MAX_DIM);
    }
    *out = (int32_t)n;
    return TD_OK;
}

// A finite number above zero; 0 stands for: absent is an error.
static enum td_rc read_positive(const struct config_file *f, const char *key, double fallback,
                                double *out, struct td_err *err) {
    json_t *v = field(f, key);
    if (!v && fallback > 0) {
        *out = fallback;
        return TD_OK;
    }
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x > 0) || !isfinite(x)) {
        return td_fail(err, TD_EINVAL, "%s: %s must be a number above 0", f->path, key);
    }
    *out = x;
    return TD_OK;
}

static enum td_rc read_bool(const struct config_file *f, const char *key, bool *out,
                            struct td_err *err) {
    json_t *v = field(f, key);
    if (v && !json_is_boolean(v)) {
        return td_fail(err, TD_EINVAL, "%s: %s must be true or false", f->path, key);
    }
    *out = json_is_true(v);
    return TD_OK;
}

static enum td_rc refuse(const struct config_file *f, const char *key, const char *value,
                         const char *supported, struct td_err *err) {
    return td_fail(err, TD_EUNSUPPORTED, "%s: %s \"%s\" is not supported; supported: %s", f->path,
                   key, value, supported);
}

static enum td_rc read_family(const struct config_file *f, bool *qwen2, struct td_err *err) {
    const char *arch = json_string_value(json_array_get(field(f, "architectures"), 0));
    const char *type = json_string_value(field(f, "model_type"));
    static const struct {
        const char *type, *arch;
    } known[] = {{"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}};
    if (!arch && !type) {
        return td_fail(err, TD_EINVAL, "%s: architectures and model_type are missing", f->path);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if ((!type || strcmp(type, known[i].type) == 0) &&
            (!arch || strcmp(arch, known[i].arch) == 0)) {
            *qwen2 = i == 1;
            return TD_OK;
        }
    }
    if (type && strcmp(type, "llama") != 0 && strcmp(type, "qwen2") != 0) {
        return refuse(f, "model_type", type, "llama (also SmolLM2), qwen2", err);
    }
    return refuse(f, "architectures", arch, "LlamaForCausalLM, Qwen2ForCausalLM", err);
}

// Keys that change the computation and that we lack.
static enum td_rc refuse_lacking(const struct config_file *f, bool qwen2, struct td_err *err) {
    json_t *act = field(f, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0)) {
        return refuse(f, "hidden_act", json_is_string(act) ? json_string_value(act) : "?", "silu",
                      err);
    }
    if (field(f, "quantization_config")) {
        return td_fail(err, TD_EUNSUPPORTED,
                       "%s: quantization_config: quantized weights are not supported; give the "
                       "folder of the bfloat16 or float32 model",
                       f->path);
    }
    // Qwen2's biases are fixed by its class, so the switch means nothing there.
    if (!qwen2 && json_is_true(field(f, "attention_bias"))) {
        return refuse(f, "attention_bias", "true", "false (biases on q, k, v: model_type qwen2)",
                      err);
    }
    if (json_is_true(field(f, "mlp_bias"))) {
        return refuse(f, "mlp_bias", "true", "false", err);
    }
    static const struct {
        const char *key;
        double neutral;
    } numbers[] = {{"pretraining_tp", 1}, {"attention_dropout", 0}, {"partial_rotary_factor", 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        json_t *v = field(f, numbers[i].key);
        if (v && json_number_value(v) != numbers[i].neutral) {
            return td_fail(err, TD_EUNSUPPORTED,
                           "%s: %s must be %g: other values are not supported", f->path,
                           numbers[i].key, numbers[i].neutral);
        }
    }
    return TD_OK;
}

// transformers 5 lists the kind of each layer; older Qwen2 files switch by use_sliding_window.
static enum td_rc refuse_windows(const struct config_file *f, bool qwen2, int32_t layers,
                                 struct td_err *err) {
    json_t *types = field(f, "layer_types"), *type;
    size_t i;
    json_array_foreach(types, i, type) {
        const char *name = json_string_value(type);
        if (!name || strcmp(name, "full_attention") != 0) {
            return refuse(f, "layer_types", name ? name : "?", "full_attention", err);
        }
    }
    json_t *first = field(f, "max_window_layers");
    bool reached = !first || json_integer_value(first) < layers;
    if (qwen2 && !types && json_is_true(field(f, "use_sliding_window")) &&
        field(f, "sliding_window") && reached) {
        return refuse(f, "use_sliding_window", "true", "false", err);
    }
    return TD_OK;
}

static enum td_rc read_llama3(const struct config_file *f, struct td_model_config *c,
                              struct td_err *err) {
    enum td_rc rc = read_positive(f, "factor", 0, &c->rope.factor, err);
    rc = rc ? rc : read_positive(f, "low_freq_factor", 0, &c->rope.low_freq_factor, err);
    rc = rc ? rc : read_positive(f, "high_freq_factor", 0, &c->rope.high_freq_factor, err);
    rc = rc ? rc
            : read_size(f, "original_max_position_embeddings", -1, &c->rope.original_max_positions,
                        err);
    if (rc == TD_OK && c->rope.high_freq_factor <= c->rope.low_freq_factor) {
        rc = td_fail(err, TD_EINVAL, "%s: high_freq_factor must be above low_freq_factor", f->path);
    }
    return rc;
}

// transformers 5 keeps all of RoPE in rope_parameters; 4 in rope_theta and rope_scaling.
static enum td_rc read_rope(const struct config_file *f, struct td_model_config *c,
                            struct td_err *err) {
    json_t *params = field(f, "rope_parameters"), *scaling = field(f, "rope_scaling");
    json_t *rope = params ? params : scaling;
    if (rope && !json_is_object(rope)) {
        return td_fail(err, TD_EINVAL, "%s: %s must be an object", f->path,
                       params ? "rope_parameters" : "rope_scaling");
    }
    struct config_file sub = {.root = rope, .path = f->path};
    bool inside = rope && field(&sub, "rope_theta");
    enum td_rc rc =
        read_positive(inside ? &sub : f, "rope_theta", TD_ROPE_THETA, &c->rope_theta, err);
    if (rc != TD_OK || !rope) {
        return rc;
    }
    json_t *type = field(&sub, "rope_type");
    const char *name = json_string_value(type ? type : field(&sub, "type"));
    if (!name || strcmp(name, "default") == 0) {
        return TD_OK;
    }
    if (strcmp(name, "llama3") != 0) {
        return refuse(f, "rope_type", name, "default, llama3", err);
    }
    return read_llama3(&sub, c, err);
}

static enum td_rc read_dtype(const struct config_file *f, struct td_model_config *c,
                             struct td_err *err) {
    const char *key = field(f, "dtype") ? "dtype" : "torch_dtype";
    json_t *v = field(f, key);
    c->file_dtype = TD_F32;
    if (!v) {
        return TD_OK;
    }
    static const struct {
        const char *name;
        enum td_dtype dtype;
    } known[] = {{"float32", TD_F32}, {"bfloat16", TD_BF16}, {"float16", TD_F16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (json_is_string(v) && strcmp(json_string_value(v), known[i].name) == 0) {
            c->file_dtype = known[i].dtype;
            return TD_OK;
        }
    }
    return refuse(f, key, json_is_string(v) ? json_string_value(v) : "?",
                  "float32, bfloat16, float16", err);
}

// Adds eos_token_id, an integer or a list of them, to the stop ids.
static enum td_rc add_stop_ids(const struct config_file *f, struct td_model_config *c,
                               struct td_err *err) {
    json_t *eos = field(f, "eos_token_id");
    size_t n = json_is_array(eos) ? json_array_size(eos) : eos != NULL;
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_is_array(eos) ? json_array_get(eos, i) : eos;
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= c->vocab_size) {
            return td_fail(err, TD_EINVAL, "%s: eos_token_id must hold ids of 0..%d", f->path,
                           c->vocab_size - 1);
        }
        bool known = false;
        for (int k = 0; k < c->stop_count; k++) {
            known |= c->stop_ids[k] == id;
        }
        if (known) {
            continue;
        }
        if (c->stop_count == TD_STOP_IDS_MAX) {
            return td_fail(err, TD_ELIMIT, "%s: more than %d stop ids", f->path, TD_STOP_IDS_MAX);
        }
        c->stop_ids[c->stop_count++] = (int32_t)id;
    }
    return TD_OK;
}

static enum td_rc read_shape(const struct config_file *f, struct td_model_config *c,
                             struct td_err *err) {
    enum td_rc rc = read_size(f, "vocab_size", -1, &c->vocab_size, err);
    rc = rc ? rc : read_size(f, "hidden_size", -1, &c->hidden_size, err);
    rc = rc ? rc : read_size(f, "intermediate_size", -1, &c->intermediate_size, err);
    rc = rc ? rc : read_size(f, "num_hidden_layers", -1, &c->layers, err);
    rc = rc ? rc : read_size(f, "num_attention_heads", -1, &c->heads, err);
    rc = rc ? rc : read_size(f, "num_key_value_heads", c->heads, &c->kv_heads, err);
    rc = rc ? rc : read_size(f, "head_dim", 0, &c->head_dim, err);
    rc = rc ? rc : read_size(f, "max_position_embeddings", -1, &c->max_positions, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (c->head_dim == 0) {
        c->head_dim = c->hidden_size / c->heads;
        if (c->hidden_size % c->heads != 0) {
            return td_fail(err, TD_EINVAL,
                           "%s: hidden_size %d is no multiple of num_attention_heads %d and "
                           "head_dim is absent",
                           f->path, c->hidden_size, c->heads);
        }
    }
    return TD_OK;
}

static enum td_rc read_config(const struct config_file *f, struct td_model_config *c,
                              struct td_err *err) {
    bool qwen2 = false;
    enum td_rc rc = read_family(f, &qwen2, err);
    rc = rc ? rc : read_shape(f, c, err);
    rc = rc ? rc : refuse_lacking(f, qwen2, err);
    rc = rc ? rc : refuse_windows(f, qwen2, c->layers, err);
    rc = rc ? rc : read_positive(f, "rms_norm_eps", 1e-6, &c->rms_norm_eps, err);
    rc = rc ? rc : read_positive(f, "initializer_range", 0.02, &c->initializer_range, err);
    rc = rc ? rc : read_bool(f, "tie_word_embeddings", &c->tied, err);
    rc = rc ? rc : read_rope(f, c, err);
    rc = rc ? rc : read_dtype(f, c, err);
    rc = rc ? rc : add_stop_ids(f, c, err);
    c->qkv_bias = qwen2;
    if (rc == TD_OK) {
        rc = td_model_config_check(c, err);
        rc = rc ? td_err_in(err, "%s", f->path) : TD_OK;
    }
    return rc;
}

enum td_rc td_model_config_check(const struct td_model_config *c, struct td_err *err) {
    if (c->heads % c->kv_heads != 0) {
        return td_fail(err, TD_EINVAL,
                       "num_attention_heads %d is no multiple of num_key_value_heads %d", c->heads,
                       c->kv_heads);
    }
    if (c->head_dim % 2 != 0) {
        return td_fail(err, TD_EINVAL, "head_dim %d must be even: RoPE rotates halves",
                       c->head_dim);
    }
    int64_t width = (int64_t)c->heads * c->head_dim;
    if (width > SIZE_MAX_DIM || c->layers > TD_LAYERS_MAX) {
        return td_fail(err, TD_ELIMIT,
                       "num_attention_heads × head_dim is at most %d, num_hidden_layers at most %d",
                       SIZE_MAX_DIM, TD_LAYERS_MAX);
    }
    return TD_OK;
}

enum td_rc td_model_config_load(const char *dir, struct td_model_config *out, struct td_err *err) {
    struct td_model_config c = {0};
    char *path = td_asprintf("%s/config.json", dir);
    char *more = td_asprintf("%s/generation_config.json", dir);
    struct config_file f = {.path = path};
    enum td_rc rc = td_json_load(path, &f.root, err);
    rc = rc ? rc : read_config(&f, &c, err);
    json_decref(f.root);
    if (rc == TD_OK && td_file_exists(more)) {
        f = (struct config_file){.path = more};
        rc = td_json_load(more, &f.root, err);
        rc = rc ? rc : add_stop_ids(&f, &c, err);
        json_decref(f.root);
    }
    if (rc == TD_OK) {
        *out = c;
    }
    td_free(path);
    td_free(more);
    return rc;
}
