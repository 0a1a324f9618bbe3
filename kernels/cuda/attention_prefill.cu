#include "kernels/cuda/attention_prefill_kernels.h"

namespace tandem::cuda {

cudaError_t attention_prefill(const PrefillAttention& args, cudaStream_t stream) {
  if (args.tile_count == 0) return cudaSuccess;
  return prefill_wgmma_takes(args) ? attention_prefill_wgmma(args, stream)
                                   : attention_prefill_plain(args, stream);
}

}  // namespace tandem::cuda
