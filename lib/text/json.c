// See json.h.
#include "lib/text/json.h"

#include <stdlib.h>
#include <string.h>

enum td_rc td_json_parse(const void *bytes, size_t n, size_t flags, json_t **out,
                         struct td_err *err) {
    json_error_t why;
    json_t *value = json_loadb(bytes, n, flags | JSON_REJECT_DUPLICATES, &why);
    if (value == NULL) {
        return td_fail(err, TD_EINVAL, "not valid JSON at line %d column %d: %s", why.line,
                       why.column, why.text);
    }
    *out = value;
    return TD_OK;
}

const char *td_json_kind(const json_t *value) {
    if (value == NULL) {
        return "missing";
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

enum td_rc td_json_string(const json_t *obj, const char *key, const char **out,
                          struct td_err *err) {
    const json_t *value = json_object_get(obj, key);
    if (!json_is_string(value)) {
        return td_fail(err, TD_EINVAL, "%s: must be a string, is %s", key, td_json_kind(value));
    }
    *out = json_string_value(value);
    return TD_OK;
}

enum td_rc td_json_bool(const json_t *obj, const char *key, bool *out, struct td_err *err) {
    const json_t *value = json_object_get(obj, key);
    if (value != NULL && !json_is_boolean(value)) {
        return td_fail(err, TD_EINVAL, "%s: must be true or false, is %s", key,
                       td_json_kind(value));
    }
    if (value != NULL) {
        *out = json_is_true(value);
    }
    return TD_OK;
}

enum td_rc td_json_only(const json_t *obj, const char *const *keys, struct td_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)obj, key, value) {
        bool known = false;
        for (size_t i = 0; keys[i] != NULL && !known; i++) {
            known = strcmp(keys[i], key) == 0;
        }
        if (!known) {
            return td_fail(err, TD_EUNSUPPORTED, "%s: is not a key we know", key);
        }
    }
    return TD_OK;
}

static void put(const json_t *value, size_t how, struct td_buf *out) {
    size_t n = json_dumpb(value, NULL, 0, how);
    uint8_t *to = td_buf_room(out, n);
    out->len += json_dumpb(value, (char *)to, n, how);
}

void td_json_put(const json_t *value, struct td_buf *out) {
    const size_t how = JSON_COMPACT | JSON_ENCODE_ANY;
    struct td_buf number = {0};
    for (size_t digits = 15; digits <= 16 && json_is_real(value); digits++) {
        td_buf_clear(&number);
        put(value, how | JSON_REAL_PRECISION(digits), &number);
        td_buf_put(&number, "", 1);
        if (strtod(td_buf_str(&number), NULL) == json_real_value(value)) {
            td_buf_puts(out, td_buf_str(&number));
            td_buf_fini(&number);
            return;
        }
    }
    td_buf_fini(&number);
    put(value, how, out);
}
