// The graders and the table that says which one scores a data source: see reward.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "lib/reward/reward.h"

#include <string.h>

#include <pcre2.h>

#include "lib/base/buf.h"
#include "lib/base/mem.h"

enum { GSM8K_CLIP_CHARS = 300 }; // verl: _SOLUTION_CLIP_CHARS
enum {
    MATCH_LIMIT = 10 * 1000000
}; // PCRE2's own default, kept when the library is built otherwise
enum { HEAP_LIMIT_KIB = 64 << 10 };
enum { PCRE_MESSAGE_MAX = 160 };

struct text {
    const char *p;
    size_t n;
};

struct rule;
typedef enum td_rc grade_fn(const struct rule *rule, struct text response, struct text truth,
                            double *score, struct td_err *err);

struct rule {
    char *data_source;
    grade_fn *grade;
    char *pattern; // regex only, as is what follows
    pcre2_code *code;
    pcre2_match_context *limits;
    bool grouped; // has a capturing group
};

struct td_rewards {
    struct rule *rules;
    size_t count;
};

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct text strip(struct text t) {
    while (t.n > 0 && is_space(t.p[0])) {
        t.p++;
        t.n--;
    }
    while (t.n > 0 && is_space(t.p[t.n - 1])) {
        t.n--;
    }
    return t;
}

static bool same(struct text a, struct text b) {
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

static enum td_rc grade_exact(const struct rule *rule, struct text response, struct text truth,
                              double *score, struct td_err *err) {
    (void)rule;
    (void)err;
    *score = same(strip(response), strip(truth));
    return TD_OK;
}

// The last max code points: a byte 10xxxxxx begins none.
static struct text clip_chars(struct text t, size_t max) {
    size_t chars = 0, at = t.n;
    while (at > 0 && chars < max) {
        at--;
        chars += ((unsigned char)t.p[at] & 0xc0) != 0x80;
    }
    return (struct text){t.p + at, t.n - at};
}

// How many bytes at t.p are "#### " and a number as verl writes it: -?[0-9.,]+; 0: none. *number is
// the number.
static size_t answer_at(struct text t, struct text *number) {
    static const char mark[] = "#### ";
    size_t from = sizeof mark - 1;
    if (t.n < from || memcmp(t.p, mark, from) != 0) {
        return 0;
    }
    size_t to = from + (t.n > from && t.p[from] == '-');
    size_t digits = to;
    while (to < t.n && (t.p[to] == '.' || t.p[to] == ',' || (t.p[to] >= '0' && t.p[to] <= '9'))) {
        to++;
    }
    *number = (struct text){t.p + from, to - from};
    return to > digits ? to : 0;
}

static enum td_rc grade_gsm8k(const struct rule *rule, struct text response, struct text truth,
                              double *score, struct td_err *err) {
    (void)rule;
    (void)err;
    struct text tail = clip_chars(response, GSM8K_CLIP_CHARS), number = {NULL, 0};
    *score = 0;
    for (size_t i = tail.n; i-- > 0 && number.p == NULL;) {
        struct text at = {tail.p + i, tail.n - i}, found;
        if (answer_at(at, &found) > 0) {
            number = found;
        }
    }
    if (number.p == NULL) {
        return TD_OK;
    }
    struct td_buf plain = {0};
    for (size_t i = 0; i < number.n; i++) {
        if (number.p[i] != ',') {
            td_buf_put(&plain, &number.p[i], 1);
        }
    }
    *score = same((struct text){td_buf_str(&plain), plain.len}, truth);
    td_buf_fini(&plain);
    return TD_OK;
}

// Whether there is a match at or after byte from.
static enum td_rc match_once(const struct rule *rule, struct text t, size_t from,
                             pcre2_match_data *match, bool *found, struct td_err *err) {
    PCRE2_SPTR subject = (PCRE2_SPTR)t.p;
    int n = pcre2_match(rule->code, subject, t.n, from, 0, match, rule->limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) {
        // compiled code has a small stack; the interpreter has the heap
        n = pcre2_match(rule->code, subject, t.n, from, PCRE2_NO_JIT, match, rule->limits);
    }
    *found = n >= 0;
    if (n >= 0 || n == PCRE2_ERROR_NOMATCH) {
        return TD_OK;
    }
    PCRE2_UCHAR message[PCRE_MESSAGE_MAX];
    pcre2_get_error_message(n, message, sizeof message);
    return td_fail(err, TD_ELIMIT, "pattern '%s' on a response of %zu bytes: %s", rule->pattern,
                   t.n, (const char *)message);
}

static size_t next_char(struct text t, size_t at) {
    at++;
    while (at < t.n && ((unsigned char)t.p[at] & 0xc0) == 0x80) {
        at++;
    }
    return at;
}

static enum td_rc grade_regex(const struct rule *rule, struct text response, struct text truth,
                              double *score, struct td_err *err) {
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(rule->code, NULL);
    if (match == NULL) {
        return td_fail(err, TD_ENOMEM, "pattern '%s'", rule->pattern);
    }
    const size_t *ends = pcre2_get_ovector_pointer(match);
    enum td_rc rc = TD_OK;
    bool right = false;
    size_t from = 0;
    while (from <= response.n) {
        bool found;
        rc = match_once(rule, response, from, match, &found, err);
        if (rc != TD_OK || !found) {
            break;
        }
        if (!rule->grouped) {
            right = true;
            break;
        }
        // the last match decides; a group that took no part in it equals nothing
        right = ends[2] != PCRE2_UNSET &&
                same(strip((struct text){response.p + ends[2], ends[3] - ends[2]}), strip(truth));
        from = ends[1] > from ? ends[1] : next_char(response, from);
    }
    pcre2_match_data_free(match);
    if (rc == TD_OK) {
        *score = right;
    }
    return rc;
}

static const struct {
    const char *name;
    grade_fn *grade;
} graders[] = {{"exact", grade_exact}, {"regex", grade_regex}, {"gsm8k", grade_gsm8k}};

static grade_fn *grader_named(const char *name) {
    for (size_t i = 0; i < sizeof graders / sizeof *graders; i++) {
        if (strcmp(graders[i].name, name) == 0) {
            return graders[i].grade;
        }
    }
    return NULL;
}

static enum td_rc compile(struct rule *rule, struct td_err *err) {
    int code;
    size_t offset;
    uint32_t groups;
    rule->code =
        pcre2_compile((PCRE2_SPTR)rule->pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &code, &offset, NULL);
    if (rule->code == NULL) {
        PCRE2_UCHAR message[PCRE_MESSAGE_MAX];
        pcre2_get_error_message(code, message, sizeof message);
        return td_fail(err, TD_EINVAL, "'%s' at offset %zu: %s", rule->pattern, offset,
                       (const char *)message);
    }
    // without JIT the interpreter matches: the same answers, slower
    (void)pcre2_jit_compile(rule->code, PCRE2_JIT_COMPLETE);
    pcre2_pattern_info(rule->code, PCRE2_INFO_CAPTURECOUNT, &groups);
    rule->grouped = groups > 0;
    rule->limits = pcre2_match_context_create(NULL);
    if (rule->limits == NULL) {
        return td_fail(err, TD_ENOMEM, "'%s'", rule->pattern);
    }
    pcre2_set_match_limit(rule->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(rule->limits, HEAP_LIMIT_KIB);
    return TD_OK;
}

static const struct rule *find_rule(const struct td_rewards *rewards, const char *data_source) {
    for (size_t i = 0; i < rewards->count; i++) {
        if (strcmp(rewards->rules[i].data_source, data_source) == 0) {
            return &rewards->rules[i];
        }
    }
    return NULL;
}

static enum td_rc add_rule(struct td_rewards *rewards, const struct td_reward_rule *from,
                           struct td_err *err) {
    if (from->data_source == NULL || from->data_source[0] == 0) {
        return td_fail(err, TD_EINVAL, "data_source: missing; name the rows that this rule scores");
    }
    if (find_rule(rewards, from->data_source) != NULL) {
        return td_fail(err, TD_EINVAL, "data_source: '%s' has a rule already; remove one",
                       from->data_source);
    }
    grade_fn *grade = from->grader == NULL ? NULL : grader_named(from->grader);
    if (grade == NULL) {
        return td_fail(err, TD_EINVAL, "grader: '%s' is unknown; use exact, regex or gsm8k",
                       from->grader == NULL ? "" : from->grader);
    }
    if ((grade == grade_regex) != (from->pattern != NULL)) {
        return td_fail(err, TD_EINVAL, "pattern: %s",
                       from->pattern == NULL ? "missing; grader regex needs one"
                                             : "only grader regex takes one; remove it");
    }
    struct rule *rule = &rewards->rules[rewards->count++];
    rule->data_source = td_strdup(from->data_source);
    rule->grade = grade;
    rule->pattern = td_strdup(from->pattern);
    if (rule->pattern != NULL && compile(rule, err) != TD_OK) {
        td_err_in(err, "pattern");
        return TD_EINVAL;
    }
    return TD_OK;
}

enum td_rc td_rewards_new(const struct td_reward_rule *rules, size_t n, struct td_rewards **out,
                          struct td_err *err) {
    static const struct td_reward_rule gsm8k = {.data_source = "openai/gsm8k", .grader = "gsm8k"};
    if (n > TD_REWARD_RULES_MAX) {
        return td_fail(err, TD_ELIMIT, "tandem.rewards: %zu rules; at most %d", n,
                       TD_REWARD_RULES_MAX);
    }
    struct td_rewards *rewards = td_alloc(sizeof *rewards);
    rewards->rules = td_alloc_array(n + 1, sizeof *rewards->rules);
    enum td_rc rc = TD_OK;
    for (size_t i = 0; i < n && rc == TD_OK; i++) {
        rc = add_rule(rewards, &rules[i], err);
        if (rc != TD_OK) {
            td_err_in(err, "tandem.rewards[%zu]", i);
        }
    }
    if (rc == TD_OK && find_rule(rewards, gsm8k.data_source) == NULL) {
        rc = add_rule(rewards, &gsm8k, err);
    }
    if (rc != TD_OK) {
        td_rewards_free(rewards);
        return rc;
    }
    *out = rewards;
    return TD_OK;
}

void td_rewards_free(struct td_rewards *rewards) {
    if (rewards == NULL) {
        return;
    }
    for (size_t i = 0; i < rewards->count; i++) {
        struct rule *rule = &rewards->rules[i];
        td_free(rule->data_source);
        td_free(rule->pattern);
        pcre2_code_free(rule->code);
        pcre2_match_context_free(rule->limits);
    }
    td_free(rewards->rules);
    td_free(rewards);
}

enum td_rc td_rewards_check(const struct td_rewards *rewards, const char *data_source,
                            struct td_err *err) {
    if (find_rule(rewards, data_source) != NULL) {
        return TD_OK;
    }
    struct td_buf known = {0};
    for (size_t i = 0; i < rewards->count; i++) {
        td_buf_printf(&known, "%s%s", i == 0 ? "" : ", ", rewards->rules[i].data_source);
    }
    enum td_rc rc = td_fail(err, TD_ENOENT,
                            "data_source '%s' has no grader; add it to tandem.rewards (known: %s)",
                            data_source, td_buf_str(&known));
    td_buf_fini(&known);
    return rc;
}

enum td_rc td_rewards_score(const struct td_rewards *rewards, const struct td_response *response,
                            double *score, struct td_err *err) {
    const struct rule *rule = find_rule(rewards, response->data_source);
    if (rule == NULL) {
        return td_rewards_check(rewards, response->data_source, err);
    }
    struct text text = {response->text, response->n};
    struct text truth = {response->ground_truth, strlen(response->ground_truth)};
    enum td_rc rc = rule->grade(rule, text, truth, score, err);
    if (rc != TD_OK) {
        td_err_in(err, "data_source '%s'", response->data_source);
    }
    return rc;
}
