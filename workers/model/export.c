// A model folder for Hugging Face: see td_hf_export. The configuration is the source's file edited,
// so that keys we do not know survive. Any thread.
#include <jansson.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "workers/model/hf.h"
#include "workers/model/model_int.h"

enum { COPY_BYTES_MAX = 256 << 20 };

static json_t *rope_object(const struct td_model_config *c, bool theta) {
    json_t *rope = json_object();
    json_object_set_new(rope, "rope_type", json_string(c->rope.factor != 0 ? "llama3" : "default"));
    if (theta) {
        json_object_set_new(rope, "rope_theta", json_real(c->rope_theta));
    }
    if (c->rope.factor != 0) {
        json_object_set_new(rope, "factor", json_real(c->rope.factor));
        json_object_set_new(rope, "low_freq_factor", json_real(c->rope.low_freq_factor));
        json_object_set_new(rope, "high_freq_factor", json_real(c->rope.high_freq_factor));
        json_object_set_new(rope, "original_max_position_embeddings",
                            json_integer(c->rope.original_max_positions));
    }
    return rope;
}

// Readers of transformers 4 know rope_theta and rope_scaling only, and take 10000 silently when
// they find neither; those of 5 know rope_parameters.
static void edit_config(json_t *root, const struct td_model_config *c, enum td_dtype dtype) {
    const char *name = dtype == TD_F32 ? "float32" : dtype == TD_BF16 ? "bfloat16" : "float16";
    json_object_set_new(root, "dtype", json_string(name));
    json_object_set_new(root, "torch_dtype", json_string(name));
    json_object_set_new(root, "rope_theta", json_real(c->rope_theta));
    json_object_set_new(root, "rope_parameters", rope_object(c, true));
    json_object_set_new(root, "rope_scaling",
                        c->rope.factor != 0 ? rope_object(c, false) : json_null());
    json_object_set_new(root, "model_type", json_string(c->qkv_bias ? "qwen2" : "llama"));
    json_object_set_new(root, "architectures",
                        json_pack("[s]", c->qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM"));
}

static enum td_rc write_config(const struct td_model *m, const char *dir, const char *source_dir,
                               enum td_dtype dtype, struct td_err *err) {
    char *from = td_asprintf("%s/config.json", source_dir);
    char *to = td_asprintf("%s/config.json", dir);
    json_t *root = NULL;
    enum td_rc rc = td_json_load(from, &root, err);
    if (rc == TD_OK) {
        edit_config(root, &m->config, dtype);
        size_t n = json_dumpb(root, NULL, 0, JSON_INDENT(2));
        char *text = td_alloc(n + 1);
        json_dumpb(root, text, n, JSON_INDENT(2));
        text[n] = '\n';
        rc = td_file_write(to, text, n + 1, err);
        td_free(text);
    }
    json_decref(root);
    td_free(from);
    td_free(to);
    return rc;
}

static enum td_rc copy_file(const char *dir, const char *source_dir, const char *name,
                            struct td_err *err) {
    char *from = td_asprintf("%s/%s", source_dir, name);
    char *to = td_asprintf("%s/%s", dir, name);
    struct td_buf text = {0};
    enum td_rc rc = TD_OK;
    if (td_file_exists(from)) {
        rc = td_file_read(from, COPY_BYTES_MAX, &text, err);
        rc = rc ? rc : td_file_write(to, td_buf_str(&text), text.len, err);
    }
    td_buf_fini(&text);
    td_free(from);
    td_free(to);
    return rc;
}

enum td_rc td_hf_export(struct td_model *m, const struct td_tensor *flat, const char *dir,
                        const char *source_dir, enum td_dtype dtype, struct td_err *err) {
    static const char *const copied[] = {"generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "chat_template.jinja",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.model"};
    char *weights = td_asprintf("%s/model.safetensors", dir);
    struct td_hf_flat named = {.prefix = "", .flat = *flat};
    enum td_rc rc = td_make_dirs(dir, err);
    rc = rc ? rc : td_hf_save(m, weights, dtype, &named, 1, err);
    rc = rc ? rc : write_config(m, dir, source_dir, dtype, err);
    for (size_t i = 0; rc == TD_OK && i < sizeof copied / sizeof *copied; i++) {
        rc = copy_file(dir, source_dir, copied[i], err);
    }
    td_free(weights);
    return rc;
}
