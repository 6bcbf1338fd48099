// The generation engine: sessions of sequences over paged KV, continuous batching, sampling. Pure
// of sockets. A sequence's tokens depend on (weights, its tokens, its key and sampling parameters)
// only. Command thread only.
#ifndef TD_WORKERS_ENGINE_GENERATE_H
#define TD_WORKERS_ENGINE_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "workers/model/model.h"

struct td_generate_config {
    int32_t page_tokens;      // 16
    int64_t kv_tokens_max;    // pool size in tokens
    int32_t batch_tokens_max; // token budget of one engine step
    int32_t sequences_max;    // open sequences, waiting ones included
    const uint8_t *allowed;   // vocab_size bytes, borrowed; NULL: all ids may be sampled
};

struct td_sampling {
    uint64_t key;
    double temperature; // 0: greedy
    int32_t top_k;
    double top_p;
    int32_t max_new_tokens;
    const int32_t *stop_ids; // copied
    int32_t stop_count;
};

enum td_finish { TD_FINISH_STOP = 1, TD_FINISH_LENGTH, TD_FINISH_ABORTED };

struct td_generated { // borrowed until the sequence is extended, generates again or is closed
    uint64_t sequence;
    const int32_t *ids; // new tokens only, the stop token included
    const float *logp;
    int32_t n;
    enum td_finish finish;
};

struct td_generator;

enum td_rc td_generator_new(struct td_model *m, const struct td_generate_config *config,
                            struct td_generator **out, struct td_err *err) TD_MUST_CHECK;
void td_generator_free(struct td_generator *g);
// Weights for all sequences from now on (borrowed). Only while no sequence is open (mode drain):
// else TD_ECONFLICT.
enum td_rc td_generator_set_weights(struct td_generator *g, const struct td_weights *w,
                                    struct td_err *err) TD_MUST_CHECK;

// Ids are the caller's; one that is open is TD_ECONFLICT, an unknown one TD_ENOENT, too many
// TD_ELIMIT.
enum td_rc td_generator_open(struct td_generator *g, uint64_t sequence,
                             struct td_err *err) TD_MUST_CHECK;
enum td_rc td_generator_extend(struct td_generator *g, uint64_t sequence, const int32_t *ids,
                               int32_t n, struct td_err *err) TD_MUST_CHECK;
// child shares what parent holds so far: full pages by reference, the last one copied. Cheap before
// generation.
enum td_rc td_generator_fork(struct td_generator *g, uint64_t parent, uint64_t child,
                             struct td_err *err) TD_MUST_CHECK;
enum td_rc td_generator_generate(struct td_generator *g, uint64_t sequence,
                                 const struct td_sampling *s, struct td_err *err) TD_MUST_CHECK;
// Ends generation at once: td_generator_next gives what there is, with TD_FINISH_ABORTED; the
// sequence stays open. TD_ECONFLICT unless it is generating.
enum td_rc td_generator_abort(struct td_generator *g, uint64_t sequence,
                              struct td_err *err) TD_MUST_CHECK;
enum td_rc td_generator_close(struct td_generator *g, uint64_t sequence,
                              struct td_err *err) TD_MUST_CHECK;
void td_generator_close_all(struct td_generator *g);

// One engine step: prefill or decode for as many sequences as the budgets allow. *busy: there is
// more to do.
enum td_rc td_generator_step(struct td_generator *g, bool *busy, struct td_err *err) TD_MUST_CHECK;
// The next finished sequence that was not given yet; false: none.
bool td_generator_next(struct td_generator *g, struct td_generated *out);
// Log-probs of tokens 1..n-1 of a whole sequence given those before, at a temperature; logp has n-1
// places.
enum td_rc td_generator_score(struct td_generator *g, const int32_t *ids, int32_t n,
                              double temperature, double *logp, struct td_err *err) TD_MUST_CHECK;
uint64_t td_generator_tokens(const struct td_generator *g); // generated so far
int32_t td_generator_open_count(const struct td_generator *g);

struct td_generator_counters {
    uint64_t steps; // with a forward
    uint64_t
        prefilled;    // tokens of prompts forwarded, and tokens forwarded again after a preemption
    uint64_t decoded; // generated tokens forwarded for the first time
    uint64_t preempted; // sequences that lost their pages while generating
    int32_t pages_free, pages;
};
struct td_generator_counters td_generator_counters(const struct td_generator *g);

#endif
