// The kernels for any processor: vectors of 4, fused multiply-adds by fmaf.
#include "workers/backend/cpu/kernels.h"

#define TD_LANES 4
#define TD_ISA_NAME "scalar"
#include "workers/backend/cpu/kernels_gemm.h"
#include "workers/backend/cpu/kernels_rows.h"
#include "workers/backend/cpu/kernels_attn.h"
#include "workers/backend/cpu/kernels_head.h"
#include "workers/backend/cpu/kernels_table.h"

const struct td_kernels *td_kernels_scalar(void) {
    return &table;
}
