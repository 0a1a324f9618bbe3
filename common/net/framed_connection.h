#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/net/control_channel.h"
#include "common/net/frame_codec.h"
#include "common/obs/metrics.h"

namespace google::protobuf {
class MessageLite;
}

namespace tandem {

// Counted by both ends of the channel.
struct ControlMetrics {
  explicit ControlMetrics(MetricsRegistry& registry);
  Counter frames_in, frames_out, bytes_in, bytes_out;
  CounterFamily rejected;  // by reason: frame faults and what the sessions refuse
};

// One TCP connection that carries frames: reads, checks and hands out payloads in order; queues and
// writes; pings when idle; notices a dead, silent or stuck peer. Knows nothing of what the payloads
// mean. Lives on one loop's thread; keeps itself alive while operations are pending.
class FramedConnection : public std::enable_shared_from_this<FramedConnection> {
 public:
  struct Handlers {
    std::function<void(std::string_view payload)> on_payload;
    // Once, never from within a call to this object. `reason` names what ended the connection.
    std::function<void(const Error& reason)> on_closed;
  };

  // Frames are small and bounded until admit().
  static constexpr uint32_t kMaxStrangerFrame = 64u << 10;

  FramedConnection(boost::asio::ip::tcp::socket socket, Generation own,
                   const ControlOptions& options, const Clock& clock, ControlMetrics& metrics);

  void start(Handlers handlers);
  // From now on frames may be large, and silence rather than the handshake's time ends it.
  void admit();
  // False: closed, or the queue is full.
  bool send(const google::protobuf::MessageLite& message);
  // Ends it at once; on_closed follows. `label` is counted as a rejection unless empty.
  void close(Error reason, std::string_view label = {});
  // The same after what is queued has been written (or the handshake's time is over).
  void close_after_flush(Error reason);
  // From now on nothing is called any more.
  void detach_and_close();

  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] Generation peer_generation() const { return decoder_.generation(); }
  [[nodiscard]] const std::string& remote() const { return remote_; }

 private:
  void read();
  void on_read(size_t bytes);
  void on_read_error(const boost::system::error_code& error);
  bool enqueue(FrameKind kind, std::string_view payload);
  void write();
  void tick();
  void arm_tick();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  const Generation own_;
  const ControlOptions options_;
  const Clock& clock_;
  ControlMetrics& metrics_;
  const std::string remote_;
  Handlers handlers_;
  FrameDecoder decoder_{kMaxStrangerFrame};
  std::vector<char> read_buffer_;
  std::deque<std::string> queue_;     // whole frames, not yet being written
  std::vector<std::string> writing_;  // in the socket's hands
  size_t queued_bytes_ = 0;           // of both
  uint64_t next_sequence_ = 0;
  TimePoint started_;
  TimePoint last_received_;
  TimePoint last_sent_;      // queued, in fact
  TimePoint write_started_;  // of writing_
  bool admitted_ = false;
  bool closed_ = false;
  bool flushing_ = false;
  bool detached_ = false;
  Error flush_reason_;
};

}  // namespace tandem
