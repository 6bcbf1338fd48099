// A small model with random weights, a set of sequences to generate, and one way to run them that
// has many knobs: none of them may change a token or a log-prob.
#ifndef TD_TESTS_UNIT_ENGINE_GENERATE_FIXTURE_H
#define TD_TESTS_UNIT_ENGINE_GENERATE_FIXTURE_H

#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "workers/engine/generate.h"

#include "tests/unit/cmocka_all.h"

enum { PROMPTS = 6, SAMPLES = 4, SEQUENCES = PROMPTS * SAMPLES, POSITIONS = 64, STOP_ID = 7 };

struct fixture {
    struct td_backend *be;
    struct td_model *model;
    struct td_weights weights;
};

static inline const struct td_model_config *small_config(void) {
    static const struct td_model_config config = {
        .vocab_size = 53,
        .hidden_size = 40,
        .intermediate_size = 72,
        .layers = 2,
        .heads = 6,
        .kv_heads = 2,
        .head_dim = 12,
        .max_positions = POSITIONS,
        .rms_norm_eps = 1e-6,
        .rope_theta = 10000,
        .initializer_range = 0.25,
        .tied = true,
        .qkv_bias = true,
    };
    return &config;
}

static inline void must(enum td_rc rc, const struct td_err *err) {
    if (rc != TD_OK) {
        fail_msg("%s", err->msg);
    }
}

// Takes the backend.
static inline void fixture_open(struct fixture *f, struct td_backend *be_take) {
    struct td_err err;
    memset(f, 0, sizeof *f);
    f->be = be_take;
    must(td_model_new(f->be, small_config(), &f->model, &err), &err);
    must(td_weights_new(f->model, &f->weights, &err), &err);
    td_weights_random(f->model, &f->weights, 5);
    must(td_weights_prepare(f->model, &f->weights, &err), &err);
}

static inline void fixture_close(struct fixture *f) {
    td_weights_fini(f->model, &f->weights);
    td_model_free(f->model);
    td_backend_free(f->be);
}

static inline struct td_generator *generator_open(struct fixture *f,
                                                  const struct td_generate_config *config) {
    struct td_generator *g = NULL;
    struct td_err err;
    must(td_generator_new(f->model, config, &g, &err), &err);
    must(td_generator_set_weights(g, &f->weights, &err), &err);
    return g;
}

// What came out of one sequence.
struct outcome {
    int32_t ids[POSITIONS];
    float logp[POSITIONS];
    int32_t n;
    enum td_finish finish;
};

static inline int32_t prompt_of(int i, int32_t ids[POSITIONS]) {
    int p = i / SAMPLES;
    int32_t n = 1 + (p * 7) % 23;
    for (int32_t t = 0; t < n; t++) {
        ids[t] = (int32_t)td_philox4x32(3, (uint32_t)t, (uint32_t)p, 0, 0).v[0] & 31;
    }
    return n;
}

static inline struct td_sampling sampling_of(int i, double temperature) {
    static const int32_t stop_ids[] = {STOP_ID};
    return (struct td_sampling){
        .key = td_sampling_key(1, 0, 0, (uint64_t)(i / SAMPLES), (uint32_t)(i % SAMPLES), 0),
        .temperature = i % SAMPLES == 3 ? 0 : temperature,
        .top_k = i % 5 == 1 ? 20 : 0,
        .top_p = i % 5 == 2 ? 0.9 : 1,
        .max_new_tokens = 5 + i % 17,
        .stop_ids = stop_ids,
        .stop_count = 1,
    };
}

struct way {
    const char *name;
    int32_t page_tokens, batch_tokens_max;
    int64_t kv_tokens_max;
    bool fork;       // samples of a prompt are forks of one sequence
    bool reversed;   // order of opening
    int generators;  // that share the sequences out
    int32_t at_once; // sequences open at a time
};

static inline const struct way *plain_way(void) {
    static const struct way way = {"plain", 16, 1024, 4096, false, false, 1, SEQUENCES};
    return &way;
}

static inline void open_one(struct td_generator *g, const struct way *w, int i,
                            double temperature) {
    struct td_err err;
    int32_t ids[POSITIONS], n = prompt_of(i, ids);
    uint64_t parent = 1000 + (uint64_t)(i / SAMPLES);
    if (w->fork) {
        if (td_generator_open(g, parent, &err) == TD_OK) {
            must(td_generator_extend(g, parent, ids, n, &err), &err);
        }
        must(td_generator_fork(g, parent, (uint64_t)i, &err), &err);
    } else {
        must(td_generator_open(g, (uint64_t)i, &err), &err);
        must(td_generator_extend(g, (uint64_t)i, ids, n, &err), &err);
    }
    struct td_sampling s = sampling_of(i, temperature);
    must(td_generator_generate(g, (uint64_t)i, &s, &err), &err);
}

static inline int collect(struct td_generator *g, struct outcome *out) {
    struct td_generated got;
    struct td_err err;
    int count = 0;
    while (td_generator_next(g, &got)) {
        struct outcome *o = &out[got.sequence];
        assert_int_equal(o->n, 0);
        o->n = got.n;
        o->finish = got.finish;
        memcpy(o->ids, got.ids, (size_t)got.n * sizeof *got.ids);
        memcpy(o->logp, got.logp, (size_t)got.n * sizeof *got.logp);
        must(td_generator_close(g, got.sequence, &err), &err);
        count++;
    }
    return count;
}

// Generates every sequence that generator k of w->generators gets. Returns how many were preempted.
static inline uint64_t run_share(struct fixture *f, const struct way *w, int k, double temperature,
                                 struct outcome *out) {
    struct td_generate_config config = {
        .page_tokens = w->page_tokens,
        .kv_tokens_max = w->kv_tokens_max,
        .batch_tokens_max = w->batch_tokens_max,
        .sequences_max = SEQUENCES + PROMPTS,
    };
    struct td_generator *g = generator_open(f, &config);
    struct td_err err;
    int opened = 0, live = 0;
    bool busy = true;
    while (busy || opened < SEQUENCES) {
        for (; opened < SEQUENCES && live < w->at_once; opened++) {
            int i = w->reversed ? SEQUENCES - 1 - opened : opened;
            if (i % w->generators == k) {
                open_one(g, w, i, temperature);
                live++;
            }
        }
        must(td_generator_step(g, &busy, &err), &err);
        live -= collect(g, out);
    }
    assert_int_equal(live, 0);
    uint64_t preempted = td_generator_counters(g).preempted;
    td_generator_close_all(g);
    assert_int_equal(td_generator_counters(g).pages_free, td_generator_counters(g).pages);
    td_generator_free(g);
    return preempted;
}

static inline uint64_t run_way(struct fixture *f, const struct way *w, double temperature,
                               struct outcome out[SEQUENCES]) {
    uint64_t preempted = 0;
    memset(out, 0, SEQUENCES * sizeof *out);
    for (int k = 0; k < w->generators; k++) {
        preempted += run_share(f, w, k, temperature, out);
    }
    return preempted;
}

static inline void same_outcomes(const char *name, const struct outcome *a,
                                 const struct outcome *b) {
    for (int i = 0; i < SEQUENCES; i++) {
        if (a[i].n != b[i].n || a[i].finish != b[i].finish ||
            memcmp(a[i].ids, b[i].ids, sizeof a[i].ids) != 0 ||
            memcmp(a[i].logp, b[i].logp, sizeof a[i].logp) != 0) {
            fail_msg("%s: sequence %d differs", name, i);
        }
    }
}

#endif
