#include "common/net/http_exchange.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/net/http_server.h"

namespace tandem {

void LoopGate::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (open_) boost::asio::post(executor_, std::move(work));
}

void LoopGate::close() {
  std::lock_guard lock(mutex_);
  open_ = false;
}

HttpExchange::HttpExchange(std::shared_ptr<LoopGate> gate, std::weak_ptr<ExchangeOwner> owner)
    : gate_(std::move(gate)), owner_(std::move(owner)) {}

void HttpExchange::wake_locked() {
  if (woken_) return;
  woken_ = true;
  gate_->post([owner = owner_] {
    if (const auto connection = owner.lock()) connection->wake();
  });
}

bool HttpExchange::respond(HttpResponse response) {
  std::function<void(ClientLoss)> dropped;  // destroyed outside the lock: it may own handles
  std::lock_guard lock(mutex_);
  if (gone_ || state_ != State::kOpen) return false;
  state_ = State::kFinished;
  work_.head = std::move(response);
  work_.finished = true;
  dropped = std::exchange(on_disconnect_, nullptr);
  wake_locked();
  return true;
}

bool HttpExchange::start_stream(int status, std::string content_type, HttpHeaders headers) {
  std::lock_guard lock(mutex_);
  if (gone_ || state_ != State::kOpen) return false;
  state_ = State::kStreaming;
  work_.head = HttpResponse{status, std::move(content_type), std::move(headers), {}};
  work_.streaming = true;
  wake_locked();
  return true;
}

bool HttpExchange::write(std::string piece, size_t max_queued) {
  std::lock_guard lock(mutex_);
  if (gone_ || state_ != State::kStreaming) return false;
  // One piece is always taken by an empty queue, however large.
  if (queued_bytes_ > 0 && queued_bytes_ + piece.size() > max_queued) return false;
  if (piece.empty()) return true;
  queued_bytes_ += piece.size();
  work_.pieces.push_back(std::move(piece));
  wake_locked();
  return true;
}

void HttpExchange::finish() {
  std::function<void(ClientLoss)> dropped;
  std::lock_guard lock(mutex_);
  if (gone_ || state_ != State::kStreaming) return;
  state_ = State::kFinished;
  work_.finished = true;
  dropped = std::exchange(on_disconnect_, nullptr);
  wake_locked();
}

void HttpExchange::abort() {
  std::function<void(ClientLoss)> dropped;
  std::lock_guard lock(mutex_);
  if (gone_ || state_ == State::kFinished) return;
  state_ = State::kFinished;
  work_.aborted = true;
  dropped = std::exchange(on_disconnect_, nullptr);
  wake_locked();
}

void HttpExchange::on_disconnect(std::function<void(ClientLoss)> callback) {
  std::function<void(ClientLoss)> old;
  ClientLoss why;
  {
    std::lock_guard lock(mutex_);
    if (!gone_) {
      if (state_ == State::kFinished) return;
      old = std::exchange(on_disconnect_, std::move(callback));
      return;
    }
    why = *gone_;
  }
  // Not posted: the loop may be gone as well.
  if (callback) callback(why);
}

bool HttpExchange::disconnected() const {
  std::lock_guard lock(mutex_);
  return gone_.has_value();
}

void HttpExchange::abandoned() {
  {
    std::lock_guard lock(mutex_);
    if (!gone_ && state_ == State::kOpen) work_.abandoned = true;
  }
  if (!respond(error_response(make_error(ErrorCode::kInternal, "the request was dropped"))))
    abort();
}

void HttpExchange::post(std::function<void()> work) { gate_->post(std::move(work)); }

HttpExchange::Work HttpExchange::take() {
  std::lock_guard lock(mutex_);
  woken_ = false;
  Work work = std::move(work_);
  work_ = {};
  return work;
}

void HttpExchange::written(size_t bytes) {
  std::lock_guard lock(mutex_);
  queued_bytes_ -= std::min(bytes, queued_bytes_);
}

bool HttpExchange::disconnect_unless_answered(ClientLoss why) { return disconnect(why, true); }
void HttpExchange::disconnect(ClientLoss why) { disconnect(why, false); }

bool HttpExchange::disconnect(ClientLoss why, bool unless_answered) {
  std::function<void(ClientLoss)> callback;
  {
    std::lock_guard lock(mutex_);
    if (unless_answered && state_ == State::kFinished) return false;
    if (gone_) return true;
    gone_ = why;
    work_ = {};
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback(why);
  return true;
}

struct HttpResponder::Token {
  explicit Token(std::shared_ptr<HttpExchange> e) : exchange(std::move(e)) {}
  ~Token() { exchange->abandoned(); }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  const std::shared_ptr<HttpExchange> exchange;
};

HttpResponder::HttpResponder(std::shared_ptr<HttpExchange> exchange)
    : exchange_(std::move(exchange)), token_(std::make_shared<Token>(exchange_)) {}

bool HttpResponder::respond(HttpResponse response) const {
  return exchange_->respond(std::move(response));
}
bool HttpResponder::start_stream(int status, std::string content_type, HttpHeaders headers) const {
  return exchange_->start_stream(status, std::move(content_type), std::move(headers));
}
bool HttpResponder::write(std::string piece) const {
  return exchange_->write(std::move(piece), kMaxQueuedBytes);
}
void HttpResponder::finish() const { exchange_->finish(); }
void HttpResponder::abort() const { exchange_->abort(); }
void HttpResponder::on_disconnect(std::function<void(ClientLoss)> callback) const {
  exchange_->on_disconnect(std::move(callback));
}
void HttpResponder::post(std::function<void()> work) const { exchange_->post(std::move(work)); }
bool HttpResponder::disconnected() const { return exchange_->disconnected(); }

}  // namespace tandem
