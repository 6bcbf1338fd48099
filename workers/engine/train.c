// The trainer: keys, prep, updates: see train.h. Saving and loading are in train_save.c. Command
// thread only.
#include "workers/engine/train.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/engine/train_int.h"
#include "workers/model/transfer.h"

static enum td_rc check_config(const struct td_train_config *c, struct td_err *err) {
    if (!(c->lr >= 0) || !isfinite(c->lr) || !(c->weight_decay >= 0) || !(c->eps > 0) ||
        !(c->beta1 >= 0 && c->beta1 < 1) || !(c->beta2 >= 0 && c->beta2 < 1)) {
        return td_fail(err, TD_EINVAL,
                       "optimizer: lr %g ≥ 0, weight_decay %g ≥ 0, betas %g and %g of [0, 1), "
                       "eps %g > 0",
                       c->lr, c->weight_decay, c->beta1, c->beta2, c->eps);
    }
    if (!(c->temperature > 0) || (c->micro_batch_rows <= 0 && c->micro_batch_tokens <= 0)) {
        return td_fail(err, TD_EINVAL, "temperature %g and the micro-batch size must be above 0",
                       c->temperature);
    }
    if (c->use_reference != (!c->sft && c->loss.use_kl_loss)) {
        return td_fail(err, TD_EINVAL, "a reference policy is needed for a KL loss, and only then");
    }
    return TD_OK;
}

enum td_rc td_trainer_new(struct td_backend *be, struct td_model *m,
                          const struct td_train_config *config, struct td_trainer **out,
                          struct td_err *err) {
    enum td_rc rc = check_config(config, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_trainer *t = td_alloc(sizeof *t);
    t->be = be;
    t->m = m;
    t->config = *config;
    rc = td_weights_new(m, &t->weights, err);
    rc = rc ? rc : td_model_flat_new(m, &t->grads, err);
    rc = rc ? rc : td_model_flat_new(m, &t->exp_avg, err);
    rc = rc ? rc : td_model_flat_new(m, &t->exp_avg_sq, err);
    if (rc != TD_OK) {
        td_trainer_free(t);
        return rc;
    }
    *out = t;
    return TD_OK;
}

void td_trainer_drop(struct td_trainer *t) {
    td_batch_free(t->batch);
    td_free(t->old_logp);
    td_free(t->ref_logp);
    t->batch = NULL;
    t->old_logp = t->ref_logp = NULL;
    t->status.ref_offset = 0;
    t->status.ref_crc = t->status.prepped = t->status.applied = t->status.updates = 0;
}

void td_trainer_free(struct td_trainer *t) {
    if (!t) {
        return;
    }
    td_trainer_drop(t);
    td_micro_fini(&t->micro);
    td_weights_fini(t->m, &t->weights);
    td_weights_fini(t->m, &t->reference);
    void *flats[] = {t->grads.p, t->exp_avg.p, t->exp_avg_sq.p};
    for (size_t i = 0; i < sizeof flats / sizeof *flats; i++) {
        if (flats[i]) {
            t->be->ops->release(t->be, flats[i]);
        }
    }
    td_free(t);
}

void td_trainer_status(const struct td_trainer *t, struct td_train_status *out) {
    *out = t->status;
}

struct td_weights *td_trainer_weights(struct td_trainer *t) {
    return &t->weights;
}

void td_trainer_set_comm(struct td_trainer *t, struct td_comm *comm) {
    t->comm = comm;
}

enum td_rc td_trainer_set_reference(struct td_trainer *t, const float *flat, struct td_err *err) {
    if (!t->reference.flat.p) {
        enum td_rc rc = td_weights_new(t->m, &t->reference, err);
        if (rc != TD_OK) {
            return td_err_in(err, "reference policy");
        }
    }
    size_t n = (size_t)td_model_elements(t->m);
    if (flat) {
        td_transfer_put_f32(t->be, t->reference.flat.p, flat, n);
    } else {
        t->be->ops->copy(t->be, &(struct td_copy_args){.dst = t->reference.flat.p,
                                                       .src = t->weights.flat.p,
                                                       .bytes = n * td_dtype_size(t->be->dtype),
                                                       .kind = TD_COPY_D2D});
    }
    t->has_reference = true;
    return td_weights_prepare(t->m, &t->reference, err);
}

static enum td_rc check_generation(const struct td_trainer *t, uint64_t generation,
                                   struct td_err *err) {
    if (t->status.generation == 0 || generation != t->status.generation) {
        return td_fail(err, TD_ECONFLICT,
                       "generation %" PRIu64 " is not the loaded one (%" PRIu64 ")", generation,
                       t->status.generation);
    }
    return TD_OK;
}

static bool same_ref(const struct td_trainer *t, const struct td_round_key *key) {
    return t->status.prepped && key->ref_offset == t->status.ref_offset &&
           key->ref_crc == t->status.ref_crc;
}

static enum td_rc check_key(const struct td_trainer *t, const struct td_round_key *key,
                            struct td_err *err) {
    enum td_rc rc = check_generation(t, key->generation, err);
    if (rc == TD_OK && !same_ref(t, key)) {
        rc = td_fail(err, TD_ECONFLICT,
                     "the round sealed at %" PRIu64 " (crc %08x) is not prepped; held: %" PRIu64
                     " (crc %08x)",
                     key->ref_offset, key->ref_crc, t->status.ref_offset, t->status.ref_crc);
    }
    return rc;
}

// Denominators of the whole round. One pass over the rows: a later epoch of the updates begins
// before the end of the one before.
static void round_counts(const struct td_batch *b, double *tokens, double *sequences) {
    *tokens = *sequences = 0;
    for (uint32_t u = 0; u < b->updates && (u == 0 || b->mini[2 * u] >= b->mini[2 * u - 1]); u++) {
        *tokens += b->token_count[u];
        *sequences += b->sequence_count[u];
    }
}

// Takes over the log-probs of t->micro into out; adds to *entropy what its tokens weigh in the mean
// over the round, as verl aggregates.
static void keep_logp(struct td_trainer *t, double *out, double *entropy) {
    const struct td_micro *mb = &t->micro;
    double tokens, sequences;
    round_counts(t->batch, &tokens, &sequences);
    for (int i = 0; i < mb->batch; i++) {
        size_t n = (size_t)(mb->first[i + 1] - mb->first[i]);
        double weight = td_agg_weight(&t->config.loss, n, tokens, sequences);
        for (int32_t k = mb->first[i]; k < mb->first[i + 1]; k++) {
            out[mb->token[k]] = mb->logp[k];
            *entropy += weight * mb->entropy[k];
        }
    }
}

// Log-probs of every trained token from row on under w into out; adds up their mean entropy.
static enum td_rc score(struct td_trainer *t, const struct td_weights *w, uint32_t row, double *out,
                        double *entropy, struct td_err *err) {
    while (td_micro_fill(t, &row, t->batch->rows)) {
        enum td_rc rc = td_micro_forward(t, w, TD_FORWARD_SCORE, err);
        if (rc != TD_OK) {
            return rc;
        }
        keep_logp(t, out, entropy);
    }
    return TD_OK;
}

// Rows [0, n) are those of the first update. Its forward is under the parent's weights and gives
// their old log-probs too, bit for bit, so that prep need not.
static uint32_t first_rows(const struct td_trainer *t) {
    const struct td_batch *b = t->batch;
    return !t->config.sft && b->updates > 0 && b->mini[0] == 0 ? b->mini[1] : 0;
}

// Of the old log-probs of rows [from, to): their entropy's share of the mean, and |exp(old
// log-prob) − exp(log-prob at sampling)| over trained tokens: 0 where one engine serves both, on
// the CPU.
static void old_logp_metrics(const struct td_trainer *t, uint32_t from, uint32_t to, double entropy,
                             struct td_metrics *metrics) {
    const struct td_batch *b = t->batch;
    double most = 0, sum = 0, count, unused;
    round_counts(b, &count, &unused);
    for (uint32_t i = b->row_start[from]; i < b->row_start[to]; i++) {
        if (b->loss_mask[i]) {
            // Samplers report float.
            double diff =
                fabs(exp((double)(float)t->old_logp[i]) - exp((double)b->rollout_logp[i]));
            most = fmax(most, diff);
            sum += diff;
        }
    }
    td_metrics_add(metrics, "actor/entropy", entropy, TD_FOLD_SUM);
    td_metrics_add(metrics, "training/rollout_probs_diff_max", most, TD_FOLD_MAX);
    td_metrics_add(metrics, "training/rollout_probs_diff_mean", count > 0 ? sum / count : 0,
                   TD_FOLD_SUM);
}

static enum td_rc prep_policy(struct td_trainer *t, struct td_metrics *metrics,
                              struct td_err *err) {
    double entropy = 0, unused = 0;
    uint32_t first = first_rows(t);
    if (t->config.use_reference && !t->has_reference) {
        return td_fail(err, TD_EINVAL, "the reference policy has no weights");
    }
    t->old_logp = td_alloc_array((size_t)t->batch->tokens + 1, sizeof *t->old_logp);
    enum td_rc rc = score(t, &t->weights, first, t->old_logp, &entropy, err);
    if (rc == TD_OK && t->config.use_reference) {
        t->ref_logp = td_alloc_array((size_t)t->batch->tokens + 1, sizeof *t->ref_logp);
        rc = score(t, &t->reference, 0, t->ref_logp, &unused, err);
    }
    if (rc == TD_OK) {
        old_logp_metrics(t, first, t->batch->rows, entropy, metrics);
    }
    return rc;
}

enum td_rc td_trainer_prep(struct td_trainer *t, const struct td_round_key *key,
                           struct td_batch *batch_take, struct td_metrics *metrics,
                           struct td_err *err) {
    enum td_rc rc = check_generation(t, key->generation, err);
    if (rc == TD_OK && t->status.applied > 0) {
        rc = td_fail(err, TD_ECONFLICT,
                     "%u of %u updates of the round sealed at %" PRIu64 " are applied",
                     t->status.applied, t->status.updates, t->status.ref_offset);
    }
    if (rc != TD_OK) {
        td_batch_free(batch_take);
        return rc;
    }
    td_trainer_drop(t);
    t->batch = batch_take;
    rc = t->config.sft ? TD_OK : prep_policy(t, metrics, err);
    if (rc != TD_OK) {
        td_trainer_drop(t);
        return rc;
    }
    t->status.ref_offset = key->ref_offset;
    t->status.ref_crc = key->ref_crc;
    t->status.updates = t->batch->updates;
    t->status.prepped = 1;
    return TD_OK;
}

// Loss, metrics and gradients of update u; *entropy: of the old log-probs that the first one gives.
static enum td_rc gradients(struct td_trainer *t, uint32_t u, double *loss,
                            struct td_metrics *metrics, double *entropy, struct td_err *err) {
    t->be->ops->fill(t->be, &(struct td_fill_args){.y = t->grads});
    uint32_t row = t->batch->mini[2 * u], end = t->batch->mini[2 * u + 1];
    bool first = u == 0 && first_rows(t) > 0;
    while (td_micro_fill(t, &row, end)) {
        enum td_rc rc = td_micro_forward(t, &t->weights, TD_FORWARD_TRAIN, err);
        if (rc == TD_OK && first) {
            keep_logp(t, t->old_logp, entropy);
        }
        rc = rc ? rc : td_micro_backward(t, u, loss, metrics, err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    return TD_OK;
}

// Sums over ranks and updates become means over updates, as verl reports them.
static void report(const struct td_trainer *t, const struct td_metrics *parts, double loss,
                   const struct td_optim_report *optim, struct td_metrics *metrics) {
    double updates = t->batch->updates, ranks = t->comm ? t->comm->size : 1;
    bool sft = t->config.sft;
    for (int i = 0; i < parts->count; i++) {
        const struct td_metric *p = &parts->m[i];
        double value = p->fold == TD_FOLD_SUM ? p->value / updates : p->value;
        td_metrics_add(metrics, p->name, value, p->fold);
    }
    if (sft) {
        td_metrics_add(metrics, "train/loss", loss / updates, TD_FOLD_SUM);
    }
    td_metrics_add(metrics, sft ? "train/grad_norm" : "actor/grad_norm",
                   optim->grad_norm / (updates * ranks), TD_FOLD_SUM);
    td_metrics_add(metrics, sft ? "train/lr" : "actor/lr", optim->lr, TD_FOLD_LAST);
}

enum td_rc td_trainer_step(struct td_trainer *t, const struct td_round_key *key, uint32_t k,
                           int64_t deadline_ms, struct td_metrics *metrics, struct td_err *err) {
    enum td_rc rc = check_key(t, key, err);
    if (rc == TD_OK && (k != t->status.applied + 1 || k > t->status.updates)) {
        rc = td_fail(err, TD_ECONFLICT, "update %u after %u of %u", k, t->status.applied,
                     t->status.updates);
    }
    struct td_metrics parts = {0};
    struct td_optim_report optim = {0};
    double loss = 0, entropy = 0;
    rc = rc ? rc : gradients(t, k - 1, &loss, &parts, &entropy, err);
    rc = rc ? rc : td_optim_apply(t, loss, deadline_ms, &optim, err);
    if (rc == TD_OK) {
        t->status.applied = k;
        report(t, &parts, loss, &optim, metrics);
        if (k == 1 && first_rows(t) > 0) {
            old_logp_metrics(t, 0, first_rows(t), entropy, metrics);
        }
    }
    return rc;
}

enum td_rc td_trainer_finish(struct td_trainer *t, const struct td_round_key *key, uint64_t lineage,
                             struct td_err *err) {
    enum td_rc rc = check_key(t, key, err);
    if (rc == TD_OK && t->status.applied != t->status.updates) {
        rc = td_fail(err, TD_ECONFLICT, "%u of %u updates are applied", t->status.applied,
                     t->status.updates);
    }
    if (rc == TD_OK) {
        td_trainer_drop(t);
        t->status.lineage = lineage;
        t->status.step++;
    }
    return rc;
}
