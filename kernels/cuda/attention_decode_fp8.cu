#include "kernels/cuda/attention_decode_block.cuh"

namespace tandem::cuda::decode {

cudaError_t attention_fp8(const Args& args, uint32_t head_dim, uint32_t blocks,
                          cudaStream_t stream) {
  return launch_head_dim<kv::KvFormat::kFp8E4M3, 64, 96, 128, 192, 256>(args, head_dim, blocks,
                                                                        stream);
}

}  // namespace tandem::cuda::decode
