#include "kernels/cuda/attention_prefill_feed.cuh"
#include "kernels/cuda/attention_prefill_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

// A persistent block per multiprocessor: one thread feeds tiles of Q, K and V through shared memory
// with TMA, two warpgroups of 64 queries each multiply. A warpgroup starts the scores of the next
// key tile and the values of the current one together and computes a softmax while they run; the
// two take turns, so that the softmax of one meets the products of the other.
namespace tandem::cuda {
namespace {

using namespace prefill;

// Named barriers (0 is __syncthreads): whose turn it is.
constexpr uint32_t kTurnBarrier = 1;

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline void turn_wait(uint32_t whose) {
  asm volatile("bar.sync %0, %1;" ::"r"(kTurnBarrier + whose), "n"(2 * kWarpgroup) : "memory");
}
__device__ inline void turn_pass(uint32_t to) {
  asm volatile("bar.arrive %0, %1;" ::"r"(kTurnBarrier + to), "n"(2 * kWarpgroup) : "memory");
}

template <class C>
class Consumer {
 public:
  __device__ Consumer(const Arguments& args, Shared<C>& shared)
      : args_(args),
        shared_(shared),
        me_(__shfl_sync(~0U, threadIdx.x / kWarpgroup, 0) - 1),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    if (me_ == kConsumers - 1) turn_pass(0);  // the first consumer goes first
    for (;;) {
      barrier_wait(&shared_.at.tile_full[slot_.stage], slot_.parity);
      const PrefillTile tile = shared_.at.tiles[slot_.stage];
      barrier_arrive(&shared_.at.tile_free[slot_.stage]);
      slot_.advance();
      if (tile.rows == 0) break;
      const KeyRange range(args_, tile, C::kKeyTile);
      if (me_ * kConsumerRows < tile.rows)
        attend(tile, range);
      else
        skip(range);
    }
  }

 private:
  static constexpr uint32_t kScores = C::kKeyTile / 2;  // registers
  static constexpr uint32_t kOut = C::kHeadDim / 2;

  // One arrival a warp, once all its lanes are done with the buffer.
  __device__ void release(uint64_t* barrier) {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(barrier);
  }

  __device__ void skip(const KeyRange& range) {
    for (uint32_t i = 0; i < range.count; ++i) {
      barrier_wait(&shared_.at.k_full[k_.stage], k_.parity);
      release(&shared_.at.k_free[k_.stage]);
      k_.advance();
      barrier_wait(&shared_.at.v_full[v_.stage], v_.parity);
      release(&shared_.at.v_free[v_.stage]);
      v_.advance();
    }
  }

  __device__ void attend(const PrefillTile& tile, const KeyRange& range) {
    float scores[kScores];
    uint32_t weights[kScores / 2];
    float out[kOut];
#pragma unroll
    for (uint32_t i = 0; i < kOut; ++i) out[i] = 0.0F;
    max_[0] = max_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0.0F;

    barrier_wait(&shared_.at.q_full[me_], q_parity_);
    q_parity_ ^= 1;
    barrier_wait(&shared_.at.k_full[k_.stage], k_.parity);
    wgmma_fence();
    start_scores(scores);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(scores);
    release(&shared_.at.k_free[k_.stage]);
    k_.advance();
    mask(tile, range, 0, scores);
    softmax(scores);
    pack(scores, weights);

    // Masked tiles come first (the diagonal) and last (the far end of a window).
    const uint32_t diagonal = masked_first(tile, range);
    const uint32_t inner = range.count - masked_last(tile, range);
    uint32_t i = 1;
#pragma unroll 1
    for (; i < min(diagonal, range.count); ++i) step<true>(tile, range, i, scores, weights, out);
#pragma unroll 1
    for (; i < inner; ++i) step<false>(tile, range, i, scores, weights, out);
#pragma unroll 1
    for (; i < range.count; ++i) step<true>(tile, range, i, scores, weights, out);
    release(&shared_.at.q_free[me_]);

    rescale(out);
    barrier_wait(&shared_.at.v_full[v_.stage], v_.parity);
    wgmma_fence();
    start_values(weights, out);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(out);
    release(&shared_.at.v_free[v_.stage]);
    v_.advance();
    write(tile, out);
  }

  // Scores of key tile i beside the results of tile i - 1.
  template <bool Masked>
  __device__ __forceinline__ void step(const PrefillTile& tile, const KeyRange& range, uint32_t i,
                                       float (&scores)[kScores], uint32_t (&weights)[kScores / 2],
                                       float (&out)[kOut]) {
    const bool turns = tile.rows > kConsumerRows;
    barrier_wait(&shared_.at.k_full[k_.stage], k_.parity);
    if (turns) turn_wait(me_);
    wgmma_fence();
    start_scores(scores);
    wgmma_commit();
    rescale(out);
    barrier_wait(&shared_.at.v_full[v_.stage], v_.parity);
    wgmma_fence();
    start_values(weights, out);
    wgmma_commit();
    if (turns) turn_pass(me_ ^ 1);
    wgmma_wait<1>();
    wgmma_pin(scores);
    release(&shared_.at.k_free[k_.stage]);
    k_.advance();
    if constexpr (Masked) mask(tile, range, i, scores);
    softmax(scores);
    finish_softmax();
    wgmma_wait<0>();
    wgmma_pin(out);
    release(&shared_.at.v_free[v_.stage]);
    v_.advance();
    pack(scores, weights);
  }

  __device__ void start_scores(float (&scores)[kScores]) {
    const uint64_t q =
        wgmma_descriptor(shared_address(shared_.q[me_]), 16, 8 * C::kSwizzle, C::kSwizzle);
    const uint64_t k =
        wgmma_descriptor(shared_address(shared_.k[k_.stage]), 16, 8 * C::kSwizzle, C::kSwizzle);
#pragma unroll
    for (uint32_t step = 0; step < C::kHeadDim / 16; ++step) {
      const uint32_t panel = step * 16 / C::kPanel;
      const uint32_t column = step * 16 % C::kPanel * 2;
      Wgmma<C::kKeyTile>::ss(scores, wgmma_advance(q, panel * C::kQueryPanelBytes + column),
                             wgmma_advance(k, panel * C::kKeyPanelBytes + column), step != 0);
    }
  }

  __device__ void start_values(const uint32_t (&weights)[kScores / 2], float (&out)[kOut]) {
    const uint64_t v = wgmma_descriptor(shared_address(shared_.v[v_.stage]), C::kKeyPanelBytes,
                                        8 * C::kSwizzle, C::kSwizzle);
#pragma unroll
    for (uint32_t step = 0; step < C::kKeyTile / 16; ++step)
      Wgmma<C::kHeadDim>::rs(out, weights + 4 * step, wgmma_advance(v, step * 16 * C::kSwizzle));
  }

  [[nodiscard]] __device__ int32_t first_row(const PrefillTile& tile) const {
    return static_cast<int32_t>(tile.position + me_ * kConsumerRows);
  }

  // Position of the first key of tile i.
  [[nodiscard]] __device__ static int32_t origin(const PrefillTile& tile, const KeyRange& range,
                                                 uint32_t i) {
    return range.is_exact(i) ? page_of(static_cast<int32_t>(tile.position)) +
                                   static_cast<int32_t>(i * C::kKeyTile)
                             : static_cast<int32_t>(range.stored(i) * C::kKeyTile);
  }

  [[nodiscard]] __device__ static int32_t page_of(int32_t position) {
    return position & ~static_cast<int32_t>(kPageTokens - 1);
  }

  // How many tiles from the first on hold a key that one of this warpgroup's rows comes before.
  [[nodiscard]] __device__ uint32_t masked_first(const PrefillTile& tile,
                                                 const KeyRange& range) const {
    const int32_t row = first_row(tile);
    const auto seen_by_all = static_cast<uint32_t>(args_.exact != 0 ? page_of(row) : row + 1);
    const uint32_t whole = seen_by_all / C::kKeyTile;
    return range.exact + (range.last > whole ? range.last - whole : 0);
  }

  // How many tiles up to the last one hold a key that has left one of these rows' windows.
  [[nodiscard]] __device__ uint32_t masked_last(const PrefillTile& tile,
                                                const KeyRange& range) const {
    // Positions before this one have left the last row's window.
    const int32_t left =
        first_row(tile) + static_cast<int32_t>(kConsumerRows) - static_cast<int32_t>(args_.window);
    if (args_.window == 0 || left <= 0) return 0;
    const uint32_t first = range.last - (range.count - range.exact);
    const uint32_t end = (static_cast<uint32_t>(left) + C::kKeyTile - 1) / C::kKeyTile;
    return end > first ? min(end - first, range.count) : 0;
  }

  // Sets scores of keys that a row does not see to -inf.
  __device__ void mask(const PrefillTile& tile, const KeyRange& range, uint32_t i,
                       float (&scores)[kScores]) const {
    const auto window = static_cast<int32_t>(args_.window);
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const int32_t row = first_row(tile) + static_cast<int32_t>(warp_ * 16 + lane_ / 4 + 8 * r);
      int32_t low = window == 0 ? 0 : max(0, row - window + 1);
      int32_t high = row + 1;
      if (range.is_exact(i))
        low = max(low, page_of(row));
      else if (args_.exact != 0)
        high = page_of(row);
      const int32_t shift = static_cast<int32_t>(lane_ % 4 * 2) + origin(tile, range, i) - low;
      const auto width = static_cast<uint32_t>(max(0, high - low));
#pragma unroll
      for (uint32_t j = 0; j < C::kKeyTile / 8; ++j)
#pragma unroll
        for (uint32_t c = 0; c < 2; ++c)
          if (static_cast<uint32_t>(shift + static_cast<int32_t>(8 * j + c)) >= width)
            scores[4 * j + 2 * r + c] = -INFINITY;
    }
  }

  __device__ void rescale(float (&out)[kOut]) const {
#pragma unroll
    for (uint32_t j = 0; j < kOut; ++j) out[j] *= keep_[(j / 2) % 2];
  }

  // Scores to unnormalized weights; earlier sums shrink, and earlier results have to. Four chains
  // of dependent instructions at a time: one warp a scheduler has to fill its latencies itself.
  __device__ void softmax(float (&scores)[kScores]) {
    float top[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) top[i] = scores[i];
#pragma unroll
    for (uint32_t i = 4; i < kScores; ++i) top[i % 4] = fmaxf(top[i % 4], scores[i]);
    float row[2] = {fmaxf(top[0], top[1]), fmaxf(top[2], top[3])};
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2)
#pragma unroll
      for (float& x : row) x = fmaxf(x, __shfl_xor_sync(~0U, x, lanes));
    float base[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      row[r] = fmaxf(row[r], max_[r]);
      // A row may see nothing of its first tiles.
      base[r] = row[r] == -INFINITY ? 0.0F : row[r] * args_.scale_log2;
      keep_[r] = exp2_fast(max_[r] * args_.scale_log2 - base[r]);
      max_[r] = row[r];
    }
    float sum[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < kScores; ++i) {
      scores[i] = exp2_fast(scores[i] * args_.scale_log2 - base[i / 2 % 2]);
      sum[i % 4] += scores[i];
    }
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) sum_[r] = sum_[r] * keep_[r] + (sum[2 * r] + sum[2 * r + 1]);
  }

  // ptxas (13.0) moves a wgmma wait ahead of arithmetic that does not need it, but not ahead of a
  // store: this one, which nobody reads, keeps the softmax where it fills the time until the wait.
  __device__ void finish_softmax() {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared_address(&shared_.at.sink[threadIdx.x])),
                 "f"(sum_[0] + sum_[1])
                 : "memory");
  }

  __device__ static void pack(const float (&scores)[kScores], uint32_t (&weights)[kScores / 2]) {
#pragma unroll
    for (uint32_t j = 0; j < kScores / 2; ++j)
      weights[j] = pack_bf16(scores[2 * j], scores[2 * j + 1]);
  }

  // Four lanes hold a row: they trade until each has 8 neighbouring columns, one 16-byte store.
  __device__ void write(const PrefillTile& tile, const float (&out)[kOut]) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      const float inverse = 1.0F / sum;
      const uint32_t row = me_ * kConsumerRows + warp_ * 16 + lane_ / 4 + 8 * r;
      __nv_bfloat16* to =
          args_.out + (tile.row + row) * args_.out_stride + size_t{tile.head} * args_.head_dim;
#pragma unroll
      for (uint32_t g = 0; g < C::kHeadDim / 32; ++g) {
        uint32_t part[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          const uint32_t at = 4 * (4 * g + j) + 2 * r;
          part[j] = pack_bf16(out[at] * inverse, out[at + 1] * inverse);
        }
        transpose(part);
        const uint32_t column = 32 * g + 8 * (lane_ % 4);
        if (row < tile.rows && column < args_.head_dim)
          *reinterpret_cast<uint4*>(to + column) = make_uint4(part[0], part[1], part[2], part[3]);
      }
    }
  }

  // part[j] of lane i and part[i] of lane j change places, among each four lanes.
  __device__ void transpose(uint32_t (&part)[4]) {
    const bool odd = lane_ % 2 != 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; j += 2) {
      const uint32_t got = __shfl_xor_sync(~0U, odd ? part[j] : part[j + 1], 1);
      (odd ? part[j] : part[j + 1]) = got;
    }
    const bool upper = lane_ % 4 >= 2;
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t got = __shfl_xor_sync(~0U, upper ? part[j] : part[j + 2], 2);
      (upper ? part[j] : part[j + 2]) = got;
    }
  }

  const Arguments& args_;
  Shared<C>& shared_;
  const uint32_t me_;
  const uint32_t warp_;
  const uint32_t lane_;
  RingPosition<kTileSlots> slot_;
  RingPosition<C::kStages> k_;
  RingPosition<C::kStages> v_;
  uint32_t q_parity_ = 0;
  float max_[2];   // of the scores so far, unscaled; rows lane/4 and lane/4 + 8 of the warp
  float keep_[2];  // what the results of earlier tiles shrink by
  float sum_[2];   // of the weights in this lane's columns
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_wgmma_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared<C>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    Barriers<C>& at = shared.at;
    for (uint32_t i = 0; i < kConsumers; ++i) {
      barrier_init(&at.q_full[i], 1);
      barrier_init(&at.q_free[i], kWarpgroup / 32);
    }
    for (uint32_t i = 0; i < kTileSlots; ++i) {
      barrier_init(&at.tile_full[i], 1);
      // Of every thread that has read the tile.
      barrier_init(&at.tile_free[i], kConsumers * kWarpgroup);
    }
    for (uint32_t i = 0; i < C::kStages; ++i) {
      barrier_init(&at.k_full[i], 1);
      barrier_init(&at.k_free[i], kConsumerWarps);
      barrier_init(&at.v_full[i], 1);
      barrier_init(&at.v_free[i], kConsumerWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  allow_next();
  wait_for_previous();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<kProducerRegs>();
    if (threadIdx.x == 0) Producer<C>(args, shared).run();
  } else {
    setmaxnreg_inc<kConsumerRegs>();
    Consumer<C>(args, shared).run();
  }
}

cudaError_t make_maps(const PrefillAttention& args, uint32_t panel, uint32_t key_tile,
                      Arguments& to) {
  const uint64_t row = uint64_t{args.shape.head_dim} * sizeof(__nv_bfloat16);
  const uint32_t swizzle = panel * 2;
  const auto side = [&](const void* data, uint32_t positions, CUtensorMap& map) {
    return make_tensor_map({.data = data,
                            .size = {args.shape.head_dim, positions, args.shape.kv_heads},
                            .stride_1 = row,
                            .stride_2 = row * positions,
                            .box = {panel, key_tile, 1},
                            .swizzle = swizzle},
                           map);
  };
  cudaError_t error = make_tensor_map({.data = args.q,
                                       .size = {args.shape.head_dim, args.shape.heads, args.q_rows},
                                       .stride_1 = row,
                                       .stride_2 = args.q_stride * sizeof(__nv_bfloat16),
                                       .box = {panel, 1, kConsumerRows},
                                       .swizzle = swizzle},
                                      to.q);
  if (error == cudaSuccess) error = side(args.keys, args.positions, to.keys);
  if (error == cudaSuccess) error = side(args.values, args.positions, to.values);
  if (error != cudaSuccess || args.exact_keys == nullptr) return error;
  error = side(args.exact_keys, args.exact_positions, to.exact_keys);
  return error == cudaSuccess ? side(args.exact_values, args.exact_positions, to.exact_values)
                              : error;
}

template <class C>
cudaError_t launch(const PrefillAttention& args, cudaStream_t stream) {
  Arguments to = {};
  cudaError_t error = make_maps(args, C::kPanel, C::kKeyTile, to);
  if (error != cudaSuccess) return error;
  to.tiles = args.tiles;
  to.tile_count = args.tile_count;
  to.counters = args.counters;
  to.out = static_cast<__nv_bfloat16*>(args.out);
  to.out_stride = args.out_stride;
  to.head_dim = args.shape.head_dim;
  to.group = args.shape.heads / args.shape.kv_heads;
  to.window = args.window;
  to.exact = args.exact_keys != nullptr ? 1 : 0;
  to.scale_log2 = args.scale * 1.4426950408889634F;

  int device = 0;
  int processors = 0;
  error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  constexpr int kBytes = sizeof(Shared<C>) + 1024;
  error = cudaFuncSetAttribute(prefill_wgmma_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kBytes);
  if (error != cudaSuccess) return error;
  const uint32_t blocks = min(args.tile_count, static_cast<uint32_t>(processors));
  return launch_chained(prefill_wgmma_kernel<C>, blocks, kThreads, kBytes, stream, to);
}

}  // namespace

bool prefill_wgmma_takes(const PrefillAttention& args) {
  // What a tensor map can address: 16-byte strides.
  return args.shape.head_dim % 8 == 0 && args.shape.head_dim <= 256 && args.q_stride % 8 == 0 &&
         args.out_stride % 8 == 0;
}

cudaError_t attention_prefill_wgmma(const PrefillAttention& args, cudaStream_t stream) {
  // Key tiles: what registers (scores next to results) and shared memory (two stages) allow.
  const uint32_t head_dim = args.shape.head_dim;
  if (head_dim <= 64) return launch<Config<64, 128, 3>>(args, stream);
  if (head_dim <= 96) return launch<Config<96, 128, 2>>(args, stream);
  if (head_dim <= 128) return launch<Config<128, 128, 2>>(args, stream);
  if (head_dim <= 192) return launch<Config<192, 64, 3>>(args, stream);
  return launch<Config<256, 64, 2>>(args, stream);
}

}  // namespace tandem::cuda
