// Helpers for generated messages: see proto.h.
#include "controllers/common/proto.h"

#include <protobuf-c/protobuf-c.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"

void *td_proto_dup(const void *message) {
    const ProtobufCMessage *from = message;
    if (!from) {
        return NULL;
    }
    size_t n = protobuf_c_message_get_packed_size(from);
    uint8_t *bytes = td_alloc(n);
    protobuf_c_message_pack(from, bytes);
    void *copy = protobuf_c_message_unpack(from->descriptor, NULL, n, bytes);
    td_assert(copy);
    td_free(bytes);
    return copy;
}

void td_proto_free(void *message) {
    if (message) {
        protobuf_c_message_free_unpacked(message, NULL);
    }
}

uint64_t td_proto_digest(const void *message) {
    const ProtobufCMessage *from = message;
    size_t n = protobuf_c_message_get_packed_size(from);
    uint8_t *bytes = td_alloc(n);
    protobuf_c_message_pack(from, bytes);
    uint64_t digest = td_digest64(0, bytes, n);
    td_free(bytes);
    return digest;
}

Tandem__Journal__Position *td_proto_pos(struct td_pos pos) {
    Tandem__Journal__Position *p = td_alloc(sizeof *p);
    tandem__journal__position__init(p);
    p->offset = pos.offset;
    p->crc = pos.crc;
    return p;
}

Tandem__Journal__Version *td_proto_version(struct td_version version) {
    Tandem__Journal__Version *p = td_alloc(sizeof *p);
    tandem__journal__version__init(p);
    p->lineage = version.lineage;
    p->step = version.step;
    return p;
}

Tandem__Journal__Group *td_proto_group(struct td_group group) {
    Tandem__Journal__Group *p = td_alloc(sizeof *p);
    tandem__journal__group__init(p);
    p->data_epoch = group.data_epoch;
    p->index = group.index;
    return p;
}

struct td_version td_proto_to_version(const Tandem__Journal__Version *version) {
    return version ? (struct td_version){version->lineage, version->step} : (struct td_version){0};
}

struct td_group td_proto_to_group(const Tandem__Journal__Group *group) {
    return group ? (struct td_group){group->data_epoch, group->index} : (struct td_group){0};
}
