// Attention of the reference backend, packed and paged: scores, softmax, weighted sum, row by row.
#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/backend/ref/ref_int.h"

static double dot(const double *x, const double *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

static void add_scaled(double *y, double alpha, const double *x, int n) {
    for (int i = 0; i < n; i++) {
        y[i] += alpha * x[i];
    }
}

// One query of one head against keys[0..n): key j and value j as pointers.
struct row {
    const double *q, **key, **value;
    double *p; // n: scores, then probabilities
    int64_t n;
    int d;
    double scale;
};

// Fills r->p with probabilities, o (when given) with their sum over values; gives the lse.
static double attend(const struct row *r, double *o) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < r->n; j++) {
        r->p[j] = dot(r->q, r->key[j], r->d) * r->scale;
        max = fmax(max, r->p[j]);
    }
    for (int64_t j = 0; j < r->n; j++) {
        r->p[j] = exp(r->p[j] - max);
        sum += r->p[j];
    }
    if (o) {
        memset(o, 0, (size_t)r->d * sizeof *o);
    }
    for (int64_t j = 0; j < r->n; j++) {
        r->p[j] /= sum;
        if (o) {
            add_scaled(o, r->p[j], r->value[j], r->d);
        }
    }
    return max + log(sum);
}

static struct row row_new(int64_t keys, int d, double scale) {
    return (struct row){.key = td_alloc_array((size_t)keys, sizeof(double *)),
                        .value = td_alloc_array((size_t)keys, sizeof(double *)),
                        .p = td_alloc_array((size_t)keys, sizeof(double)),
                        .d = d,
                        .scale = scale};
}

static void row_free(struct row *r) {
    td_free(r->key);
    td_free(r->value);
    td_free(r->p);
}

// Points r at query t of head and at the keys first..t of its sequence.
static void row_packed(struct row *r, const struct td_attn_args *a, int64_t first, int64_t t,
                       int head) {
    int64_t d = a->head_dim, col = head / (a->heads / a->kv_heads) * d;
    r->q = at(&a->q, t, head * d);
    r->n = t - first + 1;
    for (int64_t j = 0; j < r->n; j++) {
        r->key[j] = at(&a->k, first + j, col);
        r->value[j] = at(&a->v, first + j, col);
    }
}

void td_ref_attn_fwd(struct td_backend *be, const struct td_attn_args *a) {
    (void)be;
    struct row r = row_new(a->q.rows, a->head_dim, a->scale);
    for (int b = 0; b < a->batch; b++) {
        for (int64_t t = a->cu[b]; t < a->cu[b + 1]; t++) {
            for (int head = 0; head < a->heads; head++) {
                row_packed(&r, a, a->cu[b], t, head);
                double lse = attend(&r, at(&a->o, t, (int64_t)head * a->head_dim));
                if (a->lse.p) {
                    *at(&a->lse, t, head) = lse;
                }
            }
        }
    }
    row_free(&r);
}

static void attn_bwd_row(const struct td_attn_bwd_args *a, struct row *r, int64_t first, int64_t t,
                         int head) {
    const struct td_attn_args *f = &a->fwd;
    int d = f->head_dim;
    int64_t col = head / (f->heads / f->kv_heads) * (int64_t)d;
    row_packed(r, f, first, t, head);
    attend(r, NULL);
    const double *d_o = at(&a->d_o, t, (int64_t)head * d);
    double delta = dot(d_o, at(&f->o, t, (int64_t)head * d), d);
    for (int64_t j = 0; j < r->n; j++) {
        double ds = r->p[j] * (dot(d_o, r->value[j], d) - delta) * f->scale;
        add_scaled(at(&a->dq, t, (int64_t)head * d), ds, r->key[j], d);
        add_scaled(at(&a->dk, first + j, col), ds, r->q, d);
        add_scaled(at(&a->dv, first + j, col), r->p[j], d_o, d);
    }
}

static void zero(const struct td_tensor *x, int64_t cols) {
    for (int64_t t = 0; t < x->rows; t++) {
        memset(at(x, t, 0), 0, (size_t)cols * sizeof(double));
    }
}

void td_ref_attn_bwd(struct td_backend *be, const struct td_attn_bwd_args *a) {
    (void)be;
    const struct td_attn_args *f = &a->fwd;
    zero(&a->dq, (int64_t)f->heads * f->head_dim);
    zero(&a->dk, (int64_t)f->kv_heads * f->head_dim);
    zero(&a->dv, (int64_t)f->kv_heads * f->head_dim);
    struct row r = row_new(f->q.rows, f->head_dim, f->scale);
    for (int b = 0; b < f->batch; b++) {
        for (int64_t t = f->cu[b]; t < f->cu[b + 1]; t++) {
            for (int head = 0; head < f->heads; head++) {
                attn_bwd_row(a, &r, f->cu[b], t, head);
            }
        }
    }
    row_free(&r);
}

void td_ref_kv_store(struct td_backend *be, const struct td_kv_store_args *a) {
    (void)be;
    int64_t width = (int64_t)a->kv_heads * a->head_dim;
    for (int64_t t = 0; t < a->k.rows; t++) {
        if (a->slot[t] < 0) {
            continue;
        }
        int64_t page = a->slot[t] / a->page_tokens, place = a->slot[t] % a->page_tokens;
        double *k = (double *)a->pages + (page * 2 * a->page_tokens + place) * width;
        memcpy(k, at(&a->k, t, 0), (size_t)width * sizeof *k);
        memcpy(k + a->page_tokens * width, at(&a->v, t, 0), (size_t)width * sizeof *k);
    }
}

static void row_paged(struct row *r, const struct td_attn_paged_args *a, int b, int head) {
    int64_t width = (int64_t)a->kv_heads * a->head_dim, size = a->page_tokens;
    int64_t col = head / (a->heads / a->kv_heads) * (int64_t)a->head_dim;
    for (int64_t j = 0; j < r->n; j++) {
        int64_t page = a->table[(int64_t)b * a->table_stride + j / size];
        r->key[j] = (const double *)a->pages + (page * 2 * size + j % size) * width + col;
        r->value[j] = r->key[j] + size * width;
    }
}

void td_ref_attn_paged(struct td_backend *be, const struct td_attn_paged_args *a) {
    (void)be;
    int64_t keys = 1;
    for (int b = 0; b < a->batch; b++) {
        keys = a->kvlen[b] > keys ? a->kvlen[b] : keys;
    }
    struct row r = row_new(keys, a->head_dim, a->scale);
    for (int b = 0; b < a->batch; b++) {
        for (int64_t t = a->qcu[b]; t < a->qcu[b + 1]; t++) {
            r.n = a->kvlen[b] - (a->qcu[b + 1] - 1 - t);
            td_assert_op(r.n, >=, 1);
            for (int head = 0; head < a->heads; head++) {
                r.q = at(&a->q, t, (int64_t)head * a->head_dim);
                row_paged(&r, a, b, head);
                attend(&r, at(&a->o, t, (int64_t)head * a->head_dim));
            }
        }
    }
    row_free(&r);
}
