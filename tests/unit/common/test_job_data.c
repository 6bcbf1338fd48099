// What a job's settings name on this machine: good folders load, bad ones are refused by file, line
// and key, and each digest stands for its files.
#include "controllers/common/job_data.h"

#include <string.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"
#include "tests/unit/job/tiny_job.h"

static struct td_job_data *load(const struct tiny_job *j) {
    struct td_job_data *d = NULL;
    struct td_err err;
    if (td_job_data_load(j->spec, &d, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return d;
}

static void test_job_data_grpo(void **state) {
    (void)state;
    struct tiny_job j;
    tiny_job_new(&j, TD_JOB_GRPO, NULL);
    tiny_job_put(&j, "model/generation_config.json", "{\"eos_token_id\": [7, 1, 9]}");
    struct td_job_data *d = load(&j);
    assert_int_equal(td_dataset_rows(d->train), TINY_JOB_ROWS);
    assert_int_equal(td_job_data_val_rows(d), TINY_JOB_VAL_ROWS);
    assert_int_equal(d->index.rows, TINY_JOB_ROWS);
    assert_int_equal(d->schedule.total_steps, TINY_JOB_ROWS / 4);
    assert_int_equal(d->known_ids.len, TINY_JOB_VOCAB);
    for (int i = 0; i < TINY_JOB_VOCAB; i++) {
        assert_int_equal(d->known_ids.data[i], 1);
    }
    assert_int_equal(d->stop_ids.n, 3); // each once, in the order in which they were named
    assert_true(d->stop_ids.v[0] == 1 && d->stop_ids.v[1] == 7 && d->stop_ids.v[2] == 9);
    assert_non_null(d->rewards);
    td_job_data_free(d);
    td_job_data_free(NULL);
    tiny_job_free(&j);
}

static void test_job_data_sft(void **state) {
    (void)state;
    struct tiny_job j;
    tiny_job_new(&j, TD_JOB_SFT, NULL);
    struct td_job_data *d = load(&j);
    assert_null(d->val);
    assert_null(d->rewards);
    assert_int_equal(td_job_data_val_rows(d), 0);
    assert_int_equal(d->schedule.total_steps, TINY_JOB_ROWS / 8);
    td_job_data_free(d);
    tiny_job_free(&j);
}

struct bad {
    const char *file, *text; // to be replaced; NULL: none
    const char *override;
    enum td_rc code;
    const char *parts[2];
};

#define CONFIG(extra)                                                                              \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 32, " \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "           \
    "\"intermediate_size\": 64, \"rms_norm_eps\": 1e-05" extra "}"
#define ROW(source)                                                                                \
    "{\"prompt\": \"1+1=\", \"data_source\": \"" source "\", \"reward_model\": "                   \
    "{\"ground_truth\": \"2\"}}\n"

static const struct bad grpo_cases[] = {
    {"model/config.json", NULL, NULL, TD_ENOENT, {"model/config.json"}},
    {"model/config.json", "{\"a\": 1,}", NULL, TD_EINVAL, {"model/config.json", "line 1"}},
    {"model/config.json",
     CONFIG(", \"vocab_size\": 98, \"max_position_embeddings\": 27, \"eos_token_id\": 1"),
     NULL,
     TD_EINVAL,
     {"data.max_prompt_length + data.max_response_length", "28 tokens, the model has 27"}},
    {"model/config.json",
     CONFIG(", \"vocab_size\": 90, \"max_position_embeddings\": 64, \"eos_token_id\": 1"),
     NULL,
     TD_EINVAL,
     {"model/tokenizer.json has ids up to 97", "vocab_size is 90"}},
    {"model/config.json",
     CONFIG(", \"vocab_size\": 98, \"max_position_embeddings\": 64"),
     NULL,
     TD_EINVAL,
     {"no end-of-text token", "eos_token_id"}},
    {"model/generation_config.json", "[1", NULL, TD_EINVAL, {"generation_config.json:1:"}},
    {"model/tokenizer.json", NULL, NULL, TD_ENOENT, {"model/tokenizer.json"}},
    {"model/tokenizer.json", "{}", NULL, TD_EUNSUPPORTED, {"model/tokenizer.json"}},
    {"train.jsonl", NULL, NULL, TD_ENOENT, {"train.jsonl"}},
    {"train.jsonl", ROW("sum") ROW("sum") "{\"prompt\":\n", NULL, TD_EINVAL, {"train.jsonl:3"}},
    {"train.jsonl",
     ROW("sum") "{\"prompt\": \"1\", \"data_source\": \"sum\"}\n",
     NULL,
     TD_EINVAL,
     {"train.jsonl:2", "reward_model"}},
    {"train.jsonl", ROW("sum") ROW("poetry"), NULL, TD_EINVAL, {"train.jsonl:2", "poetry"}},
    {"val.jsonl", ROW("sum") ROW("prose"), NULL, TD_EINVAL, {"val.jsonl:2", "prose"}},
    {"val.jsonl", "{}\n", NULL, TD_EINVAL, {"val.jsonl:1", "data_source"}},
    {NULL, NULL, "data.train_batch_size=100", TD_EINVAL, {"data.train_batch_size", "24"}},
    {NULL, NULL, "data.max_prompt_length=3", TD_EINVAL, {"train.jsonl", "data.max_prompt_length"}},
};

static void expect_bad(const struct bad *b, enum td_job_kind kind, size_t row) {
    struct tiny_job j;
    const char *overrides[] = {b->override, NULL};
    tiny_job_new(&j, kind, overrides);
    if (b->file && b->text) {
        tiny_job_put(&j, b->file, b->text);
    } else if (b->file) {
        char *path = tiny_job_path(&j, b->file);
        assert_int_equal(td_remove_tree(path, NULL), TD_OK);
        td_free(path);
    }
    struct td_job_data *d = NULL;
    struct td_err err = {0};
    enum td_rc rc = td_job_data_load(j.spec, &d, &err);
    for (int i = 0; i < 2 && b->parts[i]; i++) {
        if (rc != b->code || !strstr(err.msg, b->parts[i])) {
            fail_msg("row %zu: %s: '%s' lacks '%s'", row, td_rc_name(rc), err.msg, b->parts[i]);
        }
    }
    assert_null(d);
    tiny_job_free(&j);
}

static void test_job_data_refuses(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof grpo_cases / sizeof *grpo_cases; i++) {
        expect_bad(&grpo_cases[i], TD_JOB_GRPO, i);
    }
    static const struct bad sft_cases[] = {
        {NULL, NULL, "data.max_length=65", TD_EINVAL, {"data.max_length", "65 tokens"}},
        {NULL, NULL, "data.max_length=5", TD_EINVAL, {"train.jsonl", "data.max_length"}},
        {"train.jsonl", "{\"prompt\": \"a\"}\n", NULL, TD_EINVAL, {"train.jsonl:1", "response"}},
    };
    for (size_t i = 0; i < sizeof sft_cases / sizeof *sft_cases; i++) {
        expect_bad(&sft_cases[i], TD_JOB_SFT, 100 + i);
    }
}

enum { DATA = 1, TOKENIZER = 2, MODEL = 4 };

static int compare(const Tandem__Journal__DataIndex *a, const Tandem__Journal__DataIndex *b) {
    assert_int_equal(a->template_digest, b->template_digest);
    return (a->data_digest != b->data_digest ? DATA : 0) |
           (a->tokenizer_digest != b->tokenizer_digest ? TOKENIZER : 0) |
           (a->model_digest != b->model_digest ? MODEL : 0);
}

// Changes one byte that leaves the file readable: a space or a letter of a text.
static void change_file(const struct tiny_job *j, const char *name, const char *from,
                        const char *to) {
    char *path = tiny_job_path(j, name);
    struct td_buf text = {0};
    assert_int_equal(td_file_read(path, 1 << 20, &text, NULL), TD_OK);
    char *at = strstr((char *)text.data, from);
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    assert_int_equal(td_file_write(path, text.data, text.len, NULL), TD_OK);
    td_buf_fini(&text);
    td_free(path);
}

// A flipped bit in any file that the job reads shows in the index.
static void test_job_data_index(void **state) {
    (void)state;
    struct tiny_job j;
    const char *overrides[] = {"tandem.init=load", NULL};
    tiny_job_new(&j, TD_JOB_GRPO, overrides);
    tiny_job_put(&j, "model/model-00001-of-00002.safetensors", "weights a");
    tiny_job_put(&j, "model/model-00002-of-00002.safetensors", "weights b");
    tiny_job_put(&j, "model/model.safetensors.index.json", "{\"weight_map\": {}}");
    static const struct {
        const char *name, *from, *to;
        int digests;
    } changes[] = {
        {"train.jsonl", "11=", "12=", DATA},
        {"val.jsonl", "11=", "12=", DATA},
        {"model/tokenizer.json", "\"1.0\"", "\"1.1\"", TOKENIZER},
        {"model/config.json", "0.2", "0.3", MODEL},
        {"model/model-00001-of-00002.safetensors", "a", "x", MODEL},
        {"model/model-00002-of-00002.safetensors", "b", "x", MODEL},
        {"model/model.safetensors.index.json", "map", "nap", MODEL},
    };
    struct td_job_data *before = load(&j), *again = load(&j);
    assert_int_equal(compare(&before->index, &again->index), 0);
    td_job_data_free(again);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        change_file(&j, changes[i].name, changes[i].from, changes[i].to);
        struct td_job_data *after = load(&j);
        int found = compare(&before->index, &after->index);
        if (found != changes[i].digests) {
            fail_msg("%s: digests %d, expected %d", changes[i].name, found, changes[i].digests);
        }
        td_job_data_free(before);
        before = after;
    }
    td_job_data_free(before);
    tiny_job_free(&j);
}

// Random weights come from config.json and the seed: files of weights are not read.
static void test_job_data_index_of_random_weights(void **state) {
    (void)state;
    struct tiny_job j;
    tiny_job_new(&j, TD_JOB_GRPO, NULL);
    struct td_job_data *a = load(&j);
    tiny_job_put(&j, "model/model.safetensors", "whatever");
    struct td_job_data *b = load(&j);
    assert_int_equal(compare(&a->index, &b->index), 0);
    td_job_data_free(b);
    const char *overrides[] = {"tandem.seed=4", "data.seed=3", NULL};
    tiny_job_respec(&j, TD_JOB_GRPO, overrides);
    b = load(&j);
    assert_int_equal(compare(&a->index, &b->index), MODEL);
    td_job_data_free(a);
    td_job_data_free(b);
    tiny_job_free(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_data_grpo),
        cmocka_unit_test(test_job_data_sft),
        cmocka_unit_test(test_job_data_refuses),
        cmocka_unit_test(test_job_data_index),
        cmocka_unit_test(test_job_data_index_of_random_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
