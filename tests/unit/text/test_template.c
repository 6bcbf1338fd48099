// The built-in templates: which ids they give and which of them are trained.
#include "lib/text/template.h"

#include "tests/unit/text/folder.h"

#define QWEN2 TD_TEST_SOURCE_DIR "/tests/golden/tokenizer/qwen2"

// The qwen2 tokenizer in a folder of its own, with a tokenizer_config.json.
static struct td_tokenizer *tokenizer_with(const char *config, char **dir) {
    struct td_buf bytes = {0};
    struct td_err err = {0};
    struct td_tokenizer *tk = NULL;
    *dir = folder_new();
    assert_int_equal(td_file_read(QWEN2 "/tokenizer.json", 1 << 20, &bytes, &err), TD_OK);
    folder_put(*dir, "tokenizer.json", bytes.data, bytes.len);
    folder_put(*dir, "tokenizer_config.json", config, strlen(config));
    if (td_tokenizer_load(*dir, &tk, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_buf_fini(&bytes);
    return tk;
}

struct encoded {
    struct td_ids ids;
    struct td_buf mask, text, trained; // text of all ids, and of the trained ones
};

static void encode(const struct td_tokenizer *tk, enum td_template t, const struct td_message *m,
                   size_t n, bool open_turn, struct encoded *e) {
    struct td_err err = {0};
    struct td_dialog dialog = {m, n, open_turn};
    *e = (struct encoded){0};
    if (td_template_encode(t, tk, &dialog, &e->ids, &e->mask, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(e->ids.n, e->mask.len);
    td_tokenizer_decode(tk, e->ids.v, e->ids.n, false, &e->text);
    for (size_t i = 0; i < e->ids.n; i++) {
        if (e->mask.data[i]) {
            td_tokenizer_decode(tk, &e->ids.v[i], 1, false, &e->trained);
        }
    }
}

static void encoded_fini(struct encoded *e) {
    td_ids_fini(&e->ids);
    td_buf_fini(&e->mask);
    td_buf_fini(&e->text);
    td_buf_fini(&e->trained);
}

static const struct td_message talk[] = {
    {"system", "Be brief."}, {"user", "17+28="},   {"assistant", "45"},
    {"user", "\n1+1="},      {"assistant", "\n2"},
};

static void test_template_renders(void **state) {
    (void)state;
    static const struct {
        enum td_template t;
        size_t n;
        bool open_turn;
        const char *text, *trained;
    } rows[] = {
        {TD_TEMPLATE_PLAIN, 2, true, "Be brief.17+28=", ""},
        {TD_TEMPLATE_PLAIN, 5, false, "Be brief.17+28=45<|endoftext|>\n1+1=\n2<|endoftext|>",
         "45<|endoftext|>\n2<|endoftext|>"},
        {TD_TEMPLATE_CHATML, 0, true, "<|im_start|>assistant\n", ""},
        {TD_TEMPLATE_CHATML, 2, true,
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n17+28=<|im_end|>\n"
         "<|im_start|>assistant\n",
         ""},
        {TD_TEMPLATE_CHATML, 5, false,
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n17+28=<|im_end|>\n"
         "<|im_start|>assistant\n45<|im_end|>\n<|im_start|>user\n\n1+1=<|im_end|>\n"
         "<|im_start|>assistant\n\n2<|im_end|>\n",
         "45<|im_end|>\n\n2<|im_end|>\n"},
    };
    char *dir;
    struct td_tokenizer *tk = tokenizer_with("{\"eos_token\":\"<|endoftext|>\"}", &dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct encoded e;
        encode(tk, rows[i].t, talk, rows[i].n, rows[i].open_turn, &e);
        assert_string_equal(td_buf_str(&e.text), rows[i].text);
        assert_string_equal(td_buf_str(&e.trained), rows[i].trained);
        encoded_fini(&e);
    }
    td_tokenizer_free(tk);
    folder_fini(dir);
}

// What is trained is what is generated: the prompt's ids are the beginning of the whole's.
static void test_template_prompt_is_a_prefix(void **state) {
    (void)state;
    char *dir;
    struct td_tokenizer *tk = tokenizer_with("{\"eos_token\":\"<|im_end|>\"}", &dir);
    for (int t = 0; t < TD_TEMPLATE_COUNT; t++) {
        struct encoded prompt, whole;
        encode(tk, (enum td_template)t, talk, 4, true, &prompt);
        encode(tk, (enum td_template)t, talk, 5, false, &whole);
        assert_true(whole.ids.n > prompt.ids.n);
        assert_memory_equal(whole.ids.v, prompt.ids.v, prompt.ids.n * sizeof *prompt.ids.v);
        assert_int_equal(whole.mask.data[prompt.ids.n], 1);
        encoded_fini(&prompt);
        encoded_fini(&whole);
    }
    td_tokenizer_free(tk);
    folder_fini(dir);
}

static void test_template_errors(void **state) {
    (void)state;
    struct td_err err = {0};
    enum td_template t = TD_TEMPLATE_COUNT;
    struct td_ids ids = {0};
    char *dir;
    assert_int_equal(td_template_parse("chatml", &t, &err), TD_OK);
    assert_int_equal(t, TD_TEMPLATE_CHATML);
    assert_int_equal(td_template_parse("plain", &t, &err), TD_OK);
    assert_int_equal(t, TD_TEMPLATE_PLAIN);
    assert_int_equal(td_template_parse("llama", &t, &err), TD_EINVAL);
    expect_says(&err, "'llama' is not a template; use plain or chatml", 0);
    assert_true(td_template_digest(TD_TEMPLATE_PLAIN) != td_template_digest(TD_TEMPLATE_CHATML));

    struct td_tokenizer *tk = tokenizer_with("{\"chat_template\":\"x\"}", &dir);
    assert_int_equal(td_template_check(TD_TEMPLATE_PLAIN, tk, &err), TD_EUNSUPPORTED);
    expect_says(&err, "(tokenizer_config.json)", 1);
    td_tokenizer_free(tk);
    folder_fini(dir);

    tk = tokenizer_with("{}", &dir);
    assert_int_equal(td_template_check(TD_TEMPLATE_CHATML, tk, &err), TD_OK);
    static const struct td_message tool = {"tool", "x"}, broken = {"user", "\xff"};
    static const struct td_dialog answered = {talk, 3, false}, tools = {&tool, 1, true},
                                  breaks = {&broken, 1, true};
    assert_int_equal(td_template_encode(TD_TEMPLATE_PLAIN, tk, &answered, &ids, NULL, &err),
                     TD_EINVAL);
    expect_says(&err, "message 2: an answer ends with the eos token", 2);
    assert_int_equal(td_template_encode(TD_TEMPLATE_CHATML, tk, &tools, &ids, NULL, &err),
                     TD_EINVAL);
    expect_says(&err, "message 0: role: 'tool'", 3);
    assert_int_equal(td_template_encode(TD_TEMPLATE_PLAIN, tk, &breaks, &ids, NULL, &err),
                     TD_EINVAL);
    expect_says(&err, "message 0: the text is not UTF-8", 4);
    td_ids_fini(&ids);
    td_tokenizer_free(tk);
    folder_fini(dir);

    assert_int_equal(
        td_tokenizer_load(TD_TEST_SOURCE_DIR "/tests/golden/tokenizer/gpt2", &tk, &err), TD_OK);
    assert_int_equal(td_template_check(TD_TEMPLATE_CHATML, tk, &err), TD_EINVAL);
    expect_says(&err, "no token <|im_start|>", 5);
    assert_int_equal(td_template_check(TD_TEMPLATE_PLAIN, tk, &err), TD_OK);
    td_tokenizer_free(tk);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template_renders),
        cmocka_unit_test(test_template_prompt_is_a_prefix),
        cmocka_unit_test(test_template_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
