#pragma once

#include <type_traits>

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/attention_decode_math.cuh"
#include "kernels/cuda/kv_page.cuh"

// What the warps of paged decode attention share (attention_decode_paged.cuh says who does what),
// and the ring of pages that each walker keeps on their way.
namespace tandem::cuda::paged {

constexpr uint32_t kUnitRing = 32;
constexpr uint32_t kLookahead = 8;  // units whose pages may be on their way

// What a column sees.
struct Limits {
  uint32_t from;
  uint32_t end;
};

template <kv::KvFormat F, uint32_t kDim, uint32_t kTiles>
struct Config {
  static constexpr Coding kKey = key_coding(F);
  static constexpr Coding kValue = value_coding(F);
  static constexpr bool kExact = F == kv::KvFormat::kInt4;
  static constexpr uint32_t kHeadDim = kDim;
  static constexpr uint32_t kWarps =
      kDim > 128 || kTiles > 2 ? 4 : 8;  // walkers: as registers allow
  static constexpr uint32_t kThreads = (kWarps + 2) * kWarp;
  static constexpr uint32_t kColumns = kTiles * 8;
  static constexpr uint32_t kSteps = kDim / 16;
  // Pages that a walker takes at once: two hide each other's latencies where decoding them is the
  // work; bf16 pages leave too little room for stages and hardly need it.
  static constexpr uint32_t kTogether = F == kv::KvFormat::kBf16 || kTiles * kDim > 256 ? 1 : 2;
  using Key = Keys<kKey, kDim>;
  using Value = Values<kValue, kDim>;
  static constexpr uint32_t kPadded = kDim + 4;  // rows of the merge buffers fall on other banks
  static constexpr uint32_t kMostStages = 16;

  static constexpr uint32_t kQueries = 2;  // units whose queries are kept

  // Shared memory, in this order; the rings take what is left. [2] are buffers used in turn.
  static constexpr uint32_t kMergeAt = 0;  // [2][warps][8][padded]
  static constexpr uint32_t kSumsAt = kMergeAt + 2 * kWarps * 8 * kPadded * 4;  // [2][warps][8]
  static constexpr uint32_t kQueryAt =
      kSumsAt + 2 * kWarps * 8 * 8;  // [queries][tiles][steps][lanes]
  static constexpr uint32_t kLimitsAt = kQueryAt + kQueries * kTiles * kSteps * kWarp * 8;
  static constexpr uint32_t kFactorsAt = kLimitsAt + kQueries * kColumns * 8;
  static constexpr uint32_t kUnitsAt = kFactorsAt + kQueries * kColumns * 4;
  static constexpr uint32_t kBarriersAt = kUnitsAt + kUnitRing * sizeof(DecodeUnit);
  static constexpr uint32_t kBarriers = 4 + kQueries + kWarps * kMostStages;
  static constexpr uint32_t kFlagAt = kBarriersAt + kBarriers * 8;
  static constexpr uint32_t kExactAt = kFlagAt + 16;  // [2][2][16][kDim]
  static constexpr uint32_t kRingAt = kExactAt + (kExact ? 2 * 2 * kPageTokens * kDim * 2 : 0);
  static_assert(kRingAt % 16 == 0 && kUnitsAt % 16 == 0);

  // Pages of a unit that one walker takes.
  __device__ static uint32_t count_of(const DecodeUnit& unit, uint32_t warp) {
    return unit.pages > warp ? (unit.pages - warp + kWarps - 1) / kWarps : 0;
  }
};

// ---- barriers and copies ----

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(count));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// KV is read once a layer: it should not push activations and weights out of the L2.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_page(uint32_t to, uint64_t from, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// ---- shared memory ----

template <class C>
class Shared {
 public:
  __device__ Shared(const Args& args, std::byte* memory)
      : args_(args),
        memory_(memory),
        first_(args.ranges[blockIdx.x]),
        end_(args.ranges[blockIdx.x + 1]) {}

  template <typename T>
  __device__ T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }
  __device__ float* merge(uint32_t turn) const {
    return at<float>(C::kMergeAt) + turn * C::kWarps * 8 * C::kPadded;
  }
  // Maximum and sum of each walker and column.
  __device__ float2* sums(uint32_t turn) const {
    return at<float2>(C::kSumsAt) + turn * C::kWarps * 8;
  }
  __device__ uint2* queries(uint32_t parity) const {
    return at<uint2>(C::kQueryAt) + parity * (C::kColumns / 8) * C::kSteps * kWarp;
  }
  __device__ Limits* limits(uint32_t parity) const {
    return at<Limits>(C::kLimitsAt) + parity * C::kColumns;
  }
  __device__ float* factors(uint32_t parity) const {
    return at<float>(C::kFactorsAt) + parity * C::kColumns;
  }
  __device__ const DecodeUnit& unit(uint32_t u) const {
    return at<const DecodeUnit>(C::kUnitsAt)[u % kUnitRing];
  }
  __device__ uint64_t* merge_full() const { return at<uint64_t>(C::kBarriersAt); }
  __device__ uint64_t* merge_empty() const { return at<uint64_t>(C::kBarriersAt) + 2; }
  __device__ uint64_t* queries_full() const { return at<uint64_t>(C::kBarriersAt) + 4; }
  __device__ uint64_t* pages_full(uint32_t walker) const {
    return at<uint64_t>(C::kBarriersAt) + 4 + C::kQueries + walker * C::kMostStages;
  }
  __device__ uint32_t* flag() const { return at<uint32_t>(C::kFlagAt); }
  __device__ static uint32_t warp() { return threadIdx.x / kWarp; }
  __device__ static uint32_t lane() { return threadIdx.x % kWarp; }

  __device__ void start() const {
    for (uint32_t i = threadIdx.x; i < C::kBarriers; i += C::kThreads)
      barrier_init(at<uint64_t>(C::kBarriersAt) + i, i < 2 ? C::kWarps : 1);
    const uint32_t count = min(end_ - first_, kUnitRing) * kUnitWords;
    for (uint32_t i = threadIdx.x; i < count; i += C::kThreads) load_unit_word(first_, i);
    if (threadIdx.x == 0) *flag() = 0;
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  }

  // The ring of units moves on, unit u about to begin: nobody looks back at u-4 any more.
  __device__ void refresh_units(uint32_t u) const {
    const uint32_t next = u - 4 + kUnitRing;
    if (u - first_ >= 4 && next < end_ && lane() < kUnitWords) load_unit_word(next, lane());
  }

  __device__ Limits limits_of(const DecodeUnit& unit, uint32_t column) const {
    const uint32_t row = (unit.first_column + column) / args_.group;
    if (row >= unit.rows) return {0, 0};
    const uint32_t position = unit.start + row;
    const uint32_t from =
        args_.window == 0 || position < args_.window ? 0 : position + 1 - args_.window;
    return {from, C::kExact ? position / kPageTokens * kPageTokens : position + 1};
  }

  // Fragments of Q of tile n as K wants them, for this lane; `factor` undoes their scaling.
  template <class K>
  __device__ void load_query(const DecodeUnit& unit, uint32_t n, uint2 (&to)[C::kSteps],
                             float& factor) const {
    const uint32_t j = lane() % 4;
    const Bf16* q = query(unit, n * 8 + lane() / 4);
    uint32_t fragment[2 * C::kSteps];
#pragma unroll
    for (uint32_t c = 0; c < K::kChunks; ++c) {
      uint32_t words[K::kChannels / 2] = {};
      if (q != nullptr) {
#pragma unroll
        for (uint32_t i = 0; i < K::kChannels / 8; ++i) {
          const auto* from = reinterpret_cast<const std::byte*>(q + (c * 4 + j) * K::kChannels);
          const Chunk<16> eight(from + 16 * i);
#pragma unroll
          for (uint32_t w = 0; w < 4; ++w) words[4 * i + w] = eight.word[w];
        }
      }
#pragma unroll
      for (uint32_t r = 0; r < K::kChannels / 2; ++r) {
        const uint32_t a = K::channel(r, 0);
        const uint32_t b = K::channel(r, 1);
        fragment[c * (K::kChannels / 2) + r] = b == a + 1 ? words[a / 2]
                                               : a % 2 == 0
                                                   ? lower_halves(words[a / 2], words[b / 2])
                                                   : upper_halves(words[a / 2], words[b / 2]);
      }
    }
    factor = 1.0F;
    if constexpr (K::kMath == Math::kHalf) {
      factor = halve(fragment);
    } else if constexpr (std::is_same_v<K, typename C::Key> && C::kKey == Coding::kE4m3) {
      factor = kFp8Rest;
      rescale<Math::kBf16>(fragment, kFp8Lift);
    }
#pragma unroll
    for (uint32_t i = 0; i < C::kSteps; ++i) to[i] = {fragment[2 * i], fragment[2 * i + 1]};
  }

  const Args& args_;
  std::byte* memory_;
  uint32_t first_;  // unit of this block
  uint32_t end_;

 private:
  static constexpr uint32_t kUnitWords = sizeof(DecodeUnit) / sizeof(uint4);

  __device__ void load_unit_word(uint32_t first, uint32_t i) const {
    const uint32_t u = first + i / kUnitWords;
    at<uint4>(C::kUnitsAt)[u % kUnitRing * kUnitWords + i % kUnitWords] =
        reinterpret_cast<const uint4*>(args_.units + u)[i % kUnitWords];
  }

  // Query row of a column; null for columns beyond the last.
  __device__ const Bf16* query(const DecodeUnit& unit, uint32_t column) const {
    const uint32_t c = unit.first_column + column;
    const uint32_t row = c / args_.group;
    if (row >= unit.rows) return nullptr;
    return args_.qkv + uint64_t{unit.first_row + row} * args_.columns.row +
           (unit.kv_head * args_.group + c % args_.group) * C::kHeadDim;
  }

  template <Math M>
  __device__ static void rescale(uint32_t (&fragment)[2 * C::kSteps], float by) {
#pragma unroll
    for (uint32_t& two : fragment)
      two = pack<M>(__uint_as_float(two << 16) * by, __uint_as_float(two & 0xffff0000U) * by);
  }

  // bf16 to half, scaled by a power of two per column so that the largest lies in [4, 8): times the
  // largest key it still fits. Returns what undoes the scaling.
  __device__ static float halve(uint32_t (&fragment)[2 * C::kSteps]) {
    float top = 0.0F;
#pragma unroll
    for (const uint32_t two : fragment)
      top = fmaxf(
          top, fmaxf(fabsf(__uint_as_float(two << 16)), fabsf(__uint_as_float(two & 0xffff0000U))));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    const uint32_t exponent = min(max(__float_as_uint(top) >> 23, 20U), 240U);  // biased by 127
    rescale<Math::kHalf>(fragment, __uint_as_float((256U - exponent) << 23));
    return __uint_as_float((exponent - 2U) << 23);
  }
};

// ---- pages on their way ----

// Copies are issued in the order in which the walker will take the pages. Whole warps call.
template <class C>
class Ring {
 public:
  __device__ explicit Ring(const Shared<C>& shared)
      : shared_(shared),
        bytes_(shared.args_.layer.shape.head_bytes),
        stages_(shared.args_.stages),
        policy_(read_once_policy()),
        unit_(shared.first_) {
    memory_ = shared.template at<std::byte>(C::kRingAt) + shared.warp() * stages_ * bytes_;
    barriers_ = shared.pages_full(shared.warp());
    if (unit_ < shared_.end_) {
      open_unit();
      source_ = next_source_;
      prefetch();
    }
  }

  // Issues copies until all stages are taken, or the pages of nearby units are. `settled`: only
  // pages that no kernel of this step writes.
  __device__ __forceinline__ void fill(uint32_t current_unit, bool settled) {
    while (flying_ < stages_) {
      if (page_ == count_ && !advance(current_unit)) return;
      if (settled && (first_page_ + page_ * C::kWarps) >= settled_pages_) return;
      const uint64_t from = __shfl_sync(kAllLanes, source_, static_cast<int>(page_ % kWarp));
      if (shared_.lane() == 0)
        copy_page(shared_address(memory_) + next_ * bytes_, from, bytes_,
                  shared_address(barriers_) + next_ * 8, policy_);
      next_ = next_ + 1 == stages_ ? 0 : next_ + 1;
      ++flying_;
      if (++page_ % kWarp == 0 && page_ < count_) source_ = sources(shared_.unit(unit_), page_);
    }
  }

  // The oldest page under way, or the one after it, once it is there.
  __device__ __forceinline__ std::byte* take(uint32_t ahead) {
    const uint32_t stage = at_ + ahead < stages_ ? at_ + ahead : at_ + ahead - stages_;
    barrier_wait(barriers_ + stage, at_ + ahead < stages_ ? parity_ : parity_ ^ 1);
    return memory_ + stage * bytes_;
  }
  // The oldest stages may be written again.
  __device__ __forceinline__ void release(uint32_t count) {
    __syncwarp();
    flying_ -= count;
    at_ += count;
    if (at_ >= stages_) {
      at_ -= stages_;
      parity_ ^= 1;
    }
  }

 private:
  // Moves on to the next unit with pages for this walker.
  __device__ bool advance(uint32_t current_unit) {
    while (page_ == count_) {
      if (unit_ + 1 >= shared_.end_ || unit_ + 1 > current_unit + kLookahead) return false;
      ++unit_;
      source_ = next_source_;
      const DecodeUnit& unit = shared_.unit(unit_);
      page_ = 0;
      count_ = C::count_of(unit, shared_.warp());
      first_page_ = unit.first_page + shared_.warp();
      settled_pages_ = unit.start / kPageTokens;
      prefetch();
    }
    return true;
  }
  __device__ void open_unit() {
    const DecodeUnit& unit = shared_.unit(unit_);
    count_ = C::count_of(unit, shared_.warp());
    first_page_ = unit.first_page + shared_.warp();
    settled_pages_ = unit.start / kPageTokens;
    next_source_ = sources(unit, 0);
  }
  // Addresses of the next unit come while this one's pages do.
  __device__ void prefetch() {
    if (unit_ + 1 < shared_.end_) next_source_ = sources(shared_.unit(unit_ + 1), 0);
  }
  // Lane i gets the address of page first + i of those that this walker takes of a unit.
  __device__ uint64_t sources(const DecodeUnit& unit, uint32_t first) const {
    const uint32_t i = first + shared_.lane();
    if (i >= C::count_of(unit, shared_.warp())) return 0;
    const uint32_t block = shared_.args_.step.blocks[unit.blocks + shared_.warp() + i * C::kWarps];
    return reinterpret_cast<uint64_t>(shared_.args_.layer.head(block, unit.kv_head));
  }

  const Shared<C>& shared_;
  std::byte* memory_;
  uint64_t* barriers_;
  uint32_t bytes_;
  uint32_t stages_;
  uint64_t policy_;
  uint32_t unit_;
  uint32_t page_ = 0;
  uint32_t count_ = 0;
  uint32_t first_page_ = 0;
  uint32_t settled_pages_ = 0;
  uint64_t source_ = 0;
  uint64_t next_source_ = 0;
  uint32_t next_ = 0;
  uint32_t flying_ = 0;
  uint32_t at_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace tandem::cuda::paged
