#include "common/transport/device_transports.h"

namespace tandem::transport {

Result<std::unique_ptr<Transport>> create_nccl_transport(const DeviceTransportOptions&,
                                                         const TransportDeps&) {
  return fail(ErrorCode::kUnsupported, "nccl: this program was built without NCCL's headers",
              "transport.kind");
}

}  // namespace tandem::transport
