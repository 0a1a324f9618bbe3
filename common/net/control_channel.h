#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/obs/log.h"

namespace tandem::control {
class Hello;
class ToNode;
class ToRouter;
class Welcome;
}  // namespace tandem::control

namespace tandem {

class IoThread;
class MetricsRegistry;

// One connection of a node, as the router sees it. Never used twice.
using SessionId = StrongId<struct SessionIdTag, uint64_t>;

struct ControlOptions {
  std::string shared_key;  // empty: no authentication
  Duration handshake_timeout = std::chrono::seconds(5);
  Duration peer_timeout = std::chrono::seconds(5);  // silence after which a peer is dead
  uint32_t max_frame_bytes = 16u << 20;
  uint32_t max_queue_bytes = 64u << 20;  // not yet taken by the socket, per connection
  uint32_t max_sessions = 1024;          // router: connections, admitted or not
};

// Both ends need these; all outlive them.
struct ControlDeps {
  IoThread& io;
  const Clock& clock;
  Logger log;
  MetricsRegistry& metrics;
};

// The router's end. Lives on `io`'s thread: every function is called and every callback made there
// (create() and destruction also before start() and after stop()).
//
// A connection is nothing but a stranger until its Hello came, in time, with the right protocol
// version, a good name, a generation and (with a shared key) the right proof; then `on_hello`
// decides. Anything else that comes before, and any frame that is garbage, over-long, out of order
// or does not parse, closes that connection, is counted by reason, and touches no other.
class ControlServer {
 public:
  struct Callbacks {
    // Admits or refuses a node; the answer is sent as it is (router_generation is filled in). A
    // refused node is disconnected after it got the answer. May close() other sessions.
    std::function<control::Welcome(SessionId, const control::Hello&, std::string_view remote)>
        on_hello;
    // Admitted sessions only, in order. Hello is never among the messages.
    std::function<void(SessionId, control::ToRouter&&)> on_message;
    // Admitted sessions only, once each, also after close(). Not during destruction.
    std::function<void(SessionId, const Error& reason)> on_closed;
  };

  // Listens; `port` 0 takes any free one. Errors as listen_on()'s (common/net/listen.h).
  [[nodiscard]] static Result<std::unique_ptr<ControlServer>> create(
      const std::string& host, uint16_t port, Generation router_generation, ControlOptions options,
      Callbacks callbacks, ControlDeps deps);
  virtual ~ControlServer() = default;

  [[nodiscard]] virtual uint16_t port() const = 0;
  // False: no such session, not admitted, or its queue is full (the caller decides what then).
  virtual bool send(SessionId session, const control::ToNode& message) = 0;
  // `on_closed` follows, later, on the same thread.
  virtual void close(SessionId session, std::string reason) = 0;
};

// A node's end: dials, introduces itself, and dials again with growing, jittered pauses whenever
// the connection ends. Lives on `io`'s thread like ControlServer.
class ControlClient {
 public:
  struct Refusal {
    std::string reason;    // the router's words where it was the router that refused
    bool lasting = false;  // this node and this router never come together
  };
  struct Callbacks {
    // A fresh Hello for each attempt; protocol_version, generation and authentication are filled
    // in.
    std::function<control::Hello()> make_hello;
    std::function<void(const control::Welcome&)> on_admitted;
    // An attempt ended before the router answered it; the next one comes by itself.
    std::function<void(const std::string& why)> on_unreachable = {};
    // It is tried again later, since the router may be replaced.
    std::function<void(const Refusal&)> on_refused;
    std::function<void(control::ToNode&&)> on_message;         // never Challenge or Welcome
    std::function<void(const Error& reason)> on_disconnected;  // after on_admitted only
  };

  // `address` is host:port. `generation` must not be 0.
  [[nodiscard]] static Result<std::unique_ptr<ControlClient>> create(const std::string& address,
                                                                     Generation generation,
                                                                     ControlOptions options,
                                                                     Callbacks callbacks,
                                                                     ControlDeps deps);
  virtual ~ControlClient() = default;

  // False: not admitted, or the queue is full.
  virtual bool send(const control::ToRouter& message) = 0;
  [[nodiscard]] virtual bool admitted() const = 0;
};

// A non-zero random number for this start of a process.
[[nodiscard]] Generation random_generation();

}  // namespace tandem
