// GRPO and SFT losses, one sequence at a time. Pure and reentrant; knows no batch layout: the
// caller passes trained tokens only, so a value under a mask cannot leak into a sum.
#include "lib/rl/loss.h"

#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/map.h"
#include "lib/base/mem.h"

#define GRPO_EPS 1e-6       // verl: epsilon of compute_grpo_outcome_advantage
#define SEQ_MEAN_EPS 1e-8   // verl: agg_loss, seq-mean-token-mean
#define LOG_RATIO_MAX 20.0  // verl: clamp of log_prob − old_log_prob and of ref − log_prob
#define LOW_VAR_KL_MAX 10.0 // verl: clamp of k3

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

static bool inside(double x, double bound) {
    return x >= -bound && x <= bound;
}

static struct td_metric *find_metric(struct td_metrics *metrics, const char *name) {
    for (int i = 0; i < metrics->count; i++) {
        if (strcmp(metrics->m[i].name, name) == 0) {
            return &metrics->m[i];
        }
    }
    return NULL;
}

void td_metrics_add(struct td_metrics *metrics, const char *name, double value,
                    enum td_metric_fold fold) {
    struct td_metric *m = find_metric(metrics, name);
    if (m == NULL) {
        size_t len = strlen(name);
        td_assert_op(metrics->count, <, TD_METRICS_MAX);
        td_assert_op(len, <, TD_METRIC_NAME_MAX);
        m = &metrics->m[metrics->count++];
        memcpy(m->name, name, len + 1);
        m->value = value;
        m->fold = fold;
        return;
    }
    td_assert_op(m->fold, ==, fold);
    switch (fold) {
    case TD_FOLD_SUM:
        m->value += value;
        break;
    case TD_FOLD_MAX:
        m->value = fmax(m->value, value);
        break;
    case TD_FOLD_MIN:
        m->value = fmin(m->value, value);
        break;
    case TD_FOLD_LAST:
        m->value = value;
        break;
    }
}

void td_metrics_merge(struct td_metrics *metrics, const struct td_metrics *from) {
    for (int i = 0; i < from->count; i++) {
        td_metrics_add(metrics, from->m[i].name, from->m[i].value, from->m[i].fold);
    }
}

const struct td_metric *td_metrics_find(const struct td_metrics *metrics, const char *name) {
    return find_metric((struct td_metrics *)metrics, name);
}

double td_agg_weight(const struct td_policy_loss_config *c, size_t n, double token_count,
                     double sequence_count) {
    switch (c->agg) {
    case TD_AGG_TOKEN_MEAN:
        return 1 / token_count;
    case TD_AGG_SEQ_MEAN_TOKEN_SUM:
        return 1 / sequence_count;
    case TD_AGG_SEQ_MEAN_TOKEN_MEAN:
        return 1 / (((double)n + SEQ_MEAN_EPS) * sequence_count);
    case TD_AGG_SEQ_MEAN_TOKEN_SUM_NORM:
        return 1 / (sequence_count * c->agg_norm);
    case TD_AGG_TOKEN_SUM:
        return 1;
    }
    td_assert_failed(__FILE__, __LINE__, "an aggregation mode", c->agg, 0);
}

// One token's clipped term and its derivative by logp, before aggregation.
struct term {
    double value, slope;
    bool clipped, clipped_lower; // the metrics' counts, strict as verl's
};

static struct term policy_term(const struct td_policy_loss_config *c, double advantage,
                               double log_ratio) {
    double ratio = exp(clamp(log_ratio, -LOG_RATIO_MAX, LOG_RATIO_MAX));
    double plain = -advantage * ratio;
    double bounded = -advantage * clamp(ratio, 1 - c->clip_low, 1 + c->clip_high);
    struct term t = {.value = plain, .clipped = bounded > plain};
    t.slope = inside(log_ratio, LOG_RATIO_MAX) ? plain : 0;
    if (t.clipped) {
        // bounded exceeds plain only where the ratio is outside its range: it is constant there
        t.value = bounded;
        t.slope = 0;
    }
    double ceiling = -advantage * c->clip_c;
    if (advantage < 0 && t.value > ceiling) {
        t.value = ceiling;
        t.slope = 0;
        t.clipped_lower = true;
    }
    return t;
}

static struct term kl_term(enum td_kl kind, double logp, double ref_logp) {
    double d = logp - ref_logp;
    struct term t = {.value = d, .slope = 1};
    if (kind == TD_KL_ABS) {
        t.value = fabs(d);
        t.slope = d > 0 ? 1 : d < 0 ? -1 : 0;
    } else if (kind == TD_KL_MSE) {
        t.value = 0.5 * d * d;
        t.slope = d;
    } else if (kind == TD_KL_LOW_VAR) {
        double back = clamp(-d, -LOG_RATIO_MAX, LOG_RATIO_MAX);
        double k3 = exp(back) - back - 1;
        t.value = clamp(k3, -LOW_VAR_KL_MAX, LOW_VAR_KL_MAX);
        bool free = inside(d, LOG_RATIO_MAX) && inside(k3, LOW_VAR_KL_MAX);
        t.slope = free ? 1 - exp(back) : 0;
    }
    return t;
}

void td_policy_loss(const struct td_policy_loss_config *c, const struct td_policy_loss_in *in,
                    double *loss, double *dlogp, double *dentropy, struct td_metrics *metrics) {
    td_assert(c->clip_c > 1);
    td_assert(!c->use_kl_loss || in->ref_logp != NULL);
    td_assert(c->entropy_coeff == 0 || in->entropy != NULL);
    if (in->n == 0) {
        return;
    }
    double weight = td_agg_weight(c, in->n, in->token_count, in->sequence_count);
    double pg = 0, kl = 0, entropy = 0, clipped = 0, clipped_lower = 0, ppo_kl = 0;
    for (size_t t = 0; t < in->n; t++) {
        double log_ratio = in->logp[t] - in->old_logp[t];
        struct term p = policy_term(c, in->advantage, log_ratio);
        pg += p.value;
        clipped += p.clipped;
        clipped_lower += p.clipped_lower;
        ppo_kl -= clamp(log_ratio, -LOG_RATIO_MAX, LOG_RATIO_MAX);
        dlogp[t] = weight * p.slope;
        if (c->use_kl_loss) {
            struct term k = kl_term(c->kl, in->logp[t], in->ref_logp[t]);
            kl += k.value;
            dlogp[t] += weight * c->kl_coef * k.slope;
        }
        if (in->entropy != NULL) {
            entropy += in->entropy[t];
        }
        if (dentropy != NULL) {
            dentropy[t] = -weight * c->entropy_coeff;
        }
    }
    *loss += weight * pg - c->entropy_coeff * weight * entropy;
    td_metrics_add(metrics, "actor/pg_loss", weight * pg, TD_FOLD_SUM);
    td_metrics_add(metrics, "actor/pg_clipfrac", clipped / in->token_count, TD_FOLD_SUM);
    td_metrics_add(metrics, "actor/pg_clipfrac_lower", clipped_lower / in->token_count,
                   TD_FOLD_SUM);
    td_metrics_add(metrics, "actor/ppo_kl", ppo_kl / in->token_count, TD_FOLD_SUM);
    if (c->use_kl_loss) {
        *loss += c->kl_coef * weight * kl;
        td_metrics_add(metrics, "actor/kl_loss", weight * kl, TD_FOLD_SUM);
        td_metrics_add(metrics, "actor/kl_coef", c->kl_coef, TD_FOLD_LAST);
    }
    if (in->entropy != NULL) {
        td_metrics_add(metrics, "actor/entropy_loss", weight * entropy, TD_FOLD_SUM);
    }
}

void td_sft_loss(size_t n, const double *logp, double token_count, double *loss, double *dlogp) {
    double sum = 0;
    for (size_t t = 0; t < n; t++) {
        sum += logp[t];
        dlogp[t] = -1 / token_count;
    }
    *loss -= n == 0 ? 0 : sum / token_count;
}

// Of one group. Scores are kept as distances from its first one, so that equal scores give a
// spread of exactly 0.
struct group_stats {
    double first, sum, squares;
    size_t n;
};

static double group_mean(const struct group_stats *g) {
    return g->first + g->sum / (double)g->n;
}

void td_grpo_advantage(const double *score, const uint64_t *group, size_t n, bool norm_by_std,
                       double *advantage) {
    struct td_map *slots = td_map_new();
    struct group_stats *stats = td_alloc_array(n, sizeof *stats);
    size_t *slot_of = td_alloc_array(n, sizeof *slot_of);
    for (size_t i = 0; i < n; i++) {
        uint64_t slot = td_map_count(slots);
        if (!td_map_get(slots, &group[i], sizeof group[i], &slot)) {
            td_map_put(slots, &group[i], sizeof group[i], slot);
            stats[slot].first = score[i];
        }
        slot_of[i] = slot;
        stats[slot].sum += score[i] - stats[slot].first;
        stats[slot].n++;
    }
    for (size_t i = 0; i < n; i++) {
        struct group_stats *g = &stats[slot_of[i]];
        double d = score[i] - group_mean(g);
        g->squares += d * d;
    }
    for (size_t i = 0; i < n; i++) {
        const struct group_stats *g = &stats[slot_of[i]];
        double mean = g->n == 1 ? 0 : group_mean(g);
        double std = g->n == 1 ? 1 : sqrt(g->squares / (double)(g->n - 1));
        advantage[i] = (score[i] - mean) / (norm_by_std ? std + GRPO_EPS : 1);
    }
    td_free(slot_of);
    td_free(stats);
    td_map_free(slots);
}
