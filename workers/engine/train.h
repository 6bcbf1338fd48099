// The train engine: one rank's weights, optimizer and the open round. Every change of state is
// keyed by (generation, ref), journal.md A4. Owned by the worker's command thread; knows no socket
// and no frame.
#ifndef TD_WORKERS_ENGINE_TRAIN_H
#define TD_WORKERS_ENGINE_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/ipc/batch.h"
#include "lib/rl/loss.h"
#include "workers/comm/comm.h"
#include "workers/model/model.h"

enum td_lr_schedule { TD_LR_CONSTANT, TD_LR_COSINE };

struct td_train_config {
    bool sft; // loss = −Σ logp / global count; else the GRPO policy loss
    struct td_policy_loss_config loss; // GRPO
    bool use_reference;                // a reference policy: read-only version (0,0)
    double temperature;                // of log-probs
    int64_t micro_batch_tokens;        // ≥ 1: token budget of one micro-batch
    int64_t micro_batch_rows;          // > 0: rows of one micro-batch instead
    double lr, min_lr_ratio, weight_decay, beta1, beta2, eps, grad_clip; // grad_clip ≤ 0: none
    enum td_lr_schedule schedule;
    // Rounds, as verl's scheduler counts; total for cosine. The factor of the first one with a
    // warm-up is 0.
    int64_t warmup_steps, total_steps;
};

struct td_trainer;

enum td_rc td_trainer_new(struct td_backend *be, struct td_model *m,
                          const struct td_train_config *config, struct td_trainer **out,
                          struct td_err *err) TD_MUST_CHECK;
void td_trainer_free(struct td_trainer *t);

struct td_train_status {
    uint64_t generation;    // 0: nothing loaded
    uint64_t lineage, step; // the version its weights are at (mid-round: the parent)
    uint64_t ref_offset;
    uint32_t ref_crc; // SEAL or RESEAL of the round that is prepped or half done; crc 0 and offset
                      // 0: none
    uint32_t prepped; // 1: prep of ref is held
    uint32_t applied; // updates applied of the round under ref; 0 at a version
    uint32_t updates; // updates of the round under ref
    uint64_t optimizer_steps;
};
void td_trainer_status(const struct td_trainer *t, struct td_train_status *out);

// Whether td_trainer_load would take this generation: TD_ECONFLICT when it is lower than or equal
// to one that was loaded, or 0.
enum td_rc td_trainer_may_load(const struct td_trainer *t, uint64_t generation,
                               struct td_err *err) TD_MUST_CHECK;
// Loads a base under a generation. dir NULL: the initial state (weights given by td_trainer_weights
// are already loaded or random; optimizer zero). Else a recovery checkpoint folder written by
// td_trainer_save. Refuses a generation lower than or equal to the loaded one (TD_ECONFLICT).
enum td_rc td_trainer_load(struct td_trainer *t, uint64_t generation, uint64_t lineage,
                           const char *dir, struct td_err *err) TD_MUST_CHECK;
// The weights to fill before td_trainer_load(…, NULL).
struct td_weights *td_trainer_weights(struct td_trainer *t);
// Sets the reference weights: a copy of the current ones (version (0,0)), or from a flat host
// buffer.
enum td_rc td_trainer_set_reference(struct td_trainer *t, const float *flat,
                                    struct td_err *err) TD_MUST_CHECK;

// The ring of this generation; borrowed, may be NULL for one rank.
void td_trainer_set_comm(struct td_trainer *t, struct td_comm *comm);

// What every change of a round is keyed by: journal.md A4.
struct td_round_key {
    uint64_t generation;
    uint64_t ref_offset; // of the SEAL or RESEAL in force
    uint32_t ref_crc;
};

// Keeps batch (taken, also on failure) under key; computes reference log-probs of its trained
// tokens, and the old ones of rows that are not of the first update: those come with its forward,
// which is under the same weights. Metrics (GRPO), in two parts, of prep and of the first update:
// actor/entropy, training/rollout_probs_diff_{max,mean}. A prep under another key replaces one
// without updates; with updates applied it is TD_ECONFLICT.
enum td_rc td_trainer_prep(struct td_trainer *t, const struct td_round_key *key,
                           struct td_batch *batch_take, struct td_metrics *metrics,
                           struct td_err *err) TD_MUST_CHECK;
// Update k (1-based) of the prepped round; TD_ECONFLICT unless k == applied + 1 under the key.
// deadline (td_clock_ms) for collectives. A loss or gradient norm that is not finite is TD_EINVAL
// on every rank and changes nothing. Metrics join over updates and ranks by their folds.
enum td_rc td_trainer_step(struct td_trainer *t, const struct td_round_key *key, uint32_t k,
                           int64_t deadline_ms, struct td_metrics *metrics,
                           struct td_err *err) TD_MUST_CHECK;
// After the last update: the state becomes version (lineage, step+1); drops the prep.
enum td_rc td_trainer_finish(struct td_trainer *t, const struct td_round_key *key, uint64_t lineage,
                             struct td_err *err) TD_MUST_CHECK;

// weight: of the published weights; state: weights, both moments, step counters. Equal on every
// rank.
void td_trainer_digest(struct td_trainer *t, uint64_t *weight, uint64_t *state);

// Writes dir/model.safetensors, dir/optimizer.safetensors (HF names, fp32), dir/trainer.json; files
// fsynced, then the folder. Overwrites nothing: dir must not exist. Digests of the files for the
// manifest.
struct td_saved_file {
    char name[64];
    uint64_t digest, size;
};
enum { TD_SAVED_FILES_MAX = 8 };
enum td_rc td_trainer_save(struct td_trainer *t, const char *dir,
                           struct td_saved_file files[TD_SAVED_FILES_MAX], int *count,
                           struct td_err *err) TD_MUST_CHECK;
// The user's export: dir/actor/huggingface/ (source_dir's config, tokenizer… copied; dtype of
// config.json, random init: float32) and dir/actor/optimizer.safetensors.
enum td_rc td_trainer_export(struct td_trainer *t, const char *dir, const char *source_dir,
                             bool random_init, struct td_err *err) TD_MUST_CHECK;

#endif
