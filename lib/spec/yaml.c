// YAML events to a tree. An explicit stack instead of recursion, because depth is the file's.
#include "lib/spec/yaml_int.h"

#include <string.h>

#include <yaml.h>

struct level {
    struct td_yaml_node *node;
    struct td_yaml_node **tail; // where the next child goes
    const char *key;            // MAP: the key that waits for its value
    int key_line;
};

struct builder {
    struct td_arena *arena;
    struct td_yaml_node *root;
    struct level stack[TD_YAML_DEPTH_MAX];
    int depth, nodes, documents;
};

static enum td_rc fail_at(const yaml_mark_t *mark, struct td_err *err, const char *what) {
    return td_fail(err, TD_EINVAL, "%zu:%zu: %s", mark->line + 1, mark->column + 1, what);
}

static enum td_rc take_key(struct builder *b, const yaml_event_t *event, struct td_err *err) {
    struct level *top = &b->stack[b->depth - 1];
    const char *text = (const char *)event->data.scalar.value;
    if (strcmp(text, "<<") == 0) {
        return fail_at(&event->start_mark, err,
                       "merge keys (<<) are not supported; write the keys out");
    }
    if (*text == '\0') {
        return fail_at(&event->start_mark, err, "an empty key");
    }
    top->key = td_arena_strndup(b->arena, text, event->data.scalar.length);
    top->key_line = (int)event->start_mark.line + 1;
    return TD_OK;
}

static struct td_yaml_node *add_node(struct builder *b, const yaml_event_t *event,
                                     enum td_yaml_kind kind) {
    struct td_yaml_node *node = td_arena_alloc(b->arena, sizeof *node);
    node->kind = kind;
    node->line = (int)event->start_mark.line + 1;
    b->nodes++;
    if (b->depth == 0) {
        b->root = node;
        return node;
    }
    struct level *top = &b->stack[b->depth - 1];
    if (top->key) {
        node->key = top->key;
        node->line = top->key_line;
        top->key = NULL;
    }
    *top->tail = node;
    top->tail = &node->next;
    return node;
}

static enum td_rc open_level(struct builder *b, const yaml_event_t *event, enum td_yaml_kind kind,
                             struct td_err *err) {
    if (b->depth == TD_YAML_DEPTH_MAX) {
        return fail_at(&event->start_mark, err, "nested more than 32 levels deep");
    }
    struct td_yaml_node *node = add_node(b, event, kind);
    b->stack[b->depth++] = (struct level){.node = node, .tail = &node->child};
    return TD_OK;
}

static bool key_is_due(const struct builder *b) {
    return b->depth > 0 && b->stack[b->depth - 1].node->kind == TD_YAML_MAP &&
           b->stack[b->depth - 1].key == NULL;
}

static enum td_rc take_scalar(struct builder *b, const yaml_event_t *event, struct td_err *err) {
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length) {
        return fail_at(&event->start_mark, err, "a zero byte in a string");
    }
    if (event->data.scalar.tag) {
        return fail_at(&event->start_mark, err, "tags (!) are not supported; leave it out");
    }
    if (key_is_due(b)) {
        return take_key(b, event, err);
    }
    struct td_yaml_node *node = add_node(b, event, TD_YAML_SCALAR);
    node->text = td_arena_strndup(b->arena, text, event->data.scalar.length);
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return TD_OK;
}

static enum td_rc take_event(struct builder *b, const yaml_event_t *event, struct td_err *err) {
    if (b->nodes == TD_YAML_NODES_MAX) {
        return fail_at(&event->start_mark, err, "more than 65536 values");
    }
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++b->documents > 1) {
            return fail_at(&event->start_mark, err,
                           "a second document (---); write a file for each");
        }
        return TD_OK;
    case YAML_ALIAS_EVENT:
        return fail_at(&event->start_mark, err,
                       "aliases (*) are not supported; write the value out");
    case YAML_SCALAR_EVENT:
        return take_scalar(b, event, err);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        if (key_is_due(b)) {
            return fail_at(&event->start_mark, err, "a key must be a word, not a list or a map");
        }
        if (event->type == YAML_SEQUENCE_START_EVENT ? event->data.sequence_start.tag != NULL
                                                     : event->data.mapping_start.tag != NULL) {
            return fail_at(&event->start_mark, err, "tags (!) are not supported; leave it out");
        }
        return open_level(
            b, event, event->type == YAML_SEQUENCE_START_EVENT ? TD_YAML_LIST : TD_YAML_MAP, err);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        b->depth--;
        return TD_OK;
    default:
        return TD_OK;
    }
}

// The reader knows the byte where text stops being UTF-8, not its line.
static enum td_rc reader_error(const yaml_parser_t *parser, const char *bytes, size_t n,
                               struct td_err *err) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < n && i < parser->problem_offset; i++) {
        column = bytes[i] == '\n' ? 1 : column + 1;
        line += bytes[i] == '\n';
    }
    return td_fail(err, TD_EINVAL, "%zu:%zu: not YAML: %s", line, column, parser->problem);
}

static enum td_rc parser_error(const yaml_parser_t *parser, struct td_err *err) {
    const yaml_mark_t *mark = &parser->problem_mark;
    return td_fail(err, TD_EINVAL, "%zu:%zu: not YAML: %s%s%s", mark->line + 1, mark->column + 1,
                   parser->context ? parser->context : "", parser->context ? ", " : "",
                   parser->problem ? parser->problem : "no reason given");
}

enum td_rc td_yaml_parse(const void *bytes, size_t n, struct td_arena *arena,
                         struct td_yaml_node **root, struct td_err *err) {
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        return td_fail(err, TD_ENOMEM, "no memory for the YAML parser");
    }
    yaml_parser_set_input_string(&parser, bytes, n);
    struct builder b = {.arena = arena};
    enum td_rc rc = TD_OK;
    for (bool more = true; more && rc == TD_OK;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            rc = parser.error == YAML_READER_ERROR ? reader_error(&parser, bytes, n, err)
                                                   : parser_error(&parser, err);
            break;
        }
        rc = take_event(&b, &event, err);
        more = event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (rc == TD_OK) {
        *root = b.root;
    }
    return rc;
}

// Which of the words a plain scalar is; count: none.
static size_t word_of(const struct td_yaml_node *node, const char *const *words, size_t count) {
    size_t i = node->kind == TD_YAML_SCALAR && node->plain ? 0 : count;
    while (i < count && strcmp(node->text, words[i]) != 0) {
        i++;
    }
    return i;
}

bool td_yaml_is_null(const struct td_yaml_node *node) {
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    return word_of(node, words, 5) < 5;
}

bool td_yaml_is_bool(const struct td_yaml_node *node, bool *value) {
    static const char *const words[] = {"false", "False", "FALSE", "true", "True", "TRUE"};
    size_t word = word_of(node, words, 6);
    if (word < 6) {
        *value = word >= 3;
    }
    return word < 6;
}
