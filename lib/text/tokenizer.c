// Encoding and decoding with a loaded tokenizer: see tokenizer.h. A text goes through four steps:
// added tokens are cut out of it as it stands, the rest is normalized, those added tokens that are
// matched normalized are cut out, and what remains is split into pieces and merged (HF:
// tokenizer/added_vocabulary.rs, pre_tokenizers/*, models/bpe).
#include <string.h>

#include <utf8proc.h>

#include "lib/text/tokenizer_int.h"
#include "lib/base/utf8.h"

void td_ids_fini(struct td_ids *ids) {
    td_free(ids->v);
    *ids = (struct td_ids){0};
}

void td_ids_put(struct td_ids *ids, int32_t id) {
    TD_GROW(ids->v, ids->cap, ids->n + 1);
    ids->v[ids->n++] = id;
}

// What one call of td_tokenizer_encode carries along.
struct encoder {
    const struct td_tokenizer *tk;
    struct td_bpe bpe;
    struct td_spans pieces, split; // before and after one split
    struct td_ids ids;
};

static enum td_rc encode_plain(struct encoder *e, struct td_span text, struct td_err *err) {
    const struct td_tokenizer *tk = e->tk;
    e->pieces.n = 0;
    td_spans_put(&e->pieces, text.p, text.n);
    for (int s = 0; s < tk->split_count; s++) {
        e->split.n = 0;
        for (size_t i = 0; i < e->pieces.n; i++) {
            enum td_rc rc =
                td_pattern_split(tk->splits[s], tk->limits, e->pieces.v[i], &e->split, err);
            if (rc != TD_OK) {
                return rc;
            }
        }
        struct td_spans swap = e->pieces;
        e->pieces = e->split;
        e->split = swap;
    }
    for (size_t i = 0; i < e->pieces.n; i++) {
        enum td_rc rc = td_bpe_encode(tk, &e->bpe, e->pieces.v[i], &e->ids, err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    return TD_OK;
}

// The added token that begins at p, the longest one; NULL: none.
static const struct td_added *added_at(const struct td_added_set *set, const uint8_t *p, size_t n) {
    for (size_t i = set->first[p[0]]; i < set->first[p[0] + 1]; i++) {
        const struct td_added *a = &set->v[i];
        if (a->n <= n && memcmp(a->content, p, a->n) == 0) {
            return a;
        }
    }
    return NULL;
}

typedef enum td_rc segment_fn(struct encoder *e, struct td_span text, struct td_err *err);

// Cuts the set's tokens out of text and gives what lies between them to each.
static enum td_rc cut_added(struct encoder *e, const struct td_added_set *set, struct td_span text,
                            segment_fn *each, struct td_err *err) {
    size_t from = 0;
    for (size_t at = 0; at < text.n && set->n > 0;) {
        const struct td_added *a = added_at(set, text.p + at, text.n - at);
        if (a == NULL) {
            at++;
            continue;
        }
        enum td_rc rc = each(e, (struct td_span){text.p + from, at - from}, err);
        if (rc != TD_OK) {
            return rc;
        }
        td_ids_put(&e->ids, a->id);
        at += a->n;
        from = at;
    }
    return each(e, (struct td_span){text.p + from, text.n - from}, err);
}

// Nothing below U+0300 combines with what is before it: such text is in normal form C already.
static bool may_change(struct td_span text) {
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] >= 0xcc) {
            return true;
        }
    }
    return false;
}

// Normal form C of text, in *out (replaced, owned).
static enum td_rc compose(struct td_span text, struct td_buf *out, struct td_err *err) {
    const utf8proc_option_t how = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t n = utf8proc_decompose(text.p, (utf8proc_ssize_t)text.n, NULL, 0, how);
    if (n < 0) {
        return td_fail(err, TD_EINVAL, "NFC: %s", utf8proc_errmsg(n));
    }
    td_buf_clear(out);
    // one more: utf8proc ends the text with a zero byte
    int32_t *chars = td_alloc_array((size_t)n + 1, sizeof *chars);
    n = utf8proc_decompose(text.p, (utf8proc_ssize_t)text.n, chars, n, how);
    n = n < 0 ? n : utf8proc_reencode(chars, n, how);
    if (n >= 0) {
        td_buf_put(out, chars, (size_t)n);
    }
    td_free(chars);
    return n < 0 ? td_fail(err, TD_EINVAL, "NFC: %s", utf8proc_errmsg(n)) : TD_OK;
}

static enum td_rc encode_raw(struct encoder *e, struct td_span text, struct td_err *err) {
    if (!e->tk->nfc || !may_change(text)) {
        return cut_added(e, &e->tk->normalized, text, encode_plain, err);
    }
    struct td_buf composed = {0};
    enum td_rc rc = compose(text, &composed, err);
    if (rc == TD_OK) {
        struct td_span normal = {composed.data, composed.len};
        rc = cut_added(e, &e->tk->normalized, normal, encode_plain, err);
    }
    td_buf_fini(&composed);
    return rc;
}

enum td_rc td_tokenizer_encode(const struct td_tokenizer *tk, const char *text, size_t n,
                               struct td_ids *out, struct td_err *err) {
    if (n > TD_TEXT_BYTES_MAX) {
        return td_fail(err, TD_ELIMIT, "a text of %zu bytes; at most %d are tokenized", n,
                       TD_TEXT_BYTES_MAX);
    }
    struct td_span whole = {(const uint8_t *)text, n};
    size_t bad = td_utf8_check(whole.p, n);
    if (bad < n) {
        return td_fail(err, TD_EINVAL, "the text is not UTF-8: byte 0x%02x at offset %zu",
                       whole.p[bad], bad);
    }
    struct encoder e = {.tk = tk};
    enum td_rc rc = cut_added(&e, &tk->raw, whole, encode_raw, err);
    for (size_t i = 0; i < e.ids.n && rc == TD_OK; i++) {
        td_ids_put(out, e.ids.v[i]);
    }
    td_bpe_fini(&e.bpe);
    td_free(e.pieces.v);
    td_free(e.split.v);
    td_ids_fini(&e.ids);
    return rc;
}

void td_tokenizer_decode(const struct td_tokenizer *tk, const int32_t *ids, size_t n,
                         bool skip_special, struct td_buf *out) {
    struct td_buf bytes = {0};
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= tk->size || tk->tokens[ids[i]].bytes == NULL) {
            continue;
        }
        const struct td_token *token = &tk->tokens[ids[i]];
        if (!skip_special || !token->special) {
            td_buf_put(&bytes, token->bytes, token->n);
        }
    }
    td_utf8_repair(bytes.data, bytes.len, out);
    td_buf_fini(&bytes);
}

int32_t td_tokenizer_id(const struct td_tokenizer *tk, const char *content) {
    uint64_t id;
    return td_map_get(tk->names, content, strlen(content), &id) ? (int32_t)id : -1;
}

bool td_tokenizer_is_special(const struct td_tokenizer *tk, int32_t id) {
    return id >= 0 && id < tk->size && tk->tokens[id].special;
}

int32_t td_tokenizer_eos(const struct td_tokenizer *tk) {
    return tk->eos;
}

int32_t td_tokenizer_bos(const struct td_tokenizer *tk) {
    return tk->bos;
}

int32_t td_tokenizer_size(const struct td_tokenizer *tk) {
    return tk->size;
}

void td_tokenizer_known_ids(const struct td_tokenizer *tk, uint8_t *known, size_t n) {
    for (size_t i = 0; i < n; i++) {
        known[i] = i < (size_t)tk->size && tk->tokens[i].bytes != NULL;
    }
}

uint64_t td_tokenizer_digest(const struct td_tokenizer *tk) {
    return tk->digest;
}

const char *td_tokenizer_chat_template(const struct td_tokenizer *tk) {
    return tk->chat_template;
}
