// The reference backend: every op as the plainest loop that could be right, in double. It is what
// the fast backends and the hand-written gradients are measured against. One thread, never fails.
#include "workers/backend/ref/ref_int.h"

#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/backend/rules.h"

static void *ref_alloc(struct td_backend *be, size_t bytes) {
    (void)be;
    return td_try_alloc_aligned(bytes);
}

static void ref_release(struct td_backend *be, void *p) {
    (void)be;
    td_free(p);
}

static void ref_copy(struct td_backend *be, const struct td_copy_args *a) {
    (void)be;
    if (a->bytes) {
        memmove(a->dst, a->src, a->bytes);
    }
}

static void ref_fill(struct td_backend *be, const struct td_fill_args *a) {
    (void)be;
    for (int64_t r = 0; r < a->y.rows; r++) {
        for (int64_t c = 0; c < a->y.cols; c++) {
            *at(&a->y, r, c) = a->value;
        }
    }
}

static void ref_embed_fwd(struct td_backend *be, const struct td_embed_args *a) {
    (void)be;
    for (int64_t t = 0; t < a->y.rows; t++) {
        td_assert(a->ids[t] >= 0 && a->ids[t] < a->w.rows);
        for (int64_t c = 0; c < a->y.cols; c++) {
            *at(&a->y, t, c) = *at(&a->w, a->ids[t], c);
        }
    }
}

static void ref_embed_bwd(struct td_backend *be, const struct td_embed_args *a) {
    (void)be;
    for (int64_t t = 0; t < a->y.rows; t++) {
        td_assert(a->ids[t] >= 0 && a->ids[t] < a->w.rows);
        for (int64_t c = 0; c < a->y.cols; c++) {
            *at(&a->w, a->ids[t], c) += *at(&a->y, t, c);
        }
    }
}

static void ref_rmsnorm_fwd(struct td_backend *be, const struct td_rmsnorm_args *a) {
    (void)be;
    for (int64_t t = 0; t < a->x.rows; t++) {
        double sum = 0;
        for (int64_t c = 0; c < a->x.cols; c++) {
            if (a->res.p) {
                *at(&a->x, t, c) += *at(&a->res, t, c);
            }
            sum += *at(&a->x, t, c) * *at(&a->x, t, c);
        }
        double rstd = 1 / sqrt(sum / (double)a->x.cols + a->eps);
        ((double *)a->rstd.p)[t] = rstd;
        for (int64_t c = 0; c < a->x.cols; c++) {
            *at(&a->y, t, c) = *at(&a->x, t, c) * rstd * *at(&a->w, 0, c);
        }
    }
}

static void ref_rmsnorm_bwd(struct td_backend *be, const struct td_rmsnorm_bwd_args *a) {
    (void)be;
    for (int64_t t = 0; t < a->x.rows; t++) {
        double rstd = ((const double *)a->rstd.p)[t], dot = 0;
        for (int64_t c = 0; c < a->x.cols; c++) {
            dot += *at(&a->dy, t, c) * *at(&a->w, 0, c) * *at(&a->x, t, c) * rstd;
        }
        double mean = dot / (double)a->x.cols;
        for (int64_t c = 0; c < a->x.cols; c++) {
            double normed = *at(&a->x, t, c) * rstd;
            double dx = rstd * (*at(&a->dy, t, c) * *at(&a->w, 0, c) - normed * mean);
            *at(&a->dw, 0, c) += *at(&a->dy, t, c) * normed;
            *at(&a->dx, t, c) = a->acc ? *at(&a->dx, t, c) + dx : dx;
        }
    }
}

static size_t ref_gemm_prepared_bytes(struct td_backend *be, int64_t n, int64_t k) {
    (void)be;
    (void)n;
    (void)k;
    return 0;
}

static void ref_gemm_prepare(struct td_backend *be, const struct td_tensor *w, void *packed) {
    (void)be;
    (void)w;
    (void)packed;
}

static double gemm_element(const struct td_gemm_args *a, int64_t i, int64_t j, double start) {
    int64_t depth = a->kind == TD_GEMM_TN ? a->a.rows : a->a.cols;
    double sum = start;
    for (int64_t k = 0; k < depth; k++) {
        double x = a->kind == TD_GEMM_TN ? *at(&a->a, k, i) : *at(&a->a, i, k);
        double y = a->kind == TD_GEMM_NT ? *at(&a->b, j, k) : *at(&a->b, k, j);
        sum = fma(x, y, sum);
    }
    return sum;
}

static void ref_gemm(struct td_backend *be, const struct td_gemm_args *a) {
    (void)be;
    for (int64_t i = 0; i < a->c.rows; i++) {
        for (int64_t j = 0; j < a->c.cols; j++) {
            double sum = gemm_element(a, i, j, a->acc ? *at(&a->c, i, j) : 0);
            *at(&a->c, i, j) = a->bias.p ? sum + *at(&a->bias, 0, j) : sum;
        }
    }
}

static void ref_bias_grad(struct td_backend *be, const struct td_bias_grad_args *a) {
    (void)be;
    for (int64_t t = 0; t < a->dy.rows; t++) {
        for (int64_t c = 0; c < a->dy.cols; c++) {
            *at(&a->db, 0, c) += *at(&a->dy, t, c);
        }
    }
}

static void rotate(double *x, const double *tab, int half, double sign) {
    for (int j = 0; j < half; j++) {
        double c = tab[j], s = sign * tab[half + j], x0 = x[j], x1 = x[half + j];
        x[j] = x0 * c - x1 * s;
        x[half + j] = x1 * c + x0 * s;
    }
}

static void ref_rope(struct td_backend *be, const struct td_rope_args *a) {
    (void)be;
    for (int64_t t = 0; t < a->x.rows; t++) {
        td_assert(a->pos[t] >= 0 && a->pos[t] < a->tab->rows);
        for (int head = 0; head < a->heads; head++) {
            rotate(at(&a->x, t, (int64_t)head * a->head_dim), at(a->tab, a->pos[t], 0),
                   a->head_dim / 2, a->inverse ? -1 : 1);
        }
    }
}

static void ref_swiglu_fwd(struct td_backend *be, const struct td_swiglu_args *a) {
    (void)be;
    int64_t f = a->y.cols;
    for (int64_t t = 0; t < a->y.rows; t++) {
        for (int64_t c = 0; c < f; c++) {
            double g = *at(&a->gu, t, c);
            *at(&a->y, t, c) = g / (1 + exp(-g)) * *at(&a->gu, t, f + c);
        }
    }
}

static void ref_swiglu_bwd(struct td_backend *be, const struct td_swiglu_args *a) {
    (void)be;
    int64_t f = a->dy.cols;
    for (int64_t t = 0; t < a->dy.rows; t++) {
        for (int64_t c = 0; c < f; c++) {
            double g = *at(&a->gu, t, c), u = *at(&a->gu, t, f + c), dy = *at(&a->dy, t, c);
            double s = 1 / (1 + exp(-g));
            *at(&a->dgu, t, c) = dy * u * s * (1 + g * (1 - s));
            *at(&a->dgu, t, f + c) = dy * g * s;
            if (a->y.p) {
                *at(&a->y, t, c) = g / (1 + exp(-g)) * u;
            }
        }
    }
}

static void ref_axpby(struct td_backend *be, const struct td_axpby_args *a) {
    (void)be;
    for (int64_t r = 0; r < a->y.rows; r++) {
        for (int64_t c = 0; c < a->y.cols; c++) {
            double y = a->beta == 0 ? 0 : a->beta * *at(&a->y, r, c);
            *at(&a->y, r, c) = a->alpha * *at(&a->x, r, c) + y;
        }
    }
}

static void ref_rows_gather(struct td_backend *be, const struct td_rows_args *a) {
    (void)be;
    for (int64_t i = 0; i < a->y.rows; i++) {
        td_assert(a->idx[i] >= 0 && a->idx[i] < a->x.rows);
        for (int64_t c = 0; c < a->y.cols; c++) {
            *at(&a->y, i, c) = *at(&a->x, a->idx[i], c);
        }
    }
}

static void ref_rows_scatter_add(struct td_backend *be, const struct td_rows_args *a) {
    (void)be;
    for (int64_t i = 0; i < a->y.rows; i++) {
        td_assert(a->idx[i] >= 0 && a->idx[i] < a->x.rows);
        for (int64_t c = 0; c < a->y.cols; c++) {
            *at(&a->x, a->idx[i], c) += *at(&a->y, i, c);
        }
    }
}

static void ref_sumsq(struct td_backend *be, const struct td_sumsq_args *a) {
    (void)be;
    double sum = 0;
    for (int64_t r = 0; r < a->g.rows; r++) {
        for (int64_t c = 0; c < a->g.cols; c++) {
            sum += *at(&a->g, r, c) * *at(&a->g, r, c);
        }
    }
    *a->out += sum;
}

static void ref_adamw(struct td_backend *be, const struct td_adamw_args *a) {
    (void)be;
    for (int64_t r = 0; r < a->p.rows; r++) {
        for (int64_t c = 0; c < a->p.cols; c++) {
            double g = *at(&a->g, r, c) * a->grad_scale;
            double *p = at(&a->p, r, c), *m = at(&a->m, r, c), *v = at(&a->v, r, c);
            *p -= a->lr * a->weight_decay * *p;
            *m = a->beta1 * *m + (1 - a->beta1) * g;
            *v = a->beta2 * *v + (1 - a->beta2) * g * g;
            *p -= a->lr / a->bc1 * *m / (sqrt(*v / a->bc2) + a->eps);
        }
    }
}

static void ref_digest(struct td_backend *be, const struct td_digest_args *a) {
    (void)be;
    uint64_t index = a->first_index;
    for (int64_t r = 0; r < a->x.rows; r++) {
        for (int64_t c = 0; c < a->x.cols; c++) {
            uint64_t bits;
            memcpy(&bits, at(&a->x, r, c), sizeof bits);
            *a->out += td_digest_mix(a->name, index++, bits);
        }
    }
}

static enum td_rc ref_check(struct td_backend *be, struct td_err *err) {
    (void)be;
    (void)err;
    return TD_OK;
}

static void ref_free(struct td_backend *be) {
    td_free(be);
}

static const struct td_backend_ops ref_ops = {
    .name = "ref",
    .alloc = ref_alloc,
    .release = ref_release,
    .copy = ref_copy,
    .fill = ref_fill,
    .embed_fwd = ref_embed_fwd,
    .embed_bwd = ref_embed_bwd,
    .rmsnorm_fwd = ref_rmsnorm_fwd,
    .rmsnorm_bwd = ref_rmsnorm_bwd,
    .gemm_prepared_bytes = ref_gemm_prepared_bytes,
    .gemm_prepare = ref_gemm_prepare,
    .gemm = ref_gemm,
    .bias_grad = ref_bias_grad,
    .rope = ref_rope,
    .attn_fwd = td_ref_attn_fwd,
    .attn_bwd = td_ref_attn_bwd,
    .kv_store = td_ref_kv_store,
    .attn_paged = td_ref_attn_paged,
    .swiglu_fwd = ref_swiglu_fwd,
    .swiglu_bwd = ref_swiglu_bwd,
    .axpby = ref_axpby,
    .rows_gather = ref_rows_gather,
    .rows_scatter_add = ref_rows_scatter_add,
    .logprob_fwd = td_ref_logprob_fwd,
    .logprob_bwd = td_ref_logprob_bwd,
    .sample = td_ref_sample,
    .sumsq = ref_sumsq,
    .adamw = ref_adamw,
    .digest = ref_digest,
    .check = ref_check,
    .free = ref_free,
};

struct td_backend *td_backend_ref_new(void) {
    struct td_backend *be = td_alloc(sizeof *be);
    *be = (struct td_backend){.ops = &ref_ops, .dtype = TD_F64};
    return be;
}
