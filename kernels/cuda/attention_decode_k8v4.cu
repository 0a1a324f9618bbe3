#include "kernels/cuda/attention_decode_block.cuh"

namespace tandem::cuda::decode {

cudaError_t attention_k8v4(const Args& args, uint32_t head_dim, uint32_t blocks,
                           cudaStream_t stream) {
  return launch_head_dim<kv::KvFormat::kK8V4, 64, 128, 256>(args, head_dim, blocks, stream);
}

}  // namespace tandem::cuda::decode
