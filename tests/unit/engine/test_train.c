// The trainer: overfitting, micro-batch splits, keys, failures that change nothing, schedules.
#include "workers/engine/train.h"

#include <math.h>
#include <stdio.h>

#include "tests/unit/engine/batch_of.h"
#include "tests/unit/model/tiny.h"
#include "workers/engine/train_int.h"

struct rig {
    struct td_backend *be;
    struct td_model *m;
    struct td_trainer *t;
};

static struct td_train_config sft_config(void) {
    return (struct td_train_config){.sft = true,
                                    .temperature = 1,
                                    .micro_batch_tokens = 64,
                                    .lr = 1e-2,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .grad_clip = 1};
}

static struct td_train_config grpo_config(void) {
    struct td_train_config c = sft_config();
    c.sft = false;
    c.temperature = 0.8;
    c.use_reference = true;
    c.loss = (struct td_policy_loss_config){.clip_low = 0.2,
                                            .clip_high = 0.28,
                                            .clip_c = 3,
                                            .agg = TD_AGG_TOKEN_MEAN,
                                            .entropy_coeff = 0.01,
                                            .use_kl_loss = true,
                                            .kl_coef = 0.05,
                                            .kl = TD_KL_LOW_VAR};
    return c;
}

static void set_up(struct rig *r, struct td_backend *be, const struct td_train_config *c) {
    struct td_model_config shape = tiny_config(&tiny_cases[2]);
    struct td_err err = {0};
    r->be = be;
    assert_int_equal(td_model_new(be, &shape, &r->m, NULL), TD_OK);
    if (td_trainer_new(be, r->m, c, &r->t, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    tiny_fill(r->m, td_trainer_weights(r->t), 17);
    assert_int_equal(td_trainer_load(r->t, 1, 0, NULL, NULL), TD_OK);
    if (c->use_reference) {
        assert_int_equal(td_trainer_set_reference(r->t, NULL, NULL), TD_OK);
    }
}

static void tear_down(struct rig *r) {
    td_trainer_free(r->t);
    td_model_free(r->m);
    td_backend_free(r->be);
}

static double metric(const struct td_metrics *metrics, const char *name) {
    const struct td_metric *m = td_metrics_find(metrics, name);
    if (!m) {
        fail_msg("no metric %s", name);
        return 0;
    }
    return m->value;
}

// One whole round; every update's metrics joined.
static void run_round(struct rig *r, const struct batch_of *x, uint64_t ref,
                      struct td_metrics *metrics) {
    struct td_round_key key = {.generation = 1, .ref_offset = ref, .ref_crc = 7};
    struct td_err err = {0};
    enum td_rc rc = td_trainer_prep(r->t, &key, batch_of_map(x), metrics, &err);
    for (uint32_t k = 1; rc == TD_OK && k <= x->b.updates; k++) {
        rc = td_trainer_step(r->t, &key, k, 0, metrics, &err);
    }
    rc = rc ? rc : td_trainer_finish(r->t, &key, 0, &err);
    if (rc != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

static void test_train_overfits_one_batch(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = sft_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 1, 1, 9);
    double loss = 0, first = 0;
    for (int round = 0; round < 200; round++) {
        struct td_metrics metrics = {0};
        run_round(&r, &x, (uint64_t)round + 1, &metrics);
        loss = metric(&metrics, "train/loss");
        first = round == 0 ? loss : first;
        assert_true(metric(&metrics, "train/lr") == 1e-2);
        if (loss < 0.01) {
            break;
        }
    }
    print_message("loss %.3f -> %.4f\n", first, loss);
    assert_true(loss < 0.01);
    tear_down(&r);
}

// The gradient of the first update under a number of rows per micro-batch.
static double *gradient(struct td_backend *be, int64_t rows, uint64_t *digest) {
    struct rig r;
    struct batch_of x;
    struct td_train_config c = grpo_config();
    c.micro_batch_rows = rows;
    c.loss.agg = TD_AGG_SEQ_MEAN_TOKEN_MEAN;
    set_up(&r, be, &c);
    batch_of_fill(&x, 83, 1, 2, 21);
    struct td_metrics metrics = {0};
    run_round(&r, &x, 1, &metrics);
    size_t n = (size_t)td_model_elements(r.m);
    double *g = td_alloc_array(n, sizeof *g);
    uint64_t weight;
    td_transfer_get_f64(r.be, g, r.t->grads.p, n);
    td_trainer_digest(r.t, &weight, digest);
    tear_down(&r);
    return g;
}

static void test_train_gradient_is_independent_of_the_split(void **state) {
    (void)state;
    struct td_model_config shape = tiny_config(&tiny_cases[2]);
    uint64_t digest[4];
    double *g[4];
    static const int64_t rows[] = {8, 4, 1, 1};
    for (int i = 0; i < 4; i++) {
        g[i] = gradient(td_backend_ref_new(), rows[i], &digest[i]);
    }
    struct td_backend *be = td_backend_ref_new();
    struct td_model *m;
    assert_int_equal(td_model_new(be, &shape, &m, NULL), TD_OK);
    for (int p = 0; p < td_model_param_count(m); p++) {
        const struct td_param *param = td_model_param(m, p);
        double most = 0, diff = 0;
        for (int64_t k = param->offset; k < param->offset + param->rows * param->cols; k++) {
            most = fmax(most, fabs(g[0][k]));
            diff = fmax(diff, fmax(fabs(g[0][k] - g[1][k]), fabs(g[0][k] - g[2][k])));
        }
        assert_true(most > 0);
        assert_true(diff <= 1e-11 * most);
    }
    assert_true(digest[2] == digest[3]);
    td_model_free(m);
    td_backend_free(be);
    for (int i = 0; i < 4; i++) {
        td_free(g[i]);
    }
}

// On policy and with the sampler's log-probs equal to ours: no ratio, no KL, no difference.
static void test_train_on_policy_metrics(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = grpo_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 2, 1, 4);
    struct td_round_key key = {.generation = 1, .ref_offset = 5, .ref_crc = 6};
    struct td_metrics metrics = {0};
    assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &metrics, NULL), TD_OK);
    assert_true(metric(&metrics, "training/rollout_probs_diff_max") > 0.01);
    for (uint32_t i = 0; i < x.b.tokens; i++) {
        x.rollout_logp[i] = x.loss_mask[i] ? (float)r.t->old_logp[i] : 0;
    }
    metrics.count = 0;
    assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &metrics, NULL), TD_OK);
    assert_true(metric(&metrics, "training/rollout_probs_diff_max") == 0);
    assert_true(metric(&metrics, "training/rollout_probs_diff_mean") == 0);
    assert_true(metric(&metrics, "actor/entropy") > 1);
    assert_int_equal(td_trainer_step(r.t, &key, 1, 0, &metrics, NULL), TD_OK);
    assert_true(metric(&metrics, "actor/ppo_kl") == 0);
    assert_true(metric(&metrics, "actor/kl_loss") == 0);
    assert_true(metric(&metrics, "actor/pg_clipfrac") == 0);
    assert_true(metric(&metrics, "actor/grad_norm") > 0);
    assert_int_equal(td_trainer_step(r.t, &key, 2, 0, &metrics, NULL), TD_OK);
    assert_true(metric(&metrics, "actor/kl_loss") > 0);
    tear_down(&r);
}

static void test_train_refuses_stale_keys(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = sft_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 2, 1, 4);
    struct td_metrics mx = {0};
    struct td_err err;
    const struct td_round_key good = {1, 40, 9}, low = {0, 40, 9}, high = {2, 40, 9},
                              other = {1, 41, 9}, crc = {1, 40, 8};
    // nothing prepped
    assert_int_equal(td_trainer_step(r.t, &good, 1, 0, &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &low, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &high, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    // a prep without updates may be replaced
    assert_int_equal(td_trainer_prep(r.t, &other, batch_of_map(&x), &mx, &err), TD_OK);
    assert_int_equal(td_trainer_prep(r.t, &good, batch_of_map(&x), &mx, &err), TD_OK);
    const struct {
        const struct td_round_key *key;
        uint32_t k;
        enum td_rc rc;
    } rows[] = {{&low, 1, TD_ECONFLICT}, {&high, 1, TD_ECONFLICT}, {&other, 1, TD_ECONFLICT},
                {&crc, 1, TD_ECONFLICT}, {&good, 0, TD_ECONFLICT}, {&good, 2, TD_ECONFLICT},
                {&good, 1, TD_OK},       {&good, 1, TD_ECONFLICT}, {&good, 3, TD_ECONFLICT}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(td_trainer_step(r.t, rows[i].key, rows[i].k, 0, &mx, &err), rows[i].rc);
    }
    // half done: neither finished, nor replaced, nor saved
    assert_int_equal(td_trainer_finish(r.t, &good, 0, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &other, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &good, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_export(r.t, "/nonexistent", "/nonexistent", true, &err),
                     TD_ECONFLICT);
    struct td_train_status st;
    td_trainer_status(r.t, &st);
    assert_true(st.applied == 1 && st.updates == 2 && st.prepped == 1 && st.ref_offset == 40 &&
                st.ref_crc == 9 && st.step == 0 && st.optimizer_steps == 1);
    assert_int_equal(td_trainer_step(r.t, &good, 2, 0, &mx, &err), TD_OK);
    assert_int_equal(td_trainer_finish(r.t, &other, 0, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_finish(r.t, &good, 3, &err), TD_OK);
    assert_int_equal(td_trainer_finish(r.t, &good, 3, &err), TD_ECONFLICT);
    td_trainer_status(r.t, &st);
    assert_true(st.prepped == 0 && st.step == 1 && st.lineage == 3 && st.ref_offset == 0);
    // generations only rise
    assert_int_equal(td_trainer_load(r.t, 1, 0, NULL, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_load(r.t, 3, 0, NULL, &err), TD_OK);
    assert_int_equal(td_trainer_load(r.t, 2, 0, NULL, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_load(r.t, 4, 0, "/nonexistent", &err), TD_ENOENT);
    td_trainer_status(r.t, &st);
    assert_true(st.generation == 0);
    assert_int_equal(td_trainer_load(r.t, 3, 0, NULL, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_load(r.t, 4, 0, NULL, &err), TD_OK);
    tear_down(&r);
}

static void test_train_non_finite_changes_nothing(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = sft_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 1, 1, 4);
    struct td_round_key key = {1, 1, 1};
    struct td_metrics metrics = {0};
    struct td_err err;
    struct td_weights *w = td_trainer_weights(r.t);
    double *place = (double *)w->flat.p + (int64_t)x.ids[0] * 44, good = *place, bad = NAN;
    assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &metrics, &err), TD_OK);
    uint64_t before[2], after[2];
    td_trainer_digest(r.t, &before[0], &before[1]);
    *place = bad;
    assert_int_equal(td_weights_prepare(r.m, w, NULL), TD_OK);
    assert_int_equal(td_trainer_step(r.t, &key, 1, 0, &metrics, &err), TD_EINVAL);
    assert_non_null(strstr(err.msg, "step 1, update 1: loss"));
    *place = good;
    assert_int_equal(td_weights_prepare(r.m, w, NULL), TD_OK);
    td_trainer_digest(r.t, &after[0], &after[1]);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(td_trainer_step(r.t, &key, 1, 0, &metrics, &err), TD_OK);
    tear_down(&r);
}

// transformers' and verl's lambdas, evaluated by hand.
static void test_train_lr_factors(void **state) {
    (void)state;
    static const struct {
        enum td_lr_schedule schedule;
        int64_t warmup, total;
        double min_ratio;
        uint64_t step;
        double factor;
    } rows[] = {
        {TD_LR_CONSTANT, 0, 0, 0, 0, 1},     {TD_LR_CONSTANT, 4, 0, 0, 0, 0},
        {TD_LR_CONSTANT, 4, 0, 0, 3, 0.75},  {TD_LR_CONSTANT, 4, 0, 0, 4, 1},
        {TD_LR_COSINE, 2, 10, 0.1, 1, 0.5},  {TD_LR_COSINE, 2, 10, 0.1, 2, 1},
        {TD_LR_COSINE, 2, 10, 0.1, 6, 0.55}, {TD_LR_COSINE, 2, 10, 0.1, 10, 0.1},
        {TD_LR_COSINE, 0, 8, 0, 4, 0.5},     {TD_LR_COSINE, 0, 8, 0, 2, 0.8535533905932737},
        {TD_LR_COSINE, 3, 3, 0.2, 3, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_train_config c = {.schedule = rows[i].schedule,
                                    .warmup_steps = rows[i].warmup,
                                    .total_steps = rows[i].total,
                                    .min_lr_ratio = rows[i].min_ratio};
        assert_true(fabs(td_lr_factor(&c, rows[i].step) - rows[i].factor) < 1e-15);
    }
}

static void test_train_refuses_bad_settings(void **state) {
    (void)state;
    struct td_model_config shape = tiny_config(&tiny_cases[0]);
    struct td_backend *be = td_backend_ref_new();
    struct td_model *m;
    assert_int_equal(td_model_new(be, &shape, &m, NULL), TD_OK);
    struct td_train_config good = grpo_config(), bad[7];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bad[i] = good;
    }
    bad[0].lr = NAN;
    bad[1].beta1 = 1;
    bad[2].eps = 0;
    bad[3].temperature = 0;
    bad[4].micro_batch_tokens = 0;
    bad[5].use_reference = false;
    bad[6].loss.use_kl_loss = false;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct td_trainer *t = NULL;
        struct td_err err;
        assert_int_equal(td_trainer_new(be, m, &bad[i], &t, &err), TD_EINVAL);
        assert_null(t);
    }
    td_model_free(m);
    td_backend_free(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_overfits_one_batch),
        cmocka_unit_test(test_train_gradient_is_independent_of_the_split),
        cmocka_unit_test(test_train_on_policy_metrics),
        cmocka_unit_test(test_train_refuses_stale_keys),
        cmocka_unit_test(test_train_non_finite_changes_nothing),
        cmocka_unit_test(test_train_lr_factors),
        cmocka_unit_test(test_train_refuses_bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
