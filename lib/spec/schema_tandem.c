// The schema of our own section, tandem. Data only.
#include "lib/spec/schema_int.h"

#define TD_OURS .ours = "ours"
#define TD_PROCESS .process = true, TD_OURS

static const struct td_spec_key common_keys[] = {
    TD_DONE("tandem.kind", ENUM, tandem.kind, "\"grpo\"",
            "what is done: reinforcement learning by GRPO, or supervised fine-tuning",
            .values = "grpo|sft", TD_OURS),
    TD_DONE("tandem.seed", INT, tandem.seed, "1",
            "the one seed: sampling, data order, random weights", TD_RANGE(0, TD_SEED_MAX),
            TD_OURS),
    TD_DONE("tandem.init", ENUM, tandem.init, "\"load\"",
            "load: weights of the model folder; random: config.json and tokenizer.json only",
            .values = "load|random", TD_OURS),
    TD_DONE("tandem.run_dir", STRING, tandem.run_dir, "\"tandem-run\"",
            "folder of the run: journal, logs, checkpoints, metrics.jsonl; it holds one job",
            TD_PROCESS),
    TD_DONE("tandem.train.workers", INT, tandem.train.workers, "1",
            "worker processes that train together; another number gives other roundings",
            TD_RANGE(1, 64), TD_OURS),
    TD_DONE("tandem.threads", INT, tandem.threads, "0",
            "threads of a worker; 0: cores / workers; results do not depend on it",
            TD_RANGE(0, 1024), TD_PROCESS),
    TD_DONE("tandem.chat_template", ENUM, tandem.chat_template, "\"plain\"",
            "how chat messages become text", .values = "plain|chatml", TD_OURS),
    TD_DONE("tandem.checkpoint.every", INT, tandem.checkpoint.every, "10",
            "steps between recovery checkpoints, of which two are kept", TD_RANGE(1, TD_COUNT_MAX),
            TD_OURS),
    TD_DONE(
        "tandem.redo.mismatch", ENUM, tandem.redo.mismatch, "\"fail\"",
        "when a round that is done again gives other digests, the job ends (fail) or goes on with "
        "the new ones as another lineage (fork); where build or number of workers changed "
        "meanwhile, it always forks",
        .values = "fail|fork", TD_OURS),
    TD_DONE("tandem.worker_grace_s", INT, tandem.worker_grace_s, "60",
            "a worker without its controller waits that long before it exits",
            TD_RANGE(1, TD_TIME_MAX_S), TD_PROCESS),
    TD_DONE("tandem.worker_timeout_s", INT, tandem.worker_timeout_s, "10",
            "a worker that is silent for that long is replaced; its heartbeat comes each second",
            TD_RANGE(2, TD_TIME_MAX_S), TD_PROCESS),
    TD_DONE("tandem.step_timeout_s", INT, tandem.step_timeout_s, "600",
            "a worker that does not finish one update in that time is replaced",
            TD_RANGE(1, TD_TIME_MAX_S), TD_PROCESS),
    TD_DONE("tandem.start_timeout_s", INT, tandem.start_timeout_s, "120",
            "a worker that is not ready, weights loaded, in that time is replaced",
            TD_RANGE(1, TD_TIME_MAX_S), TD_PROCESS),
    TD_DONE("tandem.lease_s", INT, tandem.lease_s, "10",
            "a controller that is silent for that long loses its units of work",
            TD_RANGE(1, TD_TIME_MAX_S), TD_PROCESS),
    TD_DONE("tandem.max_attempts", INT, tandem.max_attempts, "16",
            "a prompt whose worker or grader fails that often, or train workers that lose their "
            "state that often within one step, end the job; 0: it is tried again without end",
            TD_RANGE(0, 1e6), TD_PROCESS),
    TD_DONE("tandem.log.fsync", BOOL, tandem.log.fsync, "true",
            "false: survives kill -9, but not a loss of power", TD_PROCESS),
};

static const struct td_spec_key grpo_keys[] = {
    TD_DONE("tandem.rollout.workers", INT, tandem.rollout.workers, "1",
            "worker processes that generate; results do not depend on it", TD_RANGE(1, 64),
            TD_PROCESS),
    TD_DONE("tandem.rollout.unit_groups", INT, tandem.rollout.unit_groups, "8",
            "prompts that are handed out together", TD_RANGE(1, 65536), TD_OURS),
    TD_DONE("tandem.rollout.kv_tokens_max", INT, tandem.rollout.kv_tokens_max, "0",
            "size of a worker's KV pool in tokens; 0: room for max_num_seqs whole sequences",
            TD_RANGE(0, 1e12), TD_OURS),
    TD_DONE("tandem.rewards", REWARDS, tandem.rewards, "[]",
            "list of {data_source, grader, pattern}: who scores answers to rows of that source; "
            "grader exact, regex or gsm8k; pattern for regex; openai/gsm8k has gsm8k without being "
            "listed",
            TD_OURS),
};

const struct td_spec_section td_spec_tandem_section = {
    common_keys, sizeof common_keys / sizeof *common_keys, TD_KINDS_GRPO | TD_KINDS_SFT};
const struct td_spec_section td_spec_tandem_grpo_section = {
    grpo_keys, sizeof grpo_keys / sizeof *grpo_keys, TD_KINDS_GRPO};
