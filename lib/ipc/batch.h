// The rows of one round for one train rank, as they lie in a memfd between controller and worker.
#ifndef TD_IPC_BATCH_H
#define TD_IPC_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"

// Rows are whole sequences, prompt and response. Mini-batch u holds rows [mini[u], mini[u+1]);
// denominators are global over all ranks and fixed before the first micro-batch.
struct td_batch {
    uint32_t rows, tokens, updates; // updates = mini-batches × ppo_epochs, in order
    const uint32_t *row_start;      // rows + 1
    const int32_t *ids;             // tokens
    const uint8_t *loss_mask;       // tokens: 1 where the token is trained
    const float *rollout_logp;      // tokens: 0 outside the mask; SFT: all 0
    const double *advantage;        // rows; SFT: all 0
    const uint32_t *mini;           // 2 × updates: first row, end row of update u
    const double *token_count;    // updates: trained tokens of the whole mini-batch over all ranks
    const double *sequence_count; // updates: sequences with a trained token, over all ranks
    void *map;                    // owned mapping; NULL in a batch that is only written
    uint64_t map_bytes;
};

// Lays out a batch in a new memfd (sealed against change); *fd is the caller's. b's arrays are
// borrowed, its map is not looked at.
enum td_rc td_batch_write(const struct td_batch *b, int *fd, struct td_err *err) TD_MUST_CHECK;
// Maps fd (still the caller's) and checks seals, every offset and count against its size, and that
// all numbers are finite and no first token of a row is trained: TD_ECORRUPT names the place.
enum td_rc td_batch_map(int fd, struct td_batch **out, struct td_err *err) TD_MUST_CHECK;
void td_batch_free(struct td_batch *b); // of td_batch_map; accepts NULL

#endif
