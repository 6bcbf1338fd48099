// What the files that load settings share. One loader per load; nothing outlives it but the struct
// that it fills.
#ifndef TD_SPEC_LOAD_INT_H
#define TD_SPEC_LOAD_INT_H

#include <stdbool.h>

#include <jansson.h>

#include "lib/spec/job_spec.h"
#include "lib/spec/schema.h"
#include "lib/spec/yaml_int.h"

enum { TD_SPEC_ERRORS_MAX = 64 }; // the rest of a hopeless file is not looked at

struct td_spec_leaf { // a value the user gave
    const char *name; // dotted
    const struct td_yaml_node *node;
    const char *arg; // the override it comes from; NULL: the file
    int line;
};

struct td_spec_slot {                // per key of the table
    const struct td_spec_leaf *leaf; // NULL: the default holds
    json_t *value;                   // of leaf, when it is fit to use
    bool bad;                        // an error was reported for it
};

struct td_spec_loader {
    const char *name; // of the file, for messages
    const struct td_spec_table *table;
    struct td_arena *arena;   // its own
    void *fields;             // the struct of the table
    struct td_arena *kept;    // what outlives the loader: the struct's
    struct td_job_spec *spec; // fields, of a job
    struct td_spec_notes *notes;
    unsigned kinds; // the one kind of the file
    struct td_spec_leaf *leaves;
    size_t leaf_count, leaf_cap;
    struct td_spec_slot slots[TD_SPEC_KEYS_MAX];
};

// Collects leaves from the text and the overrides. Not OK: that is no text of settings.
enum td_rc td_spec_collect(struct td_spec_loader *l, const struct td_spec_text *text,
                           struct td_err *err) TD_MUST_CHECK;
// Matches leaves with the table's keys of l->kinds, and fills the fields, with defaults too.
void td_spec_fill(struct td_spec_loader *l);
// TD_EINVAL when there were errors: their number and the first.
enum td_rc td_spec_verdict(const struct td_spec_loader *l, struct td_err *err) TD_MUST_CHECK;
// name is that of the file.
struct td_spec_loader *td_spec_loader_new(const struct td_spec_table *table, const char *name,
                                          struct td_spec_notes *notes);
void td_spec_loader_free(struct td_spec_loader *l);

// One line of an error or a warning about key, with the place where the user set it.
void td_spec_complain(struct td_spec_loader *l, const char *key, const char *fmt, ...)
    TD_PRINTF(3, 4);
void td_spec_warn(struct td_spec_loader *l, const char *key, const char *fmt, ...) TD_PRINTF(3, 4);
// What the user gave for key, or NULL: for keys without a field.
const json_t *td_spec_given(const struct td_spec_loader *l, const char *key);
// Whether the user set key; whether none of two keys (second may be NULL) has an error already.
bool td_spec_was_set(const struct td_spec_loader *l, const char *key);
bool td_spec_sound(const struct td_spec_loader *l, const char *key, const char *second);

// Errors and warnings about settings that do not go together.
void td_spec_check_together(struct td_spec_loader *l);

// An empty spec with its arena.
struct td_job_spec *td_job_spec_new(void);

#endif
