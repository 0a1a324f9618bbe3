#include "common/engine/cuda/bench/device_bench.h"

#include "common/engine/cuda/bench/bench_card.h"

namespace tandem::bench {
namespace {

void report_ceilings(const Ceilings& c, const RowSink& sink) {
  const auto line = [&](const char* what, const char* shape, double rate, const char* unit) {
    DeviceRow row;
    row.what = what;
    row.shape = shape;
    row.rate = rate;
    row.unit = unit;
    row.note = "ceiling";
    sink(row);
  };
  line("copy", "2 GiB, read + written", c.copy_bytes * 1e-9, "GB/s");
  line("read stream", "4 GiB", c.read_bytes * 1e-9, "GB/s");
  if (c.cublas_missing.empty()) {
    line("bf16 product, cuBLASLt", "8192^3", c.bf16_flops * 1e-12, "TFLOP/s");
  } else {
    DeviceRow row;
    row.what = "bf16 product, cuBLASLt";
    row.note = "not measured: " + c.cublas_missing;
    sink(row);
  }
}

}  // namespace

Result<Ceilings> bench_ceilings(const KernelBenchOptions& options) {
  TANDEM_ASSIGN(auto card, BenchCard::open(options));
  TANDEM_TRY(measure_ceilings(card, options));
  return card.ceilings;
}

Result<Ceilings> bench_kernels(const KernelBenchOptions& options, const RowSink& sink) {
  TANDEM_ASSIGN(auto card, BenchCard::open(options));
  TANDEM_TRY(measure_ceilings(card, options));
  report_ceilings(card.ceilings, sink);
  const auto wanted = [&](std::string_view group) {
    return options.only.empty() || group.find(options.only) != std::string_view::npos;
  };
  if (wanted("linear")) TANDEM_TRY(bench_linear(card, options, sink));
  if (wanted("attention")) TANDEM_TRY(bench_prefill_attention(card, options, sink));
  if (wanted("kv")) TANDEM_TRY(bench_kv(card, sink));
  if (wanted("decode attention")) TANDEM_TRY(bench_decode_attention(card, sink));
  if (wanted("sampling")) TANDEM_TRY(bench_sampling(card, sink));
  return card.ceilings;
}

}  // namespace tandem::bench
