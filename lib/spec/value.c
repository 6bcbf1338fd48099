// Values of settings: see value_int.h. Pure.
#include "lib/spec/value_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TD_GRADERS "exact|regex|gsm8k"

json_t *td_spec_value_parse(const char *text) {
    return json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
}

bool td_spec_value_equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        return json_number_value(a) == json_number_value(b);
    }
    return json_equal(a, b) == 1;
}

static int append(const char *bytes, size_t n, void *out) {
    td_buf_put(out, bytes, n);
    return 0;
}

void td_spec_json_print(const json_t *value, struct td_buf *out) {
    json_dump_callback(value, append, out,
                       JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
}

// --- YAML to JSON

// [sign] digits [. digits] [exponent]: what users of verl write, 1e-6 included; NULL for the rest.
static json_t *read_number(const char *text) {
    const char *p = text + (*text == '-' || *text == '+');
    size_t whole = strspn(p, "0123456789");
    p += whole;
    bool real = false;
    if (*p == '.') {
        real = true;
        size_t part = strspn(p + 1, "0123456789");
        whole += part;
        p += 1 + part;
    }
    if (whole == 0) {
        return NULL;
    }
    if (*p == 'e' || *p == 'E') {
        real = true;
        p += 1 + (p[1] == '-' || p[1] == '+');
        if (!isdigit((unsigned char)*p)) {
            return NULL;
        }
        p += strspn(p, "0123456789");
    }
    if (*p) {
        return NULL;
    }
    errno = 0;
    if (!real) {
        long long value = strtoll(text, NULL, 10);
        if (errno == 0) {
            return json_integer(value);
        }
    }
    double value = strtod(text, NULL);
    return isfinite(value) ? json_real(value) : NULL;
}

static bool wants_text(enum td_spec_type type) {
    return type == TD_SPEC_STRING || type == TD_SPEC_ENUM || type == TD_SPEC_STRINGS ||
           type == TD_SPEC_REWARDS;
}

static json_t *read_scalar(enum td_spec_type type, const struct td_yaml_node *node) {
    bool yes;
    if (td_yaml_is_null(node)) {
        return json_null();
    }
    if (!wants_text(type) && node->plain) {
        if (td_yaml_is_bool(node, &yes)) {
            return json_boolean(yes);
        }
        json_t *number = read_number(node->text);
        if (number) {
            return number;
        }
    }
    return json_string(node->text);
}

// A map of scalars: an item of tandem.rewards.
static json_t *read_map(enum td_spec_type type, const struct td_yaml_node *node,
                        struct td_buf *why) {
    json_t *map = json_object();
    for (const struct td_yaml_node *child = node->child; child; child = child->next) {
        if (json_object_get(map, child->key)) {
            td_buf_printf(why, "line %d sets %s twice; remove one", child->line, child->key);
            json_decref(map);
            return NULL;
        }
        // Deeper values only have to differ from every value that is allowed.
        json_object_set_new(map, child->key,
                            child->kind == TD_YAML_SCALAR ? read_scalar(type, child)
                                                          : json_object());
    }
    return map;
}

json_t *td_spec_value_read(const struct td_spec_key *key, const struct td_yaml_node *node,
                           struct td_buf *why) {
    if (node->kind == TD_YAML_SCALAR) {
        json_t *value = read_scalar(key->type, node);
        if (key->type == TD_SPEC_STRINGS && json_is_string(value)) {
            json_t *list = json_array();
            json_array_append_new(list, value);
            return list;
        }
        return value;
    }
    if (node->kind == TD_YAML_MAP) {
        return read_map(key->type, node, why);
    }
    json_t *list = json_array();
    for (const struct td_yaml_node *child = node->child; child; child = child->next) {
        json_t *item = child->kind == TD_YAML_SCALAR ? read_scalar(key->type, child)
                       : child->kind == TD_YAML_MAP  ? read_map(key->type, child, why)
                                                     : json_array();
        if (!item) {
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, item);
    }
    return list;
}

// --- JSON against the schema

static void print_got(const json_t *value, struct td_buf *why) {
    if (json_is_object(value)) {
        td_buf_puts(why, "a map");
        return;
    }
    if (json_is_array(value)) {
        td_buf_puts(why, "a list");
        return;
    }
    struct td_buf text = {0};
    td_spec_json_print(value, &text);
    td_buf_printf(why, text.len > 60 ? "%.60s..." : "%s", td_buf_str(&text));
    td_buf_fini(&text);
}

static bool not_a(const struct td_spec_key *key, const json_t *value, struct td_buf *why) {
    td_buf_puts(why, "expected ");
    td_spec_describe_type(key, why);
    td_buf_puts(why, ", got ");
    print_got(value, why);
    const char *text = json_string_value(value);
    if (text && key->type == TD_SPEC_BOOL && td_spec_word("yes|no|on|off", text) >= 0) {
        td_buf_puts(why, "; write true or false");
    } else if (text && (key->type == TD_SPEC_INT || key->type == TD_SPEC_FLOAT)) {
        json_t *number = read_number(text);
        td_buf_puts(why, number ? "; leave the quotes out" : "");
        json_decref(number);
    } else if (json_is_real(value) && key->type == TD_SPEC_INT) {
        td_buf_puts(why, "; write it without point and exponent");
    }
    return false;
}

static bool in_range(const struct td_spec_key *key, double value) {
    if (key->min == 0 && key->max == 0) {
        return true;
    }
    return value <= key->max && (key->above ? value > key->min : value >= key->min);
}

static bool check_word(const struct td_spec_key *key, const json_t *value, struct td_buf *why) {
    const char *word = json_string_value(value);
    if (word && key->known && td_spec_word(key->known, word) >= 0) {
        td_buf_printf(why, "%s is known but not built here; there is ", word);
        td_spec_print_words(key->values, why);
        return false;
    }
    return (word && td_spec_word(key->values, word) >= 0) || not_a(key, value, why);
}

static bool check_strings(const struct td_spec_key *key, const json_t *value, struct td_buf *why) {
    size_t i;
    json_t *item;
    if (!json_is_array(value) || (json_array_size(value) == 0 && !key->nullable)) {
        return not_a(key, value, why);
    }
    json_array_foreach(value, i, item) {
        if (json_string_length(item) == 0 ||
            (key->values && td_spec_word(key->values, json_string_value(item)) < 0)) {
            return not_a(key, item, why);
        }
    }
    return true;
}

static bool check_reward(size_t i, const json_t *item, struct td_buf *why) {
    const char *key, *source = json_string_value(json_object_get(item, "data_source"));
    const char *grader = json_string_value(json_object_get(item, "grader"));
    const json_t *pattern = json_object_get(item, "pattern");
    json_t *value;
    if (!json_is_object(item)) {
        td_buf_printf(why, "item %zu: expected {data_source, grader, pattern}, got ", i + 1);
        print_got(item, why);
        return false;
    }
    json_object_foreach((json_t *)item, key, value) {
        if (td_spec_word("data_source|grader|pattern", key) < 0) {
            td_buf_printf(why, "item %zu: unknown key %s; there are data_source, grader, pattern",
                          i + 1, key);
            return false;
        }
    }
    if (!source || !*source) {
        td_buf_printf(why, "item %zu: data_source is missing", i + 1);
        return false;
    }
    if (!grader || td_spec_word(TD_GRADERS, grader) < 0) {
        td_buf_printf(why, "item %zu: grader must be one of ", i + 1);
        td_spec_print_words(TD_GRADERS, why);
        return false;
    }
    bool needs_pattern = strcmp(grader, "regex") == 0;
    if (needs_pattern != (json_string_length(pattern) > 0) ||
        (pattern && !json_is_null(pattern) && !json_is_string(pattern))) {
        td_buf_printf(why,
                      needs_pattern ? "item %zu: grader regex needs a pattern"
                                    : "item %zu: pattern is for grader regex only; remove it",
                      i + 1);
        return false;
    }
    return true;
}

static bool check_rewards(const struct td_spec_key *key, const json_t *value, struct td_buf *why) {
    if (!json_is_array(value)) {
        return not_a(key, value, why);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (!check_reward(i, item, why)) {
            return false;
        }
        for (size_t k = 0; k < i; k++) {
            const json_t *other = json_array_get(value, k);
            if (json_equal(json_object_get(item, "data_source"),
                           json_object_get(other, "data_source"))) {
                td_buf_printf(why, "items %zu and %zu have the same data_source; remove one", k + 1,
                              i + 1);
                return false;
            }
        }
    }
    return true;
}

static bool check_pair(const struct td_spec_key *key, const json_t *value, struct td_buf *why) {
    if (json_array_size(value) != 2) {
        return not_a(key, value, why);
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *item = json_array_get(value, i);
        // 1 itself would divide by zero in AdamW's bias correction.
        if (!json_is_number(item) || !in_range(key, json_number_value(item)) ||
            json_number_value(item) == key->max) {
            return not_a(key, item, why);
        }
    }
    return true;
}

bool td_spec_value_check(const struct td_spec_key *key, const json_t *value, struct td_buf *why) {
    if (json_is_null(value)) {
        return key->nullable || not_a(key, value, why);
    }
    switch (key->type) {
    case TD_SPEC_INT:
        return (json_is_integer(value) && in_range(key, (double)json_integer_value(value))) ||
               not_a(key, value, why);
    case TD_SPEC_FLOAT:
        return (json_is_number(value) && in_range(key, json_number_value(value))) ||
               not_a(key, value, why);
    case TD_SPEC_BOOL:
        return json_is_boolean(value) || not_a(key, value, why);
    case TD_SPEC_STRING:
        return json_string_length(value) > 0 || (key->blank && json_is_string(value)) ||
               not_a(key, value, why);
    case TD_SPEC_ENUM:
        return check_word(key, value, why);
    case TD_SPEC_STRINGS:
        return check_strings(key, value, why);
    case TD_SPEC_PAIR:
        return check_pair(key, value, why);
    case TD_SPEC_REWARDS:
        return check_rewards(key, value, why);
    default:
        return true;
    }
}
