#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/transport/direct/fabric.h"
#include "common/transport/threaded_transport.h"
#include "common/transport/transport.h"

namespace tandem::transport {

// A KV transport between processes of one host and user whose pages a Fabric moves: shm, cuda_ipc
// and nccl. Headers, offers and answers go over a local socket, and whatever the fabric, the
// receiver's copier is the only writer of the receiver's pages. Starts one thread, which owns the
// sockets and the fabric; it sleeps when nothing is under way.
//
// `on_warning` is told on that thread what an operator should know. `side` is shared with other
// transports into the same pages; null: its own.
[[nodiscard]] Result<std::unique_ptr<ThreadedTransport>> create_direct_transport(
    std::unique_ptr<Fabric> fabric, const TransportDeps& deps,
    std::function<void(const std::string&)> on_warning = {},
    std::shared_ptr<ReceiveSide> side = nullptr);

}  // namespace tandem::transport
