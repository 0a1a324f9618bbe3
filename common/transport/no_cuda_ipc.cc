#include "common/transport/device_transports.h"

namespace tandem::transport {

Result<std::unique_ptr<Transport>> create_cuda_ipc_transport(const DeviceTransportOptions&,
                                                             const TransportDeps&) {
  return fail(ErrorCode::kUnsupported, "cuda_ipc: this program was built without CUDA",
              "transport.kind");
}

Result<std::unique_ptr<Transport>> create_ucx_device_transport(const DeviceTransportOptions&,
                                                               const std::string&,
                                                               const TransportDeps&) {
  return fail(ErrorCode::kUnsupported, "this program was built without CUDA");
}

Status check_ucx_device(int, const std::string&) {
  return fail(ErrorCode::kUnsupported, "this program was built without CUDA");
}

}  // namespace tandem::transport
