// Small helpers for generated protobuf-c messages that live on the heap. Pure; any thread.
#ifndef TD_CONTROLLERS_COMMON_PROTO_H
#define TD_CONTROLLERS_COMMON_PROTO_H

#include <stddef.h>
#include <stdint.h>

#include "lib/journal/record.h"

// A deep copy of message (NULL gives NULL); release by td_proto_free.
void *td_proto_dup(const void *message);
// Releases a message whose every part is on the heap (unpacked, copied, or built by td_alloc).
void td_proto_free(void *message);
// A digest of the packed bytes.
uint64_t td_proto_digest(const void *message);

Tandem__Journal__Position *td_proto_pos(struct td_pos pos);
Tandem__Journal__Version *td_proto_version(struct td_version version);
Tandem__Journal__Group *td_proto_group(struct td_group group);
struct td_version td_proto_to_version(const Tandem__Journal__Version *version); // NULL: 0, 0
struct td_group td_proto_to_group(const Tandem__Journal__Group *group);         // NULL: 0, 0

#endif
