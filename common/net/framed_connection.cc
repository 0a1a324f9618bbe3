#include "common/net/framed_connection.h"

#include <google/protobuf/message_lite.h>
#include <google/protobuf/stubs/common.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "common/config/units.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kFrameReadBytes = 64u << 10;
constexpr size_t kFrameGather = 64;     // buffers in one write
constexpr size_t kMaxWrite = 1u << 20;  // bytes after which one write is enough

// A peer's bad text would make protobuf write lines of its own to standard error, between the JSON
// of the log. The failed parse tells the same.
void quiet_protobuf() {
#if GOOGLE_PROTOBUF_VERSION < 4022000
  static const bool done = (google::protobuf::SetLogHandler(nullptr), true);
  (void)done;
#endif
}

std::string remote_name(const asio::ip::tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  return format_host_port(endpoint.address().to_string(), endpoint.port());
}

std::string describe_fault(FrameFault fault) {
  switch (fault) {
    case FrameFault::kMagic:
      return "it does not speak Tandem's control protocol";
    case FrameFault::kVersion:
      return "it uses another frame format; run the same release on both sides";
    case FrameFault::kKind:
      return "it sent a frame of an unknown kind";
    case FrameFault::kOversized:
      return "it sent a frame over the size limit";
    case FrameFault::kChecksum:
      return "it sent a damaged frame";
    case FrameFault::kSequence:
      return "it repeated or left out a frame";
    case FrameFault::kGeneration:
      return "it changed its generation within a connection";
    case FrameFault::kTruncated:
      return "it closed the connection within a frame";
  }
  return {};
}

}  // namespace

ControlMetrics::ControlMetrics(MetricsRegistry& registry)
    : frames_in(
          registry.counter("tandem_control_received_frames_total", "Control frames received")),
      frames_out(registry.counter("tandem_control_sent_frames_total", "Control frames sent")),
      bytes_in(registry.counter("tandem_control_received_bytes_total", "Control bytes received")),
      bytes_out(registry.counter("tandem_control_sent_bytes_total", "Control bytes sent")),
      rejected(registry.counters(
          "tandem_control_rejected_total",
          "Control connections ended for what the peer did, by reason",
          {Label{.name = "reason",
                 .values = {"bad_magic", "bad_version", "bad_kind", "oversized", "bad_checksum",
                            "bad_sequence", "bad_generation", "truncated", "bad_message",
                            "unexpected_message", "handshake_timeout", "silent", "stuck",
                            "unauthenticated", "refused", "too_many"}}})) {}

FramedConnection::FramedConnection(asio::ip::tcp::socket socket, Generation own,
                                   const ControlOptions& options, const Clock& clock,
                                   ControlMetrics& metrics)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      own_(own),
      options_(options),
      clock_(clock),
      metrics_(metrics),
      remote_(remote_name(socket_)),
      read_buffer_(kFrameReadBytes),
      started_(clock.now()),
      last_received_(started_),
      last_sent_(started_),
      write_started_(started_) {
  quiet_protobuf();
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

void FramedConnection::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  read();
  arm_tick();
}

void FramedConnection::admit() {
  admitted_ = true;
  last_received_ = clock_.now();
  decoder_.set_max_payload(options_.max_frame_bytes);
}

void FramedConnection::read() {
  socket_.async_read_some(asio::buffer(read_buffer_),
                          [self = shared_from_this()](const error_code& error, size_t bytes) {
                            if (self->closed_) return;
                            if (error) {
                              self->on_read_error(error);
                            } else {
                              self->on_read(bytes);
                            }
                          });
}

void FramedConnection::on_read_error(const error_code& error) {
  const bool gone = error == asio::error::eof || error == asio::error::connection_reset;
  if (gone && !decoder_.at_boundary() && !flushing_) {
    close(
        make_error(ErrorCode::kTransport, remote_ + ": " + describe_fault(FrameFault::kTruncated)),
        to_string(FrameFault::kTruncated));
  } else if (error == asio::error::eof) {
    close(flushing_ ? flush_reason_
                    : make_error(ErrorCode::kTransport, remote_ + " closed the connection"));
  } else {
    close(make_error(ErrorCode::kTransport, remote_ + ": " + error.message()));
  }
}

void FramedConnection::on_read(size_t bytes) {
  last_received_ = clock_.now();
  metrics_.bytes_in.add(static_cast<double>(bytes));
  // Once its fate is sealed, what a peer still sends is of no interest.
  if (!flushing_) {
    decoder_.feed({read_buffer_.data(), bytes});
    while (const auto frame = decoder_.next()) {
      metrics_.frames_in.add();
      if (frame->kind == FrameKind::kMessage && !detached_) {
        handlers_.on_payload(frame->payload);
      }
      if (closed_) return;
      if (flushing_) break;
    }
    if (const auto fault = decoder_.fault(); fault && !flushing_) {
      close(make_error(ErrorCode::kCorruptData, remote_ + ": " + describe_fault(*fault)),
            to_string(*fault));
      return;
    }
  }
  read();
}

bool FramedConnection::send(const google::protobuf::MessageLite& message) {
  if (closed_ || flushing_) return false;
  std::string payload;
  if (message.ByteSizeLong() > options_.max_frame_bytes || !message.SerializeToString(&payload)) {
    return false;
  }
  return enqueue(FrameKind::kMessage, payload);
}

bool FramedConnection::enqueue(FrameKind kind, std::string_view payload) {
  const size_t size = kFrameHeaderBytes + payload.size();
  if (queued_bytes_ + size > options_.max_queue_bytes) return false;
  // Small frames that wait share one buffer.
  constexpr size_t kShare = 16u << 10;
  if (queue_.empty() || queue_.back().size() + size > kShare) queue_.emplace_back();
  append_frame(queue_.back(), kind, next_sequence_++, own_, payload);
  queued_bytes_ += size;
  last_sent_ = clock_.now();
  metrics_.frames_out.add();
  if (writing_.empty()) {
    // Later, so that everything this turn of the loop sends goes out in one write.
    writing_.emplace_back();
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->writing_.clear();
      if (!self->closed_) self->write();
    });
  }
  return true;
}

void FramedConnection::write() {
  size_t bytes = 0;
  while (!queue_.empty() && writing_.size() < kFrameGather && bytes < kMaxWrite) {
    bytes += queue_.front().size();
    writing_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (writing_.empty()) {
    if (flushing_) {
      // The peer reads the last message and closes; its EOF or the tick ends this side.
      error_code ignored;
      socket_.shutdown(asio::socket_base::shutdown_send, ignored);
    }
    return;
  }
  write_started_ = clock_.now();
  std::vector<asio::const_buffer> buffers;
  for (const auto& piece : writing_) buffers.push_back(asio::buffer(piece));
  asio::async_write(
      socket_, buffers, [self = shared_from_this()](const error_code& error, size_t written) {
        if (self->closed_) return;
        if (error) {
          self->close(make_error(ErrorCode::kTransport, self->remote_ + ": " + error.message()));
          return;
        }
        self->metrics_.bytes_out.add(static_cast<double>(written));
        self->queued_bytes_ -= written;
        self->writing_.clear();
        self->write();
      });
}

void FramedConnection::arm_tick() {
  constexpr Duration kShortest = std::chrono::milliseconds(5);
  timer_.expires_after(
      std::max(kShortest, std::min(options_.peer_timeout, options_.handshake_timeout) / 4));
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->closed_) return;
    self->tick();
    if (!self->closed_) self->arm_tick();
  });
}

void FramedConnection::tick() {
  const TimePoint now = clock_.now();
  if ((!admitted_ || flushing_) && now - started_ > options_.handshake_timeout) {
    if (flushing_) {
      close(flush_reason_);
    } else {
      close(make_error(ErrorCode::kDeadlineExceeded,
                       remote_ + " did not finish the handshake within " +
                           format_duration(options_.handshake_timeout)),
            "handshake_timeout");
    }
    return;
  }
  if (!admitted_) return;
  if (now - last_received_ > options_.peer_timeout) {
    close(make_error(ErrorCode::kTransport,
                     remote_ + " has been silent for " + format_duration(options_.peer_timeout)),
          "silent");
    return;
  }
  if (!writing_.empty() && now - write_started_ > options_.peer_timeout) {
    close(make_error(ErrorCode::kTransport,
                     remote_ + " has taken nothing for " + format_duration(options_.peer_timeout)),
          "stuck");
    return;
  }
  if (now - last_sent_ >= options_.peer_timeout / 4) enqueue(FrameKind::kPing, {});
}

void FramedConnection::close_after_flush(Error reason) {
  if (closed_ || flushing_) return;
  flushing_ = true;
  flush_reason_ = std::move(reason);
  started_ = clock_.now();
  if (writing_.empty()) write();
}

void FramedConnection::close(Error reason, std::string_view label) {
  if (closed_) return;
  closed_ = true;
  if (!label.empty()) metrics_.rejected.with({label}).add();
  error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
  asio::post(socket_.get_executor(), [self = shared_from_this(), reason = std::move(reason)] {
    const Handlers handlers = std::move(self->handlers_);
    self->handlers_ = {};
    if (handlers.on_closed && !self->detached_) handlers.on_closed(reason);
  });
}

void FramedConnection::detach_and_close() {
  detached_ = true;  // the handlers themselves go later: one of them may be running
  close(make_error(ErrorCode::kCancelled, "closed"));
}

}  // namespace tandem
