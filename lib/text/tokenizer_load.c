// Loads a tokenizer from a model folder: see tokenizer.h. The tables are read in tokenizer_model.c,
// the components in tokenizer_parts.c.
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/text/json.h"
#include "lib/text/tokenizer_int.h"

enum { CONFIG_BYTES_MAX = 16 << 20 };
enum { MATCH_LIMIT = 100 * 1000000, HEAP_LIMIT_KIB = 256 << 10 };

static const char tokenizer_file[] = "tokenizer.json";
static const char tokenizer_config_file[] = "tokenizer_config.json";
static const char config_file[] = "config.json";
static const char template_file[] = "chat_template.jinja";

// Parses bytes as a JSON object. The small files may hold integers of 31 digits (model_max_length).
static enum td_rc parse_object(const struct td_buf *bytes, bool big_integers, json_t **out,
                               struct td_err *err) {
    json_t *value;
    enum td_rc rc = td_json_parse(td_buf_str(bytes), bytes->len,
                                  big_integers ? JSON_DECODE_INT_AS_REAL : 0, &value, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (!json_is_object(value)) {
        rc = td_fail(err, TD_EINVAL, "must be an object, is %s", td_json_kind(value));
        json_decref(value);
        return rc;
    }
    *out = value;
    return TD_OK;
}

typedef enum td_rc read_fn(struct td_tokenizer *tk, const json_t *root, struct td_err *err);

static enum td_rc read_file(struct td_tokenizer *tk, const char *folder, const char *name,
                            read_fn *read, struct td_err *err) {
    char *path = td_asprintf("%s/%s", folder, name);
    bool main_file = name == tokenizer_file;
    struct td_buf bytes = {0};
    enum td_rc rc = TD_OK;
    if (!main_file && !td_file_exists(path)) {
        td_free(path);
        return TD_OK;
    }
    rc = td_file_read(path, main_file ? TD_TOKENIZER_BYTES_MAX : CONFIG_BYTES_MAX, &bytes, err);
    if (rc == TD_OK) {
        json_t *root = NULL;
        rc = parse_object(&bytes, !main_file, &root, err);
        if (rc == TD_OK) {
            rc = read(tk, root, err);
        }
        if (rc != TD_OK) {
            td_err_in(err, "%s", path);
        }
        json_decref(root);
    }
    td_buf_fini(&bytes);
    td_free(path);
    return rc;
}

static enum td_rc read_root(struct td_tokenizer *tk, const json_t *root, struct td_err *err) {
    // truncation and padding are for batches of fixed width: transformers resets both at each call
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    enum td_rc rc = td_json_only(root, keys, err);
    if (rc == TD_OK) {
        rc = td_tokenizer_read_parts(tk, root, err);
    }
    if (rc == TD_OK) {
        rc = td_tokenizer_read_model(tk, root, err);
    }
    return rc;
}

// A special token in tokenizer_config.json: null, "name" or {"content": "name"}.
static enum td_rc id_by_name(const struct td_tokenizer *tk, const json_t *config, const char *key,
                             int32_t *out, struct td_err *err) {
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) {
        value = json_object_get(value, "content");
    }
    if (value == NULL || json_is_null(value)) {
        return TD_OK;
    }
    if (!json_is_string(value)) {
        return td_fail(err, TD_EINVAL, "%s: must be a string, is %s", key, td_json_kind(value));
    }
    int32_t id = td_tokenizer_id(tk, json_string_value(value));
    if (id < 0) {
        return td_fail(err, TD_EINVAL, "%s: '%s' is not a token of %s", key,
                       json_string_value(value), tokenizer_file);
    }
    *out = id;
    return TD_OK;
}

// The same by number in config.json: null, a number, or a list of numbers (the first counts).
static enum td_rc id_by_number(const struct td_tokenizer *tk, const json_t *config, const char *key,
                               int32_t *out, struct td_err *err) {
    const json_t *value = json_object_get(config, key);
    if (json_is_array(value)) {
        value = json_array_get(value, 0);
    }
    if (value == NULL || json_is_null(value) || *out >= 0) {
        return TD_OK;
    }
    double id = json_is_number(value) ? json_number_value(value) : -1;
    if (!(id >= 0 && id < tk->size) || tk->tokens[(int32_t)id].bytes == NULL) {
        return td_fail(err, TD_EINVAL, "%s: must be the id of a token of %s", key, tokenizer_file);
    }
    *out = (int32_t)id;
    return TD_OK;
}

static enum td_rc read_names(struct td_tokenizer *tk, const json_t *config, struct td_err *err) {
    enum td_rc rc = id_by_name(tk, config, "eos_token", &tk->eos, err);
    if (rc == TD_OK) {
        rc = id_by_name(tk, config, "bos_token", &tk->bos, err);
    }
    const json_t *own = json_object_get(config, "chat_template");
    if (own != NULL && !json_is_null(own)) {
        tk->chat_template = tokenizer_config_file;
    }
    return rc;
}

static enum td_rc read_numbers(struct td_tokenizer *tk, const json_t *config, struct td_err *err) {
    enum td_rc rc = id_by_number(tk, config, "eos_token_id", &tk->eos, err);
    return rc == TD_OK ? id_by_number(tk, config, "bos_token_id", &tk->bos, err) : rc;
}

static enum td_rc read_folder(struct td_tokenizer *tk, const char *folder, struct td_err *err) {
    enum td_rc rc = read_file(tk, folder, tokenizer_file, read_root, err);
    if (rc == TD_OK) {
        rc = read_file(tk, folder, tokenizer_config_file, read_names, err);
    }
    if (rc == TD_OK && (tk->eos < 0 || tk->bos < 0)) {
        rc = read_file(tk, folder, config_file, read_numbers, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    char *path = td_asprintf("%s/%s", folder, template_file);
    tk->chat_template = td_file_exists(path) ? template_file : tk->chat_template;
    td_free(path);
    path = td_asprintf("%s/%s", folder, tokenizer_file);
    uint64_t size;
    rc = td_file_digest(path, &tk->digest, &size, err);
    tk->digest = td_hash_u64(tk->digest, (uint64_t)(int64_t)tk->eos);
    td_free(path);
    return rc;
}

enum td_rc td_tokenizer_load(const char *folder, struct td_tokenizer **out, struct td_err *err) {
    struct td_tokenizer *tk = td_alloc(sizeof *tk);
    tk->arena = td_arena_new();
    tk->names = td_map_new();
    tk->merges = td_map_new();
    tk->eos = tk->bos = -1;
    tk->limits = pcre2_match_context_create(NULL);
    enum td_rc rc = tk->limits == NULL ? td_fail(err, TD_ENOMEM, "%s", folder) : TD_OK;
    if (rc == TD_OK) {
        pcre2_set_match_limit(tk->limits, MATCH_LIMIT);
        pcre2_set_heap_limit(tk->limits, HEAP_LIMIT_KIB);
        rc = read_folder(tk, folder, err);
    }
    if (rc != TD_OK) {
        td_tokenizer_free(tk);
        return rc;
    }
    *out = tk;
    return TD_OK;
}

void td_tokenizer_free(struct td_tokenizer *tk) {
    if (tk == NULL) {
        return;
    }
    for (int i = 0; i < tk->split_count; i++) {
        pcre2_code_free(tk->splits[i]);
    }
    pcre2_match_context_free(tk->limits);
    td_free(tk->raw.v);
    td_free(tk->normalized.v);
    td_map_free(tk->names);
    td_map_free(tk->pieces);
    td_map_free(tk->merges);
    td_free(tk->tokens);
    td_arena_free(tk->arena);
    td_free(tk);
}
