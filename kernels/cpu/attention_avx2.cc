#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/attention_simd.h"

namespace tandem::cpu {

constexpr AttentionKernels kAttentionAvx2 = kAttention;

}  // namespace tandem::cpu
