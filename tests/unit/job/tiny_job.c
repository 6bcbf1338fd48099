// A job small enough for tests: see tiny_job.h.
#include "tests/unit/job/tiny_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"

static const char config_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 32, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"intermediate_size\": 64, \"vocab_size\": 98, \"max_position_embeddings\": 64, "
    "\"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": true, \"eos_token_id\": 1, "
    "\"pad_token_id\": 0, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
    "\"initializer_range\": 0.2, \"torch_dtype\": \"float32\"}";

static const char sft_yaml[] =
    "data: {train_files: DIR/train.jsonl, train_batch_size: 8, max_length: 16, use_dynamic_bsz: "
    "true, max_token_len_per_gpu: 96}\n"
    "model: {path: DIR/model}\n"
    "optim: {lr: 0.003}\n"
    "trainer: {total_epochs: 1}\n"
    "tandem: {kind: sft, init: random, seed: 3, run_dir: DIR/run, threads: 1}\n";

static const char grpo_yaml[] =
    "data: {train_files: DIR/train.jsonl, val_files: DIR/val.jsonl, train_batch_size: 4, "
    "max_prompt_length: 16, max_response_length: 12}\n"
    "actor_rollout_ref:\n"
    "  model: {path: DIR/model}\n"
    "  actor: {ppo_mini_batch_size: 2, use_dynamic_bsz: true, ppo_max_token_len_per_gpu: 128}\n"
    "  rollout: {n: 3, temperature: 1.0, max_num_seqs: 8, max_num_batched_tokens: 128}\n"
    "trainer: {total_epochs: 1}\n"
    "tandem:\n"
    "  {kind: grpo, init: random, seed: 3, run_dir: DIR/run, threads: 1, "
    "rewards: [{data_source: sum, grader: regex, pattern: '[0-3]'}]}\n";

char *tiny_job_path(const struct tiny_job *j, const char *name) {
    return td_asprintf("%s/%s", j->dir, name);
}

void tiny_job_put(const struct tiny_job *j, const char *name, const char *text) {
    char *path = tiny_job_path(j, name);
    struct td_err err;
    if (td_file_write(path, text, strlen(text), &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_free(path);
}

// Ids 0 and 1 are <pad> and <eos>, then the printable bytes, space and newline.
static void put_tokenizer(const struct tiny_job *j) {
    struct td_buf t = {0};
    td_buf_puts(&t, "{\"version\": \"1.0\", \"added_tokens\": [");
    static const char *const special[] = {"<pad>", "<eos>"};
    for (int i = 0; i < 2; i++) {
        td_buf_printf(&t,
                      "%s{\"id\": %d, \"content\": \"%s\", \"special\": true, \"single_word\": "
                      "false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false}",
                      i ? ", " : "", i, special[i]);
    }
    td_buf_puts(&t, "], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                    "\"trim_offsets\": true, \"use_regex\": true}, \"decoder\": {\"type\": "
                    "\"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                    "\"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"merges\": [], "
                    "\"vocab\": {\"<pad>\": 0, \"<eos>\": 1");
    int id = 2;
    for (int c = 33; c < 127; c++) {
        td_buf_printf(&t, ", \"%s%c\": %d", c == '"' || c == '\\' ? "\\" : "", c, id++);
    }
    td_buf_printf(&t, ", \"\\u0120\": %d, \"\\u010a\": %d}}}", id, id + 1);
    assert_int_equal(id + 2, TINY_JOB_VOCAB);
    tiny_job_put(j, "model/tokenizer.json", td_buf_str(&t));
    td_buf_fini(&t);
}

static void put_rows(const struct tiny_job *j, const char *name, int rows, enum td_job_kind kind) {
    struct td_buf t = {0};
    for (int i = 0; i < rows; i++) {
        int a = i * 7 % 30, b = i * 11 % 30;
        if (kind == TD_JOB_SFT) {
            td_buf_printf(&t, "{\"prompt\": \"%d+%d=\", \"response\": \"%d\"}\n", a, b, a + b);
        } else {
            td_buf_printf(&t,
                          "{\"prompt\": \"%d+%d=\", \"data_source\": \"sum\", \"reward_model\": "
                          "{\"style\": \"rule\", \"ground_truth\": \"%d\"}, \"extra_info\": {}}\n",
                          a, b, a + b);
        }
    }
    tiny_job_put(j, name, td_buf_str(&t));
    td_buf_fini(&t);
}

static void replace_dir(struct td_buf *out, const char *yaml, const char *dir) {
    for (const char *at; (at = strstr(yaml, "DIR")); yaml = at + 3) {
        td_buf_put(out, yaml, (size_t)(at - yaml));
        td_buf_puts(out, dir);
    }
    td_buf_puts(out, yaml);
}

void tiny_job_respec(struct tiny_job *j, enum td_job_kind kind, const char *const *overrides) {
    struct td_buf yaml = {0};
    replace_dir(&yaml, kind == TD_JOB_SFT ? sft_yaml : grpo_yaml, j->dir);
    struct td_spec_text text = {"job.yaml", yaml.data, yaml.len, overrides, 0};
    while (overrides && overrides[text.override_count]) {
        text.override_count++;
    }
    struct td_spec_notes notes = {0};
    struct td_err err;
    td_job_spec_free(j->spec);
    j->spec = NULL;
    if (td_job_spec_parse(&text, &j->spec, &notes, &err) != TD_OK) {
        fail_msg("%s", td_buf_str(&notes.errors));
    }
    td_buf_clear(&j->canonical);
    td_job_spec_encode(j->spec, &j->canonical);
    td_spec_notes_fini(&notes);
    td_buf_fini(&yaml);
}

void tiny_job_new(struct tiny_job *j, enum td_job_kind kind, const char *const *overrides) {
    const char *tmp = getenv("TMPDIR");
    *j = (struct tiny_job){.dir = td_asprintf("%s/td-job-XXXXXX", tmp ? tmp : "/tmp")};
    assert_non_null(mkdtemp(j->dir));
    char *model = tiny_job_path(j, "model");
    assert_int_equal(td_make_dirs(model, NULL), TD_OK);
    td_free(model);
    tiny_job_put(j, "model/config.json", config_json);
    put_tokenizer(j);
    put_rows(j, "train.jsonl", TINY_JOB_ROWS, kind);
    if (kind == TD_JOB_GRPO) {
        put_rows(j, "val.jsonl", TINY_JOB_VAL_ROWS, kind);
    }
    tiny_job_respec(j, kind, overrides);
}

void tiny_job_free(struct tiny_job *j) {
    struct td_err err = {0};
    td_job_spec_free(j->spec);
    td_buf_fini(&j->canonical);
    if (td_remove_tree(j->dir, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_free(j->dir);
}
