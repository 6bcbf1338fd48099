// Data sets: rows as written and as tokenized, selection, truncation, digests, and every error a
// file can have.
#include "lib/text/dataset.h"

#include "lib/base/rng.h"
#include "tests/unit/text/folder.h"

// Bytes are tokens: id = byte, but for <eos> = 256 and the chatml pair 257 and 258.
static void put_byte_tokenizer(const char *dir, const char *config) {
    struct td_buf text = {0};
    td_buf_puts(&text, "{\"added_tokens\":["
                       "{\"id\":256,\"content\":\"<eos>\",\"special\":true},"
                       "{\"id\":257,\"content\":\"<|im_start|>\",\"special\":true},"
                       "{\"id\":258,\"content\":\"<|im_end|>\",\"special\":true}],"
                       "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                       "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"merges\":[],\"vocab\":{");
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        td_buf_printf(&text, "%s\"\\u%04x\":%u", b == 0 ? "" : ",", itself ? b : next++, b);
    }
    td_buf_puts(&text, "}}}");
    folder_put(dir, "tokenizer.json", text.data, text.len);
    folder_put(dir, "tokenizer_config.json", config, strlen(config));
    td_buf_fini(&text);
}

struct bench {
    char *dir, *path;
    struct td_tokenizer *tk;
};

static void bench_init(struct bench *b, const char *config) {
    struct td_err err = {0};
    b->dir = folder_new();
    b->path = td_asprintf("%s/rows.jsonl", b->dir);
    put_byte_tokenizer(b->dir, config);
    if (td_tokenizer_load(b->dir, &b->tk, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

static void bench_fini(struct bench *b) {
    td_tokenizer_free(b->tk);
    td_free(b->path);
    folder_fini(b->dir);
}

static struct td_dataset_config config_of(const struct bench *b, enum td_dataset_kind kind) {
    return (struct td_dataset_config){.kind = kind,
                                      .files = (const char *const *)&b->path,
                                      .file_count = 1,
                                      .max_length = 100,
                                      .max_samples = -1};
}

static struct td_dataset *load_text(const struct bench *b, const struct td_dataset_config *c,
                                    const char *text) {
    struct td_dataset *ds = NULL;
    struct td_err err = {0};
    folder_put(b->dir, "rows.jsonl", text, strlen(text));
    if (td_dataset_load(c, b->tk, &ds, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return ds;
}

static void expect_text(const struct bench *b, const struct td_row *row, const char *want) {
    struct td_buf text = {0};
    td_tokenizer_decode(b->tk, row->ids, row->n, false, &text);
    assert_string_equal(td_buf_str(&text), want);
    td_buf_fini(&text);
}

static void test_dataset_prompt_rows(void **state) {
    (void)state;
    static const char text[] =
        "{\"prompt\":\"1+2=\",\"data_source\":\"sums\",\"reward_model\":{\"ground_truth\":\"3\"}}\n"
        "\n"
        "{\"prompt\":[{\"role\":\"system\",\"content\":\"Add. \"},"
        "{\"role\":\"user\",\"content\":\"3+4=\"}],\"data_source\":\"sums\",\"ability\":\"math\","
        "\"reward_model\":{\"style\":\"rule\",\"ground_truth\":7},"
        "\"extra_info\":{\"index\": 5, \"split\":\"train\"}}\r\n"
        "{\"prompt\":\"pi\",\"data_source\":\"digits\",\"reward_model\":{\"ground_truth\":3.14},"
        "\"extra_info\":null,\"images\":[]}";
    struct bench b;
    bench_init(&b, "{}");
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    struct td_dataset *ds = load_text(&b, &c, text);
    struct td_row row;
    assert_int_equal(td_dataset_rows(ds), 3);
    td_dataset_row(ds, 0, &row);
    expect_text(&b, &row, "1+2=");
    assert_string_equal(row.data_source, "sums");
    assert_string_equal(row.ground_truth, "3");
    assert_null(row.extra_info);
    assert_null(row.loss_mask);
    assert_string_equal(row.file, b.path);
    assert_int_equal(row.line, 1);
    td_dataset_row(ds, 1, &row);
    expect_text(&b, &row, "Add. 3+4=");
    assert_string_equal(row.ground_truth, "7");
    assert_string_equal(row.extra_info, "{\"index\":5,\"split\":\"train\"}");
    assert_int_equal(row.line, 3);
    td_dataset_row(ds, 2, &row);
    assert_string_equal(row.ground_truth, "3.14");
    assert_null(row.extra_info);
    td_dataset_free(ds);
    c.template = TD_TEMPLATE_CHATML;
    ds = load_text(&b, &c, text);
    td_dataset_row(ds, 0, &row);
    expect_text(&b, &row, "<|im_start|>user\n1+2=<|im_end|>\n<|im_start|>assistant\n");
    td_dataset_free(ds);
    bench_fini(&b);
}

static void test_dataset_renamed_keys(void **state) {
    (void)state;
    struct bench b;
    bench_init(&b, "{\"eos_token\":\"<eos>\"}");
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    struct td_row row;
    c.prompt_key = "q";
    c.reward_fn_key = "from";
    struct td_dataset *ds =
        load_text(&b, &c, "{\"q\":\"x\",\"from\":\"s\",\"reward_model\":{\"ground_truth\":\"\"}}");
    td_dataset_row(ds, 0, &row);
    assert_string_equal(row.data_source, "s");
    td_dataset_free(ds);
    c = config_of(&b, TD_DATASET_SFT);
    c.prompt_key = "q";
    c.response_key = "a";
    c.messages_key = "talk";
    ds = load_text(&b, &c,
                   "{\"q\":\"x\",\"a\":\"y\",\"messages\":5}\n"
                   "{\"talk\":[{\"role\":\"user\",\"content\":\"u\"},"
                   "{\"role\":\"assistant\",\"content\":\"v\"}]}\n");
    td_dataset_row(ds, 0, &row);
    expect_text(&b, &row, "xy<eos>");
    td_dataset_row(ds, 1, &row);
    expect_text(&b, &row, "uv<eos>");
    td_dataset_free(ds);
    bench_fini(&b);
}

static void test_dataset_sft_rows(void **state) {
    (void)state;
    static const struct {
        enum td_template t;
        const char *line, *text, *mask; // mask: one character a token, x: trained
    } rows[] = {
        {TD_TEMPLATE_PLAIN, "{\"prompt\":\"1+2=\",\"response\":\"3\"}", "1+2=3<eos>", "----xx"},
        {TD_TEMPLATE_PLAIN, "{\"prompt\":\"1\",\"response\":\"\"}", "1<eos>", "-x"},
        // nothing predicts the first token
        {TD_TEMPLATE_PLAIN, "{\"prompt\":\"\",\"response\":\"ab\"}", "ab<eos>", "-xx"},
        {TD_TEMPLATE_PLAIN,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
         "{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"r\"},"
         "{\"role\":\"assistant\",\"content\":\"b\"}]}",
         "qa<eos>rb<eos>", "-xx-xx"},
        {TD_TEMPLATE_CHATML, "{\"prompt\":\"q\",\"response\":\"a\"}",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<eos>", "--------------------xx"},
        {TD_TEMPLATE_CHATML,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
         "{\"role\":\"assistant\",\"content\":\"a\"}]}",
         "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n",
         "--------------------xxx"},
    };
    struct bench b;
    bench_init(&b, "{\"eos_token\":\"<eos>\"}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_dataset_config c = config_of(&b, TD_DATASET_SFT);
        c.template = rows[i].t;
        struct td_dataset *ds = load_text(&b, &c, rows[i].line);
        struct td_row row;
        td_dataset_row(ds, 0, &row);
        expect_text(&b, &row, rows[i].text);
        char mask[64] = {0};
        for (size_t k = 0; k < row.n; k++) {
            mask[k] = row.loss_mask[k] ? 'x' : '-';
        }
        assert_string_equal(mask, rows[i].mask);
        td_dataset_free(ds);
    }
    bench_fini(&b);
}

static void test_dataset_lengths(void **state) {
    (void)state;
    static const char rows[] =
        "{\"prompt\":\"abc\",\"data_source\":\"s\",\"reward_model\":{\"ground_truth\":\"\"}}\n"
        "{\"prompt\":\"abcdefg\",\"data_source\":\"s\",\"reward_model\":{\"ground_truth\":\"\"}}\n";
    static const struct {
        enum td_truncation how;
        const char *text;
    } cuts[] = {
        {TD_TRUNCATE_LEFT, "cdefg"}, {TD_TRUNCATE_RIGHT, "abcde"}, {TD_TRUNCATE_MIDDLE, "abefg"}};
    struct bench b;
    bench_init(&b, "{\"eos_token\":\"<eos>\"}");
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    struct td_row row;
    c.max_length = 5;
    for (size_t i = 0; i < 3; i++) {
        c.truncation = cuts[i].how;
        struct td_dataset *ds = load_text(&b, &c, rows);
        td_dataset_row(ds, 1, &row);
        expect_text(&b, &row, cuts[i].text);
        td_dataset_row(ds, 0, &row);
        expect_text(&b, &row, "abc");
        td_dataset_free(ds);
    }
    c.filter_overlong_prompts = true;
    c.truncation = TD_TRUNCATE_ERROR;
    struct td_dataset *ds = load_text(&b, &c, rows);
    assert_int_equal(td_dataset_rows(ds), 1);
    assert_int_equal(td_dataset_filtered(ds), 1);
    td_dataset_free(ds);
    // SFT: the mask is cut as the ids are
    c = config_of(&b, TD_DATASET_SFT);
    c.max_length = 4;
    c.truncation = TD_TRUNCATE_LEFT;
    ds = load_text(&b, &c, "{\"prompt\":\"abcd\",\"response\":\"ef\"}");
    td_dataset_row(ds, 0, &row);
    expect_text(&b, &row, "def<eos>");
    assert_memory_equal(row.loss_mask, "\0\1\1\1", 4);
    td_dataset_free(ds);
    bench_fini(&b);
}

static void put_numbers(struct td_buf *out, int from, int to) {
    for (int i = from; i < to; i++) {
        td_buf_printf(out,
                      "{\"prompt\":\"%03d\",\"data_source\":\"s\",\"reward_model\":"
                      "{\"ground_truth\":%d}}\n",
                      i, i);
    }
}

static int number_of(const struct td_row *row) {
    return (int)strtol(row->ground_truth, NULL, 10);
}

static void test_dataset_order_and_samples(void **state) {
    (void)state;
    enum { N = 50 };
    struct bench b;
    struct td_buf text = {0};
    struct td_row row;
    bench_init(&b, "{}");
    put_numbers(&text, 0, N);
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    struct td_dataset *ds = load_text(&b, &c, td_buf_str(&text));
    for (int i = 0; i < N; i++) {
        td_dataset_at(ds, 3, (uint64_t)i, &row);
        assert_int_equal(number_of(&row), i);
    }
    td_dataset_free(ds);
    c.shuffle = true;
    c.seed = 11;
    ds = load_text(&b, &c, td_buf_str(&text));
    int seen[2][N] = {{0}}, moved = 0;
    for (int i = 0; i < N; i++) {
        td_dataset_at(ds, 0, (uint64_t)i, &row);
        int first = number_of(&row);
        assert_int_equal(first, td_permute(11, 0, N, (uint64_t)i));
        td_dataset_at(ds, 1, (uint64_t)i, &row);
        seen[0][first]++;
        seen[1][number_of(&row)]++;
        moved += first != number_of(&row);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(seen[0][i], 1);
        assert_int_equal(seen[1][i], 1);
    }
    assert_true(moved > N / 2);
    td_dataset_free(ds);
    // so many of the rows, in the order of the file, others under another seed
    struct td_data_index index[2];
    for (uint64_t seed = 0; seed < 2; seed++) {
        c.max_samples = 20;
        c.seed = seed;
        ds = load_text(&b, &c, td_buf_str(&text));
        assert_int_equal(td_dataset_rows(ds), 20);
        int last = -1;
        for (uint64_t i = 0; i < 20; i++) {
            td_dataset_row(ds, i, &row);
            assert_true(number_of(&row) > last);
            last = number_of(&row);
        }
        td_dataset_index(ds, &index[seed]);
        td_dataset_free(ds);
    }
    assert_true(index[0].data_digest != index[1].data_digest);
    c.shuffle = false;
    ds = load_text(&b, &c, td_buf_str(&text));
    td_dataset_row(ds, 19, &row);
    assert_int_equal(number_of(&row), 19);
    td_dataset_free(ds);
    td_buf_fini(&text);
    bench_fini(&b);
}

static void test_dataset_several_files(void **state) {
    (void)state;
    struct bench b;
    struct td_buf text[2] = {{0}, {0}};
    struct td_err err = {0};
    struct td_dataset *ds = NULL;
    struct td_row row;
    bench_init(&b, "{}");
    put_numbers(&text[0], 0, 3);
    put_numbers(&text[1], 3, 8);
    char *second = td_asprintf("%s/more.jsonl", b.dir);
    const char *files[] = {b.path, second};
    folder_put(b.dir, "rows.jsonl", text[0].data, text[0].len);
    folder_put(b.dir, "more.jsonl", text[1].data, text[1].len);
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    c.files = files;
    c.file_count = 2;
    c.max_samples = 6;
    assert_int_equal(td_dataset_load(&c, b.tk, &ds, &err), TD_OK);
    assert_int_equal(td_dataset_rows(ds), 6);
    td_dataset_row(ds, 5, &row);
    assert_int_equal(number_of(&row), 5);
    assert_string_equal(row.file, second);
    assert_int_equal(row.line, 3);
    td_dataset_free(ds);
    td_free(second);
    td_buf_fini(&text[0]);
    td_buf_fini(&text[1]);
    bench_fini(&b);
}

#define REST ",\"data_source\":\"s\",\"reward_model\":{\"ground_truth\":\"1\"}}\n"

static void test_dataset_index(void **state) {
    (void)state;
    // one row in eight forms: each digest differs but that of equal rows
    static const char *const texts[] = {
        "{\"prompt\":\"ab\"" REST,
        "{\"prompt\":\"ab\",\"other\":1" REST,
        "{\"prompt\":\"abc\"" REST,
        "{\"prompt\":\"ab\",\"data_source\":\"s\",\"reward_model\":{\"ground_truth\":\"2\"}}\n",
        "{\"prompt\":\"ab\",\"data_source\":\"t\",\"reward_model\":{\"ground_truth\":\"1\"}}\n",
    };
    enum { N = sizeof texts / sizeof *texts };
    struct bench b;
    bench_init(&b, "{}");
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    struct td_data_index index[N];
    struct td_row row[N];
    uint64_t digest[N];
    for (size_t i = 0; i < N; i++) {
        struct td_dataset *ds = load_text(&b, &c, texts[i]);
        td_dataset_index(ds, &index[i]);
        td_dataset_row(ds, 0, &row[i]);
        digest[i] = row[i].digest;
        assert_int_equal(index[i].rows, 1);
        assert_true(index[i].tokenizer_digest == td_tokenizer_digest(b.tk));
        assert_true(index[i].template_digest == td_template_digest(TD_TEMPLATE_PLAIN));
        td_dataset_free(ds);
    }
    assert_true(digest[0] == digest[1]);
    for (size_t i = 1; i < N; i++) {
        assert_true(index[i].data_digest != index[0].data_digest);
        assert_true(i == 1 || digest[i] != digest[0]);
    }
    struct td_dataset *ds = load_text(&b, &c, texts[0]);
    struct td_data_index again;
    td_dataset_index(ds, &again);
    assert_memory_equal(&again, &index[0], sizeof again);
    td_dataset_free(ds);
    bench_fini(&b);
}

static void check_refused(const struct bench *b, const struct td_dataset_config *c, enum td_rc want,
                          const char *says, size_t row) {
    struct td_dataset *ds = NULL;
    struct td_err err = {0};
    enum td_rc rc = td_dataset_load(c, b->tk, &ds, &err);
    if (rc != want || ds != NULL) {
        fail_msg("row %zu (%s): %s: %s", row, says, td_rc_name(rc), err.msg);
    }
    expect_says(&err, says, row);
}

static void test_dataset_refuses_lines(void **state) {
    (void)state;
    static const struct {
        enum td_dataset_kind kind;
        const char *text;
        enum td_rc rc;
        const char *says;
    } rows[] = {
        {TD_DATASET_PROMPTS, "", TD_EINVAL, "rows.jsonl: has no rows"},
        {TD_DATASET_PROMPTS, "\n \n\t\n", TD_EINVAL, "rows.jsonl: has no rows"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\"" REST "{\"prompt\":", TD_EINVAL,
         "rows.jsonl:2: not valid JSON at line 1 column 10"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\",\"prompt\":\"b\"" REST, TD_EINVAL,
         "rows.jsonl:1: not valid JSON at line 1 column 22: duplicate object key"},
        {TD_DATASET_PROMPTS, "{\"prompt\":NaN" REST, TD_EINVAL, "rows.jsonl:1: not valid JSON"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"\xff\"" REST, TD_EINVAL, "unable to decode byte 0xff"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\"" REST "[1]", TD_EINVAL,
         "rows.jsonl:2: must be an object, is a list"},
        {TD_DATASET_PROMPTS, "{\"x\":\"a\"" REST, TD_EINVAL,
         "rows.jsonl:1: prompt: must be a string or a list of {role, content}, is missing"},
        {TD_DATASET_PROMPTS, "{\"prompt\":5" REST, TD_EINVAL, "prompt: must be a string or a list"},
        {TD_DATASET_PROMPTS, "{\"prompt\":[]" REST, TD_EINVAL, "is an empty list"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"\"" REST, TD_EINVAL, "prompt: is empty"},
        {TD_DATASET_PROMPTS, "{\"prompt\":[\"a\"]" REST, TD_EINVAL,
         "prompt: [0]: must be an object with role and content, is a string"},
        {TD_DATASET_PROMPTS, "{\"prompt\":[{\"role\":\"user\"}]" REST, TD_EINVAL,
         "prompt: [0]: content: must be a string, is missing"},
        {TD_DATASET_PROMPTS, "{\"prompt\":[{\"content\":\"user\"}]" REST, TD_EINVAL,
         "prompt: [0]: role: must be a string, is missing"},
        {TD_DATASET_PROMPTS, "{\"prompt\":[{\"role\":\"user\",\"content\":[]}]" REST, TD_EINVAL,
         "content: must be a string, is a list"},
        {TD_DATASET_PROMPTS,
         "{\"prompt\":[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[]}]" REST,
         TD_EUNSUPPORTED, "prompt: [0]: tool_calls: is not a key we know"},
        {TD_DATASET_PROMPTS, "{\"prompt\":[{\"role\":\"tool\",\"content\":\"x\"}]" REST, TD_EINVAL,
         "prompt: message 0: role: 'tool'"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\",\"reward_model\":{\"ground_truth\":\"1\"}}",
         TD_EINVAL, "data_source: must be a string, is missing"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\",\"data_source\":\"s\"}", TD_EINVAL,
         "reward_model: must be an object with ground_truth, is missing"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\",\"data_source\":\"s\",\"reward_model\":{}}",
         TD_EINVAL, "reward_model: ground_truth: must be a string or a number, is missing"},
        {TD_DATASET_PROMPTS,
         "{\"prompt\":\"a\",\"data_source\":\"s\",\"reward_model\":{\"ground_truth\":{}}}",
         TD_EINVAL, "ground_truth: must be a string or a number, is an object"},
        {TD_DATASET_PROMPTS,
         "{\"prompt\":\"a\",\"data_source\":\"s\","
         "\"reward_model\":{\"style\":\"model\",\"ground_truth\":\"\"}}",
         TD_EUNSUPPORTED, "reward_model: style: 'model'"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\",\"images\":[1]" REST, TD_EUNSUPPORTED,
         "images: only text"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"a\",\"videos\":[1]" REST, TD_EUNSUPPORTED, "videos:"},
        {TD_DATASET_PROMPTS, "{\"prompt\":\"123456789\"" REST, TD_EINVAL,
         "rows.jsonl:1: 9 tokens, and at most 8 are allowed; raise data.max_prompt_length"},
        {TD_DATASET_SFT, "{\"prompt\":\"a\"}", TD_EINVAL, "response: must be a string, is missing"},
        {TD_DATASET_SFT, "{\"response\":\"a\"}", TD_EINVAL, "prompt: must be a string or a list"},
        {TD_DATASET_SFT, "{\"messages\":{}}", TD_EINVAL, "messages: must be a string or a list"},
        {TD_DATASET_SFT, "{\"messages\":\"a\"}", TD_EINVAL, "no token of an answer is left"},
        {TD_DATASET_SFT, "{\"prompt\":\"12345\",\"response\":\"678\"}", TD_EINVAL,
         "9 tokens, and at most 8 are allowed; raise data.max_length"},
    };
    struct bench b;
    bench_init(&b, "{\"eos_token\":\"<eos>\"}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_dataset_config c = config_of(&b, rows[i].kind);
        c.max_length = 8;
        folder_put(b.dir, "rows.jsonl", rows[i].text, strlen(rows[i].text));
        check_refused(&b, &c, rows[i].rc, rows[i].says, i);
    }
    bench_fini(&b);
}

static void test_dataset_refuses_files_and_settings(void **state) {
    (void)state;
    static const char row[] = "{\"prompt\":\"abc\"" REST;
    struct bench b;
    bench_init(&b, "{}");
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    check_refused(&b, &c, TD_ENOENT, "rows.jsonl", 0);
    const char *parquet[] = {"x.parquet"};
    c.files = parquet;
    check_refused(&b, &c, TD_EUNSUPPORTED, "x.parquet: Parquet is not read yet", 1);
    c.file_count = 0;
    check_refused(&b, &c, TD_EINVAL, "no data file", 2);
    c = config_of(&b, TD_DATASET_PROMPTS);
    c.max_length = 0;
    check_refused(&b, &c, TD_EINVAL, "data.max_prompt_length: must be at least 1", 3);
    c = config_of(&b, TD_DATASET_SFT);
    c.truncation = TD_TRUNCATE_MIDDLE;
    check_refused(&b, &c, TD_EINVAL, "middle is for prompts", 4);
    c.truncation = TD_TRUNCATE_ERROR;
    static const char pair[] = "{\"prompt\":\"a\",\"response\":\"b\"}";
    folder_put(b.dir, "rows.jsonl", pair, sizeof pair - 1);
    check_refused(&b, &c, TD_EINVAL, "rows.jsonl:1: response: message 0: an answer ends with", 5);
    c = config_of(&b, TD_DATASET_PROMPTS);
    c.max_length = 2;
    c.filter_overlong_prompts = true;
    folder_put(b.dir, "rows.jsonl", row, sizeof row - 1);
    check_refused(&b, &c, TD_EINVAL, "all of 1 rows are longer than 2 tokens", 6);
    // a line and a file above their limits
    c = config_of(&b, TD_DATASET_PROMPTS);
    struct td_buf text = {0};
    memset(td_buf_room(&text, TD_DATASET_LINE_MAX + 1), 'x', TD_DATASET_LINE_MAX + 1);
    text.len = TD_DATASET_LINE_MAX + 1;
    folder_put(b.dir, "rows.jsonl", text.data, text.len);
    check_refused(&b, &c, TD_ELIMIT, "rows.jsonl:1: a line of 8388609 bytes; at most 8388608", 7);
    td_buf_clear(&text);
    td_buf_puts(&text, "{\"prompt\":[");
    for (int i = 0; i <= TD_DATASET_MESSAGES_MAX; i++) {
        td_buf_printf(&text, "%s0", i == 0 ? "" : ",");
    }
    td_buf_puts(&text, "]" REST);
    folder_put(b.dir, "rows.jsonl", text.data, text.len);
    check_refused(&b, &c, TD_ELIMIT, "prompt: 1025 messages; at most 1024", 8);
    td_buf_fini(&text);
    bench_fini(&b);
}

// A model folder's own template is refused for what a template would render, and for nothing else.
static void test_dataset_own_chat_template(void **state) {
    (void)state;
    static const char string[] = "{\"prompt\":\"abc\"" REST;
    static const char list[] = "{\"prompt\":[{\"role\":\"user\",\"content\":\"abc\"}]" REST;
    struct bench b;
    bench_init(&b, "{\"chat_template\":\"{{ messages }}\"}");
    struct td_dataset_config c = config_of(&b, TD_DATASET_PROMPTS);
    td_dataset_free(load_text(&b, &c, string));
    folder_put(b.dir, "rows.jsonl", list, sizeof list - 1);
    check_refused(&b, &c, TD_EUNSUPPORTED,
                  "rows.jsonl:1: prompt: the model folder has a chat template of its own", 0);
    c.template = TD_TEMPLATE_CHATML;
    folder_put(b.dir, "rows.jsonl", string, sizeof string - 1);
    check_refused(&b, &c, TD_EUNSUPPORTED, "(tokenizer_config.json)", 1);
    bench_fini(&b);
}

static void test_dataset_survives_random_bytes(void **state) {
    (void)state;
    static const char base[] =
        "{\"prompt\":[{\"role\":\"user\",\"content\":\"12+3\"}],\"data_source\":\"s\","
        "\"reward_model\":{\"ground_truth\":15.5},\"extra_info\":{\"a\":[1,null]}}\n"
        "{\"prompt\":\"ab\",\"response\":\"c\",\"data_source\":\"s\","
        "\"reward_model\":{\"ground_truth\":\"1\"}}\n";
    struct td_rng rng = {seed_for("test_dataset_survives_random_bytes")};
    struct bench b;
    bench_init(&b, "{\"eos_token\":\"<eos>\"}");
    int loaded = 0;
    for (int round = 0; round < 600; round++) {
        static const char likely[] = "{}[]\",:0123456789 \nabtfn\\";
        char text[sizeof base];
        size_t n = sizeof base - 1;
        memcpy(text, base, sizeof base);
        for (uint32_t k = 1 + td_rng_below(&rng, 2); k > 0; k--) {
            size_t at = td_rng_below(&rng, (uint32_t)n);
            text[at] = td_rng_below(&rng, 2) ? likely[td_rng_below(&rng, sizeof likely - 1)]
                                             : (char)td_rng_below(&rng, 256);
        }
        folder_put(b.dir, "rows.jsonl", text, n);
        struct td_dataset_config c = config_of(&b, (enum td_dataset_kind)td_rng_below(&rng, 2));
        c.max_samples = td_rng_below(&rng, 3);
        c.shuffle = td_rng_below(&rng, 2);
        struct td_dataset *ds = NULL;
        struct td_err err = {0};
        if (td_dataset_load(&c, b.tk, &ds, &err) == TD_OK) {
            loaded++;
        } else {
            assert_non_null(strstr(err.msg, "rows.jsonl"));
        }
        td_dataset_free(ds);
    }
    print_message("%d of 600 load\n", loaded);
    bench_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset_prompt_rows),
        cmocka_unit_test(test_dataset_renamed_keys),
        cmocka_unit_test(test_dataset_sft_rows),
        cmocka_unit_test(test_dataset_lengths),
        cmocka_unit_test(test_dataset_order_and_samples),
        cmocka_unit_test(test_dataset_several_files),
        cmocka_unit_test(test_dataset_index),
        cmocka_unit_test(test_dataset_refuses_lines),
        cmocka_unit_test(test_dataset_refuses_files_and_settings),
        cmocka_unit_test(test_dataset_own_chat_template),
        cmocka_unit_test(test_dataset_survives_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
