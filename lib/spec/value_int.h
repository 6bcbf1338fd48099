// Values of settings: from YAML to JSON, from JSON to a field of the table's struct, and back to
// text. What a value must be is the schema's word. fields: struct td_job_spec or
// struct td_daemon_settings.
#ifndef TD_SPEC_VALUE_INT_H
#define TD_SPEC_VALUE_INT_H

#include <stdbool.h>

#include <jansson.h>

#include "lib/base/buf.h"
#include "lib/spec/schema.h"
#include "lib/spec/yaml_int.h"

// The node as JSON, read with the eyes of key's type. NULL when it cannot be said in JSON as far
// as a job file needs it: *why gets the reason. A new reference.
json_t *td_spec_value_read(const struct td_spec_key *key, const struct td_yaml_node *node,
                           struct td_buf *why);
// Whether value fits key (DONE): type, range, words. *why gets what is wrong.
bool td_spec_value_check(const struct td_spec_key *key, const json_t *value, struct td_buf *why);
// Puts a value that was checked into its field; text is copied into arena.
void td_spec_value_store(const struct td_spec_key *key, const json_t *value, void *fields,
                         struct td_arena *arena);
// Appends the canonical JSON text of the field.
void td_spec_value_print(const struct td_spec_key *key, const void *fields, struct td_buf *out);
// Copies the field of from into that of key (same type).
void td_spec_value_follow(const struct td_spec_key *key, const struct td_spec_key *from,
                          void *fields);
// Equal as settings are: 1 and 1.0 are.
bool td_spec_value_equal(const json_t *a, const json_t *b);
// Parses JSON text of the table or of canonical bytes; NULL when it is none.
json_t *td_spec_value_parse(const char *text);
// Appends JSON text for people.
void td_spec_json_print(const json_t *value, struct td_buf *out);

#endif
