// The head of the reference backend: log-probabilities of targets and their gradient, sampling.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/backend/ref/ref_int.h"
#include "workers/backend/rules.h"

struct stats {
    double max, lse, entropy;
};

static struct stats row_stats(const double *z, int64_t vocab) {
    struct stats s = {.max = -INFINITY};
    double sum = 0, weighted = 0;
    for (int64_t i = 0; i < vocab; i++) {
        s.max = fmax(s.max, z[i]);
    }
    for (int64_t i = 0; i < vocab; i++) {
        double e = exp(z[i] - s.max);
        sum += e;
        weighted += e * z[i];
    }
    s.lse = s.max + log(sum);
    s.entropy = s.lse - weighted / sum;
    return s;
}

static void row_logits(const struct td_logprob_args *a, int64_t row, double *z) {
    for (int64_t i = 0; i < a->w.rows; i++) {
        double sum = 0;
        for (int64_t c = 0; c < a->x.cols; c++) {
            sum += *at(&a->x, row, c) * *at(&a->w, i, c);
        }
        z[i] = sum * a->inv_temp;
    }
}

void td_ref_logprob_fwd(struct td_backend *be, const struct td_logprob_args *a) {
    (void)be;
    double *z = td_alloc_array((size_t)a->w.rows, sizeof *z);
    for (int64_t t = 0; t < a->x.rows; t++) {
        td_assert(a->target[t] >= 0 && a->target[t] < a->w.rows);
        row_logits(a, t, z);
        struct stats s = row_stats(z, a->w.rows);
        *at(&a->logp, t, 0) = z[a->target[t]] - s.lse;
        *at(&a->lse, t, 0) = s.lse;
        if (a->entropy.p) {
            *at(&a->entropy, t, 0) = s.entropy;
        }
    }
    td_free(z);
}

void td_ref_logprob_bwd(struct td_backend *be, const struct td_logprob_bwd_args *a) {
    (void)be;
    const struct td_logprob_args *f = &a->fwd;
    double *z = td_alloc_array((size_t)f->w.rows, sizeof *z);
    for (int64_t t = 0; t < f->x.rows; t++) {
        row_logits(f, t, z);
        struct stats s = row_stats(z, f->w.rows);
        double dlogp = *at(&a->dlogp, t, 0);
        double dent = a->dentropy.p ? *at(&a->dentropy, t, 0) : 0;
        memset(at(&a->dx, t, 0), 0, (size_t)f->x.cols * sizeof(double));
        for (int64_t i = 0; i < f->w.rows; i++) {
            double p = exp(z[i] - s.lse), hit = i == f->target[t];
            double dz = (dlogp * (hit - p) - dent * p * (z[i] - s.lse + s.entropy)) * f->inv_temp;
            for (int64_t c = 0; c < f->x.cols; c++) {
                *at(&a->dx, t, c) += dz * *at(&f->w, i, c);
                *at(&a->dw, i, c) += dz * *at(&f->x, t, c);
            }
        }
    }
    td_free(z);
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

// The smallest z that top-k, then top-p of what that leaves, keep; sorted holds z descending.
static double threshold(const struct td_sample_row *row, const double *sorted, int64_t n) {
    if (row->top_k > 0 && row->top_k < n) {
        int64_t kept = row->top_k;
        while (kept < n && sorted[kept] == sorted[kept - 1]) {
            kept++;
        }
        n = kept;
    }
    if (row->top_p >= 1) {
        return sorted[n - 1];
    }
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        total += exp(sorted[i] - sorted[0]);
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp(sorted[i] - sorted[0]);
        if (sum >= (double)row->top_p * total) {
            return sorted[i];
        }
    }
    return sorted[n - 1];
}

static double gumbel(const struct td_sample_row *row, int64_t id) {
    struct td_philox r = td_gumbel_words(row->key, row->position, (uint32_t)(id / 4));
    return -log(-log1p(-((double)r.v[id % 4] + 0.5) * 0x1p-32));
}

static int32_t draw(const struct td_sample_row *row, const uint8_t *allowed, const double *z,
                    int64_t vocab) {
    double *sorted = td_alloc_array((size_t)vocab, sizeof *sorted);
    int64_t n = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (!allowed || allowed[i]) {
            sorted[n++] = z[i];
        }
    }
    td_assert_op(n, >=, 1);
    qsort(sorted, (size_t)n, sizeof *sorted, descending);
    double least = row->inv_temp > 0 ? threshold(row, sorted, n) : sorted[0];
    td_free(sorted);
    int32_t best = -1;
    double best_value = -INFINITY;
    for (int64_t i = 0; i < vocab; i++) {
        if ((allowed && !allowed[i]) || z[i] < least) {
            continue;
        }
        double value = z[i] + (row->inv_temp > 0 ? gumbel(row, i) : 0);
        if (best < 0 || value > best_value) {
            best = (int32_t)i;
            best_value = value;
        }
    }
    return best;
}

void td_ref_sample(struct td_backend *be, const struct td_sample_args *a) {
    (void)be;
    int64_t vocab = a->z.cols;
    double *z = td_alloc_array((size_t)vocab, sizeof *z);
    for (int64_t t = 0; t < a->z.rows; t++) {
        double inv_temp = a->row[t].inv_temp > 0 ? (double)a->row[t].inv_temp : 1;
        for (int64_t i = 0; i < vocab; i++) {
            z[i] = *at(&a->z, t, i) * inv_temp;
        }
        a->id[t] = draw(&a->row[t], a->allowed, z, vocab);
        a->logp[t] = (float)(z[a->id[t]] - row_stats(z, vocab).lse);
    }
    td_free(z);
}
