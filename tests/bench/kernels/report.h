#pragma once

#include <string>
#include <vector>

namespace tandem::bench {

// One row: what, shape, time, rate against a ceiling of the same run.
struct Row {
  std::string what;
  std::string shape;
  double seconds = 0;  // median
  double rate = 0;     // per second: bytes or flops
  std::string unit;    // "GB/s", "GFLOP/s"
  double ceiling = 0;  // same unit
  std::string note;
};

void print_header();
void print_row(const Row& row);
[[nodiscard]] double median(std::vector<double> values);

}  // namespace tandem::bench
