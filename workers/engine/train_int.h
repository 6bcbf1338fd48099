// What the files of the trainer share; see train.h.
#ifndef TD_WORKERS_ENGINE_TRAIN_INT_H
#define TD_WORKERS_ENGINE_TRAIN_INT_H

#include "workers/engine/train.h"

// One micro-batch: whole rows, packed, and the head rows of their trained tokens. Arrays grow only.
struct td_micro {
    int32_t tokens, batch, n;
    uint32_t *row;          // batch: rows of the td_batch
    int32_t *ids, *pos;     // tokens
    int32_t *cu;            // batch + 1
    int32_t *first;         // batch + 1: head rows of sequence i
    int32_t *rows, *target; // n
    uint32_t *token;        // n: index of the trained token in the td_batch
    double *logp, *entropy, *old, *ref, *dlogp, *dentropy; // n
    size_t row_cap, ids_cap, pos_cap, cu_cap, first_cap, rows_cap, target_cap, token_cap, logp_cap,
        entropy_cap, old_cap, ref_cap, dlogp_cap, dentropy_cap;
};

struct td_trainer {
    struct td_backend *be;
    struct td_model *m;
    struct td_train_config config;
    struct td_weights weights, reference;
    bool has_reference;
    struct td_tensor grads, exp_avg, exp_avg_sq; // flat
    struct td_comm *comm;                        // borrowed, may be NULL
    struct td_train_status status;
    uint64_t generation_max;     // no lower one is ever accepted again
    struct td_batch *batch;      // of the round under status.ref_*
    double *old_logp, *ref_logp; // batch->tokens
    struct td_micro micro;
};

// Packs rows from *row (moved on) up to end into t->micro: at most the configured tokens or rows,
// at least one row; rows without a trained token are passed over. False: nothing is left.
bool td_micro_fill(struct td_trainer *t, uint32_t *row, uint32_t end);
void td_micro_fini(struct td_micro *mb);
// Forward of t->micro under w; log-probs and entropies of its trained tokens into micro.logp and
// micro.entropy (SFT: log-probs only).
enum td_rc td_micro_forward(struct td_trainer *t, const struct td_weights *w,
                            enum td_forward_mode mode, struct td_err *err) TD_MUST_CHECK;
// Loss of t->micro in update u: adds to *loss and metrics, gradients to t->grads.
enum td_rc td_micro_backward(struct td_trainer *t, uint32_t u, double *loss,
                             struct td_metrics *metrics, struct td_err *err) TD_MUST_CHECK;

// The factor of the learning rate in the round that makes step + 1.
double td_lr_factor(const struct td_train_config *c, uint64_t step);
// What td_optim_apply did.
struct td_optim_report {
    double grad_norm, lr;
};
// Sums gradients over ranks, checks them and the loss, clips, updates weights and moments. On
// failure nothing changed.
enum td_rc td_optim_apply(struct td_trainer *t, double loss, int64_t deadline_ms,
                          struct td_optim_report *report, struct td_err *err) TD_MUST_CHECK;

// Drops the round.
void td_trainer_drop(struct td_trainer *t);

#endif
