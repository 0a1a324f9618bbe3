#include "common/engine/cuda/cuda_ops.h"
#include "common/engine/cuda/supported_model.h"

namespace tandem::engine {

Result<std::unique_ptr<Ops>> create_cuda_ops(const CudaOptions&, const model::ModelConfig&) {
  return fail(ErrorCode::kUnsupported,
              "this build has no CUDA code: configure it with -DTANDEM_CUDA=ON (a toolkit comes "
              "with scripts/install-cuda.sh), or use the device cpu",
              "device");
}

// A build that runs none refuses the device itself.
Status check_supported(const CudaOptions&, const model::ModelConfig&) { return {}; }

}  // namespace tandem::engine
