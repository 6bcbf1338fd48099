// The layer program, forward: see model.h. One program serves training, scoring, prefill and
// decode; the modes differ in the attention op and in what is kept. Command thread.
#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/model/model_int.h"
#include "workers/model/transfer.h"

enum { SLAB_ALIGN = 64 };

enum td_rc td_slab_fit(struct td_backend *be, struct td_slab *slab, size_t bytes,
                       struct td_err *err) {
    if (slab->bytes >= bytes) {
        return TD_OK;
    }
    if (slab->p) {
        be->ops->release(be, slab->p);
    }
    bytes += bytes / 8; // batches differ a little; fresh memory costs more than the work on it
    slab->p = be->ops->alloc(be, bytes);
    slab->bytes = slab->p ? bytes : 0;
    return slab->p ? TD_OK : td_fail(err, TD_ENOMEM, "%zu bytes for activations", bytes);
}

// Gives out views of a slab one after the other; base NULL only counts.
struct placer {
    const struct td_backend *be;
    char *base;
    size_t used;
};

static struct td_tensor place(struct placer *pl, int64_t rows, int64_t cols) {
    struct td_tensor t = td_tensor_of(pl->be, pl->base ? pl->base + pl->used : NULL, rows, cols);
    size_t bytes = (size_t)(rows * cols) * td_dtype_size(pl->be->dtype);
    pl->used += (bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN;
    return t;
}

static void place_layer(struct placer *pl, const struct td_model_config *c, int64_t tokens,
                        struct td_layer_acts *a) {
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    a->x = place(pl, tokens, c->hidden_size);
    a->qkv = place(pl, tokens, q + 2 * kv);
    a->o = place(pl, tokens, q);
    a->lse = place(pl, tokens, c->heads);
    a->mid = place(pl, tokens, c->hidden_size);
    a->gu = place(pl, tokens, 2 * (int64_t)c->intermediate_size);
    a->rstd1 = place(pl, tokens, 1);
    a->rstd2 = place(pl, tokens, 1);
}

static void place_all(struct td_model *m, struct placer *pl, const struct td_packed *batch,
                      bool train) {
    const struct td_model_config *c = &m->config;
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    int64_t tokens = batch->tokens;
    struct td_scratch *s = &m->scratch;
    for (int l = 0; l < c->layers; l++) {
        if (train || l == 0) {
            place_layer(pl, c, tokens, &m->acts[l]);
        } else {
            m->acts[l] = m->acts[0];
        }
    }
    s->norm = place(pl, tokens, c->hidden_size);
    s->act = place(pl, tokens, c->intermediate_size);
    s->x_end = train ? place(pl, tokens, c->hidden_size) : m->acts[0].x;
    s->rstd_end = place(pl, tokens, 1);
    if (train) {
        s->d_res = place(pl, tokens, c->hidden_size);
        s->d_norm = place(pl, tokens, c->hidden_size);
        s->d_act = place(pl, tokens, c->intermediate_size);
        s->d_gu = place(pl, tokens, 2 * (int64_t)c->intermediate_size);
        s->d_qkv = place(pl, tokens, q + 2 * kv);
        s->d_o = place(pl, tokens, q);
    }
    if (batch->out) {
        s->x_out = place(pl, batch->outs, c->hidden_size);
        s->o_out = place(pl, batch->outs, q);
        struct td_layer_acts *last = &m->acts[c->layers - 1];
        last->mid.rows = last->gu.rows = last->rstd2.rows = batch->outs;
        s->x_end.rows = s->rstd_end.rows = batch->outs;
    }
}

enum td_rc td_acts_plan(struct td_model *m, const struct td_packed *batch, bool train,
                        struct td_err *err) {
    struct placer count = {.be = m->be};
    place_all(m, &count, batch, train);
    enum td_rc rc = td_slab_fit(m->be, &m->act_slab, count.used, err);
    if (rc == TD_OK) {
        struct placer pl = {.be = m->be, .base = m->act_slab.p};
        place_all(m, &pl, batch, train);
    }
    return rc;
}

// Columns [first, first + cols) of a tensor.
struct td_tensor td_columns(const struct td_backend *be, const struct td_tensor *t, int64_t first,
                            int64_t cols) {
    struct td_tensor v = *t;
    v.p = td_transfer_at(be, t->p, first);
    v.cols = cols;
    return v;
}

static enum td_rc check_batch(const struct td_model *m, const struct td_packed *b,
                              struct td_err *err) {
    td_assert(b->tokens >= 1 && b->batch >= 1);
    td_assert(b->cu[0] == 0 && b->cu[b->batch] == b->tokens);
    td_assert(!b->out || (b->outs >= 1 && b->outs <= b->tokens));
    for (int32_t t = 0; t < b->tokens; t++) {
        if (b->ids[t] < 0 || b->ids[t] >= m->config.vocab_size) {
            return td_fail(err, TD_EINVAL, "token id %d is not of the vocabulary 0..%d", b->ids[t],
                           m->config.vocab_size - 1);
        }
        if (b->pos[t] < 0 || b->pos[t] >= m->config.max_positions) {
            return td_fail(err, TD_EINVAL, "position %d: the model has max_position_embeddings %d",
                           b->pos[t], m->config.max_positions);
        }
    }
    return TD_OK;
}

// What one call of td_model_forward hands to its layers.
struct forward {
    struct td_model *m;
    const struct td_weights *w;
    const struct td_packed *batch;
};

static void norm(const struct forward *f, const struct td_tensor *x, const struct td_tensor *res,
                 int64_t weight, const struct td_tensor *rstd) {
    struct td_model *m = f->m;
    struct td_rmsnorm_args a = {.x = *x,
                                .w = td_flat_view(m, &f->w->flat, weight, 1, m->config.hidden_size),
                                .y = m->scratch.norm,
                                .rstd = *rstd,
                                .eps = m->config.rms_norm_eps};
    if (res) {
        a.res = *res;
    }
    m->be->ops->rmsnorm_fwd(m->be, &a);
}

static void project(const struct forward *f, const struct td_tensor *x, int64_t weight, int packed,
                    const struct td_tensor *y) {
    struct td_model *m = f->m;
    m->be->ops->gemm(
        m->be, &(struct td_gemm_args){.kind = TD_GEMM_NT,
                                      .a = *x,
                                      .b = td_flat_view(m, &f->w->flat, weight, y->cols, x->cols),
                                      .c = *y,
                                      .packed = td_packed_of(m, f->w, packed)});
}

static void qkv_project(const struct forward *f, int l) {
    struct td_model *m = f->m;
    struct td_tensor *qkv = &m->acts[l].qkv;
    const struct td_layer_at *at = &m->at[l];
    struct td_gemm_args g = {
        .kind = TD_GEMM_NT,
        .a = m->scratch.norm,
        .b = td_flat_view(m, &f->w->flat, at->qkv, qkv->cols, m->config.hidden_size),
        .c = *qkv,
        .packed = td_packed_of(m, f->w, l * TD_PACKED_PER_LAYER + TD_PACKED_QKV)};
    if (at->bqkv >= 0) {
        g.bias = td_flat_view(m, &f->w->flat, at->bqkv, 1, qkv->cols);
    }
    m->be->ops->gemm(m->be, &g);
    m->be->ops->rope(m->be, &(struct td_rope_args){.x = *qkv,
                                                   .tab = &m->rope,
                                                   .pos = f->batch->pos,
                                                   .heads = m->config.heads + m->config.kv_heads,
                                                   .head_dim = m->config.head_dim});
}

static void attend_pages(const struct forward *f, int l, const struct td_attn_args *a) {
    struct td_model *m = f->m;
    const struct td_kv_view *kv = f->batch->kv;
    m->be->ops->kv_store(m->be, &(struct td_kv_store_args){.k = a->k,
                                                           .v = a->v,
                                                           .pages = kv->pages[l],
                                                           .slot = kv->slot,
                                                           .page_tokens = kv->page_tokens,
                                                           .kv_heads = a->kv_heads,
                                                           .head_dim = a->head_dim});
    m->be->ops->attn_paged(m->be, &(struct td_attn_paged_args){.q = a->q,
                                                               .o = a->o,
                                                               .pages = kv->pages[l],
                                                               .table = kv->table,
                                                               .table_stride = kv->table_stride,
                                                               .qcu = a->cu,
                                                               .kvlen = kv->kvlen,
                                                               .batch = a->batch,
                                                               .heads = a->heads,
                                                               .kv_heads = a->kv_heads,
                                                               .head_dim = a->head_dim,
                                                               .page_tokens = kv->page_tokens,
                                                               .scale = a->scale});
}

struct td_attn_args td_layer_attn(const struct td_model *m, int l, const int32_t *cu, int batch) {
    const struct td_model_config *c = &m->config;
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    const struct td_layer_acts *a = &m->acts[l];
    return (struct td_attn_args){.q = td_columns(m->be, &a->qkv, 0, q),
                                 .k = td_columns(m->be, &a->qkv, q, kv),
                                 .v = td_columns(m->be, &a->qkv, q + kv, kv),
                                 .o = a->o,
                                 .lse = a->lse,
                                 .cu = cu,
                                 .batch = batch,
                                 .heads = c->heads,
                                 .kv_heads = c->kv_heads,
                                 .head_dim = c->head_dim,
                                 .scale = 1 / sqrt(c->head_dim)};
}

// Leaves the rows that are wanted of the last layer's x and o in scratch, and narrows what follows.
static void pick_outs(const struct forward *f, const struct td_layer_acts *last) {
    struct td_scratch *s = &f->m->scratch;
    const struct td_backend_ops *ops = f->m->be->ops;
    ops->rows_gather(f->m->be,
                     &(struct td_rows_args){.x = last->x, .y = s->x_out, .idx = f->batch->out});
    ops->rows_gather(f->m->be,
                     &(struct td_rows_args){.x = last->o, .y = s->o_out, .idx = f->batch->out});
    s->norm.rows = s->act.rows = f->batch->outs;
}

// x of layer l is in acts[l].x without the residual that res holds (NULL for the embeddings);
// leaves the same for the next layer in next, with acts[l].mid as its residual.
static void run_layer(const struct forward *f, int l, const struct td_tensor *res,
                      const struct td_tensor *next) {
    struct td_model *m = f->m;
    const struct td_layer_at *at = &m->at[l];
    struct td_layer_acts *a = &m->acts[l];
    int packed = l * TD_PACKED_PER_LAYER;
    norm(f, &a->x, res, at->norm1, &a->rstd1);
    qkv_project(f, l);
    struct td_attn_args attn = td_layer_attn(m, l, f->batch->cu, f->batch->batch);
    if (f->batch->kv) {
        attend_pages(f, l, &attn);
    } else {
        m->be->ops->attn_fwd(m->be, &attn);
    }
    bool narrow = f->batch->out && l + 1 == m->config.layers;
    if (narrow) {
        pick_outs(f, a);
    }
    project(f, narrow ? &m->scratch.o_out : &a->o, at->o, packed + TD_PACKED_O, &a->mid);
    norm(f, &a->mid, narrow ? &m->scratch.x_out : &a->x, at->norm2, &a->rstd2);
    project(f, &m->scratch.norm, at->gate_up, packed + TD_PACKED_GATE_UP, &a->gu);
    m->be->ops->swiglu_fwd(m->be, &(struct td_swiglu_args){.gu = a->gu, .y = m->scratch.act});
    project(f, &m->scratch.act, at->down, packed + TD_PACKED_DOWN, next);
}

static void keep_batch(struct td_model *m, const struct td_packed *b) {
    size_t n = (size_t)b->tokens;
    TD_GROW(m->ids, m->ids_cap, n);
    TD_GROW(m->pos, m->pos_cap, n);
    TD_GROW(m->cu, m->cu_cap, (size_t)b->batch + 1);
    memcpy(m->ids, b->ids, n * sizeof *m->ids);
    memcpy(m->pos, b->pos, n * sizeof *m->pos);
    memcpy(m->cu, b->cu, ((size_t)b->batch + 1) * sizeof *m->cu);
    m->tokens = b->tokens;
    m->batch = b->batch;
    m->outs = b->out ? b->outs : 0;
    TD_GROW(m->out, m->out_cap, (size_t)m->outs);
    if (b->out) {
        memcpy(m->out, b->out, (size_t)b->outs * sizeof *m->out);
    }
}

enum td_rc td_model_forward(struct td_model *m, const struct td_weights *w,
                            const struct td_packed *batch, enum td_forward_mode mode,
                            struct td_tensor *hidden, struct td_err *err) {
    td_assert((mode == TD_FORWARD_CACHED) == (batch->kv != NULL));
    td_assert(w->packed || m->packed_bytes == 0);
    m->trained = false;
    m->head_rows.kept = false;
    enum td_rc rc = check_batch(m, batch, err);
    rc = rc ? rc : td_acts_plan(m, batch, mode == TD_FORWARD_TRAIN, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct forward f = {.m = m, .w = w, .batch = batch};
    int layers = m->config.layers;
    m->be->ops->embed_fwd(m->be, &(struct td_embed_args){.w = td_flat_view(m, &w->flat, m->embed,
                                                                           m->config.vocab_size,
                                                                           m->config.hidden_size),
                                                         .y = m->acts[0].x,
                                                         .ids = batch->ids});
    for (int l = 0; l < layers; l++) {
        run_layer(&f, l, l ? &m->acts[l - 1].mid : NULL,
                  l + 1 < layers ? &m->acts[l + 1].x : &m->scratch.x_end);
    }
    norm(&f, &m->scratch.x_end, &m->acts[layers - 1].mid, m->norm, &m->scratch.rstd_end);
    rc = m->be->ops->check(m->be, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (mode == TD_FORWARD_TRAIN) {
        keep_batch(m, batch);
        m->trained = true;
    }
    *hidden = m->scratch.norm;
    return TD_OK;
}
