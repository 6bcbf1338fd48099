// A YAML document as a tree of nodes with their lines, by libyaml. What a job file does not need is
// refused by name: anchors and aliases, merge keys, tags, several documents, keys that are not
// words.
#ifndef TD_SPEC_YAML_INT_H
#define TD_SPEC_YAML_INT_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"
#include "lib/base/mem.h"

enum { TD_YAML_DEPTH_MAX = 32, TD_YAML_NODES_MAX = 1 << 16 };

enum td_yaml_kind { TD_YAML_SCALAR, TD_YAML_LIST, TD_YAML_MAP };

struct td_yaml_node {
    enum td_yaml_kind kind;
    const char *key;  // of a member of a map
    const char *text; // SCALAR: UTF-8 without zero bytes
    bool plain;       // SCALAR: not quoted, so that null, true and 1 are not strings
    int line;         // 1-based; of the key where there is one
    struct td_yaml_node *child, *next; // LIST, MAP: first child; next one of the same parent
};

// Parses n bytes. *root is NULL for an empty document; nodes live in arena. Errors begin with
// "line:column: ".
enum td_rc td_yaml_parse(const void *bytes, size_t n, struct td_arena *arena,
                         struct td_yaml_node **root, struct td_err *err) TD_MUST_CHECK;

// Whether a plain scalar is null, or true or false (*value).
bool td_yaml_is_null(const struct td_yaml_node *node);
bool td_yaml_is_bool(const struct td_yaml_node *node, bool *value);

#endif
