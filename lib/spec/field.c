// Settings as fields of a struct: see value_int.h. Pure.
#include "lib/spec/value_int.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/check.h"

static_assert(sizeof(enum td_job_kind) == sizeof(int), "enums are stored as int");

static void *field(const struct td_spec_key *key, const void *fields) {
    td_assert(key->cls == TD_SPEC_DONE);
    return (char *)fields + key->offset;
}

static const char *keep(struct td_arena *arena, const json_t *value) {
    return json_is_string(value)
               ? td_arena_strndup(arena, json_string_value(value), json_string_length(value))
               : NULL;
}

static void store_strings(struct td_arena *arena, const json_t *value,
                          struct td_spec_strings *out) {
    size_t n = json_array_size(value);
    const char **items = td_arena_alloc(arena, (n + 1) * sizeof *items);
    for (size_t i = 0; i < n; i++) {
        items[i] = keep(arena, json_array_get(value, i));
    }
    *out = (struct td_spec_strings){.items = items, .count = (int)n};
}

static void store_rewards(struct td_job_spec *spec, const json_t *value) {
    size_t n = json_array_size(value);
    struct td_spec_reward *rewards = td_arena_alloc(spec->arena, (n + 1) * sizeof *rewards);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(value, i);
        rewards[i].data_source = keep(spec->arena, json_object_get(item, "data_source"));
        rewards[i].grader = keep(spec->arena, json_object_get(item, "grader"));
        rewards[i].pattern = keep(spec->arena, json_object_get(item, "pattern"));
    }
    spec->tandem.rewards = rewards;
    spec->tandem.reward_count = (int)n;
}

void td_spec_value_store(const struct td_spec_key *key, const json_t *value, void *fields,
                         struct td_arena *arena) {
    bool null = json_is_null(value);
    switch (key->type) {
    case TD_SPEC_INT:
        *(int64_t *)field(key, fields) = null ? TD_SPEC_UNSET : json_integer_value(value);
        break;
    case TD_SPEC_FLOAT:
        *(double *)field(key, fields) = null ? TD_SPEC_UNSET : json_number_value(value);
        break;
    case TD_SPEC_BOOL:
        *(bool *)field(key, fields) = json_is_true(value);
        break;
    case TD_SPEC_STRING:
        *(const char **)field(key, fields) =
            key->blank && json_string_length(value) == 0 ? NULL : keep(arena, value);
        break;
    case TD_SPEC_ENUM:
        *(int *)field(key, fields) = td_spec_word(key->values, json_string_value(value));
        break;
    case TD_SPEC_STRINGS:
        store_strings(arena, value, field(key, fields));
        break;
    case TD_SPEC_PAIR:
        for (size_t i = 0; i < 2; i++) {
            ((double *)field(key, fields))[i] = json_number_value(json_array_get(value, i));
        }
        break;
    case TD_SPEC_REWARDS:
        store_rewards(fields, value);
        break;
    default:
        break;
    }
}

void td_spec_value_follow(const struct td_spec_key *key, const struct td_spec_key *from,
                          void *fields) {
    static_assert(sizeof(const char *) == 8, "every type that follows has 8 bytes");
    td_assert_op(key->type, ==, from->type);
    td_assert(key->type == TD_SPEC_INT || key->type == TD_SPEC_FLOAT ||
              key->type == TD_SPEC_STRING);
    memcpy(field(key, fields), field(from, fields), 8);
}

// --- fields to text

static void print_double(double value, struct td_buf *out) {
    size_t from = out->len;
    td_buf_double(out, value);
    td_buf_puts(out, strpbrk(td_buf_str(out) + from, ".e") ? "" : ".0");
}

static void print_string(const char *text, struct td_buf *out) {
    json_t *string = text ? json_string(text) : json_null();
    td_spec_json_print(string, out);
    json_decref(string);
}

static void print_strings(const struct td_spec_strings *list, struct td_buf *out) {
    td_buf_puts(out, "[");
    for (int i = 0; i < list->count; i++) {
        td_buf_puts(out, i ? "," : "");
        print_string(list->items[i], out);
    }
    td_buf_puts(out, "]");
}

static void print_rewards(const struct td_job_spec *spec, struct td_buf *out) {
    td_buf_puts(out, "[");
    for (int i = 0; i < spec->tandem.reward_count; i++) {
        const struct td_spec_reward *reward = &spec->tandem.rewards[i];
        td_buf_puts(out, i ? ",{\"data_source\":" : "{\"data_source\":");
        print_string(reward->data_source, out);
        td_buf_puts(out, ",\"grader\":");
        print_string(reward->grader, out);
        if (reward->pattern) {
            td_buf_puts(out, ",\"pattern\":");
            print_string(reward->pattern, out);
        }
        td_buf_puts(out, "}");
    }
    td_buf_puts(out, "]");
}

static void print_word(const struct td_spec_key *key, int place, struct td_buf *out) {
    const char *words = key->values;
    for (int i = 0; i < place; i++) {
        words += strcspn(words, "|") + 1;
    }
    td_buf_printf(out, "\"%.*s\"", (int)strcspn(words, "|"), words);
}

void td_spec_value_print(const struct td_spec_key *key, const void *fields, struct td_buf *out) {
    const void *at = field(key, fields);
    switch (key->type) {
    case TD_SPEC_INT:
        if (key->nullable && *(const int64_t *)at == TD_SPEC_UNSET) {
            td_buf_puts(out, "null");
        } else {
            td_buf_printf(out, "%lld", (long long)*(const int64_t *)at);
        }
        break;
    case TD_SPEC_FLOAT:
        if (key->nullable && *(const double *)at == TD_SPEC_UNSET) {
            td_buf_puts(out, "null");
        } else {
            print_double(*(const double *)at, out);
        }
        break;
    case TD_SPEC_BOOL:
        td_buf_puts(out, *(const bool *)at ? "true" : "false");
        break;
    case TD_SPEC_STRING:
        print_string(*(const char *const *)at, out);
        break;
    case TD_SPEC_ENUM:
        print_word(key, *(const int *)at, out);
        break;
    case TD_SPEC_STRINGS:
        print_strings(at, out);
        break;
    case TD_SPEC_PAIR:
        td_buf_puts(out, "[");
        print_double(((const double *)at)[0], out);
        td_buf_puts(out, ",");
        print_double(((const double *)at)[1], out);
        td_buf_puts(out, "]");
        break;
    case TD_SPEC_REWARDS:
        print_rewards(fields, out);
        break;
    default:
        break;
    }
}
