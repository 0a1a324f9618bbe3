#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/cuda/memory.h"
#include "common/engine/cuda/arena.h"
#include "common/engine/cuda/attention_layout.h"
#include "common/engine/cuda/step_area.h"
#include "common/engine/ops.h"
#include "kernels/cuda/kv_write.h"
#include "kernels/cuda/step.h"

namespace tandem::engine {

// Keys, values and attention of a step: sequences with one row have both in one kernel, which reads
// their pages where they are. Where some have a few rows, a kernel before it writes keys and
// values. Those of sequences with more are gathered into a workspace, as many sequences at a time
// as fit, for dense attention. Plans are made on the
// host once a step and lie at fixed addresses, so that a recorded step reads the next one's. Device
// thread; enqueues.
class CudaAttention {
 public:
  CudaAttention(DeviceArena& arena, const cuda::Stream& stream) : arena_(arena), stream_(stream) {}

  [[nodiscard]] Status prepare(const AttentionLimits& limits);
  // A new step: plans it and enqueues the plans' upload. Of `slots` (host), the first `decoding`
  // have one row or are padding; or, if they are `several`, up to kDecodeRows. `step` describes
  // them to the device.
  [[nodiscard]] Status begin(std::span<const cuda::SequenceSlot> slots, uint32_t decoding,
                             bool several, const cuda::DeviceStep& step);
  // Norms, RoPE and the KV of a layer (`task` without `kept`): at once, but where sequences that
  // decode have one row: of these by the run() that follows.
  [[nodiscard]] Status write(const cuda::DeviceKv& kv, const cuda::KvWrite& task);
  // Whether the step's KV is complete after run() only, not after write().
  [[nodiscard]] bool run_writes() const { return decoding_ > 0 && !several_; }
  [[nodiscard]] Status run(uint32_t layer, const AttentionShape& shape, const cuda::DeviceKv& kv,
                           Activation qkv, Activation out);

 private:
  // One window's decode plan on host and device.
  struct WindowPlan {
    uint32_t window = 0;
    cuda::PinnedBuffer host;  // ranges, then units; the device's lie alike
    std::byte* device = nullptr;
  };
  // Sequences whose keys and values are in the workspace together.
  struct Group {
    uint32_t first_slot = 0;
    uint32_t slots = 0;
    uint32_t first_tile = 0;
    uint32_t tiles = 0;
    uint32_t max_rows = 0;
    uint32_t max_context = 0;
  };

  [[nodiscard]] Status plan_decode(std::span<const cuda::SequenceSlot> slots);
  [[nodiscard]] uint32_t decode_blocks() const;
  [[nodiscard]] Status plan_prefill(std::span<const cuda::SequenceSlot> slots, uint32_t first);
  [[nodiscard]] Status run_decode(uint32_t layer, const AttentionShape& shape,
                                  const cuda::DeviceKv& kv, Activation qkv, Activation out);
  [[nodiscard]] Status run_group(const Group& group, uint32_t layer, const AttentionShape& shape,
                                 const cuda::DeviceKv& kv, Activation qkv, Activation out);

  DeviceArena& arena_;
  const cuda::Stream& stream_;
  AttentionLimits limits_;
  AttentionLayout layout_;

  cuda::DeviceStep step_;
  uint32_t decoding_ = 0;
  bool several_ = false;
  cuda::KvWrite written_;  // what write() was told of the layer
  std::vector<Group> groups_;

  std::vector<WindowPlan> windows_;
  cuda::DecodePlan scratch_plan_;
  std::byte* partials_ = nullptr;
  uint32_t* counters_ = nullptr;

  std::byte* keys_ = nullptr;
  std::byte* values_ = nullptr;
  std::byte* exact_keys_ = nullptr;
  std::byte* exact_values_ = nullptr;
  std::byte* kept_ = nullptr;
  cuda::PinnedBuffer prefill_host_;  // sequences, then tiles; the device's lie alike
  std::byte* prefill_device_ = nullptr;
  std::vector<cuda::PrefillTile> scratch_tiles_;
  uint32_t* prefill_counters_ = nullptr;
};

}  // namespace tandem::engine
