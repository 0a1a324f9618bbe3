#pragma once

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/attention_decode_math.cuh"
#include "kernels/cuda/attention_decode_state.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/pipeline.cuh"

// What the warps of attention_decode_block.cuh share, and what all of them do: shared memory,
// records of units, results.
namespace tandem::cuda::decode {

// Two blocks a multiprocessor, or one of these beside one of linear_small.cu; where too little
// would be on its way, all that one block can have.
constexpr uint32_t kSharedBytes = 113 * 1024;
constexpr uint32_t kMostSharedBytes = 227 * 1024;

// One head's keys or values of a page.
constexpr uint32_t section_bytes(Coding coding, uint32_t head_dim) {
  const uint32_t elements = kPageTokens * head_dim * bits_of(coding) / 8;
  switch (coding) {
    case Coding::kF32:
    case Coding::kBf16:
      return elements;
    case Coding::kInt8:
    case Coding::kE4m3:
      return elements + kPageTokens * 2;
    case Coding::kFourBitRows:
      return elements + kPageTokens * kv::v4_groups(head_dim) * 4;
    case Coding::kFourBitChannels:
      return elements + head_dim * 4;
  }
  return elements;
}

// `kFew`: slots of several rows, whose keys and values kv_write() has written.
template <kv::KvFormat F, uint32_t kDim, bool kFew>
struct BlockConfig {
  static constexpr Coding kKey = key_coding(F);
  static constexpr Coding kValue = value_coding(F);
  static constexpr bool kExact = F == kv::KvFormat::kInt4;
  static constexpr uint32_t kWalkers = decode_walkers(kDim);
  static constexpr uint32_t kThreads = (kWalkers + 1) * kWarp;
  static constexpr uint32_t kHeadDim = kDim;
  static constexpr uint32_t kColumns = kDecodeColumns;
  static constexpr bool kFewRows = kFew;
  static constexpr uint32_t kSteps = kDim / 16;
  using Key = Keys<kKey, kDim>;
  using Value = Values<kValue, kDim>;
  static constexpr uint32_t kPitch = kDim + 8;  // of query rows; 8 rows lie in different banks
  static constexpr uint32_t kFours = kDim / 4;
  static constexpr uint32_t kRecords = 4;

  // A copy is a page, or, where few pages fit, one side of it.
  static constexpr bool kSides = F == kv::KvFormat::kBf16;
  static constexpr uint32_t kKeyBytes = section_bytes(kKey, kDim);
  static constexpr uint32_t kHeadBytes = kKeyBytes + section_bytes(kValue, kDim);
  static constexpr uint32_t kCopyBytes = kSides ? kKeyBytes : kHeadBytes;
  // A walker's result, float32, fits into this many stages; each takes some of the columns.
  static constexpr uint32_t kStateStages = (kColumns * kDim * 4 + kCopyBytes - 1) / kCopyBytes;
  static constexpr uint32_t kStateColumns = kColumns / kStateStages;
  static_assert(kColumns % kStateStages == 0 && kStateColumns * kDim * 4 <= kCopyBytes);

  // Shared memory.
  static constexpr uint32_t kSumsAt = 0;                                // [walkers][8]
  static constexpr uint32_t kRowsAt = kSumsAt + kWalkers * 8 * 8;       // [2][8][pitch] bf16
  static constexpr uint32_t kScratchAt = kRowsAt + 2 * 8 * kPitch * 2;  // [warps][dim]
  // The step's key and value as the pool has them: elements, scales, minima; [2][2].
  static constexpr uint32_t kFreshAt = kScratchAt + (kWalkers + 1) * kDim * 4;
  static constexpr uint32_t kFreshBytes = kDim * 2 + 32;
  static constexpr uint32_t kRecordsAt = kFreshAt + 2 * 2 * kFreshBytes;
  static constexpr uint32_t kFactorsAt = kRecordsAt + kRecords * sizeof(DecodeUnit);  // [8][splits]
  static constexpr uint32_t kStatesAt =
      kFactorsAt + kColumns * (kDecodeMostSplits + 3) / 4 * 4 * 4;  // [walkers][state stages]
  static constexpr uint32_t kFlagsAt = kStatesAt + (kWalkers * kStateStages + 3) / 4 * 16;  // [2]
  static constexpr uint32_t kBarriersAt = kFlagsAt + 16;
  static constexpr uint32_t kMostStages = 16;
  static constexpr uint32_t kMostBarriers = kWalkers * kMostStages + 1;
  static constexpr uint32_t kExactBytes = 2 * kPageTokens * kDim * 2;  // of one page
  static constexpr uint32_t kExactAt = (kBarriersAt + kMostBarriers * 8 + 127) / 128 * 128;
  static constexpr uint32_t kRingAt = kExactAt + (kExact ? kExactBytes : 0);
  static_assert(kRowsAt % 16 == 0 && kScratchAt % 16 == 0 && kRecordsAt % 16 == 0 &&
                kStatesAt % 16 == 0 && kCopyBytes % 16 == 0);

  // Stages of each walker.
  static constexpr uint32_t stages_in(uint32_t bytes) {
    const uint32_t stages = (bytes - kRingAt) / (kWalkers * kCopyBytes);
    return stages < kMostStages ? stages : kMostStages;
  }
  static constexpr uint32_t kFewestStages = kStateStages + 1;
  static constexpr uint32_t kStages =
      stages_in(stages_in(kSharedBytes) < kFewestStages ? kMostSharedBytes : kSharedBytes);
  static_assert(kStages >= kFewestStages);
  static constexpr uint32_t kBarriers = kWalkers * kStages + 1;
  static constexpr uint32_t kBytes = kRingAt + kWalkers * kStages * kCopyBytes;

  __device__ static uint32_t count_of(const DecodeUnit& unit, uint32_t warp) {
    return unit.pages > warp ? (unit.pages - warp + kWalkers - 1) / kWalkers : 0;
  }
  // Where a walker's result has a channel of a column: spread over the banks.
  __device__ static uint32_t state_index(uint32_t column, uint32_t channel) {
    return column % kStateColumns * kDim + (channel ^ (column / 2 % 4 * 8));
  }
};

template <class Config>
class BlockShared {
 public:
  using C = Config;
  static constexpr uint32_t kDim = C::kHeadDim;

  __device__ BlockShared(const Args& args, std::byte* memory)
      : args_(args),
        memory_(memory),
        first_(args.ranges[blockIdx.x]),
        mine_(args.ranges[blockIdx.x + 1] - first_) {}

  template <typename T>
  __device__ T* at(uint32_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }
  __device__ static uint32_t warp() { return threadIdx.x / kWarp; }
  __device__ static uint32_t lane() { return threadIdx.x % kWarp; }
  __device__ static bool is_walker() { return warp() < C::kWalkers; }
  __device__ const DecodeUnit& record(uint32_t k) const {
    return at<const DecodeUnit>(C::kRecordsAt)[k % C::kRecords];
  }
  __device__ Bf16* rows(uint32_t parity) const {
    return at<Bf16>(C::kRowsAt) + parity * 8 * C::kPitch;
  }
  // Key (0) or value (1) of the step, of unit k.
  __device__ RowPlace fresh(uint32_t k, uint32_t side) const {
    std::byte* row = at<std::byte>(C::kFreshAt + (k % 2 * 2 + side) * C::kFreshBytes);
    auto* scales = reinterpret_cast<uint16_t*>(row + kDim * 2);
    return {row, scales, scales + 8};
  }
  __device__ uint64_t* barriers() const {
    return at<uint64_t>(C::kBarriersAt) + warp() * C::kStages;
  }
  __device__ uint64_t* exact_barrier() const {
    return at<uint64_t>(C::kBarriersAt) + C::kWalkers * C::kStages;
  }
  __device__ std::byte* stage(uint32_t walker, uint32_t i) const {
    return memory_ + C::kRingAt + (walker * C::kStages + i) * C::kCopyBytes;
  }
  // Which stages have the parts of a walker's result.
  __device__ uint32_t* states(uint32_t walker) const {
    return at<uint32_t>(C::kStatesAt) + walker * C::kStateStages;
  }
  __device__ uint32_t* flags() const { return at<uint32_t>(C::kFlagsAt); }
  __device__ static bool same_queries(const DecodeUnit& a, const DecodeUnit& b) {
    return a.row == b.row && a.kv_head == b.kv_head && a.first_column == b.first_column;
  }
  // Has the last pages of its columns, the step's own position among them.
  __device__ static bool owns_last(const DecodeUnit& unit) {
    return !C::kFewRows && unit.split + 1 == unit.splits;
  }
  // Of several units with the last pages of a head, the one that writes.
  __device__ static bool writes(const DecodeUnit& unit) {
    return owns_last(unit) && unit.first_column == 0;
  }
  __device__ static bool fills(const DecodeUnit& unit) {
    return unit.start % kPageTokens == kPageTokens - 1;
  }

  // ---- start ----

  static constexpr uint32_t kRecordWords = sizeof(DecodeUnit) / sizeof(uint4);

  __device__ void begin() {
    for (uint32_t i = threadIdx.x; i < C::kBarriers; i += C::kThreads)
      barrier_init(at<uint64_t>(C::kBarriersAt) + i, 1);
    if (threadIdx.x < 2 * kRecordWords) {
      const uint32_t k = threadIdx.x / kRecordWords;
      if (k < mine_) store_record_word(k, threadIdx.x % kRecordWords);
    }
    barrier_init_fence();
    __syncthreads();
  }
  __device__ void store_record_word(uint32_t k, uint32_t word) const {
    at<uint4>(C::kRecordsAt)[k % C::kRecords * kRecordWords + word] =
        reinterpret_cast<const uint4*>(args_.units + first_ + k)[word];
  }
  __device__ void load_record(uint32_t k) const {
    if (lane() < kRecordWords) store_record_word(k, lane());
  }

  // ---- results ----

  __device__ float2* sums() const { return at<float2>(C::kSumsAt); }

  __device__ uint32_t columns_of(const DecodeUnit& unit) const {
    const uint32_t all = C::kFewRows ? unit.rows * args_.group : args_.group;
    return min(all - unit.first_column, C::kColumns);
  }
  // Row of a unit's column, counted from the unit's, and its head in the group.
  __device__ uint32_t row_of(const DecodeUnit& unit, uint32_t column) const {
    return C::kFewRows ? (unit.first_column + column) / args_.group : 0;
  }
  __device__ uint32_t head_of(const DecodeUnit& unit, uint32_t column) const {
    return unit.first_column + column - row_of(unit, column) * args_.group;
  }

  // Four channels of one column a thread at a time.
  __device__ void merge_walkers(const DecodeUnit& unit) const {
    const uint32_t items = columns_of(unit) * C::kFours;
    for (uint32_t i = threadIdx.x; i < items; i += C::kThreads) {
      const uint32_t column = i / C::kFours;
      const uint32_t four = i % C::kFours * 4;
      Merge merge;
#pragma unroll
      for (uint32_t w = 0; w < C::kWalkers; ++w)
        merge.max = fmaxf(merge.max, sums()[w * 8 + column].x);
#pragma unroll
      for (uint32_t w = 0; w < C::kWalkers; ++w)
        merge.add(sums()[w * 8 + column],
                  *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(stage(
                                                       w, states(w)[column / C::kStateColumns])) +
                                                   C::state_index(column, four)));
      if (unit.splits == 1) {
        const float by = 1.0F / merge.sum;
        write_out(unit, column, four,
                  {merge.acc.x * by, merge.acc.y * by, merge.acc.z * by, merge.acc.w * by});
      } else {
        float* to = partial(unit.partial + unit.split);
        *reinterpret_cast<float4*>(to + column * kDim + four) = merge.acc;
        if (four == 0)
          reinterpret_cast<float2*>(to + C::kColumns * kDim)[column] = {merge.max, merge.sum};
      }
    }
  }

  // By the helper, a barrier after the results of unit k were written: the last split to come has
  // them all merged, at the block's next barrier.
  __device__ void count(uint32_t k) const {
    const DecodeUnit& unit = record(k);
    if (lane() != 0) return;
    uint32_t last = 0;
    if (unit.splits > 1) {
      uint32_t* counter = args_.counters + unit.counter;
      uint32_t before;
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(counter)
                   : "memory");
      last = before + 1 == unit.splits ? 1 : 0;
      if (last != 0) *counter = 0;
    }
    flags()[k % 2] = last;
  }

  __device__ float* partial(uint32_t index) const {
    return args_.partials + uint64_t{index} * C::kColumns * (kDim + 2);
  }

  // By the whole block. What is furthest away is asked for first.
  __device__ void merge_splits(const DecodeUnit& unit) const {
    constexpr uint32_t kBatch = 8;  // loads under way together
    const uint32_t items = columns_of(unit) * C::kFours;
    float4 acc[kBatch];
    const auto load = [&](uint32_t i, uint32_t first) {
#pragma unroll
      for (uint32_t b = 0; b < kBatch; ++b)
        acc[b] =
            i < items && first + b < unit.splits
                ? __ldcg(reinterpret_cast<const float4*>(partial(unit.partial + first + b) +
                                                         i / C::kFours * kDim + i % C::kFours * 4))
                : float4{0.0F, 0.0F, 0.0F, 0.0F};
    };
    load(threadIdx.x, 0);
    split_factors(unit);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < items; i += C::kThreads) {
      if (i != threadIdx.x) load(i, 0);
      const float* factors = factors_of(i / C::kFours);
      float4 sum = {0.0F, 0.0F, 0.0F, 0.0F};
      for (uint32_t s = 0; s < unit.splits; s += kBatch) {
        if (s > 0) load(i, s);
#pragma unroll
        for (uint32_t b = 0; b < kBatch; ++b) {
          const float f = s + b < unit.splits ? factors[s + b] : 0.0F;
          sum.x += f * acc[b].x;
          sum.y += f * acc[b].y;
          sum.z += f * acc[b].z;
          sum.w += f * acc[b].w;
        }
      }
      write_out(unit, i / C::kFours, i % C::kFours * 4, sum);
    }
    __syncthreads();  // before the factors change
  }
  __device__ float* factors_of(uint32_t column) const {
    return at<float>(C::kFactorsAt) + column * ((kDecodeMostSplits + 3) / 4 * 4);
  }
  // What the results of a unit's splits are multiplied by, a column a warp at a time.
  __device__ void split_factors(const DecodeUnit& unit) const {
    for (uint32_t column = warp(); column < columns_of(unit); column += C::kWalkers + 1) {
      constexpr uint32_t kRounds = (kDecodeMostSplits + kWarp - 1) / kWarp;
      float2 part[kRounds];
      float max = kNoMaximum;
#pragma unroll
      for (uint32_t r = 0; r < kRounds; ++r) {
        const uint32_t s = r * kWarp + lane();
        part[r] = s < unit.splits ? __ldcg(reinterpret_cast<const float2*>(
                                               partial(unit.partial + s) + C::kColumns * kDim) +
                                           column)
                                  : float2{kNoMaximum, 0.0F};
        max = fmaxf(max, part[r].x);
      }
      max = warp_max(max);
      float sum = 0.0F;
#pragma unroll
      for (uint32_t r = 0; r < kRounds; ++r) {
        part[r].x = fast_exp2(part[r].x - max);
        sum += part[r].x * part[r].y;
      }
      const float by = 1.0F / warp_sum(sum);
#pragma unroll
      for (uint32_t r = 0; r < kRounds; ++r)
        if (r * kWarp + lane() < unit.splits)
          factors_of(column)[r * kWarp + lane()] = part[r].x * by;
    }
  }

  __device__ void write_out(const DecodeUnit& of, uint32_t column, uint32_t four,
                            const float4& result) const {
    const uint32_t head = of.kv_head * args_.group + head_of(of, column);
    Bf16* out = args_.out + (uint64_t{of.row + row_of(of, column)} * args_.heads + head) * kDim;
    const float x[4] = {result.x, result.y, result.z, result.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = four + i;
      out[C::Value::channel(at / 16, at / 8 % 2, at % 8)] = to_bf16(x[i]);
    }
  }

  const Args& args_;
  std::byte* memory_;
  uint32_t first_;  // unit of this block
  uint32_t mine_;   // how many it has
};

}  // namespace tandem::cuda::decode
