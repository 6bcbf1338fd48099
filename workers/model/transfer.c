// Host and device copies: see transfer.h. Conversions go through a small buffer on the stack, so
// nothing is allocated in a step.
#include "workers/model/transfer.h"

enum { PIECE = 2048 };

static void copy(struct td_backend *be, void *dst, const void *src, size_t bytes, bool to_device) {
    if (bytes > 0) {
        be->ops->copy(be, &(struct td_copy_args){.dst = dst,
                                                 .src = src,
                                                 .bytes = bytes,
                                                 .kind = to_device ? TD_COPY_H2D : TD_COPY_D2H});
    }
}

void *td_transfer_at(const struct td_backend *be, const void *device, int64_t i) {
    return (char *)(uintptr_t)device + i * (int64_t)td_dtype_size(be->dtype);
}

void td_transfer_put_f32(struct td_backend *be, void *device, const float *host, size_t n) {
    if (be->dtype == TD_F32) {
        copy(be, device, host, n * sizeof *host, true);
        return;
    }
    double piece[PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        size_t m = n - at < PIECE ? n - at : PIECE;
        for (size_t i = 0; i < m; i++) {
            piece[i] = host[at + i];
        }
        copy(be, td_transfer_at(be, device, (int64_t)at), piece, m * sizeof *piece, true);
    }
}

void td_transfer_put_f64(struct td_backend *be, void *device, const double *host, size_t n) {
    if (be->dtype == TD_F64) {
        copy(be, device, host, n * sizeof *host, true);
        return;
    }
    float piece[PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        size_t m = n - at < PIECE ? n - at : PIECE;
        for (size_t i = 0; i < m; i++) {
            piece[i] = (float)host[at + i];
        }
        copy(be, td_transfer_at(be, device, (int64_t)at), piece, m * sizeof *piece, true);
    }
}

void td_transfer_get_f32(struct td_backend *be, float *host, const void *device, size_t n) {
    if (be->dtype == TD_F32) {
        copy(be, host, device, n * sizeof *host, false);
        return;
    }
    double piece[PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        size_t m = n - at < PIECE ? n - at : PIECE;
        copy(be, piece, td_transfer_at(be, device, (int64_t)at), m * sizeof *piece, false);
        for (size_t i = 0; i < m; i++) {
            host[at + i] = (float)piece[i];
        }
    }
}

void td_transfer_get_f64(struct td_backend *be, double *host, const void *device, size_t n) {
    if (be->dtype == TD_F64) {
        copy(be, host, device, n * sizeof *host, false);
        return;
    }
    float piece[PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        size_t m = n - at < PIECE ? n - at : PIECE;
        copy(be, piece, td_transfer_at(be, device, (int64_t)at), m * sizeof *piece, false);
        for (size_t i = 0; i < m; i++) {
            host[at + i] = piece[i];
        }
    }
}
