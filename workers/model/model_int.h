// What the files of this folder share; see model.h.
#ifndef TD_WORKERS_MODEL_MODEL_INT_H
#define TD_WORKERS_MODEL_MODEL_INT_H

#include <jansson.h>

#include "workers/model/model.h"

enum { TD_LAYERS_MAX = 4096 };
#define TD_ROPE_THETA 10000.0 // both families' default

// Reads a JSON object; duplicate keys and syntax errors are TD_EINVAL with path:line:column.
enum td_rc td_json_load(const char *path, json_t **out, struct td_err *err) TD_MUST_CHECK;

// Relations between the sizes that the op table relies on.
enum td_rc td_model_config_check(const struct td_model_config *c, struct td_err *err) TD_MUST_CHECK;

// Device memory that only grows. Contents are undefined after td_slab_fit.
struct td_slab {
    void *p;
    size_t bytes;
};
enum td_rc td_slab_fit(struct td_backend *be, struct td_slab *slab, size_t bytes,
                       struct td_err *err) TD_MUST_CHECK;

// Offsets (elements in the flat buffer) of one layer's GEMM weights and vectors; bqkv −1: none.
struct td_layer_at {
    int64_t norm1, qkv, bqkv, o, norm2, gate_up, down;
};

// The GEMM weights with a prepared form, in the order of td_weights.packed: per layer these four,
// then the head.
enum td_packed_kind {
    TD_PACKED_QKV,
    TD_PACKED_O,
    TD_PACKED_GATE_UP,
    TD_PACKED_DOWN,
    TD_PACKED_PER_LAYER
};

// Views of the residual stream and of what a layer computes. In TRAIN mode each layer has its own
// (backward reads them); else all layers share one.
struct td_layer_acts {
    struct td_tensor x;            // [T,h] residual stream before the layer
    struct td_tensor qkv;          // [T,(H+2K)d] after bias and RoPE
    struct td_tensor o;            // [T,H·d] attention output
    struct td_tensor lse;          // [T,H]
    struct td_tensor mid;          // [T,h] residual stream after attention
    struct td_tensor gu;           // [T,2f]
    struct td_tensor rstd1, rstd2; // [T,1]
};

// What one call needs beyond that, reused by every layer.
struct td_scratch {
    struct td_tensor norm;     // [T,h] normed input; hidden at the end
    struct td_tensor act;      // [T,f] SwiGLU product
    struct td_tensor x_end;    // [T,h] residual stream after the last layer
    struct td_tensor rstd_end; // [T,1]
    struct td_tensor x_out;    // [outs,h] x and o of the last layer, where not all rows are wanted
    struct td_tensor o_out;    // [outs,H·d]
    // backward
    struct td_tensor d_res, d_norm; // [T,h]
    struct td_tensor d_act;         // [T,f]
    struct td_tensor d_gu;          // [T,2f]
    struct td_tensor d_qkv;         // [T,(H+2K)d]
    struct td_tensor d_o;           // [T,H·d]
};

// The head's rows of the last td_model_logprob.
struct td_head {
    struct td_tensor x, dx;              // [n,h]
    struct td_tensor logp, lse, entropy; // [n,1]
    struct td_tensor d_logp, d_entropy;  // [n,1]
    int32_t *rows, *target;              // host copies, n
    size_t rows_cap, target_cap;
    int32_t n;
    double inv_temp;
    bool has_entropy, kept; // kept: belongs to the last TRAIN forward
    bool all;               // every row of hidden: x is hidden itself
};

struct td_model {
    struct td_backend *be;
    struct td_model_config config;
    struct td_param *params;
    int param_count;
    int64_t elements, embed, norm, head; // offsets; head = embed when tied
    struct td_layer_at *at;              // layers
    size_t *packed_at;                   // byte offsets, TD_PACKED_PER_LAYER × layers + 1 (head)
    size_t packed_bytes;
    struct td_tensor rope; // [max_positions, d]

    struct td_layer_acts *acts; // layers
    struct td_scratch scratch;
    struct td_head head_rows;
    struct td_slab act_slab, head_slab, logit_slab;
    // the batch of the last TRAIN forward, copied
    int32_t *ids, *pos, *cu, *out;
    size_t ids_cap, pos_cap, cu_cap, out_cap;
    int32_t tokens, batch, outs; // outs 0: all rows
    bool trained;                // a TRAIN forward is held
};

// A view of rows × cols at an offset of a flat buffer.
struct td_tensor td_flat_view(const struct td_model *m, const struct td_tensor *flat,
                              int64_t offset, int64_t rows, int64_t cols);
// The prepared form, or NULL.
const void *td_packed_of(const struct td_model *m, const struct td_weights *w, int index);

// Columns [first, first + cols) of a tensor.
struct td_tensor td_columns(const struct td_backend *be, const struct td_tensor *t, int64_t first,
                            int64_t cols);
// The attention of layer l over the activations of the last plan.
struct td_attn_args td_layer_attn(const struct td_model *m, int l, const int32_t *cu, int batch);
// The head's [V,h] matrix in a flat buffer.
struct td_tensor td_head_weight(const struct td_model *m, const struct td_tensor *flat);
// The op arguments of the last td_model_logprob.
struct td_logprob_args td_head_args(struct td_model *m, const struct td_weights *w);

// Lays out activations and scratch for a batch.
enum td_rc td_acts_plan(struct td_model *m, const struct td_packed *batch, bool train,
                        struct td_err *err) TD_MUST_CHECK;

#endif
