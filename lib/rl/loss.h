// Policy losses as functions of per-token log-probs: values, metrics and gradients. Pure, host,
// double. Sources: rl-systems notes of docs/rl.md; formulas follow verl core_algos
// (compute_policy_loss_vanilla, agg_loss, kl_penalty).
#ifndef TD_RL_LOSS_H
#define TD_RL_LOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

enum td_agg {
    TD_AGG_TOKEN_MEAN,
    TD_AGG_SEQ_MEAN_TOKEN_SUM,
    TD_AGG_SEQ_MEAN_TOKEN_MEAN,
    TD_AGG_SEQ_MEAN_TOKEN_SUM_NORM,
    TD_AGG_TOKEN_SUM
};
enum td_kl { TD_KL_K1, TD_KL_ABS, TD_KL_MSE, TD_KL_LOW_VAR }; // kl | abs | mse | low_var_kl

struct td_policy_loss_config {
    double clip_low, clip_high, clip_c; // 0.2, 0.2, 3.0; clip_c > 1
    enum td_agg agg;
    double agg_norm; // seq-mean-token-sum-norm: the constant divisor
    double entropy_coeff;
    bool use_kl_loss;
    double kl_coef;
    enum td_kl kl;
};

// One sequence's trained tokens (mask 1), n of them, in order.
struct td_policy_loss_in {
    size_t n;
    const double *logp, *old_logp, *ref_logp; // ref_logp NULL without KL loss
    const double *entropy;              // NULL when entropy_coeff is 0 and no metric is wanted
    double advantage;                   // one per sequence (outcome reward)
    double token_count, sequence_count; // global denominators of the mini-batch
};

enum { TD_METRICS_MAX = 64, TD_METRIC_NAME_MAX = 96 };
enum td_metric_fold { TD_FOLD_SUM, TD_FOLD_MAX, TD_FOLD_MIN, TD_FOLD_LAST };
struct td_metric {
    char name[TD_METRIC_NAME_MAX]; // verl's
    double value;
    enum td_metric_fold fold; // how values of parts (micro-batches, ranks, updates) are joined
};
struct td_metrics {
    int count;
    struct td_metric m[TD_METRICS_MAX];
};
// Folds value into the metric of that name (new: sets it). More than TD_METRICS_MAX names, a name
// that is too long, and one name under two folds are programmer's errors.
void td_metrics_add(struct td_metrics *metrics, const char *name, double value,
                    enum td_metric_fold fold);
// Folds every metric of from into metrics.
void td_metrics_merge(struct td_metrics *metrics, const struct td_metrics *from);
// The metric of that name, or NULL. Borrowed from metrics.
const struct td_metric *td_metrics_find(const struct td_metrics *metrics, const char *name);

// What one token of a sequence with n trained tokens weighs in the mini-batch's aggregate (verl's
// agg_loss): Σ over all tokens of weight × value is the aggregate, whatever the split into
// micro-batches. c: agg and agg_norm are read.
double td_agg_weight(const struct td_policy_loss_config *c, size_t n, double token_count,
                     double sequence_count);

// Adds this sequence's part of the loss to *loss and its metrics to metrics: actor/pg_loss,
// actor/kl_loss, actor/entropy_loss (aggregated as the loss is), actor/pg_clipfrac,
// actor/pg_clipfrac_lower, actor/ppo_kl (means over tokens); each already divided by the global
// denominators, fold SUM; and actor/kl_coef, fold LAST. Writes dL/dlogp[n] and dL/dentropy[n]
// (dentropy may be NULL when entropy is). n = 0 contributes nothing. At a tie of clipped and
// unclipped terms the gradient is the unclipped one's.
void td_policy_loss(const struct td_policy_loss_config *c, const struct td_policy_loss_in *in,
                    double *loss, double *dlogp, double *dentropy, struct td_metrics *metrics);

// SFT: adds −Σ logp / token_count to *loss and writes dL/dlogp[n].
void td_sft_loss(size_t n, const double *logp, double token_count, double *loss, double *dlogp);

// GRPO outcome advantages: score[n], group[n] (equal numbers = one group). A_i = (s_i − mean)/(std
// + 1e-6), std unbiased; singleton: mean 0, std 1; norm_by_std false: s − mean (Dr.GRPO); exactly 0
// where all scores of a group are equal. compute_grpo_outcome_advantage.
void td_grpo_advantage(const double *score, const uint64_t *group, size_t n, bool norm_by_std,
                       double *advantage);

#endif
