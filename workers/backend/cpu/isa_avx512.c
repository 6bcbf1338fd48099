// The kernels for AVX-512 F, DQ and VL; built with those instructions (CMakeLists.txt).
#include "workers/backend/cpu/kernels.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define TD_LANES 16
#define TD_ISA_NAME "avx512"
#include "workers/backend/cpu/kernels_gemm.h"
#include "workers/backend/cpu/kernels_rows.h"
#include "workers/backend/cpu/kernels_attn.h"
#include "workers/backend/cpu/kernels_head.h"
#include "workers/backend/cpu/kernels_table.h"

const struct td_kernels *td_kernels_avx512(void) {
    return &table;
}
#else
const struct td_kernels *td_kernels_avx512(void) {
    return NULL;
}
#endif
