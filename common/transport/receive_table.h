#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/transport/counters.h"
#include "common/transport/frames.h"
#include "common/transport/page_set.h"
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
// sweep() or end_shut_out(), outside the mutex.
class ReceiveTable {
 public:
  ReceiveTable(const TransportDeps& deps, AtomicCounters& counters);

  [[nodiscard]] Status open(ReceivePlan plan);
  void close(TransferId id);
  // Refuses every frame of this sender from now on; a barrier like close(), raises nothing.
  void shut_out(Generation sender);
  // Its open receives fail, unless it was readmitted since it was shut out.
  void end_shut_out(Generation sender);
  void readmit(Generation sender);
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

  // ---- for transports whose pages are copied in the background (cuda_ipc, nccl) ----
  // Returns when no copy that a begin() started is still writing. Called without the mutex, by any
  // thread, before a transfer with copies under way counts as closed or failed.
  void set_barrier(std::function<void()> drain) { drain_ = std::move(drain); }
  // A data or tail frame whose bytes can be had now: checks as deliver() does, then calls
  // start(to) under the mutex, once, with a destination for each page of the frame or, of a tail,
  // for each run (frames.h). `started` false: as in Admission.
  using Start = std::function<void(std::span<const std::span<std::byte>> to)>;
  struct Begun {
    bool started = false;
    std::optional<Answer> answer;
  };
  [[nodiscard]] Begun begin(const proto::KvFrameHeader& header, const Start& start);
  // The copies of a frame that began are done; an error fails its transfer.
  [[nodiscard]] std::optional<Answer> finish(const proto::KvFrameHeader& header, Status outcome);
  // What a frame of an open transfer carries does not hold: the transfer fails.
  [[nodiscard]] std::optional<Answer> break_off(const proto::KvFrameHeader& header, Error error);

  [[nodiscard]] size_t open_count() const;

 private:
  struct Receive {
    ReceivePlan plan;
    size_t in_flight = 0;  // frames begun and not finished
    uint64_t geometry = 0;
    PageSet pages;            // [layer * plan.pages + page] received
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
    bool writing = false;             // copies of the failed transfer may still be under way
  };
  using Header = proto::KvFrameHeader;

  std::optional<Outcome> refuse(const Header& header);
  Outcome take(const Header& header, std::span<const std::byte> payload);
  Outcome fail_transfer(const Header& header, Error error, bool tell);
  Outcome complete(const Header& header, Receive& receive);
  Result<std::vector<std::span<std::byte>>> destinations(Receive& receive, const Header& header);
  Status write(Receive& receive, const Header& header, std::span<const std::byte> payload);
  static void mark(Receive& receive, const Header& header);
  Answer reject(const Header& header, Error reason) const;
  void remember(TransferId id, Ended ended);
  void raise(TransferId id, Outcome& outcome);
  void end_all(Generation sender, const Error& error);

  const Generation self_;
  const Clock& clock_;
  TransportEvents& events_;
  const size_t capacity_;
  AtomicCounters& counters_;
  std::function<void()> drain_;

  mutable std::mutex mutex_;
  PageIo pages_;
  std::unordered_map<TransferId, Receive> open_;
  std::unordered_map<TransferId, Ended> ended_;
  std::deque<TransferId> ended_order_;
  std::unordered_set<Generation> fenced_;
  std::deque<Generation> fenced_order_;
};

}  // namespace tandem::transport
