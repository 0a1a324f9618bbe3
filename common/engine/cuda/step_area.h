#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/engine/cuda/arena.h"
#include "common/engine/ops.h"
#include "kernels/cuda/step.h"

namespace tandem::engine {

// How much of everything a step's description has room for.
struct StepCounts {
  uint32_t rows = 0;
  uint32_t sequences = 0;
  uint32_t outputs = 0;
  size_t blocks = 0;  // entries of all block tables together

  friend bool operator==(const StepCounts&, const StepCounts&) = default;
};

// Byte offsets of the parts of a description, each aligned to 16; what grows most comes last, so
// that a step copies only as much of it as it uses.
struct StepLayout {
  size_t tokens = 0;
  size_t positions = 0;
  size_t row_sequence = 0;
  size_t slots = 0;
  size_t outputs = 0;  // row of each output
  size_t blocks = 0;
  size_t bytes = 0;

  explicit StepLayout(const StepCounts& counts);
};

// What decode attention takes: sequences of at most `each` rows, while they have at most
// `together`. Beyond that, those of one row.
struct FewRows {
  uint32_t each = 1;
  uint32_t together = 0;
};

// Which slot each sequence takes: those that decode come first, so that either kind is one run of
// slots.
struct SlotOrder {
  std::vector<uint32_t> sequence;  // of each slot
  uint32_t decoding = 0;           // slots for decode attention
  bool several = false;            // some of these have more than one row

  explicit SlotOrder(const StepView& view, const FewRows& few = {});
};

// A step's description: filled on the host, then copied to the device at once. Where it lies stays
// the same for the engine's lifetime; where its parts lie follows from the counts alone. Device
// thread only; one step at a time.
class StepArea {
 public:
  [[nodiscard]] static Result<StepArea> create(DeviceArena& arena, size_t bytes);
  StepArea() = default;

  // Lays out a step of `counts`. Rows and slots past the view's are padding. kResourceExhausted
  // when the area is too small.
  [[nodiscard]] Status fill(const StepView& view, const SlotOrder& order,
                            std::span<const RowOutput> outputs, const StepCounts& counts);
  // Enqueues the copy; the host side stays untouched until the stream has passed it.
  [[nodiscard]] Status upload(const cuda::Stream& stream) const;

  // Host side; valid until the next fill().
  [[nodiscard]] std::span<const cuda::SequenceSlot> slots() const {
    return {host<cuda::SequenceSlot>(layout_.slots), counts_.sequences};
  }

  // Device side.
  [[nodiscard]] cuda::DeviceStep step() const;
  [[nodiscard]] const uint32_t* outputs() const { return device<uint32_t>(layout_.outputs); }
  [[nodiscard]] size_t bytes() const { return capacity_; }

 private:
  template <typename T>
  [[nodiscard]] T* host(size_t offset) const {
    return reinterpret_cast<T*>(host_.data() + offset);
  }
  template <typename T>
  [[nodiscard]] const T* device(size_t offset) const {
    return reinterpret_cast<const T*>(device_ + offset);
  }

  cuda::PinnedBuffer host_;
  std::byte* device_ = nullptr;
  size_t capacity_ = 0;

  StepCounts counts_;
  StepLayout layout_{StepCounts{}};
  size_t used_ = 0;  // bytes to copy
  uint32_t max_rows_ = 0;
  uint32_t max_context_ = 0;
};

}  // namespace tandem::engine
