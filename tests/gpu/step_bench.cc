#include "common/engine/cuda/bench/step_bench.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

// `tandem bench step` for machines that have a card but not the libraries that `tandem` needs.
// Usage: gpu_step_bench [LAYERS [KV_FORMAT [profile] [fp8] [batches=N,N,...]]]
// With batches, only those decode, and one short prompt.
int main(int argc, char** argv) {
  tandem::bench::StepBenchOptions options;
  if (argc > 1) options.layers = static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10));
  if (argc > 2) {
    const auto format = tandem::kv::parse_kv_format(argv[2]);
    if (!format) {
      std::fprintf(stderr, "gpu_step_bench: %s\n", format.error().to_string().c_str());
      return 2;
    }
    options.format = *format;
  }
  for (int i = 3; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "profile") options.profile = true;
    if (word == "fp8") options.quantization = tandem::engine::Quantization::kFp8;
    if (!word.starts_with("batches=")) continue;
    options.batches.clear();
    options.long_context = 0;
    options.prompts = {512};
    for (const char* at = argv[i] + word.find('='); *at != '\0';) {
      char* end = nullptr;
      const unsigned long batch = std::strtoul(at + 1, &end, 10);
      if (batch == 0 || (*end != ',' && *end != '\0')) {
        std::fprintf(stderr, "gpu_step_bench: %s: wants numbers, such as batches=8,32\n", argv[i]);
        return 2;
      }
      options.batches.push_back(static_cast<uint32_t>(batch));
      at = end;
    }
  }
  const auto sink = [](const tandem::bench::DeviceRow& row) {
    std::printf("%-24s %-18s %9.3f ms", row.what.c_str(), row.shape.c_str(), row.seconds * 1e3);
    if (row.ceiling > 0)
      std::printf(" %9.1f %-8s / %7.1f %s = %.3f", row.rate, row.unit.c_str(), row.ceiling,
                  row.against.c_str(), row.ratio);
    if (row.target > 0) std::printf(" (%.2f %s)", row.target, row.passes() ? "pass" : "short");
    std::printf("  %s\n", row.note.c_str());
    std::fflush(stdout);
  };
  const auto ceilings = tandem::bench::bench_steps(options, sink);
  if (!ceilings) {
    std::fprintf(stderr, "gpu_step_bench: %s\n", ceilings.error().to_string().c_str());
    return 1;
  }
  std::printf("%s, CUDA driver %s\n", ceilings->device.c_str(), ceilings->driver.c_str());
  return 0;
}
