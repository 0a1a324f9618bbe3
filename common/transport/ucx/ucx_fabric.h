#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/transport/device_transports.h"
#include "common/transport/direct/fabric.h"

namespace tandem::transport {

// Pages of a device by a UCX that knows the device's memory: gathered into a slot, sent as one
// tagged message (UCX takes its own way, a rendezvous over cuda_ipc between GPUs of one host),
// scattered and checked from a slot. UCX writes into slots of the transport only, never into pages,
// so what holds for every direct transport holds here. A slot whose receive has not ended when its
// connection goes is kept out of use for good.
//
// Processes of one host, since offers and answers go over direct's local socket.
struct UcxFabricOptions {
  std::string tls;  // UCX_TLS
  DirectWays ways = {};
  bool cuda = true;  // what kind of memory the slots are; false for tests without a card
  CopierPair copiers;
  // Called first on the transport's thread: makes the device current there, which UCX asks for.
  std::function<Status()> on_thread = {};
  // slot_bytes for messages to send, then as much for those to receive, as the ways want it. Lives
  // as long as the fabric.
  std::shared_ptr<std::byte> memory;
  size_t frame_bytes = size_t{16} << 20;    // what frames aim at
  size_t message_bytes = size_t{16} << 20;  // of several frames together, at most
  size_t slot_bytes = kUcxDeviceMemory.messages / 2;
};
[[nodiscard]] Result<std::unique_ptr<Fabric>> create_ucx_fabric(UcxFabricOptions options);

// Whether the UCX in use can send CUDA memory over these transports. An error: it finds none of
// them.
[[nodiscard]] Result<bool> ucx_knows_cuda(const std::string& tls);

}  // namespace tandem::transport
