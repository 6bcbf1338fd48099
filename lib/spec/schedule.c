// What follows from a spec by counting. Pure.
#include "lib/spec/job_spec.h"

enum td_rc td_job_schedule(const struct td_job_spec *spec, uint64_t train_rows,
                           struct td_job_schedule *out, struct td_err *err) {
    const struct td_spec_optim *optim = &spec->actor.optim;
    uint64_t batch = (uint64_t)spec->data.train_batch_size;
    struct td_job_schedule s = {.epoch_steps = train_rows / batch, .updates_per_step = 1};
    if (s.epoch_steps == 0) {
        return td_fail(err, TD_EINVAL,
                       "data.train_batch_size %llu is more than the %llu rows of data.train_files",
                       (unsigned long long)batch, (unsigned long long)train_rows);
    }
    s.total_steps = s.epoch_steps * (uint64_t)spec->trainer.total_epochs;
    if (spec->trainer.total_training_steps > 0) {
        uint64_t wanted = (uint64_t)spec->trainer.total_training_steps;
        s.data_end_first = s.total_steps < wanted;
        s.total_steps = s.data_end_first ? s.total_steps : wanted;
    }
    if (spec->tandem.kind == TD_JOB_GRPO) {
        s.updates_per_step =
            batch / (uint64_t)spec->actor.ppo_mini_batch_size * (uint64_t)spec->actor.ppo_epochs;
    }
    // As verl: 0 and less mean the ratio; the product is cut, not rounded.
    s.warmup_steps = optim->lr_warmup_steps > 0
                         ? (uint64_t)optim->lr_warmup_steps
                         : (uint64_t)(optim->lr_warmup_steps_ratio * (double)s.total_steps);
    *out = s;
    return TD_OK;
}

int64_t td_job_kv_tokens(const struct td_job_spec *spec) {
    return spec->tandem.rollout.kv_tokens_max > 0
               ? spec->tandem.rollout.kv_tokens_max
               : spec->rollout.max_num_seqs *
                     (spec->data.max_prompt_length + spec->data.max_response_length);
}

int64_t td_job_micro_rows(const struct td_job_spec *spec) {
    return spec->actor.use_dynamic_bsz ? 0 : spec->actor.ppo_micro_batch_size_per_gpu;
}

double td_job_temperature(const struct td_job_spec *spec, bool eval) {
    const struct td_spec_rollout *rollout = &spec->rollout;
    if (eval) {
        return rollout->val_kwargs.do_sample ? rollout->val_kwargs.temperature : 0;
    }
    return rollout->do_sample ? rollout->temperature : 0;
}
