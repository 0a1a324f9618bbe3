// Weights out of nothing, for runs that measure speed and not sense.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "common/base/dtype.h"
#include "common/model/checkpoint_impl.h"

namespace tandem::model {
namespace {

constexpr double kDeviation = 0.02;  // the initializer range of every family here
constexpr size_t kQuantiles = 1024;
// A thread makes about a billion values a second: models of many billions would take minutes.
constexpr size_t kThreads = 8;
constexpr size_t kValuesPerThread = size_t{4} << 20;

uint64_t mix(uint64_t x) {  // SplitMix64's finalizer (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Inverse of the normal distribution by bisection on erfc: a table is built once per call.
double normal_quantile(double p) {
  double low = -8;
  double high = 8;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

template <typename T, typename Encode>
void fill(uint64_t stream, std::span<std::byte> out, Encode encode) {
  std::array<T, kQuantiles> table;
  for (size_t i = 0; i < kQuantiles; ++i)
    table[i] = encode(static_cast<float>(
        kDeviation * normal_quantile((static_cast<double>(i) + 0.5) / kQuantiles)));
  const size_t n = out.size() / sizeof(T);
  constexpr size_t kPerWord = 6;  // 10 bits each
  const size_t words = (n + kPerWord - 1) / kPerWord;
  const auto make = [&](size_t begin, size_t end) {
    for (size_t w = begin; w < end; ++w) {
      uint64_t word = mix(stream + (w + 1) * 0x9e3779b97f4a7c15ULL);
      T values[kPerWord];
      for (T& v : values) {
        v = table[word % kQuantiles];
        word /= kQuantiles;
      }
      const size_t i = w * kPerWord;
      std::memcpy(out.data() + i * sizeof(T), values, std::min(kPerWord, n - i) * sizeof(T));
    }
  };
  const size_t threads = std::clamp<size_t>(
      n / kValuesPerThread, 1, std::min<size_t>(kThreads, std::thread::hardware_concurrency() + 1));
  std::vector<std::jthread> others;
  for (size_t t = 1; t < threads; ++t)
    others.emplace_back(make, words * t / threads, words * (t + 1) / threads);
  make(0, words / threads);
}

template <typename T>
void fill_with(std::span<std::byte> out, T value) {
  for (size_t i = 0; i + sizeof(T) <= out.size(); i += sizeof(T))
    std::memcpy(out.data() + i, &value, sizeof(T));
}

uint16_t bf16_bits(float f) { return to_bf16(f).bits; }

}  // namespace

void fill_dummy(uint64_t seed, const HostTensor& tensor, std::span<std::byte> out) {
  uint64_t stream = mix(seed + 0x9e3779b97f4a7c15ULL);
  for (const char c : tensor.name) stream = mix(stream ^ static_cast<unsigned char>(c));
  const bool norm = tensor.name.ends_with("norm.weight");
  const bool f32 = tensor.type == StorageType::kF32;
  const auto encode16 = tensor.type == StorageType::kF16 ? float_to_half : bf16_bits;
  if (norm && f32) return fill_with(out, 1.0F);
  if (norm) return fill_with(out, encode16(1.0F));
  if (f32) return fill<float>(stream, out, [](float f) { return f; });
  fill<uint16_t>(stream, out, encode16);
}

}  // namespace tandem::model
