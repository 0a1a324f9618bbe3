#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/base/dtype.h"
#include "common/kv/codec.h"
#include "kernels/cuda/step.h"
#include "tests/gpu/card.h"

// A KV pool, sequences in it and one step over them, on the host and on the card. Whatever nobody
// has written is 0xff bytes: NaNs in every format.
namespace tandem::cuda {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, bytes() + 16), cudaSuccess);
    upload(host);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  void upload(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), size_);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> out(size_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  [[nodiscard]] size_t bytes() const { return size_ * sizeof(T); }
  void* data_ = nullptr;
  size_t size_;
};

inline float rounded(float x) { return to_float(to_bf16(x)); }

struct SceneShape {
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 64;
  kv::KvFormat format = kv::KvFormat::kBf16;
};

struct SceneSequence {
  uint32_t start = 0;
  uint32_t rows = 1;
};

class KvScene {
 public:
  // `values` draws one float; prefix rows are encoded on the host by the codec.
  template <typename Draw>
  KvScene(const SceneShape& shape, std::vector<SceneSequence> sequences, Draw draw)
      : shape_(shape),
        layout_{kLayers, shape.kv_heads, shape.head_dim, shape.format},
        sequences_(std::move(sequences)) {
    uint32_t pages = 0;
    for (const SceneSequence& s : sequences_) pages += pages_of(s);
    blocks_ = pages + 3;
    tails_ = static_cast<uint32_t>(sequences_.size()) + 1;
    std::vector<uint32_t> free(blocks_);
    std::iota(free.begin(), free.end(), 0U);
    std::shuffle(free.begin(), free.end(), std::mt19937(blocks_));
    pool.assign(kLayers * blocks_ * layout_.page_bytes(), std::byte{0xff});
    tail.assign(layout_.needs_tail() ? kLayers * tails_ * layout_.tail_layout().page_bytes() : 0,
                std::byte{0xff});
    for (uint32_t i = 0; i < sequences_.size(); ++i) {
      const SceneSequence& s = sequences_[i];
      SequenceSlot slot;
      slot.first_row = rows_;
      slot.rows = s.rows;
      slot.start = s.start;
      slot.first_block = static_cast<uint32_t>(table.size());
      slot.tail = (i + 1) % tails_;
      slots.push_back(slot);
      for (uint32_t p = 0; p < pages_of(s); ++p) {
        table.push_back(free.back());
        free.pop_back();
      }
      for (uint32_t r = 0; r < s.rows; ++r) {
        row_sequence.push_back(static_cast<int32_t>(i));
        positions.push_back(static_cast<int32_t>(s.start + r));
      }
      rows_ += s.rows;
      max_rows_ = std::max(max_rows_, s.rows);
      max_context_ = std::max(max_context_, s.start + s.rows);
      keys.emplace_back(size_t{s.start} * width());
      vals.emplace_back(size_t{s.start} * width());
      for (float& x : keys.back()) x = draw();
      for (float& x : vals.back()) x = draw();
      write_prefix(i);
    }
    qkv.resize(size_t{rows_} * columns());
    for (Bf16& x : qkv) x = to_bf16(draw());
  }

  static constexpr uint32_t kLayers = 2;
  static constexpr uint32_t kLayer = 1;  // the one under test

  SceneShape shape_;
  kv::KvLayout layout_;
  std::vector<SceneSequence> sequences_;
  uint32_t blocks_ = 0;
  uint32_t tails_ = 0;
  uint32_t rows_ = 0;
  uint32_t max_rows_ = 0;
  uint32_t max_context_ = 0;
  std::vector<std::byte> pool, tail;
  std::vector<SequenceSlot> slots;
  std::vector<uint32_t> table;
  std::vector<int32_t> row_sequence, positions;
  std::vector<std::vector<float>> keys, vals;  // of each prefix: [start][kv_heads][head_dim]
  std::vector<Bf16> qkv;

  [[nodiscard]] uint32_t width() const { return shape_.kv_heads * shape_.head_dim; }
  [[nodiscard]] uint32_t columns() const { return shape_.heads * shape_.head_dim + 2 * width(); }
  [[nodiscard]] static uint32_t pages_of(const SceneSequence& s) {
    return (s.start + s.rows + 15) / 16;
  }
  [[nodiscard]] std::byte* page(std::vector<std::byte>& bytes, uint32_t sequence,
                                uint32_t p) const {
    const uint32_t block = table[slots[sequence].first_block + p];
    return bytes.data() + (size_t{kLayer} * blocks_ + block) * layout_.page_bytes();
  }
  [[nodiscard]] std::byte* tail_page(std::vector<std::byte>& bytes, uint32_t sequence) const {
    return bytes.data() +
           (size_t{kLayer} * tails_ + slots[sequence].tail) * layout_.tail_layout().page_bytes();
  }
  // A row of this step.
  [[nodiscard]] const Bf16* row_key(const std::vector<Bf16>& from, uint32_t sequence,
                                    uint32_t position, uint32_t head) const {
    return from.data() +
           size_t{slots[sequence].first_row + position - slots[sequence].start} * columns() +
           (shape_.heads + head) * shape_.head_dim;
  }
  [[nodiscard]] const Bf16* row_value(const std::vector<Bf16>& from, uint32_t sequence,
                                      uint32_t position, uint32_t head) const {
    return row_key(from, sequence, position, head) + width();
  }

 private:
  void write_prefix(uint32_t s) {
    const uint32_t start = slots[s].start;
    const bool tails = layout_.needs_tail();
    const uint32_t hd = shape_.head_dim;
    if (tails) {  // these formats only ever see rows rounded to bf16
      for (float& x : keys[s]) x = rounded(x);
      for (float& x : vals[s]) x = rounded(x);
    }
    for (uint32_t p = 0; p * 16 < start; ++p) {
      const uint32_t count = std::min(16U, start - p * 16);
      const bool open = tails && count < 16;
      const kv::KvLayout to = open ? layout_.tail_layout() : layout_;
      std::byte* bytes = open ? tail_page(tail, s) : page(pool, s, p);
      for (uint32_t h = 0; h < shape_.kv_heads; ++h)
        for (const kv::KvSide side : {kv::KvSide::kK, kv::KvSide::kV}) {
          const float* rows =
              (side == kv::KvSide::kK ? keys : vals)[s].data() + size_t{p} * 16 * width() + h * hd;
          std::byte* section = bytes + kv::section_offset(to, h, side);
          if (!kv::row_coded(to, side)) {
            kv::encode_section(to, side, rows, width(), section);
            continue;
          }
          for (uint32_t t = 0; t < count; ++t)
            kv::encode_row(to, side, t, rows + size_t{t} * width(), section);
        }
    }
  }
};

// The scene on the card.
struct SceneOnCard {
  explicit SceneOnCard(const KvScene& scene)
      : pool(scene.pool),
        tail(scene.tail),
        kept(std::vector<std::byte>(scene.layout_.tail_layout().page_bytes() * scene.slots.size(),
                                    std::byte{0xff})),
        slots(scene.slots),
        table(scene.table),
        row_sequence(scene.row_sequence),
        positions(scene.positions),
        qkv(scene.qkv) {
    step.positions = positions.data();
    step.row_sequence = row_sequence.data();
    step.slots = slots.data();
    step.blocks = table.data();
    step.rows = scene.rows_;
    step.sequences = static_cast<uint32_t>(scene.slots.size());
    step.max_rows = scene.max_rows_;
    step.max_context = scene.max_context_;
    kv.layout = scene.layout_;
    kv.pages = pool.data();
    kv.blocks = scene.blocks_;
    kv.tail = scene.layout_.needs_tail() ? tail.data() : nullptr;
    kv.tails = scene.tails_;
  }

  DeviceArray<std::byte> pool, tail, kept;
  DeviceArray<SequenceSlot> slots;
  DeviceArray<uint32_t> table;
  DeviceArray<int32_t> row_sequence, positions;
  DeviceArray<Bf16> qkv;
  DeviceStep step;
  DeviceKv kv;
};

inline constexpr kv::KvFormat kAllFormats[] = {kv::KvFormat::kF32,     kv::KvFormat::kBf16,
                                               kv::KvFormat::kFp8E4M3, kv::KvFormat::kInt8,
                                               kv::KvFormat::kK8V4,    kv::KvFormat::kInt4};

}  // namespace tandem::cuda
