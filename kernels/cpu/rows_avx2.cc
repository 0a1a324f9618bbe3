#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/rows_simd.h"

namespace tandem::cpu {

constexpr RowKernels kRowsAvx2 = kRows;

}  // namespace tandem::cpu
