// What lib/text adds to jansson: parsing with an error that says where, and typed members.
#ifndef TD_TEXT_JSON_H
#define TD_TEXT_JSON_H

#include <stdbool.h>

#include <jansson.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"

// Parses n bytes, keys at most once per object; *out is the caller's (json_decref). flags: further
// ones of jansson. TD_EINVAL "not valid JSON at line, column: reason".
enum td_rc td_json_parse(const void *bytes, size_t n, size_t flags, json_t **out,
                         struct td_err *err) TD_MUST_CHECK;

// "a string", "null", ...: static text; NULL gives "missing".
const char *td_json_kind(const json_t *value);

// The string member of obj, borrowed. TD_EINVAL "key: must be a string, is ...".
enum td_rc td_json_string(const json_t *obj, const char *key, const char **out,
                          struct td_err *err) TD_MUST_CHECK;
// The boolean member of obj; *out is left alone when it is missing. TD_EINVAL on another type.
enum td_rc td_json_bool(const json_t *obj, const char *key, bool *out,
                        struct td_err *err) TD_MUST_CHECK;
// TD_EUNSUPPORTED, naming it, when obj has a key that is not in the NULL-ended list.
enum td_rc td_json_only(const json_t *obj, const char *const *keys,
                        struct td_err *err) TD_MUST_CHECK;
// Appends value as compact JSON; a number alone in the fewest digits that give it back.
void td_json_put(const json_t *value, struct td_buf *out);

#endif
