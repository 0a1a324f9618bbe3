#include "common/engine/cuda/bench/bench_card.h"

#include <algorithm>

#include "kernels/cuda/bench_streams.h"

namespace tandem::bench {
namespace {

constexpr double kGraphSeconds = 1e-3;   // at least this long, so that a launch is lost in it
constexpr double kReplaySeconds = 0.08;  // spent on replays of one measurement
constexpr size_t kReplays = 7;           // at least

}  // namespace

Result<BenchCard> BenchCard::open(const KernelBenchOptions& options) {
  TANDEM_ASSIGN(auto device, cuda::Device::open(options.device));
  BenchCard card(std::move(device));
  TANDEM_ASSIGN(card.stream_, cuda::Stream::create());
  TANDEM_ASSIGN(card.start_, cuda::Event::create(cuda::Event::Kind::kTiming));
  TANDEM_ASSIGN(card.end_, cuda::Event::create(cuda::Event::Kind::kTiming));
  return card;
}

Result<double> BenchCard::replay(const cuda::GraphExec& graph) {
  TANDEM_TRY(start_.record(stream_));
  TANDEM_TRY(graph.launch(stream_));
  TANDEM_TRY(end_.record(stream_));
  TANDEM_TRY(end_.synchronize());
  TANDEM_ASSIGN(const float milliseconds, end_.milliseconds_since(start_));
  return static_cast<double>(milliseconds) * 1e-3;
}

Result<double> BenchCard::seconds(const Body& body, uint32_t variants) {
  uint32_t calls = variants;
  const auto record = [&] {
    return cuda::GraphExec::record(stream_, [&]() -> Status {
      for (uint32_t i = 0; i < calls; ++i) TANDEM_TRY(body(i % variants));
      return {};
    });
  };
  TANDEM_TRY(body(0));  // first use: modules are loaded, attributes set
  TANDEM_TRY(stream_.synchronize());
  TANDEM_ASSIGN(auto graph, record());
  TANDEM_TRY(graph.upload(stream_));
  TANDEM_TRY(replay(graph));
  TANDEM_ASSIGN(double once, replay(graph));
  if (once < kGraphSeconds) {
    const double times = std::clamp(kGraphSeconds / std::max(once, 1e-7), 1.0, 256.0);
    calls = variants * static_cast<uint32_t>(times + 1);
    TANDEM_ASSIGN(graph, record());
    TANDEM_TRY(graph.upload(stream_));
    TANDEM_ASSIGN(once, replay(graph));
  }
  const auto replays =
      std::clamp(static_cast<size_t>(kReplaySeconds / std::max(once, 1e-7)), kReplays, size_t{51});
  std::vector<double> times;
  for (size_t i = 0; i < replays; ++i) {
    TANDEM_ASSIGN(const double t, replay(graph));
    times.push_back(t);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(replays / 2),
                   times.end());
  return times[replays / 2] / calls;
}

uint32_t BenchCard::variants_for(size_t bytes) const {
  const size_t wanted = 4 * std::max<size_t>(info().l2_bytes, size_t{32} << 20);
  return static_cast<uint32_t>(std::clamp<size_t>(wanted / std::max<size_t>(bytes, 1) + 1, 1, 64));
}

Result<cuda::DeviceBuffer> BenchCard::normal_bf16(size_t count, float deviation) {
  TANDEM_ASSIGN(auto buffer, cuda::DeviceBuffer::create(count * sizeof(Bf16)));
  TANDEM_CUDA_TRY(cuda::fill_normal(buffer.as<Bf16>(), count, deviation, seed_++, stream_.get()));
  TANDEM_TRY(stream_.synchronize());
  return buffer;
}

Result<cuda::DeviceBuffer> BenchCard::normal_float(size_t count, float deviation) {
  TANDEM_ASSIGN(auto buffer, cuda::DeviceBuffer::create(count * sizeof(float)));
  TANDEM_CUDA_TRY(cuda::fill_normal(buffer.as<float>(), count, deviation, seed_++, stream_.get()));
  TANDEM_TRY(stream_.synchronize());
  return buffer;
}

Result<cuda::DeviceBuffer> BenchCard::zeros(size_t bytes) {
  TANDEM_ASSIGN(auto buffer, cuda::DeviceBuffer::create(bytes));
  if (bytes > 0) TANDEM_CUDA_TRY(cudaMemsetAsync(buffer.data(), 0, bytes, stream_.get()));
  TANDEM_TRY(stream_.synchronize());
  return buffer;
}

Result<cuda::DeviceBuffer> BenchCard::upload_bytes(const void* host, size_t bytes) {
  TANDEM_ASSIGN(auto buffer, cuda::DeviceBuffer::create(bytes));
  if (bytes > 0) TANDEM_TRY(cuda::copy_to_device(buffer.data(), host, bytes, stream_));
  TANDEM_TRY(stream_.synchronize());
  return buffer;
}

DeviceRow bytes_row(const BenchCard& card, std::string what, std::string shape, double seconds,
                    double bytes, double target) {
  DeviceRow row;
  row.what = std::move(what);
  row.shape = std::move(shape);
  row.seconds = seconds;
  row.rate = bytes / seconds * 1e-9;
  row.unit = "GB/s";
  row.ceiling = card.ceilings.read_bytes * 1e-9;
  row.against = "read stream";
  row.ratio = row.rate / row.ceiling;
  row.target = target;
  return row;
}

DeviceRow flops_row(const BenchCard& card, std::string what, std::string shape, double seconds,
                    double flops, double target) {
  DeviceRow row;
  row.what = std::move(what);
  row.shape = std::move(shape);
  row.seconds = seconds;
  row.rate = flops / seconds * 1e-12;
  row.unit = "TFLOP/s";
  row.ceiling = card.ceilings.bf16_flops * 1e-12;
  row.against = "cuBLASLt 8192^3";
  row.ratio = row.ceiling > 0 ? row.rate / row.ceiling : 0;
  row.target = target;
  return row;
}

}  // namespace tandem::bench
