// A snapshot: one version's weights as a sealed memfd. 4096 bytes of header, then the flat fp32
// buffer in the model's own order, so that a reader can map it and use it in place.
#ifndef TD_IPC_SNAPSHOT_H
#define TD_IPC_SNAPSHOT_H

#include <stdint.h>

#include "lib/base/err.h"

struct td_snapshot {
    uint64_t lineage, step;
    uint64_t digest;   // of the weights, design §3.8; readers recompute it
    uint64_t elements; // floats
    const float *flat; // mapped read-only
    void *map;         // owned
    uint64_t map_bytes;
};

// Copies s->elements floats from s->flat into a new memfd, sealed against change. *fd is the
// caller's.
enum td_rc td_snapshot_write(const struct td_snapshot *s, int *fd,
                             struct td_err *err) TD_MUST_CHECK;
// Those that come from elsewhere: size of a whole one, an empty memfd of that size to be filled,
// and its seals, once no writable mapping is left.
uint64_t td_snapshot_bytes(uint64_t elements);
enum td_rc td_snapshot_open(uint64_t bytes, int *fd, struct td_err *err) TD_MUST_CHECK;
enum td_rc td_snapshot_seal(int fd, struct td_err *err) TD_MUST_CHECK;
// Maps fd (still the caller's). TD_ECORRUPT when it is not sealed, or its header or size is wrong.
// Release by td_snapshot_unmap.
enum td_rc td_snapshot_map(int fd, struct td_snapshot *out, struct td_err *err) TD_MUST_CHECK;
void td_snapshot_unmap(struct td_snapshot *s);

#endif
