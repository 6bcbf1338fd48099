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
TD_INLINE void tile(const struct td_gemm_block *g, int rows, int panels, int64_t width,
                    bool tiled) {
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
    int64_t a_row = tiled ? 1 : g->a_row, a_col = tiled ? rows : 1;
#pragma GCC unroll 2
    for (int64_t k = 0; k < g->k; k++, a += a_col, b += g->b_row) {
        vf x[WIDE];
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            x[v] = load(b + v / PANEL_VECS * g->b_step + v % PANEL_VECS * TD_LANES);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf y = dup(a[r * a_row]);
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
        if (g->a_tiled) {                                                                          \
            tile(g, n, p, width, true);                                                            \
        } else {                                                                                   \
            tile(g, n, p, width, false);                                                           \
        }                                                                                          \
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

struct tiles { // m rows cut into tiles of nearly equal height
    int64_t m, count;
};

static struct tiles tiles_of(int64_t m) {
    return (struct tiles){.m = m, .count = (m + ROWS_MAX - 1) / ROWS_MAX};
}

static int64_t tile_start(struct tiles t, int64_t i) {
    return t.m * i / t.count;
}

// The rows of C that come next, so that they are here when their chains start.
static void prefetch_rows(const float *c, int64_t ldc, int64_t rows, int64_t width) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < width; i += 16) {
            __builtin_prefetch(c + r * ldc + i, 1);
        }
    }
}

static void one_tile(const struct td_gemm_block *g, struct tiles tiles, int64_t t, int64_t j,
                     int64_t step) {
    int64_t lo = tile_start(tiles, t), rows = tile_start(tiles, t + 1) - lo;
    int64_t width = g->n - j < step ? g->n - j : step;
    struct td_gemm_block part = *g;
    part.a += lo * (g->a_tiled ? g->k : g->a_row);
    part.b += j / PANEL * g->b_step;
    part.c += lo * g->ldc + j;
    part.bias = g->bias ? g->bias + j : NULL;
    part.m = rows;
    if (g->acc && t + 1 < tiles.count) {
        prefetch_rows(part.c + rows * g->ldc, g->ldc, tile_start(tiles, t + 2) - lo - rows, width);
    }
    (step > PANEL ? tile_wide : tile_rows)(&part, width);
}

enum { SHORT_CHAIN = 64 }; // below, C costs more than A and B: it is walked row by row

static void kernel_gemm(const struct td_gemm_block *g) {
    struct tiles tiles = tiles_of(g->m);
    int wide = panels_at_once(g->m);
    bool by_rows = g->k < SHORT_CHAIN;
    for (int64_t outer = 0; outer < (by_rows ? tiles.count : 1); outer++) {
        for (int64_t j = 0; j < g->n;) {
            int64_t step = g->n - j > (wide - 1) * PANEL ? wide * PANEL : PANEL;
            for (int64_t t = 0; t < (by_rows ? 1 : tiles.count); t++) {
                one_tile(g, tiles, outer + t, j, step);
            }
            j += step;
        }
    }
}

#if TD_LANES == 16
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif TD_LANES == 8
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ZIP_LOW 0, 4, 1, 5
#define ZIP_HIGH 2, 6, 3, 7
#endif

// Transposes a square of lanes: log2(TD_LANES) perfect shuffles of its rows.
TD_INLINE void transpose(const float *from, int64_t from_ld, float *to, int64_t to_ld) {
    vf x[TD_LANES], y[TD_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < TD_LANES; i++) {
        x[i] = load(from + i * from_ld);
    }
#pragma GCC unroll 4
    for (int round = 1; round < TD_LANES; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < TD_LANES / 2; i++) {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + TD_LANES / 2], ZIP_LOW);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + TD_LANES / 2], ZIP_HIGH);
        }
#pragma GCC unroll 16
        for (int i = 0; i < TD_LANES; i++) {
            x[i] = y[i];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < TD_LANES; i++) {
        store(to + i * to_ld, x[i]);
    }
}

// Columns of the panel are rows of `from`.
static void pack_transposed(const struct td_pack_block *p, const float *from, float *to,
                            int64_t width) {
    for (int64_t c = 0; c < width; c += TD_LANES) {
        int64_t k = 0, columns = width - c < TD_LANES ? width - c : TD_LANES;
        for (; columns == TD_LANES && k + TD_LANES <= p->k; k += TD_LANES) {
            transpose(from + c * p->col + k, p->col, to + k * PANEL + c, PANEL);
        }
        for (; k < p->k; k++) {
            for (int64_t i = c; i < c + columns; i++) {
                to[k * PANEL + i] = from[k + i * p->col];
            }
        }
    }
}

static void kernel_pack(const struct td_pack_block *p) {
    for (int64_t j = 0; j < p->n; j += PANEL) {
        const float *from = p->from + j * p->col;
        float *to = p->to + j / PANEL * p->step;
        int64_t width = p->n - j < PANEL ? p->n - j : PANEL;
        if (width < PANEL) {
            memset(to, 0, (size_t)(p->k * PANEL) * sizeof *to);
        }
        if (p->col != 1) {
            pack_transposed(p, from, to, width);
        } else if (width == PANEL) {
            for (int64_t k = 0; k < p->k; k++) {
                memcpy(to + k * PANEL, from + k * p->row, PANEL * sizeof *to);
            }
        } else {
            for (int64_t k = 0; k < p->k; k++) {
                memcpy(to + k * PANEL, from + k * p->row, (size_t)width * sizeof *to);
            }
        }
    }
}

// A few k at a time for all tiles: each cache line of `from` is read once.
static void kernel_pack_tiles(const struct td_pack_block *p) {
    enum { STEP = 16 };
    struct tiles tiles = tiles_of(p->n);
    for (int64_t k0 = 0; k0 < p->k; k0 += STEP) {
        int64_t k1 = p->k - k0 < STEP ? p->k : k0 + STEP;
        for (int64_t t = 0; t < tiles.count; t++) {
            int64_t lo = tile_start(tiles, t), rows = tile_start(tiles, t + 1) - lo;
            const float *from = p->from + lo * p->col;
            float *to = p->to + lo * p->k;
            for (int64_t k = k0; k < k1; k++) {
                for (int64_t i = 0; i < rows; i += TD_LANES) {
                    store_some(to + k * rows + i, load_some(from + k * p->row + i, rows - i),
                               rows - i);
                }
            }
        }
    }
}
