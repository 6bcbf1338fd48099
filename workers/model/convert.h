// float32 to and from the 16-bit formats of files.
#ifndef TD_WORKERS_MODEL_CONVERT_H
#define TD_WORKERS_MODEL_CONVERT_H

#include <stdint.h>

#include "workers/backend/backend.h"

// n elements of F32, BF16 or F16 (any alignment) as floats. Exact.
void td_convert_to_f32(enum td_dtype dtype, const void *in, int64_t n, float *out);
// Rounds to nearest even. Returns the index of the first element that is not finite afterwards
// (overflow included), or −1.
int64_t td_convert_from_f32(enum td_dtype dtype, const float *in, int64_t n, void *out);

#endif
