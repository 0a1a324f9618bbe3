#pragma once

#include "kernels/cuda/attention_prefill.h"

// The variants behind attention_prefill(), which chooses among them.
namespace tandem::cuda {

// Any head dim up to 256 and no alignment to speak of: a warp a query, plain arithmetic.
cudaError_t attention_prefill_plain(const PrefillAttention& args, cudaStream_t stream);

// TMA and wgmma (sm_90a).
bool prefill_wgmma_takes(const PrefillAttention& args);
cudaError_t attention_prefill_wgmma(const PrefillAttention& args, cudaStream_t stream);

}  // namespace tandem::cuda
