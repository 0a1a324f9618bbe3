#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/transport/counters.h"
#include "common/transport/frames.h"
#include "common/transport/transport.h"

namespace tandem::transport {

// What the receiver tells the sender about a frame: an ack, or a reject with `reason`.
struct Answer {
  FrameOrigin origin;
  std::optional<Error> reason;  // empty: ack
  [[nodiscard]] Frame frame() const;
};

// Receiving half of every transport: decides which frame may be written where. The only code that
// writes into receive destinations, always under its mutex and after the payload's checksum held,
// so that close() is a barrier. Any thread; events are raised on the thread that calls deliver(),
// sweep() or fence(), outside the mutex.
class ReceiveTable {
 public:
  ReceiveTable(const TransportDeps& deps, AtomicCounters& counters);

  [[nodiscard]] Status open(ReceivePlan plan);
  void close(TransferId id);
  // Refuses every frame of this sender from now on; a barrier like close(), raises nothing.
  void shut_out(Generation sender);
  // shut_out(), and its open receives fail.
  void fence(Generation sender);
  // The connection to this sender broke: its open receives fail, but it may come back.
  void sender_lost(Generation sender, const Error& error);
  void sweep(TimePoint now);

  // Whether a frame with this header would be taken; lets a transport refuse before it moves the
  // payload. When not, `answer` is what to tell the sender, if anything, and the frame has been
  // counted and acted upon.
  struct Admission {
    bool wanted = false;
    std::optional<Answer> answer;
  };
  [[nodiscard]] Admission admit(const proto::KvFrameHeader& header);

  // A frame whose header was parsed.
  [[nodiscard]] std::optional<Answer> deliver(const proto::KvFrameHeader& header,
                                              std::span<const std::byte> payload);

  [[nodiscard]] size_t open_count() const;

 private:
  struct Receive {
    ReceivePlan plan;
    uint64_t geometry = 0;
    std::vector<bool> pages;  // [layer * plan.pages + page] received
    std::vector<bool> tails;  // [layer]
    size_t missing = 0;       // pages and tails
    std::optional<std::string> commit;
    TimePoint opened;
    TimePoint deadline;
    ReceiveStats stats;
  };
  // How a transfer ended, so that late frames are answered truthfully.
  struct Ended {
    bool complete = false;
    std::string why;
  };
  struct Outcome {
    std::optional<Answer> answer;
    std::optional<Error> failed;      // raise on_receive_failed
    std::optional<Receive> received;  // raise on_received
  };
  using Header = proto::KvFrameHeader;

  std::optional<Outcome> refuse(const Header& header);
  Outcome take(const Header& header, std::span<const std::byte> payload);
  Outcome fail_transfer(const Header& header, Error error, bool tell);
  Status write_pages(Receive& receive, const Header& header, std::span<const std::byte> payload);
  Status write_tail(Receive& receive, const Header& header, std::span<const std::byte> payload);
  Answer reject(const Header& header, Error reason) const;
  void remember(TransferId id, Ended ended);
  void raise(TransferId id, Outcome& outcome);
  void end_all(Generation sender, const Error& error);

  const Generation self_;
  const Clock& clock_;
  TransportEvents& events_;
  const size_t capacity_;
  AtomicCounters& counters_;

  mutable std::mutex mutex_;
  std::unordered_map<TransferId, Receive> open_;
  std::unordered_map<TransferId, Ended> ended_;
  std::deque<TransferId> ended_order_;
  std::unordered_set<Generation> fenced_;
  std::deque<Generation> fenced_order_;
};

}  // namespace tandem::transport
