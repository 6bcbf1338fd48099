// One step of the generation engine: the plan's copies and forward, logits of the rows that are
// complete, sampling; and scoring of whole sequences. Command thread.
//
// Nothing here depends on what else is in a batch: a row's hidden state and logits depend on its
// own sequence only (backend.h), and the draw on (key, position).
#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/engine/generate_int.h"

static struct td_gen_seq *seq_of(struct td_sched_seq *seq) {
    return (struct td_gen_seq *)(void *)seq; // sched is the first member
}

static void copy_pages(struct td_generator *g, const struct td_plan *plan) {
    int layers = td_model_config(g->model)->layers;
    for (int32_t i = 0; i < plan->copy_count; i++) {
        for (int l = 0; l < layers; l++) {
            char *pages = g->pages[l];
            struct td_copy_args a = {
                .dst = pages + (size_t)plan->copies[i].to * g->page_bytes,
                .src = pages + (size_t)plan->copies[i].from * g->page_bytes,
                .bytes = g->page_bytes,
                .kind = TD_COPY_D2D,
            };
            g->be->ops->copy(g->be, &a);
        }
    }
}

static void put_entry(struct td_generator *g, const struct td_plan_entry *e, int32_t at) {
    const struct td_kv_chain *chain = &e->seq->chain;
    int32_t size = g->config.page_tokens;
    memcpy(g->ids + at, e->seq->ids + e->from, (size_t)e->count * sizeof *g->ids);
    for (int32_t i = 0; i < e->count; i++) {
        int32_t pos = e->from + i;
        g->pos[at + i] = pos;
        g->slot[at + i] = (int64_t)chain->page[pos / size] * size + pos % size;
    }
    if (e->count == 1 && e->from >= seq_of(e->seq)->start) {
        g->counters.decoded++;
    } else {
        g->counters.prefilled += (uint64_t)e->count;
    }
}

// The plan as a packed batch. Returns the stride of the page table.
static int32_t pack(struct td_generator *g, const struct td_plan *plan) {
    int32_t at = 0, stride = 1;
    for (int32_t i = 0; i < plan->count; i++) {
        const struct td_plan_entry *e = &plan->entries[i];
        g->cu[i] = at;
        g->kvlen[i] = e->from + e->count;
        put_entry(g, e, at);
        at += e->count;
        int32_t pages = td_kv_pages_of(g->kv, g->kvlen[i]);
        stride = pages > stride ? pages : stride;
    }
    g->cu[plan->count] = at;
    TD_GROW(g->table, g->table_cap, (size_t)plan->count * (size_t)stride);
    for (int32_t i = 0; i < plan->count; i++) {
        size_t pages = (size_t)td_kv_pages_of(g->kv, g->kvlen[i]);
        memcpy(g->table + (size_t)i * (size_t)stride, plan->entries[i].seq->chain.page,
               pages * sizeof *g->table);
    }
    return stride;
}

static enum td_rc forward(struct td_generator *g, const struct td_plan *plan,
                          struct td_tensor *hidden, struct td_err *err) {
    copy_pages(g, plan);
    int32_t stride = pack(g, plan);
    struct td_kv_view kv = {
        .pages = g->pages,
        .page_tokens = g->config.page_tokens,
        .slot = g->slot,
        .table = g->table,
        .table_stride = stride,
        .kvlen = g->kvlen,
    };
    struct td_packed batch = {
        .tokens = plan->tokens,
        .batch = plan->count,
        .ids = g->ids,
        .pos = g->pos,
        .cu = g->cu,
        .kv = &kv,
    };
    g->counters.steps++;
    return td_model_forward(g->model, g->weights, &batch, TD_FORWARD_CACHED, hidden, err);
}

static bool stops(const struct td_gen_seq *q, int32_t id) {
    for (int32_t i = 0; i < q->stop_count; i++) {
        if (q->stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}

static enum td_rc take_token(struct td_generator *g, struct td_gen_seq *q, int32_t id, float logp,
                             struct td_err *err) {
    if (!isfinite(logp)) { // invariant I11: such weights must not speak
        return td_fail(err, TD_ECORRUPT,
                       "sequence %llu: the log-probability of token %d is not finite: the weights "
                       "are bad",
                       (unsigned long long)q->id, q->sched.tokens);
    }
    td_gen_reserve(q, q->sched.tokens + 1);
    q->ids[q->sched.tokens] = id;
    q->logp[q->sched.tokens] = logp;
    q->sched.tokens++;
    g->generated++;
    if (stops(q, id)) {
        td_gen_finish(g, q, TD_FINISH_STOP);
    } else if (q->sched.tokens == q->limit) {
        td_gen_finish(g, q, TD_FINISH_LENGTH);
    }
    return TD_OK;
}

// Draws a token for n ready sequences, at most sample_max.
static enum td_rc sample(struct td_generator *g, const struct td_tensor *hidden,
                         const struct td_plan_ready *ready, int32_t n, struct td_err *err) {
    for (int32_t i = 0; i < n; i++) {
        const struct td_gen_seq *q = seq_of(ready[i].seq);
        g->rows[i] = ready[i].row;
        g->keys[i] = q->row;
        g->keys[i].position = (uint32_t)q->sched.tokens;
    }
    struct td_tensor logits;
    struct td_head_rows head = {.n = n, .rows = g->rows};
    enum td_rc rc = td_model_logits(g->model, g->weights, hidden, &head, &logits, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_sample_args a = {
        .z = logits,
        .row = g->keys,
        .allowed = g->config.allowed,
        .id = g->sampled,
        .logp = g->logp,
    };
    g->be->ops->sample(g->be, &a);
    rc = g->be->ops->check(g->be, err);
    for (int32_t i = 0; rc == TD_OK && i < n; i++) {
        rc = take_token(g, seq_of(ready[i].seq), g->sampled[i], g->logp[i], err);
    }
    return rc;
}

enum td_rc td_generator_step(struct td_generator *g, bool *busy, struct td_err *err) {
    struct td_plan plan = td_sched_plan(g->sched);
    enum td_rc rc = TD_OK;
    if (plan.count > 0) {
        struct td_tensor hidden;
        rc = forward(g, &plan, &hidden, err);
        if (rc != TD_OK) {
            return rc;
        }
        int32_t count = 0;
        const struct td_plan_ready *ready = td_sched_commit(g->sched, &count);
        for (int32_t i = 0; rc == TD_OK && i < count; i += g->sample_max) {
            int32_t n = count - i < g->sample_max ? count - i : g->sample_max;
            rc = sample(g, &hidden, ready + i, n, err);
        }
    }
    if (rc == TD_OK) {
        *busy = td_sched_busy(g->sched);
    }
    return rc;
}

enum td_rc td_generator_score(struct td_generator *g, const int32_t *ids, int32_t n,
                              double temperature, double *logp, struct td_err *err) {
    if (!g->weights) {
        return td_fail(err, TD_ECONFLICT, "score: there are no weights yet");
    }
    if (n < 1 || !(temperature > 0) || !isfinite(temperature)) {
        return td_fail(err, TD_EINVAL, "score: %d tokens at temperature %g", n, temperature);
    }
    if (n > td_model_config(g->model)->max_positions) {
        return td_fail(err, TD_ELIMIT, "score: %d tokens, the model has %d positions", n,
                       td_model_config(g->model)->max_positions);
    }
    if (n == 1) {
        return TD_OK;
    }
    int32_t *pos = td_alloc_array((size_t)n, sizeof *pos), cu[2] = {0, n};
    for (int32_t i = 0; i < n; i++) {
        pos[i] = i;
    }
    struct td_packed batch = {.tokens = n, .batch = 1, .ids = ids, .pos = pos, .cu = cu};
    struct td_head_rows head = {
        .n = n - 1,
        .rows = pos,
        .target = ids + 1,
        .temperature = temperature,
        .logp = logp,
    };
    struct td_tensor hidden;
    enum td_rc rc = td_model_forward(g->model, g->weights, &batch, TD_FORWARD_SCORE, &hidden, err);
    rc = rc ? rc : td_model_logprob(g->model, g->weights, &hidden, &head, err);
    td_free(pos);
    return rc;
}
