#pragma once

#include "kernels/cuda/attention_decode_shared.cuh"
#include "kernels/cuda/pipeline.cuh"

// How a walker of attention_decode_block.cuh gets its pages: a ring of stages that bulk copies fill
// in the order of its pages, of one unit after the other. Whole warps. Between two units the last
// kStateStages that were read hold the walker's result, so that many stay free of the next unit's
// pages until results are merged.
namespace tandem::cuda::decode {

template <class C>
class Feed : public BlockShared<C> {
 public:
  using Shared = BlockShared<C>;
  using Shared::args_;
  using Shared::barriers;
  using Shared::lane;
  using Shared::mine_;
  using Shared::record;
  using Shared::stage;
  using Shared::warp;

  __device__ Feed(const Args& args, std::byte* memory) : Shared(args, memory) {}

  // The block's first units, before the kernel's turn where no kernel of the step wrote pages.
  __device__ void begin_feed() {
    const uint32_t next = block_of(record(0), 0);
    if (mine_ > 1) next_blocks_ = block_of(record(1), 0);
    open(0, next);
    fill(0);
  }
  // Before the walk over unit k: its pages are on their way, or have been, and none of the unit's
  // behind it.
  __device__ void enter_unit(uint32_t k) {
    if (k > 0 && k + 1 < mine_) next_blocks_ = block_of(record(k + 1), 0);
    fill(k);
  }

  // The oldest copy under way, once it is there.
  __device__ __forceinline__ std::byte* take() const {
    barrier_wait(barriers() + at_, parity_);
    return stage(warp(), at_);
  }
  // Its stage may be written again; unit k is being walked.
  __device__ __forceinline__ void release(uint32_t k) {
    __syncwarp();
    ++free_;
    if (++at_ == C::kStages) {
      at_ = 0;
      parity_ ^= 1;
    }
    fill(k);
  }

  // Stage of part i of the walker's result.
  __device__ uint32_t state_stage(uint32_t i) const {
    const uint32_t at = at_ + C::kStages - 1 - i;
    return at >= C::kStages ? at - C::kStages : at;
  }

 private:
  // Lane i gets the block of page first + i of those that this walker takes of a unit.
  __device__ uint32_t block_of(const DecodeUnit& unit, uint32_t first) const {
    const uint32_t i = first + lane();
    if (i >= C::count_of(unit, warp())) return 0;
    return args_.step.blocks[unit.blocks + warp() + i * C::kWalkers];
  }
  __device__ const std::byte* address(const DecodeUnit& unit, uint32_t block) const {
    return args_.layer.head(block, unit.kv_head);
  }
  __device__ void open(uint32_t k, uint32_t blocks) {
    const DecodeUnit& unit = record(k);
    feeding_ = k;
    page_ = 0;
    left_ = C::count_of(unit, warp());
    from_ = address(unit, blocks);
  }
  // Issues copies until no more stages may be taken, or all pages of the unit that is walked and of
  // the one behind it are.
  __device__ __forceinline__ void fill(uint32_t walked) {
    while (free_ > (feeding_ > walked ? C::kStateStages : 0)) {
      if (left_ > 0) {
        issue();
        continue;
      }
      if (feeding_ > walked || feeding_ + 1 >= mine_) return;
      open(feeding_ + 1, next_blocks_);
    }
  }
  __device__ __forceinline__ void issue() {
    if (lane() == page_ % kWarp) {
      uint64_t* barrier = barriers() + next_;
      barrier_expect(barrier, C::kCopyBytes);
      const std::byte* from = from_ + side_ * C::kCopyBytes;
      if constexpr (C::kFewRows)  // other columns read it too
        bulk_load(stage(warp(), next_), from, C::kCopyBytes, barrier);
      else
        bulk_load(stage(warp(), next_), from, C::kCopyBytes, barrier, evict_first_policy());
    }
    next_ = next_ + 1 == C::kStages ? 0 : next_ + 1;
    --free_;
    if constexpr (C::kSides) {
      side_ ^= 1;
      if (side_ != 0) return;
    }
    --left_;
    if (++page_ % kWarp == 0 && left_ > 0) {
      const DecodeUnit& unit = record(feeding_);
      from_ = address(unit, block_of(unit, page_));
    }
  }

  const std::byte* from_ = nullptr;  // page page_ / 32 * 32 + lane
  uint32_t feeding_ = 0;             // unit whose pages are being fetched
  uint32_t page_ = 0;                // the next one
  uint32_t left_ = 0;                // pages of it not asked for
  uint32_t side_ = 0;
  uint32_t next_blocks_ = 0;  // of the first pages of the unit behind the walked one
  uint32_t free_ = C::kStages;
  uint32_t next_ = 0;  // stage to fill
  uint32_t at_ = 0;    // stage to read
  uint32_t parity_ = 0;
};

}  // namespace tandem::cuda::decode
