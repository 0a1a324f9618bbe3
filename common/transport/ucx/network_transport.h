#pragma once

#include <memory>
#include <set>
#include <string>

#include "common/transport/threaded_transport.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::transport {

// The way to any host: UCX messages. Its address() is a whole UCX address (address.h) without a
// local part. `side` as in create_direct_transport.
class NetworkTransport : public ThreadedTransport {
 public:
  // Transports that UCX found here and may use, e.g. {"self", "tcp"}.
  [[nodiscard]] virtual const std::set<std::string>& available() const = 0;

 protected:
  using ThreadedTransport::ThreadedTransport;
};
[[nodiscard]] Result<std::unique_ptr<NetworkTransport>> create_network_transport(
    const UcxOptions& options, const TransportDeps& deps, std::shared_ptr<ReceiveSide> side);

}  // namespace tandem::transport
