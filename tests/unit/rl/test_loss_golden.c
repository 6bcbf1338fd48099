// Losses, metrics and gradients against PyTorch's autograd (tests/golden/make_rl.py), and gradients
// against central differences.
#include "lib/rl/loss.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "tests/unit/cmocka_all.h"

enum { WIDTH_MAX = 16 };

static json_t *golden;

static int load_golden(void **state) {
    (void)state;
    golden = json_load_file(TD_TEST_SOURCE_DIR "/tests/golden/rl.json", 0, NULL);
    return golden == NULL;
}

static int free_golden(void **state) {
    (void)state;
    json_decref(golden);
    return 0;
}

static double number(const json_t *from, const char *key) {
    const json_t *value = json_object_get(from, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void near(double got, double want, const char *what, size_t row) {
    if (!(fabs(got - want) <= 1e-12 + 1e-10 * fabs(want))) {
        fail_msg("case %zu: %s: got %.17g, want %.17g", row, what, got, want);
    }
}

static int index_of(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    fail_msg("%s", name);
    return -1;
}

static struct td_policy_loss_config config_of(const json_t *c) {
    static const char *const aggs[] = {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean",
                                       "seq-mean-token-sum-norm", "token-sum"};
    static const char *const kls[] = {"kl", "abs", "mse", "low_var_kl"};
    struct td_policy_loss_config out = {
        .clip_low = number(c, "clip_low"),
        .clip_high = number(c, "clip_high"),
        .clip_c = number(c, "clip_c"),
        .agg_norm = number(c, "agg_norm"),
        .entropy_coeff = number(c, "entropy_coeff"),
        .kl_coef = number(c, "kl_coef"),
    };
    out.agg = (enum td_agg)index_of(json_string_value(json_object_get(c, "agg")), aggs, 5);
    const char *kl = json_string_value(json_object_get(c, "kl"));
    out.use_kl_loss = kl != NULL;
    out.kl = kl == NULL ? TD_KL_K1 : (enum td_kl)index_of(kl, kls, 4);
    return out;
}

// One sequence's trained tokens and where they lie in the row.
struct sequence {
    struct td_policy_loss_in in;
    double logp[WIDTH_MAX], old_logp[WIDTH_MAX], ref_logp[WIDTH_MAX], entropy[WIDTH_MAX];
    size_t at[WIDTH_MAX], width;
};

static double element(const json_t *batch, const char *key, size_t i, size_t t) {
    const json_t *value = json_array_get(json_array_get(json_object_get(batch, key), i), t);
    // what lies under the mask is not even a number
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void take_sequence(const json_t *batch, size_t i, struct sequence *s) {
    const json_t *mask = json_array_get(json_object_get(batch, "mask"), i);
    memset(s, 0, sizeof *s);
    s->width = json_array_size(mask);
    assert_true(s->width <= WIDTH_MAX);
    for (size_t t = 0; t < s->width; t++) {
        if (json_integer_value(json_array_get(mask, t)) == 0) {
            continue;
        }
        size_t n = s->in.n++;
        s->at[n] = t;
        s->logp[n] = element(batch, "logp", i, t);
        s->old_logp[n] = element(batch, "old_logp", i, t);
        s->ref_logp[n] = element(batch, "ref_logp", i, t);
        s->entropy[n] = element(batch, "entropy", i, t);
    }
    s->in.logp = s->logp;
    s->in.old_logp = s->old_logp;
    s->in.ref_logp = s->ref_logp;
    s->in.entropy = s->entropy;
    s->in.advantage = json_number_value(json_array_get(json_object_get(batch, "advantage"), i));
}

static void check_gradients(const json_t *want, const struct sequence *s, const double *dlogp,
                            const double *dentropy, size_t i, size_t row) {
    for (size_t t = 0; t < s->in.n; t++) {
        near(dlogp[t], element(want, "dlogp", i, s->at[t]), "dL/dlogp", row);
        near(dentropy[t], element(want, "dentropy", i, s->at[t]), "dL/dentropy", row);
    }
}

static void check_case(const json_t *batch, const json_t *c, size_t row) {
    struct td_policy_loss_config config = config_of(c);
    const json_t *want = json_object_get(c, "want"), *metric;
    struct td_metrics metrics = {0};
    double loss = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(batch, "mask")); i++) {
        struct sequence s;
        double dlogp[WIDTH_MAX], dentropy[WIDTH_MAX];
        take_sequence(batch, i, &s);
        s.in.token_count = number(c, "tokens");
        s.in.sequence_count = number(c, "sequences");
        td_policy_loss(&config, &s.in, &loss, dlogp, dentropy, &metrics);
        check_gradients(want, &s, dlogp, dentropy, i, row);
    }
    near(loss, number(want, "loss"), "loss", row);
    const char *name;
    size_t seen = 0;
    json_object_foreach(json_object_get(want, "metrics"), name, metric) {
        const struct td_metric *got = td_metrics_find(&metrics, name);
        assert_non_null(got);
        near(got->value, json_number_value(metric), name, row);
        seen++;
    }
    assert_int_equal(metrics.count, seen);
}

static void test_loss_equals_autograd(void **state) {
    (void)state;
    const json_t *batch, *c;
    size_t b, row, cases = 0;
    json_array_foreach(json_object_get(golden, "policy"), b, batch) {
        json_array_foreach(json_object_get(batch, "cases"), row, c) {
            check_case(batch, c, row);
            cases++;
        }
    }
    assert_true(cases >= 150);
}

// The loss of one token alone, with its log-prob and entropy moved.
static double loss_at(const struct td_policy_loss_config *c, const struct td_policy_loss_in *in,
                      double move_logp, double move_entropy) {
    double logp = in->logp[0] + move_logp, entropy = in->entropy[0] + move_entropy;
    double loss = 0, dlogp, dentropy;
    struct td_metrics metrics = {0};
    struct td_policy_loss_in moved = *in;
    moved.logp = &logp;
    moved.entropy = &entropy;
    td_policy_loss(c, &moved, &loss, &dlogp, &dentropy, &metrics);
    return loss;
}

static void check_differences(const struct td_policy_loss_config *c, struct td_policy_loss_in in,
                              size_t *checked, size_t *kinks) {
    const double h = 1e-6;
    double loss = 0, dlogp = NAN, dentropy = NAN;
    struct td_metrics metrics = {0};
    in.n = 1;
    td_policy_loss(c, &in, &loss, &dlogp, &dentropy, &metrics);
    double up = loss_at(c, &in, h, 0) - loss, down = loss - loss_at(c, &in, -h, 0);
    double tolerance = 1e-7 + 1e-5 * fabs(dlogp) + 1e-9 * fabs(loss); // curvature and rounding
    if (fabs(up - down) / h > 1e-4 * (1 + fabs(dlogp))) {
        (*kinks)++; // the two sides differ: no derivative here
    } else if (fabs((up + down) / (2 * h) - dlogp) > tolerance) {
        fail_msg("dL/dlogp %.12g, by differences %.12g", dlogp, (up + down) / (2 * h));
    }
    // exact in entropy: the loss is linear in it
    double slope = (loss_at(c, &in, 0, 1) - loss_at(c, &in, 0, -1)) / 2;
    if (fabs(slope - dentropy) > 1e-9 + 1e-12 * fabs(loss)) {
        fail_msg("dL/dentropy %.12g, by differences %.12g", dentropy, slope);
    }
    (*checked)++;
}

static void test_loss_equals_central_differences(void **state) {
    (void)state;
    const json_t *batch, *c;
    size_t b, row, checked = 0, kinks = 0;
    json_array_foreach(json_object_get(golden, "policy"), b, batch) {
        json_array_foreach(json_object_get(batch, "cases"), row, c) {
            struct td_policy_loss_config config = config_of(c);
            for (size_t i = 0; i < json_array_size(json_object_get(batch, "mask")); i++) {
                struct sequence s;
                take_sequence(batch, i, &s);
                struct td_policy_loss_in one = s.in;
                one.token_count = number(c, "tokens");
                one.sequence_count = number(c, "sequences");
                for (size_t t = 0; t < s.in.n; t++) {
                    check_differences(&config, one, &checked, &kinks);
                    one.logp++;
                    one.old_logp++;
                    one.ref_logp++;
                    one.entropy++;
                }
            }
        }
    }
    assert_true(checked > 1000);
    assert_true(kinks * 100 < checked);
}

static void test_loss_advantages_equal_golden(void **state) {
    (void)state;
    const json_t *c;
    size_t row;
    json_array_foreach(json_object_get(golden, "advantage"), row, c) {
        const json_t *score = json_object_get(c, "score");
        double s[WIDTH_MAX], got[WIDTH_MAX];
        uint64_t group[WIDTH_MAX];
        size_t n = json_array_size(score);
        assert_true(n <= WIDTH_MAX);
        for (size_t i = 0; i < n; i++) {
            s[i] = json_number_value(json_array_get(score, i));
            group[i] = (uint64_t)json_integer_value(json_array_get(json_object_get(c, "group"), i));
        }
        td_grpo_advantage(s, group, n, json_is_true(json_object_get(c, "norm_by_std")), got);
        for (size_t i = 0; i < n; i++) {
            near(got[i], json_number_value(json_array_get(json_object_get(c, "want"), i)),
                 "advantage", row);
        }
    }
    assert_true(row >= 30);
}

static void test_loss_sft_equals_autograd(void **state) {
    (void)state;
    const json_t *c = json_object_get(golden, "sft"), *logp = json_object_get(c, "logp");
    double x[WIDTH_MAX], dlogp[WIDTH_MAX], loss = 0;
    size_t n = json_array_size(logp);
    assert_true(n <= WIDTH_MAX);
    for (size_t i = 0; i < n; i++) {
        x[i] = json_number_value(json_array_get(logp, i));
    }
    td_sft_loss(n, x, number(c, "tokens"), &loss, dlogp);
    near(loss, number(c, "loss"), "loss", 0);
    for (size_t i = 0; i < n; i++) {
        near(dlogp[i], json_number_value(json_array_get(json_object_get(c, "dlogp"), i)),
             "dL/dlogp", i);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_equals_autograd),
        cmocka_unit_test(test_loss_equals_central_differences),
        cmocka_unit_test(test_loss_advantages_equal_golden),
        cmocka_unit_test(test_loss_sft_equals_autograd),
    };
    return cmocka_run_group_tests(tests, load_golden, free_golden);
}
