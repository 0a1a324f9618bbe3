#pragma once

#include <random>
#include <vector>

#include "common/kv/codec.h"
#include "kernels/cuda/linear_small.h"
#include "tests/gpu/device_data.h"

// Random projections for the tests of linear_small.h and linear_batch.h.
namespace tandem::cuda {

struct Shape {
  size_t in;
  size_t out;
};

// One random problem of up to `most` rows, on host and device.
struct Problem {
  Problem(Shape s, uint32_t seed, uint32_t most_rows = kSmallRows)
      : shape(s),
        most(most_rows),
        random(seed),
        weight(random.bf16(s.in * s.out, 0.05F)),
        bias(random.bf16(s.out)),
        x(random.bf16(most * s.in)),
        residual(random.floats(most * s.in, 3.0F)),
        norm(random.floats(s.in)),
        device_weight(weight),
        device_bias(bias),
        device_x(x),
        device_residual(residual),
        device_norm(norm),
        scratch(most * s.in),
        factors(most) {}

  SmallLinear task(uint32_t rows, SmallEpilogue epilogue, bool normed, bool biased, void* result) {
    SmallLinear t;
    t.weight = device_weight.get();
    t.bias = biased ? device_bias.get() : nullptr;
    t.in = static_cast<int64_t>(shape.in);
    t.out = static_cast<int64_t>(shape.out);
    t.rows = rows;
    if (normed) {
      t.residual = device_residual.get();
      t.norm = device_norm.get();
      t.eps = 1e-5F;
      t.scratch = scratch.get();
      t.scratch_factors = factors.get();
    } else {
      t.x = device_x.get();
    }
    t.epilogue = epilogue;
    t.result = result;
    return t;
  }

  std::vector<double> reference(bool normed, bool biased) {
    std::vector<double> input(x.size());
    if (normed)
      input = rms_normed(residual, norm, 1e-5);
    else
      for (size_t i = 0; i < x.size(); ++i) input[i] = value_of(x[i]);
    return matmul(input, weight, biased ? bias : std::vector<Bf16>{}, most, shape.in, shape.out);
  }

  Shape shape;
  uint32_t most;
  Random random;
  std::vector<Bf16> weight, bias, x;
  std::vector<float> residual, norm;
  DeviceArray<Bf16> device_weight, device_bias, device_x;
  DeviceArray<float> device_residual, device_norm;
  DeviceArray<Bf16> scratch;
  DeviceArray<float> factors;
};

// Weights in float8, every value of it among them; rows stay bf16.
struct Fp8Weights {
  Fp8Weights(Shape shape, uint32_t seed) : bits(shape.in * shape.out), scales(shape.out) {
    std::mt19937 random(seed);
    values.resize(bits.size());
    for (size_t o = 0; o < shape.out; ++o) {
      // Every seventh output has subnormal weights alone, scaled to count as much as others.
      const bool small = o % 7 == 0;
      scales[o] = static_cast<float>(1 + random() % 1000) * (small ? 1e-2F : 1e-6F);
      for (size_t i = 0; i < shape.in; ++i) {
        uint8_t& b = bits[o * shape.in + i];
        b = static_cast<uint8_t>(random());
        if (small) b &= 0x87;
        if ((b & 0x7f) == 0x7f) b = 0x80;  // NaN: a negative zero instead
        values[o * shape.in + i] =
            static_cast<double>(kv::e4m3_to_float(b)) * static_cast<double>(scales[o]);
      }
    }
  }
  std::vector<uint8_t> bits;
  std::vector<float> scales;
  std::vector<double> values;
};

// What `enqueue(task)` makes of the first `rows` rows, on the default stream. With `before` results
// are added to it. Checks that nothing is written past the last row.
template <typename T, typename Enqueue>
std::vector<T> result_of(Problem& p, uint32_t rows, SmallEpilogue epilogue, bool normed,
                         bool biased, const std::vector<T>& before, Enqueue&& enqueue) {
  const size_t width = epilogue == SmallEpilogue::kSiluMul ? p.shape.out / 2 : p.shape.out;
  DeviceArray<T> out(p.most * width);
  if (!before.empty()) out.write(before);
  p.scratch.poison();
  p.factors.poison();
  enqueue(p.task(rows, epilogue, normed, biased, out.get()));
  std::vector<T> all = out.read();
  for (size_t i = rows * width; i < all.size() && before.empty(); ++i)
    EXPECT_TRUE(std::isnan(value_of(all[i])));
  all.resize(rows * width);
  return all;
}

// A chain as a decode layer makes it, recorded in a graph with programmatic launches, gives the
// bits of the same kernels run one at a time. `enqueue(task, stream)` launches one; problems have
// up to `most` rows.
template <typename Enqueue>
void expect_chains_in_a_graph(uint32_t rows, uint32_t most, size_t hidden, size_t inner,
                              Enqueue&& enqueue) {
  Problem gate({hidden, 2 * inner}, 11, most);
  Problem down({inner, hidden}, 12, most);
  DeviceArray<Bf16> mid(most * inner);
  DeviceArray<float> x(gate.residual);
  cudaStream_t stream = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto settle = [&](bool apart) {
    if (apart) {
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    }
  };
  const auto layer = [&](bool apart) {
    SmallLinear a = gate.task(rows, SmallEpilogue::kSiluMul, true, true, mid.get());
    a.residual = x.get();
    EXPECT_EQ(enqueue(a, stream), cudaSuccess);
    settle(apart);
    SmallLinear b = down.task(rows, SmallEpilogue::kAdd, false, true, x.get());
    b.x = mid.get();
    EXPECT_EQ(enqueue(b, stream), cudaSuccess);
    settle(apart);
  };
  for (int i = 0; i < 20; ++i) layer(true);
  const auto want = x.read();
  x.write(gate.residual);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 10; ++i) layer(false);
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  ASSERT_CUDA(cudaGraphLaunch(exec, stream));
  ASSERT_CUDA(cudaGraphLaunch(exec, stream));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  const auto got = x.read();
  EXPECT_TRUE(same_bits(got.data(), want.data(), want.size()));
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamDestroy(stream));
}

template <typename T>
std::vector<T> first_rows(std::vector<T> v, size_t rows, size_t width) {
  v.resize(rows * width);
  return v;
}

}  // namespace tandem::cuda
