#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"

// Kernel benches of a card, free of CUDA headers: `tandem bench kernels` prints what comes out.
// Built without CUDA, everything here answers that it was.
namespace tandem::bench {

// One measured line. Every figure is a ratio against a ceiling or peer of the same run.
struct DeviceRow {
  std::string what;   // "decode attention int4"
  std::string shape;  // "32 x 8192, 28/4 heads of 128"
  double seconds = 0;
  double rate = 0;       // in `unit`
  std::string unit;      // "GB/s", "TFLOP/s"; empty: no rate
  double ceiling = 0;    // in `unit`; 0: there is none
  std::string against;   // "read stream", "cuDNN"
  double target = 0;     // of the ratio; 0: none stated
  bool at_most = false;  // the target is an upper bound
  double ratio = 0;      // rate / ceiling unless set otherwise
  std::string note;

  [[nodiscard]] bool passes() const {
    return target == 0 || (at_most ? ratio <= target : ratio >= target);
  }
};

struct Ceilings {
  std::string device;          // "NVIDIA H200"
  std::string driver;          // newest CUDA of the driver, "13.0"
  double copy_bytes = 0;       // a second, read + written
  double read_bytes = 0;       // a second
  double bf16_flops = 0;       // a second, cuBLASLt 8192^3
  std::string cublas_missing;  // why there is no bf16_flops
};

struct KernelBenchOptions {
  int device = 0;
  std::string only;  // runs the groups whose name contains it: linear, attention, kv, sampling
  // Where PyTorch is asked for cuDNN's attention, in the same run; empty: not at all.
  std::string python = "python3";
  std::vector<std::string> libraries;  // folders with cuBLASLt
};

using RowSink = std::function<void(const DeviceRow&)>;

// Rows come as they are measured, the ceilings first.
[[nodiscard]] Result<Ceilings> bench_kernels(const KernelBenchOptions& options,
                                             const RowSink& sink);
// The ceilings alone.
[[nodiscard]] Result<Ceilings> bench_ceilings(const KernelBenchOptions& options);

// Matrix products of dense layers.
struct LayerShape {
  uint32_t layers = 0;
  int64_t hidden = 0;
  int64_t qkv = 0;       // outputs of the fused projection
  int64_t attended = 0;  // inputs of the output projection
  int64_t inner = 0;
};
// Seconds of all layers' products alone, on `rows` tokens through cuBLASLt, back to back, each
// layer with its own weights: as long and as hot a run as the whole prefill is. In bf16 or FP8.
[[nodiscard]] Result<double> product_seconds(const KernelBenchOptions& options,
                                             const LayerShape& shape, uint32_t rows, bool fp8);

}  // namespace tandem::bench
