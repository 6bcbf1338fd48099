// Graders on tables of sentences, and every error of the rule table.
#include "lib/reward/reward.h"

#include <string.h>

#include "lib/base/buf.h"
#include "tests/unit/cmocka_all.h"

static struct td_rewards *rewards_of(const char *grader, const char *pattern) {
    struct td_reward_rule rule = {"src", grader, pattern};
    struct td_rewards *r = NULL;
    struct td_err err = {0};
    if (td_rewards_new(&rule, 1, &r, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return r;
}

static enum td_rc score_of(const struct td_rewards *r, const char *source, const char *text,
                           const char *truth, double *score, struct td_err *err) {
    struct td_response response = {source, truth, text, strlen(text)};
    return td_rewards_score(r, &response, score, err);
}

static void check_score(const struct td_rewards *r, const char *text, const char *truth,
                        double want) {
    struct td_err err = {0};
    double got = -1;
    if (score_of(r, "src", text, truth, &got, &err) != TD_OK) {
        fail_msg("'%s': %s", text, err.msg);
    }
    if (got != want) {
        fail_msg("'%s' against '%s': got %g, want %g", text, truth, got, want);
    }
}

struct row {
    const char *text, *truth;
    double want;
};

static void check_rows(const char *grader, const char *pattern, const struct row *rows, size_t n) {
    struct td_rewards *r = rewards_of(grader, pattern);
    for (size_t i = 0; i < n; i++) {
        check_score(r, rows[i].text, rows[i].truth, rows[i].want);
    }
    td_rewards_free(r);
}
#define CHECK_ROWS(grader, pattern, rows)                                                          \
    check_rows(grader, pattern, rows, sizeof(rows) / sizeof *(rows))

static void test_reward_exact(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"45", "45", 1},    {" 45\n", "45", 1},    {"45", "\t45 ", 1},  {"45.", "45", 0},
        {"4 5", "45", 0},   {"", "45", 0},         {"", "", 1},         {"  ", "", 1},
        {"so 45", "45", 0}, {"Paris", "paris", 0}, {"\xff", "\xff", 1},
    };
    CHECK_ROWS("exact", NULL, rows);
}

static void test_reward_gsm8k_strict(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"Two eggs each make six.\n#### 6", "6", 1},
        {"#### 6", "7", 0},
        {"The answer is 6", "6", 0},
        {"####6", "6", 0},
        {"####  6", "6", 0},
        {"### 6", "6", 0},
        {"##### 6", "6", 1},
        {"#### 5 no, wait. #### 6", "6", 1},
        {"#### 6 or perhaps #### 5", "6", 0},
        {"#### 6 then #### none", "6", 1},
        {"#### #### 6", "6", 1},
        {"#### -12 degrees", "-12", 1},
        {"#### --12", "-12", 0},
        {"#### - 12", "12", 0},
        {"#### 1,234", "1234", 1},
        {"#### 1234", "1,234", 0}, // the ground truth is taken as it is
        {"#### 42.", "42", 0},
        {"#### 42.", "42.", 1},
        {"#### 42.0", "42", 0},
        {"#### $42", "42", 0},
        {"#### ,", "", 1},
        {"#### -", "-", 0},
        {"#### 3 apples", "3", 1},
        {"#### 3x", "3", 1},
        {"#### 6 ", "6 ", 0},
        {"", "", 0},
    };
    CHECK_ROWS("gsm8k", NULL, rows);
}

// The clip counts code points: 300 of three bytes each after the answer cut it off, 290 do not.
static void test_reward_gsm8k_clips_code_points(void **state) {
    (void)state;
    static const struct {
        size_t after;
        double want;
    } rows[] = {{0, 1}, {294, 1}, {295, 0}, {300, 0}, {1000, 0}};
    struct td_rewards *r = rewards_of("gsm8k", NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf text = {0};
        td_buf_puts(&text, "x\n#### 6");
        for (size_t k = 0; k < rows[i].after; k++) {
            td_buf_puts(&text, "\xe2\x82\xac");
        }
        check_score(r, td_buf_str(&text), "6", rows[i].want);
        td_buf_fini(&text);
    }
    td_rewards_free(r);
}

static void test_reward_regex(void **state) {
    (void)state;
    static const struct row grouped[] = {
        {"<answer>7</answer>", "7", 1},
        {"<answer> 7 </answer>", "7", 1},
        {"<answer>6</answer><answer>7</answer>", "7", 1},
        {"<answer>7</answer><answer>6</answer>", "7", 0},
        {"7", "7", 0},
        {"\xff<answer>7</answer>\xc3", "7", 1},
        {"<answer>gr\xc3\xbc\xc3\x9f</answer>", "gr\xc3\xbc\xc3\x9f", 1},
    };
    CHECK_ROWS("regex", "<answer>(.*?)</answer>", grouped);
    static const struct row plain[] = {{"Yes!", "", 1}, {"no", "", 0}, {"eyes", "", 0}};
    CHECK_ROWS("regex", "(?i:^\\s*yes\\b)", plain);
    static const struct row empty[] = {{"abc", "", 1}, {"", "", 1}, {"\xe2\x82\xac", "", 1}};
    CHECK_ROWS("regex", "(x*)", empty);
    static const struct row optional[] = {{"ab", "", 0}, {"axb", "x", 1}};
    CHECK_ROWS("regex", "a(x)?b", optional);
}

static void test_reward_regex_match_limit(void **state) {
    (void)state;
    struct td_rewards *r = rewards_of("regex", "^(a|aa|b)+$");
    struct td_buf text = {0};
    for (int i = 0; i < 200; i++) {
        td_buf_puts(&text, "a");
    }
    td_buf_puts(&text, "!");
    double score = -1;
    struct td_err err = {0};
    assert_int_equal(score_of(r, "src", td_buf_str(&text), "a", &score, &err), TD_ELIMIT);
    assert_non_null(strstr(err.msg, "data_source 'src'"));
    assert_non_null(strstr(err.msg, "(a|aa|b)+"));
    assert_true(score == -1);
    td_buf_fini(&text);
    td_rewards_free(r);
}

static void test_reward_rule_errors(void **state) {
    (void)state;
    static const struct {
        struct td_reward_rule rules[2];
        size_t n;
        enum td_rc rc;
        const char *says[2];
    } rows[] = {
        {{{"a", "exakt", NULL}}, 1, TD_EINVAL, {"tandem.rewards[0]: grader: 'exakt'", "gsm8k"}},
        {{{"a", NULL, NULL}}, 1, TD_EINVAL, {"tandem.rewards[0]: grader: ''", "exact"}},
        {{{NULL, "exact", NULL}}, 1, TD_EINVAL, {"data_source: missing", ""}},
        {{{"", "exact", NULL}}, 1, TD_EINVAL, {"data_source: missing", ""}},
        {{{"a", "exact", NULL}, {"a", "gsm8k", NULL}}, 2, TD_EINVAL, {"[1]: data_source: 'a'", ""}},
        {{{"a", "regex", NULL}}, 1, TD_EINVAL, {"pattern: missing", ""}},
        {{{"a", "gsm8k", "x"}}, 1, TD_EINVAL, {"pattern: only grader regex", ""}},
        {{{"a", "regex", "ab(c"}}, 1, TD_EINVAL, {"pattern: 'ab(c' at offset 4", "parenthesis"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_rewards *r = NULL;
        struct td_err err = {0};
        assert_int_equal(td_rewards_new(rows[i].rules, rows[i].n, &r, &err), rows[i].rc);
        assert_null(r);
        for (size_t k = 0; k < 2; k++) {
            if (strstr(err.msg, rows[i].says[k]) == NULL) {
                fail_msg("row %zu: '%s' lacks '%s'", i, err.msg, rows[i].says[k]);
            }
        }
    }
    struct td_rewards *r = NULL;
    struct td_err err = {0};
    assert_int_equal(td_rewards_new(NULL, TD_REWARD_RULES_MAX + 1, &r, &err), TD_ELIMIT);
}

static void test_reward_data_sources(void **state) {
    (void)state;
    static const struct td_reward_rule rules[] = {{"mine", "exact", NULL},
                                                  {"openai/gsm8k", "exact", NULL}};
    struct td_rewards *r = NULL;
    struct td_err err = {0};
    double score = -1;
    assert_int_equal(td_rewards_new(rules, 1, &r, &err), TD_OK);
    assert_int_equal(td_rewards_check(r, "mine", &err), TD_OK);
    assert_int_equal(score_of(r, "openai/gsm8k", "#### 6", "6", &score, &err), TD_OK);
    assert_true(score == 1);
    assert_int_equal(td_rewards_check(r, "yours", &err), TD_ENOENT);
    assert_non_null(strstr(err.msg, "'yours'"));
    assert_non_null(strstr(err.msg, "mine, openai/gsm8k"));
    assert_int_equal(score_of(r, "yours", "", "", &score, &err), TD_ENOENT);
    td_rewards_free(r);
    // a rule replaces what is built in
    assert_int_equal(td_rewards_new(rules, 2, &r, &err), TD_OK);
    assert_int_equal(score_of(r, "openai/gsm8k", "#### 6", "6", &score, &err), TD_OK);
    assert_true(score == 0);
    td_rewards_free(r);
    td_rewards_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reward_exact),
        cmocka_unit_test(test_reward_gsm8k_strict),
        cmocka_unit_test(test_reward_gsm8k_clips_code_points),
        cmocka_unit_test(test_reward_regex),
        cmocka_unit_test(test_reward_regex_match_limit),
        cmocka_unit_test(test_reward_rule_errors),
        cmocka_unit_test(test_reward_data_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
