// Sessions of the generation engine: see generate.h. Command thread.
#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/engine/generate_int.h"

enum { PAGE_TOKENS_MAX = 4096, SEQUENCES_MAX = 1 << 20, LOGITS_MAX = 1 << 24 };

static enum td_rc check_config(const struct td_model_config *m, const struct td_generate_config *c,
                               struct td_err *err) {
    if (c->page_tokens < 1 || c->page_tokens > PAGE_TOKENS_MAX) {
        return td_fail(err, TD_EINVAL, "page_tokens %d is not in 1..%d", c->page_tokens,
                       PAGE_TOKENS_MAX);
    }
    if (c->kv_tokens_max < c->page_tokens || c->kv_tokens_max / c->page_tokens > INT32_MAX) {
        return td_fail(err, TD_EINVAL, "kv_tokens_max %lld does not make a pool of pages of %d",
                       (long long)c->kv_tokens_max, c->page_tokens);
    }
    if (c->batch_tokens_max < 1) {
        return td_fail(err, TD_EINVAL, "batch_tokens_max %d is below 1", c->batch_tokens_max);
    }
    if (c->sequences_max < 1 || c->sequences_max > SEQUENCES_MAX) {
        return td_fail(err, TD_EINVAL, "sequences_max %d is not in 1..%d", c->sequences_max,
                       SEQUENCES_MAX);
    }
    for (int32_t i = 0; c->allowed && i < m->vocab_size; i++) {
        if (c->allowed[i]) {
            return TD_OK;
        }
    }
    return c->allowed ? td_fail(err, TD_EINVAL, "no token id is allowed") : TD_OK;
}

static enum td_rc alloc_pages(struct td_generator *g, struct td_err *err) {
    const struct td_model_config *m = td_model_config(g->model);
    size_t row = (size_t)m->kv_heads * (size_t)m->head_dim * td_dtype_size(g->be->dtype);
    size_t pages = (size_t)td_kv_pages(g->kv), bytes = 0;
    g->page_bytes = 2 * (size_t)g->config.page_tokens * row;
    g->pages = td_alloc_array((size_t)m->layers, sizeof *g->pages);
    for (int i = 0; i < m->layers; i++) {
        bool fits = !__builtin_mul_overflow(g->page_bytes, pages, &bytes);
        g->pages[i] = fits ? g->be->ops->alloc(g->be, bytes) : NULL;
        if (!g->pages[i]) {
            return td_fail(err, TD_ENOMEM,
                           "no memory for %zu pages of %zu bytes in each of %d layers: lower the "
                           "number of cached tokens (%lld)",
                           pages, g->page_bytes, m->layers, (long long)g->config.kv_tokens_max);
        }
    }
    return TD_OK;
}

static void alloc_arrays(struct td_generator *g) {
    size_t tokens = (size_t)g->config.batch_tokens_max, seqs = (size_t)g->config.sequences_max;
    size_t entries = tokens < seqs ? tokens : seqs;
    int32_t vocab = td_model_config(g->model)->vocab_size, rows = LOGITS_MAX / vocab;
    g->sample_max = rows < 1 ? 1 : rows > g->config.sequences_max ? g->config.sequences_max : rows;
    size_t sample = (size_t)g->sample_max;
    g->open = td_alloc_array(seqs, sizeof *g->open);
    g->done = td_alloc_array(seqs, sizeof *g->done);
    g->ids = td_alloc_array(tokens, sizeof *g->ids);
    g->pos = td_alloc_array(tokens, sizeof *g->pos);
    g->slot = td_alloc_array(tokens, sizeof *g->slot);
    g->cu = td_alloc_array(entries + 1, sizeof *g->cu);
    g->kvlen = td_alloc_array(entries, sizeof *g->kvlen);
    g->rows = td_alloc_array(sample, sizeof *g->rows);
    g->sampled = td_alloc_array(sample, sizeof *g->sampled);
    g->logp = td_alloc_array(sample, sizeof *g->logp);
    g->keys = td_alloc_array(sample, sizeof *g->keys);
}

enum td_rc td_generator_new(struct td_model *m, const struct td_generate_config *config,
                            struct td_generator **out, struct td_err *err) {
    enum td_rc rc = check_config(td_model_config(m), config, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_generator *g = td_alloc(sizeof *g);
    g->model = m;
    g->be = td_model_backend(m);
    g->config = *config;
    g->kv = td_kv_new((int32_t)(config->kv_tokens_max / config->page_tokens), config->page_tokens);
    g->sched = td_sched_new(g->kv, config->batch_tokens_max, config->sequences_max);
    g->by_id = td_map_new();
    alloc_arrays(g);
    rc = alloc_pages(g, err);
    if (rc != TD_OK) {
        td_generator_free(g);
        return rc;
    }
    *out = g;
    return TD_OK;
}

void td_generator_free(struct td_generator *g) {
    if (!g) {
        return;
    }
    td_generator_close_all(g);
    for (int i = 0; i < td_model_config(g->model)->layers; i++) {
        if (g->pages[i]) {
            g->be->ops->release(g->be, g->pages[i]);
        }
    }
    td_sched_free(g->sched);
    td_kv_free(g->kv);
    td_map_free(g->by_id);
    void *const arrays[] = {g->pages, g->open,  g->done, g->ids,     g->pos,  g->slot, g->cu,
                            g->kvlen, g->table, g->rows, g->sampled, g->logp, g->keys};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        td_free(arrays[i]);
    }
    td_free(g);
}

enum td_rc td_generator_set_weights(struct td_generator *g, const struct td_weights *w,
                                    struct td_err *err) {
    if (g->open_count > 0) {
        return td_fail(err, TD_ECONFLICT, "weights cannot change while %d sequences are open",
                       g->open_count);
    }
    g->weights = w;
    return TD_OK;
}

static enum td_rc find(const struct td_generator *g, uint64_t id, struct td_gen_seq **out,
                       struct td_err *err) {
    uint64_t value = 0;
    if (!td_map_get(g->by_id, &id, sizeof id, &value)) {
        return td_fail(err, TD_ENOENT, "sequence %llu is not open", (unsigned long long)id);
    }
    *out = (struct td_gen_seq *)(uintptr_t)value;
    return TD_OK;
}

// As find; the sequence must be at rest: not generating, its last result given.
static enum td_rc find_idle(const struct td_generator *g, uint64_t id, struct td_gen_seq **out,
                            struct td_err *err) {
    struct td_gen_seq *q = NULL;
    enum td_rc rc = find(g, id, &q, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (q->sched.state != TD_SCHED_IDLE || q->finish) {
        return td_fail(err, TD_ECONFLICT, "sequence %llu %s", (unsigned long long)id,
                       q->finish ? "ended and its result was not taken yet" : "is generating");
    }
    *out = q;
    return TD_OK;
}

static enum td_rc can_open(const struct td_generator *g, uint64_t id, struct td_err *err) {
    if (td_map_get(g->by_id, &id, sizeof id, NULL)) {
        return td_fail(err, TD_ECONFLICT, "sequence %llu is open already", (unsigned long long)id);
    }
    if (g->open_count == g->config.sequences_max) {
        return td_fail(err, TD_ELIMIT, "%d sequences are open, the most there may be",
                       g->open_count);
    }
    return TD_OK;
}

static struct td_gen_seq *add(struct td_generator *g, uint64_t id) {
    struct td_gen_seq *q = td_alloc(sizeof *q);
    q->id = id;
    q->place = g->open_count;
    g->open[g->open_count++] = q;
    td_map_put(g->by_id, &id, sizeof id, (uint64_t)(uintptr_t)q);
    td_sched_add(g->sched, &q->sched);
    return q;
}

enum td_rc td_generator_open(struct td_generator *g, uint64_t sequence, struct td_err *err) {
    enum td_rc rc = can_open(g, sequence, err);
    if (rc == TD_OK) {
        add(g, sequence);
    }
    return rc;
}

void td_gen_reserve(struct td_gen_seq *q, int32_t n) {
    if (n <= q->cap) {
        return;
    }
    size_t cap = (size_t)q->cap;
    TD_GROW(q->ids, cap, (size_t)n);
    q->logp = td_realloc_array(q->logp, cap, sizeof *q->logp);
    q->cap = (int32_t)cap;
    q->sched.ids = q->ids;
}

enum td_rc td_generator_extend(struct td_generator *g, uint64_t sequence, const int32_t *ids,
                               int32_t n, struct td_err *err) {
    const struct td_model_config *m = td_model_config(g->model);
    struct td_gen_seq *q = NULL;
    enum td_rc rc = find_idle(g, sequence, &q, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (n < 0 || n > m->max_positions - q->sched.tokens) {
        return td_fail(err, TD_ELIMIT, "sequence %llu: %d tokens and %d more, the model has %d",
                       (unsigned long long)sequence, q->sched.tokens, n, m->max_positions);
    }
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= m->vocab_size) {
            return td_fail(err, TD_EINVAL, "token id %d is not of the vocabulary 0..%d", ids[i],
                           m->vocab_size - 1);
        }
    }
    if (n > 0) {
        td_gen_reserve(q, q->sched.tokens + n);
        memcpy(q->ids + q->sched.tokens, ids, (size_t)n * sizeof *ids);
        q->sched.tokens += n;
    }
    return TD_OK;
}

enum td_rc td_generator_fork(struct td_generator *g, uint64_t parent, uint64_t child,
                             struct td_err *err) {
    struct td_gen_seq *from = NULL;
    enum td_rc rc = find_idle(g, parent, &from, err);
    rc = rc ? rc : can_open(g, child, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_gen_seq *q = add(g, child);
    int32_t n = from->sched.tokens;
    if (n > 0) {
        td_gen_reserve(q, n);
        memcpy(q->ids, from->ids, (size_t)n * sizeof *q->ids);
    }
    q->sched.tokens = n;
    td_sched_fork(g->sched, &from->sched, &q->sched);
    return TD_OK;
}

static enum td_rc check_sampling(const struct td_generator *g, const struct td_gen_seq *q,
                                 const struct td_sampling *s, struct td_err *err) {
    unsigned long long id = q->id;
    if (!g->weights) {
        return td_fail(err, TD_ECONFLICT, "sequence %llu: there are no weights yet", id);
    }
    if (q->sched.tokens == 0) {
        return td_fail(err, TD_EINVAL, "sequence %llu: nothing to go on from: it has no tokens",
                       id);
    }
    if (s->max_new_tokens < 1) {
        return td_fail(err, TD_EINVAL, "sequence %llu: max_new_tokens %d is below 1", id,
                       s->max_new_tokens);
    }
    if (!(s->temperature >= 0) || !isfinite(s->temperature) ||
        (s->temperature > 0 && !isfinite((float)(1 / s->temperature)))) {
        return td_fail(err, TD_EINVAL, "sequence %llu: temperature %g is not usable", id,
                       s->temperature);
    }
    if (!(s->top_p > 0)) {
        return td_fail(err, TD_EINVAL, "sequence %llu: top_p %g is not above 0", id, s->top_p);
    }
    if (s->stop_count < 0 || s->stop_count > TD_STOP_IDS_MAX) {
        return td_fail(err, TD_ELIMIT, "sequence %llu: %d stop ids, at most %d", id, s->stop_count,
                       TD_STOP_IDS_MAX);
    }
    return TD_OK;
}

enum td_rc td_generator_generate(struct td_generator *g, uint64_t sequence,
                                 const struct td_sampling *s, struct td_err *err) {
    struct td_gen_seq *q = NULL;
    enum td_rc rc = find_idle(g, sequence, &q, err);
    rc = rc ? rc : check_sampling(g, q, s, err);
    if (rc != TD_OK) {
        return rc;
    }
    int32_t most = td_model_config(g->model)->max_positions, tokens = q->sched.tokens;
    int32_t limit = s->max_new_tokens < most - tokens ? tokens + s->max_new_tokens : most;
    if (td_kv_pages_of(g->kv, limit) > td_kv_pages(g->kv)) {
        return td_fail(err, TD_ELIMIT,
                       "sequence %llu: up to %d tokens, but the cache holds %lld: raise it or "
                       "generate fewer",
                       (unsigned long long)sequence, limit,
                       (long long)td_kv_pages(g->kv) * g->config.page_tokens);
    }
    q->limit = limit;
    q->start = tokens;
    q->row = (struct td_sample_row){
        .key = s->key,
        .inv_temp = s->temperature > 0 ? (float)(1 / s->temperature) : 0,
        .top_k = s->top_k,
        .top_p = (float)s->top_p,
    };
    q->stop_count = s->stop_count;
    if (s->stop_count > 0) {
        memcpy(q->stop_ids, s->stop_ids, (size_t)s->stop_count * sizeof *s->stop_ids);
    }
    td_sched_start(g->sched, &q->sched);
    if (tokens == limit) { // the model has no position left
        td_gen_finish(g, q, TD_FINISH_LENGTH);
    }
    return TD_OK;
}

void td_gen_finish(struct td_generator *g, struct td_gen_seq *q, enum td_finish why) {
    td_sched_finish(g->sched, &q->sched);
    q->finish = why;
    g->done[(g->done_head + g->done_count++) % g->config.sequences_max] = q;
}

enum td_rc td_generator_abort(struct td_generator *g, uint64_t sequence, struct td_err *err) {
    struct td_gen_seq *q = NULL;
    enum td_rc rc = find(g, sequence, &q, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (q->sched.state == TD_SCHED_IDLE) {
        return td_fail(err, TD_ECONFLICT, "sequence %llu is not generating",
                       (unsigned long long)sequence);
    }
    td_gen_finish(g, q, TD_FINISH_ABORTED);
    return TD_OK;
}

static void forget_result(struct td_generator *g, const struct td_gen_seq *q) {
    int32_t n = g->config.sequences_max, kept = 0;
    for (int32_t i = 0; i < g->done_count; i++) {
        struct td_gen_seq *other = g->done[(g->done_head + i) % n];
        if (other != q) {
            g->done[(g->done_head + kept++) % n] = other;
        }
    }
    g->done_count = kept;
}

static void close_seq(struct td_generator *g, struct td_gen_seq *q) {
    if (q->finish) {
        forget_result(g, q);
    }
    td_sched_remove(g->sched, &q->sched);
    td_map_remove(g->by_id, &q->id, sizeof q->id);
    g->open[q->place] = g->open[--g->open_count];
    g->open[q->place]->place = q->place;
    td_free(q->ids);
    td_free(q->logp);
    td_free(q);
}

enum td_rc td_generator_close(struct td_generator *g, uint64_t sequence, struct td_err *err) {
    struct td_gen_seq *q = NULL;
    enum td_rc rc = find(g, sequence, &q, err);
    if (rc == TD_OK) {
        close_seq(g, q);
    }
    return rc;
}

void td_generator_close_all(struct td_generator *g) {
    while (g->open_count > 0) {
        close_seq(g, g->open[g->open_count - 1]);
    }
}

bool td_generator_next(struct td_generator *g, struct td_generated *out) {
    if (g->done_count == 0) {
        return false;
    }
    struct td_gen_seq *q = g->done[g->done_head];
    g->done_head = (g->done_head + 1) % g->config.sequences_max;
    g->done_count--;
    *out = (struct td_generated){
        .sequence = q->id,
        .ids = q->ids + q->start,
        .logp = q->logp + q->start,
        .n = q->sched.tokens - q->start,
        .finish = q->finish,
    };
    q->finish = 0;
    return true;
}

int32_t td_generator_open_count(const struct td_generator *g) {
    return g->open_count;
}

uint64_t td_generator_tokens(const struct td_generator *g) {
    return g->generated;
}

struct td_generator_counters td_generator_counters(const struct td_generator *g) {
    struct td_generator_counters c = g->counters;
    c.preempted = td_sched_preempted(g->sched);
    c.pages = td_kv_pages(g->kv);
    c.pages_free = td_kv_pages_free(g->kv);
    return c;
}
