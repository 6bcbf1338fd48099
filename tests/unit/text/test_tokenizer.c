// Ids and texts against HF tokenizers (tests/golden/make_tokenizer.py), and everything a tokenizer
// file can have wrong.
#include "lib/text/tokenizer.h"

#include <jansson.h>

#include "lib/base/rng.h"
#include "tests/unit/text/folder.h"

#define GOLDEN TD_TEST_SOURCE_DIR "/tests/golden/tokenizer/"

static struct td_tokenizer *load(const char *folder) {
    struct td_tokenizer *tk = NULL;
    struct td_err err = {0};
    if (td_tokenizer_load(folder, &tk, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return tk;
}

static json_t *load_json(const char *path) {
    json_error_t why;
    json_t *value = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (value == NULL) {
        fail_msg("%s: %s", path, why.text);
    }
    return value;
}

static void check_decode(const struct td_tokenizer *tk, const struct td_ids *ids, bool skip,
                         const json_t *want, size_t row) {
    struct td_buf text = {0};
    td_tokenizer_decode(tk, ids->v, ids->n, skip, &text);
    if (text.len != json_string_length(want) ||
        memcmp(td_buf_str(&text), json_string_value(want), text.len) != 0) {
        fail_msg("row %zu: decoded '%s', want '%s'", row, td_buf_str(&text),
                 json_string_value(want));
    }
    td_buf_fini(&text);
}

static void ids_of(const json_t *list, struct td_ids *out) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        td_ids_put(out, (int32_t)json_integer_value(json_array_get(list, i)));
    }
}

static void check_encode(const struct td_tokenizer *tk, const json_t *row, size_t number) {
    const json_t *text = json_object_get(row, "text");
    struct td_ids want = {0}, got = {0};
    struct td_err err = {0};
    ids_of(json_object_get(row, "ids"), &want);
    if (td_tokenizer_encode(tk, json_string_value(text), json_string_length(text), &got, &err) !=
        TD_OK) {
        fail_msg("row %zu: %s", number, err.msg);
    }
    if (got.n != want.n || (got.n > 0 && memcmp(got.v, want.v, got.n * sizeof *got.v) != 0)) {
        fail_msg("row %zu: '%s': other ids than HF's", number, json_string_value(text));
    }
    check_decode(tk, &got, true, json_object_get(row, "decoded"), number);
    td_ids_fini(&want);
    td_ids_fini(&got);
}

static void test_tokenizer_equals_hf(void **state) {
    (void)state;
    json_t *cases = load_json(GOLDEN "cases.json"), *family;
    const char *name;
    json_object_foreach(json_object_get(cases, "families"), name, family) {
        char *folder = td_asprintf(GOLDEN "%s", name);
        struct td_tokenizer *tk = load(folder);
        json_t *row;
        size_t i;
        json_array_foreach(json_object_get(family, "encode"), i, row) {
            check_encode(tk, row, i);
        }
        assert_true(i > 80);
        json_array_foreach(json_object_get(family, "decode"), i, row) {
            struct td_ids ids = {0};
            ids_of(json_object_get(row, "ids"), &ids);
            check_decode(tk, &ids, false, json_object_get(row, "text"), i);
            check_decode(tk, &ids, true, json_object_get(row, "skipped"), i);
            td_ids_fini(&ids);
        }
        td_tokenizer_free(tk);
        td_free(folder);
    }
    json_decref(cases);
}

static void test_tokenizer_long_piece(void **state) {
    (void)state;
    struct td_tokenizer *tk = load(GOLDEN "gpt2");
    enum { N = 300000 };
    char *text = td_alloc(N);
    struct td_ids ids = {0};
    struct td_buf back = {0};
    struct td_err err = {0};
    for (size_t i = 0; i < N; i++) {
        text[i] = "rise"[i % 4];
    }
    assert_int_equal(td_tokenizer_encode(tk, text, N, &ids, &err), TD_OK);
    assert_true(ids.n < N);
    td_tokenizer_decode(tk, ids.v, ids.n, false, &back);
    assert_int_equal(back.len, N);
    assert_memory_equal(back.data, text, N);
    td_buf_fini(&back);
    td_ids_fini(&ids);
    td_free(text);
    td_tokenizer_free(tk);
}

static void test_tokenizer_refuses_texts(void **state) {
    (void)state;
    struct td_tokenizer *tk = load(GOLDEN "qwen2");
    struct td_ids ids = {0};
    struct td_err err = {0};
    td_ids_put(&ids, 5);
    assert_int_equal(td_tokenizer_encode(tk, "ab\xff", 3, &ids, &err), TD_EINVAL);
    expect_says(&err, "byte 0xff at offset 2", 0);
    assert_int_equal(td_tokenizer_encode(tk, "", (size_t)TD_TEXT_BYTES_MAX + 1, &ids, &err),
                     TD_ELIMIT);
    assert_int_equal(ids.n, 1);
    td_ids_fini(&ids);
    td_tokenizer_free(tk);
}

static void test_tokenizer_ids(void **state) {
    (void)state;
    struct td_tokenizer *tk = load(GOLDEN "llama3");
    int32_t end = td_tokenizer_id(tk, "<|end_of_text|>");
    assert_true(end > 0);
    assert_int_equal(td_tokenizer_id(tk, "no such token"), -1);
    assert_true(td_tokenizer_is_special(tk, end));
    assert_false(td_tokenizer_is_special(tk, 0));
    assert_false(td_tokenizer_is_special(tk, -1));
    assert_false(td_tokenizer_is_special(tk, 1 << 30));
    assert_int_equal(td_tokenizer_eos(tk), -1);
    assert_int_equal(td_tokenizer_bos(tk), -1);
    size_t n = (size_t)td_tokenizer_size(tk);
    uint8_t *known = td_alloc(n + 8);
    td_tokenizer_known_ids(tk, known, n + 8);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(known[i], 1);
    }
    for (size_t i = n; i < n + 8; i++) {
        assert_int_equal(known[i], 0);
    }
    td_free(known);
    td_tokenizer_free(tk);
}

// ---- files: a small tokenizer, with one member replaced

static const char base[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
    "{\"id\":5,\"content\":\"<eos>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
    "\"normalized\":false,\"special\":true},{\"id\":7,\"content\":\"<bos>\",\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"aba\":4},"
    "\"merges\":[\"a b\",[\"ab\",\"a\"]]}}";

// Writes base to dir with the member at path (dots between keys) replaced by a JSON text.
static void put_changed(const char *dir, const char *path, const char *value) {
    json_t *root = json_loads(base, 0, NULL), *at = root;
    assert_non_null(root);
    char *copy = td_strdup(path), *key = copy;
    for (char *dot; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        *dot = 0;
        json_t *next =
            json_is_array(at) ? json_array_get(at, (size_t)(*key - '0')) : json_object_get(at, key);
        assert_non_null(next);
        at = next;
    }
    json_t *given = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(given);
    if (json_is_array(at)) {
        json_array_set_new(at, (size_t)(*key - '0'), given);
    } else {
        json_object_set_new(at, key, given);
    }
    char *text = json_dumps(root, 0);
    folder_put(dir, "tokenizer.json", text, strlen(text));
    td_free(text);
    td_free(copy);
    json_decref(root);
}

static void check_load_fails(const char *dir, enum td_rc rc, const char *says, size_t row) {
    struct td_tokenizer *tk = NULL;
    struct td_err err = {0};
    enum td_rc got = td_tokenizer_load(dir, &tk, &err);
    if (got != rc || tk != NULL) {
        fail_msg("row %zu (%s): %s: %s", row, says, td_rc_name(got), err.msg);
    }
    expect_says(&err, says, row);
    expect_says(&err, dir, row);
}

static const struct {
    const char *path, *value;
    enum td_rc rc;
    const char *says;
} bad_parts[] = {
    {"extra", "1", TD_EUNSUPPORTED, "tokenizer.json: extra: is not a key we know"},
    {"normalizer", "{\"type\":\"Lowercase\"}", TD_EUNSUPPORTED,
     "normalizer: type: 'Lowercase' is not supported"},
    {"normalizer", "{}", TD_EINVAL, "normalizer: type: must be a string, is missing"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}]}", TD_EUNSUPPORTED,
     "normalizer: normalizers[0]: type: 'NFKC'"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":4}", TD_EINVAL,
     "normalizers: must be a list, is a number"},
    {"pre_tokenizer", "null", TD_EUNSUPPORTED, "pre_tokenizer: null; only byte-level"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\"}", TD_EUNSUPPORTED, "type: 'Metaspace'"},
    {"pre_tokenizer", "{\"type\":\"Digits\"}", TD_EUNSUPPORTED, "has no ByteLevel"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", TD_EUNSUPPORTED, "add_prefix_space: true"},
    {"pre_tokenizer.use_regex", "1", TD_EINVAL, "use_regex: must be true or false"},
    {"pre_tokenizer.more", "1", TD_EUNSUPPORTED, "more: is not a key we know"},
    {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Sequence\"}]}",
     TD_EUNSUPPORTED, "pretokenizers[0]: type: 'Sequence'"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
     "\"add_prefix_space\":false},{\"type\":\"Digits\"}]}",
     TD_EUNSUPPORTED, "pretokenizers[1]: type: 'Digits' after ByteLevel"},
    {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},\"behavior\":\"Removed\"}",
     TD_EUNSUPPORTED, "Removed is not supported"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},\"behavior\":\"Isolated\","
     "\"invert\":true}",
     TD_EUNSUPPORTED, "invert: true is not supported"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(b\"},\"behavior\":\"Isolated\"}", TD_EINVAL,
     "pre_tokenizer: pattern: 'a(b' at offset 3: missing closing parenthesis"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\"}",
     TD_EUNSUPPORTED, "\\w is not supported"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\S]\"},\"behavior\":\"Isolated\"}",
     TD_EUNSUPPORTED, "\\S inside [...] is not supported"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":\"Isolated\"}",
     TD_EUNSUPPORTED, "'[' at offset 2"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a$\"},\"behavior\":\"Isolated\"}",
     TD_EUNSUPPORTED, "'$' at offset 1"},
    {"pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Isolated\"}", TD_EINVAL,
     "pattern: String: must be a string, is missing"},
    {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":\"x\"}", TD_EINVAL,
     "behavior: must be a string"},
    {"post_processor", "{\"type\":\"RobertaProcessing\"}", TD_EUNSUPPORTED,
     "post_processor: type: 'RobertaProcessing'"},
    {"decoder", "null", TD_EUNSUPPORTED, "decoder: null"},
    {"decoder", "{\"type\":\"WordPiece\"}", TD_EUNSUPPORTED, "decoder: type: 'WordPiece'"},
    {"decoder", "{\"type\":\"Sequence\",\"decoders\":[]}", TD_EUNSUPPORTED,
     "decoder: has no ByteLevel"},
    {"model", "null", TD_EINVAL, "model: must be an object, is null"},
    {"model.type", "\"Unigram\"", TD_EUNSUPPORTED, "model: type: Unigram is not supported"},
    {"model.type", "7", TD_EUNSUPPORTED, "model: type: a number"},
    {"model.alpha", "1", TD_EUNSUPPORTED, "model: alpha: is not a key"},
    {"model.dropout", "0.1", TD_EUNSUPPORTED, "model: dropout"},
    {"model.byte_fallback", "true", TD_EUNSUPPORTED, "model: byte_fallback: true"},
    {"model.byte_fallback", "1", TD_EINVAL, "byte_fallback: must be true or false"},
    {"model.ignore_merges", "1", TD_EINVAL, "ignore_merges: must be true or false"},
    {"model.end_of_word_suffix", "\"</w>\"", TD_EUNSUPPORTED, "end_of_word_suffix"},
    {"model.continuing_subword_prefix", "4", TD_EUNSUPPORTED, "continuing_subword_prefix"},
    {"model.vocab", "[]", TD_EINVAL, "model: vocab: must be an object, is a list"},
    {"model.vocab.ab", "0", TD_EINVAL, "another token has its id 0"},
    {"model.vocab.ab", "-1", TD_EINVAL, "vocab: 'ab': the id must be a number from 0"},
    {"model.vocab.ab", "4194304", TD_EINVAL, "'ab': the id must be"},
    {"model.vocab.ab", "\"2\"", TD_EINVAL, "'ab': the id must be"},
    {"model.merges", "{}", TD_EINVAL, "model: merges: must be a list, is an object"},
    {"model.merges.0", "\"ab\"", TD_EINVAL, "merges[0]: 'ab' must be two tokens"},
    {"model.merges.0", "\"a b c\"", TD_EINVAL, "merges[0]: 'a b c' must be two tokens"},
    {"model.merges.0", "[\"a\"]", TD_EINVAL, "merges[0]: must be a string or a list of two"},
    {"model.merges.0", "4", TD_EINVAL, "is a number"},
    {"model.merges.1", "[\"a\",\"c\"]", TD_EINVAL, "merges[1]: 'c' is not in model.vocab"},
    {"model.merges.1", "[\"c\",\"a\"]", TD_EINVAL, "merges[1]: 'c' is not in model.vocab"},
    {"model.merges.1", "[\"b\",\"a\"]", TD_EINVAL, "merges[1]: 'ba' is not in model.vocab"},
    {"added_tokens", "{}", TD_EINVAL, "added_tokens: must be a list, is an object"},
    {"added_tokens.0", "4", TD_EINVAL, "added_tokens[0]: content: must be a string"},
    {"added_tokens.0.content", "\"\"", TD_EINVAL, "content: must not be empty"},
    {"added_tokens.0.id", "1.5", TD_EINVAL, "added_tokens[0]: '<eos>': the id must be"},
    {"added_tokens.0.id", "3", TD_EINVAL, "'<eos>': another token has its id 3"},
    {"added_tokens.0.content", "\"ab\"", TD_EINVAL, "'ab' has id 5 here and 2 before"},
    {"added_tokens.0.lstrip", "true", TD_EUNSUPPORTED, "lstrip: true is not supported"},
    {"added_tokens.0.rstrip", "true", TD_EUNSUPPORTED, "rstrip: true is not supported"},
    {"added_tokens.0.single_word", "true", TD_EUNSUPPORTED, "single_word: true"},
    {"added_tokens.0.special", "3", TD_EINVAL, "special: must be true or false"},
    {"added_tokens.0.kind", "3", TD_EUNSUPPORTED, "kind: is not a key we know"},
};

static void test_tokenizer_refuses_parts(void **state) {
    (void)state;
    char *dir = folder_new();
    for (size_t i = 0; i < sizeof bad_parts / sizeof *bad_parts; i++) {
        put_changed(dir, bad_parts[i].path, bad_parts[i].value);
        check_load_fails(dir, bad_parts[i].rc, bad_parts[i].says, i);
    }
    folder_fini(dir);
}

static void test_tokenizer_refuses_files(void **state) {
    (void)state;
    static const struct {
        const char *name, *text;
        enum td_rc rc;
        const char *says;
    } rows[] = {
        {"tokenizer.json", "", TD_EINVAL, "tokenizer.json: not valid JSON at line 1"},
        {"tokenizer.json", "{\"a\":1,\n\"a\":2}", TD_EINVAL, "not valid JSON at line 2"},
        {"tokenizer.json", "[]", TD_EINVAL, "tokenizer.json: must be an object, is a list"},
        {"tokenizer_config.json", "{", TD_EINVAL, "tokenizer_config.json: not valid JSON"},
        {"tokenizer_config.json", "{\"eos_token\":4}", TD_EINVAL,
         "tokenizer_config.json: eos_token: must be a string, is a number"},
        {"tokenizer_config.json", "{\"bos_token\":{\"content\":\"<s>\"}}", TD_EINVAL,
         "bos_token: '<s>' is not a token of tokenizer.json"},
        {"config.json", "{\"eos_token_id\":6}", TD_EINVAL,
         "config.json: eos_token_id: must be the id of a token"},
        {"config.json", "{\"eos_token_id\":[99]}", TD_EINVAL, "eos_token_id: must be the id"},
        {"config.json", "{\"bos_token_id\":\"x\"}", TD_EINVAL, "bos_token_id: must be the id"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *dir = folder_new();
        folder_put(dir, "tokenizer.json", base, sizeof base - 1);
        folder_put(dir, rows[i].name, rows[i].text, strlen(rows[i].text));
        check_load_fails(dir, rows[i].rc, rows[i].says, i);
        folder_fini(dir);
    }
    char *dir = folder_new();
    check_load_fails(dir, TD_ENOENT, "tokenizer.json", 0);
    char *path = td_asprintf("%s/tokenizer.json", dir);
    folder_put(dir, "tokenizer.json", "", 0);
    assert_int_equal(truncate(path, (off_t)TD_TOKENIZER_BYTES_MAX + 1), 0);
    check_load_fails(dir, TD_ELIMIT, "longer than", 0);
    td_free(path);
    folder_fini(dir);
}

static void test_tokenizer_special_tokens_of_folders(void **state) {
    (void)state;
    static const struct {
        const char *config, *tokenizer_config;
        int32_t eos, bos;
        const char *chat_template;
    } rows[] = {
        {NULL, NULL, -1, -1, NULL},
        {"{\"eos_token_id\":5}", NULL, 5, -1, NULL},
        {"{\"eos_token_id\":[7,5],\"bos_token_id\":null}", NULL, 7, -1, NULL},
        {"{\"eos_token_id\":7,\"bos_token_id\":7}", "{\"eos_token\":\"<eos>\"}", 5, 7, NULL},
        {NULL, "{\"eos_token\":{\"content\":\"<eos>\"},\"bos_token\":null}", 5, -1, NULL},
        // as some models have it: an integer of 31 digits, and a template
        {NULL, "{\"model_max_length\":1000000000000000019884624838656,\"chat_template\":\"{{x}}\"}",
         -1, -1, "tokenizer_config.json"},
        {NULL, "{\"chat_template\":null}", -1, -1, NULL},
    };
    uint64_t digests[sizeof rows / sizeof *rows];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *dir = folder_new();
        folder_put(dir, "tokenizer.json", base, sizeof base - 1);
        if (rows[i].config != NULL) {
            folder_put(dir, "config.json", rows[i].config, strlen(rows[i].config));
        }
        if (rows[i].tokenizer_config != NULL) {
            folder_put(dir, "tokenizer_config.json", rows[i].tokenizer_config,
                       strlen(rows[i].tokenizer_config));
        }
        struct td_tokenizer *tk = load(dir);
        assert_int_equal(td_tokenizer_eos(tk), rows[i].eos);
        assert_int_equal(td_tokenizer_bos(tk), rows[i].bos);
        const char *own = td_tokenizer_chat_template(tk);
        assert_true((own == NULL) == (rows[i].chat_template == NULL));
        if (own != NULL) {
            assert_string_equal(own, rows[i].chat_template);
        }
        digests[i] = td_tokenizer_digest(tk);
        td_tokenizer_free(tk);
        folder_fini(dir);
    }
    assert_true(digests[1] == digests[3]);
    assert_true(digests[0] != digests[1]);
    assert_true(digests[0] == digests[6]);
    char *dir = folder_new();
    folder_put(dir, "tokenizer.json", base, sizeof base - 1);
    folder_put(dir, "chat_template.jinja", "{{x}}", 5);
    struct td_tokenizer *tk = load(dir);
    assert_string_equal(td_tokenizer_chat_template(tk), "chat_template.jinja");
    td_tokenizer_free(tk);
    folder_fini(dir);
}

static void test_tokenizer_small_vocabulary(void **state) {
    (void)state;
    char *dir = folder_new();
    folder_put(dir, "tokenizer.json", base, sizeof base - 1);
    struct td_tokenizer *tk = load(dir);
    struct td_ids ids = {0};
    struct td_err err = {0};
    static const int32_t want[] = {4, 3, 2, 5, 0};
    assert_int_equal(td_tokenizer_encode(tk, "aba ab<eos>a", 12, &ids, &err), TD_OK);
    // HF takes "aba" (merges a b, ab a), " ab", the added token, "a"
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.v, want, sizeof want);
    assert_int_equal(td_tokenizer_encode(tk, "abc", 3, &ids, &err), TD_EINVAL);
    expect_says(&err, "byte 0x63 (in 'abc') has no token", 0);
    assert_int_equal(ids.n, 5);
    assert_int_equal(td_tokenizer_size(tk), 8);
    uint8_t known[9];
    static const uint8_t all[9] = {1, 1, 1, 1, 1, 1, 0, 1, 0};
    td_tokenizer_known_ids(tk, known, 9);
    assert_memory_equal(known, all, 9);
    td_ids_fini(&ids);
    td_tokenizer_free(tk);
    folder_fini(dir);
}

// Any bytes load or are refused; what loads can encode.
static void test_tokenizer_survives_random_bytes(void **state) {
    (void)state;
    struct td_rng rng = {seed_for("test_tokenizer_survives_random_bytes")};
    char *dir = folder_new();
    int loaded = 0;
    for (int round = 0; round < 400; round++) {
        char text[sizeof base];
        memcpy(text, base, sizeof base);
        size_t n = sizeof base - 1;
        for (uint32_t k = 1 + td_rng_below(&rng, 2); k > 0; k--) {
            static const char likely[] = "{}[]\",:0123456789 abtfn\\";
            size_t at = td_rng_below(&rng, (uint32_t)n);
            text[at] = td_rng_below(&rng, 2) ? likely[td_rng_below(&rng, sizeof likely - 1)]
                                             : (char)td_rng_below(&rng, 256);
        }
        n = td_rng_below(&rng, 8) == 0 ? td_rng_below(&rng, (uint32_t)n) : n;
        folder_put(dir, "tokenizer.json", text, n);
        struct td_tokenizer *tk = NULL;
        struct td_err err = {0};
        struct td_ids ids = {0};
        if (td_tokenizer_load(dir, &tk, &err) == TD_OK) {
            loaded++;
            (void)!td_tokenizer_encode(tk, "abab a<eos>", 11, &ids, &err);
        } else {
            assert_true(err.msg[0] != 0);
        }
        td_ids_fini(&ids);
        td_tokenizer_free(tk);
    }
    print_message("%d of 400 still load\n", loaded);
    folder_fini(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_equals_hf),
        cmocka_unit_test(test_tokenizer_long_piece),
        cmocka_unit_test(test_tokenizer_refuses_texts),
        cmocka_unit_test(test_tokenizer_ids),
        cmocka_unit_test(test_tokenizer_refuses_parts),
        cmocka_unit_test(test_tokenizer_refuses_files),
        cmocka_unit_test(test_tokenizer_special_tokens_of_folders),
        cmocka_unit_test(test_tokenizer_small_vocabulary),
        cmocka_unit_test(test_tokenizer_survives_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
