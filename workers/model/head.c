// The language-model head on chosen rows: log-probs, entropy, logits: see model.h. Logits of more
// than one chunk of rows never exist at once. Command thread.
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/model/model_int.h"
#include "workers/model/transfer.h"

enum { CHUNK_LOGITS = 1 << 21, CHUNK_ROWS_MIN = 16, CHUNK_ROWS_MAX = 512 };

static int chunk_rows(const struct td_model *m) {
    int rows = CHUNK_LOGITS / m->config.vocab_size;
    return rows < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : rows > CHUNK_ROWS_MAX ? CHUNK_ROWS_MAX : rows;
}

static int head_packed(const struct td_model *m) {
    return m->config.layers * TD_PACKED_PER_LAYER;
}

struct td_tensor td_head_weight(const struct td_model *m, const struct td_tensor *flat) {
    return td_flat_view(m, flat, m->head, m->config.vocab_size, m->config.hidden_size);
}

// Lays out the head's arrays for n rows in its slab.
static enum td_rc plan_head(struct td_model *m, int32_t n, struct td_err *err) {
    struct td_head *hd = &m->head_rows;
    int64_t h = m->config.hidden_size;
    size_t row = td_dtype_size(m->be->dtype);
    enum td_rc rc = td_slab_fit(m->be, &m->head_slab, (size_t)n * (size_t)(2 * h + 5) * row, err);
    if (rc != TD_OK) {
        return rc;
    }
    TD_GROW(hd->rows, hd->rows_cap, (size_t)n);
    TD_GROW(hd->target, hd->target_cap, (size_t)n);
    int64_t at = 0;
    struct td_tensor *wide[] = {&hd->x, &hd->dx};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++, at += n * h) {
        *wide[i] = td_tensor_of(m->be, td_transfer_at(m->be, m->head_slab.p, at), n, h);
    }
    struct td_tensor *narrow[] = {&hd->logp, &hd->lse, &hd->entropy, &hd->d_logp, &hd->d_entropy};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++, at += n) {
        *narrow[i] = td_tensor_of(m->be, td_transfer_at(m->be, m->head_slab.p, at), n, 1);
    }
    hd->n = n;
    return TD_OK;
}

static void check_rows(const struct td_tensor *hidden, const struct td_head_rows *r) {
    td_assert(r->n >= 1);
    td_assert(r->rows || r->n == hidden->rows);
    for (int32_t i = 0; r->rows && i < r->n; i++) {
        td_assert_op(r->rows[i], >=, 0);
        td_assert_op(r->rows[i], <, hidden->rows);
    }
}

static enum td_rc check_targets(const struct td_model *m, const struct td_head_rows *r,
                                struct td_err *err) {
    for (int32_t i = 0; i < r->n; i++) {
        if (r->target[i] < 0 || r->target[i] >= m->config.vocab_size) {
            return td_fail(err, TD_EINVAL, "token id %d is not of the vocabulary 0..%d",
                           r->target[i], m->config.vocab_size - 1);
        }
    }
    return TD_OK;
}

struct td_logprob_args td_head_args(struct td_model *m, const struct td_weights *w) {
    struct td_head *hd = &m->head_rows;
    struct td_logprob_args a = {.x = hd->x,
                                .w = td_head_weight(m, &w->flat),
                                .packed = td_packed_of(m, w, head_packed(m)),
                                .target = hd->target,
                                .inv_temp = hd->inv_temp,
                                .chunk = chunk_rows(m),
                                .logp = hd->logp,
                                .lse = hd->lse};
    if (hd->has_entropy) {
        a.entropy = hd->entropy;
    }
    return a;
}

enum td_rc td_model_logprob(struct td_model *m, const struct td_weights *w,
                            const struct td_tensor *hidden, const struct td_head_rows *r,
                            struct td_err *err) {
    td_assert(r->temperature > 0);
    struct td_head *hd = &m->head_rows;
    hd->kept = false;
    check_rows(hidden, r);
    enum td_rc rc = check_targets(m, r, err);
    rc = rc ? rc : plan_head(m, r->n, err);
    if (rc != TD_OK) {
        return rc;
    }
    hd->all = !r->rows;
    if (hd->all) {
        hd->x = *hidden;
    } else {
        memcpy(hd->rows, r->rows, (size_t)r->n * sizeof *hd->rows);
        m->be->ops->rows_gather(m->be,
                                &(struct td_rows_args){.x = *hidden, .y = hd->x, .idx = hd->rows});
    }
    memcpy(hd->target, r->target, (size_t)r->n * sizeof *hd->target);
    hd->inv_temp = 1 / r->temperature;
    hd->has_entropy = r->entropy != NULL;
    struct td_logprob_args a = td_head_args(m, w);
    m->be->ops->logprob_fwd(m->be, &a);
    rc = m->be->ops->check(m->be, err);
    if (rc != TD_OK) {
        return rc;
    }
    td_transfer_get_f64(m->be, r->logp, hd->logp.p, (size_t)r->n);
    if (r->entropy) {
        td_transfer_get_f64(m->be, r->entropy, hd->entropy.p, (size_t)r->n);
    }
    hd->kept = m->trained;
    return TD_OK;
}

enum td_rc td_model_logits(struct td_model *m, const struct td_weights *w,
                           const struct td_tensor *hidden, const struct td_head_rows *r,
                           struct td_tensor *logits, struct td_err *err) {
    int64_t h = m->config.hidden_size, v = m->config.vocab_size, n = r->n;
    check_rows(hidden, r);
    enum td_rc rc = td_slab_fit(m->be, &m->logit_slab,
                                (size_t)(n * (h + v)) * td_dtype_size(m->be->dtype), err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_tensor z = td_tensor_of(m->be, m->logit_slab.p, n, v);
    struct td_tensor x = td_tensor_of(m->be, td_transfer_at(m->be, z.p, n * v), n, h);
    if (r->rows) {
        m->be->ops->rows_gather(m->be,
                                &(struct td_rows_args){.x = *hidden, .y = x, .idx = r->rows});
    } else {
        x = *hidden;
    }
    m->be->ops->gemm(m->be, &(struct td_gemm_args){.kind = TD_GEMM_NT,
                                                   .a = x,
                                                   .b = td_head_weight(m, &w->flat),
                                                   .c = z,
                                                   .packed = td_packed_of(m, w, head_packed(m))});
    rc = m->be->ops->check(m->be, err);
    if (rc == TD_OK) {
        *logits = z;
    }
    return rc;
}
