// Cutting a matrix product: rows and panels of columns over threads, k into blocks that fit the
// caches. B is read from panels: prepared ones, or packed block by block into scratch memory. A
// block of k continues the chains of the one before from C, so no cut changes a bit.
#include <string.h>

#include "lib/base/check.h"
#include "workers/backend/cpu/cpu_int.h"

enum { BLOCK_K = 384, BLOCK_ROWS = 240, BLOCK_COLS = 1024, DIRECT_ROWS = 24 };

struct job {
    struct td_cpu *cpu;
    const struct td_gemm_args *args;
    int64_t m, n, k;
    int rows_cut, cols_cut; // the grid of threads
    float *scratch;         // per part
    size_t scratch_floats;
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

// Panels of B(k0 .. k0+k, j .. j+n) in `to`.
static void pack_b(const struct job *g, struct td_gemm_block *b, float *to, int64_t k0, int64_t j) {
    const struct td_tensor *x = &g->args->b;
    bool transposed = g->args->kind == TD_GEMM_NT;
    b->b = to;
    b->b_row = g->cpu->kernels->panel;
    b->b_step = b->k * b->b_row;
    g->cpu->kernels->pack(
        &(struct td_pack_block){.from = transposed ? td_cpu_row(x, j) + k0 : td_cpu_row(x, k0) + j,
                                .to = to,
                                .row = transposed ? 1 : x->ld,
                                .col = transposed ? x->ld : 1,
                                .step = b->b_step,
                                .k = b->k,
                                .n = b->n});
}

// Rows whose distance is a multiple of 2 KiB fight for the same few cache lines.
static bool rows_collide(const struct job *g) {
    return g->args->kind != TD_GEMM_TN && g->args->a.ld % 512 == 0 && g->m > 8;
}

// Gives the block its A: as it lies, in tiles, or copied out of the way of its own rows.
static void set_a(const struct job *g, struct td_gemm_block *b, int64_t k0, int64_t i,
                  float *scratch) {
    const struct td_tensor *x = &g->args->a;
    if (g->args->kind == TD_GEMM_TN) {
        g->cpu->kernels->pack_tiles(&(struct td_pack_block){.from = td_cpu_row(x, k0) + i,
                                                            .to = scratch,
                                                            .row = x->ld,
                                                            .col = 1,
                                                            .k = b->k,
                                                            .n = b->m});
        b->a = scratch;
        b->a_tiled = true;
    } else if (rows_collide(g)) {
        b->a = scratch;
        b->a_row = BLOCK_K + 16;
        for (int64_t r = 0; r < b->m; r++) {
            memcpy(scratch + r * b->a_row, td_cpu_row(x, i + r) + k0,
                   (size_t)b->k * sizeof *scratch);
        }
    } else {
        b->a = td_cpu_row(x, i) + k0;
        b->a_row = x->ld;
    }
}

// One block of k and columns for the rows of a share.
static void block(const struct job *g, struct td_gemm_block b, int64_t k0, struct td_share rows,
                  float *scratch) {
    for (int64_t i = rows.lo; i < rows.hi; i += BLOCK_ROWS) {
        struct td_gemm_block part = b;
        part.m = least(BLOCK_ROWS, rows.hi - i);
        part.c = b.c + i * b.ldc;
        set_a(g, &part, k0, i, scratch);
        g->cpu->kernels->gemm(&part);
    }
}

// B as it lies, for few rows, where packing would cost more than it saves; but for the last
// columns.
static void block_direct(const struct job *g, struct td_gemm_block b, int64_t k0,
                         struct td_share rows, float *own) {
    float *own_a = own + BLOCK_K * BLOCK_COLS;
    int64_t panel = g->cpu->kernels->panel, whole = b.n / panel * panel;
    int64_t j = b.c - (const float *)g->args->c.p;
    struct td_gemm_block part = b;
    part.b = td_cpu_row(&g->args->b, k0) + j;
    part.b_row = g->args->b.ld;
    part.b_step = panel;
    part.n = whole;
    if (whole) {
        block(g, part, k0, rows, own_a);
    }
    if (whole < b.n) {
        part.c += whole;
        part.n = b.n - whole;
        part.bias = b.bias ? b.bias + whole : NULL;
        pack_b(g, &part, own, k0, j + whole);
        block(g, part, k0, rows, own_a);
    }
}

static void gemm_part(void *arg, int index, int parts) {
    const struct job *g = arg;
    if (index >= g->rows_cut * g->cols_cut) {
        return;
    }
    (void)parts;
    const struct td_gemm_args *a = g->args;
    int panel = g->cpu->kernels->panel;
    struct td_share rows = td_pool_share(g->m, 1, index / g->cols_cut, g->rows_cut);
    struct td_share cols = td_pool_share(g->n, panel, index % g->cols_cut, g->cols_cut);
    float *own = g->scratch ? g->scratch + (size_t)index * g->scratch_floats : NULL;
    float *own_a = own ? own + BLOCK_K * BLOCK_COLS : NULL;
    for (int64_t j = cols.lo; j < cols.hi; j += BLOCK_COLS) {
        int64_t k0 = 0;
        do { // also once for k = 0
            struct td_gemm_block b = {.c = (float *)a->c.p + j,
                                      .ldc = a->c.ld,
                                      .n = least(BLOCK_COLS, cols.hi - j),
                                      .k = least(BLOCK_K, g->k - k0),
                                      .acc = a->acc || k0 > 0};
            if (a->bias.p && k0 + b.k == g->k) {
                b.bias = (const float *)a->bias.p + j;
            }
            if (a->packed) {
                b.b = (const float *)a->packed + j * g->k + k0 * panel;
                b.b_row = panel;
                b.b_step = g->k * panel;
                block(g, b, k0, rows, own_a);
            } else if (a->kind == TD_GEMM_NN && g->m <= DIRECT_ROWS) {
                block_direct(g, b, k0, rows, own);
            } else {
                pack_b(g, &b, own, k0, j);
                block(g, b, k0, rows, own_a);
            }
            k0 += b.k;
        } while (k0 < g->k);
    }
}

// The grid with the smallest largest share; columns are cut first, since that packs B once.
static void cut(struct job *g, int parts) {
    int64_t panels = (g->n + g->cpu->kernels->panel - 1) / g->cpu->kernels->panel, best = INT64_MAX;
    for (int rows_cut = 1; rows_cut <= parts; rows_cut++) {
        int cols_cut = parts / rows_cut;
        int64_t share = ((g->m + rows_cut - 1) / rows_cut) * ((panels + cols_cut - 1) / cols_cut);
        if (share < best) {
            best = share;
            g->rows_cut = rows_cut;
            g->cols_cut = cols_cut;
        }
    }
}

void td_cpu_gemm(struct td_backend *be, const struct td_gemm_args *a) {
    struct td_cpu *cpu = td_cpu_of(be);
    struct job g = {.cpu = cpu,
                    .args = a,
                    .m = a->c.rows,
                    .n = a->c.cols,
                    .k = a->kind == TD_GEMM_TN ? a->a.rows : a->a.cols};
    td_assert(!(a->acc && a->bias.p) && (!a->packed || a->kind == TD_GEMM_NT));
    td_assert_op(g.m, ==, a->kind == TD_GEMM_TN ? a->a.cols : a->a.rows);
    td_assert_op(g.n, ==, a->kind == TD_GEMM_NT ? a->b.rows : a->b.cols);
    td_assert_op(g.k, ==, a->kind == TD_GEMM_NT ? a->b.cols : a->b.rows);
    if (!g.m || !g.n) {
        return;
    }
    int parts = td_cpu_parts(cpu, g.m * g.n * (g.k + 1));
    cut(&g, parts);
    if (!a->packed || rows_collide(&g)) {
        g.scratch_floats = BLOCK_K * BLOCK_COLS + (BLOCK_K + 16) * BLOCK_ROWS;
        g.scratch =
            td_cpu_scratch(cpu, TD_SCRATCH_PARTS, (size_t)parts * g.scratch_floats * sizeof(float));
        if (!g.scratch) {
            return;
        }
    }
    td_cpu_run(cpu, parts, gemm_part, &g);
}

size_t td_cpu_gemm_prepared_bytes(struct td_backend *be, int64_t n, int64_t k) {
    return (size_t)(round_up(n, td_cpu_of(be)->kernels->panel) * k) * sizeof(float);
}

struct prepare {
    struct td_cpu *cpu;
    const struct td_tensor *w;
    float *packed;
};

static void prepare_part(const void *args, int64_t lo, int64_t hi) {
    const struct prepare *p = args;
    int panel = p->cpu->kernels->panel;
    int64_t k = p->w->cols;
    p->cpu->kernels->pack(&(struct td_pack_block){.from = td_cpu_row(p->w, lo),
                                                  .to = p->packed + lo * k,
                                                  .row = 1,
                                                  .col = p->w->ld,
                                                  .step = k * panel,
                                                  .k = k,
                                                  .n = hi - lo});
}

void td_cpu_gemm_prepare(struct td_backend *be, const struct td_tensor *w, void *packed) {
    struct td_cpu *cpu = td_cpu_of(be);
    struct prepare p = {.cpu = cpu, .w = w, .packed = packed};
    td_cpu_ranges(cpu, prepare_part, &p,
                  (struct td_range){.n = w->rows, .grain = cpu->kernels->panel}, w->rows * w->cols);
}
