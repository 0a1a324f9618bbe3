#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/net/http_message.h"
#include "common/obs/log.h"

namespace tandem {

class HttpExchange;
class IoThread;
class MetricsRegistry;

// The answer to one request. A cheap handle: copy it, keep it, use it from any thread. Either one
// respond(), or start_stream(), write()s and finish(). When the last handle goes away without an
// answer, the client gets a 500 (or, within a stream, a cut connection), so none ever waits for
// ever.
class HttpResponder {
 public:
  explicit HttpResponder(std::shared_ptr<HttpExchange> exchange);

  // False: the client is gone, or an answer was given already.
  bool respond(HttpResponse response) const;

  // Sends the head at once. The body is what write() brings; its length is open.
  bool start_stream(int status, std::string content_type, HttpHeaders headers = {}) const;
  // Queues a piece of the body. Pieces that wait are sent together. False: the client is gone, the
  // stream is not open, or more than kMaxQueuedBytes wait because the client does not read; the
  // piece is dropped then, so the caller must give up on this client.
  bool write(std::string piece) const;
  void finish() const;
  // Cuts the connection: the client sees that the stream is incomplete.
  void abort() const;

  // Called once, on the connection's thread, if the client leaves before the answer is complete (at
  // once, by this call, if it has left already). Not called after finish() or respond(). Replaces
  // an earlier one. It must not own a HttpResponder of this request, which would then never end.
  void on_disconnect(std::function<void(ClientLoss)> callback) const;
  [[nodiscard]] bool disconnected() const;

  // Runs `work` on the connection's thread, later; dropped if the server has stopped by then.
  void post(std::function<void()> work) const;

  static constexpr size_t kMaxQueuedBytes = 1u << 20;

 private:
  struct Token;  // its end is the end of the last handle
  std::shared_ptr<HttpExchange> exchange_;
  std::shared_ptr<Token> token_;
};

// Runs on the connection's thread and must not block.
using HttpHandler = std::function<void(HttpRequest, HttpResponder)>;

// Fewer cores than this are better left to one thread: each hand-over between threads costs a
// wake-up, and gains nothing where nodes or clients want the other core.
inline constexpr unsigned kCoresForHttpThreads = 4;

struct HttpServerDeps {
  const Clock& clock;
  Logger log;
  MetricsRegistry& metrics;
  // Told the status of each answer that the server gives without asking the handler (refusals, CORS
  // preflights), on any of its threads. May be empty.
  std::function<void(int status)> on_own_answer = {};
  // Where everything runs when the settings leave the number of threads open. The caller starts it,
  // and ends it between stop() and the server's destruction. May be null.
  IoThread* shared_loop = nullptr;
};

// An HTTP/1.1 server on its own threads, each with its own event loop, or on a loop that it shares
// with others; a connection stays on one.
// Parses and limits what comes in (headers, bodies, time, connections), answers bad requests itself
// in OpenAI's error shape, answers CORS preflights, adds CORS headers, and hands the rest to the
// handler.
//
// create() -> (running) -> drain() -> stop(), from any thread but the server's own (so never within
// a handler). What the handler refers to outlives the server.
//
// A client that shuts its sending side before its answer is complete counts as gone: it cannot be
// told from one that left, for which nobody should go on computing. It is told so (499), should it
// still read. An answer that is complete by then is delivered.
class HttpServer {
 public:
  // Errors as listen_on()'s (common/net/listen.h); kConfig for a bad certificate or key, named.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> create(const HttpSettings& settings,
                                                                  HttpHandler handler,
                                                                  HttpServerDeps deps);
  virtual ~HttpServer() = default;  // stop()

  [[nodiscard]] virtual uint16_t port() const = 0;
  // Takes no new connections, closes idle ones, and waits at most `timeout` for open requests; then
  // true if none is left.
  virtual bool drain(Duration timeout) = 0;
  // Cuts what is left and joins its own threads. Idempotent.
  virtual void stop() = 0;
};

}  // namespace tandem
