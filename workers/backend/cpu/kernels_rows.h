// Kernels that work row by row: included by the isa_*.c files. Plain loops are left to the
// compiler's vectorizer, which keeps their bits; sums go through the 16 chains of lanes.h.
#include "workers/backend/cpu/lanes.h"
#include "workers/backend/rules.h"

static float *row_of(const struct td_tensor *x, int64_t row) {
    return (float *)x->p + row * x->ld;
}

// 16 lanes from p; fill beyond the first n.
TD_INLINE struct group load_group_or(const float *p, int64_t n, float fill) {
    struct group g;
    if (n >= TD_GROUP) {
        for (int i = 0; i < TD_GROUP_VECS; i++) {
            g.v[i] = load(p + i * TD_LANES);
        }
        return g;
    }
    float t[TD_GROUP];
    for (int i = 0; i < TD_GROUP; i++) {
        t[i] = i < n ? p[i] : fill;
    }
    memcpy(&g, t, sizeof g);
    return g;
}

TD_INLINE struct group load_group(const float *p, int64_t n) {
    return load_group_or(p, n, 0);
}

static float kernel_dot(const float *x, const float *y, int64_t n) {
    struct group sum = group_dup(0);
    for (int64_t c = 0; c < n; c += TD_GROUP) {
        struct group a = load_group(x + c, n - c), b = load_group(y + c, n - c);
        for (int i = 0; i < TD_GROUP_VECS; i++) {
            sum.v[i] = fma_v(a.v[i], b.v[i], sum.v[i]);
        }
    }
    return fold_add(&sum);
}

static void kernel_rmsnorm_fwd(const void *args, int64_t lo, int64_t hi) {
    const struct td_rmsnorm_args *a = args;
    int64_t h = a->x.cols;
    const float *w = a->w.p;
    for (int64_t t = lo; t < hi; t++) {
        float *x = row_of(&a->x, t), *y = row_of(&a->y, t);
        if (a->res.p) {
            const float *res = row_of(&a->res, t);
            for (int64_t c = 0; c < h; c++) {
                x[c] += res[c];
            }
        }
        float mean = kernel_dot(x, x, h) / (float)h;
        float rstd = 1.0f / sqrtf(mean + (float)a->eps);
        ((float *)a->rstd.p)[t] = rstd;
        for (int64_t c = 0; c < h; c++) {
            y[c] = x[c] * rstd * w[c];
        }
    }
}

static float dot3(const float *x, const float *y, const float *w, int64_t n) {
    struct group sum = group_dup(0);
    for (int64_t c = 0; c < n; c += TD_GROUP) {
        struct group a = load_group(x + c, n - c), b = load_group(y + c, n - c),
                     d = load_group(w + c, n - c);
        for (int i = 0; i < TD_GROUP_VECS; i++) {
            sum.v[i] = fma_v(a.v[i] * d.v[i], b.v[i], sum.v[i]);
        }
    }
    return fold_add(&sum);
}

static void kernel_rmsnorm_bwd_dx(const void *args, int64_t lo, int64_t hi) {
    const struct td_rmsnorm_bwd_args *a = args;
    int64_t h = a->x.cols;
    const float *w = a->w.p;
    bool acc = a->acc;
    for (int64_t t = lo; t < hi; t++) {
        const float *x = row_of(&a->x, t), *dy = row_of(&a->dy, t);
        float *dx = row_of(&a->dx, t), rstd = ((const float *)a->rstd.p)[t];
        float mean = dot3(dy, x, w, h) * rstd / (float)h;
        vf slope = dup(-(mean * rstd)), by = dup(rstd);
        for (int64_t c = 0; c < h; c += TD_LANES) {
            int64_t n = h - c;
            vf g = load_some(dy + c, n) * load_some(w + c, n);
            g = by * fma_v(load_some(x + c, n), slope, g);
            store_some(dx + c, acc ? load_some(dx + c, n) + g : g, n);
        }
    }
}

static void kernel_rmsnorm_bwd_dw(const void *args, int64_t lo, int64_t hi) {
    const struct td_rmsnorm_bwd_args *a = args;
    float *dw = a->dw.p;
    for (int64_t t = 0; t < a->x.rows; t++) {
        const float *x = row_of(&a->x, t), *dy = row_of(&a->dy, t);
        vf rstd = dup(((const float *)a->rstd.p)[t]);
        for (int64_t c = lo; c < hi; c += TD_LANES) {
            int64_t n = hi - c;
            vf y = load_some(x + c, n) * rstd;
            store_some(dw + c, fma_v(load_some(dy + c, n), y, load_some(dw + c, n)), n);
        }
    }
}

static void kernel_bias_grad(const void *args, int64_t lo, int64_t hi) {
    const struct td_bias_grad_args *a = args;
    float *db = a->db.p;
    for (int64_t t = 0; t < a->dy.rows; t++) {
        const float *dy = row_of(&a->dy, t);
        for (int64_t c = lo; c < hi; c++) {
            db[c] += dy[c];
        }
    }
}

static void kernel_add_rows(const void *args, int64_t lo, int64_t hi) {
    const struct td_add_rows *a = args;
    for (int64_t i = 0; i < a->src.rows; i++) {
        float *to = row_of(&a->dst, a->idx[i]);
        const float *from = row_of(&a->src, i);
        for (int64_t c = lo; c < hi; c++) {
            to[c] += from[c];
        }
    }
}

static void kernel_rope(const void *args, int64_t lo, int64_t hi) {
    const struct td_rope_args *a = args;
    int half = a->head_dim / 2;
    float sign = a->inverse ? -1.0f : 1.0f;
    for (int64_t t = lo; t < hi; t++) {
        const float *cosine = row_of(a->tab, a->pos[t]), *sine = cosine + half;
        for (int head = 0; head < a->heads; head++) {
            float *x = row_of(&a->x, t) + (int64_t)head * a->head_dim, *y = x + half;
            for (int j = 0; j < half; j++) {
                float s = sign * sine[j], u = x[j], v = y[j];
                x[j] = u * cosine[j] - v * s;
                y[j] = v * cosine[j] + u * s;
            }
        }
    }
}

TD_INLINE vf sigmoid(vf x) {
    return dup(1.0f) / (dup(1.0f) + exp_v(-x));
}

static void kernel_swiglu_fwd(const void *args, int64_t lo, int64_t hi) {
    const struct td_swiglu_args *a = args;
    int64_t f = a->y.cols;
    for (int64_t t = lo; t < hi; t++) {
        const float *gate = row_of(&a->gu, t), *up = gate + f;
        float *y = row_of(&a->y, t);
        for (int64_t c = 0; c < f; c += TD_LANES) {
            vf g = load_some(gate + c, f - c);
            store_some(y + c, g * sigmoid(g) * load_some(up + c, f - c), f - c);
        }
    }
}

static void kernel_swiglu_bwd(const void *args, int64_t lo, int64_t hi) {
    const struct td_swiglu_args *a = args;
    int64_t f = a->dy.cols;
    for (int64_t t = lo; t < hi; t++) {
        const float *gate = row_of(&a->gu, t), *up = gate + f, *dy = row_of(&a->dy, t);
        float *dgate = row_of(&a->dgu, t), *dup_ = dgate + f, *y = a->y.p ? row_of(&a->y, t) : NULL;
        for (int64_t c = 0; c < f; c += TD_LANES) {
            vf g = load_some(gate + c, f - c), u = load_some(up + c, f - c);
            vf d = load_some(dy + c, f - c), s = sigmoid(g);
            vf slope = s * fma_v(g, dup(1.0f) - s, dup(1.0f));
            store_some(dgate + c, d * u * slope, f - c);
            store_some(dup_ + c, d * (g * s), f - c);
            if (y) {
                store_some(y + c, g * s * u, f - c);
            }
        }
    }
}

static void kernel_axpby(const void *args, int64_t lo, int64_t hi) {
    const struct td_axpby_args *a = args;
    vf alpha = dup((float)a->alpha), beta = dup((float)a->beta);
    bool overwrite = a->beta == 0;
    int64_t n = a->y.cols;
    for (int64_t r = lo; r < hi; r++) {
        const float *x = row_of(&a->x, r);
        float *y = row_of(&a->y, r);
        for (int64_t c = 0; c < n; c += TD_LANES) {
            vf scaled = alpha * load_some(x + c, n - c);
            store_some(y + c, overwrite ? scaled : scaled + beta * load_some(y + c, n - c), n - c);
        }
    }
}

static void adamw_row(const struct td_adamw_args *a, int64_t r) {
    float *p = row_of(&a->p, r), *m = row_of(&a->m, r), *v = row_of(&a->v, r);
    const float *g = row_of(&a->g, r);
    vf scale = dup((float)a->grad_scale), keep = dup((float)(1 - a->lr * a->weight_decay));
    vf m1 = dup((float)(1 - a->beta1)), b2 = dup((float)a->beta2), m2 = dup((float)(1 - a->beta2));
    vf step = dup((float)(-a->lr / a->bc1)), eps = dup((float)a->eps);
    vf root = dup((float)(1 / sqrt(a->bc2)));
    int64_t n = a->p.cols;
    for (int64_t c = 0; c < n; c += TD_LANES) {
        int64_t left = n - c;
        vf grad = load_some(g + c, left) * scale;
        vf mean = load_some(m + c, left), square = load_some(v + c, left);
        mean = fma_v(grad - mean, m1, mean);
        square = fma_v(grad * grad, m2, square * b2);
        vf slope = mean / fma_v(sqrt_v(square), root, eps);
        store_some(m + c, mean, left);
        store_some(v + c, square, left);
        store_some(p + c, fma_v(slope, step, load_some(p + c, left) * keep), left);
    }
}

static void kernel_adamw(const void *args, int64_t lo, int64_t hi) {
    for (int64_t r = lo; r < hi; r++) {
        adamw_row(args, r);
    }
}

static double kernel_sumsq(const float *g, int64_t n) {
    double sum[TD_GROUP] = {0};
    int64_t c = 0;
    for (; c + TD_GROUP <= n; c += TD_GROUP) {
        for (int i = 0; i < TD_GROUP; i++) {
            sum[i] += (double)g[c + i] * (double)g[c + i];
        }
    }
    for (int i = 0; c + i < n; i++) {
        sum[i] += (double)g[c + i] * (double)g[c + i];
    }
    for (int half = TD_GROUP / 2; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            sum[i] += sum[i + half];
        }
    }
    return sum[0];
}

static uint64_t kernel_digest(const float *x, int64_t n, uint64_t name, uint64_t index) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        sum += td_digest_mix(name, index + (uint64_t)i, bits);
    }
    return sum;
}
