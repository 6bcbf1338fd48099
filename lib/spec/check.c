// Settings that are fine alone and wrong together. Each check is silent about settings that have an
// error of their own already. Pure.
#include "lib/spec/load_int.h"

#define ACTOR "actor_rollout_ref.actor."
#define ROLLOUT "actor_rollout_ref.rollout."

static long long whole_sequence(const struct td_spec_loader *l) {
    return (long long)l->spec->data.max_prompt_length + l->spec->data.max_response_length;
}

static void check_batches(struct td_spec_loader *l) {
    const struct td_job_spec *spec = l->spec;
    long long batch = spec->data.train_batch_size, mini = spec->actor.ppo_mini_batch_size;
    if (td_spec_sound(l, "data.train_batch_size", ACTOR "ppo_mini_batch_size") && batch % mini) {
        td_spec_complain(
            l, ACTOR "ppo_mini_batch_size",
            "%lld%s does not divide data.train_batch_size %lld; set one that does", mini,
            td_spec_was_set(l, ACTOR "ppo_mini_batch_size") ? "" : " (the default)", batch);
    }
    long long rows = mini * spec->rollout.n;
    if (td_spec_sound(l, "tandem.train.workers", ACTOR "ppo_mini_batch_size") &&
        td_spec_sound(l, ROLLOUT "n", NULL) && rows % spec->tandem.train.workers) {
        td_spec_complain(l, "tandem.train.workers",
                         "%lld workers cannot share a mini-batch of %lld x %lld answers evenly",
                         (long long)spec->tandem.train.workers, mini, (long long)spec->rollout.n);
    }
}

// max: the longest row; dynamic, micro, budget: the kind's names of the same three settings.
static void check_micro(struct td_spec_loader *l, long long max, const char *dynamic,
                        const char *micro, const char *budget) {
    const struct td_spec_actor *actor = &l->spec->actor;
    if (!td_spec_sound(l, dynamic, micro) || !td_spec_sound(l, budget, NULL)) {
        return;
    }
    if (!actor->use_dynamic_bsz && actor->ppo_micro_batch_size_per_gpu <= 0) {
        td_spec_complain(l, dynamic, "false needs %s; set it", micro);
    }
    if (actor->use_dynamic_bsz && td_spec_was_set(l, dynamic) && td_spec_was_set(l, micro)) {
        td_spec_warn(l, micro, "not used, because %s is true", dynamic);
    }
    if (actor->use_dynamic_bsz && actor->ppo_max_token_len_per_gpu < max) {
        td_spec_complain(l, budget,
                         "%lld tokens are less than the longest sequence, %lld; set it higher",
                         (long long)actor->ppo_max_token_len_per_gpu, max);
    }
}

static void check_sampling(struct td_spec_loader *l) {
    const struct td_spec_rollout *rollout = &l->spec->rollout;
    if (!td_spec_sound(l, ROLLOUT "n", ROLLOUT "do_sample")) {
        return;
    }
    if (rollout->n == 1) {
        td_spec_warn(l, ROLLOUT "n",
                     "GRPO has nothing to compare with 1 answer a prompt; the advantage is the "
                     "bare score (usual: 5 to 16)");
    } else if (!rollout->do_sample) {
        td_spec_complain(l, ROLLOUT "do_sample",
                         "false makes the %lld answers to a prompt equal, so nothing is learnt; "
                         "set true",
                         (long long)rollout->n);
    }
    const struct td_spec_val_kwargs *val = &rollout->val_kwargs;
    if (val->n > 1 && (!val->do_sample || val->temperature == 0)) {
        td_spec_warn(l, ROLLOUT "val_kwargs.n",
                     "the %lld answers are equal without do_sample and a temperature",
                     (long long)val->n);
    } else if (val->do_sample && val->temperature == 0) {
        td_spec_warn(l, ROLLOUT "val_kwargs.do_sample", "does nothing at temperature 0");
    }
}

static void check_lengths(struct td_spec_loader *l) {
    const struct td_job_spec *spec = l->spec;
    long long whole = whole_sequence(l), kv = spec->tandem.rollout.kv_tokens_max;
    if (!td_spec_sound(l, "data.max_prompt_length", "data.max_response_length")) {
        return;
    }
    if (td_spec_sound(l, ROLLOUT "max_model_len", NULL) &&
        spec->rollout.max_model_len != TD_SPEC_UNSET && spec->rollout.max_model_len < whole) {
        td_spec_complain(l, ROLLOUT "max_model_len",
                         "%lld is less than prompt and response together, %lld",
                         (long long)spec->rollout.max_model_len, whole);
    }
    if (td_spec_sound(l, "tandem.rollout.kv_tokens_max", NULL) && kv > 0 && kv < whole) {
        td_spec_complain(l, "tandem.rollout.kv_tokens_max",
                         "%lld tokens do not hold one sequence of %lld; set 0 or more", kv, whole);
    }
    if (td_spec_sound(l, ROLLOUT "max_num_seqs", ROLLOUT "n") &&
        spec->rollout.max_num_seqs < spec->rollout.n) {
        td_spec_complain(l, ROLLOUT "max_num_seqs",
                         "%lld is less than the %lld answers to one prompt",
                         (long long)spec->rollout.max_num_seqs, (long long)spec->rollout.n);
    }
}

static void check_validation(struct td_spec_loader *l) {
    const struct td_job_spec *spec = l->spec;
    if (spec->data.val_files.count > 0 || !td_spec_sound(l, "data.val_files", NULL)) {
        return;
    }
    if (td_spec_sound(l, "trainer.test_freq", NULL) && spec->trainer.test_freq > 0) {
        td_spec_complain(l, "trainer.test_freq", "%lld needs data.val_files; set them",
                         (long long)spec->trainer.test_freq);
    }
    if (td_spec_was_set(l, "trainer.val_before_train") && spec->trainer.val_before_train) {
        td_spec_warn(l, "trainer.val_before_train", "does nothing without data.val_files");
    }
}

static void check_loss(struct td_spec_loader *l) {
    const struct td_spec_actor *actor = &l->spec->actor;
    if (actor->use_kl_loss && json_is_true(td_spec_given(l, "algorithm.use_kl_in_reward"))) {
        td_spec_complain(l, "algorithm.use_kl_in_reward",
                         "KL would count twice, in the reward and in the loss (%suse_kl_loss); "
                         "remove this one",
                         ACTOR);
    }
    if (!actor->use_kl_loss && td_spec_was_set(l, ACTOR "kl_loss_coef")) {
        td_spec_warn(l, ACTOR "kl_loss_coef", "does nothing while use_kl_loss is false");
    }
    if (actor->loss_scale_factor != TD_SPEC_UNSET &&
        actor->loss_agg_mode != TD_LOSS_SEQ_MEAN_TOKEN_SUM_NORM) {
        td_spec_warn(l, ACTOR "loss_scale_factor",
                     "does nothing unless loss_agg_mode is seq-mean-token-sum-norm");
    }
    if (td_spec_sound(l, ACTOR "grad_clip", ACTOR "optim.clip_grad") &&
        actor->grad_clip != actor->optim.clip_grad) {
        td_spec_complain(l, ACTOR "grad_clip",
                         "%g, but optim.clip_grad, the same setting, is %g; set one of them",
                         actor->grad_clip, actor->optim.clip_grad);
    }
}

static void check_schedule(struct td_spec_loader *l, const char *warmup) {
    long long steps = l->spec->trainer.total_training_steps;
    if (td_spec_sound(l, "trainer.total_training_steps", warmup) && steps > 0 &&
        l->spec->actor.optim.lr_warmup_steps > steps) {
        td_spec_warn(l, warmup, "%lld steps of warm-up, but the job ends after %lld",
                     (long long)l->spec->actor.optim.lr_warmup_steps, steps);
    }
}

static void check_sft(struct td_spec_loader *l) {
    long long batch = l->spec->data.train_batch_size, workers = l->spec->tandem.train.workers;
    if (td_spec_sound(l, "tandem.train.workers", "data.train_batch_size") && batch % workers) {
        td_spec_complain(l, "tandem.train.workers",
                         "%lld workers cannot share data.train_batch_size %lld evenly", workers,
                         batch);
    }
    if (td_spec_sound(l, "data.max_length", NULL)) {
        check_micro(l, l->spec->data.max_length, "data.use_dynamic_bsz",
                    "data.micro_batch_size_per_gpu", "data.max_token_len_per_gpu");
    }
    check_schedule(l, "optim.lr_warmup_steps");
}

void td_spec_check_together(struct td_spec_loader *l) {
    if (l->kinds == TD_KINDS_SFT) {
        check_sft(l);
        return;
    }
    check_batches(l);
    if (td_spec_sound(l, "data.max_prompt_length", "data.max_response_length")) {
        check_micro(l, whole_sequence(l), ACTOR "use_dynamic_bsz",
                    ACTOR "ppo_micro_batch_size_per_gpu", ACTOR "ppo_max_token_len_per_gpu");
    }
    check_sampling(l);
    check_lengths(l);
    check_validation(l);
    check_loss(l);
    check_schedule(l, ACTOR "optim.lr_warmup_steps");
}
