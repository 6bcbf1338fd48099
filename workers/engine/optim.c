// Learning rate, gradient sum, clipping and AdamW: see train_int.h. All parameters are in one group
// and decay alike, norms and biases too, as verl passes them to torch.optim.AdamW.
#include <math.h>

#include "workers/engine/train_int.h"

// A norm beyond this would overflow the second moments in float.
#define GRAD_NORM_MAX 1e18
#define CLIP_EPS 1e-6 // torch.nn.utils.clip_grad_norm_

double td_lr_factor(const struct td_train_config *c, uint64_t step) {
    double at = (double)step, warmup = (double)c->warmup_steps;
    if (at < warmup) {
        return at / warmup;
    }
    if (c->schedule == TD_LR_CONSTANT) {
        return 1;
    }
    // verl's get_cosine_schedule_with_warmup, half a wave.
    double span = (double)(c->total_steps - c->warmup_steps);
    double progress = (at - warmup) / (span > 1 ? span : 1);
    double x = cos(M_PI * progress) * (1 - c->min_lr_ratio) / 2 + (1 + c->min_lr_ratio) / 2;
    return x > c->min_lr_ratio ? x : c->min_lr_ratio;
}

// x^n by squaring: products only, so that every C library gives the same bits.
static double power(double x, uint64_t n) {
    double y = 1;
    for (; n > 0; n >>= 1, x *= x) {
        y *= n & 1 ? x : 1;
    }
    return y;
}

static enum td_rc sum_over_ranks(struct td_trainer *t, double *loss, int64_t deadline_ms,
                                 struct td_err *err) {
    if (!t->comm || t->comm->size == 1) {
        return TD_OK;
    }
    const struct td_comm_ops *ops = t->comm->ops;
    size_t n = (size_t)t->grads.cols;
    enum td_rc rc = ops->all_reduce_f64(t->comm, loss, 1, deadline_ms, err);
    if (rc == TD_OK && t->be->dtype == TD_F32) {
        rc = ops->all_reduce_f32(t->comm, t->grads.p, n, deadline_ms, err);
    } else if (rc == TD_OK) {
        rc = ops->all_reduce_f64(t->comm, t->grads.p, n, deadline_ms, err);
    }
    return rc ? td_err_in(err, "sum of gradients") : TD_OK;
}

static void adamw(struct td_trainer *t, double lr, double grad_scale) {
    const struct td_train_config *c = &t->config;
    uint64_t n = t->status.optimizer_steps + 1;
    t->be->ops->adamw(t->be, &(struct td_adamw_args){.p = t->weights.flat,
                                                     .g = t->grads,
                                                     .m = t->exp_avg,
                                                     .v = t->exp_avg_sq,
                                                     .lr = lr,
                                                     .beta1 = c->beta1,
                                                     .beta2 = c->beta2,
                                                     .eps = c->eps,
                                                     .weight_decay = c->weight_decay,
                                                     .bc1 = 1 - power(c->beta1, n),
                                                     .bc2 = 1 - power(c->beta2, n),
                                                     .grad_scale = grad_scale});
}

enum td_rc td_optim_apply(struct td_trainer *t, double loss, int64_t deadline_ms,
                          struct td_optim_report *report, struct td_err *err) {
    const struct td_train_config *c = &t->config;
    enum td_rc rc = sum_over_ranks(t, &loss, deadline_ms, err);
    rc = rc ? rc : t->be->ops->check(t->be, err);
    if (rc != TD_OK) {
        return rc;
    }
    double square = 0;
    t->be->ops->sumsq(t->be, &(struct td_sumsq_args){.g = t->grads, .out = &square});
    rc = t->be->ops->check(t->be, err);
    if (rc != TD_OK) {
        return rc;
    }
    double norm = sqrt(square), scale = 1;
    if (c->grad_clip > 0 && norm > 0) {
        scale = fmin(1, c->grad_clip / (norm + CLIP_EPS));
    }
    if (!isfinite(loss) || !isfinite(norm) || norm * scale > GRAD_NORM_MAX) {
        return td_fail(
            err, TD_EINVAL,
            "step %llu, update %u: loss %g, gradient norm %g; the update is not applied. "
            "A smaller actor.optim.lr is the usual cure",
            (unsigned long long)t->status.step + 1, t->status.applied + 1, loss, norm);
    }
    report->grad_norm = norm;
    report->lr = c->lr * td_lr_factor(c, t->status.step);
    adamw(t, report->lr, scale);
    t->status.optimizer_steps++;
    rc = td_weights_prepare(t->m, &t->weights, err);
    return rc ? rc : t->be->ops->check(t->be, err);
}
