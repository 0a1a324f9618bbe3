#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/kv/page_memory.h"
#include "common/node/page_mover.h"

namespace tandem::node {

// The thread that copies KV between a node's pools, one batch of pages after the other. It never
// holds the device thread or the control thread up. start() and stop() belong to one owner thread;
// submit() may come from any.
class MoverThread final : public PageMover {
 public:
  // Called on this thread with every result; posts to its owner and returns.
  using Sink = std::function<void(MoveResult)>;

  MoverThread(const Clock& clock, Sink sink);
  ~MoverThread() override;  // stops

  // `device` is the memory at whose side copies are slowest without a buffer of its own;
  // `least_staging` see page_copy.h.
  [[nodiscard]] Status start(kv::PageMemory& device, size_t least_staging);
  // Finishes the running batch, drops what is queued, joins. Idempotent.
  void stop();

  [[nodiscard]] bool submit(MoveJob job) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::node
