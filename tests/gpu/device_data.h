#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/base/dtype.h"
#include "tests/gpu/card.h"

// Random inputs, device copies and double-precision comparison for kernel tests.
namespace tandem::cuda {

template <typename T>
class DeviceArray {
 public:
  // Every byte is 0xff: NaN as a float and as a bf16, so that an element nobody wrote is seen.
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), cudaSuccess);
    poison();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { write(values); }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  // Both wait for the device: streams of tests do not wait for the default stream.
  void poison() {
    EXPECT_EQ(cudaMemset(data_, 0xff, bytes()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void write(const std::vector<T>& values) {
    if (values.empty()) return;
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  [[nodiscard]] T* get() const { return data_; }
  [[nodiscard]] size_t count() const { return count_; }
  [[nodiscard]] size_t bytes() const { return std::max<size_t>(count_, 1) * sizeof(T); }
  // Waits for the device.
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  std::vector<float> floats(size_t count, float scale = 1.0F) {
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<float> values(count);
    for (float& v : values) v = normal(engine_);
    return values;
  }
  std::vector<Bf16> bf16(size_t count, float scale = 1.0F) {
    std::vector<Bf16> values(count);
    std::normal_distribution<float> normal(0.0F, scale);
    for (Bf16& v : values) v = to_bf16(normal(engine_));
    return values;
  }

 private:
  std::mt19937 engine_;
};

inline double value_of(float v) { return static_cast<double>(v); }
inline double value_of(Bf16 v) { return static_cast<double>(to_float(v)); }

// ||got - want|| / ||want||; NaN stays NaN and fails any comparison.
template <typename T>
double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = value_of(got[i]) - want[i];
    difference += d * d;
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

// x[rows, in] @ weight[out, in]^T + bias, in double precision.
inline std::vector<double> matmul(const std::vector<double>& x, const std::vector<Bf16>& weight,
                                  const std::vector<Bf16>& bias, size_t rows, size_t in,
                                  size_t out) {
  std::vector<double> y(rows * out);
  std::vector<double> w(in);
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) w[i] = value_of(weight[o * in + i]);
    for (size_t r = 0; r < rows; ++r) {
      double sum = bias.empty() ? 0.0 : value_of(bias[o]);
      for (size_t i = 0; i < in; ++i) sum += x[r * in + i] * w[i];
      y[r * out + o] = sum;
    }
  }
  return y;
}

inline std::vector<double> rms_normed(const std::vector<float>& x, const std::vector<float>& norm,
                                      double eps) {
  const size_t n = norm.size();
  std::vector<double> y(x.size());
  for (size_t r = 0; r < x.size() / n; ++r) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += value_of(x[r * n + i]) * value_of(x[r * n + i]);
    const double factor = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
    for (size_t i = 0; i < n; ++i)
      y[r * n + i] = value_of(x[r * n + i]) * factor * value_of(norm[i]);
  }
  return y;
}

inline double silu_times(double gate, double up) { return gate / (1.0 + std::exp(-gate)) * up; }

template <typename T>
bool same_bits(const T* a, const T* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(T)) == 0;
}

}  // namespace tandem::cuda
