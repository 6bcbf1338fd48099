// What travels between the server of snapshots and those who pull: one request, one answer, and,
// over TCP, the bytes from the offset on; over UNIX the memfd beside the answer. Little-endian.
#ifndef TD_WORKERS_WEIGHTS_INT_H
#define TD_WORKERS_WEIGHTS_INT_H

#include <stdint.h>

#include "lib/base/err.h"

enum { TD_WEIGHTS_MAGIC = 0x54645731, TD_WEIGHTS_VERSION = 1, TD_BOOT_ID_MAX = 40 };

enum td_weights_status { TD_WEIGHTS_HERE, TD_WEIGHTS_NOT_HELD, TD_WEIGHTS_BAD_OFFSET };

struct td_weights_request {
    uint32_t magic, version;
    uint64_t step, digest, offset;
};
_Static_assert(sizeof(struct td_weights_request) == 32, "no padding on the wire");

struct td_weights_answer {
    uint32_t magic, status;
    uint64_t total, offset; // of the whole snapshot; where the bytes begin
};
_Static_assert(sizeof(struct td_weights_answer) == 24, "no padding on the wire");

// Between the machine's byte order and that of the wire: the same both ways.
void td_weights_swap_request(struct td_weights_request *r);
void td_weights_swap_answer(struct td_weights_answer *a);

// Of this machine since it started; "unknown" where the system does not say.
void td_weights_boot_id(char out[TD_BOOT_ID_MAX]);

#endif
