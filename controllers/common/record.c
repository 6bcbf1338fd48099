// The rollout record's codec: see record.h. Pure; any thread.
#include "controllers/common/record.h"

#include <math.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"

enum { PREFIX = 16, ALIGN = 64, FORMAT = 1, HEADER_BYTES_MAX = 8 << 20 };

static const char record_magic[4] = {'T', 'D', 'R', 'R'};

struct column {
    const char *name, *type;
    size_t element;
};

enum { COLUMN_TOK, COLUMN_LOGP, COLUMN_MASK, COLUMN_REWARD, COLUMN_COUNT };

static const struct column required[COLUMN_COUNT] = {
    {"tok", "i32", 4}, {"logp", "f32", 4}, {"loss_mask", "u8", 1}, {"reward", "f64", 8}};

static size_t aligned(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t element_of(const char *type) {
    static const struct column types[] = {
        {NULL, "i32", 4}, {NULL, "f32", 4}, {NULL, "u8", 1}, {NULL, "f64", 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].type, type) == 0) {
            return types[i].element;
        }
    }
    return 0;
}

// All columns to be written: the required ones and the others.
static size_t list_columns(const struct td_rollout_record *r, struct td_rollout_column *out) {
    uint64_t rewards = r->samples * (r->components ? r->components : 1);
    const void *data[COLUMN_COUNT] = {r->tok, r->logp, r->loss_mask, r->reward};
    const uint64_t counts[COLUMN_COUNT] = {r->tokens, r->tokens, r->tokens, rewards};
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        out[i] = (struct td_rollout_column){required[i].name, required[i].type, data[i], counts[i]};
    }
    td_assert_op(r->extra_count, <=, TD_ROLLOUT_EXTRA_MAX);
    memcpy(out + COLUMN_COUNT, r->extra, r->extra_count * sizeof *r->extra);
    return COLUMN_COUNT + r->extra_count;
}

void td_rollout_record_encode(const struct td_rollout_record *r, struct td_buf *out) {
    struct td_rollout_column list[TD_ROLLOUT_COLUMNS_MAX];
    Tandem__Rollout__Column columns[TD_ROLLOUT_COLUMNS_MAX], *pointers[TD_ROLLOUT_COLUMNS_MAX];
    size_t count = list_columns(r, list), at = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        size_t size = list[i].count * element_of(list[i].type);
        tandem__rollout__column__init(&columns[i]);
        columns[i].name = (char *)list[i].name;
        columns[i].type = (char *)list[i].type;
        columns[i].count = list[i].count;
        columns[i].offset = at;
        columns[i].crc = td_crc32c(0, list[i].data, size);
        end = at + size;
        at = aligned(end);
        pointers[i] = &columns[i];
    }
    Tandem__Rollout__Header header = *r->header;
    header.columns = pointers;
    header.n_columns = count;
    size_t n = tandem__rollout__header__get_packed_size(&header);
    size_t base = aligned(PREFIX + n), total = base + end;
    uint8_t *to = td_buf_room(out, total);
    memset(to, 0, total);
    tandem__rollout__header__pack(&header, to + PREFIX);
    uint32_t prefix[3] = {FORMAT, (uint32_t)n, td_crc32c(0, to + PREFIX, n)};
    memcpy(to, record_magic, sizeof record_magic);
    memcpy(to + sizeof record_magic, prefix, sizeof prefix);
    for (size_t i = 0; i < count; i++) {
        size_t size = list[i].count * element_of(list[i].type);
        if (size) {
            memcpy(to + base + columns[i].offset, list[i].data, size);
        }
    }
    out->len += total;
}

static bool is_repeated(const Tandem__Rollout__Header *h, size_t column) {
    for (size_t i = 0; i < column; i++) {
        if (strcmp(h->columns[i]->name, h->columns[column]->name) == 0) {
            return true;
        }
    }
    return false;
}

// Columns lie one behind the other, whole, with their CRCs.
static enum td_rc check_columns(const struct td_rollout_record *r, size_t base, size_t n,
                                struct td_err *err) {
    const Tandem__Rollout__Header *h = r->header;
    if (h->n_columns > TD_ROLLOUT_COLUMNS_MAX) {
        return td_fail(err, TD_ELIMIT, "rollout record: %zu columns", h->n_columns);
    }
    size_t at = 0, end = base;
    for (size_t i = 0; i < h->n_columns; i++) {
        const Tandem__Rollout__Column *c = h->columns[i];
        size_t element = element_of(c->type);
        if (!element || c->offset != at || c->count > (n - base) / element ||
            base + at + c->count * element > n || is_repeated(h, i)) {
            return td_fail(err, TD_ECORRUPT,
                           "rollout record: column %zu \"%.32s\" does not fit or is there twice", i,
                           c->name);
        }
        uint32_t found = td_crc32c(0, r->bytes + base + at, c->count * element);
        if (found != c->crc) {
            return td_fail(err, TD_ECORRUPT,
                           "rollout record: column \"%.32s\" at %zu: CRC is %08x, expected %08x",
                           c->name, base + at, found, c->crc);
        }
        end = base + at + c->count * element;
        at = aligned(at + c->count * element);
        for (size_t k = end; k < base + at && k < n; k++) {
            if (r->bytes[k]) {
                return td_fail(err, TD_ECORRUPT, "rollout record: bytes behind column \"%.32s\"",
                               c->name);
            }
        }
    }
    return end == n ? TD_OK
                    : td_fail(err, TD_ECORRUPT, "rollout record: %zu bytes, its columns end at %zu",
                              n, end);
}

static const Tandem__Rollout__Column *find_column(const struct td_rollout_record *r, int which) {
    for (size_t i = 0; i < r->header->n_columns; i++) {
        const Tandem__Rollout__Column *c = r->header->columns[i];
        bool narrow = which == COLUMN_REWARD && strcmp(c->type, "f32") == 0;
        if (strcmp(c->name, required[which].name) == 0 &&
            (narrow || strcmp(c->type, required[which].type) == 0)) {
            return c;
        }
    }
    return NULL;
}

static bool is_required(const char *name) {
    for (size_t i = 0; i < COLUMN_COUNT; i++) {
        if (strcmp(required[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static void take_extra(struct td_rollout_record *r, size_t base) {
    for (size_t i = 0; i < r->header->n_columns; i++) {
        const Tandem__Rollout__Column *c = r->header->columns[i];
        if (!is_required(c->name) && r->extra_count < TD_ROLLOUT_EXTRA_MAX) {
            r->extra[r->extra_count++] =
                (struct td_rollout_column){c->name, c->type, r->bytes + base + c->offset, c->count};
        }
    }
}

static void take_rewards(struct td_rollout_record *r, const void *data, const char *type) {
    r->reward = data;
    if (strcmp(type, "f32") != 0) {
        return;
    }
    uint64_t n = r->samples * r->components;
    r->reward_copy = td_alloc_array(n, sizeof *r->reward_copy);
    for (uint64_t i = 0; i < n; i++) {
        r->reward_copy[i] = (double)((const float *)data)[i];
    }
    r->reward = r->reward_copy;
}

static enum td_rc find_columns(struct td_rollout_record *r, size_t base, struct td_err *err) {
    const void *at[COLUMN_COUNT];
    const Tandem__Rollout__Column *c = NULL;
    r->samples = r->header->n_samples;
    r->components = r->header->n_reward_components ? r->header->n_reward_components : 1;
    for (int i = 0; i < COLUMN_COUNT; i++) {
        c = find_column(r, i);
        uint64_t want = i == COLUMN_REWARD ? r->samples * r->components
                        : i == COLUMN_TOK  ? (c ? c->count : 0)
                                           : r->tokens;
        if (!c || c->count != want) {
            return td_fail(err, TD_ECORRUPT, "rollout record: column %s %s", required[i].name,
                           c ? "has a wrong count" : "is missing");
        }
        if (i == COLUMN_TOK) {
            r->tokens = c->count;
        }
        at[i] = r->bytes + base + c->offset;
    }
    r->tok = at[COLUMN_TOK];
    r->logp = at[COLUMN_LOGP];
    r->loss_mask = at[COLUMN_MASK];
    take_rewards(r, at[COLUMN_REWARD], c->type);
    take_extra(r, base);
    return TD_OK;
}

static enum td_rc check_head(const struct td_rollout_record *r, struct td_err *err) {
    const Tandem__Rollout__Header *h = r->header;
    if (h->n_samples < 1 || h->n_samples > TD_ROLLOUT_SAMPLES_MAX || h->n_status != h->n_samples ||
        h->n_sequences > TD_ROLLOUT_SEQUENCES_MAX || h->n_models < 1 || h->parts < 1 ||
        h->part >= h->parts) {
        return td_fail(err, TD_ECORRUPT,
                       "rollout record: %zu samples, %zu statuses, %zu sequences, %zu models, part "
                       "%u of %u",
                       h->n_samples, h->n_status, h->n_sequences, h->n_models, h->part, h->parts);
    }
    bool known = (unsigned)h->purpose <= TANDEM__ROLLOUT__PURPOSE__EVAL &&
                 (unsigned)h->kind <= TANDEM__ROLLOUT__KIND__PARTIAL;
    for (size_t i = 0; i < h->n_status; i++) {
        known = known && (unsigned)h->status[i] <= TANDEM__ROLLOUT__STATUS__FAILED;
    }
    if (!known) {
        return td_fail(err, TD_ECORRUPT,
                       "rollout record: purpose %d, kind %d or a status is unknown", h->purpose,
                       h->kind);
    }
    return TD_OK;
}

static enum td_rc check_sequences(const struct td_rollout_record *r, struct td_err *err) {
    const Tandem__Rollout__Header *h = r->header;
    uint64_t at = 0;
    for (size_t i = 0; i < h->n_sequences; i++) {
        const Tandem__Rollout__Sequence *s = h->sequences[i];
        if (s->from != at || s->to < s->from || s->to > r->tokens || s->sample >= h->n_samples ||
            s->parent < -1 || s->parent >= (int64_t)i) {
            return td_fail(err, TD_ECORRUPT, "rollout record: sequence %zu is out of place", i);
        }
        at = s->to;
    }
    return at == r->tokens ? TD_OK
                           : td_fail(err, TD_ECORRUPT, "rollout record: tokens without a sequence");
}

static enum td_rc check_numbers(const struct td_rollout_record *r, uint64_t from, uint64_t to,
                                bool model, struct td_err *err) {
    for (uint64_t t = from; t < to; t++) {
        if (r->loss_mask[t] > (model ? 1 : 0) || !isfinite(r->logp[t]) || r->tok[t] < 0) {
            return td_fail(err, TD_ECORRUPT,
                           "rollout record: token %llu: mask, logp or id is wrong",
                           (unsigned long long)t);
        }
    }
    return TD_OK;
}

// Segments cover each sequence in order; only a model's tokens are trained.
static enum td_rc check_segments(const struct td_rollout_record *r, struct td_err *err) {
    const Tandem__Rollout__Header *h = r->header;
    uint64_t at = 0;
    for (size_t i = 0; i < h->n_segments; i++) {
        const Tandem__Rollout__Segment *g = h->segments[i];
        const Tandem__Rollout__Sequence *s =
            g->sequence < h->n_sequences ? h->sequences[g->sequence] : NULL;
        if (!s || g->from != at || g->to < g->from || g->from < s->from || g->to > s->to ||
            g->model >= h->n_models || (unsigned)g->kind > TANDEM__ROLLOUT__SEGMENT_KIND__ENV) {
            return td_fail(err, TD_ECORRUPT, "rollout record: segment %zu is out of place", i);
        }
        enum td_rc rc =
            check_numbers(r, g->from, g->to, g->kind == TANDEM__ROLLOUT__SEGMENT_KIND__MODEL, err);
        if (rc != TD_OK) {
            return rc;
        }
        at = g->to;
    }
    for (uint64_t i = 0; i < r->samples * r->components; i++) {
        if (!isfinite(r->reward[i])) {
            return td_fail(err, TD_ECORRUPT, "rollout record: reward %llu is not finite",
                           (unsigned long long)i);
        }
    }
    return at == r->tokens ? TD_OK
                           : td_fail(err, TD_ECORRUPT, "rollout record: tokens without a segment");
}

static enum td_rc decode_into(struct td_rollout_record *r, const uint8_t *bytes, size_t n,
                              struct td_err *err) {
    uint32_t prefix[3];
    if (n < PREFIX || memcmp(bytes, record_magic, sizeof record_magic) != 0) {
        return td_fail(err, TD_ECORRUPT, "rollout record: no magic at its start");
    }
    memcpy(prefix, bytes + sizeof record_magic, sizeof prefix);
    if (prefix[0] != FORMAT) {
        return td_fail(err, TD_EUNSUPPORTED, "rollout record: format %u, this build reads %d",
                       prefix[0], FORMAT);
    }
    size_t length = prefix[1], base = aligned(PREFIX + length);
    if (length > HEADER_BYTES_MAX || base > n ||
        td_crc32c(0, bytes + PREFIX, length) != prefix[2]) {
        return td_fail(err, TD_ECORRUPT, "rollout record: header of %zu bytes is cut or damaged",
                       length);
    }
    for (size_t k = PREFIX + length; k < base; k++) {
        if (bytes[k]) {
            return td_fail(err, TD_ECORRUPT, "rollout record: bytes behind the header");
        }
    }
    r->header = tandem__rollout__header__unpack(NULL, length, bytes + PREFIX);
    r->bytes = td_try_alloc_aligned(n);
    if (!r->bytes || !r->header) {
        return td_fail(err, r->bytes ? TD_ECORRUPT : TD_ENOMEM, "rollout record of %zu bytes", n);
    }
    memcpy(r->bytes, bytes, n);
    enum td_rc rc = check_columns(r, base, n, err);
    if (rc == TD_OK) {
        rc = find_columns(r, base, err);
    }
    if (rc == TD_OK) {
        rc = check_head(r, err);
    }
    if (rc == TD_OK) {
        rc = check_sequences(r, err);
    }
    return rc == TD_OK ? check_segments(r, err) : rc;
}

enum td_rc td_rollout_record_decode(const void *bytes, size_t n, struct td_rollout_record **out,
                                    struct td_err *err) {
    if (n > TD_ROLLOUT_BYTES_MAX) {
        return td_fail(err, TD_ELIMIT, "rollout record of %zu bytes, at most %d", n,
                       TD_ROLLOUT_BYTES_MAX);
    }
    struct td_rollout_record *r = td_alloc(sizeof *r);
    enum td_rc rc = decode_into(r, bytes, n, err);
    if (rc != TD_OK) {
        td_rollout_record_free(r);
        return rc;
    }
    *out = r;
    return TD_OK;
}

void td_rollout_record_free(struct td_rollout_record *r) {
    if (r) {
        if (r->header) {
            tandem__rollout__header__free_unpacked(r->header, NULL);
        }
        td_free(r->bytes);
        td_free(r->reward_copy);
        td_free(r);
    }
}

void td_rollout_record_sums(const struct td_rollout_record *r, uint64_t *trainable,
                            double *reward_sum) {
    *trainable = 0;
    *reward_sum = 0;
    for (uint64_t t = 0; t < r->tokens; t++) {
        *trainable += r->loss_mask[t];
    }
    for (uint64_t i = 0; i < r->samples; i++) {
        *reward_sum += r->reward[i * r->components];
    }
}
