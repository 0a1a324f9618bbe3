#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/ops.h"
#include "common/kv/page_memory.h"

namespace tandem::node {

// One request's KV in one pool. The submitter holds the blocks until the move's result is back.
struct PageSet {
  engine::KvPages pages;
  kv::PageMemory* memory = nullptr;
  std::vector<BlockId> blocks;
  uint32_t tail = 0;  // slot, for layouts that need one
};

// Carries the KV of a request from one pool to another, which may lie in another memory and store
// another format.
struct MoveJob {
  uint64_t id = 0;
  PageSet from;
  PageSet to;
  uint32_t tokens = 0;                                 // leading positions whose KV stands
  uint32_t first_block = 0;                            // blocks before it are in place already
  std::shared_ptr<const std::atomic<bool>> cancelled;  // true: stop after the running batch
};

struct MoveResult {
  uint64_t id = 0;
  Status outcome;  // kCancelled when it was stopped before its end
  uint64_t bytes = 0;
  TimePoint started;
  TimePoint finished;
};

// Where moves run: a thread in a node, inside the event loop of a simulation. One after the other,
// in the order they came.
class PageMover {
 public:
  virtual ~PageMover() = default;
  // The result arrives through the owner's sink, never from inside this call. False (and no
  // result) when the queue is full or the mover has stopped.
  [[nodiscard]] virtual bool submit(MoveJob job) = 0;
};

}  // namespace tandem::node
