// The generator's state; shared by generate.c (sessions) and generate_step.c (the engine step).
#ifndef TD_WORKERS_ENGINE_GENERATE_INT_H
#define TD_WORKERS_ENGINE_GENERATE_INT_H

#include "lib/base/map.h"
#include "workers/engine/generate.h"
#include "workers/engine/kv.h"
#include "workers/engine/sched.h"

struct td_gen_seq {
    struct td_sched_seq sched; // first; its ids and tokens are those below
    uint64_t id;
    int32_t place; // in td_generator.open
    int32_t *ids;  // cap; owned
    float *logp;   // cap; beside ids, set for generated ones
    int32_t cap;
    int32_t start;         // of what this generation adds
    int32_t limit;         // tokens at which it ends with LENGTH
    enum td_finish finish; // it ended and waits to be given; else 0
    struct td_sample_row row;
    int32_t stop_ids[TD_STOP_IDS_MAX];
    int32_t stop_count;
};

struct td_generator {
    struct td_model *model;
    struct td_backend *be;
    const struct td_weights *weights; // NULL before the first
    struct td_generate_config config;
    struct td_kv *kv;
    struct td_sched *sched;
    void **pages; // one array per layer, device
    size_t page_bytes;
    struct td_map *by_id;     // id → struct td_gen_seq *
    struct td_gen_seq **open; // sequences_max
    int32_t open_count;
    struct td_gen_seq **done; // ring of sequences_max: ended, not given yet
    int32_t done_head, done_count;
    struct td_generator_counters counters;
    uint64_t generated;

    // The step's arrays. tokens: batch_tokens_max; entries: min(that, sequences_max).
    int32_t *ids, *pos; // tokens
    int64_t *slot;      // tokens
    int32_t *cu;        // entries + 1
    int32_t *kvlen;     // entries
    int32_t *table;     // entries × stride; grows
    size_t table_cap;
    int32_t sample_max;         // rows of logits at a time
    int32_t *rows, *sampled;    // sample_max
    float *logp;                // sample_max
    struct td_sample_row *keys; // sample_max
};

// Room for n tokens.
void td_gen_reserve(struct td_gen_seq *q, int32_t n);
// Ends q's generation and queues it to be given.
void td_gen_finish(struct td_generator *g, struct td_gen_seq *q, enum td_finish why);

#endif
