#include "kernels/cuda/attention_decode_paged.cuh"

namespace tandem::cuda::paged {

cudaError_t attention_decode_fp8(const Args& args, uint32_t head_dim, uint32_t columns,
                                 uint32_t blocks, cudaStream_t stream) {
  constexpr kv::KvFormat kFormat = kv::KvFormat::kFp8E4M3;
  switch (head_dim) {
    case 64:
      return launch_tiles<kFormat, 64>(args, columns, blocks, stream);
    case 128:
      return launch_tiles<kFormat, 128>(args, columns, blocks, stream);
    case 256:
      return launch_tiles<kFormat, 256>(args, columns, blocks, stream);
    case 96:
      return launch_tiles<kFormat, 96>(args, columns, blocks, stream);
    case 192:
      return launch_tiles<kFormat, 192>(args, columns, blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace tandem::cuda::paged
