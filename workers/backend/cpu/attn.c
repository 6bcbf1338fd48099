// Attention of the cpu backend. Packed and paged share attend(): a tile of query rows against the
// keys of one key/value head. A query row's bits depend on its q and on the k and v of its keys in
// order: not on the tile, nor on how the keys lie in memory.
//
// Many tokens of a sequence go head by head, so that rows and keys are read where they are. One
// token (decode) goes with all heads of its group at once, so that each key is read once.
#include <string.h>

#include "lib/base/check.h"
#include "workers/backend/cpu/cpu_int.h"

enum { TILE_ROWS = 8, UNIT_TOKENS = 32, GROUP_MAX = 256, PAD = 16 };

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

struct job {
    struct td_cpu *cpu;
    const struct td_attn_args *packed;      // one of
    const struct td_attn_paged_args *paged; // the two
    const struct td_tensor *q, *o;
    const int32_t *cu;
    int batch, kv_heads, group, d;
    float scale;
    int64_t keys_max, width; // d padded to whole groups of lanes
    bool gathers;            // keys are copied: padded, or from the pages of many queries
    float *scratch;          // per part
    size_t scratch_floats;
};

struct keys {           // of one sequence and key/value head
    const float *k, *v; // rows k_ld and v_ld apart; NULL: in pages
    int64_t k_ld, v_ld;
    int sequence, kv_head;
};

struct tile { // row i sees count + i·grow keys
    const float *q;
    float *o, *lse; // lse may be NULL
    int64_t q_ld, o_ld, lse_ld;
    int64_t rows, count, grow;
};

struct buffers { // of one part
    float *q, *o, *k, *v, *scores;
    int64_t scores_ld;
};

static int64_t rows_max(const struct job *g) {
    return g->group > TILE_ROWS ? g->group : TILE_ROWS;
}

static size_t scratch_floats(const struct job *g) {
    int64_t keys = g->gathers ? 2 * g->keys_max * g->width : 0;
    return (size_t)(rows_max(g) * (2 * g->width + round_up(g->keys_max, PAD)) + keys);
}

static struct buffers buffers_of(const struct job *g, int part) {
    struct buffers b = {.scores_ld = round_up(g->keys_max, PAD)};
    b.q = g->scratch + (size_t)part * g->scratch_floats;
    b.o = b.q + rows_max(g) * g->width;
    b.scores = b.o + rows_max(g) * g->width;
    b.k = b.scores + rows_max(g) * b.scores_ld;
    b.v = b.k + g->keys_max * g->width;
    return b;
}

struct run { // keys (or values) that lie evenly
    const float *p;
    int64_t ld, n;
};

static const float *in_page(const struct job *g, const struct keys *x, int64_t j, bool values) {
    const struct td_attn_paged_args *a = g->paged;
    int64_t size = a->page_tokens, width = (int64_t)g->kv_heads * g->d;
    int64_t page = a->table[(int64_t)x->sequence * a->table_stride + j / size];
    return (const float *)a->pages + ((page * 2 + values) * size + j % size) * width +
           (int64_t)x->kv_head * g->d;
}

// From j on, at most up to end. Asks the cache for the page behind.
static struct run run_at(const struct job *g, const struct keys *x, int64_t j, int64_t end,
                         bool values) {
    if (x->k) {
        int64_t ld = values ? x->v_ld : x->k_ld;
        return (struct run){(values ? x->v : x->k) + j * ld, ld, end - j};
    }
    struct run run = {.p = in_page(g, x, j, values), .ld = (int64_t)g->kv_heads * g->d};
    int64_t size = g->paged->page_tokens, left = size - j % size;
    run.n = end - j < left ? end - j : left;
    if (j + run.n < end) {
        const float *next = in_page(g, x, j + run.n, values);
        for (int64_t i = 0; i < size; i++) {
            for (int c = 0; c < g->d; c += 16) {
                __builtin_prefetch(next + i * run.ld + c);
            }
        }
    }
    return run;
}

// Copies rows of d floats, padded to width.
static void pad_rows(const struct job *g, float *to, const float *from, int64_t from_ld,
                     int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * g->width, from + i * from_ld, (size_t)g->d * sizeof *to);
        memset(to + i * g->width + g->d, 0, (size_t)(g->width - g->d) * sizeof *to);
    }
}

// What all rows, and the last one, need of the keys.
static void score_all(const struct job *g, const struct keys *x, const struct buffers *b,
                      const struct tile *t) {
    int64_t end = t->count + (t->rows - 1) * t->grow;
    for (int64_t j = 0; j < end;) {
        struct run run = run_at(g, x, j, end, false);
        g->cpu->kernels->scores(&(struct td_attn_block){.q = t->q,
                                                        .ldq = t->q_ld,
                                                        .k = run.p,
                                                        .ldk = run.ld,
                                                        .s = b->scores + j,
                                                        .lds = b->scores_ld,
                                                        .rows = t->rows,
                                                        .keys = run.n,
                                                        .d = (int)g->width,
                                                        .scale = g->scale});
        j += run.n;
    }
}

static void mix_all(const struct job *g, const struct keys *x, const struct buffers *b,
                    const struct tile *t) {
    td_assert(x->k || t->grow == 0);
    for (int64_t j = 0; j < t->count;) {
        struct run run = run_at(g, x, j, t->count, true);
        g->cpu->kernels->mix(&(struct td_mix_block){.s = b->scores + j,
                                                    .s_row = b->scores_ld,
                                                    .s_col = 1,
                                                    .x = run.p,
                                                    .ldx = run.ld,
                                                    .y = t->o,
                                                    .ldy = t->o_ld,
                                                    .rows = t->rows,
                                                    .terms = run.n,
                                                    .grow = t->grow,
                                                    .d = (int)g->width});
        j += run.n;
    }
}

static void attend(const struct job *g, const struct keys *x, const struct buffers *b,
                   struct tile t) {
    bool padded = g->width != g->d;
    float inverse[GROUP_MAX], *o = t.o;
    int64_t o_ld = t.o_ld;
    td_assert_op(t.rows, <=, rows_max(g));
    if (padded) {
        pad_rows(g, b->q, t.q, t.q_ld, t.rows);
        t.q = b->q;
        t.o = b->o;
        t.q_ld = t.o_ld = g->width;
    }
    score_all(g, x, b, &t);
    for (int64_t r = 0; r < t.rows; r++) {
        float lse;
        inverse[r] =
            g->cpu->kernels->softmax(b->scores + r * b->scores_ld, t.count + r * t.grow, &lse);
        if (t.lse) {
            t.lse[r * t.lse_ld] = lse;
        }
        memset(t.o + r * t.o_ld, 0, (size_t)g->width * sizeof *o);
    }
    mix_all(g, x, b, &t);
    for (int64_t r = 0; r < t.rows; r++) {
        g->cpu->kernels->scale(o + r * o_ld, t.o + r * t.o_ld, g->d, inverse[r]);
    }
}

struct unit { // some queries of a sequence, for one key/value head
    int sequence, kv_head;
    int64_t token, tokens;
    int64_t keys; // that the first query sees
    bool alone;   // the sequence's only query
};

static struct keys keys_of(const struct job *g, const struct unit *u, const struct buffers *b) {
    struct keys x = {.sequence = u->sequence, .kv_head = u->kv_head};
    int64_t count = u->keys + u->tokens - 1, col = (int64_t)u->kv_head * g->d;
    if (g->packed) {
        x.k = td_cpu_row(&g->packed->k, g->cu[u->sequence]) + col;
        x.v = td_cpu_row(&g->packed->v, g->cu[u->sequence]) + col;
        x.k_ld = g->packed->k.ld;
        x.v_ld = g->packed->v.ld;
    }
    if (g->width == g->d && (g->packed || u->alone)) {
        return x;
    }
    for (int64_t j = 0; j < count;) {
        struct run k = run_at(g, &x, j, count, false), v = run_at(g, &x, j, count, true);
        pad_rows(g, b->k + j * g->width, k.p, k.ld, k.n);
        pad_rows(g, b->v + j * g->width, v.p, v.ld, v.n);
        j += k.n;
    }
    x.k = b->k;
    x.v = b->v;
    x.k_ld = x.v_ld = g->width;
    return x;
}

static void unit_run(const struct job *g, const struct unit *u, const struct buffers *b) {
    struct keys x = keys_of(g, u, b);
    int64_t first = (int64_t)u->kv_head * g->group;
    const struct td_tensor *lse = g->packed && g->packed->lse.p ? &g->packed->lse : NULL;
    struct tile t = {.q = td_cpu_row(g->q, u->token) + first * g->d,
                     .o = td_cpu_row(g->o, u->token) + first * g->d,
                     .lse = lse ? td_cpu_row(lse, u->token) + first : NULL};
    if (u->tokens == 1) {
        t.q_ld = t.o_ld = g->d;
        t.lse_ld = 1;
        t.rows = g->group;
        t.count = u->keys;
        attend(g, &x, b, t);
        return;
    }
    t.q_ld = g->q->ld;
    t.o_ld = g->o->ld;
    t.lse_ld = lse ? lse->ld : 0;
    t.grow = 1;
    for (int64_t i = 0; i < u->tokens; i += TILE_ROWS) {
        for (int head = 0; head < g->group; head++) {
            struct tile part = t;
            part.rows = u->tokens - i < TILE_ROWS ? u->tokens - i : TILE_ROWS;
            part.count = u->keys + i;
            part.q += i * t.q_ld + (int64_t)head * g->d;
            part.o += i * t.o_ld + (int64_t)head * g->d;
            part.lse = lse ? t.lse + i * t.lse_ld + head : NULL;
            attend(g, &x, b, part);
        }
    }
}

// Units are dealt to parts like cards: long sequences spread over all.
static void attn_part(void *arg, int part, int parts) {
    const struct job *g = arg;
    struct buffers b = buffers_of(g, part);
    int64_t dealt = 0;
    for (int n = 0; n < g->batch; n++) {
        int64_t lo = g->cu[n], hi = g->cu[n + 1];
        int64_t before = g->paged ? g->paged->kvlen[n] - (hi - lo) : 0;
        for (int64_t token = lo; token < hi; token += UNIT_TOKENS) {
            for (int head = 0; head < g->kv_heads; head++) {
                if (dealt++ % parts != part) {
                    continue;
                }
                struct unit u = {.sequence = n,
                                 .kv_head = head,
                                 .token = token,
                                 .tokens = hi - token < UNIT_TOKENS ? hi - token : UNIT_TOKENS,
                                 .keys = before + token - lo + 1,
                                 .alone = hi - lo == 1};
                unit_run(g, &u, &b);
            }
        }
    }
}

static void attn_run(struct job *g, int64_t pairs) {
    td_assert(g->kv_heads >= 1 && g->group >= 1 && g->group <= GROUP_MAX);
    int parts = td_cpu_parts(g->cpu, pairs * g->group * g->kv_heads * g->d * 2);
    g->width = round_up(g->d, PAD);
    g->gathers = g->gathers || g->width != g->d;
    g->scratch_floats = scratch_floats(g);
    g->scratch =
        td_cpu_scratch(g->cpu, TD_SCRATCH_PARTS, (size_t)parts * g->scratch_floats * sizeof(float));
    if (g->scratch) {
        td_cpu_run(g->cpu, parts, attn_part, g);
    }
}

void td_cpu_attn_fwd(struct td_backend *be, const struct td_attn_args *a) {
    struct job g = {.cpu = td_cpu_of(be),
                    .packed = a,
                    .q = &a->q,
                    .o = &a->o,
                    .cu = a->cu,
                    .batch = a->batch,
                    .kv_heads = a->kv_heads,
                    .group = a->heads / a->kv_heads,
                    .d = a->head_dim,
                    .scale = (float)a->scale};
    int64_t pairs = 0;
    for (int b = 0; b < a->batch; b++) {
        int64_t n = a->cu[b + 1] - a->cu[b];
        g.keys_max = n > g.keys_max ? n : g.keys_max;
        pairs += n * n / 2;
    }
    attn_run(&g, pairs);
}

void td_cpu_attn_paged(struct td_backend *be, const struct td_attn_paged_args *a) {
    struct job g = {.cpu = td_cpu_of(be),
                    .paged = a,
                    .q = &a->q,
                    .o = &a->o,
                    .cu = a->qcu,
                    .batch = a->batch,
                    .kv_heads = a->kv_heads,
                    .group = a->heads / a->kv_heads,
                    .d = a->head_dim,
                    .scale = (float)a->scale};
    int64_t pairs = 0;
    for (int b = 0; b < a->batch; b++) {
        int64_t n = a->qcu[b + 1] - a->qcu[b];
        td_assert_op(a->kvlen[b], >=, n);
        g.keys_max = a->kvlen[b] > g.keys_max ? a->kvlen[b] : g.keys_max;
        g.gathers = g.gathers || n > 1;
        pairs += n * a->kvlen[b];
    }
    attn_run(&g, pairs);
}

static void store_rows(const void *args, int64_t lo, int64_t hi) {
    const struct td_kv_store_args *a = args;
    int64_t width = (int64_t)a->kv_heads * a->head_dim;
    for (int64_t t = lo; t < hi; t++) {
        if (a->slot[t] < 0) {
            continue;
        }
        int64_t page = a->slot[t] / a->page_tokens, place = a->slot[t] % a->page_tokens;
        float *k = (float *)a->pages + (page * 2 * a->page_tokens + place) * width;
        memcpy(k, td_cpu_row(&a->k, t), (size_t)width * sizeof *k);
        memcpy(k + a->page_tokens * width, td_cpu_row(&a->v, t), (size_t)width * sizeof *k);
    }
}

void td_cpu_kv_store(struct td_backend *be, const struct td_kv_store_args *a) {
    td_cpu_ranges(td_cpu_of(be), store_rows, a, (struct td_range){.n = a->k.rows, .grain = 1},
                  a->k.rows * a->kv_heads * a->head_dim * 2);
}
