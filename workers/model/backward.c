// The layer program, backward: see model.h. Light policy: a layer keeps x, qkv, o, lse, mid,
// gate-up; its two norms and the SwiGLU product are computed again, by the same ops, so their bits
// are those of the forward. Where not all rows were wanted, the rest joins at the last layer's
// attention with gradient zero. Gradients of weights are sums over tokens in ascending order.
// Command thread.
#include "lib/base/check.h"
#include "workers/model/model_int.h"
#include "workers/model/transfer.h"

struct backward {
    struct td_model *m;
    const struct td_weights *w;
    const struct td_tensor *grads;
};

// dW += dyᵀ · x for y = x · Wᵀ.
static void weight_bwd(const struct backward *b, const struct td_tensor *dy,
                       const struct td_tensor *x, int64_t weight) {
    struct td_model *m = b->m;
    m->be->ops->gemm(
        m->be, &(struct td_gemm_args){.kind = TD_GEMM_TN,
                                      .a = *dy,
                                      .b = *x,
                                      .c = td_flat_view(m, b->grads, weight, dy->cols, x->cols),
                                      .acc = true});
}

// dx = dy · W.
static void input_bwd(const struct backward *b, const struct td_tensor *dy, int64_t weight,
                      const struct td_tensor *dx) {
    struct td_model *m = b->m;
    m->be->ops->gemm(
        m->be, &(struct td_gemm_args){.kind = TD_GEMM_NN,
                                      .a = *dy,
                                      .b = td_flat_view(m, &b->w->flat, weight, dy->cols, dx->cols),
                                      .c = *dx});
}

static void project_bwd(const struct backward *b, const struct td_tensor *dy,
                        const struct td_tensor *x, int64_t weight, const struct td_tensor *dx) {
    weight_bwd(b, dy, x, weight);
    input_bwd(b, dy, weight, dx);
}

// The normed input once more, into scratch.norm.
static void norm_again(const struct backward *b, const struct td_tensor *x, int64_t weight,
                       const struct td_tensor *rstd) {
    struct td_model *m = b->m;
    m->be->ops->rmsnorm_fwd(
        m->be, &(struct td_rmsnorm_args){.x = *x,
                                         .w = td_flat_view(m, &b->w->flat, weight, 1, x->cols),
                                         .y = m->scratch.norm,
                                         .rstd = *rstd,
                                         .eps = m->config.rms_norm_eps});
}

// From scratch.d_norm into scratch.d_res.
static void norm_bwd(const struct backward *b, const struct td_tensor *x, int64_t weight,
                     const struct td_tensor *rstd, bool acc) {
    struct td_model *m = b->m;
    m->be->ops->rmsnorm_bwd(
        m->be, &(struct td_rmsnorm_bwd_args){.dy = m->scratch.d_norm,
                                             .x = *x,
                                             .w = td_flat_view(m, &b->w->flat, weight, 1, x->cols),
                                             .rstd = *rstd,
                                             .dx = m->scratch.d_res,
                                             .dw = td_flat_view(m, b->grads, weight, 1, x->cols),
                                             .acc = acc});
}

// full[rows[i], :] = narrow[i, :], zero elsewhere.
static void spread(struct td_model *m, const struct td_tensor *narrow, const int32_t *rows,
                   const struct td_tensor *full) {
    m->be->ops->fill(m->be, &(struct td_fill_args){.y = *full});
    m->be->ops->rows_scatter_add(m->be,
                                 &(struct td_rows_args){.x = *full, .y = *narrow, .idx = rows});
}

// Leaves the gradient of hidden in scratch.d_norm.
static void head_bwd(const struct backward *b, const double *dlogp, const double *dentropy) {
    struct td_model *m = b->m;
    struct td_head *hd = &m->head_rows;
    td_transfer_put_f64(m->be, hd->d_logp.p, dlogp, (size_t)hd->n);
    struct td_logprob_bwd_args a = {.fwd = td_head_args(m, b->w),
                                    .dlogp = hd->d_logp,
                                    .dx = hd->all ? m->scratch.d_norm : hd->dx,
                                    .dw = td_head_weight(m, b->grads)};
    if (dentropy) {
        td_transfer_put_f64(m->be, hd->d_entropy.p, dentropy, (size_t)hd->n);
        a.dentropy = hd->d_entropy;
    }
    m->be->ops->logprob_bwd(m->be, &a);
    if (!hd->all) {
        spread(m, &hd->dx, hd->rows, &m->scratch.d_norm);
    }
}

static void mlp_bwd(const struct backward *b, int l) {
    struct td_model *m = b->m;
    struct td_scratch *s = &m->scratch;
    const struct td_layer_at *at = &m->at[l];
    struct td_layer_acts *a = &m->acts[l];
    input_bwd(b, &s->d_res, at->down, &s->d_act);
    m->be->ops->swiglu_bwd(
        m->be, &(struct td_swiglu_args){.gu = a->gu, .y = s->act, .dy = s->d_act, .dgu = s->d_gu});
    weight_bwd(b, &s->d_res, &s->act, at->down);
    norm_again(b, &a->mid, at->norm2, &a->rstd2);
    project_bwd(b, &s->d_gu, &s->norm, at->gate_up, &s->d_norm);
    norm_bwd(b, &a->mid, at->norm2, &a->rstd2, true);
}

// The last layer's output projection on the rows that were wanted; then d_res and d_o have all
// rows.
static void widen(const struct backward *b, const struct td_layer_at *at) {
    struct td_model *m = b->m;
    struct td_scratch *s = &m->scratch;
    struct td_tensor d_o = td_tensor_of(m->be, s->d_qkv.p, m->outs, s->d_o.cols); // lent
    project_bwd(b, &s->d_res, &s->o_out, at->o, &d_o);
    spread(m, &d_o, m->out, &s->d_o);
    struct td_tensor d_res = s->d_norm;
    d_res.rows = m->tokens;
    spread(m, &s->d_res, m->out, &d_res);
    s->d_norm = s->d_res;
    s->d_res = d_res;
    s->norm.rows = s->act.rows = s->d_norm.rows = s->d_act.rows = s->d_gu.rows = m->tokens;
}

static void attn_bwd(const struct backward *b, int l) {
    struct td_model *m = b->m;
    struct td_scratch *s = &m->scratch;
    const struct td_model_config *c = &m->config;
    const struct td_layer_at *at = &m->at[l];
    struct td_layer_acts *a = &m->acts[l];
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    if (m->outs && l + 1 == c->layers) {
        widen(b, at);
    } else {
        project_bwd(b, &s->d_res, &a->o, at->o, &s->d_o);
    }
    m->be->ops->attn_bwd(
        m->be, &(struct td_attn_bwd_args){.fwd = td_layer_attn(m, l, m->cu, m->batch),
                                          .d_o = s->d_o,
                                          .dq = td_columns(m->be, &s->d_qkv, 0, q),
                                          .dk = td_columns(m->be, &s->d_qkv, q, kv),
                                          .dv = td_columns(m->be, &s->d_qkv, q + kv, kv)});
    m->be->ops->rope(m->be, &(struct td_rope_args){.x = s->d_qkv,
                                                   .tab = &m->rope,
                                                   .pos = m->pos,
                                                   .heads = c->heads + c->kv_heads,
                                                   .head_dim = c->head_dim,
                                                   .inverse = true});
    if (at->bqkv >= 0) {
        m->be->ops->bias_grad(
            m->be, &(struct td_bias_grad_args){
                       .dy = s->d_qkv, .db = td_flat_view(m, b->grads, at->bqkv, 1, q + 2 * kv)});
    }
    norm_again(b, &a->x, at->norm1, &a->rstd1);
    project_bwd(b, &s->d_qkv, &s->norm, at->qkv, &s->d_norm);
    norm_bwd(b, &a->x, at->norm1, &a->rstd1, true);
}

enum td_rc td_model_backward(struct td_model *m, const struct td_weights *w, const double *dlogp,
                             const double *dentropy, const struct td_tensor *grads,
                             struct td_err *err) {
    td_assert(m->trained && m->head_rows.kept);
    td_assert(!dentropy || m->head_rows.has_entropy);
    struct backward b = {.m = m, .w = w, .grads = grads};
    struct td_scratch *s = &m->scratch;
    s->d_norm.rows = s->d_res.rows = s->d_act.rows = s->d_gu.rows = s->x_end.rows;
    head_bwd(&b, dlogp, dentropy);
    norm_bwd(&b, &s->x_end, m->norm, &s->rstd_end, false);
    for (int l = m->config.layers - 1; l >= 0; l--) {
        mlp_bwd(&b, l);
        attn_bwd(&b, l);
    }
    m->be->ops->embed_bwd(
        m->be, &(struct td_embed_args){.w = td_flat_view(m, grads, m->embed, m->config.vocab_size,
                                                         m->config.hidden_size),
                                       .y = m->scratch.d_res,
                                       .ids = m->ids});
    m->trained = false; // scratch is overwritten: one backward a forward
    m->head_rows.kept = false;
    return m->be->ops->check(m->be, err);
}
