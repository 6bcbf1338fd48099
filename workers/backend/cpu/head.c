// The vocabulary end of the cpu backend: log-probabilities of targets, their gradients, sampling.
// All three read logits by the same row kernel, so that a sampled token's log-prob and its
// recomputation are equal in every bit.
#include "lib/base/check.h"
#include "workers/backend/cpu/cpu_int.h"

static struct td_tensor rows_of(const struct td_tensor *x, int64_t lo, int64_t n) {
    struct td_tensor y = *x;
    y.p = td_cpu_row(x, lo);
    y.rows = n;
    return y;
}

struct logits { // a chunk of rows
    struct td_cpu *cpu;
    const struct td_logprob_args *args;
    const struct td_logprob_bwd_args *bwd; // or NULL
    const void *packed;
    struct td_tensor z;
    int64_t first;
};

// Takes scratch memory and, if need be, packs the weight; false: no memory.
static bool logits_init(struct logits *l) {
    const struct td_logprob_args *a = l->args;
    struct td_backend *be = &l->cpu->base;
    td_assert_op(a->chunk, >=, 1);
    for (int64_t t = 0; t < a->x.rows; t++) {
        td_assert_op(a->target[t], >=, 0);
        td_assert_op(a->target[t], <, a->w.rows);
    }
    int64_t rows = a->chunk < a->x.rows ? a->chunk : a->x.rows;
    float *z =
        td_cpu_scratch(l->cpu, TD_SCRATCH_LOGITS, (size_t)(rows * a->w.rows) * sizeof(float));
    if (!z) {
        return false;
    }
    l->z = (struct td_tensor){
        .p = z, .dtype = TD_F32, .rows = rows, .cols = a->w.rows, .ld = a->w.rows};
    l->packed = a->packed;
    if (!l->packed) {
        void *packed = td_cpu_scratch(l->cpu, TD_SCRATCH_WEIGHT,
                                      td_cpu_gemm_prepared_bytes(be, a->w.rows, a->w.cols));
        if (!packed) {
            return false;
        }
        td_cpu_gemm_prepare(be, &a->w, packed);
        l->packed = packed;
    }
    return true;
}

static void logits_fill(struct logits *l, int64_t first) {
    const struct td_logprob_args *a = l->args;
    l->first = first;
    l->z.rows = a->x.rows - first < a->chunk ? a->x.rows - first : a->chunk;
    td_cpu_gemm(&l->cpu->base, &(struct td_gemm_args){.kind = TD_GEMM_NT,
                                                      .a = rows_of(&a->x, first, l->z.rows),
                                                      .b = a->w,
                                                      .c = l->z,
                                                      .packed = l->packed});
}

static void logprob_rows(const void *args, int64_t lo, int64_t hi) {
    const struct logits *l = args;
    const struct td_logprob_args *a = l->args;
    float inv_temp = (float)a->inv_temp;
    for (int64_t i = lo; i < hi; i++) {
        int64_t t = l->first + i;
        const float *z = td_cpu_row(&l->z, i);
        struct td_row_stats s = l->cpu->kernels->row_stats(z, l->z.cols, inv_temp);
        td_cpu_row(&a->logp, t)[0] = z[a->target[t]] * inv_temp - s.lse;
        td_cpu_row(&a->lse, t)[0] = s.lse;
        if (a->entropy.p) {
            td_cpu_row(&a->entropy, t)[0] = s.entropy;
        }
    }
}

static void dz_rows(const void *args, int64_t lo, int64_t hi) {
    const struct logits *l = args;
    const struct td_logprob_args *a = l->args;
    for (int64_t i = lo; i < hi; i++) {
        int64_t t = l->first + i;
        float *z = td_cpu_row(&l->z, i);
        struct td_dz dz = {.inv_temp = (float)a->inv_temp,
                           .dlogp = td_cpu_row(&l->bwd->dlogp, t)[0],
                           .target = a->target[t]};
        struct td_row_stats s = l->cpu->kernels->row_stats(z, l->z.cols, dz.inv_temp);
        dz.lse = s.lse;
        dz.entropy = s.entropy;
        dz.dentropy = l->bwd->dentropy.p ? td_cpu_row(&l->bwd->dentropy, t)[0] : 0;
        l->cpu->kernels->logprob_dz(z, l->z.cols, &dz);
    }
}

static void over_rows(struct logits *l, td_range_fn fn) {
    td_cpu_ranges(l->cpu, fn, l, (struct td_range){.n = l->z.rows, .grain = 1},
                  l->z.rows * l->z.cols * 8);
}

void td_cpu_logprob_fwd(struct td_backend *be, const struct td_logprob_args *a) {
    struct logits l = {.cpu = td_cpu_of(be), .args = a};
    if (!logits_init(&l)) {
        return;
    }
    for (int64_t first = 0; first < a->x.rows; first += a->chunk) {
        logits_fill(&l, first);
        over_rows(&l, logprob_rows);
    }
}

void td_cpu_logprob_bwd(struct td_backend *be, const struct td_logprob_bwd_args *a) {
    struct logits l = {.cpu = td_cpu_of(be), .args = &a->fwd, .bwd = a};
    if (!logits_init(&l)) {
        return;
    }
    for (int64_t first = 0; first < a->fwd.x.rows; first += a->fwd.chunk) {
        logits_fill(&l, first);
        over_rows(&l, dz_rows);
        td_cpu_gemm(be, &(struct td_gemm_args){.kind = TD_GEMM_NN,
                                               .a = l.z,
                                               .b = a->fwd.w,
                                               .c = rows_of(&a->dx, first, l.z.rows)});
        td_cpu_gemm(be, &(struct td_gemm_args){.kind = TD_GEMM_TN,
                                               .a = l.z,
                                               .b = rows_of(&a->fwd.x, first, l.z.rows),
                                               .c = a->dw,
                                               .acc = true});
    }
}

struct draws {
    struct td_cpu *cpu;
    const struct td_sample_args *args;
    float *scratch;
};

static void sample_part(void *arg, int part, int parts) {
    const struct draws *d = arg;
    const struct td_sample_args *a = d->args;
    int64_t vocab = a->z.cols;
    struct td_share rows = td_pool_share(a->z.rows, 1, part, parts);
    for (int64_t t = rows.lo; t < rows.hi; t++) {
        const float *z = td_cpu_row(&a->z, t);
        int32_t id = d->cpu->kernels->draw(
            &(struct td_draw){.z = z,
                              .allowed = a->allowed,
                              .vocab = vocab,
                              .row = &a->row[t],
                              .scratch = d->scratch + part * 2 * td_draw_stride(vocab)});
        td_assert_op(id, >=, 0);
        float inv_temp = a->row[t].inv_temp > 0 ? a->row[t].inv_temp : 1;
        a->id[t] = id;
        a->logp[t] = z[id] * inv_temp - d->cpu->kernels->row_stats(z, vocab, inv_temp).lse;
    }
}

void td_cpu_sample(struct td_backend *be, const struct td_sample_args *a) {
    struct draws d = {.cpu = td_cpu_of(be), .args = a};
    int parts = td_cpu_parts(d.cpu, a->z.rows * a->z.cols * 16);
    d.scratch = td_cpu_scratch(d.cpu, TD_SCRATCH_PARTS,
                               (size_t)(parts * 2 * td_draw_stride(a->z.cols)) * sizeof(float));
    if (d.scratch) {
        td_cpu_run(d.cpu, parts, sample_part, &d);
    }
}
