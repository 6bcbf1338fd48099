// config.json: what is read, what its absence means, and what is refused by name.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"
#include "workers/model/model.h"

#define LLAMA                                                                                      \
    "\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":83,"         \
    "\"hidden_size\":44,\"intermediate_size\":52,\"num_hidden_layers\":2,"                         \
    "\"num_attention_heads\":4,\"max_position_embeddings\":64"
#define QWEN2                                                                                      \
    "\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":83,"         \
    "\"hidden_size\":44,\"intermediate_size\":52,\"num_hidden_layers\":2,"                         \
    "\"num_attention_heads\":2,\"max_position_embeddings\":64"
#define SCALING(type) "\"" type "\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4"

static char dir[] = "/tmp/td_test_config_XXXXXX";

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state) {
    (void)state;
    return td_remove_tree(dir, NULL) == TD_OK ? 0 : -1;
}

// text NULL removes the file.
static void put(const char *name, const char *text) {
    char *path = td_asprintf("%s/%s", dir, name);
    if (text) {
        assert_int_equal(td_file_write(path, text, strlen(text), NULL), TD_OK);
    } else {
        assert_int_equal(td_remove_tree(path, NULL), TD_OK);
    }
    td_free(path);
}

static struct td_model_config load(const char *text) {
    struct td_model_config c;
    struct td_err err = {0};
    put("config.json", text);
    if (td_model_config_load(dir, &c, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return c;
}

static void test_config_reads_both_rope_schemas(void **state) {
    (void)state;
    static const char *const same[] = {
        "{" LLAMA
        ",\"head_dim\":12,\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":" SCALING(
            "llama3") ",\"original_max_position_embeddings\":32}}",
        "{" LLAMA ",\"head_dim\":12,\"rope_theta\":500000,\"rope_scaling\":{\"type\":" SCALING(
            "llama3") ",\"original_max_position_embeddings\":32}}",
        "{" LLAMA ",\"head_dim\":12,\"rope_theta\":1.0,\"rope_scaling\":null,\"rope_parameters\":{"
        "\"rope_theta\":500000.0,\"rope_type\":" SCALING(
            "llama3") ",\"original_max_position_embeddings\":32}}"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct td_model_config c = load(same[i]);
        assert_true(c.rope_theta == 500000 && c.rope.factor == 8 && c.rope.low_freq_factor == 1 &&
                    c.rope.high_freq_factor == 4 && c.rope.original_max_positions == 32);
    }
    struct td_model_config c = load("{" LLAMA ",\"head_dim\":12,\"rope_parameters\":{"
                                    "\"rope_theta\":7.5,\"rope_type\":\"default\"}}");
    assert_true(c.rope_theta == 7.5 && c.rope.factor == 0);
}

static void test_config_values(void **state) {
    (void)state;
    struct td_model_config c =
        load("{" QWEN2 ",\"num_key_value_heads\":1,\"tie_word_embeddings\":true,"
             "\"rms_norm_eps\":1e-5,\"torch_dtype\":\"bfloat16\",\"eos_token_id\":[5,7],"
             "\"use_sliding_window\":false,\"sliding_window\":4096,\"attention_bias\":false}");
    assert_true(c.qkv_bias && c.tied && c.kv_heads == 1 && c.heads == 2 && c.head_dim == 22);
    assert_true(c.rms_norm_eps == 1e-5 && c.file_dtype == TD_BF16 && c.stop_count == 2);
    put("generation_config.json", "{\"eos_token_id\":[7,9,5]}");
    c = load("{" LLAMA ",\"head_dim\":10,\"eos_token_id\":5,\"dtype\":\"float16\","
             "\"torch_dtype\":\"float32\"}");
    put("generation_config.json", NULL);
    assert_true(!c.qkv_bias && !c.tied && c.kv_heads == 4 && c.head_dim == 10);
    assert_true(c.rms_norm_eps == 1e-6 && c.rope_theta == 10000 && c.initializer_range == 0.02);
    assert_true(c.file_dtype == TD_F16 && c.stop_count == 3);
    assert_true(c.stop_ids[0] == 5 && c.stop_ids[1] == 7 && c.stop_ids[2] == 9);
}

// Each names the file and the key.
static void test_config_refuses(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum td_rc rc;
        const char *part;
    } rows[] = {
        {"{" LLAMA ",}", TD_EINVAL, "config.json:1:"},
        {"[1]", TD_EINVAL, "must be a JSON object"},
        {"{" LLAMA ",\"vocab_size\":84}", TD_EINVAL, "duplicate"},
        {"{\"vocab_size\":83}", TD_EINVAL, "architectures and model_type are missing"},
        {"{\"model_type\":\"mistral\",\"architectures\":[\"MistralForCausalLM\"]}", TD_EUNSUPPORTED,
         "model_type \"mistral\" is not supported"},
        {"{\"model_type\":\"qwen3\"}", TD_EUNSUPPORTED, "model_type \"qwen3\""},
        {"{\"architectures\":[\"GemmaForCausalLM\"]}", TD_EUNSUPPORTED, "\"GemmaForCausalLM\""},
        {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]}",
         TD_EUNSUPPORTED, "architectures \"LlamaForSequenceClassification\""},
        {"{\"model_type\":\"llama\"}", TD_EINVAL, "vocab_size is missing"},
        {"{" LLAMA ",\"head_dim\":\"x\"}", TD_EINVAL, "head_dim must be an integer"},
        {"{" LLAMA ",\"head_dim\":-2}", TD_EINVAL, "head_dim must be an integer of 1.."},
        {"{" LLAMA "}", TD_EINVAL, "head_dim 11 must be even"},
        {"{" LLAMA ",\"num_key_value_heads\":3,\"head_dim\":10}", TD_EINVAL,
         "no multiple of num_key_value_heads 3"},
        {"{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":10,\"intermediate_size\":5,"
         "\"num_hidden_layers\":1,\"num_attention_heads\":3,\"max_position_embeddings\":8}",
         TD_EINVAL, "hidden_size 10 is no multiple of num_attention_heads 3"},
        {"{" QWEN2 ",\"hidden_act\":\"gelu\"}", TD_EUNSUPPORTED, "hidden_act \"gelu\""},
        {"{" LLAMA ",\"head_dim\":10,\"attention_bias\":true}", TD_EUNSUPPORTED, "attention_bias"},
        {"{" LLAMA ",\"head_dim\":10,\"mlp_bias\":true}", TD_EUNSUPPORTED, "mlp_bias"},
        {"{" LLAMA ",\"head_dim\":10,\"pretraining_tp\":2}", TD_EUNSUPPORTED, "pretraining_tp"},
        {"{" LLAMA ",\"head_dim\":10,\"attention_dropout\":0.1}", TD_EUNSUPPORTED,
         "attention_dropout"},
        {"{" LLAMA ",\"head_dim\":10,\"quantization_config\":{}}", TD_EUNSUPPORTED,
         "quantization_config"},
        {"{" QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":1}",
         TD_EUNSUPPORTED, "use_sliding_window"},
        {"{" QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", TD_EUNSUPPORTED,
         "layer_types \"sliding_attention\""},
        {"{" QWEN2 ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", TD_EUNSUPPORTED,
         "rope_type \"yarn\""},
        {"{" QWEN2 ",\"rope_parameters\":3}", TD_EINVAL, "rope_parameters must be an object"},
        {"{" QWEN2 ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4}}", TD_EINVAL,
         "low_freq_factor"},
        {"{" QWEN2 ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4,"
         "\"low_freq_factor\":4,\"high_freq_factor\":4,\"original_max_position_embeddings\":8}}",
         TD_EINVAL, "high_freq_factor must be above low_freq_factor"},
        {"{" QWEN2 ",\"rope_theta\":0}", TD_EINVAL, "rope_theta must be a number above 0"},
        {"{" QWEN2 ",\"rms_norm_eps\":\"1e-6\"}", TD_EINVAL, "rms_norm_eps"},
        {"{" QWEN2 ",\"tie_word_embeddings\":1}", TD_EINVAL, "tie_word_embeddings"},
        {"{" QWEN2 ",\"torch_dtype\":\"float8\"}", TD_EUNSUPPORTED, "torch_dtype \"float8\""},
        {"{" QWEN2 ",\"eos_token_id\":83}", TD_EINVAL, "eos_token_id must hold ids of 0..82"},
        {"{" QWEN2 ",\"eos_token_id\":[1,\"</s>\"]}", TD_EINVAL, "eos_token_id"},
        {"{" QWEN2 ",\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", TD_ELIMIT,
         "more than 16 stop ids"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_model_config c = {.layers = -1};
        struct td_err err = {0};
        put("config.json", rows[i].text);
        enum td_rc rc = td_model_config_load(dir, &c, &err);
        if (rc != rows[i].rc || !strstr(err.msg, rows[i].part) || !strstr(err.msg, "config.json")) {
            fail_msg("%s: code %d, message \"%s\"", rows[i].text, rc, err.msg);
        }
        assert_int_equal(c.layers, -1); // untouched
    }
    put("config.json", NULL);
    struct td_model_config c;
    assert_int_equal(td_model_config_load(dir, &c, NULL), TD_ENOENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_values),
        cmocka_unit_test(test_config_reads_both_rope_schemas),
        cmocka_unit_test(test_config_refuses),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
