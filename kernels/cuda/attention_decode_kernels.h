#pragma once

#include "kernels/cuda/attention_decode.h"

// The variants behind attention_decode(), which chooses among them.
namespace tandem::cuda {

// Any head dim up to 256 and every format: a warp a query, plain arithmetic, no plan.
cudaError_t attention_decode_plain(const DeviceStep& step, const DeviceKv& kv,
                                   const DecodeAttention& task, cudaStream_t stream);

}  // namespace tandem::cuda
