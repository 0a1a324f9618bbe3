#include <cstdio>
#include <cstring>

#include "common/engine/cuda/bench/device_bench.h"

// `tandem bench kernels` for machines that have a card but not the libraries that `tandem` needs.
// Usage: gpu_kernel_bench [GROUP [PYTHON]]
int main(int argc, char** argv) {
  tandem::bench::KernelBenchOptions options;
  if (argc > 1) options.only = argv[1];
  if (argc > 2) options.python = argv[2];
  const auto sink = [](const tandem::bench::DeviceRow& row) {
    std::printf("%-36s %-30s %9.1f us %9.1f %-8s", row.what.c_str(), row.shape.c_str(),
                row.seconds * 1e6, row.rate, row.unit.c_str());
    if (row.ceiling > 0) std::printf(" / %7.1f = %.3f", row.ceiling, row.ratio);
    if (row.target > 0) std::printf(" (%.2f %s)", row.target, row.passes() ? "pass" : "short");
    std::printf("%s%s\n", row.note.empty() ? "" : "  ", row.note.c_str());
    std::fflush(stdout);
  };
  const auto ceilings = tandem::bench::bench_kernels(options, sink);
  if (!ceilings) {
    std::fprintf(stderr, "gpu_kernel_bench: %s\n", ceilings.error().to_string().c_str());
    return 1;
  }
  std::printf("%s, CUDA driver %s\n", ceilings->device.c_str(), ceilings->driver.c_str());
  return 0;
}
