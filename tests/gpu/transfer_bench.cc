#include "common/engine/cuda/bench/transfer_bench.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

// `tandem bench transfer` for machines that have a card but not the libraries that `tandem` needs.
// Usage: gpu_transfer_bench [FROM TO [TRANSPORT,… [LARGEST_MIB]]]
int main(int argc, char** argv) {
  using namespace tandem::bench;
  const auto number = [&](int at) { return static_cast<int>(std::strtol(argv[at], nullptr, 10)); };
  if (argc > 4 && std::string_view(argv[1]) == "--receive") {
    const auto done =
        serve_transfers({argv[2], number(3), static_cast<uint32_t>(number(4)), {}}, {});
    if (!done) std::fprintf(stderr, "receiver: %s\n", done.error().to_string().c_str());
    return done ? 0 : 1;
  }
  TransferBenchOptions options;
  if (argc > 2) {
    options.from = number(1);
    options.to = number(2);
  }
  if (argc > 3) {
    options.transports.clear();
    std::istringstream names(argv[3]);
    for (std::string name; std::getline(names, name, ',');) options.transports.push_back(name);
  }
  if (argc > 4) options.largest_mib = static_cast<uint32_t>(number(4));
  const auto sink = [](const DeviceRow& row) {
    std::printf("%-26s %-16s %9.3f ms %8.1f GB/s / %8.1f %s = %.3f %s\n", row.what.c_str(),
                row.shape.c_str(), row.seconds * 1e3, row.rate, row.ceiling, row.against.c_str(),
                row.ratio, row.note.c_str());
    std::fflush(stdout);
  };
  const auto result = bench_transfers(options, {"/proc/self/exe", "--receive"}, sink);
  if (!result) {
    std::fprintf(stderr, "gpu_transfer_bench: %s\n", result.error().to_string().c_str());
    return 1;
  }
  std::printf("%s\n", result->device.c_str());
  return 0;
}
