#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/engine/cuda/arena.h"
#include "common/engine/cuda/linear.h"
#include "common/engine/ops.h"

namespace tandem::engine {

// [out, in], row-major. Of a gate_up weight row 2i is gate i and row 2i + 1 up i, so that one
// thread finds both halves of a product side by side.
class CudaLinear final : public LinearWeight {
 public:
  const Bf16* weight = nullptr;
  const Bf16* bias = nullptr;  // [out] or null
  // Instead of `weight`: float8 e4m3 with a scale for each row.
  const uint8_t* fp8 = nullptr;
  const float* scales = nullptr;

  [[nodiscard]] LinearRef ref() const { return {weight, bias, in, out, fp8, scales}; }
  [[nodiscard]] size_t element_bytes() const { return fp8 == nullptr ? sizeof(Bf16) : 1; }
};

// How a projection is kept.
enum class Precision : uint8_t { kBf16, kFp8 };

class CudaVector final : public VectorWeight {
 public:
  const float* data = nullptr;
};

class CudaEmbedding final : public EmbeddingWeight {
 public:
  const Bf16* table = nullptr;
};

class CudaMoe final : public MoeWeight {
 public:
  const float* router = nullptr;  // [experts, hidden]
  const Bf16* gate_up = nullptr;  // [experts, 2 * intermediate, hidden], rows as in CudaLinear
  const Bf16* down = nullptr;     // [experts, hidden, intermediate]
};

// Converts tensors to what the device keeps and uploads them through two pinned buffers: one is
// filled while the other is on its way. Device thread only.
class CudaWeightLoader {
 public:
  CudaWeightLoader(DeviceArena& arena, const cuda::Stream& stream)
      : arena_(&arena), stream_(&stream) {}

  // Parts one below the other, or interleaved row by row.
  [[nodiscard]] Result<std::unique_ptr<CudaLinear>> linear(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases, bool interleave,
      Precision precision = Precision::kBf16);
  [[nodiscard]] Result<const float*> floats(const model::HostTensor& values);
  [[nodiscard]] Result<std::unique_ptr<CudaMoe>> moe(
      const MoeShape& shape, const model::HostTensor& router,
      std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
      std::span<const model::HostTensor* const> down);
  // Waits for what is on its way and frees the pinned buffers; loading again makes new ones.
  [[nodiscard]] Status finish();

  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  struct Staging {
    cuda::PinnedBuffer memory;
    cuda::Event sent;
    bool in_flight = false;
  };
  // `row` writes logical row r, `row_bytes` long, into host memory; called from several threads.
  using RowWriter = std::function<void(int64_t row, std::byte* to)>;
  [[nodiscard]] Status upload(std::byte* device, int64_t rows, size_t row_bytes,
                              const RowWriter& row);
  // As one piece.
  [[nodiscard]] Result<const std::byte*> upload_bytes(const void* host, size_t bytes);
  [[nodiscard]] Result<Staging*> next_staging();
  [[nodiscard]] Result<std::byte*> device_memory(size_t bytes);

  DeviceArena* arena_;
  const cuda::Stream* stream_;
  Staging staging_[2];
  size_t turn_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tandem::engine
