#pragma once

#include <cuda_bf16.h>

#include "common/kv/layout.h"
#include "kernels/cuda/attention_prefill.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/tma.cuh"

// What the two sides of the wgmma prefill kernel share, and the side that feeds: tile shapes,
// shared memory, the order of key tiles, and the producer thread.
namespace tandem::cuda::prefill {

constexpr uint32_t kPageTokens = kv::kBlockTokens;
constexpr uint32_t kWarpgroup = 128;
constexpr uint32_t kConsumers = 2;
constexpr uint32_t kConsumerRows = 64;
constexpr uint32_t kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr uint32_t kThreads = (1 + kConsumers) * kWarpgroup;
// The producer needs few registers; what it gives back lets the consumers hold scores, weights and
// results at once: 40 + 2 * 232 = 504 of the 512 = 65,536 / 128.
constexpr int kProducerRegs = 40;
constexpr int kConsumerRegs = 232;
constexpr uint32_t kTileSlots = 2;

// Shapes of one instantiation. `HeadDim` is the padded one: columns past the real one arrive as
// zeros.
template <uint32_t HeadDim, uint32_t KeyTile, uint32_t Stages>
struct Config {
  static constexpr uint32_t kHeadDim = HeadDim;
  static constexpr uint32_t kKeyTile = KeyTile;
  static constexpr uint32_t kStages = Stages;
  // A panel is the columns of one swizzled row.
  static constexpr uint32_t kPanel = HeadDim % 64 == 0 ? 64 : 32;
  static constexpr uint32_t kPanels = HeadDim / kPanel;
  static constexpr uint32_t kSwizzle = kPanel * 2;
  static constexpr uint32_t kQueryPanelBytes = kConsumerRows * kSwizzle;
  static constexpr uint32_t kQueryBytes = kPanels * kQueryPanelBytes;  // of one consumer
  static constexpr uint32_t kKeyPanelBytes = KeyTile * kSwizzle;
  static constexpr uint32_t kKeyBytes = kPanels * kKeyPanelBytes;  // of one stage
  static_assert(kPrefillAlign % KeyTile == 0);
};

template <class C>
struct Barriers {
  uint64_t q_full[kConsumers];
  uint64_t q_free[kConsumers];
  uint64_t tile_full[kTileSlots];
  uint64_t tile_free[kTileSlots];
  uint64_t k_full[C::kStages];
  uint64_t k_free[C::kStages];
  uint64_t v_full[C::kStages];
  uint64_t v_free[C::kStages];
  PrefillTile tiles[kTileSlots];  // rows 0: the end
  float sink[kThreads];           // finish_softmax()
};

template <class C>
struct Shared {
  alignas(1024) unsigned char q[kConsumers][C::kQueryBytes];
  alignas(1024) unsigned char k[C::kStages][C::kKeyBytes];
  alignas(1024) unsigned char v[C::kStages][C::kKeyBytes];
  alignas(16) Barriers<C> at;
};

struct Arguments {
  CUtensorMap q;
  CUtensorMap keys;
  CUtensorMap values;
  CUtensorMap exact_keys;
  CUtensorMap exact_values;
  const PrefillTile* tiles;
  uint32_t tile_count;
  uint32_t* counters;
  __nv_bfloat16* out;
  uint64_t out_stride;
  uint32_t head_dim;
  uint32_t group;
  uint32_t window;
  uint32_t exact;  // 0 or 1
  float scale_log2;
};

// The key tiles of a query tile in the order in which both sides take them: those of the exact
// workspace, then the stored ones downward from the diagonal.
struct KeyRange {
  uint32_t exact = 0;  // count
  uint32_t last = 0;   // stored tiles first .. last-1
  uint32_t count = 0;  // in all

  __device__ KeyRange(const Arguments& args, const PrefillTile& tile, uint32_t key_tile) {
    const uint32_t end = tile.position + tile.rows;
    uint32_t stored_end = end;
    if (args.exact != 0) {
      const uint32_t page = tile.position / kPageTokens * kPageTokens;
      exact = (end - page + key_tile - 1) / key_tile;
      stored_end = (end - 1) / kPageTokens * kPageTokens;
    }
    const uint32_t begin =
        args.window == 0 || tile.position < args.window ? 0 : tile.position - args.window + 1;
    const uint32_t first = begin / key_tile;
    last = (stored_end + key_tile - 1) / key_tile;
    count = exact + (last > first ? last - first : 0);
  }
  __device__ bool is_exact(uint32_t i) const { return i < exact; }
  __device__ uint32_t stored(uint32_t i) const { return last - 1 - (i - exact); }
};

// Position in a ring of buffers, each with a full and a free barrier.
template <uint32_t Stages>
struct RingPosition {
  uint32_t stage = 0;
  uint32_t parity = 0;  // of the full barrier; the free one is awaited with parity ^ 1
  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class C>
class Producer {
 public:
  __device__ Producer(const Arguments& args, Shared<C>& shared) : args_(args), shared_(shared) {}

  __device__ void run() {
    uint32_t index = blockIdx.x;
    while (index < args_.tile_count) {
      const PrefillTile tile = args_.tiles[index];
      // Early, so that its latency hides behind this tile's copies.
      index = gridDim.x + atomicAdd(&args_.counters[0], 1);
      announce(tile);
      load(tile);
    }
    announce(PrefillTile{});
    // The last block through leaves the counters as it found them.
    __threadfence();
    if (atomicAdd(&args_.counters[1], 1) == gridDim.x - 1) {
      args_.counters[0] = 0;
      args_.counters[1] = 0;
    }
  }

 private:
  __device__ void announce(const PrefillTile& tile) {
    barrier_wait(&shared_.at.tile_free[slot_.stage], slot_.parity ^ 1);
    shared_.at.tiles[slot_.stage] = tile;
    barrier_arrive(&shared_.at.tile_full[slot_.stage]);
    slot_.advance();
  }

  __device__ void load(const PrefillTile& tile) {
    const KeyRange range(args_, tile, C::kKeyTile);
    load_keys(tile, range, 0);
    for (uint32_t w = 0; w < kConsumers; ++w)
      if (w * kConsumerRows < tile.rows) load_queries(tile, w);
    for (uint32_t i = 1; i < range.count; ++i) {
      load_keys(tile, range, i);
      load_values(tile, range, i - 1);
    }
    load_values(tile, range, range.count - 1);
  }

  __device__ void load_queries(const PrefillTile& tile, uint32_t w) {
    Barriers<C>& at = shared_.at;
    barrier_wait(&at.q_free[w], ((q_parity_ >> w) & 1) ^ 1);
    q_parity_ ^= 1U << w;
    barrier_expect(&at.q_full[w], C::kQueryBytes);
#pragma unroll 1
    for (uint32_t p = 0; p < C::kPanels; ++p)
      tma_load_3d(shared_.q[w] + p * C::kQueryPanelBytes, &args_.q, &at.q_full[w],
                  static_cast<int32_t>(p * C::kPanel), static_cast<int32_t>(tile.head),
                  static_cast<int32_t>(tile.row + w * kConsumerRows));
  }

  __device__ void load_keys(const PrefillTile& tile, const KeyRange& range, uint32_t i) {
    barrier_wait(&shared_.at.k_free[k_.stage], k_.parity ^ 1);
    load_side(tile, range, i, &args_.keys, &args_.exact_keys, &shared_.at.k_full[k_.stage],
              shared_.k[k_.stage]);
    k_.advance();
  }

  __device__ void load_values(const PrefillTile& tile, const KeyRange& range, uint32_t i) {
    barrier_wait(&shared_.at.v_free[v_.stage], v_.parity ^ 1);
    load_side(tile, range, i, &args_.values, &args_.exact_values, &shared_.at.v_full[v_.stage],
              shared_.v[v_.stage]);
    v_.advance();
  }

  __device__ void load_side(const PrefillTile& tile, const KeyRange& range, uint32_t i,
                            const CUtensorMap* stored, const CUtensorMap* exact, uint64_t* full,
                            unsigned char* to) {
    const bool is_exact = range.is_exact(i);
    const uint32_t at = is_exact ? tile.exact_offset + i * C::kKeyTile
                                 : tile.kv_offset + range.stored(i) * C::kKeyTile;
    const uint32_t head = tile.head / args_.group;
    barrier_expect(full, C::kKeyBytes);
#pragma unroll 1
    for (uint32_t p = 0; p < C::kPanels; ++p)
      tma_load_3d(to + p * C::kKeyPanelBytes, is_exact ? exact : stored, full,
                  static_cast<int32_t>(p * C::kPanel), static_cast<int32_t>(at),
                  static_cast<int32_t>(head));
  }

  const Arguments& args_;
  Shared<C>& shared_;
  RingPosition<kTileSlots> slot_;
  RingPosition<C::kStages> k_;
  RingPosition<C::kStages> v_;
  uint32_t q_parity_ = 0;
};

}  // namespace tandem::cuda::prefill
