#include "tests/bench/kernels/report.h"

#include <algorithm>
#include <cstdio>

namespace tandem::bench {

void print_header() {
  std::printf("%-26s %-24s %10s %10s %-8s %9s %6s  %s\n", "what", "shape", "time", "rate", "unit",
              "ceiling", "ratio", "note");
}

void print_row(const Row& row) {
  const bool micro = row.seconds < 1e-3;
  std::printf("%-26s %-24s %8.2f%s %10.1f %-8s %9.1f %6.2f  %s\n", row.what.c_str(),
              row.shape.c_str(), row.seconds * (micro ? 1e6 : 1e3), micro ? "us" : "ms",
              row.rate / 1e9, row.unit.c_str(), row.ceiling / 1e9,
              row.ceiling > 0 ? row.rate / row.ceiling : 0.0, row.note.c_str());
  std::fflush(stdout);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace tandem::bench
