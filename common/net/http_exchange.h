#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/net/http_message.h"

namespace tandem {

// The way into a connection's loop for threads that may outlive it: once closed, work is dropped.
class LoopGate {
 public:
  explicit LoopGate(boost::asio::io_context::executor_type executor) : executor_(executor) {}
  void post(std::function<void()> work);
  void close();

 private:
  const boost::asio::io_context::executor_type executor_;
  std::mutex mutex_;
  bool open_ = true;  // under mutex_
};

// What an exchange needs of its connection; called on the connection's thread.
class ExchangeOwner {
 public:
  virtual ~ExchangeOwner() = default;
  virtual void wake() = 0;
};

// The meeting point of a request's handler (any thread) and its connection (its own thread).
class HttpExchange : public std::enable_shared_from_this<HttpExchange> {
 public:
  HttpExchange(std::shared_ptr<LoopGate> gate, std::weak_ptr<ExchangeOwner> owner);

  // Handler's side; see HttpResponder.
  bool respond(HttpResponse response);
  bool start_stream(int status, std::string content_type, HttpHeaders headers);
  bool write(std::string piece, size_t max_queued);
  void finish();
  void abort();
  void on_disconnect(std::function<void(ClientLoss)> callback);
  [[nodiscard]] bool disconnected() const;
  void abandoned();  // no handle is left
  void post(std::function<void()> work);

  // Connection's side.
  struct Work {
    std::optional<HttpResponse> head;  // once; its body is whole unless streaming
    bool streaming = false;
    std::vector<std::string> pieces;
    bool finished = false;
    bool aborted = false;
    bool abandoned = false;  // the handler gave no answer: `head` is not its own
  };
  Work take();
  void written(size_t bytes);  // of pieces
  // False, and nothing happens, where the answer is whole, if not yet written.
  bool disconnect_unless_answered(ClientLoss why);
  void disconnect(ClientLoss why);

 private:
  enum class State : uint8_t { kOpen, kStreaming, kFinished };
  void wake_locked();
  bool disconnect(ClientLoss why, bool unless_answered);

  const std::shared_ptr<LoopGate> gate_;
  const std::weak_ptr<ExchangeOwner> owner_;
  mutable std::mutex mutex_;
  // Everything below under mutex_.
  State state_ = State::kOpen;
  std::optional<ClientLoss> gone_;
  bool woken_ = false;  // a wake is on its way
  size_t queued_bytes_ = 0;
  Work work_;
  std::function<void(ClientLoss)> on_disconnect_;
};

}  // namespace tandem
