// gRPC reflection for rpc.h, v1 and v1alpha, which are the same on the wire. The descriptors stay
// as they are, a packed FileDescriptorSet, and are walked for each question: there are few files
// and few questions. Field numbers are those of google/protobuf/descriptor.proto.
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/rpc_int.h"
#include "proto/reflection.pb-c.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;
typedef Grpc__Reflection__V1__ServiceResponse service_response;

#define REQUEST_CASE(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define RESPONSE_CASE(name)                                                                        \
    GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

enum { FILES_MAX = 64, SERVICES_MAX = 64 };
enum { SET_FILE = 1, FILE_NAME = 1, FILE_PACKAGE = 2, FILE_DEPENDENCY = 3 };
enum { FILE_MESSAGE = 4, FILE_ENUM = 5, FILE_SERVICE = 6, ITEM_NAME = 1 };

struct span {
    const uint8_t *bytes;
    size_t n;
};

struct td_rpc_reflection {
    struct span files[FILES_MAX];
    size_t count;
    const struct td_rpc_server *server;
};

// ---- reading descriptors ----

static bool read_varint(struct span *at, uint64_t *out) {
    uint64_t value = 0;
    for (unsigned shift = 0; at->n > 0 && shift < 64; shift += 7) {
        uint8_t byte = *at->bytes;
        at->bytes++;
        at->n--;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

// The next field; value is empty unless it is bytes. False: the end, or (at->n > 0) damage.
static bool next_field(struct span *at, unsigned *number, struct span *value) {
    static const uint64_t fixed_sizes[8] = {[1] = 8, [5] = 4};
    struct span rest = *at;
    uint64_t key, size;
    if (!read_varint(&rest, &key)) {
        return false;
    }
    unsigned wire = key & 7;
    bool is_bytes = wire == 2;
    if (wire == 0 || is_bytes) {
        if (!read_varint(&rest, &size)) {
            return false;
        }
        size = is_bytes ? size : 0;
    } else if (fixed_sizes[wire] == 0) {
        return false;
    } else {
        size = fixed_sizes[wire];
    }
    if (size > rest.n) {
        return false;
    }
    *number = (unsigned)(key >> 3);
    *value = (struct span){rest.bytes, is_bytes ? size : 0};
    *at = (struct span){rest.bytes + size, rest.n - size};
    return true;
}

// The first field of this number; empty when there is none.
static struct span find_field(struct span in, unsigned wanted) {
    unsigned number;
    struct span value;
    while (next_field(&in, &number, &value)) {
        if (number == wanted) {
            return value;
        }
    }
    return (struct span){0};
}

static bool same(struct span a, const char *bytes, size_t n) {
    return a.n == n && (n == 0 || memcmp(a.bytes, bytes, n) == 0);
}

// ---- finding ----

static size_t find_file(const struct td_rpc_reflection *r, const char *name, size_t n) {
    size_t i = 0;
    while (i < r->count && !same(find_field(r->files[i], FILE_NAME), name, n)) {
        i++;
    }
    return i;
}

// Whether the file has the top-level message, enum or service PACKAGE.NAME.
static bool file_has(struct span file, const char *symbol, size_t n) {
    struct span package = find_field(file, FILE_PACKAGE), item;
    size_t skip = package.n > 0 ? package.n + 1 : 0;
    if (n <= skip || !same(package, symbol, package.n) || (skip > 0 && symbol[skip - 1] != '.')) {
        return false;
    }
    unsigned number;
    while (next_field(&file, &number, &item)) {
        if ((number == FILE_MESSAGE || number == FILE_ENUM || number == FILE_SERVICE) &&
            same(find_field(item, ITEM_NAME), symbol + skip, n - skip)) {
            return true;
        }
    }
    return false;
}

// The file of a symbol, or count. What lies inside a message, enum or service counts as that.
static size_t find_symbol(const struct td_rpc_reflection *r, const char *symbol) {
    for (size_t n = strlen(symbol); n > 0;) {
        for (size_t i = 0; i < r->count; i++) {
            if (file_has(r->files[i], symbol, n)) {
                return i;
            }
        }
        do {
            n--;
        } while (n > 0 && symbol[n] != '.');
    }
    return r->count;
}

// ---- answering ----

static void answer(struct td_rpc_call *call, const reflection_request *request,
                   reflection_response *response) {
    response->valid_host = request->host;
    response->original_request = (reflection_request *)request;
    struct td_err err;
    if (td_rpc_send(call, &response->base, &err) != TD_OK) {
        td_rpc_fail(call, TD_RPC_RESOURCE_EXHAUSTED, err.msg);
    }
}

static void answer_error(struct td_rpc_call *call, const reflection_request *request,
                         enum td_rpc_status status, const char *text) {
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)status;
    error.error_message = (char *)text;
    reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.message_response_case = RESPONSE_CASE(ERROR_RESPONSE);
    response.error_response = &error;
    answer(call, request, &response);
}

// The file, then all that it imports.
static void answer_file(const struct td_rpc_reflection *r, struct td_rpc_call *call,
                        const reflection_request *request, size_t first) {
    if (first == r->count) {
        answer_error(call, request, TD_RPC_NOT_FOUND, "it is not known here");
        return;
    }
    size_t files[FILES_MAX] = {first}, count = 1;
    bool taken[FILES_MAX] = {0};
    taken[first] = true;
    ProtobufCBinaryData parts[FILES_MAX];
    for (size_t i = 0; i < count; i++) {
        struct span at = r->files[files[i]], value;
        parts[i] = (ProtobufCBinaryData){at.n, (uint8_t *)at.bytes};
        unsigned number;
        while (next_field(&at, &number, &value)) {
            size_t other = number == FILE_DEPENDENCY
                               ? find_file(r, (const char *)value.bytes, value.n)
                               : r->count;
            if (other < r->count && !taken[other]) {
                taken[other] = true;
                files[count++] = other;
            }
        }
    }
    Grpc__Reflection__V1__FileDescriptorResponse found =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    found.n_file_descriptor_proto = count;
    found.file_descriptor_proto = parts;
    reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.message_response_case = RESPONSE_CASE(FILE_DESCRIPTOR_RESPONSE);
    response.file_descriptor_response = &found;
    answer(call, request, &response);
}

// "package.Service" of "/package.Service/Method".
static char *service_of(const char *path) {
    const char *slash = strchr(path + 1, '/');
    return td_strndup(path + 1, slash ? (size_t)(slash - path - 1) : 0);
}

static void answer_services(const struct td_rpc_reflection *r, struct td_rpc_call *call,
                            const reflection_request *request) {
    service_response services[SERVICES_MAX], *pointers[SERVICES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < r->server->entry_count && count < SERVICES_MAX; i++) {
        char *name = service_of(r->server->entries[i].method.path);
        bool known = find_symbol(r, name) == r->count; // v1alpha has no descriptor
        for (size_t k = 0; k < count; k++) {
            known |= strcmp(services[k].name, name) == 0;
        }
        if (known) {
            td_free(name);
            continue;
        }
        grpc__reflection__v1__service_response__init(&services[count]);
        pointers[count] = &services[count];
        services[count++].name = name;
    }
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    list.n_service = count;
    list.service = pointers;
    reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.message_response_case = RESPONSE_CASE(LIST_SERVICES_RESPONSE);
    response.list_services_response = &list;
    answer(call, request, &response);
    for (size_t i = 0; i < count; i++) {
        td_free(services[i].name);
    }
}

// proto3 has none.
static void answer_extensions(const struct td_rpc_reflection *r, struct td_rpc_call *call,
                              const reflection_request *request) {
    if (find_symbol(r, request->all_extension_numbers_of_type) == r->count) {
        answer_error(call, request, TD_RPC_NOT_FOUND, "there is no such type here");
        return;
    }
    Grpc__Reflection__V1__ExtensionNumberResponse none =
        GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
    none.base_type_name = request->all_extension_numbers_of_type;
    reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.message_response_case = RESPONSE_CASE(ALL_EXTENSION_NUMBERS_RESPONSE);
    response.all_extension_numbers_response = &none;
    answer(call, request, &response);
}

static void on_question(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    const struct td_rpc_reflection *r = user;
    const reflection_request *request = (const reflection_request *)message;
    switch (request->message_request_case) {
    case REQUEST_CASE(LIST_SERVICES):
        answer_services(r, call, request);
        break;
    case REQUEST_CASE(FILE_BY_FILENAME): {
        const char *name = request->file_by_filename;
        answer_file(r, call, request, find_file(r, name, strlen(name)));
        break;
    }
    case REQUEST_CASE(FILE_CONTAINING_SYMBOL):
        answer_file(r, call, request, find_symbol(r, request->file_containing_symbol));
        break;
    case REQUEST_CASE(FILE_CONTAINING_EXTENSION):
        answer_error(call, request, TD_RPC_NOT_FOUND, "there are no extensions here");
        break;
    case REQUEST_CASE(ALL_EXTENSION_NUMBERS_OF_TYPE):
        answer_extensions(r, call, request);
        break;
    default:
        answer_error(call, request, TD_RPC_INVALID_ARGUMENT, "no question that is known here");
    }
}

// ---- the service ----

static enum td_rc take_files(struct td_rpc_reflection *r, struct span set, struct td_err *err) {
    unsigned number;
    struct span file;
    while (next_field(&set, &number, &file)) {
        if (number == SET_FILE && r->count == FILES_MAX) {
            return td_fail(err, TD_ELIMIT, "reflection: more than %d files", FILES_MAX);
        }
        if (number == SET_FILE) {
            r->files[r->count++] = file;
        }
    }
    return set.n == 0 ? TD_OK : td_fail(err, TD_EINVAL, "reflection: this is no FileDescriptorSet");
}

enum td_rc td_rpc_reflection_new(struct td_rpc_server *server, struct td_rpc_entry *entries,
                                 const struct td_rpc_server_opts *opts, struct td_err *err) {
    struct td_rpc_reflection *r = td_alloc(sizeof *r);
    enum td_rc rc = take_files(r, (struct span){opts->descriptors, opts->descriptors_bytes}, err);
    if (rc != TD_OK) {
        td_free(r);
        return rc;
    }
    r->server = server;
    struct td_rpc_method method = {
        .in = &grpc__reflection__v1__server_reflection_request__descriptor,
        .out = &grpc__reflection__v1__server_reflection_response__descriptor,
        .streams = true,
        .call = on_question};
    method.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    entries[0] = (struct td_rpc_entry){.method = method, .reads = true, .user = r};
    method.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    entries[1] = (struct td_rpc_entry){.method = method, .reads = true, .user = r};
    server->reflection = r;
    return TD_OK;
}

void td_rpc_reflection_free(struct td_rpc_reflection *reflection) {
    td_free(reflection);
}
