#pragma once

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/attention_decode_math.cuh"
#include "kernels/cuda/attention_decode_ring.cuh"
#include "kernels/cuda/launch.cuh"

// The warps of decode attention that make a unit's result of its walkers', and of its splits
// (attention_decode_paged.cuh).
namespace tandem::cuda::paged {

// Rescales parts to their common maximum and adds them up in order.
struct Merge {
  float max = -INFINITY;
  float sum = 0.0F;
  float4 acc = {0.0F, 0.0F, 0.0F, 0.0F};
  __device__ void add(float2 part, const float4& x) {
    const float f = part.x == -INFINITY ? 0.0F : fast_exp2(part.x - max);
    sum += f * part.y;
    acc.x += f * x.x;
    acc.y += f * x.y;
    acc.z += f * x.z;
    acc.w += f * x.w;
  }
};

template <kv::KvFormat F, uint32_t kDim, uint32_t kTiles>
class Merger : Shared<Config<F, kDim, kTiles>> {
 public:
  using C = Config<F, kDim, kTiles>;
  using Base = Shared<C>;
  using Base::args_;
  using Base::end_;
  using Base::first_;
  using Base::lane;
  using Base::unit;
  static constexpr uint32_t kFours = kDim / 4;

  __device__ Merger(const Base& base) : Base(base), turn_(threadIdx.x / kWarp - C::kWarps) {}

  // Merger 0 takes even items (unit, tile) and the queries of even units, merger 1 the odd ones.
  __device__ void run() {
    wait_for_previous();
    allow_next();
    if (turn_ == 0 && first_ < end_) prepare(first_);
    for (uint32_t u = first_; u < end_; ++u) {
      const uint32_t i = u - first_;
      // Their buffer is free: this merger has seen the walkers done with the unit before this one.
      if ((i + 1) % 2 == turn_ && u + 1 < end_) prepare(u + 1);
      bool any = false;
      for (uint32_t n = 0; n < kTiles; ++n) {
        const uint32_t item = i * kTiles + n;
        if (item % 2 != turn_) continue;
        barrier_wait(this->merge_full() + turn_, item / 2 % 2);
        merge_walkers(unit(u), n);
        __syncwarp();
        if (lane() == 0) barrier_arrive(this->merge_empty() + turn_);
        any = true;
      }
      if (any) arrive(u);
    }
  }

  // The splits of the block's last unit, should it have been the last to arrive: by all warps.
  __device__ void merge_last() const {
    if (*this->flag() != 0) merge_splits(unit(end_ - 1), threadIdx.x, C::kThreads);
  }

 private:
  __device__ void prepare(uint32_t u) {
    const uint32_t parity = (u - first_) % 2;
    const DecodeUnit& next = unit(u);
    for (uint32_t n = 0; n < kTiles; ++n) {
      uint2 fragments[C::kSteps];
      float factor;
      this->template load_query<typename C::Key>(next, n, fragments, factor);
      uint2* to = this->queries(parity) + n * C::kSteps * kWarp + lane();
#pragma unroll
      for (uint32_t i = 0; i < C::kSteps; ++i) to[i * kWarp] = fragments[i];
      const uint32_t column = n * 8 + lane() / 4;
      if (lane() % 4 == 0) {
        this->limits(parity)[column] = this->limits_of(next, column);
        this->factors(parity)[column] = factor;
      }
    }
    this->refresh_units(u);
    __syncwarp();
    if (lane() == 0) barrier_arrive(this->queries_full() + parity);
  }

  // Columns 8n .. 8n+7 of a unit, four channels in the order of the buffer at a time.
  __device__ void merge_walkers(const DecodeUnit& current, uint32_t n) const {
    const float2* sums = this->sums(turn_);
    for (uint32_t i = lane(); i < 8 * kFours; i += kWarp) {
      const uint32_t row = i / kFours;
      const uint32_t four = i % kFours * 4;
      Merge merge;
#pragma unroll
      for (uint32_t w = 0; w < C::kWarps; ++w) merge.max = fmaxf(merge.max, sums[w * 8 + row].x);
#pragma unroll
      for (uint32_t w = 0; w < C::kWarps; ++w)
        merge.add(sums[w * 8 + row], *reinterpret_cast<const float4*>(
                                         this->merge(turn_) + (w * 8 + row) * C::kPadded + four));
      const uint32_t column = 8 * n + row;
      if (current.splits == 1) {
        write_out(current, column, four, merge);
      } else {
        float* to = partial(current.partial + current.split);
        *reinterpret_cast<float4*>(to + column * kDim + four) = merge.acc;
        if (four == 0)
          reinterpret_cast<float2*>(to + C::kColumns * kDim)[column] = {merge.max, merge.sum};
      }
    }
  }

  // Counts a split's results that are written; the last to come merges them all.
  __device__ void arrive(uint32_t u) {
    const DecodeUnit& current = unit(u);
    if (current.splits == 1) return;
    constexpr uint32_t kMergers = kTiles == 1 ? 1 : 2;  // who take part in a unit
    bool last = false;
    if (lane() == 0) {
      uint32_t* counter = args_.counters + current.counter;
      __threadfence();
      last = atomicAdd(counter, 1) + 1 == current.splits * kMergers;
      if (last) *counter = 0;
      __threadfence();
    }
    last = __shfl_sync(kAllLanes, last, 0);
    if (!last) return;
    if (u + 1 == end_) {
      if (lane() == 0) *this->flag() = 1;
    } else {
      merge_splits(current, lane(), kWarp);
    }
  }

  __device__ float* partial(uint32_t index) const {
    return args_.partials + uint64_t{index} * C::kColumns * (kDim + 2);
  }

  __device__ void merge_splits(const DecodeUnit& last, uint32_t thread, uint32_t threads) const {
    constexpr uint32_t kBatch = 8;  // loads under way together
    for (uint32_t i = thread; i < C::kColumns * kFours; i += threads) {
      const uint32_t column = i / kFours;
      const uint32_t four = i % kFours * 4;
      const auto sums_of = [&](uint32_t s) {
        return s < last.splits ? __ldcg(reinterpret_cast<const float2*>(partial(last.partial + s) +
                                                                        C::kColumns * kDim) +
                                        column)
                               : float2{-INFINITY, 0.0F};
      };
      Merge merge;
      for (uint32_t s = 0; s < last.splits; s += kBatch) {
#pragma unroll
        for (uint32_t b = 0; b < kBatch; ++b) merge.max = fmaxf(merge.max, sums_of(s + b).x);
      }
      for (uint32_t s = 0; s < last.splits; s += kBatch) {
        float2 sums[kBatch];
        float4 acc[kBatch];
#pragma unroll
        for (uint32_t b = 0; b < kBatch; ++b) {
          sums[b] = sums_of(s + b);
          acc[b] = s + b < last.splits ? __ldcg(reinterpret_cast<const float4*>(
                                             partial(last.partial + s + b) + column * kDim + four))
                                       : float4{0.0F, 0.0F, 0.0F, 0.0F};
        }
#pragma unroll
        for (uint32_t b = 0; b < kBatch; ++b) merge.add(sums[b], acc[b]);
      }
      write_out(last, column, four, merge);
    }
  }

  __device__ void write_out(const DecodeUnit& of, uint32_t column, uint32_t four,
                            const Merge& merge) const {
    const uint32_t c = of.first_column + column;
    const uint32_t row = c / args_.group;
    if (row >= of.rows) return;
    const uint32_t head = of.kv_head * args_.group + c % args_.group;
    Bf16* out = args_.out + (uint64_t{of.first_row + row} * args_.heads + head) * kDim;
    const float by = (C::kValue == Coding::kE4m3 ? kFp8Rest : 1.0F) / merge.sum;
    const float x[4] = {merge.acc.x, merge.acc.y, merge.acc.z, merge.acc.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = four + i;
      out[C::Value::channel(at / 16, at / 8 % 2, at % 8)] = to_bf16(x[i] * by);
    }
  }

  uint32_t turn_;
};

}  // namespace tandem::cuda::paged
