#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/receive_table.h"
#include "common/transport/send_table.h"
#include "common/transport/transport.h"

namespace tandem::transport {

// What a fault hook sees of a frame on its way, and what it may do to it.
struct FrameInfo {
  const std::string& from;  // address()
  const std::string& to;
  const proto::KvFrameHeader& header;
  size_t payload_bytes = 0;
};
struct FrameFault {
  bool drop = false;
  bool corrupt_header = false;
  bool corrupt_payload = false;  // one flipped bit in the middle
  uint32_t copies = 1;           // 2: a duplicate right behind
  Duration delay{};              // reordering: frames of different delays overtake each other
};
using FaultHook = std::function<FrameFault(const FrameInfo&)>;

class InprocTransport;

// Joins the transports of one process by memory, with the frames that a wire would carry. Nothing
// moves by itself: step() does one thing, so that a simulation with a ManualClock replays exactly.
// Real time wants an InprocPump. Any thread may call; frames are delivered and events raised by
// whoever calls step(), one at a time. Outlives its transports.
class InprocHub {
 public:
  explicit InprocHub(const Clock& clock);
  ~InprocHub();
  InprocHub(const InprocHub&) = delete;
  InprocHub& operator=(const InprocHub&) = delete;

  // `name` is the transport's address in this hub; a second holder of a name replaces a dead first.
  [[nodiscard]] std::unique_ptr<Transport> create(const std::string& name,
                                                  const TransportDeps& deps);

  // Sweeps every deadline, then does the next due action or delivers the next due frame. False when
  // nothing is due now.
  bool step();
  // Steps until nothing is due. Bounded: `limit` steps.
  size_t run(size_t limit = 1u << 20);
  // When the next delayed frame is due; empty when none is in flight.
  [[nodiscard]] std::optional<TimePoint> next_due() const;

  void set_fault_hook(FaultHook hook);
  // Delivers a frame of any content, as from a stranger: for tests.
  void inject(const std::string& name, Frame frame);
  // As if the peer's process had died: frames from and to it are lost, sends to it fail.
  void kill(const std::string& name);

 private:
  friend class InprocTransport;
  friend class InprocPump;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Steps a hub on its own thread until destroyed.
class InprocPump {
 public:
  explicit InprocPump(InprocHub& hub);
  ~InprocPump();
  InprocPump(const InprocPump&) = delete;
  InprocPump& operator=(const InprocPump&) = delete;

 private:
  std::jthread thread_;
};

// Faults by probability from a seed, for sims. Delays are up to `max_delay`.
struct RandomFaults {
  uint64_t seed = 1;
  double drop = 0;
  double duplicate = 0;
  double corrupt = 0;
  double delay = 0;
  Duration max_delay{};
};
[[nodiscard]] FaultHook random_faults(const RandomFaults& faults);

}  // namespace tandem::transport
