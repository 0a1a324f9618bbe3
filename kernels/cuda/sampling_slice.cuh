#pragma once

#include <cstdint>

#include "kernels/cuda/sample_row.h"
#include "kernels/cuda/sampling_primitives.cuh"

// One row of logits spread over a cluster of thread blocks (sampling.cu): the passes over it and
// what its blocks tell each other.
namespace tandem::cuda::sampling {

inline constexpr uint32_t kBuckets = 1024;
inline constexpr uint32_t kCandidates = 2048;
inline constexpr uint32_t kCounts = kSampleScratchBytes / sizeof(uint32_t);
inline constexpr uint32_t kFewBest = 1024;  // largest k that gather_best() is tried for
inline constexpr uint32_t kMaxBlocks = 8;   // of a cluster (plan_sampling)
static_assert(kSampleScratchBytes >= kBuckets * 12 + kCandidates * 8);
static_assert(kBuckets == 2 * kThreads && kCandidates == 4 * kThreads);

struct Cut {
  float logit;
  uint32_t id;
};

// What the first pass over a slice learns; keys of finite logits, 0xffffffff for none.
struct Spread {
  u64 best;         // rank_of the best
  uint32_t bottom;  // key of the lowest
  uint32_t low;     // key of the lowest of the threads' best
};

struct Shared {
  u64 warps[3][kWarps];
  u64 exchange[2][3];  // read by the other blocks
  u64 before;
  uint32_t bucket;
  uint32_t candidates[2];  // in block 0: appended to by the other blocks
  Cut cut;                 // in block 0
  uint32_t found;          // in block 0
};

class Slice {
 protected:
  __device__ Slice(const SamplingPlan& plan, const float* logits, float* dynamic, Shared& shared)
      : cluster_(cg::this_cluster()),
        sh_(shared),
        logits_(logits),
        slice_(dynamic),
        words_(reinterpret_cast<uint32_t*>(dynamic + plan.slice)),
        list_(reinterpret_cast<u64*>(words_ + 3 * kBuckets)),
        rank_(cluster_.block_rank()),
        blocks_(cluster_.num_blocks()),
        first_(rank_ * plan.slice),
        count_(first_ >= plan.vocab ? 0 : min(plan.slice, plan.vocab - first_)),
        vocab_(plan.vocab) {
    const uint32_t groups = plan.slice / kSampleGroup;
    const uint32_t each = (groups + kWarps - 1) / kWarps;
    begin_ = min(warp_ * each, groups) * kSampleGroup + 4 * lane_;
    end_ = min((warp_ + 1) * each, groups) * kSampleGroup;
  }

  struct Sum {
    u64 total;   // over the cluster
    u64 before;  // blocks of lower rank
    u64 warp;    // this warp's
  };

  __device__ static Cut none() { return {impossible(), 0xffffffffu}; }

  // ---- passes over the slice: a warp takes groups of 128 logits, a lane four neighbours ----

  template <class F>
  __device__ void each(F f) const {
    for (uint32_t i = begin_; i < end_; i += kSampleGroup) {
      const float4 v = *reinterpret_cast<const float4*>(slice_ + i);
      f(v.x, i);
      f(v.y, i + 1);
      f(v.z, i + 2);
      f(v.w, i + 3);
    }
  }

  __device__ static void take(float& best, uint32_t& at, uint32_t& bottom, float x, uint32_t i) {
    if (x > best) {
      best = x;
      at = i;
    }
    if (x > impossible()) bottom = min(bottom, key_of(x));
  }

  __device__ Spread spread_of(float best, uint32_t at, uint32_t bottom) {
    thread_best_ = best;
    return {rank_of(best, first_ + at), bottom, best > impossible() ? key_of(best) : 0xffffffffu};
  }

  // Logits j .. j+3 of the slice as they are in memory; impossible ones from its end on.
  __device__ float4 fetch(bool vectors, uint32_t j) const {
    const float* from = logits_ + first_;
    if (vectors && j + 4 <= count_) return __ldcg(reinterpret_cast<const float4*>(from + j));
    float4 v = make_float4(impossible(), impossible(), impossible(), impossible());
    if (j < count_) v.x = __ldcg(from + j);
    if (j + 1 < count_) v.y = __ldcg(from + j + 1);
    if (j + 2 < count_) v.z = __ldcg(from + j + 2);
    if (j + 3 < count_) v.w = __ldcg(from + j + 3);
    return v;
  }

  __device__ void load(bool vectors) {
    constexpr int kAhead = 5;  // 16-byte loads in flight a thread
    float best = impossible();
    uint32_t at = begin_;
    uint32_t bottom = 0xffffffffu;
    for (uint32_t i = begin_; i < end_; i += kAhead * kSampleGroup) {
      float4 v[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t j = i + static_cast<uint32_t>(a) * kSampleGroup;
        if (j < end_) v[a] = fetch(vectors, j);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t j = i + static_cast<uint32_t>(a) * kSampleGroup;
        if (j >= end_) continue;
        v[a] =
            make_float4(sanitized(v[a].x), sanitized(v[a].y), sanitized(v[a].z), sanitized(v[a].w));
        *reinterpret_cast<float4*>(slice_ + j) = v[a];
        take(best, at, bottom, v[a].x, j);
        take(best, at, bottom, v[a].y, j + 1);
        take(best, at, bottom, v[a].z, j + 2);
        take(best, at, bottom, v[a].w, j + 3);
      }
    }
    mine_ = spread_of(best, at, bottom);
  }

  // For rows that need no more than their best logit: it is looked for among fours, a quarter of
  // the comparisons, and nothing is kept.
  __device__ void load_best(bool vectors) {
    constexpr int kAhead = 10;
    float best = impossible();
    uint32_t at = begin_;
    float4 four = make_float4(best, best, best, best);
    for (uint32_t i = begin_; i < end_; i += kAhead * kSampleGroup) {
      float4 v[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t j = i + static_cast<uint32_t>(a) * kSampleGroup;
        v[a] = make_float4(impossible(), impossible(), impossible(), impossible());
        if (j < end_) v[a] = fetch(vectors, j);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        // Of a NaN and a number fmaxf() takes the number, and `best` is one.
        const float most = fmaxf(fmaxf(v[a].x, v[a].y), fmaxf(v[a].z, v[a].w));
        const float top = fminf(fmaxf(most, best), FLT_MAX);
        if (!(top > best)) continue;
        best = top;
        at = i + static_cast<uint32_t>(a) * kSampleGroup;
        four = v[a];
      }
    }
    if (best > impossible()) {
      const auto is = [&](float x) { return sanitized(x) == best; };
      at += is(four.x) ? 0 : is(four.y) ? 1 : is(four.z) ? 2 : 3;
    }
    mine_ = spread_of(best, at, 0xffffffffu);
  }

  // After penalties, which may have overflowed.
  __device__ Spread rescan() {
    float best = impossible();
    uint32_t at = begin_;
    uint32_t bottom = 0xffffffffu;
    each([&](float raw, uint32_t i) {
      const float x = sanitized(raw);
      slice_[i] = x;
      take(best, at, bottom, x, i);
    });
    return spread_of(best, at, bottom);
  }

  // ---- what the blocks agree on ----

  __device__ u64* next_exchange() {
    turn_ ^= 1;
    return sh_.exchange[turn_];
  }
  __device__ u64 peer(const u64* mine, uint32_t block) {
    return *cluster_.map_shared_rank(mine, block);
  }

  __device__ Spread agree(const Spread& mine) {
    u64* out = next_exchange();
    const auto reduce = [&](u64 best, uint32_t bottom, uint32_t low) {
      return Spread{warp_max(best), __reduce_min_sync(kAll, bottom), __reduce_min_sync(kAll, low)};
    };
    Spread s = reduce(mine.best, mine.bottom, mine.low);
    if (lane_ == 0) {
      sh_.warps[0][warp_] = s.best;
      sh_.warps[1][warp_] = (static_cast<u64>(s.bottom) << 32) | s.low;
    }
    __syncthreads();
    if (warp_ == 0) {
      const u64 pair = lane_ < kWarps ? sh_.warps[1][lane_] : ~0ull;
      s = reduce(lane_ < kWarps ? sh_.warps[0][lane_] : 0, static_cast<uint32_t>(pair >> 32),
                 static_cast<uint32_t>(pair));
      if (lane_ == 0) {
        out[0] = s.best;
        out[1] = (static_cast<u64>(s.bottom) << 32) | s.low;
      }
    }
    cluster_.sync();
    const u64 best = lane_ < blocks_ ? peer(&out[0], lane_) : 0;
    const u64 pair = lane_ < blocks_ ? peer(&out[1], lane_) : ~0ull;
    return reduce(best, static_cast<uint32_t>(pair >> 32), static_cast<uint32_t>(pair));
  }

  __device__ Sum add_up(u64 mine) {
    u64* out = next_exchange();
    Sum s{};
    s.warp = warp_sum(mine);
    if (lane_ == 0) sh_.warps[2][warp_] = s.warp;
    __syncthreads();
    if (warp_ == 0) {
      const u64 all = warp_sum(lane_ < kWarps ? sh_.warps[2][lane_] : 0);
      if (lane_ == 0) out[0] = all;
    }
    cluster_.sync();
    const u64 v = lane_ < blocks_ ? peer(&out[0], lane_) : 0;
    s.total = warp_sum(v);
    s.before = warp_sum(lane_ < rank_ ? v : 0);
    return s;
  }

  // Sum of the warps before this one; after add_up().
  __device__ u64 warps_before() const { return warp_sum(lane_ < warp_ ? sh_.warps[2][lane_] : 0); }

  __device__ Cut agreed_cut(bool& found) {
    cluster_.sync();
    const Shared* first = cluster_.map_shared_rank(&sh_, 0);
    found = first->found != 0;
    return first->cut;
  }

  __device__ void set_range(const Spread& s, float inverse) {
    top_ = logit_of(s.best);
    bottom_ = s.bottom == 0xffffffffu ? top_ : float_of(s.bottom);
    low_ = s.low == 0xffffffffu ? top_ : float_of(s.low);
    inverse_ = inverse;
  }

  __device__ u64 weight(float x, bool by_mass) const {
    return by_mass ? mass_of(x, top_, inverse_) : 1;
  }

  __device__ Sum sum_masses(const Cut& cut) {
    u64 sum = 0;
    each([&](float x, uint32_t i) {
      if (better_or_equal(x, first_ + i, cut.logit, cut.id)) sum += mass_of(x, top_, inverse_);
    });
    return add_up(sum);
  }

  const cg::cluster_group cluster_;
  Shared& sh_;
  const float* logits_;
  float* slice_;
  // Histogram of masses in three parts of 16, 16 and 13 bits, [3][kBuckets], so that adding needs
  // no carry; counts of penalties.
  uint32_t* words_;
  u64* list_;
  uint32_t rank_;
  uint32_t blocks_;
  uint32_t first_;  // id of the slice's first logit
  uint32_t count_;  // logits in it; up to its end it is filled with impossible ones
  uint32_t vocab_;
  uint32_t begin_;
  uint32_t end_;
  const uint32_t thread_ = threadIdx.x;
  const uint32_t lane_ = threadIdx.x % 32;
  const uint32_t warp_ = threadIdx.x / 32;
  uint32_t turn_ = 0;
  Spread mine_{};
  float thread_best_ = 0;
  float top_ = 0;
  float bottom_ = 0;
  float low_ = 0;
  float inverse_ = 1;
};

}  // namespace tandem::cuda::sampling
