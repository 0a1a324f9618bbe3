#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "common/base/result.h"

namespace tandem::transport {

// A UCP context and worker that move messages of host memory (for that of devices see
// ucx_fabric.h). Single-threaded:
// every function and callback on the thread that created it.
//
// Messages go eagerly and one way. UCX's active messages are not used although they fit: a first
// active message makes UCX connect back over an endpoint of its own, and UCX 1.13 aborts the
// process when that endpoint ends (its peer dies, or the worker is destroyed) before the peer has
// answered. Tagged messages connect nothing back, so that every endpoint here is one that connect()
// made. Who wants an answer says in the message where to.
class UcxWorker {
 public:
  struct Options {
    std::string tls;  // UCX_TLS; see UcxOptions
  };
  using EndpointId = uint64_t;
  // The most a message may hold.
  static constexpr size_t kMaxMessage = (16u << 20) + (16u << 10);
  // Messages up to this size arrive in one piece, without a copy in between.
  static constexpr size_t kWholeMessage = 60u << 10;

  struct Callbacks {
    // A message came; its bytes are valid for the call only. Runs inside progress(); may send.
    std::function<void(std::span<const std::byte> message)> on_message;
    // The endpoint is dead; nothing sent on it from now on arrives. Runs inside progress(); the
    // caller disconnects it later.
    std::function<void(EndpointId, std::string why)> on_endpoint_failed;
  };
  // A message to be. pack() writes its `bytes` bytes once UCX has room for them, inside send() or
  // progress(), or never.
  struct Outgoing {
    size_t bytes = 0;
    std::function<void(std::span<std::byte> to)> pack;
    std::function<void(bool ok)> done;  // handed to the wire, or lost; optional
  };

  [[nodiscard]] static Result<std::unique_ptr<UcxWorker>> create(const Options& options,
                                                                 Callbacks callbacks);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  [[nodiscard]] const std::string& address() const;  // UCX's own bytes
  [[nodiscard]] static std::string version();        // "1.13.1"
  // Transports that the context found on this box, e.g. {"posix", "self", "tcp"}.
  [[nodiscard]] const std::set<std::string>& available() const;

  // Connecting is asynchronous. `address` must come from another UcxWorker of a like version.
  [[nodiscard]] Result<EndpointId> connect(const std::string& address);
  // Drops what is still in flight; `done` callbacks of sends run first or inside progress().
  void disconnect(EndpointId endpoint);
  // Transports that carry this endpoint's lanes.
  [[nodiscard]] std::set<std::string> lanes(EndpointId endpoint) const;

  void send(EndpointId endpoint, Outgoing message);
  [[nodiscard]] size_t in_flight() const;  // sends that are not done

  // Runs callbacks; true if anything happened.
  bool progress();
  // True: nothing to do, and event_fd() becomes readable when there is. False: call progress()
  // again.
  [[nodiscard]] bool arm();
  [[nodiscard]] int event_fd() const;

 private:
  struct Impl;
  explicit UcxWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::transport
