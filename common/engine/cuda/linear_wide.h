#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/cuda/cublas_lt.h"
#include "common/cuda/stream.h"
#include "common/engine/cuda/linear_cache.h"

namespace tandem::engine {

enum class WideOutput : uint8_t {
  kStore,       // bf16 out = y + bias
  kAdd,         // float out += y
  kStoreFloat,  // float out = y
};

// y[rows, out] = x[rows, in] @ weight[out, in]^T, all row-major and dense. Both are bf16, or with
// scales float8 e4m3: then each product is multiplied by its output's and its row's scale.
struct WideTask {
  const void* weight = nullptr;
  const Bf16* bias = nullptr;  // kStore only
  int64_t in = 0;
  int64_t out = 0;
  uint32_t rows = 0;
  const void* x = nullptr;
  WideOutput output = WideOutput::kStore;
  void* result = nullptr;
  const float* weight_scales = nullptr;  // [out]
  const float* x_scales = nullptr;       // [rows]

  [[nodiscard]] bool fp8() const { return weight_scales != nullptr; }
};

// Matrix products of more than a few rows through cuBLASLt. Algorithms are found by timing, once
// per shape and bucket of rows, before serving; a shape that was not prepared takes the library's
// first choice. Device thread only; run() neither allocates device memory nor synchronizes, and may
// be recorded.
class WideLinear {
 public:
  struct Deps {
    const cuda::CublasLt* lt = nullptr;  // outlives this
    void* workspace = nullptr;           // device memory, 256-byte aligned, outlives this
    size_t workspace_bytes = 0;
    std::string gpu;         // its name, for the cache file
    std::string cache_path;  // empty: no file
    // Of FP8 products: sums keep fewer bits. An algorithm's file must not be shared with exact
    // ones.
    bool fast_accumulation = false;
  };
  // What Hopper's kernels ask for at most in practice (NVIDIA recommends 32 MiB there).
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  [[nodiscard]] static Result<WideLinear> create(Deps deps);
  WideLinear(WideLinear&&) = default;
  WideLinear& operator=(WideLinear&&) = default;

  // Chooses algorithms for each task's shape at every bucket up to max_rows. The tasks' `x` and
  // `result` are scratch of max_rows rows and are overwritten; blocks until done.
  [[nodiscard]] Status prepare(std::span<const WideTask> tasks, uint32_t max_rows,
                               const cuda::Stream& stream);
  // Writes what prepare() found. `warnings()` has what was wrong with the file that was there.
  [[nodiscard]] Status save() const;
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  [[nodiscard]] size_t timed() const { return timed_; }  // buckets that were not in the file

  // kUnsupported: cuBLASLt has nothing for this shape (odd sizes); nothing was enqueued.
  [[nodiscard]] Status run(const WideTask& task, cudaStream_t stream);

 private:
  struct Product;
  struct ProductDeleter {
    void operator()(Product* p) const;
  };

  explicit WideLinear(Deps deps, WideCache cache)
      : deps_(std::move(deps)), cache_(std::move(cache)) {}
  [[nodiscard]] Result<Product*> product(const WideTask& task);
  [[nodiscard]] Result<std::vector<WideAlgorithm>> candidates(Product& p, const WideTask& task);
  [[nodiscard]] Result<WideAlgorithm> fastest(Product& p, const WideTask& task,
                                              const cuda::Stream& stream);
  [[nodiscard]] Status set_rows(Product& p, const WideTask& task) const;
  [[nodiscard]] Status enqueue(Product& p, const WideTask& task, const WideAlgorithm& algorithm,
                               cudaStream_t stream) const;

  Deps deps_;
  WideCache cache_;
  std::map<WideKey, std::unique_ptr<Product, ProductDeleter>> products_;  // rows 0
  std::map<WideKey, WideAlgorithm> chosen_;
  std::vector<std::string> warnings_;
  size_t timed_ = 0;
  bool changed_ = false;
};

}  // namespace tandem::engine
