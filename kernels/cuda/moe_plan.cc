#include <algorithm>

#include "kernels/cuda/moe.h"

namespace tandem::cuda {
namespace {

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Hands out consecutive pieces of memory; with null memory it only measures.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <typename T>
  void take(T*& to, size_t count) {
    to = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += aligned(count * sizeof(T));
  }
  [[nodiscard]] size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

MoeBuffers carve(const MoeShapes& shapes, uint32_t rows, Carver& carver) {
  const size_t hidden = static_cast<size_t>(shapes.hidden);
  const size_t members = size_t{rows} * shapes.experts_per_token;
  MoeBuffers b;
  carver.take(b.normed, rows * hidden);
  carver.take(b.logits, size_t{rows} * shapes.experts);
  carver.take(b.chosen, members);
  carver.take(b.weights, members);
  carver.take(b.places, members);
  carver.take(b.member_row, members);
  carver.take(b.tiles, moe_max_tiles(shapes, rows));
  carver.take(b.tile_count, 1);
  carver.take(b.inner, members * static_cast<size_t>(shapes.intermediate));
  carver.take(b.results, members * hidden);
  return b;
}

}  // namespace

bool moe_takes(const MoeShapes& shapes) {
  const uint32_t k = shapes.experts_per_token;
  return shapes.experts > 0 && shapes.experts <= kMaxExperts && k > 0 &&
         k <= std::min(kMaxExpertsPerToken, shapes.experts) && shapes.hidden <= kMaxMoeHidden &&
         shapes.intermediate <= kMaxExpertSize && shapes.hidden % kMoeSizes == 0 &&
         shapes.intermediate % kMoeSizes == 0;
}

// Every expert may have one tile that is not full.
size_t moe_max_tiles(const MoeShapes& shapes, uint32_t rows) {
  const size_t members = size_t{rows} * shapes.experts_per_token;
  return members / kMoeTileRows + std::min<size_t>(shapes.experts, members);
}

size_t moe_buffer_bytes(const MoeShapes& shapes, uint32_t max_rows) {
  Carver carver(nullptr);
  (void)carve(shapes, max_rows, carver);
  return carver.used();
}

MoeBuffers moe_buffers(const MoeShapes& shapes, uint32_t max_rows, std::byte* memory) {
  Carver carver(memory);
  return carve(shapes, max_rows, carver);
}

}  // namespace tandem::cuda
