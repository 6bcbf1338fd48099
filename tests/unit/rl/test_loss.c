// Advantages and losses against hand-made vectors; values under the mask are traps that must not
// be read.
#include "lib/rl/loss.h"

#include <math.h>
#include <string.h>

#include "tests/unit/cmocka_all.h"

enum { B = 4, T = 4 };
static const int mask[B][T] = {{1, 1, 1, 1}, {1, 1, 1, 0}, {1, 1, 0, 0}, {1, 0, 1, 1}};
static const double reward[B] = {1, 0, 1, 0.5};
static const uint64_t groups[B] = {7, 7, 9, 9};
static const double old_logp[B][T] = {
    {-1, -.5, -2, -.1}, {-.7, -1.2, -.3, -5}, {-.9, -.4, -3, -3}, {-.2, -8, -1.1, -.6}};
static const double delta[B][T] = {
    {.3, -.1, .05, -.4}, {.25, -.5, .1, 9}, {1.5, -.3, -9, 9}, {-.05, 9, 1.4, .15}};
static const double token_count = 12, sequence_count = 4;

static void near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("got %.9g, want %.9g", got, want);
    }
}

static double metric(const struct td_metrics *m, const char *name) {
    const struct td_metric *found = td_metrics_find(m, name);
    assert_non_null(found);
    return found->value;
}

// The trained tokens of row i, packed.
static size_t pack(size_t i, double *logp, double *old, double *ref) {
    size_t n = 0;
    for (size_t t = 0; t < T; t++) {
        if (mask[i][t]) {
            logp[n] = old_logp[i][t] + delta[i][t];
            old[n] = old_logp[i][t];
            ref[n++] = old_logp[i][t] - .1 * (double)(t + 1);
        }
    }
    return n;
}

static double batch_loss(const struct td_policy_loss_config *c, struct td_metrics *metrics) {
    double advantage[B], loss = 0;
    td_grpo_advantage(reward, groups, B, true, advantage);
    for (size_t i = 0; i < B; i++) {
        double logp[T], old[T], ref[T], dlogp[T];
        struct td_policy_loss_in in = {.logp = logp,
                                       .old_logp = old,
                                       .ref_logp = ref,
                                       .advantage = advantage[i],
                                       .token_count = token_count,
                                       .sequence_count = sequence_count};
        in.n = pack(i, logp, old, ref);
        td_policy_loss(c, &in, &loss, dlogp, NULL, metrics);
    }
    return loss;
}

static void test_loss_grpo_advantage_golden(void **state) {
    (void)state;
    double a[B];
    td_grpo_advantage(reward, groups, B, true, a);
    static const double with_std[B] = {.707106, -.707106, .707105, -.707105};
    for (size_t i = 0; i < B; i++) {
        near(a[i], with_std[i], 1e-6);
    }
    td_grpo_advantage(reward, groups, B, false, a);
    static const double dr[B] = {.5, -.5, .25, -.25};
    for (size_t i = 0; i < B; i++) {
        near(a[i], dr[i], 1e-12);
    }
}

static void test_loss_grpo_advantage_edges(void **state) {
    (void)state;
    // interleaved groups: singleton 5, all-equal 6 (0.1 three times is not exact in binary), and 4
    static const double s[] = {.1, 3, .1, .25, .1, .75};
    static const uint64_t g[] = {6, 5, 6, 4, 6, 4};
    double a[6];
    td_grpo_advantage(s, g, 6, true, a);
    assert_true(a[0] == 0 && a[2] == 0 && a[4] == 0);
    near(a[1], 3 / (1 + 1e-6), 1e-12);
    near(a[5], .25 / (sqrt(.125) + 1e-6), 1e-12);
    near(a[3], -a[5], 1e-15);
    td_grpo_advantage(s, g, 6, false, a);
    near(a[1], 3, 0);
    td_grpo_advantage(s, g, 0, true, a);
}

static void test_loss_policy_golden(void **state) {
    (void)state;
    static const struct {
        double low, high, c, loss[4], clipfrac_lower;
    } rows[] = {
        {.2, .2, 3, {.149377, .44813, .148563, .112032}, .083333},
        {.2, .28, 10, {.202127, .60638, .200135, .151595}, 0},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        for (int agg = 0; agg < 4; agg++) {
            struct td_policy_loss_config c = {.clip_low = rows[r].low,
                                              .clip_high = rows[r].high,
                                              .clip_c = rows[r].c,
                                              .agg = (enum td_agg)agg,
                                              .agg_norm = 4};
            struct td_metrics m = {0};
            near(batch_loss(&c, &m), rows[r].loss[agg], 1e-6);
            near(metric(&m, "actor/pg_loss"), rows[r].loss[agg], 1e-6);
            near(metric(&m, "actor/pg_clipfrac_lower"), rows[r].clipfrac_lower, 1e-6);
            near(metric(&m, "actor/ppo_kl"), -.2, 1e-6);
            if (r == 0) {
                near(metric(&m, "actor/pg_clipfrac"), .25, 1e-6);
            }
        }
    }
}

static void test_loss_kl_golden(void **state) {
    (void)state;
    static const struct {
        enum td_kl kl;
        double want;
    } rows[] = {
        {TD_KL_K1, .425}, {TD_KL_ABS, .491667}, {TD_KL_MSE, .267917}, {TD_KL_LOW_VAR, .176887}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct td_policy_loss_config c = {.clip_low = .2,
                                          .clip_high = .2,
                                          .clip_c = 3,
                                          .use_kl_loss = true,
                                          .kl_coef = .5,
                                          .kl = rows[r].kl};
        struct td_metrics m = {0};
        double loss = batch_loss(&c, &m);
        near(metric(&m, "actor/kl_loss"), rows[r].want, 1e-6);
        near(loss, .149377 + .5 * rows[r].want, 2e-6);
        near(metric(&m, "actor/kl_coef"), .5, 0);
    }
}

static void test_loss_empty_sequence_contributes_nothing(void **state) {
    (void)state;
    struct td_policy_loss_config c = {.clip_low = .2, .clip_high = .2, .clip_c = 3};
    struct td_policy_loss_in in = {.advantage = NAN, .token_count = 3, .sequence_count = 1};
    struct td_metrics m = {0};
    double loss = 1;
    td_policy_loss(&c, &in, &loss, NULL, NULL, &m);
    td_sft_loss(0, NULL, 0, &loss, NULL);
    near(loss, 1, 0);
    assert_int_equal(m.count, 0);
}

static void test_loss_sft(void **state) {
    (void)state;
    static const double logp[] = {-1, -.25, -.5};
    double loss = 2, dlogp[3];
    td_sft_loss(3, logp, 10, &loss, dlogp);
    near(loss, 2.175, 1e-12);
    near(dlogp[1], -.1, 1e-15);
}

static void test_loss_metrics_fold(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum td_metric_fold fold;
        double want;
    } rows[] = {{"sum", TD_FOLD_SUM, 6},
                {"max", TD_FOLD_MAX, 3},
                {"min", TD_FOLD_MIN, 1},
                {"last", TD_FOLD_LAST, 2}};
    struct td_metrics a = {0}, b = {0};
    for (size_t r = 0; r < 4; r++) {
        td_metrics_add(&a, rows[r].name, 1, rows[r].fold);
        td_metrics_add(&b, rows[r].name, 3, rows[r].fold);
        td_metrics_add(&b, rows[r].name, 2, rows[r].fold);
    }
    td_metrics_merge(&a, &b);
    assert_int_equal(a.count, 4);
    for (size_t r = 0; r < 4; r++) {
        near(metric(&a, rows[r].name), rows[r].want, 0);
    }
    assert_null(td_metrics_find(&a, "none"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_grpo_advantage_golden),
        cmocka_unit_test(test_loss_grpo_advantage_edges),
        cmocka_unit_test(test_loss_policy_golden),
        cmocka_unit_test(test_loss_kl_golden),
        cmocka_unit_test(test_loss_empty_sequence_contributes_nothing),
        cmocka_unit_test(test_loss_sft),
        cmocka_unit_test(test_loss_metrics_fold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
