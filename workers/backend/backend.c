// What all backends share: sizes, views, release.
#include "workers/backend/backend.h"

size_t td_dtype_size(enum td_dtype dtype) {
    return dtype == TD_F64 ? 8 : dtype == TD_F32 ? 4 : 2;
}

struct td_tensor td_tensor_of(const struct td_backend *be, void *p, int64_t rows, int64_t cols) {
    return (struct td_tensor){.p = p, .dtype = be->dtype, .rows = rows, .cols = cols, .ld = cols};
}

void td_backend_free(struct td_backend *be) {
    if (be) {
        be->ops->free(be);
    }
}
