// A file and overrides to a struct: leaves with their places are collected, matched with a table,
// checked, stored; then come defaults and what follows from other settings. All errors are
// gathered. Pure.
#include "lib/spec/load_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/spec/value_int.h"

// --- reporting

static void report(struct td_spec_loader *l, struct td_buf *out, const struct td_spec_leaf *leaf,
                   const char *name, const char *what) {
    if (leaf && leaf->arg) {
        td_buf_printf(out, "command line: %s: ", leaf->arg);
    } else if (leaf) {
        td_buf_printf(out, "%s:%d: %s: ", l->name, leaf->line, name);
    } else {
        td_buf_printf(out, "%s: %s%s", l->name, name ? name : "", name ? ": " : "");
    }
    td_buf_printf(out, "%s\n", what);
}

static void report_error(struct td_spec_loader *l, const struct td_spec_leaf *leaf,
                         const char *name, const char *what) {
    if (++l->notes->error_count <= TD_SPEC_ERRORS_MAX) {
        report(l, &l->notes->errors, leaf, name, what);
    }
    if (l->notes->error_count == TD_SPEC_ERRORS_MAX) {
        td_buf_puts(&l->notes->errors, "further errors are not shown\n");
    }
}

static struct td_spec_slot *slot_of(const struct td_spec_loader *l, const char *key) {
    size_t index = 0;
    const struct td_spec_key *found = td_spec_table_find(l->table, key, l->kinds, &index);
    td_assert(found != NULL);
    return (struct td_spec_slot *)&l->slots[index];
}

void td_spec_complain(struct td_spec_loader *l, const char *key, const char *fmt, ...) {
    char what[TD_ERR_MAX];
    struct td_spec_slot *slot = slot_of(l, key);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    slot->bad = true;
    report_error(l, slot->leaf, key, what);
}

void td_spec_warn(struct td_spec_loader *l, const char *key, const char *fmt, ...) {
    char what[TD_ERR_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    l->notes->warning_count++;
    report(l, &l->notes->warnings, slot_of(l, key)->leaf, key, what);
}

bool td_spec_was_set(const struct td_spec_loader *l, const char *key) {
    return slot_of(l, key)->leaf != NULL;
}

const json_t *td_spec_given(const struct td_spec_loader *l, const char *key) {
    return slot_of(l, key)->value;
}

bool td_spec_sound(const struct td_spec_loader *l, const char *key, const char *second) {
    return !slot_of(l, key)->bad && (!second || !slot_of(l, second)->bad);
}

// --- leaves

static void add_leaf(struct td_spec_loader *l, const char *name, const struct td_yaml_node *node,
                     const char *arg) {
    TD_GROW(l->leaves, l->leaf_cap, l->leaf_count + 1);
    l->leaves[l->leaf_count++] = (struct td_spec_leaf){
        .name = td_arena_strndup(l->arena, name, strlen(name)),
        .node = node,
        .arg = arg,
        .line = node->line,
    };
}

static bool is_key(const struct td_spec_loader *l, const char *name) {
    return td_spec_table_find(l->table, name, l->table->kinds, NULL) != NULL;
}

static bool is_section(const struct td_spec_loader *l, const char *name) {
    return td_spec_table_is_section(l->table, name, l->table->kinds);
}

// Walks maps that are sections of the table; everything else is a value. Known to no kind: one leaf
// for the whole, so that a misspelt section is one error.
static void collect(struct td_spec_loader *l, const struct td_yaml_node *root, const char *name,
                    const char *arg) {
    struct {
        const struct td_yaml_node *next;
        size_t prefix;
    } stack[TD_YAML_DEPTH_MAX + 1];
    int depth = 0;
    struct td_buf path = {0};
    td_buf_puts(&path, name);
    const struct td_yaml_node *node = root;
    while (node || depth > 0) {
        if (!node) {
            depth--;
            node = stack[depth].next;
            path.len = stack[depth].prefix;
            td_buf_puts(&path, "");
            continue;
        }
        size_t prefix = path.len;
        if (depth > 0) {
            td_buf_printf(&path, "%s%s", prefix ? "." : "", node->key);
        }
        const struct td_yaml_node *next = depth > 0 ? node->next : NULL;
        const char *at = td_buf_str(&path);
        bool section =
            node->kind == TD_YAML_MAP && !is_key(l, at) && (path.len == 0 || is_section(l, at));
        if (section) {
            td_assert_op(depth, <, TD_YAML_DEPTH_MAX + 1);
            stack[depth].next = next;
            stack[depth++].prefix = prefix;
            node = node->child;
            continue;
        }
        add_leaf(l, at, node, arg);
        path.len = prefix;
        td_buf_puts(&path, "");
        node = next;
    }
    td_buf_fini(&path);
}

static enum td_rc collect_text(struct td_spec_loader *l, const void *bytes, size_t n,
                               struct td_err *err) {
    struct td_yaml_node *root = NULL;
    struct td_err cause = {0};
    enum td_rc rc = td_yaml_parse(bytes, n, l->arena, &root, &cause);
    bool empty = !root || td_yaml_is_null(root);
    if (rc == TD_OK && !empty && root->kind != TD_YAML_MAP) {
        rc = td_fail(&cause, TD_EINVAL,
                     "%d: expected sections of keys, got a single value or a "
                     "list",
                     root->line);
    }
    if (rc != TD_OK) {
        rc = td_fail(err, cause.code, "%s:%s", l->name, cause.msg);
        l->notes->error_count++;
        td_buf_printf(&l->notes->errors, "%s\n", err->msg);
    } else if (!empty) {
        collect(l, root, "", NULL);
    }
    return rc;
}

static void complain_of_arg(struct td_spec_loader *l, const char *arg, const char *what) {
    struct td_spec_leaf leaf = {.arg = arg};
    report_error(l, &leaf, NULL, what);
}

static void collect_override(struct td_spec_loader *l, const char *arg) {
    const char *equals = strchr(arg, '=');
    if (!equals || equals == arg) {
        complain_of_arg(l, arg, "expected key=value");
        return;
    }
    if (*arg == '+' || *arg == '~') {
        complain_of_arg(l, arg, "every key exists already; write key=value without + or ~");
        return;
    }
    const char *text = equals + 1;
    char *name = td_arena_strndup(l->arena, arg, (size_t)(equals - arg));
    struct td_yaml_node *node = td_arena_alloc(l->arena, sizeof *node);
    node->text = text;
    node->plain = true;
    if (*text && strchr("[{'\"", *text)) {
        struct td_err err = {0};
        if (td_yaml_parse(text, strlen(text), l->arena, &node, &err) != TD_OK) {
            complain_of_arg(l, arg, strstr(err.msg, ": ") + 2); // its line says nothing here
            return;
        }
    }
    collect(l, node, name, arg);
}

enum td_rc td_spec_collect(struct td_spec_loader *l, const struct td_spec_text *text,
                           struct td_err *err) {
    enum td_rc rc = collect_text(l, text->bytes, text->n, err);
    for (size_t i = 0; i < text->override_count && rc == TD_OK; i++) {
        collect_override(l, text->overrides[i]);
    }
    return rc;
}

// --- leaves against the table

static bool same_word(const char *a, const char *b) {
    const char *last_a = strrchr(a, '.'), *last_b = strrchr(b, '.');
    return last_a && last_b && strcmp(last_a, last_b) == 0;
}

// The kinds that know name, as a key or a section.
static unsigned kinds_of(const struct td_spec_loader *l, const char *name) {
    unsigned has = 0;
    for (unsigned kind = 1; kind <= l->table->kinds; kind <<= 1) {
        if (td_spec_table_find(l->table, name, kind, NULL) ||
            td_spec_table_is_section(l->table, name, kind)) {
            has |= kind;
        }
    }
    return has;
}

static void complain_unknown(struct td_spec_loader *l, const struct td_spec_leaf *leaf) {
    struct td_buf what = {0}, near = {0};
    unsigned has = kinds_of(l, leaf->name);
    if (has & l->kinds) {
        if (!td_yaml_is_null(leaf->node)) {
            td_buf_puts(&what, "this is a section; write its keys below it");
        }
    } else if (has) {
        l->table->print_foreign(has, l->kinds, &what);
        td_buf_puts(&what, "; remove it");
        if (td_spec_table_nearest(l->table, leaf->name, l->kinds, &near) &&
            same_word(leaf->name, td_buf_str(&near))) {
            td_buf_printf(&what, ", or use %s", td_buf_str(&near));
        }
    } else if (td_spec_table_nearest(l->table, leaf->name, l->kinds, &near)) {
        td_buf_printf(&what, "unknown key; did you mean %s?", td_buf_str(&near));
    } else {
        td_buf_printf(&what, "unknown key; %s", l->table->listing);
    }
    if (what.len) {
        report_error(l, leaf, leaf->name, td_buf_str(&what));
    }
    td_buf_fini(&what);
    td_buf_fini(&near);
}

static bool interpolates(const struct td_yaml_node *node) {
    if (node->kind == TD_YAML_SCALAR) {
        return strstr(node->text, "${") != NULL;
    }
    for (const struct td_yaml_node *child = node->child; child; child = child->next) {
        if (child->kind == TD_YAML_SCALAR && strstr(child->text, "${")) {
            return true;
        }
    }
    return false;
}

static void take_leaf(struct td_spec_loader *l, const struct td_spec_leaf *leaf) {
    size_t index = 0;
    const struct td_spec_key *key = td_spec_table_find(l->table, leaf->name, l->kinds, &index);
    if (!key) {
        complain_unknown(l, leaf);
        return;
    }
    struct td_spec_slot *slot = &l->slots[index];
    if (slot->leaf && !slot->leaf->arg && !leaf->arg) {
        char what[64];
        snprintf(what, sizeof what, "set twice, first in line %d; remove one", slot->leaf->line);
        report_error(l, leaf, leaf->name, what);
        return;
    }
    slot->leaf = leaf;
    json_decref(slot->value);
    slot->value = NULL;
    if (key->type != TD_SPEC_REWARDS && interpolates(leaf->node)) {
        td_spec_complain(l, key->name,
                         "interpolations (${...}) are not supported; write the value");
        return;
    }
    if (key->cls == TD_SPEC_NO_EFFECT) {
        return;
    }
    struct td_buf why = {0};
    slot->value = td_spec_value_read(key, leaf->node, &why);
    if (!slot->value ||
        (key->cls == TD_SPEC_DONE && !td_spec_value_check(key, slot->value, &why))) {
        td_spec_complain(l, key->name, "%s", td_buf_str(&why));
    }
    td_buf_fini(&why);
}

// --- from settings to fields

// null on a key that follows another one is the same as not to set it.
static bool follows(const struct td_spec_key *key, const struct td_spec_slot *slot) {
    return key->def && *key->def == '=' && (!slot->leaf || slot->bad || json_is_null(slot->value));
}

static void store_all(struct td_spec_loader *l) {
    unsigned kinds;
    for (size_t i = 0; i < td_spec_table_count(l->table); i++) {
        const struct td_spec_key *key = td_spec_table_key(l->table, i, &kinds);
        struct td_spec_slot *slot = &l->slots[i];
        if (key->cls != TD_SPEC_DONE || !(kinds & l->kinds) || follows(key, slot)) {
            continue;
        }
        if (slot->leaf && !slot->bad) {
            td_spec_value_store(key, slot->value, l->fields, l->kept);
        } else if (key->def) {
            json_t *value = td_spec_value_parse(key->def);
            td_spec_value_store(key, value, l->fields, l->kept);
            json_decref(value);
        } else if (!slot->bad) {
            td_spec_complain(l, key->name, "missing, but needed: %s", key->help);
        }
    }
}

static void store_followers(struct td_spec_loader *l) {
    unsigned kinds;
    for (size_t i = 0; i < td_spec_table_count(l->table); i++) {
        const struct td_spec_key *key = td_spec_table_key(l->table, i, &kinds);
        if (key->cls == TD_SPEC_DONE && (kinds & l->kinds) && follows(key, &l->slots[i])) {
            td_spec_value_follow(key, td_spec_table_find(l->table, key->def + 1, l->kinds, NULL),
                                 l->fields);
        }
    }
}

void td_spec_fill(struct td_spec_loader *l) {
    for (size_t i = 0; i < l->leaf_count && l->notes->error_count < TD_SPEC_ERRORS_MAX; i++) {
        take_leaf(l, &l->leaves[i]);
    }
    store_all(l);
    store_followers(l);
}

enum td_rc td_spec_verdict(const struct td_spec_loader *l, struct td_err *err) {
    if (l->notes->error_count == 0) {
        return TD_OK;
    }
    const char *first = td_buf_str(&l->notes->errors);
    return td_fail(err, TD_EINVAL, "%s: %d error%s; first: %.*s", l->name, l->notes->error_count,
                   l->notes->error_count == 1 ? "" : "s", (int)strcspn(first, "\n"), first);
}

struct td_spec_loader *td_spec_loader_new(const struct td_spec_table *table, const char *name,
                                          struct td_spec_notes *notes) {
    struct td_spec_loader *l = td_alloc(sizeof *l);
    l->table = table;
    l->name = name;
    l->notes = notes;
    l->arena = td_arena_new();
    return l;
}

void td_spec_loader_free(struct td_spec_loader *l) {
    for (size_t i = 0; i < TD_SPEC_KEYS_MAX; i++) {
        json_decref(l->slots[i].value);
    }
    td_arena_free(l->arena);
    td_free(l->leaves);
    td_free(l);
}

void td_spec_notes_fini(struct td_spec_notes *notes) {
    td_buf_fini(&notes->errors);
    td_buf_fini(&notes->warnings);
    td_buf_fini(&notes->no_effect);
    *notes = (struct td_spec_notes){0};
}
