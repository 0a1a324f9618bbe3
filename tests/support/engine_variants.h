#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/model/checkpoint.h"
#include "tests/support/backends.h"
#include "tests/support/engine_harness.h"
#include "tests/support/reference_ops.h"
#include "tests/support/test_data.h"

// What the suites share that run on every backend and KV format.
namespace tandem::testing {

inline std::unique_ptr<model::Checkpoint> open(const std::string& name) {
  auto c = model::Checkpoint::open(test_data("golden/" + name));
  EXPECT_TRUE(c) << c.error().to_string();
  return c ? std::move(*c) : nullptr;
}

inline std::unique_ptr<EngineHarness> harness(const std::string& name,
                                              std::unique_ptr<engine::Ops> ops,
                                              EngineHarness::Options options = {}) {
  auto h = EngineHarness::create(*open(name), std::move(ops), options);
  EXPECT_TRUE(h) << h.error().to_string();
  return h ? std::move(*h) : nullptr;
}

inline std::vector<TokenId> random_tokens(size_t n, uint64_t seed, int vocab = 90) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> out(n);
  for (TokenId& t : out) t = static_cast<TokenId>(3 + rng() % static_cast<uint64_t>(vocab));
  return out;
}

struct Variant {
  std::string name;
  Backend backend;
  DType weights = DType::kF32;
  kv::KvFormat format = kv::KvFormat::kF32;
  // Four bits turn a difference in the last bit of a key into one of a fifteenth of its range, the
  // three of fp8's mantissa into an eighth of itself. The reference loops show how much: rounding
  // nothing but their weights to bf16 moves these logits by 0.009 with bf16 pages, 0.011 with int8,
  // 0.032 with k8v4, 0.033 with fp8_e4m3 and 0.062 with int4. Two ways of cutting a prompt round
  // independently, hence the square root of two, and as much again for luck.
  [[nodiscard]] double chunk_tolerance() const {
    switch (format) {
      case kv::KvFormat::kInt4:
        return backend.chunk_tolerance * 6;
      case kv::KvFormat::kFp8E4M3:
      case kv::KvFormat::kK8V4:
        return backend.chunk_tolerance * 3;
      case kv::KvFormat::kF32:
      case kv::KvFormat::kBf16:
      case kv::KvFormat::kInt8:
        break;
    }
    return backend.chunk_tolerance;
  }
  // Weights and pages in float32.
  [[nodiscard]] bool exact() const {
    return weights == DType::kF32 && format == kv::KvFormat::kF32;
  }
};
inline void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }

// Plain loops only once, the instruction set that matters only.
inline std::vector<Variant> variants() {
  std::vector<Variant> out;
  for (const Backend& b : backends()) {
    if (!b.fast && b.name != "reference") continue;
    for (const kv::KvFormat f : b.formats)
      for (const DType t : b.types) {
        if (b.slow && t != DType::kF32) continue;
        out.push_back(
            {b.name + "_" + std::string(to_string(t)) + "_" + std::string(to_string(f)), b, t, f});
      }
  }
  return out;
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(error / norm);
}

}  // namespace tandem::testing
