// The cpu backend: its table, and the ops that are a range of rows or columns per thread. fp32;
// see kernels.h for what computes and lanes.h for why bits do not depend on the machine.
#include "workers/backend/cpu/cpu_int.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

enum { WORK_MIN = 1 << 15 }; // below, waking threads costs more than it gives

void *td_cpu_scratch(struct td_cpu *cpu, enum td_scratch which, size_t bytes) {
    if (bytes > cpu->scratch[which].bytes) {
        td_free(cpu->scratch[which].p);
        cpu->scratch[which].p = td_try_alloc_aligned(bytes);
        cpu->scratch[which].bytes = cpu->scratch[which].p ? bytes : 0;
        if (!cpu->scratch[which].p && !cpu->no_memory) {
            cpu->no_memory = bytes;
        }
    }
    return cpu->scratch[which].p;
}

int td_cpu_parts(const struct td_cpu *cpu, int64_t work) {
    return work < WORK_MIN ? 1 : td_pool_threads(cpu->pool);
}

void td_cpu_run(struct td_cpu *cpu, int parts, td_pool_fn fn, void *arg) {
    if (parts == 1) {
        fn(arg, 0, 1);
    } else {
        td_pool_run(cpu->pool, fn, arg);
    }
}

struct ranges {
    td_range_fn fn;
    const void *args;
    struct td_range range;
};

static void ranges_part(void *arg, int part, int parts) {
    const struct ranges *r = arg;
    struct td_share share = td_pool_share(r->range.n, r->range.grain, part, parts);
    if (share.lo < share.hi) {
        r->fn(r->args, share.lo, share.hi);
    }
}

void td_cpu_ranges(struct td_cpu *cpu, td_range_fn fn, const void *args, struct td_range range,
                   int64_t work) {
    struct ranges r = {.fn = fn, .args = args, .range = range};
    td_cpu_run(cpu, td_cpu_parts(cpu, work), ranges_part, &r);
}

// By rows; a share holds at least one. cost: of one element, in multiply-adds.
static void by_rows(struct td_backend *be, td_range_fn fn, const void *args,
                    const struct td_tensor *x, int cost) {
    td_cpu_ranges(td_cpu_of(be), fn, args, (struct td_range){.n = x->rows, .grain = 1},
                  x->rows * x->cols * cost);
}

// By columns, in whole cache lines.
static void by_columns(struct td_backend *be, td_range_fn fn, const void *args,
                       const struct td_tensor *x, int cost) {
    td_cpu_ranges(td_cpu_of(be), fn, args, (struct td_range){.n = x->cols, .grain = 16},
                  x->rows * x->cols * cost);
}

static void *cpu_alloc(struct td_backend *be, size_t bytes) {
    (void)be;
    return td_try_alloc_aligned(bytes);
}

static void cpu_release(struct td_backend *be, void *p) {
    (void)be;
    td_free(p);
}

static void cpu_copy(struct td_backend *be, const struct td_copy_args *a) {
    (void)be;
    if (a->bytes) {
        memmove(a->dst, a->src, a->bytes);
    }
}

static void fill_rows(const void *args, int64_t lo, int64_t hi) {
    const struct td_fill_args *a = args;
    for (int64_t r = lo; r < hi; r++) {
        float *y = td_cpu_row(&a->y, r);
        for (int64_t c = 0; c < a->y.cols; c++) {
            y[c] = (float)a->value;
        }
    }
}

static void cpu_fill(struct td_backend *be, const struct td_fill_args *a) {
    by_rows(be, fill_rows, a, &a->y, 1);
}

static void gather_rows(const void *args, int64_t lo, int64_t hi) {
    const struct td_rows_args *a = args;
    for (int64_t i = lo; i < hi; i++) {
        memcpy(td_cpu_row(&a->y, i), td_cpu_row(&a->x, a->idx[i]),
               (size_t)a->y.cols * sizeof(float));
    }
}

static void check_rows(const int32_t *idx, int64_t n, int64_t rows) {
    for (int64_t i = 0; i < n; i++) {
        td_assert_op(idx[i], >=, 0);
        td_assert_op(idx[i], <, rows);
    }
}

static void cpu_rows_gather(struct td_backend *be, const struct td_rows_args *a) {
    check_rows(a->idx, a->y.rows, a->x.rows);
    by_rows(be, gather_rows, a, &a->y, 1);
}

static void cpu_rows_scatter_add(struct td_backend *be, const struct td_rows_args *a) {
    check_rows(a->idx, a->y.rows, a->x.rows);
    struct td_add_rows add = {.dst = a->x, .src = a->y, .idx = a->idx};
    by_columns(be, td_cpu_of(be)->kernels->add_rows, &add, &a->y, 1);
}

static void cpu_embed_fwd(struct td_backend *be, const struct td_embed_args *a) {
    cpu_rows_gather(be, &(struct td_rows_args){.x = a->w, .y = a->y, .idx = a->ids});
}

static void cpu_embed_bwd(struct td_backend *be, const struct td_embed_args *a) {
    cpu_rows_scatter_add(be, &(struct td_rows_args){.x = a->w, .y = a->y, .idx = a->ids});
}

static void cpu_rmsnorm_fwd(struct td_backend *be, const struct td_rmsnorm_args *a) {
    by_rows(be, td_cpu_of(be)->kernels->rmsnorm_fwd, a, &a->x, 2);
}

static void cpu_rmsnorm_bwd(struct td_backend *be, const struct td_rmsnorm_bwd_args *a) {
    by_columns(be, td_cpu_of(be)->kernels->rmsnorm_bwd_dw, a, &a->x, 2); // before dx may be dy
    by_rows(be, td_cpu_of(be)->kernels->rmsnorm_bwd_dx, a, &a->x, 4);
}

static void cpu_bias_grad(struct td_backend *be, const struct td_bias_grad_args *a) {
    by_columns(be, td_cpu_of(be)->kernels->bias_grad, a, &a->dy, 1);
}

static void cpu_rope(struct td_backend *be, const struct td_rope_args *a) {
    check_rows(a->pos, a->x.rows, a->tab->rows);
    td_assert_op(a->head_dim % 2, ==, 0);
    by_rows(be, td_cpu_of(be)->kernels->rope, a, &a->x, 2);
}

static void cpu_swiglu_fwd(struct td_backend *be, const struct td_swiglu_args *a) {
    by_rows(be, td_cpu_of(be)->kernels->swiglu_fwd, a, &a->y, 8);
}

static void cpu_swiglu_bwd(struct td_backend *be, const struct td_swiglu_args *a) {
    by_rows(be, td_cpu_of(be)->kernels->swiglu_bwd, a, &a->dy, 12);
}

static void cpu_axpby(struct td_backend *be, const struct td_axpby_args *a) {
    by_rows(be, td_cpu_of(be)->kernels->axpby, a, &a->y, 2);
}

enum { SLICE = 4096 }; // elements a step of the flat ops below

static int64_t slices_of(const struct td_tensor *x) {
    return (x->cols + SLICE - 1) / SLICE * x->rows;
}

// Slice i: *at is its first element's place in the tensor as a flat array; rows are not joined.
static struct td_share slice_of(const struct td_tensor *x, int64_t i, int64_t *row) {
    int64_t per_row = (x->cols + SLICE - 1) / SLICE, lo = i % per_row * SLICE;
    *row = i / per_row;
    return (struct td_share){.lo = lo, .hi = x->cols - lo < SLICE ? x->cols : lo + SLICE};
}

static struct td_tensor cut(const struct td_tensor *x, int64_t row, struct td_share cols) {
    struct td_tensor y = *x;
    y.p = td_cpu_row(x, row) + cols.lo;
    y.rows = 1;
    y.cols = cols.hi - cols.lo;
    return y;
}

struct flat { // an op over slices
    struct td_cpu *cpu;
    const void *args;
    void *sums; // one a slice, or NULL
};

static void adamw_slices(const void *args, int64_t lo, int64_t hi) {
    const struct flat *f = args;
    const struct td_adamw_args *a = f->args;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row;
        struct td_share cols = slice_of(&a->p, i, &row);
        struct td_adamw_args part = *a;
        part.p = cut(&a->p, row, cols);
        part.g = cut(&a->g, row, cols);
        part.m = cut(&a->m, row, cols);
        part.v = cut(&a->v, row, cols);
        f->cpu->kernels->adamw(&part, 0, 1);
    }
}

static void cpu_adamw(struct td_backend *be, const struct td_adamw_args *a) {
    struct flat f = {.cpu = td_cpu_of(be), .args = a};
    td_cpu_ranges(f.cpu, adamw_slices, &f, (struct td_range){.n = slices_of(&a->p), .grain = 1},
                  a->p.rows * a->p.cols * 8);
}

static void sumsq_slices(const void *args, int64_t lo, int64_t hi) {
    const struct flat *f = args;
    const struct td_sumsq_args *a = f->args;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row;
        struct td_share cols = slice_of(&a->g, i, &row);
        ((double *)f->sums)[i] =
            f->cpu->kernels->sumsq(td_cpu_row(&a->g, row) + cols.lo, cols.hi - cols.lo);
    }
}

static void cpu_sumsq(struct td_backend *be, const struct td_sumsq_args *a) {
    struct flat f = {.cpu = td_cpu_of(be), .args = a};
    int64_t n = slices_of(&a->g);
    double *sums = td_cpu_scratch(f.cpu, TD_SCRATCH_SUMS, (size_t)n * sizeof *sums);
    if (!sums) {
        return;
    }
    f.sums = sums;
    td_cpu_ranges(f.cpu, sumsq_slices, &f, (struct td_range){.n = n, .grain = 1},
                  a->g.rows * a->g.cols);
    for (int64_t i = 0; i < n; i++) {
        *a->out += sums[i];
    }
}

static void digest_slices(const void *args, int64_t lo, int64_t hi) {
    const struct flat *f = args;
    const struct td_digest_args *a = f->args;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row;
        struct td_share cols = slice_of(&a->x, i, &row);
        uint64_t index = a->first_index + (uint64_t)(row * a->x.cols + cols.lo);
        ((uint64_t *)f->sums)[i] = f->cpu->kernels->digest(td_cpu_row(&a->x, row) + cols.lo,
                                                           cols.hi - cols.lo, a->name, index);
    }
}

static void cpu_digest(struct td_backend *be, const struct td_digest_args *a) {
    struct flat f = {.cpu = td_cpu_of(be), .args = a};
    int64_t n = slices_of(&a->x);
    uint64_t *sums = td_cpu_scratch(f.cpu, TD_SCRATCH_SUMS, (size_t)n * sizeof *sums);
    if (!sums) {
        return;
    }
    f.sums = sums;
    td_cpu_ranges(f.cpu, digest_slices, &f, (struct td_range){.n = n, .grain = 1},
                  a->x.rows * a->x.cols * 4);
    for (int64_t i = 0; i < n; i++) {
        *a->out += sums[i];
    }
}

static enum td_rc cpu_check(struct td_backend *be, struct td_err *err) {
    struct td_cpu *cpu = td_cpu_of(be);
    size_t bytes = cpu->no_memory;
    cpu->no_memory = 0;
    return bytes ? td_fail(err, TD_ENOMEM, "cpu backend: no memory for %zu bytes of scratch", bytes)
                 : TD_OK;
}

static void cpu_free(struct td_backend *be) {
    struct td_cpu *cpu = td_cpu_of(be);
    td_pool_free(cpu->pool);
    for (int i = 0; i < TD_SCRATCH_COUNT; i++) {
        td_free(cpu->scratch[i].p);
    }
    td_free(cpu);
}

static const struct td_backend_ops cpu_ops = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .release = cpu_release,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .embed_fwd = cpu_embed_fwd,
    .embed_bwd = cpu_embed_bwd,
    .rmsnorm_fwd = cpu_rmsnorm_fwd,
    .rmsnorm_bwd = cpu_rmsnorm_bwd,
    .gemm_prepared_bytes = td_cpu_gemm_prepared_bytes,
    .gemm_prepare = td_cpu_gemm_prepare,
    .gemm = td_cpu_gemm,
    .bias_grad = cpu_bias_grad,
    .rope = cpu_rope,
    .attn_fwd = td_cpu_attn_fwd,
    .attn_bwd = td_cpu_attn_bwd,
    .kv_store = td_cpu_kv_store,
    .attn_paged = td_cpu_attn_paged,
    .swiglu_fwd = cpu_swiglu_fwd,
    .swiglu_bwd = cpu_swiglu_bwd,
    .axpby = cpu_axpby,
    .rows_gather = cpu_rows_gather,
    .rows_scatter_add = cpu_rows_scatter_add,
    .logprob_fwd = td_cpu_logprob_fwd,
    .logprob_bwd = td_cpu_logprob_bwd,
    .sample = td_cpu_sample,
    .sumsq = cpu_sumsq,
    .adamw = cpu_adamw,
    .digest = cpu_digest,
    .check = cpu_check,
    .free = cpu_free,
};

static const struct td_kernels *pick(const char *isa) {
    bool avx2 = false, avx512 = false;
#if defined(__x86_64__)
    avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#endif
    const struct td_kernels *all[] = {avx512 ? td_kernels_avx512() : NULL,
                                      avx2 ? td_kernels_avx2() : NULL, td_kernels_scalar()};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] && (!isa || strcmp(isa, all[i]->name) == 0)) {
            return all[i];
        }
    }
    return NULL;
}

enum td_rc td_backend_cpu_new(int threads, const char *isa, struct td_backend **out,
                              struct td_err *err) {
    const struct td_kernels *kernels = pick(isa);
    if (!kernels) {
        return td_fail(err, TD_EUNSUPPORTED,
                       "instruction set \"%s\": this processor or build has it not; known are "
                       "scalar, avx2, avx512",
                       isa);
    }
    struct td_pool *pool = NULL;
    enum td_rc rc = td_pool_new(threads, &pool, err);
    if (rc) {
        return td_err_in(err, "cpu backend");
    }
    struct td_cpu *cpu = td_alloc(sizeof *cpu);
    cpu->base = (struct td_backend){.ops = &cpu_ops, .dtype = TD_F32};
    cpu->kernels = kernels;
    cpu->pool = pool;
    *out = &cpu->base;
    return TD_OK;
}
