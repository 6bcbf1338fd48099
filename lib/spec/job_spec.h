// A job's settings, typed. The job file has verl's keys (commit b178a3c) and a section of our own,
// `tandem:`; lib/spec/schema.h holds the one table behind parsing, checks, help and documentation.
// Fields carry the last words of verl's dotted keys. Both kinds of job fill the same fields: what
// GRPO calls actor_rollout_ref.model.path and actor_rollout_ref.actor.optim.lr, SFT calls
// model.path and optim.lr. A field whose key the kind does not have is zero.
// Pure but for td_job_spec_load, which reads one file. Any thread; a spec is not changed once made.
#ifndef TD_SPEC_JOB_SPEC_H
#define TD_SPEC_JOB_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"

enum td_job_kind { TD_JOB_GRPO, TD_JOB_SFT };
enum td_job_init { TD_INIT_LOAD, TD_INIT_RANDOM };
enum td_job_truncation {
    TD_OVERLONG_ERROR,
    TD_OVERLONG_LEFT,
    TD_OVERLONG_RIGHT,
    TD_OVERLONG_MIDDLE
};
enum td_job_chat_template { TD_CHAT_PLAIN, TD_CHAT_CHATML };
// In the order of enum td_agg, td_kl (lib/rl/loss.h) and td_lr_schedule (workers/engine/train.h).
enum td_job_loss_agg {
    TD_LOSS_TOKEN_MEAN,
    TD_LOSS_SEQ_MEAN_TOKEN_SUM,
    TD_LOSS_SEQ_MEAN_TOKEN_MEAN,
    TD_LOSS_SEQ_MEAN_TOKEN_SUM_NORM
};
enum td_job_kl_loss { TD_KL_LOSS_KL, TD_KL_LOSS_ABS, TD_KL_LOSS_MSE, TD_KL_LOSS_LOW_VAR };
enum td_job_lr_scheduler { TD_SCHEDULER_CONSTANT, TD_SCHEDULER_COSINE };
enum td_job_adv_estimator { TD_ADV_GRPO };
enum td_job_redo_mismatch { TD_REDO_FAIL, TD_REDO_FORK };
enum td_job_device { TD_DEVICE_CPU };

enum { TD_SPEC_UNSET = -1 }; // an integer or number that is null in the job file

struct td_spec_strings {
    const char *const *items;
    int count;
};

struct td_spec_reward {
    const char *data_source;
    const char *grader;  // exact | regex | gsm8k
    const char *pattern; // of regex; else NULL
};

struct td_spec_data {
    struct td_spec_strings train_files, val_files; // val_files may be empty
    const char *prompt_key, *reward_fn_key;
    const char *response_key, *messages_key; // SFT
    int64_t train_batch_size;                // prompts (GRPO) or rows (SFT) a step
    int64_t max_prompt_length, max_response_length;
    int64_t max_length;                         // SFT: prompt and response together
    int64_t train_max_samples, val_max_samples; // ≤ 0: all
    bool shuffle, filter_overlong_prompts;
    int64_t seed; // of the data order; never unset: tandem.seed when the file has none
    enum td_job_truncation truncation;
};

struct td_spec_optim {
    double lr, lr_warmup_steps_ratio, weight_decay, min_lr_ratio;
    int64_t lr_warmup_steps; // ≤ 0: by the ratio; see td_job_schedule
    double betas[2];
    double clip_grad; // > 0; actor.grad_clip is the same setting
    enum td_job_lr_scheduler lr_scheduler_type;
};

struct td_spec_actor {
    struct td_spec_optim optim;
    int64_t ppo_mini_batch_size; // prompts of one update; GRPO
    // The micro-batch: a budget of tokens when use_dynamic_bsz, else a number of rows. SFT:
    // data.micro_batch_size_per_gpu, data.max_token_len_per_gpu.
    bool use_dynamic_bsz;
    int64_t ppo_micro_batch_size_per_gpu, ppo_max_token_len_per_gpu;
    double clip_ratio, clip_ratio_low, clip_ratio_high, clip_ratio_c;
    enum td_job_loss_agg loss_agg_mode;
    double loss_scale_factor; // TD_SPEC_UNSET: data.max_response_length
    double entropy_coeff, kl_loss_coef, grad_clip;
    bool calculate_entropy, use_kl_loss;
    enum td_job_kl_loss kl_loss_type;
    int64_t ppo_epochs;
};

struct td_spec_val_kwargs {
    double temperature, top_p;
    int64_t top_k, n;
    bool do_sample; // false: greedy, whatever the temperature
};

struct td_spec_rollout {
    double temperature, top_p;
    int64_t top_k, n;
    bool do_sample;
    int64_t max_num_seqs, max_num_batched_tokens; // of one worker: open sequences; tokens of a step
    int64_t max_model_len;                        // TD_SPEC_UNSET or ≥ prompt + response
    struct td_spec_val_kwargs val_kwargs;
};

struct td_spec_model {
    const char *path;
};

struct td_spec_algorithm {
    enum td_job_adv_estimator adv_estimator;
    bool norm_adv_by_std_in_grpo;
};

struct td_spec_trainer {
    int64_t total_epochs, total_training_steps; // steps: TD_SPEC_UNSET when null
    int64_t save_freq, test_freq;               // ≤ 0: never
    bool val_before_train;
    const char *default_local_dir;                      // of global_step_N; NULL: in run_dir
    const char *validation_data_dir, *rollout_data_dir; // NULL: samples are not written
    struct td_spec_strings logger;                      // (process)
    enum td_job_device device;
};

// Our own section. Those marked (process) say how this process runs and not what the job computes:
// they may change from run to run, are not in the canonical bytes, and have their defaults in a
// spec that was decoded from them.
struct td_spec_tandem {
    enum td_job_kind kind;
    int64_t seed;
    enum td_job_init init;
    const char *run_dir; // (process)
    struct {
        int64_t workers;                    // (process)
        int64_t unit_groups, kv_tokens_max; // kv_tokens_max 0: td_job_kv_tokens
    } rollout;
    struct {
        int64_t workers;
    } train;
    int64_t threads; // (process) per worker; 0: cores / workers
    const struct td_spec_reward *rewards;
    int reward_count;
    enum td_job_chat_template chat_template;
    struct {
        int64_t every; // steps between two recovery checkpoints
    } checkpoint;
    struct {
        enum td_job_redo_mismatch mismatch;
    } redo;
    int64_t worker_grace_s, worker_timeout_s;         // (process)
    int64_t step_timeout_s, start_timeout_s, lease_s; // (process)
    int64_t max_attempts;                             // (process); 0: no end of them
    struct {
        bool fsync; // (process)
    } log;
};

struct td_arena;

struct td_job_spec {
    struct td_spec_data data;
    struct td_spec_model model;
    struct td_spec_actor actor;
    struct td_spec_rollout rollout;
    struct td_spec_algorithm algorithm;
    struct td_spec_trainer trainer;
    struct td_spec_tandem tandem;
    struct td_arena *arena; // owns every string and list above
};

// What there is to say about a job file: lines, each ended by a newline.
struct td_spec_notes {
    struct td_buf errors;    // "file:line: key: what is wrong; how to mend it"
    struct td_buf warnings;  // the same form; the job runs
    struct td_buf no_effect; // keys the user set that do nothing here, one a line
    int error_count, warning_count, no_effect_count;
};
void td_spec_notes_fini(struct td_spec_notes *notes);

// A job file and overrides "key=value", applied in order: the last one wins. Borrowed.
struct td_spec_text {
    const char *name;  // for messages
    const void *bytes; // YAML
    size_t n;
    const char *const *overrides;
    size_t override_count;
};

// Every error found is in notes (zeroed by the caller, td_spec_notes_fini); *err has their number
// and the first one; TD_EINVAL. The spec is the caller's: td_job_spec_free.
enum td_rc td_job_spec_parse(const struct td_spec_text *text, struct td_job_spec **out,
                             struct td_spec_notes *notes, struct td_err *err) TD_MUST_CHECK;
// The same of a file; also the codes of td_file_read when it cannot be read, TD_ELIMIT when it is
// longer than TD_SPEC_FILE_MAX.
enum { TD_SPEC_FILE_MAX = 1 << 20 };
enum td_rc td_job_spec_load(const char *path, const char *const *overrides, size_t count,
                            struct td_job_spec **out, struct td_spec_notes *notes,
                            struct td_err *err) TD_MUST_CHECK;
void td_job_spec_free(struct td_job_spec *spec); // accepts NULL

// The canonical form: proto/job.proto Spec, every setting of the kind that is done and not of the
// process, in table order, defaults filled in. Appends to out.
void td_job_spec_encode(const struct td_job_spec *spec, struct td_buf *out);
// The same with the settings of the process: a job that is submitted runs in other processes.
void td_job_spec_encode_all(const struct td_job_spec *spec, struct td_buf *out);
// Back from the bytes of either. Checks every key, type and range as td_job_spec_load does; a key
// this build does not know, or lacks, is TD_EUNSUPPORTED (written by another build), anything else
// that is wrong TD_ECORRUPT.
enum td_rc td_job_spec_decode(const void *bytes, size_t n, struct td_job_spec **out,
                              struct td_err *err) TD_MUST_CHECK;
// Appends one line "key: old → new" per key that differs between two canonical specs; returns how
// many, or −1 when one of them is not a Spec.
int td_job_spec_diff(const void *old_bytes, size_t old_n, const void *new_bytes, size_t new_n,
                     struct td_buf *out);

// The length of a job over train_rows rows that are kept.
struct td_job_schedule {
    uint64_t epoch_steps;      // floor(rows / batch)
    uint64_t total_steps;      // epochs × epoch_steps, at most total_training_steps
    bool data_end_first;       // total_training_steps is not reached
    uint64_t updates_per_step; // mini-batches × ppo_epochs; SFT: 1
    uint64_t warmup_steps;     // of the learning rate, in steps as verl counts them
};
// TD_EINVAL when there are fewer rows than one batch.
enum td_rc td_job_schedule(const struct td_job_spec *spec, uint64_t train_rows,
                           struct td_job_schedule *out, struct td_err *err) TD_MUST_CHECK;
// Tokens of a rollout worker's KV pool: tandem.rollout.kv_tokens_max, or room for max_num_seqs
// whole sequences.
int64_t td_job_kv_tokens(const struct td_job_spec *spec);
// Rows of the largest micro-batch when use_dynamic_bsz is off; 0: by tokens.
int64_t td_job_micro_rows(const struct td_job_spec *spec);
// Greedy sampling has temperature 0, else do_sample's.
double td_job_temperature(const struct td_job_spec *spec, bool eval);

#endif
