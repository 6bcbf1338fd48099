// Job files, good and bad: every message a user can get, word by word.
#include "tests/unit/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/spec/job_spec.h"

// The least a GRPO job needs, in three lines.
#define GRPO                                                                                       \
    "data: {train_files: t.jsonl, train_batch_size: 256}\n"                                        \
    "actor_rollout_ref: {model: {path: m}, rollout: {n: 4}}\n"
#define SFT "tandem: {kind: sft}\ndata: {train_files: t.jsonl}\nmodel: {path: m}\n"

enum { OVERRIDES_MAX = 8 };

struct outcome {
    struct td_job_spec *spec;
    struct td_spec_notes notes;
    struct td_err err;
    enum td_rc rc;
};

static struct outcome parse(const char *yaml, const char *const *overrides) {
    struct outcome o = {0};
    size_t n = 0;
    while (overrides && overrides[n]) {
        n++;
    }
    struct td_spec_text text = {"job.yaml", yaml, strlen(yaml), overrides, n};
    o.rc = td_job_spec_parse(&text, &o.spec, &o.notes, &o.err);
    return o;
}

static void done(struct outcome *o) {
    td_job_spec_free(o->spec);
    td_spec_notes_fini(&o->notes);
}

static struct td_job_spec *good(const char *yaml, const char *const *overrides) {
    struct outcome o = parse(yaml, overrides);
    assert_string_equal(td_buf_str(&o.notes.errors), "");
    assert_int_equal(o.rc, TD_OK);
    td_spec_notes_fini(&o.notes);
    return o.spec;
}

struct bad {
    const char *yaml;
    const char *overrides[OVERRIDES_MAX];
    const char *errors; // the whole text
};

static const struct bad broken_yaml[] = {
    {"a: [1\nb: 2\n",
     {0},
     "job.yaml:2:2: not YAML: while parsing a flow sequence, did not find expected ',' or ']'\n"},
    {"data:\n\tseed: 1\n",
     {0},
     "job.yaml:2:1: not YAML: while scanning for the next token, found character that cannot start "
     "any token\n"},
    {"a: b\nc: \xff\n", {0}, "job.yaml:2:4: not YAML: invalid leading UTF-8 octet\n"},
    {"a: &x 1\nb: *x\n", {0}, "job.yaml:2:4: aliases (*) are not supported; write the value out\n"},
    {"a:\n  <<: {b: 1}\n",
     {0},
     "job.yaml:2:3: merge keys (<<) are not supported; write the keys out\n"},
    {"a: !!str 1\n", {0}, "job.yaml:1:4: tags (!) are not supported; leave it out\n"},
    {"a: !x [1]\n", {0}, "job.yaml:1:4: tags (!) are not supported; leave it out\n"},
    {"a: 1\n---\nb: 1\n", {0}, "job.yaml:2:1: a second document (---); write a file for each\n"},
    {"? [1, 2]\n: 3\n", {0}, "job.yaml:1:3: a key must be a word, not a list or a map\n"},
    {"'': 3\n", {0}, "job.yaml:1:1: an empty key\n"},
    {"a: \"x\\0y\"\n", {0}, "job.yaml:1:4: a zero byte in a string\n"},
    {"a: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]\n",
     {0},
     "job.yaml:1:35: nested more than 32 levels deep\n"},
    {"- a\n- b\n" GRPO,
     {0},
     "job.yaml:3:1: not YAML: while parsing a block collection, did not find expected '-' "
     "indicator\n"},
};

static const struct bad keys[] = {
    {GRPO "trainer: {totl_epochs: 3}\n",
     {0},
     "job.yaml:3: trainer.totl_epochs: unknown key; did you mean trainer.total_epochs?\n"},
    {GRPO "trainer: {ppo_epochs: 3}\n", // a good key in the wrong section
     {0},
     "job.yaml:3: trainer.ppo_epochs: unknown key; did you mean "
     "actor_rollout_ref.actor.ppo_epochs?\n"},
    {GRPO "actor:\n  optim:\n    lr: 1\n", // verl's first word is missing
     {0},
     "job.yaml:3: actor: unknown key; did you mean actor_rollout_ref.actor?\n"},
    {GRPO "algoritm:\n  adv_estimator: grpo\n  gamma: 1\n", // one error for a whole section
     {0},
     "job.yaml:3: algoritm: unknown key; did you mean algorithm?\n"},
    {GRPO "nonsense_zzz: 1\n",
     {0},
     "job.yaml:3: nonsense_zzz: unknown key; `tandem help keys` lists all\n"},
    {GRPO "algorithm: grpo\n",
     {0},
     "job.yaml:3: algorithm: this is a section; write its keys below it\n"},
    {GRPO "trainer:\n  save_freq: 1\n  save_freq: 2\n",
     {0},
     "job.yaml:5: trainer.save_freq: set twice, first in line 4; remove one\n"},
    {GRPO "data.seed: 1\ntandem: {seed: 2}\ndata.seed: 2\n", // dotted keys are the same keys
     {0},
     "job.yaml:5: data.seed: set twice, first in line 3; remove one\n"},
    {"", // nothing at all
     {0},
     "job.yaml: data.train_files: missing, but needed: JSONL files of prompts, one name or a list\n"
     "job.yaml: actor_rollout_ref.model.path: missing, but needed: folder of the model: "
     "config.json, tokenizer.json and, unless tandem.init is random, safetensors\n"},
    {"[1]\n",
     {"data.train_files=a", "actor_rollout_ref.model.path=m", NULL},
     "job.yaml:1: expected sections of keys, got a single value or a list\n"},
    {SFT "actor_rollout_ref:\n  actor: {optim: {lr: 1e-3}}\n  rollout: {n: 4}\n",
     {0},
     "job.yaml:5: actor_rollout_ref.actor.optim.lr: belongs to jobs of kind grpo, and tandem.kind "
     "is sft; remove it, or use optim.lr\n"
     "job.yaml:6: actor_rollout_ref.rollout.n: belongs to jobs of kind grpo, and tandem.kind is "
     "sft; remove it\n"},
    {GRPO "optim: {lr: 1e-3}\n",
     {0},
     "job.yaml:3: optim.lr: belongs to jobs of kind sft, and tandem.kind is grpo; remove it, or "
     "use "
     "actor_rollout_ref.actor.optim.lr\n"},
    {GRPO, {"x", NULL}, "command line: x: expected key=value\n"},
    {GRPO, {"=1", NULL}, "command line: =1: expected key=value\n"},
    {GRPO,
     {"+data.seed=1", NULL},
     "command line: +data.seed=1: every key exists already; write key=value without + or ~\n"},
    {GRPO,
     {"data.sed=1", NULL},
     "command line: data.sed=1: unknown key; did you mean data.seed?\n"},
    {GRPO,
     {"data.train_files=[a", NULL},
     "command line: data.train_files=[a: not YAML: while parsing a flow sequence, did not find "
     "expected ',' or ']'\n"},
};

static const struct bad values[] = {
    // several at once, in the order of the file, then of the command line
    {GRPO "trainer:\n  save_freq: often\n  val_before_train: yes\n  total_epochs: 0\n",
     {"data.truncation=both", NULL},
     "job.yaml:4: trainer.save_freq: expected an integer from -1 to 2147483647, got \"often\"\n"
     "job.yaml:5: trainer.val_before_train: expected true or false, got \"yes\"; write true or "
     "false\n"
     "job.yaml:6: trainer.total_epochs: expected an integer from 1 to 2147483647, got 0\n"
     "command line: data.truncation=both: expected one of error, left, right, middle, got "
     "\"both\"\n"},
    {GRPO "tandem: {seed: 1.0, threads: '2', checkpoint: {every: null}}\n",
     {0},
     "job.yaml:3: tandem.seed: expected an integer of at least 0, got 1.0; write "
     "it without point and exponent\n"
     "job.yaml:3: tandem.threads: expected an integer from 0 to 1024, got \"2\"; leave the quotes "
     "out\n"
     "job.yaml:3: tandem.checkpoint.every: expected an integer from 1 to 2147483647, got null\n"},
    {GRPO "tandem: {seed: 99999999999999999999}\n",
     {0},
     "job.yaml:3: tandem.seed: expected an integer of at least 0, got 1e20; write "
     "it without point and exponent\n"},
    {GRPO,
     {"actor_rollout_ref.actor.optim.lr=-1e-6", "actor_rollout_ref.actor.clip_ratio_c=1",
      "actor_rollout_ref.rollout.top_p=0", "actor_rollout_ref.actor.optim.betas=[0.9, 1]",
      "actor_rollout_ref.actor.grad_clip=nan", "trainer.default_local_dir=", NULL},
     "command line: actor_rollout_ref.actor.optim.lr=-1e-6: expected a number from 0 to 10, got "
     "-1e-6\n"
     "command line: actor_rollout_ref.actor.clip_ratio_c=1: expected a number above 1, got 1\n"
     "command line: actor_rollout_ref.rollout.top_p=0: expected a number above 0 and at most 1, "
     "got "
     "0\n"
     "command line: actor_rollout_ref.actor.optim.betas=[0.9, 1]: expected a list of two numbers, "
     "each from 0 to below 1, got 1\n"
     "command line: actor_rollout_ref.actor.grad_clip=nan: expected a number above 0, got "
     "\"nan\"\n"},
    {GRPO "data: {}\n",
     {"data.train_files=[]", NULL},
     "command line: data.train_files=[]: expected a string or a list of strings, got a list\n"},
    {GRPO,
     {"data.train_files=[a, [b]]", "data.prompt_key={a: 1}", NULL},
     "command line: data.train_files=[a, [b]]: expected a string or a list of strings, got a list\n"
     "command line: data.prompt_key={a: 1}: expected a string, got a map\n"},
    {GRPO "trainer:\n  default_local_dir: checkpoints/${trainer.project_name}\n",
     {0},
     "job.yaml:4: trainer.default_local_dir: interpolations (${...}) are not supported; write the "
     "value\n"},
    {GRPO "trainer: {logger: [console, fax]}\n",
     {0},
     "job.yaml:3: trainer.logger: expected a string or a list of strings out of console, file, "
     "wandb, mlflow, swanlab, vemlp_wandb, tensorboard, clearml, trackio, rl_insight, got "
     "\"fax\"\n"},
    // words that verl has and we do not
    {GRPO "algorithm: {adv_estimator: gae}\ntrainer: {device: cuda}\n",
     {0},
     "job.yaml:3: algorithm.adv_estimator: gae is known but not built here; there is grpo\n"
     "job.yaml:4: trainer.device: cuda is known but not built here; there is cpu\n"},
    {GRPO "algorithm: {adv_estimator: grppo}\n",
     {0},
     "job.yaml:3: algorithm.adv_estimator: expected one of grpo, got \"grppo\"\n"},
    {GRPO "tandem: {rewards: [{data_source: a, grader: exat}]}\n",
     {0},
     "job.yaml:3: tandem.rewards: item 1: grader must be one of exact, regex, gsm8k\n"},
    {GRPO "tandem: {rewards: [{data_source: a, grader: exact, pattern: x}]}\n",
     {0},
     "job.yaml:3: tandem.rewards: item 1: pattern is for grader regex only; remove it\n"},
    {GRPO "tandem: {rewards: [{data_source: a, grader: exact}, {data_source: b, grader: regex}]}\n",
     {0},
     "job.yaml:3: tandem.rewards: item 2: grader regex needs a pattern\n"},
    {GRPO "tandem:\n  rewards:\n  - {data_source: a, grader: exact}\n  - {data_source: a, grader: "
          "gsm8k}\n",
     {0},
     "job.yaml:4: tandem.rewards: items 1 and 2 have the same data_source; remove one\n"},
    {GRPO "tandem:\n  rewards:\n  - {data_source: a,\n     data_source: b}\n",
     {0},
     "job.yaml:4: tandem.rewards: line 6 sets data_source twice; remove one\n"},
    {GRPO "tandem: {rewards: [{source: a}]}\n",
     {0},
     "job.yaml:3: tandem.rewards: item 1: unknown key source; there are data_source, grader, "
     "pattern\n"},
    {GRPO "tandem: {rewards: [exact]}\n",
     {0},
     "job.yaml:3: tandem.rewards: item 1: expected {data_source, grader, pattern}, got "
     "\"exact\"\n"},
    {GRPO "tandem: {rewards: [{grader: exact}]}\n",
     {0},
     "job.yaml:3: tandem.rewards: item 1: data_source is missing\n"},
    {GRPO "tandem: {rewards: exact}\n",
     {0},
     "job.yaml:3: tandem.rewards: expected a list of {data_source, grader, pattern}, got "
     "\"exact\"\n"},
};

static const struct bad refused[] = {
    {GRPO,
     {"actor_rollout_ref.rollout.tensor_model_parallel_size=2", NULL},
     "command line: actor_rollout_ref.rollout.tensor_model_parallel_size=2: known, but only 1 is "
     "possible here: that kind of parallelism is not built; give more workers by "
     "tandem.train.workers or tandem.rollout.workers\n"},
    {GRPO "actor_rollout_ref.model.override_config: {attn: eager}\n",
     {0},
     "job.yaml:3: actor_rollout_ref.model.override_config: known, but only {} is possible here: "
     "change config.json of the model folder\n"},
    {GRPO, // a neutral value that is another setting's
     {"actor_rollout_ref.actor.rollout_n=8", NULL},
     "command line: actor_rollout_ref.actor.rollout_n=8: known, but only 4 is possible here: "
     "follows from actor_rollout_ref.rollout.n\n"},
    {SFT,
     {"trainer.test_freq=5", NULL},
     "command line: trainer.test_freq=5: known, but only -1 is possible here: validation of SFT "
     "jobs is not built; measure by a GRPO job's val_before_train\n"},
};

static const struct bad together[] = {
    {GRPO,
     {"data.train_batch_size=64", NULL},
     "job.yaml: actor_rollout_ref.actor.ppo_mini_batch_size: 256 (the default) does not divide "
     "data.train_batch_size 64; set one that does\n"},
    {GRPO,
     {"actor_rollout_ref.actor.ppo_mini_batch_size=100", NULL},
     "command line: actor_rollout_ref.actor.ppo_mini_batch_size=100: 100 does not divide "
     "data.train_batch_size 256; set one that does\n"},
    {GRPO,
     {"tandem.train.workers=3", NULL},
     "command line: tandem.train.workers=3: 3 workers cannot share a mini-batch of 256 x 4 answers "
     "evenly\n"},
    {SFT,
     {"tandem.train.workers=3", NULL},
     "command line: tandem.train.workers=3: 3 workers cannot share data.train_batch_size 256 "
     "evenly\n"},
    {GRPO,
     {"actor_rollout_ref.actor.use_dynamic_bsz=false", NULL},
     "command line: actor_rollout_ref.actor.use_dynamic_bsz=false: false needs "
     "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu; set it\n"},
    {GRPO,
     {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000", NULL},
     "command line: actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000: 1000 tokens are less "
     "than the longest sequence, 1024; set it higher\n"},
    {SFT,
     {"data.max_token_len_per_gpu=1000", NULL},
     "command line: data.max_token_len_per_gpu=1000: 1000 tokens are less than the longest "
     "sequence, 1024; set it higher\n"},
    {GRPO,
     {"actor_rollout_ref.rollout.do_sample=false", NULL},
     "command line: actor_rollout_ref.rollout.do_sample=false: false makes the 4 answers to a "
     "prompt equal, so nothing is learnt; set true\n"},
    {GRPO,
     {"actor_rollout_ref.rollout.max_model_len=1000", "tandem.rollout.kv_tokens_max=1000",
      "actor_rollout_ref.rollout.max_num_seqs=3", NULL},
     "command line: actor_rollout_ref.rollout.max_model_len=1000: 1000 is less than prompt and "
     "response together, 1024\n"
     "command line: tandem.rollout.kv_tokens_max=1000: 1000 tokens do not hold one sequence of "
     "1024; set 0 or more\n"
     "command line: actor_rollout_ref.rollout.max_num_seqs=3: 3 is less than the 4 answers to one "
     "prompt\n"},
    {GRPO,
     {"trainer.test_freq=5", NULL},
     "command line: trainer.test_freq=5: 5 needs data.val_files; set them\n"},
    {GRPO,
     {"actor_rollout_ref.actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true", NULL},
     "command line: algorithm.use_kl_in_reward=true: KL would count twice, in the reward and in "
     "the "
     "loss (actor_rollout_ref.actor.use_kl_loss); remove this one\n"},
    {GRPO,
     {"actor_rollout_ref.actor.grad_clip=0.5", "actor_rollout_ref.actor.optim.clip_grad=2", NULL},
     "command line: actor_rollout_ref.actor.grad_clip=0.5: 0.5, but optim.clip_grad, the same "
     "setting, is 2; set one of them\n"},
    // a setting with an error of its own is not complained of again
    {GRPO,
     {"data.train_batch_size=many", "actor_rollout_ref.actor.ppo_mini_batch_size=7", NULL},
     "command line: data.train_batch_size=many: expected an integer from 1 to 1048576, got "
     "\"many\"\n"},
};

static void check_bad(const struct bad *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct outcome o = parse(rows[i].yaml, rows[i].overrides);
        assert_string_equal(td_buf_str(&o.notes.errors), rows[i].errors);
        assert_int_equal(o.rc, TD_EINVAL);
        assert_null(o.spec);
        // The error has the first line.
        char first[TD_ERR_MAX];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(rows[i].errors, "\n"), rows[i].errors);
        assert_non_null(strstr(o.err.msg, first));
        done(&o);
    }
}

#define CHECK_BAD(rows) check_bad(rows, sizeof(rows) / sizeof *(rows))

static void test_spec_broken_yaml(void **state) {
    (void)state;
    CHECK_BAD(broken_yaml);
}

static void test_spec_keys(void **state) {
    (void)state;
    CHECK_BAD(keys);
}

static void test_spec_values(void **state) {
    (void)state;
    CHECK_BAD(values);
}

static void test_spec_refused(void **state) {
    (void)state;
    CHECK_BAD(refused);
}

static void test_spec_contradictions(void **state) {
    (void)state;
    CHECK_BAD(together);
}

static void test_spec_warnings(void **state) {
    static const struct {
        const char *overrides[OVERRIDES_MAX];
        const char *warnings;
    } rows[] = {
        {{0}, ""},
        {{"actor_rollout_ref.rollout.n=1", NULL},
         "command line: actor_rollout_ref.rollout.n=1: GRPO has nothing to compare with 1 answer a "
         "prompt; the advantage is the bare score (usual: 5 to 16)\n"},
        {{"trainer.val_before_train=true", NULL},
         "command line: trainer.val_before_train=true: does nothing without data.val_files\n"},
        {{"actor_rollout_ref.actor.kl_loss_coef=0.1", NULL},
         "command line: actor_rollout_ref.actor.kl_loss_coef=0.1: does nothing while use_kl_loss "
         "is "
         "false\n"},
        {{"actor_rollout_ref.actor.loss_scale_factor=8", NULL},
         "command line: actor_rollout_ref.actor.loss_scale_factor=8: does nothing unless "
         "loss_agg_mode is seq-mean-token-sum-norm\n"},
        {{"actor_rollout_ref.rollout.val_kwargs.n=4", NULL},
         "command line: actor_rollout_ref.rollout.val_kwargs.n=4: the 4 answers are equal without "
         "do_sample and a temperature\n"},
        {{"actor_rollout_ref.rollout.val_kwargs.do_sample=true", NULL},
         "command line: actor_rollout_ref.rollout.val_kwargs.do_sample=true: does nothing at "
         "temperature 0\n"},
        {{"actor_rollout_ref.actor.use_dynamic_bsz=true",
          "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", NULL},
         "command line: actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4: not used, because "
         "actor_rollout_ref.actor.use_dynamic_bsz is true\n"},
        {{"trainer.total_training_steps=5", "actor_rollout_ref.actor.optim.lr_warmup_steps=6",
          NULL},
         "command line: actor_rollout_ref.actor.optim.lr_warmup_steps=6: 6 steps of warm-up, but "
         "the "
         "job ends after 5\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct outcome o = parse(GRPO, rows[i].overrides);
        assert_int_equal(o.rc, TD_OK);
        assert_string_equal(td_buf_str(&o.notes.warnings), rows[i].warnings);
        done(&o);
    }
}

static void test_spec_no_effect_is_listed_once(void **state) {
    static const char yaml[] = GRPO "actor_rollout_ref.rollout:\n"
                                    "  name: vllm\n"
                                    "  engine_kwargs: {vllm: {swap: {deep: [1, {x: 2}]}}}\n"
                                    "trainer: {project_name: p, logger: [console, wandb]}\n"
                                    "critic: {optim: {lr: not a number}}\n";
    (void)state;
    struct outcome o = parse(yaml, (const char *const[]){"trainer.project_name=q", NULL});
    assert_string_equal(td_buf_str(&o.notes.errors), "");
    assert_string_equal(
        td_buf_str(&o.notes.no_effect),
        "actor_rollout_ref.rollout.name: there is one rollout engine, our own\n"
        "actor_rollout_ref.rollout.engine_kwargs.vllm: there is one rollout engine, "
        "our own\n"
        "trainer.project_name: nothing is sent to a tracking service\n"
        "critic.optim.lr: there is no critic: adv_estimator is grpo\n"
        "trainer.logger: wandb is not written to\n");
    assert_int_equal(o.notes.no_effect_count, 5);
    done(&o);
}

static void test_spec_neutral_values_are_accepted(void **state) {
    static const char yaml[] = GRPO
        "actor_rollout_ref.rollout: {tensor_model_parallel_size: 1, over_sample_rate: 0,\n"
        "                            response_length: 512, ignore_eos: false, mtp: null}\n"
        "actor_rollout_ref.model: {override_config: {}, lora_rank: 0, external_lib: }\n"
        "actor_rollout_ref.actor: {rollout_n: 4, checkpoint: {load_contents: [model, optimizer, "
        "extra]}}\n"
        "critic: {enable: null}\n"
        "algorithm:\n"; // an empty section
    (void)state;
    struct outcome o = parse(yaml, NULL);
    assert_string_equal(td_buf_str(&o.notes.errors), "");
    assert_int_equal(o.notes.no_effect_count, 0);
    done(&o);
}

static void test_spec_grpo_fields(void **state) {
    static const char yaml[] =
        "data:\n"
        "  train_files: [a.jsonl, b.jsonl]\n"
        "  val_files: v.jsonl\n"
        "  train_batch_size: 64\n"
        "  max_response_length: 8\n"
        "  truncation: middle\n"
        "actor_rollout_ref:\n"
        "  model: {path: 7}\n" // a string, because the key wants one
        "  actor:\n"
        "    ppo_mini_batch_size: 16\n"
        "    ppo_micro_batch_size_per_gpu: 4\n"
        "    clip_ratio: .3\n"
        "    clip_ratio_high: 28e-2\n"
        "    kl_loss_type: mse\n"
        "    loss_agg_mode: seq-mean-token-sum-norm\n"
        "    grad_clip: 0.5\n"
        "    optim: {lr: 2e-4, betas: [0.9, 0.95], lr_scheduler_type: cosine}\n"
        "  rollout: {'n': 8, val_kwargs: {temperature: 0.5}}\n"
        "trainer: {total_training_steps: 40, total_epochs: 100, test_freq: 5}\n"
        "tandem:\n"
        "  seed: 9\n"
        "  init: random\n"
        "  chat_template: chatml\n"
        "  rewards:\n"
        "  - {data_source: sums, grader: regex, pattern: '^\\s*${x}(\\d+)'}\n"
        "  - {data_source: text, grader: exact, pattern: null}\n";
    (void)state;
    struct td_job_spec *s = good(yaml, NULL);
    assert_int_equal(s->tandem.kind, TD_JOB_GRPO);
    assert_int_equal(s->data.train_files.count, 2);
    assert_string_equal(s->data.train_files.items[1], "b.jsonl");
    assert_int_equal(s->data.val_files.count, 1);
    assert_string_equal(s->data.val_files.items[0], "v.jsonl");
    assert_int_equal(s->data.train_batch_size, 64);
    assert_int_equal(s->data.max_prompt_length, 512);
    assert_int_equal(s->data.max_response_length, 8);
    assert_int_equal(s->data.truncation, 3);
    assert_int_equal(s->data.seed, 9); // follows tandem.seed
    assert_true(s->data.shuffle);
    assert_string_equal(s->model.path, "7");
    assert_false(s->actor.use_dynamic_bsz); // because a number of rows was given
    assert_int_equal(td_job_micro_rows(s), 4);
    assert_true(s->actor.clip_ratio == 0.3 && s->actor.clip_ratio_low == 0.3);
    assert_true(s->actor.clip_ratio_high == 0.28 && s->actor.clip_ratio_c == 3.0);
    assert_int_equal(s->actor.kl_loss_type, TD_KL_LOSS_MSE);
    assert_int_equal(s->actor.loss_agg_mode, TD_LOSS_SEQ_MEAN_TOKEN_SUM_NORM);
    assert_true(s->actor.loss_scale_factor == TD_SPEC_UNSET);
    assert_true(s->actor.optim.lr == 2e-4 && s->actor.optim.betas[1] == 0.95);
    assert_true(s->actor.optim.clip_grad == 0.5); // under its other name
    assert_int_equal(s->actor.optim.lr_scheduler_type, TD_SCHEDULER_COSINE);
    assert_int_equal(s->rollout.n, 8);
    assert_true(s->rollout.val_kwargs.temperature == 0.5);
    assert_true(td_job_temperature(s, false) == 1 && td_job_temperature(s, true) == 0);
    assert_int_equal(td_job_kv_tokens(s), 256 * (512 + 8));
    assert_int_equal(s->trainer.total_training_steps, 40);
    assert_null(s->trainer.default_local_dir);
    assert_int_equal(s->tandem.init, TD_INIT_RANDOM);
    assert_int_equal(s->tandem.chat_template, TD_CHAT_CHATML);
    assert_int_equal(s->tandem.worker_grace_s, 60);
    assert_string_equal(s->tandem.run_dir, "tandem-run");
    assert_int_equal(s->tandem.reward_count, 2);
    assert_string_equal(s->tandem.rewards[0].pattern, "^\\s*${x}(\\d+)");
    assert_null(s->tandem.rewards[1].pattern);
    td_job_spec_free(s);
}

static void test_spec_sft_fields(void **state) {
    (void)state;
    struct td_job_spec *s =
        good(SFT, (const char *const[]){"optim.lr=1e-3", "data.response_key=answer",
                                        "trainer.seed=3", "data.micro_batch_size_per_gpu=8", NULL});
    assert_int_equal(s->tandem.kind, TD_JOB_SFT);
    assert_string_equal(s->model.path, "m");
    assert_true(s->actor.optim.lr == 1e-3);
    assert_string_equal(s->data.prompt_key, "prompt");
    assert_string_equal(s->data.response_key, "answer");
    assert_int_equal(s->data.seed, 3);
    assert_int_equal(s->data.max_length, 1024);
    assert_true(s->data.shuffle);
    assert_int_equal(td_job_micro_rows(s), 8);
    assert_int_equal(s->trainer.total_epochs, 4);
    td_job_spec_free(s);
}

static void test_spec_overrides_win_in_order(void **state) {
    (void)state;
    struct td_job_spec *s =
        good(GRPO "tandem: {seed: 5, kind: sft}\n",
             (const char *const[]){"tandem.kind=grpo", "tandem.seed=6",
                                   "tandem={seed: 7, init: random}", "data.prompt_key=a=b",
                                   "data.seed=null", "data.train_files=['x y', z]", NULL});
    assert_int_equal(s->tandem.kind, TD_JOB_GRPO);
    assert_int_equal(s->tandem.seed, 7);
    assert_int_equal(s->tandem.init, TD_INIT_RANDOM);
    assert_int_equal(s->data.seed, 7);
    assert_string_equal(s->data.prompt_key, "a=b");
    assert_string_equal(s->data.train_files.items[0], "x y");
    td_job_spec_free(s);
}

static void test_spec_errors_are_bounded(void **state) {
    (void)state;
    struct td_buf yaml = {0};
    for (int i = 0; i < 1000; i++) {
        td_buf_printf(&yaml, "key%d: 1\n", i);
    }
    struct outcome o = parse(td_buf_str(&yaml), NULL);
    assert_int_equal(o.rc, TD_EINVAL);
    size_t lines = 0;
    for (const char *p = td_buf_str(&o.notes.errors); *p; p++) {
        lines += *p == '\n';
    }
    assert_int_equal(lines, 65); // 64 and the line that says so
    assert_non_null(strstr(td_buf_str(&o.notes.errors), "\nfurther errors are not shown\n"));
    td_buf_fini(&yaml);
    done(&o);
}

static void test_spec_files(void **state) {
    (void)state;
    char dir[] = "/tmp/tandem-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = td_asprintf("%s/job.yaml", dir);
    struct td_job_spec *spec = NULL;
    struct td_spec_notes notes = {0};
    struct td_err err = {0};
    assert_int_equal(td_job_spec_load(path, NULL, 0, &spec, &notes, &err), TD_ENOENT);
    assert_non_null(strstr(td_buf_str(&notes.errors), "job.yaml: No such file"));
    td_spec_notes_fini(&notes);

    assert_int_equal(td_file_write(path, GRPO, strlen(GRPO), &err), TD_OK);
    assert_int_equal(td_job_spec_load(path, NULL, 0, &spec, &notes, &err), TD_OK);
    assert_int_equal(spec->rollout.n, 4);
    td_job_spec_free(spec);
    spec = NULL;
    td_spec_notes_fini(&notes);

    char *big = td_alloc(TD_SPEC_FILE_MAX + 2);
    memset(big, '#', TD_SPEC_FILE_MAX + 1);
    assert_int_equal(td_file_write(path, big, TD_SPEC_FILE_MAX + 1, &err), TD_OK);
    assert_int_equal(td_job_spec_load(path, NULL, 0, &spec, &notes, &err), TD_ELIMIT);
    assert_null(spec);
    td_spec_notes_fini(&notes);
    td_free(big);
    td_free(path);
    assert_int_equal(td_remove_tree(dir, &err), TD_OK);
}

static void test_spec_schedule(void **state) {
    static const struct {
        const char *overrides[OVERRIDES_MAX];
        uint64_t rows;
        struct td_job_schedule want;
    } rows[] = {
        {{"trainer.total_epochs=3", NULL}, 1000, {3, 9, false, 1, 0}},
        {{"trainer.total_epochs=3", "trainer.total_training_steps=5", NULL},
         1000,
         {3, 5, false, 1, 0}},
        {{"trainer.total_epochs=3", "trainer.total_training_steps=50", NULL},
         1000,
         {3, 9, true, 1, 0}},
        {{"trainer.total_epochs=1", "actor_rollout_ref.actor.ppo_mini_batch_size=64",
          "actor_rollout_ref.actor.ppo_epochs=2", NULL},
         256,
         {1, 1, false, 8, 0}},
        {{"trainer.total_epochs=10", "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.15",
          NULL},
         256,
         {1, 10, false, 1, 1}},
        {{"trainer.total_epochs=10", "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.15",
          "actor_rollout_ref.actor.optim.lr_warmup_steps=4", NULL},
         256,
         {1, 10, false, 1, 4}},
    };
    (void)state;
    struct td_err err = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_job_spec *s = good(GRPO, rows[i].overrides);
        struct td_job_schedule got;
        assert_int_equal(td_job_schedule(s, rows[i].rows, &got, &err), TD_OK);
        assert_int_equal(got.epoch_steps, rows[i].want.epoch_steps);
        assert_int_equal(got.total_steps, rows[i].want.total_steps);
        assert_int_equal(got.data_end_first, rows[i].want.data_end_first);
        assert_int_equal(got.updates_per_step, rows[i].want.updates_per_step);
        assert_int_equal(got.warmup_steps, rows[i].want.warmup_steps);
        assert_int_equal(td_job_schedule(s, 255, &got, &err), TD_EINVAL);
        td_job_spec_free(s);
    }
    assert_string_equal(err.msg,
                        "data.train_batch_size 256 is more than the 255 rows of data.train_files");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spec_broken_yaml),
        cmocka_unit_test(test_spec_keys),
        cmocka_unit_test(test_spec_values),
        cmocka_unit_test(test_spec_refused),
        cmocka_unit_test(test_spec_contradictions),
        cmocka_unit_test(test_spec_warnings),
        cmocka_unit_test(test_spec_no_effect_is_listed_once),
        cmocka_unit_test(test_spec_neutral_values_are_accepted),
        cmocka_unit_test(test_spec_grpo_fields),
        cmocka_unit_test(test_spec_sft_fields),
        cmocka_unit_test(test_spec_overrides_win_in_order),
        cmocka_unit_test(test_spec_errors_are_bounded),
        cmocka_unit_test(test_spec_files),
        cmocka_unit_test(test_spec_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
