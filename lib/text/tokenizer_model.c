// Reads the tables of tokenizer.json: model.vocab, model.merges and added_tokens. The alphabet that
// stands for bytes in them is undone here, so that encoding and decoding deal in bytes.
#include <string.h>

#include "lib/text/json.h"
#include "lib/text/tokenizer_int.h"

enum { ALPHABET_END = 0x144 }; // its characters are below

// GPT-2's bytes_to_unicode: printable Latin-1 stands for itself, the other bytes for U+0100 and up.
struct alphabet {
    int16_t byte_of[ALPHABET_END]; // -1: not in it
    uint16_t char_of[256];
};

static void fill_alphabet(struct alphabet *a) {
    uint16_t next = 0x100;
    for (size_t c = 0; c < ALPHABET_END; c++) {
        a->byte_of[c] = -1;
    }
    for (uint16_t b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        a->char_of[b] = itself ? b : next++;
        a->byte_of[a->char_of[b]] = (int16_t)b;
    }
}

// The character at s and its length: all the alphabet's have one or two bytes; others give -1.
static int byte_at(const struct alphabet *a, const uint8_t *s, size_t n, size_t *len) {
    size_t c = s[0];
    *len = 1;
    if (c >= 0x80) {
        if (c >= 0xe0 || n < 2) {
            return -1;
        }
        c = (c & 0x1f) << 6 | (s[1] & 0x3f);
        *len = 2;
    }
    return c < ALPHABET_END ? a->byte_of[c] : -1;
}

// The bytes that text stands for, in the arena; *mapped is false, and they are the text's own, when
// a character is not of the alphabet (HF's ByteLevel decoder does the same).
static const uint8_t *bytes_of(struct td_tokenizer *tk, const struct alphabet *a, const char *text,
                               size_t n, uint32_t *out_n, bool *mapped) {
    uint8_t *bytes = (uint8_t *)td_arena_strndup(tk->arena, text, n);
    uint32_t count = 0;
    *mapped = true;
    for (size_t i = 0, len; i < n; i += len) {
        int b = byte_at(a, (const uint8_t *)text + i, n - i, &len);
        if (b < 0) {
            memcpy(bytes, text, n);
            *mapped = false;
            *out_n = (uint32_t)n;
            return bytes;
        }
        bytes[count++] = (uint8_t)b;
    }
    *out_n = count;
    return bytes;
}

static enum td_rc check_id(const json_t *value, const char *what, int64_t *out,
                           struct td_err *err) {
    int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= TD_TOKENIZER_IDS_MAX) {
        return td_fail(err, TD_EINVAL, "'%s': the id must be a number from 0 to %d", what,
                       TD_TOKENIZER_IDS_MAX - 1);
    }
    *out = id;
    return TD_OK;
}

static void make_room(struct td_tokenizer *tk, int64_t id) {
    if (id >= tk->size) {
        tk->tokens = td_realloc_array(tk->tokens, (size_t)id + 1, sizeof *tk->tokens);
        memset(&tk->tokens[tk->size], 0, (size_t)(id + 1 - tk->size) * sizeof *tk->tokens);
        tk->size = (int32_t)(id + 1);
    }
}

static enum td_rc read_vocab(struct td_tokenizer *tk, const struct alphabet *a, const json_t *vocab,
                             struct td_err *err) {
    const char *key;
    json_t *value;
    int64_t id = -1, last = -1;
    if (!json_is_object(vocab)) {
        return td_fail(err, TD_EINVAL, "must be an object, is %s", td_json_kind(vocab));
    }
    json_object_foreach((json_t *)vocab, key, value) {
        if (check_id(value, key, &id, err) != TD_OK) {
            return TD_EINVAL;
        }
        last = id > last ? id : last;
    }
    make_room(tk, last);
    json_object_foreach((json_t *)vocab, key, value) {
        size_t n = strlen(key);
        bool mapped;
        id = json_integer_value(value);
        struct td_token *token = &tk->tokens[id];
        if (token->bytes != NULL) {
            return td_fail(err, TD_EINVAL, "'%s': another token has its id %d", key, (int)id);
        }
        token->bytes = bytes_of(tk, a, key, n, &token->n, &mapped);
        td_map_put(tk->names, key, n, (uint64_t)id);
        if (mapped && tk->pieces != NULL) {
            td_map_put(tk->pieces, token->bytes, token->n, (uint64_t)id);
        }
    }
    return TD_OK;
}

static void find_bytes(struct td_tokenizer *tk, const struct alphabet *a) {
    for (size_t b = 0; b < 256; b++) {
        unsigned c = a->char_of[b];
        uint8_t text[2] = {(uint8_t)c};
        uint64_t id;
        if (c >= 0x80) {
            text[0] = (uint8_t)(0xc0 | c >> 6);
            text[1] = (uint8_t)(0x80 | (c & 0x3f));
        }
        bool known = td_map_get(tk->names, text, c >= 0x80 ? 2 : 1, &id);
        tk->byte_id[b] = known ? (int32_t)id : -1;
    }
}

// The two halves of a merge, in both forms that HF writes: "a b" and ["a", "b"].
static enum td_rc halves(const json_t *merge, struct td_buf *left, struct td_buf *right,
                         struct td_err *err) {
    td_buf_clear(left);
    td_buf_clear(right);
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) {
            return td_fail(err, TD_EINVAL, "'%s' must be two tokens with one space between them",
                           text);
        }
        td_buf_put(left, text, (size_t)(space - text));
        td_buf_puts(right, space + 1);
        return TD_OK;
    }
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b)) {
        return td_fail(err, TD_EINVAL, "must be a string or a list of two strings, is %s",
                       td_json_kind(merge));
    }
    td_buf_puts(left, json_string_value(a));
    td_buf_puts(right, json_string_value(b));
    return TD_OK;
}

static enum td_rc id_of(const struct td_tokenizer *tk, const struct td_buf *name, uint64_t *id,
                        struct td_err *err) {
    if (!td_map_get(tk->names, td_buf_str(name), name->len, id)) {
        return td_fail(err, TD_EINVAL, "'%s' is not in model.vocab", td_buf_str(name));
    }
    return TD_OK;
}

static enum td_rc add_merge(struct td_tokenizer *tk, const json_t *merge, uint64_t rank,
                            struct td_err *err) {
    struct td_buf left = {0}, right = {0};
    uint64_t a, b, both;
    enum td_rc rc = halves(merge, &left, &right, err);
    if (rc == TD_OK) {
        rc = id_of(tk, &left, &a, err);
    }
    if (rc == TD_OK) {
        rc = id_of(tk, &right, &b, err);
    }
    if (rc == TD_OK) {
        td_buf_put(&left, td_buf_str(&right), right.len);
        rc = id_of(tk, &left, &both, err);
    }
    if (rc == TD_OK) {
        uint64_t key = td_bpe_key((int32_t)a, (int32_t)b);
        td_map_put(tk->merges, &key, sizeof key, rank << 32 | both);
    }
    td_buf_fini(&left);
    td_buf_fini(&right);
    return rc;
}

static enum td_rc read_merges(struct td_tokenizer *tk, const json_t *merges, struct td_err *err) {
    static const char version[] = "#version";
    if (!json_is_array(merges)) {
        return td_fail(err, TD_EINVAL, "merges: must be a list, is %s", td_json_kind(merges));
    }
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *text = json_string_value(merge);
        if (text != NULL && strncmp(text, version, sizeof version - 1) == 0) {
            continue;
        }
        enum td_rc rc = add_merge(tk, merge, i, err);
        if (rc != TD_OK) {
            td_err_in(err, "merges[%zu]", i);
            return rc;
        }
    }
    return TD_OK;
}

// What would change ids and is not implemented. unk_token and fuse_unk are not among it: a byte
// without a token is an error when it is met.
static enum td_rc check_model(const json_t *model, struct td_err *err) {
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "fuse_unk",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0)) {
        return td_fail(err, TD_EUNSUPPORTED, "type: %s is not supported (known: BPE)",
                       json_is_string(type) ? json_string_value(type) : td_json_kind(type));
    }
    enum td_rc rc = td_json_only(model, keys, err);
    if (rc != TD_OK) {
        return rc;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        bool empty = json_is_string(affix) && json_string_length(affix) == 0;
        if (affix != NULL && !json_is_null(affix) && !empty) {
            return td_fail(err, TD_EUNSUPPORTED, "%s is not supported", affixes[i]);
        }
    }
    bool fallback = false;
    rc = td_json_bool(model, "byte_fallback", &fallback, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (json_number_value(json_object_get(model, "dropout")) != 0 || fallback) {
        return td_fail(err, TD_EUNSUPPORTED, "%s is not supported",
                       fallback ? "byte_fallback: true" : "dropout");
    }
    return TD_OK;
}

static enum td_rc read_tables(struct td_tokenizer *tk, const struct alphabet *a,
                              const json_t *model, struct td_err *err) {
    bool ignore_merges = false;
    enum td_rc rc = check_model(model, err);
    if (rc == TD_OK) {
        rc = td_json_bool(model, "ignore_merges", &ignore_merges, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    tk->pieces = ignore_merges ? td_map_new() : NULL;
    rc = read_vocab(tk, a, json_object_get(model, "vocab"), err);
    if (rc != TD_OK) {
        td_err_in(err, "vocab");
        return rc;
    }
    find_bytes(tk, a);
    return read_merges(tk, json_object_get(model, "merges"), err);
}

static int compare_added(const void *a, const void *b) {
    const struct td_added *x = a, *y = b;
    uint8_t fx = (uint8_t)x->content[0], fy = (uint8_t)y->content[0];
    if (fx != fy) {
        return fx < fy ? -1 : 1;
    }
    return x->n != y->n ? (x->n > y->n ? -1 : 1) : memcmp(x->content, y->content, x->n);
}

static void sort_added(struct td_added_set *set) {
    if (set->n > 0) {
        qsort(set->v, set->n, sizeof *set->v, compare_added);
    }
    size_t i = 0;
    for (size_t b = 0; b < 256; b++) {
        set->first[b] = i;
        while (i < set->n && (uint8_t)set->v[i].content[0] == b) {
            i++;
        }
    }
    set->first[256] = i;
}

struct added_flags {
    bool special, normalized;
};

static enum td_rc read_flags(const json_t *token, struct added_flags *out, struct td_err *err) {
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    enum td_rc rc = td_json_only(token, keys, err);
    for (size_t i = 0; i < 3 && rc == TD_OK; i++) {
        bool set = false;
        rc = td_json_bool(token, refused[i], &set, err);
        if (rc == TD_OK && set) {
            rc = td_fail(err, TD_EUNSUPPORTED, "%s: true is not supported", refused[i]);
        }
    }
    if (rc == TD_OK) {
        rc = td_json_bool(token, "special", &out->special, err);
    }
    if (rc == TD_OK) {
        out->normalized = !out->special;
        rc = td_json_bool(token, "normalized", &out->normalized, err);
    }
    return rc;
}

// Gives the token its id; one that is in the vocabulary already must have the same there.
static enum td_rc place_added(struct td_tokenizer *tk, const struct alphabet *a,
                              const char *content, int64_t id, struct td_err *err) {
    uint64_t known;
    size_t n = strlen(content);
    bool mapped;
    if (td_map_get(tk->names, content, n, &known)) {
        return known == (uint64_t)id ? TD_OK
                                     : td_fail(err, TD_EINVAL, "'%s' has id %d here and %d before",
                                               content, (int)id, (int)known);
    }
    make_room(tk, id);
    struct td_token *token = &tk->tokens[id];
    if (token->bytes != NULL) {
        return td_fail(err, TD_EINVAL, "'%s': another token has its id %d", content, (int)id);
    }
    token->bytes = bytes_of(tk, a, content, n, &token->n, &mapped);
    td_map_put(tk->names, content, n, (uint64_t)id);
    return TD_OK;
}

static enum td_rc add_token(struct td_tokenizer *tk, const struct alphabet *a, const json_t *token,
                            struct td_err *err) {
    struct added_flags flags = {0};
    const char *content;
    int64_t id = -1;
    enum td_rc rc = td_json_string(token, "content", &content, err);
    if (rc != TD_OK || (rc = check_id(json_object_get(token, "id"), content, &id, err)) != TD_OK ||
        (rc = read_flags(token, &flags, err)) != TD_OK ||
        (rc = place_added(tk, a, content, id, err)) != TD_OK) {
        return rc;
    }
    if (content[0] == 0) {
        return td_fail(err, TD_EINVAL, "content: must not be empty");
    }
    if (flags.normalized && tk->nfc) {
        for (const char *p = content; *p != 0; p++) {
            if ((uint8_t)*p >= 0xcc) {
                return td_fail(err, TD_EUNSUPPORTED,
                               "'%s': normalized: true is not supported for it", content);
            }
        }
    }
    struct td_added_set *set = flags.normalized ? &tk->normalized : &tk->raw;
    size_t n = strlen(content);
    TD_GROW(set->v, set->cap, set->n + 1);
    set->v[set->n++] = (struct td_added){td_arena_strndup(tk->arena, content, n), n, (int32_t)id};
    tk->tokens[id].special = tk->tokens[id].special || flags.special;
    return TD_OK;
}

static enum td_rc read_added(struct td_tokenizer *tk, const struct alphabet *a,
                             const json_t *tokens, struct td_err *err) {
    if (tokens != NULL && !json_is_null(tokens) && !json_is_array(tokens)) {
        return td_fail(err, TD_EINVAL, "added_tokens: must be a list, is %s", td_json_kind(tokens));
    }
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        enum td_rc rc = add_token(tk, a, json_array_get(tokens, i), err);
        if (rc != TD_OK) {
            td_err_in(err, "added_tokens[%zu]", i);
            return rc;
        }
    }
    sort_added(&tk->raw);
    sort_added(&tk->normalized);
    return TD_OK;
}

enum td_rc td_tokenizer_read_model(struct td_tokenizer *tk, const json_t *root,
                                   struct td_err *err) {
    const json_t *model = json_object_get(root, "model");
    struct alphabet a;
    fill_alphabet(&a);
    enum td_rc rc = json_is_object(model)
                        ? read_tables(tk, &a, model, err)
                        : td_fail(err, TD_EINVAL, "must be an object, is %s", td_json_kind(model));
    if (rc != TD_OK) {
        td_err_in(err, "model");
        return rc;
    }
    return read_added(tk, &a, json_object_get(root, "added_tokens"), err);
}
