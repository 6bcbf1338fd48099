// The descriptors of every .proto file here: a packed google.protobuf.FileDescriptorSet, made at
// build, for gRPC reflection.
#ifndef TD_PROTO_DESCRIPTORS_H
#define TD_PROTO_DESCRIPTORS_H

#include <stddef.h>
#include <stdint.h>

// *n bytes; static.
const uint8_t *td_proto_descriptors(size_t *n);

#endif
