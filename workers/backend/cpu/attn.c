// Attention of the cpu backend. Packed and paged share attend(): a tile of query rows of one
// key/value head against runs of keys. A query row's bits depend on its q and on the k and v of its
// keys in order, not on the tile, nor on where the runs are cut.
#include <string.h>

#include "lib/base/check.h"
#include "workers/backend/cpu/cpu_int.h"

enum { TILE_ROWS = 16, GROUP_MAX = 256, RUN_MAX = 64, PAD = 16 };

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

struct source { // queries, outputs, and where keys come from
    struct td_cpu *cpu;
    const struct td_attn_args *packed;      // one of
    const struct td_attn_paged_args *paged; // the two
    const struct td_tensor *q, *o;
    const int32_t *cu;
    int batch, kv_heads, group, d;
    float scale;
    int64_t keys_max;
    float *scratch; // per part
    size_t scratch_floats;
};

struct tile {
    int sequence, kv_head;
    int64_t token, tokens; // queries
    int64_t keys;          // that the first query sees; each next one sees one more
};

struct buffers { // of one part; rows padded to a multiple of 16
    float *q, *o, *pad, *scores;
    int64_t width, scores_ld;
};

static int64_t tile_tokens(int group) {
    return group < TILE_ROWS ? TILE_ROWS / group : 1;
}

static size_t scratch_floats(const struct source *s) {
    int64_t rows = tile_tokens(s->group) * s->group, width = round_up(s->d, PAD);
    return (size_t)(2 * rows * width + RUN_MAX * width + rows * round_up(s->keys_max, PAD));
}

static struct buffers buffers_of(const struct source *s, int part) {
    int64_t rows = tile_tokens(s->group) * s->group;
    struct buffers b = {.width = round_up(s->d, PAD), .scores_ld = round_up(s->keys_max, PAD)};
    b.q = s->scratch + (size_t)part * s->scratch_floats;
    b.o = b.q + rows * b.width;
    b.pad = b.o + rows * b.width;
    b.scores = b.pad + RUN_MAX * b.width;
    return b;
}

struct run { // rows of k or v that lie evenly
    const float *p;
    int64_t ld, n;
};

// Keys (or values) from j on, at most up to end.
static struct run run_at(const struct source *s, const struct tile *t, int64_t j, int64_t end,
                         bool values) {
    struct run run = {.n = end - j < RUN_MAX ? end - j : RUN_MAX};
    int64_t col = (int64_t)t->kv_head * s->d;
    if (s->packed) {
        const struct td_tensor *x = values ? &s->packed->v : &s->packed->k;
        run.p = td_cpu_row(x, s->cu[t->sequence] + j) + col;
        run.ld = x->ld;
        return run;
    }
    const struct td_attn_paged_args *a = s->paged;
    int64_t size = a->page_tokens, width = (int64_t)s->kv_heads * s->d, place = j % size;
    int64_t page = a->table[(int64_t)t->sequence * a->table_stride + j / size];
    run.p = (const float *)a->pages + ((page * 2 + values) * size + place) * width + col;
    run.ld = width;
    run.n = run.n < size - place ? run.n : size - place;
    return run;
}

static void copy_rows(float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
                      int d) {
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * to_ld, from + i * from_ld, (size_t)d * sizeof *to);
        memset(to + i * to_ld + d, 0, (size_t)(to_ld - d) * sizeof *to);
    }
}

// The same rows, padded if d is no multiple of 16.
static struct run padded(const struct source *s, const struct buffers *b, struct run run) {
    if (s->d == b->width) {
        return run;
    }
    copy_rows(b->pad, b->width, run.p, run.ld, run.n, s->d);
    return (struct run){.p = b->pad, .ld = b->width, .n = run.n};
}

static void all_scores(const struct source *s, const struct tile *t, const struct buffers *b) {
    int64_t end = t->keys + t->tokens - 1;
    for (int64_t j = 0; j < end;) {
        struct run run = padded(s, b, run_at(s, t, j, end, false));
        s->cpu->kernels->scores(&(struct td_attn_block){.q = b->q,
                                                        .ldq = b->width,
                                                        .k = run.p,
                                                        .ldk = run.ld,
                                                        .s = b->scores + j,
                                                        .lds = b->scores_ld,
                                                        .rows = t->tokens * s->group,
                                                        .keys = run.n,
                                                        .d = (int)b->width,
                                                        .scale = s->scale});
        j += run.n;
    }
}

// Adds p·v of keys [lo, hi) to rows [row, row + rows) of b->o.
static void add_values(const struct source *s, const struct tile *t, const struct buffers *b,
                       struct td_share keys, struct td_share rows) {
    for (int64_t j = keys.lo; j < keys.hi;) {
        struct run run = padded(s, b, run_at(s, t, j, keys.hi, true));
        s->cpu->kernels->mix(&(struct td_mix_block){.s = b->scores + rows.lo * b->scores_ld + j,
                                                    .s_row = b->scores_ld,
                                                    .s_col = 1,
                                                    .x = run.p,
                                                    .ldx = run.ld,
                                                    .y = b->o + rows.lo * b->width,
                                                    .ldy = b->width,
                                                    .rows = rows.hi - rows.lo,
                                                    .terms = run.n,
                                                    .d = (int)b->width});
        j += run.n;
    }
}

static void attend(const struct source *s, const struct tile *t, const struct buffers *b) {
    int64_t rows = t->tokens * s->group, col = (int64_t)t->kv_head * s->group * s->d;
    float inverse[GROUP_MAX];
    for (int64_t i = 0; i < t->tokens; i++) {
        copy_rows(b->q + i * s->group * b->width, b->width, td_cpu_row(s->q, t->token + i) + col,
                  s->d, s->group, s->d);
    }
    all_scores(s, t, b);
    for (int64_t r = 0; r < rows; r++) {
        float lse;
        inverse[r] =
            s->cpu->kernels->softmax(b->scores + r * b->scores_ld, t->keys + r / s->group, &lse);
        if (s->packed && s->packed->lse.p) {
            td_cpu_row(&s->packed->lse,
                       t->token + r / s->group)[t->kv_head * s->group + r % s->group] = lse;
        }
    }
    memset(b->o, 0, (size_t)(rows * b->width) * sizeof *b->o);
    add_values(s, t, b, (struct td_share){0, t->keys}, (struct td_share){0, rows});
    for (int64_t i = 1; i < t->tokens; i++) { // keys that not all rows see
        add_values(s, t, b, (struct td_share){t->keys, t->keys + i},
                   (struct td_share){i * s->group, (i + 1) * s->group});
    }
    for (int64_t r = 0; r < rows; r++) {
        float *o = td_cpu_row(s->o, t->token + r / s->group) + col + r % s->group * s->d;
        for (int c = 0; c < s->d; c++) {
            o[c] = b->o[r * b->width + c] * inverse[r];
        }
    }
}

// Tiles are dealt to parts like cards: long sequences spread over all.
static void attn_part(void *arg, int part, int parts) {
    const struct source *s = arg;
    struct buffers b = buffers_of(s, part);
    int64_t step = tile_tokens(s->group), dealt = 0;
    for (int n = 0; n < s->batch; n++) {
        int64_t lo = s->cu[n], hi = s->cu[n + 1];
        int64_t before = s->paged ? s->paged->kvlen[n] - (hi - lo) : 0;
        for (int64_t token = lo; token < hi; token += step) {
            for (int head = 0; head < s->kv_heads; head++) {
                if (dealt++ % parts != part) {
                    continue;
                }
                struct tile t = {.sequence = n,
                                 .kv_head = head,
                                 .token = token,
                                 .tokens = hi - token < step ? hi - token : step,
                                 .keys = before + token - lo + 1};
                attend(s, &t, &b);
            }
        }
    }
}

static void attn_run(struct source *s, int64_t work) {
    td_assert(s->kv_heads >= 1 && s->group >= 1 && s->group <= GROUP_MAX);
    int parts = td_cpu_parts(s->cpu, work * s->group * s->kv_heads * s->d * 2);
    s->scratch_floats = scratch_floats(s);
    s->scratch =
        td_cpu_scratch(s->cpu, TD_SCRATCH_PARTS, (size_t)parts * s->scratch_floats * sizeof(float));
    if (s->scratch) {
        td_cpu_run(s->cpu, parts, attn_part, s);
    }
}

void td_cpu_attn_fwd(struct td_backend *be, const struct td_attn_args *a) {
    struct source s = {.cpu = td_cpu_of(be),
                       .packed = a,
                       .q = &a->q,
                       .o = &a->o,
                       .cu = a->cu,
                       .batch = a->batch,
                       .kv_heads = a->kv_heads,
                       .group = a->heads / a->kv_heads,
                       .d = a->head_dim,
                       .scale = (float)a->scale};
    int64_t work = 0;
    for (int b = 0; b < a->batch; b++) {
        int64_t n = a->cu[b + 1] - a->cu[b];
        s.keys_max = n > s.keys_max ? n : s.keys_max;
        work += n * n / 2;
    }
    attn_run(&s, work);
}

void td_cpu_attn_paged(struct td_backend *be, const struct td_attn_paged_args *a) {
    struct source s = {.cpu = td_cpu_of(be),
                       .paged = a,
                       .q = &a->q,
                       .o = &a->o,
                       .cu = a->qcu,
                       .batch = a->batch,
                       .kv_heads = a->kv_heads,
                       .group = a->heads / a->kv_heads,
                       .d = a->head_dim,
                       .scale = (float)a->scale};
    int64_t work = 0;
    for (int b = 0; b < a->batch; b++) {
        td_assert_op(a->kvlen[b], >=, a->qcu[b + 1] - a->qcu[b]);
        s.keys_max = a->kvlen[b] > s.keys_max ? a->kvlen[b] : s.keys_max;
        work += (int64_t)(a->qcu[b + 1] - a->qcu[b]) * a->kvlen[b];
    }
    attn_run(&s, work);
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
