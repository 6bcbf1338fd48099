// Micro-batches: packing rows, log-probs, losses and gradients: see train_int.h. The loss is a sum
// over rows with the mini-batch's global denominators, so the split changes rounding only.
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "workers/engine/train_int.h"

static uint32_t trained_tokens(const struct td_batch *b, uint32_t row) {
    uint32_t n = 0;
    for (uint32_t i = b->row_start[row]; i < b->row_start[row + 1]; i++) {
        n += b->loss_mask[i];
    }
    return n;
}

static void grow(struct td_micro *mb, size_t tokens, size_t batch) {
    TD_GROW(mb->row, mb->row_cap, batch);
    TD_GROW(mb->cu, mb->cu_cap, batch + 1);
    TD_GROW(mb->first, mb->first_cap, batch + 1);
    TD_GROW(mb->ids, mb->ids_cap, tokens);
    TD_GROW(mb->pos, mb->pos_cap, tokens);
    TD_GROW(mb->rows, mb->rows_cap, tokens);
    TD_GROW(mb->target, mb->target_cap, tokens);
    TD_GROW(mb->token, mb->token_cap, tokens);
    TD_GROW(mb->logp, mb->logp_cap, tokens);
    TD_GROW(mb->entropy, mb->entropy_cap, tokens);
    TD_GROW(mb->old, mb->old_cap, tokens);
    TD_GROW(mb->ref, mb->ref_cap, tokens);
    TD_GROW(mb->dlogp, mb->dlogp_cap, tokens);
    TD_GROW(mb->dentropy, mb->dentropy_cap, tokens);
}

static void add_row(struct td_micro *mb, const struct td_batch *b, uint32_t row) {
    uint32_t start = b->row_start[row], length = b->row_start[row + 1] - start;
    grow(mb, (size_t)mb->tokens + length, (size_t)mb->batch + 1);
    mb->row[mb->batch] = row;
    mb->cu[mb->batch] = mb->tokens;
    mb->first[mb->batch] = mb->n;
    for (uint32_t i = 0; i < length; i++) {
        if (b->loss_mask[start + i]) {
            mb->rows[mb->n] = mb->tokens - 1; // the token before predicts it
            mb->target[mb->n] = b->ids[start + i];
            mb->token[mb->n++] = start + i;
        }
        mb->ids[mb->tokens] = b->ids[start + i];
        mb->pos[mb->tokens++] = (int32_t)i;
    }
    mb->batch++;
    mb->cu[mb->batch] = mb->tokens;
    mb->first[mb->batch] = mb->n;
}

bool td_micro_fill(struct td_trainer *t, uint32_t *row, uint32_t end) {
    struct td_micro *mb = &t->micro;
    const struct td_batch *b = t->batch;
    mb->tokens = mb->batch = mb->n = 0;
    for (; *row < end; ++*row) {
        if (trained_tokens(b, *row) == 0) {
            continue;
        }
        int64_t length = b->row_start[*row + 1] - b->row_start[*row];
        bool full = t->config.micro_batch_rows > 0
                        ? mb->batch >= t->config.micro_batch_rows
                        : mb->tokens + length > t->config.micro_batch_tokens;
        if (full && mb->batch > 0) {
            break;
        }
        add_row(mb, b, *row);
    }
    return mb->batch > 0;
}

void td_micro_fini(struct td_micro *mb) {
    void *all[] = {mb->row,   mb->ids,  mb->pos,     mb->cu,  mb->first, mb->rows,  mb->target,
                   mb->token, mb->logp, mb->entropy, mb->old, mb->ref,   mb->dlogp, mb->dentropy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
}

enum td_rc td_micro_forward(struct td_trainer *t, const struct td_weights *w,
                            enum td_forward_mode mode, struct td_err *err) {
    struct td_micro *mb = &t->micro;
    struct td_packed packed = {.tokens = mb->tokens,
                               .batch = mb->batch,
                               .ids = mb->ids,
                               .pos = mb->pos,
                               .cu = mb->cu,
                               .out = mb->rows,
                               .outs = mb->n};
    struct td_head_rows rows = {.n = mb->n,
                                .target = mb->target,
                                .temperature = t->config.temperature,
                                .logp = mb->logp,
                                .entropy = t->config.sft ? NULL : mb->entropy};
    struct td_tensor hidden;
    enum td_rc rc = td_model_forward(t->m, w, &packed, mode, &hidden, err);
    return rc ? rc : td_model_logprob(t->m, w, &hidden, &rows, err);
}

static void row_loss(struct td_trainer *t, uint32_t u, int i, double *loss,
                     struct td_metrics *metrics) {
    struct td_micro *mb = &t->micro;
    int32_t at = mb->first[i];
    size_t n = (size_t)(mb->first[i + 1] - at);
    if (t->config.sft) {
        td_sft_loss(n, mb->logp + at, t->batch->token_count[u], loss, mb->dlogp + at);
        return;
    }
    struct td_policy_loss_in in = {.n = n,
                                   .logp = mb->logp + at,
                                   .old_logp = mb->old + at,
                                   .ref_logp = t->ref_logp ? mb->ref + at : NULL,
                                   .entropy = mb->entropy + at,
                                   .advantage = t->batch->advantage[mb->row[i]],
                                   .token_count = t->batch->token_count[u],
                                   .sequence_count = t->batch->sequence_count[u]};
    td_policy_loss(&t->config.loss, &in, loss, mb->dlogp + at, mb->dentropy + at, metrics);
}

enum td_rc td_micro_backward(struct td_trainer *t, uint32_t u, double *loss,
                             struct td_metrics *metrics, struct td_err *err) {
    struct td_micro *mb = &t->micro;
    for (int32_t i = 0; i < mb->n && !t->config.sft; i++) {
        mb->old[i] = t->old_logp[mb->token[i]];
        mb->ref[i] = t->ref_logp ? t->ref_logp[mb->token[i]] : 0;
    }
    for (int i = 0; i < mb->batch; i++) {
        row_loss(t, u, i, loss, metrics);
    }
    bool entropy = !t->config.sft && t->config.loss.entropy_coeff != 0;
    return td_model_backward(t->m, &t->weights, mb->dlogp, entropy ? mb->dentropy : NULL, &t->grads,
                             err);
}
