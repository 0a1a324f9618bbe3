#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/engine/ops.h"
#include "kernels/cpu/kernels.h"

namespace tandem::engine {

class ThreadPool;

// Memory that lives as long as the engine: weights and activations. Asks for huge pages, which
// keeps the TLB out of the read stream. Never gives anything back before its end; device thread
// only.
class CpuArena {
 public:
  CpuArena() = default;
  ~CpuArena();
  CpuArena(const CpuArena&) = delete;
  CpuArena& operator=(const CpuArena&) = delete;

  // 64-byte aligned, zeroed.
  [[nodiscard]] Result<std::byte*> allocate(size_t bytes);

 private:
  struct Chunk {
    std::byte* data = nullptr;
    size_t size = 0;
    size_t used = 0;
  };
  std::vector<Chunk> chunks_;
};

// Consecutive outputs that start on a panel of their own.
struct LinearPart {
  int64_t panel_begin = 0;
  int64_t panels = 0;
  int64_t out_begin = 0;
  int64_t out = 0;
};

// Packed panels (kernels/cpu/kernels.h). Each part of a fused projection is padded to whole panels,
// so that gate and up panels with the same number belong together.
class CpuLinear final : public LinearWeight {
 public:
  DType type = DType::kF32;
  const std::byte* panels = nullptr;
  int64_t panel_count = 0;
  size_t panel_bytes = 0;
  std::vector<LinearPart> parts;
  const float* bias = nullptr;  // [out] or null

  [[nodiscard]] const std::byte* panel(int64_t p) const {
    return panels + static_cast<size_t>(p) * panel_bytes;
  }
};

class CpuVector final : public VectorWeight {
 public:
  const float* data = nullptr;
};

class CpuEmbedding final : public EmbeddingWeight {
 public:
  std::unique_ptr<CpuLinear> table;  // as a projection to V, so that a tied head needs no copy
};

class CpuMoe final : public MoeWeight {
 public:
  std::unique_ptr<CpuLinear> router;  // always float32: its rounding would change the choice
  std::vector<std::unique_ptr<CpuLinear>> gate_up;
  std::vector<std::unique_ptr<CpuLinear>> down;
};

// Converts and packs on all threads of the pool.
class WeightLoader {
 public:
  WeightLoader(CpuArena& arena, ThreadPool& pool, const cpu::KernelTable& kernels)
      : arena_(arena), pool_(pool), kernels_(kernels) {}

  [[nodiscard]] Result<std::unique_ptr<CpuLinear>> linear(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases, DType type);
  [[nodiscard]] Result<const float*> vector(const model::HostTensor& values);
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void pack(const model::HostTensor& part, const LinearPart& place, CpuLinear& weight);
  [[nodiscard]] Result<const float*> bias(std::span<const model::HostTensor* const> biases,
                                          const CpuLinear& weight);

  CpuArena& arena_;
  ThreadPool& pool_;
  const cpu::KernelTable& kernels_;
  size_t bytes_ = 0;
};

}  // namespace tandem::engine
