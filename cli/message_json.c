// Messages of the API as JSON: see message_json.h. By the descriptors of protobuf-c, so that a new
// field shows without a change here.
#include "cli/message_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *object_of(const ProtobufCMessage *message);

static json_t *text_of(const char *name, const char *text) {
    if (strcmp(name, "metrics") != 0) {
        // What is not UTF-8 would be no JSON; protobuf's strings are, but not by force.
        json_t *s = json_string(text ? text : "");
        return s ? s : json_string("");
    }
    json_t *inner = text && *text ? json_loads(text, 0, NULL) : NULL;
    return inner ? inner : json_null();
}

static json_t *hex_of(uint64_t v) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    return json_string(text);
}

static json_t *word_of(const ProtobufCFieldDescriptor *f, int value) {
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(f->descriptor, value);
    return v ? json_string(v->name) : json_integer(value);
}

// at: of one value.
static json_t *value_of(const ProtobufCFieldDescriptor *f, const void *at) {
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        return text_of(f->name, *(char *const *)at);
    case PROTOBUF_C_TYPE_FIXED64:
        return hex_of(*(const uint64_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
        return json_integer((json_int_t) * (const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
        return json_integer((json_int_t) * (const uint32_t *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return json_real(*(const double *)at);
    case PROTOBUF_C_TYPE_ENUM:
        return word_of(f, *(const int *)at);
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *inner = *(ProtobufCMessage *const *)at;
        return inner ? object_of(inner) : json_null();
    }
    default:
        return json_null();
    }
}

static size_t size_of(const ProtobufCFieldDescriptor *f) {
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_ENUM:
        return 4;
    default:
        return 8;
    }
}

static json_t *list_of(const ProtobufCFieldDescriptor *f, const uint8_t *items, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, value_of(f, items + i * size_of(f)));
    }
    return list;
}

// As deep as the types of the API, which do not hold themselves.
static json_t *object_of(const ProtobufCMessage *message) {
    json_t *o = json_object();
    const uint8_t *base = (const uint8_t *)message;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &message->descriptor->fields[i];
        const void *at = base + f->offset;
        json_t *value = f->label == PROTOBUF_C_LABEL_REPEATED
                            ? list_of(f, *(uint8_t *const *)at,
                                      *(const size_t *)(const void *)(base + f->quantifier_offset))
                            : value_of(f, at);
        json_object_set_new(o, f->name, value);
    }
    return o;
}

static int append(const char *bytes, size_t n, void *out) {
    td_buf_put(out, bytes, n);
    return 0;
}

void td_message_json(const ProtobufCMessage *message, bool compact, struct td_buf *out) {
    json_t *o = object_of(message);
    json_dump_callback(o, append, out, compact ? JSON_COMPACT : JSON_INDENT(2));
    td_buf_puts(out, "\n");
    json_decref(o);
}
