// From a job's settings to those of the engines: see settings.h. Pure.
#include "workers/settings.h"

enum { PAGE_TOKENS = 16 };

_Static_assert((int)TD_LOSS_TOKEN_MEAN == (int)TD_AGG_TOKEN_MEAN &&
                   (int)TD_LOSS_SEQ_MEAN_TOKEN_SUM_NORM == (int)TD_AGG_SEQ_MEAN_TOKEN_SUM_NORM,
               "one order of aggregations");
_Static_assert((int)TD_KL_LOSS_KL == (int)TD_KL_K1 && (int)TD_KL_LOSS_LOW_VAR == (int)TD_KL_LOW_VAR,
               "one order of KL kinds");
_Static_assert((int)TD_SCHEDULER_CONSTANT == (int)TD_LR_CONSTANT &&
                   (int)TD_SCHEDULER_COSINE == (int)TD_LR_COSINE,
               "one order of schedules");

void td_train_settings(const struct td_job_spec *spec, int64_t total_steps, int64_t warmup_steps,
                       struct td_train_config *out) {
    const struct td_spec_actor *a = &spec->actor;
    bool sft = spec->tandem.kind == TD_JOB_SFT;
    *out = (struct td_train_config){
        .sft = sft,
        .loss = {.clip_low = a->clip_ratio_low,
                 .clip_high = a->clip_ratio_high,
                 .clip_c = a->clip_ratio_c,
                 .agg = (enum td_agg)a->loss_agg_mode,
                 .agg_norm = a->loss_scale_factor > 0 ? a->loss_scale_factor
                                                      : (double)spec->data.max_response_length,
                 .entropy_coeff = a->entropy_coeff,
                 .use_kl_loss = a->use_kl_loss,
                 .kl_coef = a->kl_loss_coef,
                 .kl = (enum td_kl)a->kl_loss_type},
        .use_reference = !sft && a->use_kl_loss,
        .temperature = sft ? 1.0 : spec->rollout.temperature,
        .micro_batch_tokens = a->ppo_max_token_len_per_gpu,
        .micro_batch_rows = td_job_micro_rows(spec),
        .lr = a->optim.lr,
        .min_lr_ratio = a->optim.min_lr_ratio > 0 ? a->optim.min_lr_ratio : 0,
        .weight_decay = a->optim.weight_decay,
        .beta1 = a->optim.betas[0],
        .beta2 = a->optim.betas[1],
        .eps = 1e-8,
        .grad_clip = sft ? a->optim.clip_grad : a->grad_clip,
        .schedule = (enum td_lr_schedule)a->optim.lr_scheduler_type,
        .warmup_steps = warmup_steps,
        .total_steps = total_steps,
    };
}

void td_generate_settings(const struct td_job_spec *spec, struct td_generate_config *out) {
    *out = (struct td_generate_config){
        .page_tokens = PAGE_TOKENS,
        .kv_tokens_max = td_job_kv_tokens(spec),
        .batch_tokens_max = (int32_t)spec->rollout.max_num_batched_tokens,
        .sequences_max = (int32_t)spec->rollout.max_num_seqs,
    };
}
