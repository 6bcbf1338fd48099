// Copies between host arrays and device memory, converting to and from the backend's dtype.
#ifndef TD_WORKERS_MODEL_TRANSFER_H
#define TD_WORKERS_MODEL_TRANSFER_H

#include <stddef.h>

#include "workers/backend/backend.h"

// n contiguous elements; device memory holds be->dtype. double to float rounds to nearest.
void td_transfer_put_f32(struct td_backend *be, void *device, const float *host, size_t n);
void td_transfer_put_f64(struct td_backend *be, void *device, const double *host, size_t n);
void td_transfer_get_f32(struct td_backend *be, float *host, const void *device, size_t n);
void td_transfer_get_f64(struct td_backend *be, double *host, const void *device, size_t n);

// The address of element i of device memory.
void *td_transfer_at(const struct td_backend *be, const void *device, int64_t i);

#endif
