#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/transport/frames.h"

namespace tandem::transport {

// A UCP context and worker: the only class that calls UCX. Single-threaded: every function and
// callback on the thread that created it. Frames go as one active message each, always eager: they
// arrive whole, in the callback, so that nothing outside ever writes into our memory later.
class UcxWorker {
 public:
  struct Options {
    std::string tls;  // UCX_TLS; see UcxOptions
  };
  using EndpointId = uint64_t;

  struct Callbacks {
    // A frame came; the frame returned, if any, goes back to its sender. Runs inside progress(). A
    // header that is not ours in form is passed on like any other.
    std::function<std::optional<Frame>(std::span<const std::byte> header,
                                       std::span<const std::byte> payload)>
        on_frame;
    // The endpoint is dead; nothing sent on it from now on arrives. Runs inside progress(); the
    // caller disconnects it later.
    std::function<void(EndpointId, std::string why)> on_endpoint_failed;
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
  // Transports that carry this endpoint's lanes; complete once the peer has answered.
  [[nodiscard]] std::set<std::string> lanes(EndpointId endpoint) const;

  // Keeps the frame until it was handed to the wire or lost; `done` says which.
  void send(EndpointId endpoint, Frame frame, std::function<void(bool ok)> done);
  // Sends that are not done, answers included.
  [[nodiscard]] size_t in_flight() const;

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
