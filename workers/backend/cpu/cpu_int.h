// Inside the cpu backend: its state, how it cuts work, and the ops that stand in other files than
// the table.
#ifndef TD_WORKERS_BACKEND_CPU_CPU_INT_H
#define TD_WORKERS_BACKEND_CPU_CPU_INT_H

#include "workers/backend/cpu/kernels.h"
#include "workers/backend/cpu/pool.h"

enum td_scratch {      // who uses it; each grows to the largest size asked for
    TD_SCRATCH_PARTS,  // slices, one a thread, within one op
    TD_SCRATCH_LOGITS, // head.c
    TD_SCRATCH_WEIGHT, // head.c: the packed vocabulary matrix, when the caller has none
    TD_SCRATCH_SUMS,   // partial sums
    TD_SCRATCH_COUNT
};

struct td_cpu {
    struct td_backend base; // first: ops get it as struct td_backend
    const struct td_kernels *kernels;
    struct td_pool *pool;
    struct {
        void *p;
        size_t bytes;
    } scratch[TD_SCRATCH_COUNT];
    size_t no_memory; // bytes of the first scratch that could not be had; 0: none
};

static inline struct td_cpu *td_cpu_of(struct td_backend *be) {
    return (struct td_cpu *)be;
}

static inline float *td_cpu_row(const struct td_tensor *x, int64_t row) {
    return (float *)x->p + row * x->ld;
}

// At least bytes, aligned to 64, contents undefined; NULL and no_memory set when there is none.
void *td_cpu_scratch(struct td_cpu *cpu, enum td_scratch which, size_t bytes);

// How many parts work (in multiply-adds or the like) is worth: 1 or all threads.
int td_cpu_parts(const struct td_cpu *cpu, int64_t work);
// Runs fn on all parts, or here alone when parts = 1.
void td_cpu_run(struct td_cpu *cpu, int parts, td_pool_fn fn, void *arg);
// Runs fn(args, lo, hi) over 0..n in shares of whole grains; work as above.
struct td_range {
    int64_t n, grain;
};
void td_cpu_ranges(struct td_cpu *cpu, td_range_fn fn, const void *args, struct td_range range,
                   int64_t work);

// gemm.c
size_t td_cpu_gemm_prepared_bytes(struct td_backend *be, int64_t n, int64_t k);
void td_cpu_gemm_prepare(struct td_backend *be, const struct td_tensor *w, void *packed);
void td_cpu_gemm(struct td_backend *be, const struct td_gemm_args *a);
// attn.c
void td_cpu_attn_fwd(struct td_backend *be, const struct td_attn_args *a);
void td_cpu_attn_bwd(struct td_backend *be, const struct td_attn_bwd_args *a);
void td_cpu_kv_store(struct td_backend *be, const struct td_kv_store_args *a);
void td_cpu_attn_paged(struct td_backend *be, const struct td_attn_paged_args *a);
// head.c
void td_cpu_logprob_fwd(struct td_backend *be, const struct td_logprob_args *a);
void td_cpu_logprob_bwd(struct td_backend *be, const struct td_logprob_bwd_args *a);
void td_cpu_sample(struct td_backend *be, const struct td_sample_args *a);

#endif
