#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/node/kv_store.h"
#include "common/node/task.h"
#include "decode_node/batch_policy.h"

namespace tandem::decode {

enum class Phase : uint8_t {
  kReserved,    // blocks leased to a prefill node
  kWaiting,     // wants blocks, then a prefill here: new, or preempted
  kPrefilling,  // has blocks, more than one token left to compute, or the first token not yet drawn
  kReady,       // exactly its last token is to be computed: the decode queue and the running batch
  kMoving,      // ready, but its KV is on the way to the other lane
};
inline constexpr size_t kPhases = 5;

enum class LaneId : uint8_t { kDevice, kTail };

// The way of a request from its lane to the other one. Both sides' blocks are held until it ends.
struct Move {
  uint64_t id = 0;
  LaneId to = LaneId::kTail;
  kv::BlockTable kv;  // there
  std::shared_ptr<std::atomic<bool>> cancelled;
  TimePoint began;
};

// One request on a decode node. Control thread only.
struct Sequence {
  node::Task task;
  Phase phase = Phase::kWaiting;
  TransferId transfer;   // 0: prefilled here from the start
  Generation writer;     // of the prefill node, while reserved
  uint64_t session = 0;  // router session it came in
  uint64_t arrival = 0;  // order of arrival

  LaneId lane = LaneId::kDevice;  // whose pool `kv` is of
  std::optional<Move> move;       // until its result is back
  bool stays = false;             // a move failed: it is not tried again

  kv::BlockTable kv;       // while reserved, Reservations has it
  uint32_t computed = 0;   // leading tokens whose KV stands
  uint32_t step_rows = 0;  // in the running step
  uint32_t prompt_cached = 0;
  bool in_step = false;   // the device may read and write its blocks
  bool dead = false;      // goes as soon as no step uses it
  bool ok = false;        // ended with its whole answer
  bool alone = false;     // was in a step that failed: tries again by itself
  bool drawn = false;     // has its first token: later prefills only rebuild KV
  bool reported = false;  // the router has had the first run of a local prefill

  TimePoint reserved_at;
  TimePoint lease_end;
  TimePoint ready_since;  // or since it last was in a step
  QueueAge age;
  Duration waited{};  // all of it, for the metric
  std::vector<control::Token> scores;

  [[nodiscard]] uint32_t length() const { return static_cast<uint32_t>(task.tokens.size()); }
  [[nodiscard]] uint32_t remaining() const { return length() - computed; }
  [[nodiscard]] uint32_t generated() const { return static_cast<uint32_t>(task.answer_tokens()); }
};

}  // namespace tandem::decode
