#include "kernels/cuda/attention_decode_paged.cuh"

namespace tandem::cuda::paged {

cudaError_t attention_decode_k8v4(const Args& args, uint32_t head_dim, uint32_t columns,
                                  uint32_t blocks, cudaStream_t stream) {
  return launch_head_dim<kv::KvFormat::kK8V4, 64, 128, 256>(args, head_dim, columns, blocks,
                                                            stream);
}

}  // namespace tandem::cuda::paged
