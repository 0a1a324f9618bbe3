#include "common/transport/device_transports.h"
#include "common/transport/nccl_peer.h"

namespace tandem::transport {

Result<std::unique_ptr<Transport>> create_nccl_transport(const DeviceTransportOptions&,
                                                         const TransportDeps&) {
  return fail(ErrorCode::kUnsupported, "nccl: this program was built without NCCL's headers",
              "transport.kind");
}

Result<std::string> nccl_peer_id(const std::vector<std::string>&) {
  return fail(ErrorCode::kUnsupported, "this program was built without NCCL's headers");
}

Result<NcclPeerRates> measure_nccl_peer(const NcclPeerTask&, const std::vector<std::string>&) {
  return fail(ErrorCode::kUnsupported, "this program was built without NCCL's headers");
}

}  // namespace tandem::transport
