#include "common/transport/nccl/nccl_api.h"

namespace tandem::transport {

Result<NcclApi> NcclApi::open(std::span<const std::string> folders) {
  NcclApi api;
  auto library = DynamicLibrary::open(kLibrary, folders);
  if (!library) {
    Error error = std::move(library).error();
    error.detail +=
        ". NCCL comes with PyTorch (site-packages/nvidia/nccl/lib), as libnccl2 or with "
        "scripts/install-cuda.sh: name its folder in gpu.libraries (TANDEM_GPU_LIBRARIES) or "
        "LD_LIBRARY_PATH, or set transport.kind to cuda_ipc or ucx";
    return fail(std::move(error));
  }
  api.library_ = std::move(*library);
#define TANDEM_NCCL_BIND(name) TANDEM_TRY(api.library_.bind(api.name, #name));
  TANDEM_NCCL_FUNCTIONS(TANDEM_NCCL_BIND)
#undef TANDEM_NCCL_BIND
  int version = 0;
  TANDEM_TRY(api.status(api.ncclGetVersion(&version), "ncclGetVersion", nullptr));
  api.version_ = std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                 std::to_string(version % 100);
  return api;
}

Status NcclApi::status(ncclResult_t result, const char* call, ncclComm_t comm) const {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  std::string text = std::string(call) + ": " + ncclGetErrorString(result);
  if (const char* more = ncclGetLastError(comm); more != nullptr && *more != '\0') {
    text += std::string(" (") + more + ")";
  }
  return fail(ErrorCode::kTransport, text);
}

}  // namespace tandem::transport
