// Inside the reference backend: element access, and the ops that stand in other files than the
// table.
#ifndef TD_WORKERS_BACKEND_REF_REF_INT_H
#define TD_WORKERS_BACKEND_REF_REF_INT_H

#include "workers/backend/backend.h"

static inline double *at(const struct td_tensor *x, int64_t row, int64_t col) {
    return (double *)x->p + row * x->ld + col;
}

// attn.c
void td_ref_attn_fwd(struct td_backend *be, const struct td_attn_args *a);
void td_ref_attn_bwd(struct td_backend *be, const struct td_attn_bwd_args *a);
void td_ref_kv_store(struct td_backend *be, const struct td_kv_store_args *a);
void td_ref_attn_paged(struct td_backend *be, const struct td_attn_paged_args *a);
// head.c
void td_ref_logprob_fwd(struct td_backend *be, const struct td_logprob_args *a);
void td_ref_logprob_bwd(struct td_backend *be, const struct td_logprob_bwd_args *a);
void td_ref_sample(struct td_backend *be, const struct td_sample_args *a);

#endif
