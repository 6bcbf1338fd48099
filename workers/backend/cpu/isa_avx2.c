// The kernels for AVX2 and FMA; built with those instructions (CMakeLists.txt).
#include "workers/backend/cpu/kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#define TD_LANES 8
#define TD_ISA_NAME "avx2"
#include "workers/backend/cpu/kernels_gemm.h"
#include "workers/backend/cpu/kernels_rows.h"
#include "workers/backend/cpu/kernels_attn.h"
#include "workers/backend/cpu/kernels_head.h"
#include "workers/backend/cpu/kernels_table.h"

const struct td_kernels *td_kernels_avx2(void) {
    return &table;
}
#else
const struct td_kernels *td_kernels_avx2(void) {
    return NULL;
}
#endif
