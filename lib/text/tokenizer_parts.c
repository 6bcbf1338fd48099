// Reads the parts of tokenizer.json around the model: normalizer, pre-tokenizer, post-processor and
// decoder. Anything that would change an id or a text and is not implemented is refused by name.
#include <string.h>

#include "lib/text/json.h"
#include "lib/text/tokenizer_int.h"

// GPT-2's pattern, which is built into HF's ByteLevel (pre_tokenizers/byte_level.rs).
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef enum td_rc part_fn(struct td_tokenizer *tk, const json_t *part, const char *type,
                           struct td_err *err);

static enum td_rc one_part(struct td_tokenizer *tk, const json_t *part, part_fn *each,
                           struct td_err *err) {
    const char *type;
    if (td_json_string(part, "type", &type, err) != TD_OK) {
        return TD_EINVAL;
    }
    return each(tk, part, type, err);
}

// A part is null, one component, or a Sequence of components (list: the key of theirs).
static enum td_rc each_part(struct td_tokenizer *tk, const json_t *part, const char *list,
                            part_fn *each, struct td_err *err) {
    const char *type = "";
    if (part == NULL || json_is_null(part)) {
        return TD_OK;
    }
    if (td_json_string(part, "type", &type, err) != TD_OK) {
        return TD_EINVAL;
    }
    if (strcmp(type, "Sequence") != 0) {
        return each(tk, part, type, err);
    }
    const json_t *parts = json_object_get(part, list);
    if (!json_is_array(parts)) {
        return td_fail(err, TD_EINVAL, "%s: must be a list, is %s", list, td_json_kind(parts));
    }
    for (size_t i = 0; i < json_array_size(parts); i++) {
        enum td_rc rc = one_part(tk, json_array_get(parts, i), each, err);
        if (rc != TD_OK) {
            td_err_in(err, "%s[%zu]", list, i);
            return rc;
        }
    }
    return TD_OK;
}

static enum td_rc unsupported(struct td_err *err, const char *type, const char *known) {
    return td_fail(err, TD_EUNSUPPORTED, "type: '%s' is not supported (known: %s)", type, known);
}

static enum td_rc read_normalizer(struct td_tokenizer *tk, const json_t *part, const char *type,
                                  struct td_err *err) {
    (void)part;
    if (strcmp(type, "NFC") != 0) {
        return unsupported(err, type, "NFC, Sequence");
    }
    tk->nfc = true;
    return TD_OK;
}

static enum td_rc add_split(struct td_tokenizer *tk, const char *pattern, bool literal,
                            struct td_err *err) {
    if (tk->split_count == TD_SPLITS_MAX) {
        return td_fail(err, TD_ELIMIT, "more than %d splits", TD_SPLITS_MAX);
    }
    enum td_rc rc = td_pattern_compile(pattern, literal, &tk->splits[tk->split_count], err);
    tk->split_count += rc == TD_OK;
    return rc;
}

static enum td_rc read_split(struct td_tokenizer *tk, const json_t *part, struct td_err *err) {
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    const char *behavior, *text;
    bool invert = false;
    enum td_rc rc = td_json_only(part, keys, err);
    if (rc != TD_OK || (rc = td_json_string(part, "behavior", &behavior, err)) != TD_OK ||
        (rc = td_json_bool(part, "invert", &invert, err)) != TD_OK) {
        return rc;
    }
    if (strcmp(behavior, "Isolated") != 0 || invert) {
        return td_fail(err, TD_EUNSUPPORTED, "%s is not supported (known: Isolated)",
                       invert ? "invert: true" : behavior);
    }
    const json_t *pattern = json_object_get(part, "pattern");
    bool literal = json_object_get(pattern, "Regex") == NULL;
    rc = td_json_string(pattern, literal ? "String" : "Regex", &text, err);
    if (rc == TD_OK) {
        rc = add_split(tk, text, literal, err);
    }
    if (rc != TD_OK) {
        td_err_in(err, "pattern");
    }
    return rc;
}

static enum td_rc read_digits(struct td_tokenizer *tk, const json_t *part, struct td_err *err) {
    static const char *const keys[] = {"type", "individual_digits", NULL};
    bool individual = false;
    enum td_rc rc = td_json_only(part, keys, err);
    if (rc == TD_OK) {
        rc = td_json_bool(part, "individual_digits", &individual, err);
    }
    return rc == TD_OK ? add_split(tk, individual ? "\\p{N}" : "\\p{N}+", false, err) : rc;
}

static enum td_rc read_byte_level(struct td_tokenizer *tk, const json_t *part, struct td_err *err) {
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                       NULL};
    bool prefix = true, regex = true;
    enum td_rc rc = td_json_only(part, keys, err);
    if (rc != TD_OK || (rc = td_json_bool(part, "add_prefix_space", &prefix, err)) != TD_OK ||
        (rc = td_json_bool(part, "use_regex", &regex, err)) != TD_OK) {
        return rc;
    }
    if (prefix) {
        return td_fail(err, TD_EUNSUPPORTED, "add_prefix_space: true is not supported");
    }
    tk->byte_level = true;
    return regex ? add_split(tk, gpt2_pattern, false, err) : TD_OK;
}

static enum td_rc read_pre_tokenizer(struct td_tokenizer *tk, const json_t *part, const char *type,
                                     struct td_err *err) {
    if (tk->byte_level) {
        return td_fail(err, TD_EUNSUPPORTED, "type: '%s' after ByteLevel is not supported", type);
    }
    if (strcmp(type, "Split") == 0) {
        return read_split(tk, part, err);
    }
    if (strcmp(type, "Digits") == 0) {
        return read_digits(tk, part, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return read_byte_level(tk, part, err);
    }
    return unsupported(err, type, "Split, Digits, ByteLevel, Sequence");
}

// These only add special tokens, which encoding never does, or move offsets, which nobody asks for.
static enum td_rc read_post_processor(struct td_tokenizer *tk, const json_t *part, const char *type,
                                      struct td_err *err) {
    (void)tk;
    (void)part;
    bool known = strcmp(type, "ByteLevel") == 0 || strcmp(type, "TemplateProcessing") == 0;
    return known ? TD_OK : unsupported(err, type, "ByteLevel, TemplateProcessing, Sequence");
}

static enum td_rc read_decoder(struct td_tokenizer *tk, const json_t *part, const char *type,
                               struct td_err *err) {
    (void)part;
    tk->byte_decoder = strcmp(type, "ByteLevel") == 0;
    return tk->byte_decoder ? TD_OK : unsupported(err, type, "ByteLevel, Sequence");
}

enum td_rc td_tokenizer_read_parts(struct td_tokenizer *tk, const json_t *root,
                                   struct td_err *err) {
    static const struct {
        const char *key, *list;
        part_fn *each;
        bool needed;
    } parts[] = {
        {"normalizer", "normalizers", read_normalizer, false},
        {"pre_tokenizer", "pretokenizers", read_pre_tokenizer, true},
        {"post_processor", "processors", read_post_processor, false},
        {"decoder", "decoders", read_decoder, true},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const json_t *part = json_object_get(root, parts[i].key);
        enum td_rc rc = parts[i].needed && !json_is_object(part)
                            ? td_fail(err, TD_EUNSUPPORTED, "%s; only byte-level ones are known",
                                      td_json_kind(part))
                            : each_part(tk, part, parts[i].list, parts[i].each, err);
        if (rc != TD_OK) {
            td_err_in(err, "%s", parts[i].key);
            return rc;
        }
    }
    if (!tk->byte_level || !tk->byte_decoder) {
        return td_fail(err, TD_EUNSUPPORTED, "%s: has no ByteLevel; only byte-level ones are known",
                       tk->byte_level ? "decoder" : "pre_tokenizer");
    }
    return TD_OK;
}
