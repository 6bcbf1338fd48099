// How entries of the schema table are written, and the groups of keys that verl repeats.
#ifndef TD_SPEC_SCHEMA_INT_H
#define TD_SPEC_SCHEMA_INT_H

#include "lib/spec/schema.h"

extern const struct td_spec_section td_spec_tandem_section, td_spec_tandem_grpo_section,
    td_spec_data_section, td_spec_actor_section, td_spec_rollout_section, td_spec_trainer_section,
    td_spec_sft_section;

#define TD_DONE(name_, type_, field_, def_, help_, ...)                                            \
    {                                                                                              \
        .name = name_, .cls = TD_SPEC_DONE, .type = TD_SPEC_##type_,                               \
        .offset = offsetof(struct td_job_spec, field_), .def = def_, .help = help_, __VA_ARGS__    \
    }
#define TD_IDLE(name_, type_, def_, help_)                                                         \
    { .name = name_, .cls = TD_SPEC_NO_EFFECT, .type = TD_SPEC_##type_, .def = def_, .help = help_ }
#define TD_REFUSED(name_, type_, neutral_, help_, ...)                                             \
    {                                                                                              \
        .name = name_, .cls = TD_SPEC_REFUSED, .type = TD_SPEC_##type_, .def = neutral_,           \
        .help = help_, __VA_ARGS__                                                                 \
    }

#define TD_RANGE(min_, max_) .min = min_, .max = max_
#define TD_COUNT_MAX 2147483647.0
#define TD_TIME_MAX_S 604800.0
#define TD_SEED_MAX 9223372036854775807.0
#define TD_DIFFERS(verl_, why_) .verl = verl_, .why = why_

#define TD_WHY_TARGET "names a Python class"
#define TD_WHY_FSDP "belongs to verl's FSDP engine"
#define TD_WHY_MEMORY "saves GPU memory; results are the same"
#define TD_WHY_SPEED "is about speed; results are the same"
#define TD_WHY_PROFILER "belongs to verl's profilers"
#define TD_WHY_CRITIC "there is no critic: adv_estimator is grpo"
#define TD_WHY_REWARD_MODEL "there is no reward model"
#define TD_WHY_UNUSED "is read by a setting that is refused here"
#define TD_HELP_PYTHON "runs Python code"
#define TD_HELP_ONE                                                                                \
    "that kind of parallelism is not built; give more workers by tandem.train.workers "            \
    "or tandem.rollout.workers"
#define TD_HELP_F32 "the CPU backend computes in float32"
#define TD_DIFFERS_F32 TD_DIFFERS("\"bfloat16\"", TD_HELP_F32)

// p: the section with its dot.
#define TD_FSDP_SHORT_KEYS(p)                                                                      \
    TD_IDLE(p "_target_", STRING, "null", TD_WHY_TARGET),                                          \
        TD_IDLE(p "wrap_policy.min_num_params", INT, "0", TD_WHY_FSDP),                            \
        TD_IDLE(p "param_offload", BOOL, "false", TD_WHY_FSDP),                                    \
        TD_IDLE(p "reshard_after_forward", BOOL, "true", TD_WHY_FSDP),                             \
        TD_IDLE(p "fsdp_size", INT, "-1", TD_WHY_FSDP),                                            \
        TD_IDLE(p "forward_prefetch", BOOL, "false", TD_WHY_FSDP)
#define TD_FSDP_KEYS(p)                                                                            \
    TD_FSDP_SHORT_KEYS(p), TD_IDLE(p "optimizer_offload", BOOL, "false", TD_WHY_FSDP),             \
        TD_IDLE(p "offload_policy", BOOL, "false", TD_WHY_FSDP),                                   \
        TD_IDLE(p "use_orig_params", BOOL, "false", TD_WHY_FSDP),                                  \
        TD_IDLE(p "seed", INT, "42", "tandem.seed is the seed of everything"),                     \
        TD_IDLE(p "full_determinism", BOOL, "false", "runs are deterministic"),                    \
        TD_IDLE(p "entropy_from_logits_with_chunking", BOOL, "false", TD_WHY_MEMORY),              \
        TD_IDLE(p "use_torch_compile", BOOL, "true", TD_WHY_SPEED),                                \
        TD_IDLE(p "entropy_checkpointing", BOOL, "false", TD_WHY_MEMORY),                          \
        TD_IDLE(p "forward_only", BOOL, "false", TD_WHY_FSDP),                                     \
        TD_IDLE(p "strategy", STRING, "\"fsdp\"", TD_WHY_FSDP)
// Of the models that exist here: what would change numbers is refused.
#define TD_FSDP_NUMERIC_KEYS(p)                                                                    \
    TD_REFUSED(p "model_dtype", STRING, "\"fp32\"", TD_HELP_F32),                                  \
        TD_REFUSED(p "dtype", STRING, "\"float32\"", TD_HELP_F32, TD_DIFFERS_F32),                 \
        TD_REFUSED(p "ulysses_sequence_parallel_size", INT, "1", TD_HELP_ONE)
#define TD_FSDP_IDLE_KEYS(p, why)                                                                  \
    TD_IDLE(p "model_dtype", STRING, "\"fp32\"", why),                                             \
        TD_IDLE(p "dtype", STRING, "\"bfloat16\"", why),                                           \
        TD_IDLE(p "ulysses_sequence_parallel_size", INT, "1", why)

#define TD_PROFILER_SHORT_KEYS(p)                                                                  \
    TD_IDLE(p "_target_", STRING, "null", TD_WHY_TARGET),                                          \
        TD_IDLE(p "tool", STRING, "null", TD_WHY_PROFILER),                                        \
        TD_IDLE(p "enable", BOOL, "false", TD_WHY_PROFILER),                                       \
        TD_IDLE(p "all_ranks", BOOL, "false", TD_WHY_PROFILER),                                    \
        TD_IDLE(p "ranks", ANY, "[]", TD_WHY_PROFILER),                                            \
        TD_IDLE(p "save_path", STRING, "null", TD_WHY_PROFILER)
#define TD_PROFILER_KEYS(p)                                                                        \
    TD_PROFILER_SHORT_KEYS(p),                                                                     \
        TD_IDLE(p "tool_config.nsys._target_", STRING, "null", TD_WHY_TARGET),                     \
        TD_IDLE(p "tool_config.nsys.discrete", BOOL, "false", TD_WHY_PROFILER),                    \
        TD_IDLE(p "tool_config.npu._target_", STRING, "null", TD_WHY_TARGET),                      \
        TD_IDLE(p "tool_config.npu.contents", ANY, "[]", TD_WHY_PROFILER),                         \
        TD_IDLE(p "tool_config.npu.level", STRING, "\"level0\"", TD_WHY_PROFILER),                 \
        TD_IDLE(p "tool_config.npu.analysis", BOOL, "true", TD_WHY_PROFILER),                      \
        TD_IDLE(p "tool_config.npu.discrete", BOOL, "false", TD_WHY_PROFILER),                     \
        TD_IDLE(p "tool_config.torch._target_", STRING, "null", TD_WHY_TARGET),                    \
        TD_IDLE(p "tool_config.torch.contents", ANY, "[]", TD_WHY_PROFILER),                       \
        TD_IDLE(p "tool_config.torch.discrete", BOOL, "false", TD_WHY_PROFILER),                   \
        TD_IDLE(p "tool_config.torch_memory._target_", STRING, "null", TD_WHY_TARGET),             \
        TD_IDLE(p "tool_config.torch_memory.trace_alloc_max_entries", INT, "100000",               \
                TD_WHY_PROFILER),                                                                  \
        TD_IDLE(p "tool_config.torch_memory.stack_depth", INT, "32", TD_WHY_PROFILER)

// The actor's optimizer; lr_... are the JSON text of verl's default.
#define TD_OPTIM_KEYS(p, lr_)                                                                      \
    TD_IDLE(p "_target_", STRING, "null", TD_WHY_TARGET),                                          \
        TD_REFUSED(p "optimizer", STRING, "\"AdamW\"", "AdamW is the only optimizer"),             \
        TD_REFUSED(p "optimizer_impl", STRING, "\"torch.optim\"",                                  \
                   "AdamW as in torch.optim is the only optimizer"),                               \
        TD_DONE(p "lr", FLOAT, actor.optim.lr, lr_, "learning rate after warm-up",                 \
                TD_RANGE(0, 10)),                                                                  \
        TD_DONE(p "lr_warmup_steps_ratio", FLOAT, actor.optim.lr_warmup_steps_ratio, "0.0",        \
                "warm-up as a part of all steps, where lr_warmup_steps is 0 or less",              \
                TD_RANGE(0, 1)),                                                                   \
        TD_IDLE(p "total_training_steps", INT, "-1", "follows from the trainer's, as in verl"),    \
        TD_DONE(p "weight_decay", FLOAT, actor.optim.weight_decay, "0.01",                         \
                "decoupled weight decay of matrices", TD_RANGE(0, 10)),                            \
        TD_DONE(p "lr_warmup_steps", INT, actor.optim.lr_warmup_steps, "-1",                       \
                "steps of linear warm-up; 0 or less: by lr_warmup_steps_ratio",                    \
                TD_RANGE(-1, TD_COUNT_MAX)),                                                       \
        TD_DONE(p "betas", PAIR, actor.optim.betas, "[0.9,0.999]",                                 \
                "decay rates of the two moments", TD_RANGE(0, 1)),                                 \
        TD_DONE(p "clip_grad", FLOAT, actor.optim.clip_grad, "1.0",                                \
                "largest norm of the whole gradient", TD_RANGE(0, 1e9), .above = true),            \
        TD_DONE(p "min_lr_ratio", FLOAT, actor.optim.min_lr_ratio, "0.0",                          \
                "the cosine schedule ends at this part of lr", TD_RANGE(0, 1)),                    \
        TD_REFUSED(p "num_cycles", FLOAT, "0.5", "the cosine schedule is half a wave"),            \
        TD_DONE(p "lr_scheduler_type", ENUM, actor.optim.lr_scheduler_type, "\"constant\"",        \
                "course of the learning rate after warm-up", .values = "constant|cosine"),         \
        TD_REFUSED(p "warmup_style", ANY, "null", "verl's old name; set lr_scheduler_type"),       \
        TD_REFUSED(p "override_optimizer_config", ANY, "null", "eps is 1e-8, as torch's default")

// A model folder.
#define TD_MODEL_KEYS(p)                                                                           \
    TD_IDLE(p "_target_", STRING, "null", TD_WHY_TARGET),                                          \
        TD_DONE(p "path", STRING, model.path, NULL,                                                \
                "folder of the model: config.json, tokenizer.json and, unless tandem.init is "     \
                "random, safetensors",                                                             \
                .required = true,                                                                  \
                TD_DIFFERS("\"~/models/deepseek-llm-7b-chat\"", "an example's path")),             \
        TD_REFUSED(p "hf_config_path", STRING, "null", "config.json of the model folder is used"), \
        TD_REFUSED(p "tokenizer_path", STRING, "null",                                             \
                   "tokenizer.json of the model folder is used"),                                  \
        TD_IDLE(p "use_shm", BOOL, "false", TD_WHY_SPEED),                                         \
        TD_IDLE(p "trust_remote_code", BOOL, "false", "code of a model folder is never run"),      \
        TD_REFUSED(p "custom_chat_template", STRING, "null", "set tandem.chat_template"),          \
        TD_REFUSED(p "external_lib", STRING, "null", TD_HELP_PYTHON),                              \
        TD_REFUSED(p "override_config", ANY, "{}", "change config.json of the model folder"),      \
        TD_IDLE(p "enable_gradient_checkpointing", BOOL, "true", TD_WHY_MEMORY),                   \
        TD_IDLE(p "enable_activation_offload", BOOL, "false", TD_WHY_MEMORY),                      \
        TD_IDLE(p "use_remove_padding", BOOL, "true", "batches are always packed"),                \
        TD_REFUSED(p "lora_rank", INT, "0", "LoRA is not built; all weights are trained"),         \
        TD_IDLE(p "lora_alpha", INT, "16", TD_WHY_UNUSED),                                         \
        TD_IDLE(p "target_modules", ANY, "\"all-linear\"", TD_WHY_UNUSED),                         \
        TD_IDLE(p "exclude_modules", ANY, "null", TD_WHY_UNUSED),                                  \
        TD_REFUSED(p "lora_adapter_path", STRING, "null", "LoRA is not built"),                    \
        TD_IDLE(p "use_liger", BOOL, "false", TD_WHY_SPEED),                                       \
        TD_IDLE(p "use_fused_kernels", BOOL, "false", TD_WHY_SPEED),                               \
        TD_IDLE(p "fused_kernel_options.impl_backend", STRING, "\"torch\"", TD_WHY_SPEED),         \
        TD_IDLE(p "tiled_mlp.enabled", BOOL, "false", TD_WHY_MEMORY),                              \
        TD_IDLE(p "tiled_mlp.num_shards", INT, "4", TD_WHY_MEMORY),                                \
        TD_IDLE(p "mtp._target_", STRING, "null", TD_WHY_TARGET),                                  \
        TD_REFUSED(p "mtp.enable", BOOL, "false", "multi-token prediction is not built"),          \
        TD_REFUSED(p "mtp.enable_train", BOOL, "false", "multi-token prediction is not built"),    \
        TD_REFUSED(p "mtp.enable_rollout", BOOL, "false", "multi-token prediction is not built"),  \
        TD_IDLE(p "mtp.detach_encoder", BOOL, "false", TD_WHY_UNUSED),                             \
        TD_IDLE(p "mtp.mtp_loss_scaling_factor", FLOAT, "0.1", TD_WHY_UNUSED),                     \
        TD_IDLE(p "mtp.speculative_algorithm", STRING, "\"EAGLE\"", TD_WHY_UNUSED),                \
        TD_IDLE(p "mtp.speculative_num_steps", INT, "2", TD_WHY_UNUSED),                           \
        TD_IDLE(p "mtp.speculative_eagle_topk", INT, "2", TD_WHY_UNUSED),                          \
        TD_IDLE(p "mtp.speculative_num_draft_tokens", INT, "4", TD_WHY_UNUSED),                    \
        TD_IDLE(p "mtp.method", STRING, "\"mtp\"", TD_WHY_UNUSED),                                 \
        TD_IDLE(p "mtp.num_speculative_tokens", INT, "1", TD_WHY_UNUSED)

#define TD_CHECKPOINT_KEYS(p)                                                                      \
    TD_IDLE(p "save_contents", ANY, "[\"model\",\"optimizer\",\"extra\"]",                         \
            "weights and optimizer are always saved"),                                             \
        TD_REFUSED(p "load_contents", ANY, "[\"model\",\"optimizer\",\"extra\"]",                  \
                   "a checkpoint is loaded whole")

// What both kinds of job have under trainer.
#define TD_TRAINER_KEYS(project, experiment)                                                       \
    TD_DONE("trainer.total_training_steps", INT, trainer.total_training_steps, "null",             \
            "stop after so many steps, though data are left", .nullable = true,                    \
            TD_RANGE(1, TD_COUNT_MAX)),                                                            \
        TD_IDLE("trainer.project_name", STRING, project, "nothing is sent to a tracking service"), \
        TD_IDLE("trainer.experiment_name", STRING, experiment,                                     \
                "nothing is sent to a tracking service"),                                          \
        TD_DONE("trainer.logger", STRINGS, trainer.logger, "[\"console\",\"file\"]",               \
                "where progress goes; metrics.jsonl is always written; other services are "        \
                "accepted and do nothing",                                                         \
                .values = "console|file|wandb|mlflow|swanlab|vemlp_wandb|tensorboard|clearml|"     \
                          "trackio|rl_insight",                                                    \
                .process = true,                                                                   \
                TD_DIFFERS("[\"console\",\"wandb\"]", "no service is reached from here")),         \
        TD_IDLE("trainer.nnodes", INT, "1", "workers are counted by tandem.train.workers"),        \
        TD_DONE("trainer.save_freq", INT, trainer.save_freq, "-1",                                 \
                "write global_step_N every so many steps and at the end; 0 or less: never",        \
                TD_RANGE(-1, TD_COUNT_MAX)),                                                       \
        TD_REFUSED("trainer.resume_mode", STRING, "\"auto\"",                                      \
                   "a run directory resumes by itself; start over with --fresh"),                  \
        TD_REFUSED("trainer.resume_from_path", STRING, "null",                                     \
                   "set the model path to its actor/huggingface folder"),                          \
        TD_REFUSED("trainer.default_hdfs_dir", STRING, "null", "there is no HDFS client"),         \
        TD_DONE("trainer.default_local_dir", STRING, trainer.default_local_dir, "null",            \
                "folder of global_step_N; null: checkpoints in tandem.run_dir", .nullable = true,  \
                TD_DIFFERS("\"checkpoints/${trainer.project_name}/${trainer.experiment_name}\"",   \
                           "one run directory holds one job")),                                    \
        TD_DONE("trainer.device", ENUM, trainer.device, "\"cpu\"", "backend of the workers",       \
                .values = "cpu", .known = "cuda|npu",                                              \
                TD_DIFFERS("\"cuda\"", "the CPU backend is the one that exists"))

#endif
