#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/kv_page.cuh"

namespace tandem::cuda {

cudaError_t attention_decode(const DeviceStep& step, const DeviceKv& kv,
                             const DecodeAttention& task, cudaStream_t stream) {
  const uint32_t head_dim = task.shape.head_dim;
  if (step.max_rows > kDecodeMaxRows || head_dim == 0 || head_dim % 2 != 0 ||
      head_dim > kMaxHeadDim)
    return cudaErrorInvalidValue;
  if (step.rows == 0) return cudaSuccess;
  return attention_decode_plain(step, kv, task, stream);
}

}  // namespace tandem::cuda
