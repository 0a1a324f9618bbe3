#include "common/net/http_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <cstdio>

#include "common/config/units.h"
#include "common/net/http_connection_impl.h"
#include "common/net/listen.h"

namespace tandem {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 64u << 10;
// What a client may send ahead of its turn; beyond it we stop reading until the turn comes.
constexpr size_t kMaxPipelined = 64u << 10;
constexpr Duration kLinger = std::chrono::seconds(2);
constexpr size_t kMaxLingered = 64u << 20;
constexpr size_t kMergeBelow = 16u << 10;  // smaller pieces are copied together into one buffer
constexpr size_t kMaxGather = 64;

// Whether a request line has three words, so that the last one is a version, if a wrong one.
bool names_a_version(const boost::beast::flat_buffer& buffer) {
  const std::string_view bytes(static_cast<const char*>(buffer.data().data()), buffer.size());
  const std::string_view line = bytes.substr(0, bytes.find('\r'));
  return std::count(line.begin(), line.end(), ' ') == 2 &&
         line.find(" HTTP/") != std::string_view::npos;
}

std::string class_of(int status) { return std::to_string(status / 100) + "xx"; }

}  // namespace

template <typename Stream>
HttpConnection<Stream>::HttpConnection(Stream stream, HttpWorker& worker, HttpShared& shared)
    : stream_(std::move(stream)), worker_(worker), shared_(shared) {
  error_code error;
  const auto endpoint = socket().remote_endpoint(error);
  remote_ = error ? "unknown" : format_host_port(endpoint.address().to_string(), endpoint.port());
  prepare_client_socket(socket());
}

template <typename Stream>
tcp::socket& HttpConnection<Stream>::socket() {
  if constexpr (kTls) {
    return stream_.next_layer();
  } else {
    return stream_;
  }
}

template <typename Stream>
void HttpConnection<Stream>::set_phase(Phase phase, Duration limit) {
  phase_ = phase;
  has_deadline_ = true;
  deadline_ = shared_.clock.now() + limit;
}

template <typename Stream>
void HttpConnection<Stream>::set_phase(Phase phase) {
  phase_ = phase;
  has_deadline_ = false;
}

template <typename Stream>
void HttpConnection<Stream>::start() {
  // Whoever connects and says nothing gets no longer than for a request's head.
  if constexpr (kTls) {
    set_phase(Phase::kHandshake, shared_.settings.header_timeout);
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [self = this->shared_from_this()](const error_code& error) {
                              if (self->phase_ == Phase::kClosed) return;
                              if (error) {
                                self->shared_.rejected.with({"tls"}).add();
                                self->close();
                                return;
                              }
                              self->set_phase(Phase::kIdle, self->shared_.settings.header_timeout);
                              self->read();
                            });
  } else {
    set_phase(Phase::kIdle, shared_.settings.header_timeout);
    read();
  }
}

template <typename Stream>
void HttpConnection<Stream>::tick(TimePoint now) {
  if (write_pending_ && now >= write_deadline_) {
    shared_.rejected.with({"write_timeout"}).add();
    close(ClientLoss::kDoesNotRead);
    return;
  }
  if (!has_deadline_ || now < deadline_) return;
  switch (phase_) {
    case Phase::kHandshake:
    case Phase::kLingering:
      close();
      break;
    case Phase::kIdle:
      linger();
      break;
    case Phase::kHead:
    case Phase::kBody:
      refuse_timeout();
      break;
    case Phase::kHandling:
    case Phase::kRefusing:
    case Phase::kClosed:
      break;
  }
}

template <typename Stream>
void HttpConnection<Stream>::close_if_idle() {
  if (phase_ == Phase::kIdle && buffer_.size() == 0) linger();
}

template <typename Stream>
void HttpConnection<Stream>::cut() {
  close(ClientLoss::kCut);
}

template <typename Stream>
void HttpConnection<Stream>::close(ClientLoss why) {
  if (phase_ == Phase::kClosed) return;
  set_phase(Phase::kClosed);
  error_code ignored;
  socket().close(ignored);
  // Last: callbacks may do anything, and removal may end this object.
  const auto self = this->shared_from_this();
  const auto exchange = std::exchange(exchange_, nullptr);
  worker_.remove(self);
  shared_.remove();
  if (exchange) exchange->disconnect(why);
}

template <typename Stream>
void HttpConnection<Stream>::read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  size_t room = kReadBytes;
  if (phase_ == Phase::kHandling || phase_ == Phase::kRefusing) {
    if (buffer_.size() >= kMaxPipelined) return;
    room = std::min(room, kMaxPipelined - buffer_.size());
  }
  reading_ = true;
  if (input_ended_) {  // the socket tells it only once
    asio::post(stream_.get_executor(),
               [self = this->shared_from_this()] { self->on_read(asio::error::eof, 0); });
    return;
  }
  stream_.async_read_some(buffer_.prepare(room),
                          [self = this->shared_from_this()](const error_code& error, size_t bytes) {
                            self->on_read(error, bytes);
                          });
}

template <typename Stream>
void HttpConnection<Stream>::on_read(const error_code& error, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  buffer_.commit(bytes);
  if (error) {
    // In kLingering a cancelled read is our own doing (shut_tls).
    if (kTls && phase_ == Phase::kLingering && error == asio::error::operation_aborted) {
      shut_tls();
    } else if (error == asio::error::eof) {
      on_end_of_input();
    } else {
      close();
    }
    return;
  }
  advance();
}

// The client has left or has shut its sending side only; both look the same until one writes.
template <typename Stream>
void HttpConnection<Stream>::on_end_of_input() {
  input_ended_ = true;
  if (phase_ == Phase::kRefusing) return;
  if (phase_ != Phase::kHandling || exchange_ == nullptr) return close();
  // What is complete is written in any case; afterwards the next read ends here again.
  if (!exchange_->disconnect_unless_answered(ClientLoss::kLeft)) return;
  if (begun_) return close();
  exchange_ = nullptr;
  answer_alone(499, make_error(ErrorCode::kCancelled,
                               "the client shut its sending side before the answer was complete, "
                               "which counts as leaving: keep it open (nc: without -N)"));
}

template <typename Stream>
void HttpConnection<Stream>::advance() {
  switch (phase_) {
    case Phase::kHandshake:
    case Phase::kClosed:
      return;
    case Phase::kIdle:
      if (begin_request()) {
        parse();
      } else {
        read();
      }
      return;
    case Phase::kHead:
    case Phase::kBody:
      parse();
      return;
    case Phase::kHandling:
    case Phase::kRefusing:
      read();
      return;
    case Phase::kLingering:
      lingered_bytes_ += buffer_.size();
      buffer_.consume(buffer_.size());
      if (kTls) {
        shut_tls();
      } else if (lingered_bytes_ > kMaxLingered) {
        close();
      } else {
        read();
      }
      return;
  }
}

template <typename Stream>
bool HttpConnection<Stream>::begin_request() {
  // Empty lines between requests are forgiven (RFC 9112 section 2.2).
  const auto bytes = [this] {
    return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  };
  while (!bytes().empty() && (bytes().front() == '\r' || bytes().front() == '\n'))
    buffer_.consume(1);
  if (buffer_.size() == 0) return false;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(shared_.settings.max_header.bytes));
  parser_->body_limit(shared_.settings.max_body.bytes);
  request_ = {};
  request_.remote = remote_;
  request_.received = shared_.clock.now();
  request_id_.clear();
  method_.clear();
  cors_headers_.clear();
  keep_alive_ = false;  // until the head says otherwise
  http10_ = false;
  head_only_ = false;
  chunked_ = false;
  answered_ = false;
  begun_ = false;
  set_phase(Phase::kHead, shared_.settings.header_timeout);
  return true;
}

template <typename Stream>
void HttpConnection<Stream>::parse() {
  while (true) {
    error_code error;
    const size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error == http::error::need_more) {
      // The parser wants a whole head or chunk line in one piece; a longer one is over any limit.
      const size_t limit = shared_.settings.max_header.bytes + kReadBytes;
      if (buffer_.size() >= limit) {
        refuse_parse_error(phase_ == Phase::kHead ? http::error::header_limit
                                                  : http::error::bad_chunk_extension);
        return;
      }
      read();
      return;
    }
    if (error) {
      refuse_parse_error(error);
      return;
    }
    if (phase_ == Phase::kHead && parser_->is_header_done()) {
      if (!on_head()) return;
      parser_->eager(true);
      set_phase(Phase::kBody, shared_.settings.body_timeout);
    }
    if (parser_->is_done()) {
      dispatch();
      return;
    }
    if (used == 0) {
      read();
      return;
    }
  }
}

template <typename Stream>
bool HttpConnection<Stream>::on_head() {
  const auto& message = parser_->get();
  request_.method = std::string(message.method_string());
  method_ = request_.method;
  head_only_ = method_ == "HEAD";
  http10_ = message.version() < 11;
  for (const auto& field : message) {
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  const std::string* id = request_.header("x-request-id");
  request_id_ = id != nullptr && is_request_id(*id) ? *id : new_request_id();
  request_.request_id = request_id_;
  cors_headers_ = shared_.cors.headers_for(request_);
  if (const auto fault = framing_fault(request_, http10_)) {
    refuse(fault->status, make_error(ErrorCode::kInvalidArgument, fault->why), "bad_request");
    return false;
  }
  keep_alive_ = message.keep_alive();
  if (!parse_target({message.target().data(), message.target().size()}, request_)) {
    refuse(400, make_error(ErrorCode::kInvalidArgument, "the request target is malformed"),
           "bad_request");
    return false;
  }
  if (const std::string* expect = request_.header("expect"); expect != nullptr && !http10_) {
    if (!equal_ignoring_case(*expect, "100-continue")) {
      refuse(417,
             make_error(ErrorCode::kInvalidArgument, "the only expectation known is 100-continue"),
             "bad_request");
      return false;
    }
    if (buffer_.size() == 0 && !parser_->is_done()) {
      queue("HTTP/1.1 100 Continue\r\n\r\n");
      flush();
    }
  }
  return true;
}

template <typename Stream>
void HttpConnection<Stream>::dispatch() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  set_phase(Phase::kHandling);
  exchange_ = std::make_shared<HttpExchange>(worker_.gate(), this->weak_from_this());
  read();  // for the client's leaving, and for what it sends ahead
  HttpResponder responder(exchange_);
  if (shared_.cors.is_preflight(request_)) {
    HttpResponse response = shared_.cors.preflight_response(request_);
    shared_.answered_alone(response.status);
    responder.respond(std::move(response));
    return;
  }
  const HttpResponder spare = responder;
  try {
    shared_.handler(std::move(request_), std::move(responder));
  } catch (const std::exception& e) {
    shared_.log.error("http_handler_failed", {{"request_id", request_id_}, {"error", e.what()}});
    const HttpResponse response =
        error_response(make_error(ErrorCode::kInternal, "the request failed inside the server"));
    if (spare.respond(response)) {
      shared_.answered_alone(response.status);
    } else {
      spare.abort();
    }
  }
}

template <typename Stream>
void HttpConnection<Stream>::refuse(int status, const Error& error, std::string_view label) {
  shared_.rejected.with({label}).add();
  shared_.answered_alone(status);
  shared_.log.debug("http_refused",
                    {{"remote", remote_}, {"status", status}, {"error", error.detail}});
  answer_alone(status, error);
}

template <typename Stream>
void HttpConnection<Stream>::answer_alone(int status, const Error& error) {
  set_phase(Phase::kRefusing);
  keep_alive_ = false;
  HttpResponse response = error_response(error);
  response.status = status;
  queue_head(response, false);
  answered_ = true;
  flush();
}

template <typename Stream>
void HttpConnection<Stream>::refuse_timeout() {
  const bool head = phase_ == Phase::kHead;
  refuse(408,
         make_error(ErrorCode::kRequestTimeout,
                    std::string(head ? "the headers" : "the body") + " did not arrive within " +
                        format_duration(head ? shared_.settings.header_timeout
                                             : shared_.settings.body_timeout)),
         head ? "header_timeout" : "body_timeout");
}

template <typename Stream>
void HttpConnection<Stream>::refuse_parse_error(const error_code& error) {
  if (error == http::error::body_limit) {
    // Browsers show an error only with its CORS headers, and a Content-Length over the limit ends
    // the parse before on_head() has looked at the origin.
    if (request_.headers.empty()) {
      const auto origin = parser_->get()[http::field::origin];
      if (!origin.empty()) request_.headers.emplace_back("Origin", std::string(origin));
      cors_headers_ = shared_.cors.headers_for(request_);
    }
    refuse(413,
           make_error(ErrorCode::kPayloadTooLarge,
                      "the body is larger than " + format_size(shared_.settings.max_body)),
           "body_too_large");
  } else if (error == http::error::header_limit) {
    refuse(431,
           make_error(ErrorCode::kPayloadTooLarge, "the request line and headers are larger than " +
                                                       format_size(shared_.settings.max_header)),
           "header_too_large");
  } else if (error == http::error::bad_version && names_a_version(buffer_)) {
    refuse(505,
           make_error(ErrorCode::kInvalidArgument, "only HTTP/1.0 and HTTP/1.1 are spoken here"),
           "bad_request");
  } else {
    refuse(400,
           make_error(ErrorCode::kInvalidArgument, "not a valid HTTP request: " + error.message()),
           "bad_request");
  }
}

template <typename Stream>
void HttpConnection<Stream>::queue(std::string bytes) {
  if (!queue_.empty() && queue_.back().size() + bytes.size() <= kMergeBelow) {
    queue_.back() += bytes;
  } else {
    queue_.push_back(std::move(bytes));
  }
}

template <typename Stream>
void HttpConnection<Stream>::queue_head(const HttpResponse& response, bool streaming) {
  if (shared_.draining.load(std::memory_order_relaxed)) keep_alive_ = false;
  chunked_ = streaming && !http10_ && !head_only_;
  if (streaming && http10_)
    keep_alive_ = false;  // the end of the connection is the end of the body
  queue(build_head(response, cors_headers_,
                   {.chunked = streaming && !http10_,
                    .keep_alive = keep_alive_,
                    .http10 = http10_,
                    .has_length = !streaming,
                    .content_length = response.body.size(),
                    .date_line = worker_.date_line(),
                    .request_id = request_id_}));
  if (!streaming && !head_only_ && response.status != 204 && response.status != 304) {
    queue(response.body);
  }
  begun_ = true;
  shared_.requests.with({method_, class_of(response.status)}).add();
}

// One chunk for everything that has gathered since the last wake.
template <typename Stream>
void HttpConnection<Stream>::queue_pieces(std::vector<std::string>& pieces) {
  size_t total = 0;
  for (const auto& piece : pieces) total += piece.size();
  if (total == 0) return;
  piece_bytes_ += total;
  if (head_only_) return;
  if (chunked_) {
    char size[24];
    const int length = std::snprintf(size, sizeof size, "%zx\r\n", total);
    queue(std::string(size, static_cast<size_t>(length)));
  }
  for (auto& piece : pieces) queue(std::move(piece));
  if (chunked_) queue("\r\n");
}

template <typename Stream>
void HttpConnection<Stream>::wake() {
  if (phase_ != Phase::kHandling || !exchange_) return;
  HttpExchange::Work work = exchange_->take();
  if (work.aborted) {
    // Not an orderly end: the client must not take what it got for the whole.
    exchange_.reset();
    close();
    return;
  }
  if (work.head) {
    queue_head(*work.head, work.streaming);
    if (work.abandoned) shared_.answered_alone(work.head->status);
  }
  queue_pieces(work.pieces);
  if (work.finished && !answered_) {
    answered_ = true;
    if (chunked_) queue("0\r\n\r\n");
  }
  flush();
}

template <typename Stream>
void HttpConnection<Stream>::flush() {
  if (write_pending_ || phase_ == Phase::kClosed) return;
  if (writing_.empty()) {
    if (queue_.empty()) {
      // Nothing was queued for pieces that a HEAD request leaves out, but they count as written.
      if (piece_bytes_ > 0 && exchange_) exchange_->written(std::exchange(piece_bytes_, 0));
      if (answered_) on_answered();
      return;
    }
    writing_ = std::move(queue_);
    queue_.clear();
    writing_pieces_ = std::exchange(piece_bytes_, 0);
    write_index_ = 0;
    write_offset_ = 0;
  }
  std::vector<asio::const_buffer> buffers;
  for (size_t i = write_index_; i < writing_.size() && buffers.size() < kMaxGather; ++i) {
    const size_t skip = i == write_index_ ? write_offset_ : 0;
    buffers.push_back(asio::buffer(writing_[i].data() + skip, writing_[i].size() - skip));
  }
  write_pending_ = true;
  write_deadline_ = shared_.clock.now() + shared_.settings.write_timeout;
  stream_.async_write_some(
      buffers, [self = this->shared_from_this()](const error_code& error, size_t bytes) {
        self->on_write(error, bytes);
      });
}

template <typename Stream>
void HttpConnection<Stream>::on_write(const error_code& error, size_t bytes) {
  write_pending_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) {
    close();
    return;
  }
  while (write_index_ < writing_.size()) {
    const size_t left = writing_[write_index_].size() - write_offset_;
    if (bytes < left) {
      write_offset_ += bytes;
      break;
    }
    bytes -= left;
    ++write_index_;
    write_offset_ = 0;
  }
  if (write_index_ == writing_.size()) {
    writing_.clear();
    if (exchange_) exchange_->written(writing_pieces_);
    writing_pieces_ = 0;
  }
  flush();
}

template <typename Stream>
void HttpConnection<Stream>::on_answered() {
  answered_ = false;
  const bool refused = phase_ == Phase::kRefusing;
  exchange_.reset();
  if (refused || !keep_alive_) {
    linger();
    return;
  }
  set_phase(Phase::kIdle, shared_.settings.idle_timeout);
  if (shared_.draining.load(std::memory_order_relaxed) && buffer_.size() == 0) {
    linger();
    return;
  }
  advance();
}

template <typename Stream>
void HttpConnection<Stream>::linger() {
  set_phase(Phase::kLingering, kLinger);
  parser_.reset();
  buffer_.consume(buffer_.size());
  error_code ignored;
  if constexpr (kTls) {
    if (reading_) {
      socket().cancel(ignored);  // on_read goes on with shut_tls
    } else {
      shut_tls();
    }
  } else {
    socket().shutdown(tcp::socket::shutdown_send, ignored);
    read();
  }
}

template <typename Stream>
void HttpConnection<Stream>::shut_tls() {
  if constexpr (kTls) {
    stream_.async_shutdown([self = this->shared_from_this()](const error_code&) { self->close(); });
  }
}

template class HttpConnection<tcp::socket>;
template class HttpConnection<asio::ssl::stream<tcp::socket>>;

}  // namespace tandem
