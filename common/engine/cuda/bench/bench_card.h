#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/cuda/device.h"
#include "common/cuda/graph.h"
#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/engine/cuda/bench/device_bench.h"

namespace tandem::bench {

// The card under test: one stream, timing, and memory with random contents. One thread.
class BenchCard {
 public:
  [[nodiscard]] static Result<BenchCard> open(const KernelBenchOptions& options);

  // Enqueues the call with inputs of set `variant` (0 .. variants-1): sets in turn, so that nothing
  // is timed on what the last call left in the cache.
  using Body = std::function<Status(uint32_t variant)>;
  // Seconds of one call: the median over replays of a graph that holds every variant, several times
  // if calls are short.
  [[nodiscard]] Result<double> seconds(const Body& body, uint32_t variants);
  // How many sets of this size keep the cache (four times over) from helping.
  [[nodiscard]] uint32_t variants_for(size_t bytes) const;

  [[nodiscard]] Result<cuda::DeviceBuffer> normal_bf16(size_t count, float deviation);
  [[nodiscard]] Result<cuda::DeviceBuffer> normal_float(size_t count, float deviation);
  [[nodiscard]] Result<cuda::DeviceBuffer> zeros(size_t bytes);
  template <typename T>
  [[nodiscard]] Result<cuda::DeviceBuffer> upload(const std::vector<T>& host) {
    return upload_bytes(host.data(), host.size() * sizeof(T));
  }

  [[nodiscard]] const cuda::Stream& stream() const { return stream_; }
  [[nodiscard]] const cuda::DeviceInfo& info() const { return device_.info(); }

  Ceilings ceilings;

 private:
  explicit BenchCard(cuda::Device device) : device_(std::move(device)) {}
  [[nodiscard]] Result<cuda::DeviceBuffer> upload_bytes(const void* host, size_t bytes);
  [[nodiscard]] Result<double> replay(const cuda::GraphExec& graph);

  cuda::Device device_;
  cuda::Stream stream_;
  cuda::Event start_;
  cuda::Event end_;
  uint32_t seed_ = 1;
};

// The groups. Each measures and hands its rows to the sink.
[[nodiscard]] Status measure_ceilings(BenchCard& card, const KernelBenchOptions& options);
[[nodiscard]] Status bench_linear(BenchCard& card, const KernelBenchOptions& options,
                                  const RowSink& sink);
[[nodiscard]] Status bench_prefill_attention(BenchCard& card, const KernelBenchOptions& options,
                                             const RowSink& sink);
[[nodiscard]] Status bench_kv(BenchCard& card, const RowSink& sink);
[[nodiscard]] Status bench_decode_attention(BenchCard& card, const RowSink& sink);
[[nodiscard]] Status bench_sampling(BenchCard& card, const RowSink& sink);

// TFLOP/s of cuDNN's causal attention at these lengths (28 heads, 4 of them for keys, of 128) as
// PyTorch reaches it; an error says why it was not measured.
[[nodiscard]] Result<std::vector<double>> cudnn_attention(const std::string& python, int device,
                                                          const std::vector<uint32_t>& lengths);

// A row about bytes against the read stream, or about operations.
[[nodiscard]] DeviceRow bytes_row(const BenchCard& card, std::string what, std::string shape,
                                  double seconds, double bytes, double target);
[[nodiscard]] DeviceRow flops_row(const BenchCard& card, std::string what, std::string shape,
                                  double seconds, double flops, double target);

// Qwen2-7B.
inline constexpr int64_t kHidden = 3584;
inline constexpr int64_t kInner = 18944;
inline constexpr int64_t kVocab = 152064;
inline constexpr uint32_t kHeads = 28;
inline constexpr uint32_t kKvHeads = 4;
inline constexpr uint32_t kHeadDim = 128;
inline constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;

}  // namespace tandem::bench
