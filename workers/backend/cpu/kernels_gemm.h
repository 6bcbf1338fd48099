// Matrix product on packed panels: included by the isa_*.c files. One chain of fused multiply-adds
// over k per output, whatever the tile it falls into.
#include "workers/backend/cpu/lanes.h"

#if TD_LANES == 16
enum { PANEL_VECS = 2, ROWS_MAX = 12 }; // 24 sums, 2 vectors of B, 1 of A in 32 registers
#elif TD_LANES == 8
enum { PANEL_VECS = 2, ROWS_MAX = 6 }; // 12, 2, 1 in 16
#else
enum { PANEL_VECS = 2, ROWS_MAX = 4 };
#endif
enum { PANEL = PANEL_VECS * TD_LANES, WIDE = 4 * PANEL_VECS };

// Stores vector v of row r, with the bias of its columns.
TD_INLINE void put(const struct td_gemm_block *g, int r, int v, int64_t width, vf sum) {
    int64_t at = (int64_t)v * TD_LANES, left = width - at;
    float *c = g->c + r * g->ldc + at;
    if (left <= 0) {
        return;
    }
    if (g->bias) {
        sum += load_some(g->bias + at, left);
    }
    store_some(c, sum, left);
}

// rows × panels is constant once inlined; width columns of the last panel are real.
TD_INLINE void tile(const struct td_gemm_block *g, int rows, int panels, int64_t width) {
    vf sum[ROWS_MAX][WIDE];
    int vecs = panels * PANEL_VECS;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            int64_t left = width - (int64_t)v * TD_LANES;
            const float *c = g->c + r * g->ldc + v * TD_LANES;
            sum[r][v] = g->acc && left > 0 ? load_some(c, left) : dup(0);
        }
    }
    const float *a = g->a, *b = g->b;
    for (int64_t k = 0; k < g->k; k++, a += g->a_col, b += PANEL) {
        vf x[WIDE];
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            x[v] = load(b + v / PANEL_VECS * g->b_step + v % PANEL_VECS * TD_LANES);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf y = dup(a[r * g->a_row]);
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++) {
                sum[r][v] = fma_v(y, x[v], sum[r][v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            put(g, r, v, width, sum[r][v]);
        }
    }
}

#define TILE(n, p)                                                                                 \
    case n:                                                                                        \
        tile(g, n, p, width);                                                                      \
        return;

// At most ROWS_MAX rows, one panel.
static __attribute__((noinline)) void tile_rows(const struct td_gemm_block *g, int64_t width) {
    switch (g->m) {
        TILE(1, 1)
        TILE(2, 1)
        TILE(3, 1)
        TILE(4, 1)
#if TD_LANES > 4
        TILE(5, 1)
        TILE(6, 1)
#endif
#if TD_LANES > 8
        TILE(7, 1)
        TILE(8, 1)
        TILE(9, 1)
        TILE(10, 1)
        TILE(11, 1)
        TILE(12, 1)
#endif
    }
}

// Few rows: several panels at once keep the multiply-add units busy.
static int panels_at_once(int64_t rows) {
#if TD_LANES == 16
    return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
#elif TD_LANES == 8
    return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#else
    return rows > 0 ? 1 : 0;
#endif
}

static __attribute__((noinline)) void tile_wide(const struct td_gemm_block *g, int64_t width) {
#if TD_LANES > 4
    switch (g->m) {
        TILE(1, 4)
#if TD_LANES == 16
        TILE(2, 4)
        TILE(3, 4)
        TILE(4, 2)
        TILE(5, 2)
        TILE(6, 2)
#else
        TILE(2, 2)
        TILE(3, 2)
#endif
    }
#else
    tile_rows(g, width);
#endif
}

static void kernel_gemm(const struct td_gemm_block *g) {
    int64_t tiles = (g->m + ROWS_MAX - 1) / ROWS_MAX;
    int wide = panels_at_once(g->m);
    for (int64_t j = 0; j < g->n;) {
        bool is_wide = wide > 1 && g->n - j > (wide - 1) * PANEL;
        int64_t step = is_wide ? wide * PANEL : PANEL;
        int64_t width = g->n - j < step ? g->n - j : step;
        for (int64_t t = 0; t < tiles; t++) { // tiles of nearly equal height
            int64_t lo = g->m * t / tiles, hi = g->m * (t + 1) / tiles;
            struct td_gemm_block part = *g;
            part.a += lo * g->a_row;
            part.b += j / PANEL * g->b_step;
            part.c += lo * g->ldc + j;
            part.bias = g->bias ? g->bias + j : NULL;
            part.m = hi - lo;
            (is_wide ? tile_wide : tile_rows)(&part, width);
        }
        j += step;
    }
}

static void kernel_pack(const struct td_pack_block *p) {
    for (int64_t j = 0; j < p->n; j += p->panel) {
        const float *from = p->from + j * p->col;
        float *to = p->to + j / p->panel * p->step;
        int64_t width = p->n - j < p->panel ? p->n - j : p->panel;
        if (width < p->panel) {
            memset(to, 0, (size_t)(p->k * p->panel) * sizeof *to);
        }
        if (p->col == 1) {
            for (int64_t k = 0; k < p->k; k++) {
                memcpy(to + k * p->panel, from + k * p->row, (size_t)width * sizeof *to);
            }
            continue;
        }
        for (int64_t k = 0; k < p->k; k++) {
            for (int64_t c = 0; c < width; c++) {
                to[k * p->panel + c] = from[k * p->row + c * p->col];
            }
        }
    }
}
