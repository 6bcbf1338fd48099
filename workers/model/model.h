// A decoder-only transformer of the Llama and Qwen2 families: configuration, parameters in one flat
// order, forward and hand-written backward over the op table. Owned by the worker's command thread.
//
// Memory order of parameters: per HF tensor, in the order of td_model_param(0..n-1): embed_tokens,
// then per layer input_layernorm, q, k, v (adjacent: one fused [(H+2K)d, h] GEMM), their biases
// (adjacent), o, post_attention_layernorm, gate, up (adjacent: one fused [2f, h] GEMM), down; then
// norm, then lm_head unless tied. Every tensor starts at a multiple of 16 elements, except inside a
// fused group, which is contiguous.
#ifndef TD_WORKERS_MODEL_MODEL_H
#define TD_WORKERS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "workers/backend/backend.h"

enum { TD_PARAM_NAME_MAX = 96, TD_STOP_IDS_MAX = 16 };

struct td_model_config { // of config.json
    int32_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim,
        max_positions;
    double rms_norm_eps, rope_theta, initializer_range;
    bool tied, qkv_bias;
    struct { // llama3 scaling; factor 0: none
        double factor, low_freq_factor, high_freq_factor;
        int32_t original_max_positions;
    } rope;
    int32_t stop_ids[TD_STOP_IDS_MAX]; // config.eos ∪ generation_config.eos
    int32_t stop_count;
    enum td_dtype file_dtype; // torch_dtype | dtype; F32 when absent
};

// Reads dir/config.json (and generation_config.json when there). Unknown architectures, rope types,
// activations, sliding windows and bad shapes are errors that name file and key.
enum td_rc td_model_config_load(const char *dir, struct td_model_config *out,
                                struct td_err *err) TD_MUST_CHECK;

struct td_param {
    char name[TD_PARAM_NAME_MAX]; // HF name
    int64_t offset;               // elements from the start of the flat buffer
    int64_t rows, cols;           // vectors: rows = 1
};

struct td_model; // configuration, parameter table, rope table, scratch plan; no weights

enum td_rc td_model_new(struct td_backend *be, const struct td_model_config *config,
                        struct td_model **out, struct td_err *err) TD_MUST_CHECK;
void td_model_free(struct td_model *m);
const struct td_model_config *td_model_config(const struct td_model *m);
struct td_backend *td_model_backend(const struct td_model *m);
int td_model_param_count(const struct td_model *m);
const struct td_param *td_model_param(const struct td_model *m, int i);
int64_t td_model_elements(
    const struct td_model *m); // length of the flat buffer, padding included (padding is zero)

// A set of weights: the flat buffer in device memory and the prepared GEMM forms. Several sets may
// live at once (current, next, reference).
struct td_weights {
    struct td_tensor flat; // [1, elements]
    void *packed;          // prepared forms, laid out by the model; NULL before td_weights_prepare
    bool owned;            // flat.p is ours
};

// Allocates zeroed weights. TD_ENOMEM names the size.
enum td_rc td_weights_new(struct td_model *m, struct td_weights *out,
                          struct td_err *err) TD_MUST_CHECK;
void td_weights_fini(struct td_model *m, struct td_weights *w);
// Must follow every change of flat before the next forward. The first call allocates the prepared
// forms: TD_ENOMEM names the size.
enum td_rc td_weights_prepare(struct td_model *m, struct td_weights *w,
                              struct td_err *err) TD_MUST_CHECK;
// Random initial weights as HF does: normal(0, initializer_range) by Philox keyed (seed, HF name,
// element), norms 1, biases 0. The result depends on seed and shapes only.
void td_weights_random(struct td_model *m, struct td_weights *w, uint64_t seed);
// Σ over elements of HF-named tensors of mix(name, index, bits).
uint64_t td_weights_digest(struct td_model *m, const struct td_tensor *flat);
// Adds the same of another flat buffer (gradients, moments) whose tensors are told from the weights
// by a prefix of their names.
void td_model_digest_as(struct td_model *m, const struct td_tensor *flat, const char *prefix,
                        uint64_t *out);
// A zeroed flat buffer for gradients or moments; release by the backend's release(flat.p).
enum td_rc td_model_flat_new(struct td_model *m, struct td_tensor *out,
                             struct td_err *err) TD_MUST_CHECK;

// Pages of keys and values that cached sequences continue.
struct td_kv_view {
    void *const *pages; // one page array per layer (device)
    int page_tokens;
    const int64_t *slot; // tokens
    const int32_t *table;
    int table_stride;
    const int32_t *kvlen; // batch, after this call's tokens
};

// A packed batch of at least one token. In cached mode sequences continue what their pages hold;
// else they are whole.
struct td_packed {
    int32_t tokens, batch;
    const int32_t *ids;          // tokens
    const int32_t *pos;          // tokens: place in its sequence
    const int32_t *cu;           // batch + 1
    const struct td_kv_view *kv; // cached mode, else NULL
    // Rows whose hidden state is wanted, ascending; NULL: all. The others leave the last layer
    // after its attention, which changes no bit of these.
    const int32_t *out; // outs ≥ 1
    int32_t outs;
};

enum td_forward_mode {
    TD_FORWARD_TRAIN,  // keeps what backward needs, in the activation slab of td_model
    TD_FORWARD_SCORE,  // keeps nothing
    TD_FORWARD_CACHED, // batch->kv: stores k, v and attends over pages (prefill, chunked prefill,
                       // decode)
};

// Runs the layers. *hidden receives a view [tokens, h] ([outs, h] when batch->out) after the final
// norm, valid until the next forward of m. Ids outside the vocabulary and positions beyond
// max_positions are TD_EINVAL.
enum td_rc td_model_forward(struct td_model *m, const struct td_weights *w,
                            const struct td_packed *batch, enum td_forward_mode mode,
                            struct td_tensor *hidden, struct td_err *err) TD_MUST_CHECK;

// Rows of hidden for the head, at least one.
struct td_head_rows {
    int32_t n;
    const int32_t *rows;    // n rows of hidden; NULL: all, in order
    const int32_t *target;  // n ids; td_model_logits needs none
    double temperature;     // > 0; not of td_model_logits
    double *logp, *entropy; // outputs, host, n; entropy may be NULL
};

// Log-probs of targets (and entropies) at a temperature. After TRAIN it keeps what
// td_model_backward needs.
enum td_rc td_model_logprob(struct td_model *m, const struct td_weights *w,
                            const struct td_tensor *hidden, const struct td_head_rows *rows,
                            struct td_err *err) TD_MUST_CHECK;

// Gradients of the last TRAIN forward and the td_model_logprob after it: host dlogp[n], dentropy[n]
// (NULL: zero; else the entropy must have been asked for). Adds to grads, a flat buffer.
enum td_rc td_model_backward(struct td_model *m, const struct td_weights *w, const double *dlogp,
                             const double *dentropy, const struct td_tensor *grads,
                             struct td_err *err) TD_MUST_CHECK;

// Logits [n, V] without temperature of chosen rows, in model scratch until the next call.
enum td_rc td_model_logits(struct td_model *m, const struct td_weights *w,
                           const struct td_tensor *hidden, const struct td_head_rows *rows,
                           struct td_tensor *logits, struct td_err *err) TD_MUST_CHECK;

// Fills weights (of td_weights_new) from dir/model.safetensors, or from the shards of
// dir/model.safetensors.index.json. F32, BF16 and F16 are read. Tensors that are missing, unknown
// or of another shape, and non-finite numbers, are TD_EINVAL naming tensor, file and what was
// expected. A lm_head.weight beside tied embeddings must equal them. Prepare afterwards.
enum td_rc td_weights_load(struct td_model *m, struct td_weights *w, const char *dir,
                           struct td_err *err) TD_MUST_CHECK;

#endif
