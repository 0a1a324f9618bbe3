#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/result.h"
#include "common/cuda/stream.h"
#include "common/engine/cuda/linear_wide.h"
#include "kernels/cuda/linear_small.h"

namespace tandem::engine {

// A projection's weights on the device: weight[out, in] row-major bf16, 16-byte aligned, or instead
// float8 e4m3 with a scale for each output; gate | up with row 2i = gate i, row 2i + 1 = up i.
struct LinearRef {
  const Bf16* weight = nullptr;
  const Bf16* bias = nullptr;  // [out], or null
  int64_t in = 0;
  int64_t out = 0;
  const uint8_t* fp8 = nullptr;
  const float* scales = nullptr;  // [out], with `fp8`
};

// Rows in FP8, [rows, in], each with a scale.
struct Fp8Input {
  const uint8_t* rows = nullptr;
  const float* scales = nullptr;
};

// Rows that enter a projection through RMS norm: the residual stream, float [*, in].
struct NormInput {
  const float* x = nullptr;
  const uint32_t* index = nullptr;  // device; row i is x[index[i]]; null: row i
  const float* norm = nullptr;      // [in]
  float eps = 0;
};

// The fastest way for a number of rows (H200, Qwen2-7B's and Llama-3-8B's shapes): linear_small()
// for the fewest, then linear_batch(), then cuBLASLt. linear_batch() would be up to 4 % faster from
// 5 rows of bf16 on, but a row has the same bits in all steps that take the same way: up to 8 rows
// that is worth more, to small batches and to guesses that are verified.
struct OwnRows {
  uint32_t small;  // up to so many
  uint32_t batch;
};
[[nodiscard]] constexpr OwnRows own_rows(bool fp8) { return fp8 ? OwnRows{8, 48} : OwnRows{8, 32}; }

// The linear layers of Ops: up to own_rows() kernels that stream the weights, above that cuBLASLt,
// for which FP8 weights want rows in FP8: they are quantized row by row, by the kernel that makes
// them where there is one. Fewer rows stay bf16. Device thread only; enqueues on the given stream,
// keeps scratch that consecutive calls share, so all calls must be ordered among themselves.
// Nothing allocates or synchronizes after prepare().
class LinearRunner {
 public:
  struct Limits {
    uint32_t max_rows = 0;    // of a step
    int64_t max_hidden = 0;   // longest input behind a norm
    int64_t max_gate_up = 0;  // most outputs of a gate | up projection
    // Longest input of an FP8 projection that norm_gate_up has not made; 0: there is none.
    int64_t max_fp8_in = 0;
  };
  struct Deps {
    const cuda::CublasLt* lt = nullptr;  // outlives this
    std::byte* scratch = nullptr;        // device, scratch_bytes(limits), 256-byte aligned
    Limits limits;
    std::string gpu;  // name, for the cache of algorithms
    uint32_t multiprocessors = 0;
    std::string cache_path;  // empty: algorithms are timed at every start
  };

  [[nodiscard]] static size_t scratch_bytes(const Limits& limits);
  [[nodiscard]] static Result<LinearRunner> create(Deps deps);

  // Finds the algorithms of all wide shapes. `gate_up`: those used by norm_gate_up. `result` is
  // device scratch for max_rows rows of the longest output in float32 (activations will do).
  struct Shapes {
    std::vector<LinearRef> store;    // norm_linear
    std::vector<LinearRef> add;      // linear_add
    std::vector<LinearRef> gate_up;  // norm_gate_up
    std::vector<LinearRef> head;     // logits
    uint32_t head_rows = 0;          // most rows of logits()
  };
  struct Scratch {
    void* input = nullptr;   // bf16 [max_rows, longest input]
    void* result = nullptr;  // as above
    size_t result_bytes = 0;
  };
  [[nodiscard]] Status prepare(const Shapes& shapes, const Scratch& scratch,
                               const cuda::Stream& stream);
  [[nodiscard]] const WideLinear& wide() const { return wide_; }

  // bf16 out[rows, out] = norm(x) @ weight^T + bias
  [[nodiscard]] Status norm_linear(uint32_t rows, const NormInput& x, const LinearRef& weight,
                                   Bf16* out, cudaStream_t stream);
  // float x[rows, out] += in @ weight^T + bias
  [[nodiscard]] Status linear_add(uint32_t rows, const Bf16* in, const LinearRef& weight, float* x,
                                  cudaStream_t stream);
  // bf16 out[rows, out / 2] = silu(gate) * up. Of FP8 weights and more than own_rows(true).batch
  // rows `out` holds FP8 rows afterwards, whose scales stay here: the linear_add of the same `out`
  // and rows that follows knows them.
  [[nodiscard]] Status norm_gate_up(uint32_t rows, const NormInput& x, const LinearRef& weight,
                                    Bf16* out, cudaStream_t stream);
  // float out[rows, out]
  [[nodiscard]] Status logits(uint32_t rows, const NormInput& x, const LinearRef& head, float* out,
                              cudaStream_t stream);

 private:
  LinearRunner(Deps deps, WideLinear wide);
  [[nodiscard]] Status own(const cuda::SmallLinear& task, cudaStream_t stream) const;
  [[nodiscard]] Status norm_rows(uint32_t rows, const NormInput& x, int64_t hidden,
                                 cudaStream_t stream) const;
  [[nodiscard]] Status quantize_normed(uint32_t rows, const NormInput& x, int64_t hidden,
                                       cudaStream_t stream) const;
  [[nodiscard]] Status project(const LinearRef& weight, uint32_t rows, const Bf16* x,
                               WideOutput output, void* result, cudaStream_t stream);
  [[nodiscard]] Status project_fp8(const LinearRef& weight, uint32_t rows, Fp8Input x,
                                   WideOutput output, void* result, cudaStream_t stream);
  // cuBLASLt, or where it has nothing for the shape the plain kernel.
  [[nodiscard]] Status multiply(const WideTask& task, cudaStream_t stream);

  Deps deps_;
  WideLinear wide_;
  Bf16* normed_ = nullptr;         // [max_rows, max_hidden]
  Bf16* gate_up_ = nullptr;        // [kGateUpRows, max_gate_up]
  float* factors_ = nullptr;       // [kSmallRows]
  uint8_t* fp8_rows_ = nullptr;    // [max_rows, max_fp8_in]
  float* fp8_scales_ = nullptr;    // [max_rows]
  float* gated_scales_ = nullptr;  // [max_rows], of the rows in gated_
  const Bf16* gated_ = nullptr;    // where norm_gate_up has put FP8 rows
};

}  // namespace tandem::engine
