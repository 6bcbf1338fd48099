// The op table: everything that touches tensor memory. Model code is written once against it; cpu
// (fp32), ref (naive, double) and later cuda fill it in.
//
// Conventions. A tensor is a 2-D view: rows × cols elements, row r starts at p + r*ld elements,
// columns are contiguous. T = packed tokens, h = hidden, H/K = query/kv heads, d = head_dim, f =
// FFN width, V = vocabulary, B = sequences. Weights have HF layout [out, in]. All of a backend's
// floating tensors have dtype be->dtype, statistics (rstd, lse, logp, entropy) too. acc = true
// means +=. Integer arrays (ids, positions, offsets) are host memory, read before the call returns.
// Ops return nothing: the first failure is kept and given by check(); on the CPU only scratch
// memory can be lacking, and the op is then left undone. One thread per backend calls its ops.
//
// Promise of cpu: the value of an output element depends on its inputs only: not on the other rows,
// the number of rows, the vector width, or the number of threads. Every reduction has one fixed
// order. So decode, prefill, scoring and training forward give equal bits.
#ifndef TD_WORKERS_BACKEND_BACKEND_H
#define TD_WORKERS_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

enum td_dtype { TD_F32, TD_F64, TD_BF16, TD_F16 }; // the last two exist in files only, for now

struct td_tensor {
    void *p; // device memory of the backend
    enum td_dtype dtype;
    int64_t rows, cols, ld;
};

struct td_backend;

struct td_copy_args { // bytes between host and device or within the device
    void *dst;
    const void *src;
    size_t bytes;
    enum { TD_COPY_H2D, TD_COPY_D2H, TD_COPY_D2D } kind;
};

struct td_fill_args {
    struct td_tensor y;
    double value;
};

struct td_embed_args { // fwd: y[T,h] = w[ids[t], :];  bwd: dw[ids[t], :] += dy[t, :], t ascending
    struct td_tensor w, y;
    const int32_t *ids; // T
};

struct td_rmsnorm_args { // x' = x (+ res; written back to x when res.p); y = x'·rstd·w; rstd[T] =
                         // 1/sqrt(mean(x'^2)+eps)
    struct td_tensor x, res, w, y, rstd;
    double eps;
};

struct td_rmsnorm_bwd_args { // dx[T,h] (acc) and dw[h] += from dy, x, w, rstd; dw's sum over t
                             // ascending
    struct td_tensor dy, x, w, rstd, dx, dw;
    bool acc;
};

enum td_gemm_kind {
    TD_GEMM_NT, // C[M,N] = A[M,K] · B[N,K]ᵀ   forward: x·Wᵀ
    TD_GEMM_NN, // C[M,N] = A[M,K] · B[K,N]    dX = dY·W
    TD_GEMM_TN, // C[M,N] = A[K,M]ᵀ · B[K,N]   dW = dYᵀ·X, the chain runs over tokens ascending
};

struct td_gemm_args { // each output is one chain of fused multiply-adds over k ascending, from 0
                      // (or from C when acc)
    enum td_gemm_kind kind;
    struct td_tensor a, b, c;
    struct td_tensor bias; // [1,N], added last; p = NULL: none; not with acc
    const void *packed;    // prepared form of b (NT only) by gemm_prepare, or NULL
    bool acc;
};

struct td_bias_grad_args { // db[1,N] += Σ_t dy[t,N], t ascending
    struct td_tensor dy, db;
};

struct td_rope_args { // in place on columns [0, heads*d) of x: rotate-half (NEOX) by
                      // tab[pos][d/2]{cos,sin}
    struct td_tensor x;
    const struct td_tensor *tab; // [max_pos, d] : d/2 cosines, then d/2 sines
    const int32_t *pos;          // T
    int heads, head_dim;
    bool inverse; // backward: rotate by −θ
};

struct td_attn_args { // causal self-attention in packed sequences; views q[T,H*d], k[T,K*d],
                      // v[T,K*d], o[T,H*d], lse[T,H]
    struct td_tensor q, k, v, o, lse;
    const int32_t *cu; // B+1 offsets
    int batch, heads, kv_heads, head_dim;
    double scale;
};

struct td_attn_bwd_args { // dq, dk, dv overwritten
    struct td_attn_args fwd;
    struct td_tensor d_o, dq, dk, dv;
};

struct td_kv_store_args { // page layout [pages][2: k, v][page_tokens][K*d]; slot[t] =
                          // page*page_tokens + place; −1 skips
    struct td_tensor k, v;
    void *pages;
    const int64_t *slot; // T
    int page_tokens, kv_heads, head_dim;
};

struct td_attn_paged_args { // query t of sequence b sees its kv 0 .. kvlen[b] − (queries of b after
                            // t) − 1; same order
    struct td_tensor q, o; // as attn_fwd, so the bits are equal
    const void *pages;
    const int32_t *table; // [batch][table_stride] page numbers
    int table_stride;
    const int32_t *qcu;   // batch+1
    const int32_t *kvlen; // batch
    int batch, heads, kv_heads, head_dim, page_tokens;
    double scale;
};

struct td_swiglu_args { // y[T,f] = silu(gu[:, :f]) · gu[:, f:];  bwd: dgu from dy, gu, and y once
                        // more (the same bits) where y.p
    struct td_tensor gu, y, dy, dgu;
};

struct td_axpby_args { // y = alpha·x + beta·y
    struct td_tensor x, y;
    double alpha, beta;
};

struct td_rows_args { // gather: y[i,:] = x[idx[i],:];  scatter_add: x[idx[i],:] += y[i,:], i
                      // ascending
    struct td_tensor x, y;
    const int32_t *idx; // y.rows
};

struct td_logprob_args {   // z = x·wᵀ / temperature in chunks of rows; logp = z[target] − lse;
                           // entropy = lse − Σ p·z
    struct td_tensor x;    // [n,h]
    struct td_tensor w;    // [V,h]
    const void *packed;    // of w, or NULL
    const int32_t *target; // n
    double inv_temp;
    int chunk;                           // rows at a time, ≥ 1; does not change a bit
    struct td_tensor logp, lse, entropy; // [n,1]; entropy.p may be NULL
};

struct td_logprob_bwd_args { // dz = (dlogp·(1[target] − p) − dent·p·(z − lse + ent))·inv_temp; dx
                             // overwritten, dw +=
    struct td_logprob_args fwd;
    struct td_tensor dlogp, dentropy; // [n,1]; dentropy.p may be NULL
    struct td_tensor dx, dw;
};

struct td_sample_row {
    uint64_t key;      // td_sampling_key
    uint32_t position; // of the token being drawn, counted from the start of the sequence
    float inv_temp;    // 0: greedy
    int32_t top_k;     // ≤ 0: off
    float top_p;       // ≥ 1: off
};

struct td_sample_args { // id = argmax(z/T + Gumbel(key, position, i)) over i allowed; ties to the
                        // lowest id
    struct td_tensor z; // [n,V] logits without temperature
    const struct td_sample_row *row; // n
    const uint8_t *allowed;          // V bytes or NULL: ids the tokenizer knows
    int32_t *id;                     // n, host
    float *logp; // n, host: log-prob at the same temperature, of the unfiltered distribution,
                 // by the very arithmetic of logprob_fwd (greedy: at temperature 1)
};

struct td_sumsq_args { // *out += Σ g² (double, fixed order over elements ascending in blocks of
                       // 4096)
    struct td_tensor g;
    double *out;
};

struct td_adamw_args { // as torch.optim.AdamW: p −= lr·wd·p; m,v; p −= lr/bc1 · m / (sqrt(v/bc2) +
                       // eps); g scaled first
    struct td_tensor p, g, m, v;
    double lr, beta1, beta2, eps, weight_decay, bc1, bc2, grad_scale;
};

struct td_digest_args { // *out += Σ_i mix(name, first_index + i, bits of element i): design §3.8
    struct td_tensor x;
    uint64_t name; // td_digest64 of the HF name
    uint64_t first_index;
    uint64_t *out;
};

struct td_backend_ops {
    const char *name;
    void *(*alloc)(struct td_backend *be, size_t bytes); // zeroed; NULL: no memory
    void (*release)(struct td_backend *be, void *p);
    void (*copy)(struct td_backend *be, const struct td_copy_args *a);
    void (*fill)(struct td_backend *be, const struct td_fill_args *a);
    void (*embed_fwd)(struct td_backend *be, const struct td_embed_args *a);
    void (*embed_bwd)(struct td_backend *be, const struct td_embed_args *a); // w = dw, y = dy
    void (*rmsnorm_fwd)(struct td_backend *be, const struct td_rmsnorm_args *a);
    void (*rmsnorm_bwd)(struct td_backend *be, const struct td_rmsnorm_bwd_args *a);
    // Bytes of the prepared form of an NT weight [N,K]; 0: this backend prepares nothing.
    size_t (*gemm_prepared_bytes)(struct td_backend *be, int64_t n, int64_t k);
    void (*gemm_prepare)(struct td_backend *be, const struct td_tensor *w, void *packed);
    void (*gemm)(struct td_backend *be, const struct td_gemm_args *a);
    void (*bias_grad)(struct td_backend *be, const struct td_bias_grad_args *a);
    void (*rope)(struct td_backend *be, const struct td_rope_args *a);
    void (*attn_fwd)(struct td_backend *be, const struct td_attn_args *a);
    void (*attn_bwd)(struct td_backend *be, const struct td_attn_bwd_args *a);
    void (*kv_store)(struct td_backend *be, const struct td_kv_store_args *a);
    void (*attn_paged)(struct td_backend *be, const struct td_attn_paged_args *a);
    void (*swiglu_fwd)(struct td_backend *be, const struct td_swiglu_args *a);
    void (*swiglu_bwd)(struct td_backend *be, const struct td_swiglu_args *a);
    void (*axpby)(struct td_backend *be, const struct td_axpby_args *a);
    void (*rows_gather)(struct td_backend *be, const struct td_rows_args *a);
    void (*rows_scatter_add)(struct td_backend *be, const struct td_rows_args *a);
    void (*logprob_fwd)(struct td_backend *be, const struct td_logprob_args *a);
    void (*logprob_bwd)(struct td_backend *be, const struct td_logprob_bwd_args *a);
    void (*sample)(struct td_backend *be, const struct td_sample_args *a);
    void (*sumsq)(struct td_backend *be, const struct td_sumsq_args *a);
    void (*adamw)(struct td_backend *be, const struct td_adamw_args *a);
    void (*digest)(struct td_backend *be, const struct td_digest_args *a);
    // Waits for all ops so far; the first failure since the last check.
    enum td_rc (*check)(struct td_backend *be, struct td_err *err);
    void (*free)(struct td_backend *be);
};

struct td_backend {
    const struct td_backend_ops *ops;
    enum td_dtype dtype; // of weights, activations, gradients, optimizer state and statistics
};

// threads ≥ 1: static partition over an own pool. isa: NULL picks the widest the CPU has; "scalar",
// "avx2" or "avx512" force one (tests: all give equal bits); an unknown or missing one is
// TD_EUNSUPPORTED.
enum td_rc td_backend_cpu_new(int threads, const char *isa, struct td_backend **out,
                              struct td_err *err) TD_MUST_CHECK;
// Naive loops in double.
struct td_backend *td_backend_ref_new(void);
void td_backend_free(struct td_backend *be); // accepts NULL

// Bytes of one element.
size_t td_dtype_size(enum td_dtype dtype);
// A view of rows × cols at p (ld = cols).
struct td_tensor td_tensor_of(const struct td_backend *be, void *p, int64_t rows, int64_t cols);

#endif
