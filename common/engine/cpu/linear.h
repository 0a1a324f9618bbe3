#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/engine/cpu/thread_pool.h"
#include "common/engine/cpu/weights.h"
#include "kernels/cpu/kernels.h"

namespace tandem::engine {

// Rows that enter a projection: rows[i] of x (or row i when `rows` is empty), through RMS norm when
// `norm` is set.
struct LinearInput {
  const float* x = nullptr;
  int64_t stride = 0;
  std::span<const uint32_t> rows;
  const float* norm = nullptr;
  float eps = 0;

  [[nodiscard]] const float* row(int64_t i) const {
    return x + (rows.empty() ? i : static_cast<int64_t>(rows[static_cast<size_t>(i)])) * stride;
  }
};

enum class Epilogue : uint8_t {
  kStore,    // out = y
  kAdd,      // out += y
  kSiluMul,  // out = silu(gate) * up, of a weight of two equal parts
};

struct LinearOutput {
  Epilogue epilogue = Epilogue::kStore;
  float* data = nullptr;
  int64_t stride = 0;
};

// y = x @ weight^T + bias for any number of rows, on all threads of the pool. A row's result does
// not depend on the others: see kernels/cpu/kernels.h. Device thread only; keeps scratch between
// calls.
class LinearRunner {
 public:
  LinearRunner(ThreadPool& pool, const cpu::KernelTable& kernels);
  void run(int64_t rows, const LinearInput& in, const CpuLinear& weight, const LinearOutput& out);

 private:
  // One thread's piece of the work.
  struct Block {
    int64_t row_begin = 0;
    int64_t rows = 0;
    int64_t panel_begin = 0;
    int64_t panels = 0;
  };
  struct Activations {
    const void* data = nullptr;
    int64_t stride = 0;    // elements
    bool rounded = false;  // bf16, else float
  };
  struct Scratch {
    std::vector<float> normed;    // one row
    std::vector<std::byte> rows;  // the few rows of the narrow path
    bool prepared = false;        // `rows` holds those of the running call
    std::vector<float> sums;      // a block's raw results
  };

  void run_narrow(int64_t rows, const LinearInput& in, const CpuLinear& weight,
                  const LinearOutput& out);
  void run_wide(int64_t rows, const LinearInput& in, const CpuLinear& weight,
                const LinearOutput& out);
  [[nodiscard]] bool rounds(const CpuLinear& weight, Epilogue epilogue) const;
  // A row of activations as the kernels read it.
  void prepare(const LinearInput& in, int64_t row, const CpuLinear& weight, bool round,
               Scratch& scratch, std::byte* to) const;
  void multiply(const Activations& a, const CpuLinear& weight, const Block& block, float* sums,
                int64_t sums_stride) const;
  void compute(const Activations& a, const CpuLinear& weight, const Block& block, Scratch& scratch,
               const LinearOutput& out) const;
  void finish(const CpuLinear& weight, const LinearPart& part, const Block& block,
              const float* sums, const LinearOutput& out) const;
  void finish_silu(const CpuLinear& weight, const Block& block, const float* sums,
                   const LinearOutput& out) const;

  ThreadPool& pool_;
  const cpu::KernelTable& kernels_;
  std::vector<Scratch> scratch_;        // per thread
  std::vector<std::byte> activations_;  // all rows of the wide path
};

}  // namespace tandem::engine
