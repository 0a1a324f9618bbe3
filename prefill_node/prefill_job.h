#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/engine/engine.h"
#include "common/node/handover.h"
#include "common/node/kv_store.h"
#include "common/node/task.h"
#include "common/transport/transport.h"

namespace tandem::prefill {

// What the device thread and the control thread share about one transfer. `closed` is set by the
// control thread when nothing more may be posted; the rest is the device thread's during a step and
// the control thread's after that step's result.
struct SendGate {
  std::atomic<bool> closed{false};
  std::optional<Error> error;
  uint32_t layers_posted = 0;  // of the running chunk; a chunk that is tried again skips them
};

enum class JobPhase : uint8_t {
  kQueued,
  kComputing,
  kSending,  // computed; the transport still reads its pages
};

// One prompt on a prefill node. Control thread only.
struct Job {
  node::Task task;
  TransferId transfer;   // 0: no hand-over
  uint64_t session = 0;  // router session it came in
  std::string address;   // the decode node's
  Generation decode_generation;
  uint32_t decode_cached = 0;  // tokens that need not be sent

  JobPhase phase = JobPhase::kQueued;
  kv::BlockTable kv;
  uint32_t reused = 0;  // leading tokens that came from the prefix index
  node::Handover handover;
  uint32_t prompt = 0;       // tokens to compute KV for
  uint32_t computed = 0;     // of them done
  uint32_t posted = 0;       // pages per layer handed to the transport by finished steps
  uint32_t step_rows = 0;    // in the running step, or in the failed one that is to be tried again
  uint32_t step_posted = 0;  // `posted` once the running step succeeds
  std::shared_ptr<SendGate> gate;  // while a transfer is open

  bool in_step = false;  // the device may read and write its blocks
  bool sending = false;  // a transfer is open: exactly one event will end it
  bool dead = false;     // cancelled or failed; waits for the two above
  bool ok = false;       // ended well
  bool alone = false;    // was in a step that failed: tries that chunk again by itself
  TimePoint received;
  TimePoint deadline;
  TimePoint started;
  TimePoint compute_end;
  std::vector<control::Token> scores;

  [[nodiscard]] uint32_t remaining() const { return prompt - computed; }
  [[nodiscard]] bool releasable() const { return dead && !in_step && !sending; }
};

// Pages of one job that a step completes.
struct PushPlan {
  TransferId transfer;
  std::shared_ptr<SendGate> gate;
  uint32_t first_page = 0;       // within the transfer
  std::vector<BlockId> blocks;   // one per page
  std::optional<uint32_t> tail;  // tail slot, with the last chunk of an open page
};

// The layer hook of one step: posts every plan's pages of a layer as soon as that layer's KV
// stands. Runs on the device thread; `transport` and the pages outlive the step.
[[nodiscard]] engine::LayerHook make_push_hook(transport::Transport& transport,
                                               const engine::KvPages& pages,
                                               std::vector<PushPlan> plans);

}  // namespace tandem::prefill
