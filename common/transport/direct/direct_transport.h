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
// `ways`: a transport that does not receive has no address(); neither may ask for the other's
// copier.
//
// `on_warning` is told on that thread what an operator should know. `side` is shared with other
// transports into the same pages; null: its own.
[[nodiscard]] Result<std::unique_ptr<ThreadedTransport>> create_direct_transport(
    std::unique_ptr<Fabric> fabric, const TransportDeps& deps,
    std::function<void(const std::string&)> on_warning = {},
    std::shared_ptr<ReceiveSide> side = nullptr, const DirectWays& ways = {});

// The same with a thread for what is sent and one for what is received, so that a process that does
// both moves as much each way as one that does one: a thread can gather, offer and launch some
// 400 GB/s. `create_fabric` makes a fabric of one kind for one way; asked for both before this
// returns, the way out first.
[[nodiscard]] Result<std::unique_ptr<Transport>> create_two_way_transport(
    const std::function<Result<std::unique_ptr<Fabric>>(const DirectWays&)>& create_fabric,
    const TransportDeps& deps, const std::function<void(const std::string&)>& on_warning = {});

}  // namespace tandem::transport
