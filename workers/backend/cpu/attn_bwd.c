// Attention's backward pass on the cpu. One thread does one (sequence, key/value head) as a whole:
// head by head of its group, tokens ascending. dk and dv are chains in that order. Tensors are read
// and written where they are, unless the head dimension must be padded to whole groups of lanes.
#include <string.h>

#include "lib/base/check.h"
#include "workers/backend/cpu/cpu_int.h"

enum { TILE_ROWS = 16, PAD = 16 };

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

struct job {
    struct td_cpu *cpu;
    const struct td_attn_bwd_args *args;
    int group;
    int64_t length_max, width, scores_ld;
    float *scratch; // per part
    size_t scratch_floats;
};

struct rows { // one head's rows of a tensor, or their padded copy
    float *p;
    int64_t ld;
};

struct head { // of one sequence: what a key/value head has, and what one of its query heads has
    struct rows k, v, dk, dv, q, d_o, dq;
    int index;
    int64_t first, length; // tokens
};

struct buffers {          // of one part
    float *s, *dp, *rows; // rows: seven padded copies of a sequence
};

static bool padded(const struct job *g) {
    return g->width != g->args->fwd.head_dim;
}

static size_t scratch_floats(const struct job *g) {
    int64_t copies = padded(g) ? 7 * g->length_max * g->width : 0;
    return (size_t)(2 * TILE_ROWS * g->scores_ld + copies);
}

static struct buffers buffers_of(const struct job *g, int part) {
    struct buffers b = {.s = g->scratch + (size_t)part * g->scratch_floats};
    b.dp = b.s + TILE_ROWS * g->scores_ld;
    b.rows = b.dp + TILE_ROWS * g->scores_ld;
    return b;
}

// Rows of x for one head: in place, or copied to slot i of the padded copies.
static struct rows open_rows(const struct job *g, const struct buffers *b, const struct head *h,
                             const struct td_tensor *x, int64_t head, int i) {
    int d = g->args->fwd.head_dim;
    struct rows r = {.p = td_cpu_row(x, h->first) + head * d, .ld = x->ld};
    if (!padded(g)) {
        return r;
    }
    float *copy = b->rows + i * g->length_max * g->width;
    for (int64_t t = 0; t < h->length; t++) {
        memcpy(copy + t * g->width, r.p + t * r.ld, (size_t)d * sizeof *copy);
        memset(copy + t * g->width + d, 0, (size_t)(g->width - d) * sizeof *copy);
    }
    return (struct rows){.p = copy, .ld = g->width};
}

static struct rows open_zero(const struct job *g, const struct buffers *b, const struct head *h,
                             const struct td_tensor *x, int64_t head, int i) {
    struct rows r = {.p = td_cpu_row(x, h->first) + head * g->args->fwd.head_dim, .ld = x->ld};
    if (padded(g)) {
        r = (struct rows){.p = b->rows + i * g->length_max * g->width, .ld = g->width};
    }
    for (int64_t t = 0; t < h->length; t++) {
        memset(r.p + t * r.ld, 0, (size_t)g->width * sizeof *r.p);
    }
    return r;
}

static void close_rows(const struct job *g, const struct head *h, struct rows r,
                       const struct td_tensor *x, int64_t head) {
    int d = g->args->fwd.head_dim;
    for (int64_t t = 0; t < h->length && padded(g); t++) {
        memcpy(td_cpu_row(x, h->first + t) + head * d, r.p + t * r.ld, (size_t)d * sizeof *r.p);
    }
}

struct tile { // rows [row, row + count) of the sequence
    int64_t row, count;
};

static void products(const struct job *g, struct rows q, struct rows k, float *s,
                     const struct tile *t, float scale) {
    g->cpu->kernels->scores(&(struct td_attn_block){.q = q.p + t->row * q.ld,
                                                    .ldq = q.ld,
                                                    .k = k.p,
                                                    .ldk = k.ld,
                                                    .s = s,
                                                    .lds = g->scores_ld,
                                                    .rows = t->count,
                                                    .keys = t->row + t->count,
                                                    .d = (int)g->width,
                                                    .scale = scale});
}

// Scores become probabilities and dp becomes the scores' gradient; both 0 where a row sees no key.
static void slopes(const struct job *g, const struct buffers *b, const struct head *h,
                   const struct tile *t) {
    const struct td_attn_args *f = &g->args->fwd;
    for (int64_t r = 0; r < t->count; r++) {
        int64_t row = t->row + r, token = h->first + row, seen = row + 1;
        float *s = b->s + r * g->scores_ld, *dp = b->dp + r * g->scores_ld;
        const float *o = td_cpu_row(&f->o, token) + (int64_t)h->index * f->head_dim;
        const float *d_o = h->d_o.p + row * h->d_o.ld;
        g->cpu->kernels->attn_ds(
            &(struct td_attn_ds){.s = s,
                                 .dp = dp,
                                 .n = seen,
                                 .lse = td_cpu_row(&f->lse, token)[h->index],
                                 .delta = g->cpu->kernels->dot(d_o, o, f->head_dim),
                                 .scale = (float)f->scale});
        size_t unseen = (size_t)(t->row + t->count - seen) * sizeof *s;
        memset(s + seen, 0, unseen);
        memset(dp + seen, 0, unseen);
    }
}

// y[key] += Σ_rows w[row][key] · x[row]
static void add_to_keys(const struct job *g, const float *w, struct rows x, struct rows y,
                        const struct tile *t) {
    g->cpu->kernels->mix(&(struct td_mix_block){.s = w,
                                                .s_row = 1,
                                                .s_col = g->scores_ld,
                                                .x = x.p + t->row * x.ld,
                                                .ldx = x.ld,
                                                .y = y.p,
                                                .ldy = y.ld,
                                                .rows = t->row + t->count,
                                                .terms = t->count,
                                                .d = (int)g->width});
}

static void tile_bwd(const struct job *g, const struct buffers *b, const struct head *h,
                     const struct tile *t) {
    products(g, h->q, h->k, b->s, t, (float)g->args->fwd.scale);
    products(g, h->d_o, h->v, b->dp, t, 1);
    slopes(g, b, h, t);
    g->cpu->kernels->mix(&(struct td_mix_block){.s = b->dp,
                                                .s_row = g->scores_ld,
                                                .s_col = 1,
                                                .x = h->k.p,
                                                .ldx = h->k.ld,
                                                .y = h->dq.p + t->row * h->dq.ld,
                                                .ldy = h->dq.ld,
                                                .rows = t->count,
                                                .terms = t->row + 1,
                                                .grow = 1,
                                                .d = (int)g->width});
    add_to_keys(g, b->dp, h->q, h->dk, t);
    add_to_keys(g, b->s, h->d_o, h->dv, t);
}

static void sequence_bwd(const struct job *g, const struct buffers *b, int sequence, int kv_head) {
    const struct td_attn_bwd_args *a = g->args;
    struct head h = {.first = a->fwd.cu[sequence]};
    h.length = a->fwd.cu[sequence + 1] - h.first;
    h.k = open_rows(g, b, &h, &a->fwd.k, kv_head, 0);
    h.v = open_rows(g, b, &h, &a->fwd.v, kv_head, 1);
    h.dk = open_zero(g, b, &h, &a->dk, kv_head, 2);
    h.dv = open_zero(g, b, &h, &a->dv, kv_head, 3);
    for (int i = 0; i < g->group; i++) {
        h.index = kv_head * g->group + i;
        h.q = open_rows(g, b, &h, &a->fwd.q, h.index, 4);
        h.d_o = open_rows(g, b, &h, &a->d_o, h.index, 5);
        h.dq = open_zero(g, b, &h, &a->dq, h.index, 6);
        for (int64_t row = 0; row < h.length; row += TILE_ROWS) {
            struct tile t = {.row = row,
                             .count = h.length - row < TILE_ROWS ? h.length - row : TILE_ROWS};
            tile_bwd(g, b, &h, &t);
        }
        close_rows(g, &h, h.dq, &a->dq, h.index);
    }
    close_rows(g, &h, h.dk, &a->dk, kv_head);
    close_rows(g, &h, h.dv, &a->dv, kv_head);
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
    int64_t pairs = 0;
    for (int b = 0; b < f->batch; b++) {
        int64_t n = f->cu[b + 1] - f->cu[b];
        g.length_max = n > g.length_max ? n : g.length_max;
        pairs += n * n / 2;
    }
    g.scores_ld = round_up(g.length_max, PAD);
    g.scratch_floats = scratch_floats(&g);
    int parts = td_cpu_parts(g.cpu, pairs * f->heads * f->head_dim * 5);
    g.scratch =
        td_cpu_scratch(g.cpu, TD_SCRATCH_PARTS, (size_t)parts * g.scratch_floats * sizeof(float));
    if (g.scratch) {
        td_cpu_run(g.cpu, parts, attn_bwd_part, &g);
    }
}
