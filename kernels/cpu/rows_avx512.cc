#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/rows_simd.h"

namespace tandem::cpu {

constexpr RowKernels kRowsAvx512 = kRows;

}  // namespace tandem::cpu
