// Small batches for trainer tests.
#ifndef TD_TESTS_UNIT_ENGINE_BATCH_OF_H
#define TD_TESTS_UNIT_ENGINE_BATCH_OF_H

#include <unistd.h>

#include "lib/base/rng.h"
#include "lib/ipc/batch.h"
#include "tests/unit/cmocka_all.h"

enum { BATCH_ROWS = 8, BATCH_TOKENS_MAX = 128, BATCH_UPDATES_MAX = 8 };

// What a batch is written from.
struct batch_of {
    struct td_batch b;
    uint32_t row_start[BATCH_ROWS + 1], mini[2 * BATCH_UPDATES_MAX];
    int32_t ids[BATCH_TOKENS_MAX];
    uint8_t loss_mask[BATCH_TOKENS_MAX];
    float rollout_logp[BATCH_TOKENS_MAX];
    double advantage[BATCH_ROWS], token_count[BATCH_UPDATES_MAX], sequence_count[BATCH_UPDATES_MAX];
};

// Eight rows of 3 to 12 random tokens, prompts of 1 or 2; minis mini-batches, each epochs times.
static inline void batch_of_fill(struct batch_of *x, uint32_t vocab, uint32_t minis,
                                 uint32_t epochs, uint64_t seed) {
    struct td_rng rng = {seed};
    uint32_t at = 0, trained[BATCH_ROWS];
    *x = (struct batch_of){0};
    for (uint32_t r = 0; r < BATCH_ROWS; r++) {
        uint32_t length = 3 + td_rng_below(&rng, 10), prompt = 1 + td_rng_below(&rng, 2);
        x->row_start[r] = at;
        x->advantage[r] = 2 * td_rng_unit(&rng) - 1;
        trained[r] = length - prompt;
        for (uint32_t i = 0; i < length; i++, at++) {
            x->ids[at] = (int32_t)td_rng_below(&rng, vocab);
            x->loss_mask[at] = i >= prompt;
            x->rollout_logp[at] = i >= prompt ? -1.0f : 0.0f;
        }
    }
    x->row_start[BATCH_ROWS] = at;
    for (uint32_t u = 0; u < minis * epochs; u++) {
        uint32_t width = BATCH_ROWS / minis, first = u % minis * width;
        x->mini[2 * u] = first;
        x->mini[2 * u + 1] = first + width;
        x->sequence_count[u] = width;
        for (uint32_t r = first; r < first + width; r++) {
            x->token_count[u] += trained[r];
        }
    }
    x->b = (struct td_batch){.rows = BATCH_ROWS,
                             .tokens = at,
                             .updates = minis * epochs,
                             .row_start = x->row_start,
                             .ids = x->ids,
                             .loss_mask = x->loss_mask,
                             .rollout_logp = x->rollout_logp,
                             .advantage = x->advantage,
                             .mini = x->mini,
                             .token_count = x->token_count,
                             .sequence_count = x->sequence_count};
}

// Makes the first update train no row, so that prep scores them all; gives the row to put back.
static inline uint32_t batch_of_skip_first(struct batch_of *x) {
    uint32_t first = x->mini[0];
    x->mini[0] = x->mini[1];
    return first;
}

// Through a memfd, as a worker gets it.
static inline struct td_batch *batch_of_map(const struct batch_of *x) {
    int fd = -1;
    struct td_batch *b = NULL;
    struct td_err err = {0};
    assert_int_equal(td_batch_write(&x->b, &fd, &err), TD_OK);
    if (td_batch_map(fd, &b, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    close(fd);
    return b;
}

#endif
