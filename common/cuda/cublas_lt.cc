#include "common/cuda/cublas_lt.h"

#include <cstdio>

namespace tandem::cuda {

void CublasLt::Traits::close(Handle owned) noexcept {
  const cublasStatus_t status = owned.destroy(owned.handle);
  if (status != CUBLAS_STATUS_SUCCESS)
    std::fprintf(stderr, "cuda: cublasLtDestroy: status %d\n", static_cast<int>(status));
}

Result<CublasLt> CublasLt::create(std::span<const std::string> folders) {
  CublasLt result;
  auto library = DynamicLibrary::open(kLibrary, folders);
  if (!library) {
    Error error = std::move(library).error();
    error.detail +=
        ". cuBLASLt comes with the CUDA toolkit, with PyTorch (site-packages/nvidia/cu13/lib) or "
        "with scripts/install-cuda.sh: name its folder in gpu.libraries (TANDEM_GPU_LIBRARIES) or "
        "LD_LIBRARY_PATH";
    return fail(std::move(error));
  }
  result.library_ = std::move(*library);
#define TANDEM_CUBLASLT_BIND(name) TANDEM_TRY(result.library_.bind(result.api_.name, #name));
  TANDEM_CUBLASLT_FUNCTIONS(TANDEM_CUBLASLT_BIND)
#undef TANDEM_CUBLASLT_BIND
  cublasLtHandle_t handle = nullptr;
  TANDEM_TRY(result.status(result.api_.cublasLtCreate(&handle), "cublasLtCreate"));
  result.owner_.reset({handle, result.api_.cublasLtDestroy});
  return result;
}

Status CublasLt::status(cublasStatus_t status, const char* call,
                        std::source_location location) const {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  const bool failed = status == CUBLAS_STATUS_EXECUTION_FAILED;
  const bool unsupported =
      status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
  const ErrorCode code = memory        ? ErrorCode::kResourceExhausted
                         : failed      ? ErrorCode::kDeviceLost
                         : unsupported ? ErrorCode::kUnsupported
                                       : ErrorCode::kInternal;
  return fail(code, std::string(call) + ": " + api_.cublasLtGetStatusString(status), {}, location);
}

}  // namespace tandem::cuda
