#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/engine/cpu/cpu_ops.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/kernels.h"

namespace tandem::testing {

inline std::vector<float> random_floats(size_t n, uint64_t seed, float spread = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& x : out) x = normal(engine);
  return out;
}

// Something no kernel may read into a result or leave behind in one.
inline std::vector<float> poison(size_t n) { return std::vector<float>(n, std::nanf("")); }

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// ||a - b|| / ||b||
template <typename A, typename B>
double relative_error(const A& a, const B& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

inline std::unique_ptr<engine::HostOps> make_ops(cpu::CpuIsa isa, DType weights, uint32_t threads) {
  engine::CpuOptions options;
  options.threads = threads;
  options.weights = weights;
  options.isa = isa;
  return *engine::create_cpu_ops(options);
}

inline std::string isa_name(const ::testing::TestParamInfo<cpu::CpuIsa>& info) {
  return std::string(to_string(info.param));
}

}  // namespace tandem::testing
