#pragma once

#include "kernels/cuda/sampling_slice.cuh"

// Where a row of logits is cut (sampling.cu says how).
namespace tandem::cuda::sampling {

class Cutter : public Slice {
 protected:
  using Slice::Slice;

  // ---- candidates, in block 0 ----

  // Appends to block 0's list; counts on beyond its end.
  __device__ void append(bool wanted, float x, uint32_t id) {
    const unsigned votes = __ballot_sync(kAll, wanted);
    if (votes == 0) return;
    const int leader = __ffs(static_cast<int>(votes)) - 1;
    uint32_t at = 0;
    if (lane_ == static_cast<uint32_t>(leader))
      at = atomicAdd(cluster_.map_shared_rank(&sh_.candidates[round_ & 1], 0),
                     static_cast<uint32_t>(__popc(votes)));
    at = __shfl_sync(kAll, at, leader) + static_cast<uint32_t>(__popc(votes & ((1u << lane_) - 1)));
    if (wanted && at < kCandidates) cluster_.map_shared_rank(list_, 0)[at] = rank_of(x, id);
  }

  // Before the barrier that precedes append(): two counters take turns, so that a block still
  // reading the last count is not disturbed.
  __device__ void new_list() {
    ++round_;
    if (rank_ == 0 && thread_ == 0) sh_.candidates[round_ & 1] = 0;
  }
  // After the barrier that follows append().
  __device__ uint32_t list_size() {
    return *cluster_.map_shared_rank(&sh_.candidates[round_ & 1], 0);
  }

  // Block 0: best first.
  __device__ void sort_list(uint32_t n) {
    if (n <= kThreads / 4) {
      rank_list(n);
    } else {
      merge_list(n);
    }
  }

  // Four threads count how many are better than one candidate.
  __device__ void rank_list(uint32_t n) {
    const uint32_t at = thread_ / 4;
    const u64 mine = at < n ? list_[at] : 0;
    uint32_t better = 0;
    for (uint32_t i = thread_ % 4; i < n; i += 4) better += list_[i] > mine ? 1 : 0;
    better += __shfl_xor_sync(kAll, better, 1);
    better += __shfl_xor_sync(kAll, better, 2);
    __syncthreads();
    if (at < n && thread_ % 4 == 0) list_[better] = mine;
    __syncthreads();
  }

  // Bitonic. Up to kCandidates, padded with 0, which no rank is.
  __device__ void merge_list(uint32_t n) {
    uint32_t size = 64;
    while (size < n) size <<= 1;
    for (uint32_t i = n + thread_; i < size; i += kThreads) list_[i] = 0;
    __syncthreads();
    for (uint32_t k = 2; k <= size; k <<= 1) {
      for (uint32_t j = k >> 1; j > 0; j >>= 1) {
        for (uint32_t i = thread_; i < size / 2; i += kThreads) {
          const uint32_t a = 2 * i - (i & (j - 1));
          const u64 x = list_[a];
          const u64 y = list_[a + j];
          if ((x < y) == ((a & k) == 0)) {
            list_[a] = y;
            list_[a + j] = x;
          }
        }
        // Comparisons up to this distance stay among the 64 entries of one warp.
        if (j > 32 || size / 2 > kThreads) {
          __syncthreads();
        } else {
          __syncwarp();
        }
      }
      __syncthreads();
    }
  }

  // Block-wide exclusive prefix.
  __device__ u64 block_before(u64 v, u64& total) {
    const u64 inclusive = warp_inclusive(v, lane_);
    __syncthreads();
    if (lane_ == 31) sh_.warps[0][warp_] = inclusive;
    __syncthreads();
    const u64 w = lane_ < kWarps ? sh_.warps[0][lane_] : 0;
    total = warp_sum(w);
    return warp_sum(lane_ < warp_ ? w : 0) + inclusive - v;
  }

  __device__ static u64 share_of(u64 total, double share) {
    const double target = ceil(static_cast<double>(total) * share);
    const u64 whole = target > 1.0 ? static_cast<u64>(target) : 1;
    return whole < total ? whole : total;
  }

  // Block 0: the shortest prefix of the first n sorted candidates whose weight, added to `before`,
  // reaches target; target 0: this share of the candidates' own weight.
  __device__ void cut_list(uint32_t n, bool by_mass, u64 before, u64 target, double share) {
    u64 w[4];
    u64 mine = 0;
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t i = 4 * thread_ + k;
      w[k] = i < n ? weight(logit_of(list_[i]), by_mass) : 0;
      mine += w[k];
    }
    u64 total = 0;
    u64 sum = block_before(mine, total);
    if (target == 0) target = share_of(total, share);
    if (thread_ == 0) sh_.found = before + total >= target ? 1 : 0;
    sum += before;
    for (uint32_t k = 0; k < 4; ++k) {
      const u64 next = sum + w[k];
      if (sum < target && next >= target) {
        const u64 last = list_[4 * thread_ + k];
        sh_.cut = {logit_of(last), id_of(last)};
      }
      sum = next;
    }
  }

  // ---- gather_best ----

  __device__ uint32_t bucket_of(float x, float scale) const {
    // fminf() takes the last bucket for NaN (0 * infinity).
    return static_cast<uint32_t>(
        fminf(__fmul_rn(__fsub_rn(top_, x), scale), static_cast<float>(kBuckets - 1)));
  }

  __device__ void clear_buckets(bool by_mass) {
    for (uint32_t i = thread_; i < (by_mass ? 3 : 1) * kBuckets; i += kThreads) words_[i] = 0;
  }

  __device__ void add_to_bucket(uint32_t bucket, u64 w) {
    const auto low = static_cast<uint32_t>(w) & 0xffffu;
    const auto middle = static_cast<uint32_t>(w >> 16) & 0xffffu;
    const auto high = static_cast<uint32_t>(w >> 32);
    if (low != 0) atomicAdd(&words_[bucket], low);
    if (middle != 0) atomicAdd(&words_[kBuckets + bucket], middle);
    if (high != 0) atomicAdd(&words_[2 * kBuckets + bucket], high);
  }

  // This thread's two buckets of part `part`, summed over the blocks.
  __device__ void add_part(uint32_t part, u64 (&w)[2]) {
    uint2 v[kMaxBlocks];
#pragma unroll
    for (uint32_t b = 0; b < kMaxBlocks; ++b) {
      v[b] = make_uint2(0, 0);
      if (b < blocks_)
        v[b] = reinterpret_cast<const uint2*>(
            cluster_.map_shared_rank(words_ + part * kBuckets, b))[thread_];
    }
#pragma unroll
    for (uint32_t b = 0; b < kMaxBlocks; ++b) {
      w[0] += static_cast<u64>(v[b].x) << (16 * part);
      w[1] += static_cast<u64>(v[b].y) << (16 * part);
    }
  }

  // After a cluster barrier: the bucket of the summed histograms in which `before` reaches target
  // (0: this share of all). `before` advances to the weight of the buckets ahead of it. Every block
  // finds the same.
  __device__ uint32_t find_bucket(bool by_mass, u64& target, double share, u64& before) {
    u64 w[2] = {};
    add_part(0, w);
    if (by_mass) {
      add_part(1, w);
      add_part(2, w);
    }
    u64 total = 0;
    u64 sum = before + block_before(w[0] + w[1], total);
    if (target == 0) target = share_of(total, share);
    if (thread_ == 0) {  // for a target that rounding put out of reach
      sh_.bucket = kBuckets - 1;
      sh_.before = before;
    }
    __syncthreads();
    for (uint32_t k = 0; k < 2; ++k) {
      if (sum < target && sum + w[k] >= target) {
        sh_.bucket = 2 * thread_ + k;
        sh_.before = sum;
      }
      sum += w[k];
    }
    __syncthreads();
    before = sh_.before;
    return sh_.bucket;
  }

  // Lists at least the k best, and few more: k threads hold a logit as good as the bound. Returns
  // how many; more than kCandidates means that the list is incomplete.
  __device__ uint32_t gather_best(uint32_t k) {
    const float scale = static_cast<float>(kBuckets - 1) / (top_ - low_);
    clear_buckets(false);
    new_list();
    __syncthreads();
    atomicAdd(&words_[bucket_of(thread_best_, scale)], 1);
    cluster_.sync();
    u64 before = 0;
    u64 target = k;
    const uint32_t bound = find_bucket(false, target, 0, before);
    each([&](float x, uint32_t i) {
      append(i < count_ && bucket_of(x, scale) <= bound, x, first_ + i);
    });
    cluster_.sync();
    return list_size();
  }

  // ---- select_cut ----

  // Which logits a histogram spreads over its buckets: by depth below the best, or by key.
  struct Window {
    bool linear;
    float scale;
    uint32_t low;
    uint32_t high;
    uint32_t shift;
  };

  __device__ uint32_t place(const Window& w, float x) const {  // kBuckets: outside
    if (w.linear) return bucket_of(x, w.scale);
    const uint32_t key = key_of(x);
    return key >= w.low && key <= w.high ? (w.high - key) >> w.shift : kBuckets;
  }

  __device__ void fill_buckets(const Window& window, bool by_mass, const Cut& within) {
    u64 deep = 0;  // most tokens of most rows fall into the last bucket
    each([&](float x, uint32_t i) {
      if (i >= count_ || !better_or_equal(x, first_ + i, within.logit, within.id)) return;
      const uint32_t b = place(window, x);
      if (b >= kBuckets) return;
      if (b == kBuckets - 1) {
        deep += weight(x, by_mass);
      } else if (by_mass) {
        add_to_bucket(b, weight(x, true));
      } else {
        atomicAdd(&words_[b], 1);
      }
    });
    deep = warp_sum(deep);
    if (lane_ != 0) return;
    if (by_mass) {
      add_to_bucket(kBuckets - 1, deep);
    } else {
      atomicAdd(&words_[kBuckets - 1], static_cast<uint32_t>(deep));
    }
  }

  // The end of the shortest prefix, of the order `better` among what `within` keeps, whose weight
  // reaches target, or (target 0) this share of the weight of all that it keeps.
  __device__ Cut select_cut(bool by_mass, u64 target, double share, const Cut& within) {
    float span = top_ - bottom_;
    if (by_mass) span = fminf(span, 24.0F / inverse_);
    Window window{true, static_cast<float>(kBuckets - 1) / span, 0, 0, 0};
    u64 before = 0;
    bool found = false;
    while (true) {
      clear_buckets(by_mass);
      new_list();
      __syncthreads();
      fill_buckets(window, by_mass, within);
      cluster_.sync();
      const uint32_t bucket = find_bucket(by_mass, target, share, before);
      Spread keys{0, 0xffffffffu, 0xffffffffu};
      each([&](float x, uint32_t i) {
        const bool in = i < count_ && better_or_equal(x, first_ + i, within.logit, within.id) &&
                        place(window, x) == bucket;
        append(in, x, first_ + i);
        if (!in) return;
        keys.best = max(keys.best, static_cast<u64>(key_of(x)));
        keys.bottom = min(keys.bottom, key_of(x));
      });
      keys = agree(keys);
      const uint32_t n = list_size();
      const auto high = static_cast<uint32_t>(keys.best);
      if (n <= kCandidates) {
        if (rank_ == 0) {
          sort_list(n);
          if (thread_ == 0) sh_.cut = within;
          __syncthreads();
          cut_list(n, by_mass, before, target, 0);
        }
        return agreed_cut(found);
      }
      if (keys.bottom == high) return cut_ties(by_mass, high, target - before, within);
      const uint32_t bits =
          32u - static_cast<uint32_t>(__clz(static_cast<int>(high - keys.bottom)));
      window = {false, 0, keys.bottom, high, bits > 10 ? bits - 10 : 0};
    }
  }

  // All candidates have one logit: the lowest ids win until their weight reaches `needed`.
  __device__ Cut cut_ties(bool by_mass, uint32_t key, u64 needed, const Cut& within) {
    const float value = float_of(key);
    const u64 w = weight(value, by_mass);
    const u64 wanted = w == 0 ? 1 : (needed + w - 1) / w;
    const auto tied = [&](float x, uint32_t i) {
      return i < count_ && x == value && better_or_equal(x, first_ + i, within.logit, within.id);
    };
    u64 mine = 0;
    each([&](float x, uint32_t i) { mine += tied(x, i) ? 1 : 0; });
    if (rank_ == 0 && thread_ == 0)
      sh_.cut = {value, within.logit == value ? within.id : 0xffffffffu};
    const Sum sum = add_up(mine);
    u64 seen = sum.before + warps_before();
    if (seen < wanted && seen + sum.warp >= wanted) {
      for (uint32_t i = begin_; i < end_; i += kSampleGroup) {
        u64 here = 0;
        for (uint32_t k = 0; k < 4; ++k) here += tied(slice_[i + k], i + k) ? 1 : 0;
        const u64 inclusive = seen + warp_inclusive(here, lane_);
        u64 at = inclusive - here;
        for (uint32_t k = 0; k < 4; ++k)
          if (tied(slice_[i + k], i + k) && ++at == wanted)
            cluster_.map_shared_rank(&sh_, 0)->cut = {value, first_ + i + k};
        seen = __shfl_sync(kAll, inclusive, 31);
      }
    }
    bool found = false;
    return agreed_cut(found);
  }

  // ---- what a row asks for ----

  __device__ Cut cut_best(uint32_t k, double share) {
    const bool nucleus = share < 1;
    bool found = false;
    if (k <= kFewBest) {
      const uint32_t n = gather_best(k);
      if (n <= kCandidates) {
        if (rank_ == 0) {
          sort_list(n);
          if (nucleus) {
            cut_list(min(k, n), true, 0, 0, share);
          } else if (thread_ == 0) {
            const u64 last = list_[min(k, n) - 1];
            sh_.cut = {logit_of(last), id_of(last)};
          }
        }
        return agreed_cut(found);
      }
    }
    const Cut cut = select_cut(false, k, 0, none());
    return nucleus ? select_cut(true, 0, share, cut) : cut;
  }

  __device__ Cut find_cut(const SampleRow& row) {
    Cut cut = none();
    if (row.top_k > 0 && row.top_k < vocab_) {
      cut = cut_best(row.top_k, row.top_share);
    } else if (row.top_share < 1) {
      cut = select_cut(true, 0, row.top_share, none());
    }
    const float lowest = __fadd_rn(top_, row.min_p_offset);
    if (lowest > cut.logit) cut = {lowest, 0xffffffffu};
    return cut;
  }

 private:
  uint32_t round_ = 0;
};

}  // namespace tandem::cuda::sampling
