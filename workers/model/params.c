// The parameter table, the flat layout, and sets of weights: see model.h. Command thread.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "workers/model/model_int.h"
#include "workers/model/transfer.h"

enum { ALIGN_ELEMENTS = 16, PACKED_ALIGN = 64 };

// Appends one tensor at the end of the flat buffer; fused: directly behind the one before.
static int64_t add_param(struct td_model *m, const char *name, int64_t rows, int64_t cols,
                         bool fused) {
    struct td_param *p = &m->params[m->param_count++];
    if (!fused) {
        m->elements = (m->elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    }
    int n = snprintf(p->name, sizeof p->name, "%s", name);
    td_assert_op(n, <, (int)sizeof p->name);
    p->offset = m->elements;
    p->rows = rows;
    p->cols = cols;
    m->elements += rows * cols;
    return p->offset;
}

static int64_t add_layer_param(struct td_model *m, int layer, const char *name, int64_t rows,
                               int64_t cols, bool fused) {
    char full[TD_PARAM_NAME_MAX];
    int n = snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    td_assert_op(n, <, (int)sizeof full);
    return add_param(m, full, rows, cols, fused);
}

static void add_layer(struct td_model *m, int l) {
    const struct td_model_config *c = &m->config;
    int64_t h = c->hidden_size, f = c->intermediate_size;
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    struct td_layer_at *at = &m->at[l];
    at->norm1 = add_layer_param(m, l, "input_layernorm.weight", 1, h, false);
    at->qkv = add_layer_param(m, l, "self_attn.q_proj.weight", q, h, false);
    add_layer_param(m, l, "self_attn.k_proj.weight", kv, h, true);
    add_layer_param(m, l, "self_attn.v_proj.weight", kv, h, true);
    at->bqkv = -1;
    if (c->qkv_bias) {
        at->bqkv = add_layer_param(m, l, "self_attn.q_proj.bias", 1, q, false);
        add_layer_param(m, l, "self_attn.k_proj.bias", 1, kv, true);
        add_layer_param(m, l, "self_attn.v_proj.bias", 1, kv, true);
    }
    at->o = add_layer_param(m, l, "self_attn.o_proj.weight", h, q, false);
    at->norm2 = add_layer_param(m, l, "post_attention_layernorm.weight", 1, h, false);
    at->gate_up = add_layer_param(m, l, "mlp.gate_proj.weight", f, h, false);
    add_layer_param(m, l, "mlp.up_proj.weight", f, h, true);
    at->down = add_layer_param(m, l, "mlp.down_proj.weight", h, f, false);
}

static void build_table(struct td_model *m) {
    const struct td_model_config *c = &m->config;
    size_t per_layer = c->qkv_bias ? 12 : 9;
    m->params = td_alloc_array((size_t)c->layers * per_layer + 3, sizeof *m->params);
    m->at = td_alloc_array((size_t)c->layers, sizeof *m->at);
    m->embed = add_param(m, "model.embed_tokens.weight", c->vocab_size, c->hidden_size, false);
    for (int l = 0; l < c->layers; l++) {
        add_layer(m, l);
    }
    m->norm = add_param(m, "model.norm.weight", 1, c->hidden_size, false);
    m->head =
        c->tied ? m->embed : add_param(m, "lm_head.weight", c->vocab_size, c->hidden_size, false);
    m->elements = (m->elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

// One weight with a prepared form: its place in the flat buffer and its shape.
struct gemm_weight {
    int64_t offset, rows, cols;
};

static struct gemm_weight gemm_weight_of(const struct td_model *m, int index) {
    const struct td_model_config *c = &m->config;
    int64_t h = c->hidden_size, f = c->intermediate_size, q = (int64_t)c->heads * c->head_dim;
    int64_t qkv = q + 2 * (int64_t)c->kv_heads * c->head_dim;
    if (index == c->layers * TD_PACKED_PER_LAYER) {
        return (struct gemm_weight){m->head, c->vocab_size, h};
    }
    const struct td_layer_at *at = &m->at[index / TD_PACKED_PER_LAYER];
    switch (index % TD_PACKED_PER_LAYER) {
    case TD_PACKED_QKV:
        return (struct gemm_weight){at->qkv, qkv, h};
    case TD_PACKED_O:
        return (struct gemm_weight){at->o, h, q};
    case TD_PACKED_GATE_UP:
        return (struct gemm_weight){at->gate_up, 2 * f, h};
    default:
        return (struct gemm_weight){at->down, h, f};
    }
}

static int packed_count(const struct td_model *m) {
    return m->config.layers * TD_PACKED_PER_LAYER + 1;
}

static void plan_packed(struct td_model *m) {
    m->packed_at = td_alloc_array((size_t)packed_count(m), sizeof *m->packed_at);
    for (int i = 0; i < packed_count(m); i++) {
        struct gemm_weight w = gemm_weight_of(m, i);
        size_t bytes = m->be->ops->gemm_prepared_bytes(m->be, w.rows, w.cols);
        m->packed_at[i] = m->packed_bytes;
        m->packed_bytes += (bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    }
}

// The angle's frequency of pair i. llama3: long wavelengths are slowed by factor, with a smooth
// passage between (transformers' modeling_rope_utils).
static double rope_frequency(const struct td_model_config *c, int i) {
    double inv = pow(c->rope_theta, -2.0 * i / c->head_dim);
    if (c->rope.factor == 0) {
        return inv;
    }
    double wavelength = 2 * M_PI / inv, length = c->rope.original_max_positions;
    if (wavelength > length / c->rope.low_freq_factor) {
        return inv / c->rope.factor;
    }
    if (wavelength < length / c->rope.high_freq_factor) {
        return inv;
    }
    double s = (length / wavelength - c->rope.low_freq_factor) /
               (c->rope.high_freq_factor - c->rope.low_freq_factor);
    return (1 - s) * inv / c->rope.factor + s * inv;
}

static enum td_rc build_rope(struct td_model *m, struct td_err *err) {
    const struct td_model_config *c = &m->config;
    int d = c->head_dim;
    size_t bytes = (size_t)c->max_positions * (size_t)d * td_dtype_size(m->be->dtype);
    void *p = m->be->ops->alloc(m->be, bytes);
    if (!p) {
        return td_fail(err, TD_ENOMEM, "RoPE table of %zu bytes", bytes);
    }
    m->rope = td_tensor_of(m->be, p, c->max_positions, d);
    double *row = td_alloc_array((size_t)d, 2 * sizeof *row), *freq = row + d;
    for (int i = 0; i < d / 2; i++) {
        freq[i] = rope_frequency(c, i);
    }
    for (int32_t pos = 0; pos < c->max_positions; pos++) {
        for (int i = 0; i < d / 2; i++) {
            row[i] = cos(pos * freq[i]);
            row[d / 2 + i] = sin(pos * freq[i]);
        }
        td_transfer_put_f64(m->be, td_transfer_at(m->be, p, (int64_t)pos * d), row, (size_t)d);
    }
    td_free(row);
    return TD_OK;
}

enum td_rc td_model_new(struct td_backend *be, const struct td_model_config *config,
                        struct td_model **out, struct td_err *err) {
    enum td_rc rc = td_model_config_check(config, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_model *m = td_alloc(sizeof *m);
    m->be = be;
    m->config = *config;
    m->acts = td_alloc_array((size_t)config->layers, sizeof *m->acts);
    build_table(m);
    plan_packed(m);
    rc = build_rope(m, err);
    if (rc != TD_OK) {
        td_model_free(m);
        return rc;
    }
    *out = m;
    return TD_OK;
}

void td_model_free(struct td_model *m) {
    if (!m) {
        return;
    }
    void *device[] = {m->rope.p, m->act_slab.p, m->head_slab.p, m->logit_slab.p};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) {
        if (device[i]) {
            m->be->ops->release(m->be, device[i]);
        }
    }
    void *host[] = {
        m->params, m->at, m->packed_at, m->acts, m->head_rows.rows, m->head_rows.target, m->ids,
        m->pos,    m->cu, m->out,       m};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        td_free(host[i]);
    }
}

const struct td_model_config *td_model_config(const struct td_model *m) {
    return &m->config;
}

struct td_backend *td_model_backend(const struct td_model *m) {
    return m->be;
}

int td_model_param_count(const struct td_model *m) {
    return m->param_count;
}

const struct td_param *td_model_param(const struct td_model *m, int i) {
    td_assert(i >= 0 && i < m->param_count);
    return &m->params[i];
}

int64_t td_model_elements(const struct td_model *m) {
    return m->elements;
}

struct td_tensor td_flat_view(const struct td_model *m, const struct td_tensor *flat,
                              int64_t offset, int64_t rows, int64_t cols) {
    return td_tensor_of(m->be, td_transfer_at(m->be, flat->p, offset), rows, cols);
}

enum td_rc td_model_flat_new(struct td_model *m, struct td_tensor *out, struct td_err *err) {
    size_t bytes = (size_t)m->elements * td_dtype_size(m->be->dtype);
    void *p = m->be->ops->alloc(m->be, bytes);
    if (!p) {
        return td_fail(err, TD_ENOMEM, "%zu bytes for %" PRId64 " parameters", bytes, m->elements);
    }
    *out = td_tensor_of(m->be, p, 1, m->elements);
    return TD_OK;
}

enum td_rc td_weights_new(struct td_model *m, struct td_weights *out, struct td_err *err) {
    struct td_weights w = {.owned = true};
    enum td_rc rc = td_model_flat_new(m, &w.flat, err);
    if (rc == TD_OK) {
        *out = w;
    }
    return rc;
}

void td_weights_fini(struct td_model *m, struct td_weights *w) {
    if (w->owned && w->flat.p) {
        m->be->ops->release(m->be, w->flat.p);
    }
    if (w->packed) {
        m->be->ops->release(m->be, w->packed);
    }
    *w = (struct td_weights){0};
}

enum td_rc td_weights_prepare(struct td_model *m, struct td_weights *w, struct td_err *err) {
    if (m->packed_bytes == 0) {
        return TD_OK;
    }
    if (!w->packed) {
        w->packed = m->be->ops->alloc(m->be, m->packed_bytes);
    }
    if (!w->packed) {
        return td_fail(err, TD_ENOMEM, "%zu bytes for prepared weights", m->packed_bytes);
    }
    for (int i = 0; i < packed_count(m); i++) {
        struct gemm_weight g = gemm_weight_of(m, i);
        struct td_tensor view = td_flat_view(m, &w->flat, g.offset, g.rows, g.cols);
        m->be->ops->gemm_prepare(m->be, &view, (char *)w->packed + m->packed_at[i]);
    }
    return TD_OK;
}

const void *td_packed_of(const struct td_model *m, const struct td_weights *w, int index) {
    return m->packed_bytes ? (char *)w->packed + m->packed_at[index] : NULL;
}

// ln of 0 < x < 1 by the series of atanh: sums and products only, so that every machine gives the
// same bits (a C library's log may differ in the last one). Relative error below 1e-15.
static double ln(double x) {
    int e;
    double mant = frexp(x, &e);
    if (mant < 0.70710678118654752) {
        mant *= 2;
        e--;
    }
    double f = (mant - 1) / (mant + 1), f2 = f * f, sum = 0;
    for (int k = 21; k >= 1; k -= 2) {
        sum = sum * f2 + 1.0 / k;
    }
    return 2 * f * sum + e * 0.69314718055994531;
}

// A standard normal number by Marsaglia's polar method; rejected pairs go on at the next counter.
static double normal_at(uint64_t key, uint64_t element) {
    for (uint32_t attempt = 0;; attempt++) {
        struct td_philox r =
            td_philox4x32(key, (uint32_t)element, (uint32_t)(element >> 32), attempt, 0);
        double unit = 1.0 / 9007199254740992.0; // 2^-53
        double x = 2 * unit * (double)(((uint64_t)r.v[0] << 32 | r.v[1]) >> 11) - 1;
        double y = 2 * unit * (double)(((uint64_t)r.v[2] << 32 | r.v[3]) >> 11) - 1;
        double s = x * x + y * y;
        if (s > 0 && s < 1) {
            return x * sqrt(-2 * ln(s) / s);
        }
    }
}

void td_weights_random(struct td_model *m, struct td_weights *w, uint64_t seed) {
    enum { PIECE = 1024 };
    for (int i = 0; i < m->param_count; i++) {
        const struct td_param *p = &m->params[i];
        uint64_t name = td_digest64(0, p->name, strlen(p->name));
        uint64_t key = td_hash_u64(td_mix64(seed), name);
        int64_t n = p->rows * p->cols;
        bool norm = strstr(p->name, "norm.weight") != NULL;
        bool drawn = !norm && strstr(p->name, ".bias") == NULL;
        for (int64_t at = 0; at < n; at += PIECE) {
            float piece[PIECE];
            int64_t count = n - at < PIECE ? n - at : PIECE;
            for (int64_t k = 0; k < count; k++) {
                double x =
                    drawn ? m->config.initializer_range * normal_at(key, (uint64_t)(at + k)) : norm;
                piece[k] = (float)x;
            }
            td_transfer_put_f32(m->be, td_transfer_at(m->be, w->flat.p, p->offset + at), piece,
                                (size_t)count);
        }
    }
}

void td_model_digest_as(struct td_model *m, const struct td_tensor *flat, const char *prefix,
                        uint64_t *out) {
    for (int i = 0; i < m->param_count; i++) {
        const struct td_param *p = &m->params[i];
        uint64_t name = td_digest64(0, p->name, strlen(p->name));
        if (prefix) {
            name = td_digest64(name, prefix, strlen(prefix));
        }
        m->be->ops->digest(m->be, &(struct td_digest_args){
                                      .x = td_flat_view(m, flat, p->offset, 1, p->rows * p->cols),
                                      .name = name,
                                      .out = out});
    }
}

uint64_t td_weights_digest(struct td_model *m, const struct td_tensor *flat) {
    uint64_t sum = 0;
    td_model_digest_as(m, flat, NULL, &sum);
    return sum;
}
