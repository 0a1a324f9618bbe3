#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/attention_simd.h"

namespace tandem::cpu {

constexpr AttentionKernels kAttentionAvx512 = kAttention;

}  // namespace tandem::cpu
