// Attention's backward pass on the cpu. One thread does one (sequence, key/value head) as a whole:
// tiles of queries ascending, within them rows by token and head. dk and dv are chains in that
// order.
#include <string.h>

#include "lib/base/check.h"
#include "workers/backend/cpu/cpu_int.h"

enum { TILE_ROWS = 48, PAD = 16 };

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

struct job {
    struct td_cpu *cpu;
    const struct td_attn_bwd_args *args;
    int group, tile_tokens;
    int64_t length_max, width, scores_ld;
    float *scratch; // per part
    size_t scratch_floats;
};

struct buffers { // rows of width floats: a sequence's k, v and their gradients, a tile's q, do, dq
    float *k, *v, *dk, *dv, *q, *d_o, *dq, *s, *dp;
};

static size_t scratch_floats(const struct job *g) {
    int64_t rows = (int64_t)g->tile_tokens * g->group;
    return (size_t)(4 * g->length_max * g->width + 3 * rows * g->width + 2 * rows * g->scores_ld);
}

static struct buffers buffers_of(const struct job *g, int part) {
    int64_t sequence = g->length_max * g->width, rows = (int64_t)g->tile_tokens * g->group;
    struct buffers b = {.k = g->scratch + (size_t)part * g->scratch_floats};
    b.v = b.k + sequence;
    b.dk = b.v + sequence;
    b.dv = b.dk + sequence;
    b.q = b.dv + sequence;
    b.d_o = b.q + rows * g->width;
    b.dq = b.d_o + rows * g->width;
    b.s = b.dq + rows * g->width;
    b.dp = b.s + rows * g->scores_ld;
    return b;
}

// Copies rows × d from columns col on of x, padded to width.
static void gather(const struct job *g, float *to, const struct td_tensor *x, int64_t row,
                   int64_t col) {
    int d = g->args->fwd.head_dim;
    memcpy(to, td_cpu_row(x, row) + col, (size_t)d * sizeof *to);
    memset(to + d, 0, (size_t)(g->width - d) * sizeof *to);
}

static void scatter(const struct job *g, const struct td_tensor *x, int64_t row, int64_t col,
                    const float *from) {
    memcpy(td_cpu_row(x, row) + col, from, (size_t)g->args->fwd.head_dim * sizeof *from);
}

// q·k of all rows and keys, times scale.
static void products(const struct job *g, const float *q, const float *k, float *s,
                     struct td_attn_block shape) {
    shape.q = q;
    shape.k = k;
    shape.s = s;
    shape.ldq = shape.ldk = g->width;
    shape.lds = g->scores_ld;
    shape.d = (int)g->width;
    g->cpu->kernels->scores(&shape);
}

// y[i] += Σ_j w·x[j]
static void add(const struct job *g, const float *x, float *y, struct td_mix_block shape) {
    shape.x = x;
    shape.y = y;
    shape.ldx = shape.ldy = g->width;
    shape.d = (int)g->width;
    g->cpu->kernels->mix(&shape);
}

struct tile {
    int kv_head;
    int64_t first, token, tokens; // of the sequence, of the tile
};

// Scores become probabilities and dp becomes the scores' gradient; both 0 where a row sees no key.
static void slopes(const struct job *g, const struct buffers *b, const struct tile *t,
                   int64_t keys) {
    const struct td_attn_args *f = &g->args->fwd;
    for (int64_t r = 0; r < t->tokens * g->group; r++) {
        int64_t token = t->token + r / g->group, head = t->kv_head * g->group + r % g->group;
        int64_t seen = token - t->first + 1;
        float *s = b->s + r * g->scores_ld, *dp = b->dp + r * g->scores_ld;
        const float *o = td_cpu_row(&f->o, token) + head * f->head_dim;
        g->cpu->kernels->attn_ds(&(struct td_attn_ds){
            .s = s,
            .dp = dp,
            .n = seen,
            .lse = td_cpu_row(&f->lse, token)[head],
            .delta = g->cpu->kernels->dot(b->d_o + r * g->width, o, f->head_dim),
            .scale = (float)f->scale});
        memset(s + seen, 0, (size_t)(keys - seen) * sizeof *s);
        memset(dp + seen, 0, (size_t)(keys - seen) * sizeof *dp);
    }
}

static void tile_bwd(const struct job *g, const struct buffers *b, const struct tile *t) {
    const struct td_attn_bwd_args *a = g->args;
    int64_t rows = t->tokens * g->group, keys = t->token + t->tokens - t->first, ld = g->scores_ld;
    int64_t d = a->fwd.head_dim;
    for (int64_t r = 0; r < rows; r++) {
        int64_t col = (t->kv_head * g->group + r % g->group) * d;
        gather(g, b->q + r * g->width, &a->fwd.q, t->token + r / g->group, col);
        gather(g, b->d_o + r * g->width, &a->d_o, t->token + r / g->group, col);
    }
    struct td_attn_block product = {.rows = rows, .keys = keys, .scale = (float)a->fwd.scale};
    products(g, b->q, b->k, b->s, product);
    product.scale = 1;
    products(g, b->d_o, b->v, b->dp, product);
    slopes(g, b, t, keys);
    memset(b->dq, 0, (size_t)(rows * g->width) * sizeof *b->dq);
    add(g, b->k, b->dq,
        (struct td_mix_block){.s = b->dp, .s_row = ld, .s_col = 1, .rows = rows, .terms = keys});
    struct td_mix_block over_rows = {.s_row = 1, .s_col = ld, .rows = keys, .terms = rows};
    over_rows.s = b->dp;
    add(g, b->q, b->dk, over_rows);
    over_rows.s = b->s;
    add(g, b->d_o, b->dv, over_rows);
    for (int64_t r = 0; r < rows; r++) {
        int64_t col = (t->kv_head * g->group + r % g->group) * d;
        scatter(g, &a->dq, t->token + r / g->group, col, b->dq + r * g->width);
    }
}

static void sequence_bwd(const struct job *g, const struct buffers *b, int sequence, int kv_head) {
    const struct td_attn_bwd_args *a = g->args;
    int64_t lo = a->fwd.cu[sequence], hi = a->fwd.cu[sequence + 1], width = g->width;
    int64_t col = (int64_t)kv_head * a->fwd.head_dim;
    for (int64_t t = lo; t < hi; t++) {
        gather(g, b->k + (t - lo) * width, &a->fwd.k, t, col);
        gather(g, b->v + (t - lo) * width, &a->fwd.v, t, col);
    }
    memset(b->dk, 0, (size_t)((hi - lo) * width) * sizeof *b->dk);
    memset(b->dv, 0, (size_t)((hi - lo) * width) * sizeof *b->dv);
    for (int64_t token = lo; token < hi; token += g->tile_tokens) {
        struct tile tile = {.kv_head = kv_head,
                            .first = lo,
                            .token = token,
                            .tokens = hi - token < g->tile_tokens ? hi - token : g->tile_tokens};
        tile_bwd(g, b, &tile);
    }
    for (int64_t t = lo; t < hi; t++) {
        scatter(g, &a->dk, t, col, b->dk + (t - lo) * width);
        scatter(g, &a->dv, t, col, b->dv + (t - lo) * width);
    }
}

static void attn_bwd_part(void *arg, int part, int parts) {
    const struct job *g = arg;
    struct buffers b = buffers_of(g, part);
    int64_t kv_heads = g->args->fwd.kv_heads;
    for (int64_t i = part; i < g->args->fwd.batch * kv_heads; i += parts) {
        sequence_bwd(g, &b, (int)(i / kv_heads), (int)(i % kv_heads));
    }
}

void td_cpu_attn_bwd(struct td_backend *be, const struct td_attn_bwd_args *a) {
    const struct td_attn_args *f = &a->fwd;
    struct job g = {.cpu = td_cpu_of(be),
                    .args = a,
                    .group = f->heads / f->kv_heads,
                    .width = round_up(f->head_dim, PAD)};
    td_assert(f->lse.p && g.group >= 1);
    g.tile_tokens = g.group < TILE_ROWS ? TILE_ROWS / g.group : 1;
    int64_t work = 0;
    for (int b = 0; b < f->batch; b++) {
        int64_t n = f->cu[b + 1] - f->cu[b];
        g.length_max = n > g.length_max ? n : g.length_max;
        work += n * n / 2;
    }
    g.scores_ld = round_up(g.length_max, PAD);
    g.scratch_floats = scratch_floats(&g);
    int parts = td_cpu_parts(g.cpu, work * f->heads * f->head_dim * 5);
    g.scratch =
        td_cpu_scratch(g.cpu, TD_SCRATCH_PARTS, (size_t)parts * g.scratch_floats * sizeof(float));
    if (g.scratch) {
        td_cpu_run(g.cpu, parts, attn_bwd_part, &g);
    }
}
