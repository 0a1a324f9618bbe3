#include "common/engine/cuda/cuda_ops.h"

namespace tandem::engine {

Result<std::unique_ptr<Ops>> create_cuda_ops(const CudaOptions&, const model::ModelConfig&) {
  return fail(ErrorCode::kUnsupported,
              "this build has no CUDA code: configure it with -DTANDEM_CUDA=ON (a toolkit comes "
              "with scripts/install-cuda.sh), or use the device cpu",
              "device");
}

}  // namespace tandem::engine
