#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace tandem::model {

// How a checkpoint stores a tensor. Packed types are GGUF blocks of 32 values along the last
// dimension: kQ8_0 {half d; int8 q[32]}, kQ4_0 {half d; nibbles, w = d*(q-8)},
// kQ4_1 {half d, half m; nibbles, w = d*q + m}.
enum class StorageType : uint8_t { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1 };

[[nodiscard]] std::string_view to_string(StorageType t);
// Bytes of `values` elements along the last dimension; `values` must be a multiple of 32 if packed.
[[nodiscard]] size_t storage_bytes(StorageType t, size_t values);

// A tensor in host memory, usually a view into a mapped checkpoint. The packed form stays
// reachable: engines convert when they load, so kernels on packed weights need no other loader.
struct HostTensor {
  std::string name;  // as the checkpoint names it, for messages
  StorageType type = StorageType::kF32;
  std::vector<int64_t> shape;  // outermost first, as safetensors and PyTorch write it
  std::span<const std::byte> bytes;
  // Llama-family GGUF stores q and k rows for interleaved RoPE: row (h, 2i+j) belongs at
  // (h, i + j*head_dim/2). 0: rows are in order; else the number of heads to undo this for.
  uint32_t interleaved_heads = 0;

  [[nodiscard]] int64_t rows() const { return shape.empty() ? 1 : shape.front(); }
  [[nodiscard]] int64_t cols() const { return shape.size() < 2 ? 1 : shape.back(); }
  [[nodiscard]] int64_t elements() const;
};

// Source row of logical row `row`, after undoing interleaved_heads.
[[nodiscard]] int64_t stored_row(const HostTensor& t, int64_t row);

// Converts logical row `row` of a matrix (or a whole vector, row 0) to float32; `out` holds
// shape.back() values.
void read_row(const HostTensor& t, int64_t row, std::span<float> out);

}  // namespace tandem::model
