// From a job's settings to those of the engines: every field by a value of its own.
#include "workers/settings.h"

#include "tests/unit/cmocka_all.h"
#include "tests/unit/job/tiny_job.h"

static void test_settings_of_grpo(void **state) {
    (void)state;
    const char *overrides[] = {"actor_rollout_ref.actor.clip_ratio_low=0.11",
                               "actor_rollout_ref.actor.clip_ratio_high=0.12",
                               "actor_rollout_ref.actor.clip_ratio_c=4.5",
                               "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
                               "actor_rollout_ref.actor.entropy_coeff=0.013",
                               "actor_rollout_ref.actor.use_kl_loss=true",
                               "actor_rollout_ref.actor.kl_loss_coef=0.014",
                               "actor_rollout_ref.actor.kl_loss_type=mse",
                               "actor_rollout_ref.actor.grad_clip=0.75",
                               "actor_rollout_ref.actor.optim.lr=0.015",
                               "actor_rollout_ref.actor.optim.weight_decay=0.016",
                               "actor_rollout_ref.actor.optim.betas=[0.81,0.82]",
                               "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
                               "actor_rollout_ref.actor.optim.min_lr_ratio=0.25",
                               "actor_rollout_ref.rollout.temperature=0.7",
                               "actor_rollout_ref.rollout.max_num_seqs=9",
                               "actor_rollout_ref.rollout.max_num_batched_tokens=130",
                               "tandem.rollout.kv_tokens_max=320",
                               NULL};
    struct tiny_job j;
    struct td_train_config t;
    struct td_generate_config g;
    tiny_job_new(&j, TD_JOB_GRPO, overrides);
    td_train_settings(j.spec, 50, 7, &t);
    assert_true(!t.sft && t.use_reference && t.temperature == 0.7);
    assert_true(t.loss.clip_low == 0.11 && t.loss.clip_high == 0.12 && t.loss.clip_c == 4.5);
    assert_int_equal(t.loss.agg, TD_AGG_SEQ_MEAN_TOKEN_SUM);
    assert_true(t.loss.agg_norm == 12); // data.max_response_length unless loss_scale_factor is set
    assert_true(t.loss.entropy_coeff == 0.013 && t.loss.use_kl_loss && t.loss.kl_coef == 0.014);
    assert_int_equal(t.loss.kl, TD_KL_MSE);
    assert_true(t.grad_clip == 0.75 && t.lr == 0.015 && t.weight_decay == 0.016);
    assert_true(t.beta1 == 0.81 && t.beta2 == 0.82 && t.eps == 1e-8 && t.min_lr_ratio == 0.25);
    assert_true(t.schedule == TD_LR_COSINE && t.total_steps == 50 && t.warmup_steps == 7);
    assert_true(t.micro_batch_tokens == 128 && t.micro_batch_rows == 0);
    td_generate_settings(j.spec, &g);
    assert_true(g.kv_tokens_max == 320 && g.batch_tokens_max == 130 && g.sequences_max == 9);
    assert_true(g.page_tokens == 16 && !g.allowed);
    tiny_job_free(&j);
}

static void test_settings_of_sft(void **state) {
    (void)state;
    const char *overrides[] = {"optim.clip_grad=0.5", "optim.weight_decay=0.02",
                               "data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=3",
                               NULL};
    struct tiny_job j;
    struct td_train_config t;
    tiny_job_new(&j, TD_JOB_SFT, overrides);
    td_train_settings(j.spec, 9, 0, &t);
    assert_true(t.sft && !t.use_reference && t.temperature == 1 && t.grad_clip == 0.5);
    assert_true(t.lr == 0.003 && t.weight_decay == 0.02 && t.micro_batch_rows == 3);
    assert_int_equal(t.schedule, j.spec->actor.optim.lr_scheduler_type);
    tiny_job_free(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings_of_grpo),
        cmocka_unit_test(test_settings_of_sft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
