#include "kernels/cuda/linear_small.h"

#include <string>

#include "tests/gpu/linear_problem.h"

namespace tandem::cuda {
namespace {

class LinearSmallTest : public CardTest {
 protected:
  void SetUp() override {
    CardTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_CUDA(prepare_small_linear());
  }

  template <typename T>
  std::vector<T> run(Problem& p, uint32_t rows, SmallEpilogue epilogue, bool normed, bool biased,
                     const std::vector<T>& before = {}, const SmallPlan& overrides = {}) {
    return result_of(p, rows, epilogue, normed, biased, before, [&](const SmallLinear& task) {
      const SmallPlan plan = plan_small_linear(task, {}, overrides);
      EXPECT_LE(plan.shared_bytes, 227U * 1024);
      EXPECT_EQ(linear_small(task, plan, nullptr), cudaSuccess);
    });
  }
};

constexpr double kTolerance = 5e-3;

TEST_F(LinearSmallTest, AgreesWithDoublePrecision) {
  // With 4300 outputs and 132 blocks a block has several tiles: rows are loaded once for all.
  const auto shapes = problems<Shape>(
      {{32, 96},
       {40, 6},
       {56, 66},
       {112, 352},
       {576, 960},
       {576, 576},
       {1536, 576},
       {248, 330},
       {1000, 52},
       {136, 4300},
       {3584, 1024},
       {3584, 4300},
       {4096, 514},
       {18944, 300},
       {13, 22},
       {331, 18},
       {8, 2}},
      {{32, 96}, {40, 6}, {56, 66}, {136, 4300}, {1000, 52}, {4096, 66}, {18944, 6}, {13, 22}});
  const auto row_counts = problems({1U, 2U, 3U, 4U, 5U, 8U, 9U, 13U, 16U}, {1U, 5U, 13U});
  uint32_t seed = 1;
  for (const Shape& shape : shapes) {
    Problem p(shape, seed++);
    for (const bool normed : {false, true}) {
      const std::vector<double> plain = p.reference(normed, false);
      const std::vector<double> biased = p.reference(normed, true);
      const std::vector<float> before = p.random.floats(kSmallRows * shape.out);
      for (const uint32_t rows : row_counts) {
        SCOPED_TRACE(std::to_string(shape.in) + " x " + std::to_string(shape.out) + ", rows " +
                     std::to_string(rows) + (normed ? ", normed" : ""));
        EXPECT_LT(relative_error(run<Bf16>(p, rows, SmallEpilogue::kStore, normed, true),
                                 first_rows(biased, rows, shape.out)),
                  kTolerance);
        EXPECT_LT(relative_error(run<float>(p, rows, SmallEpilogue::kStoreFloat, normed, false),
                                 first_rows(plain, rows, shape.out)),
                  kTolerance);
        std::vector<double> sum(rows * shape.out);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = value_of(before[i]) + plain[i];
        EXPECT_LT(
            relative_error(run<float>(p, rows, SmallEpilogue::kAdd, normed, false, before), sum),
            kTolerance);
        std::vector<double> silu(rows * shape.out / 2);
        for (size_t i = 0; i < silu.size(); ++i)
          silu[i] = silu_times(biased[2 * i], biased[2 * i + 1]);
        EXPECT_LT(relative_error(run<Bf16>(p, rows, SmallEpilogue::kSiluMul, normed, true), silu),
                  kTolerance);
      }
    }
  }
}

TEST_F(LinearSmallTest, ARowDoesNotDependOnItsCompany) {
  for (const Shape& shape :
       problems<Shape>({{3584, 512}, {18944, 128}, {6000, 60}, {576, 200}, {264, 40}, {37, 16}},
                       {{6000, 12}, {264, 40}, {37, 16}}))
    for (const bool normed : {false, true}) {
      Problem p(shape, 77);
      const auto all = run<float>(p, 16, SmallEpilogue::kStoreFloat, normed, true);
      const auto gated = run<Bf16>(p, 16, SmallEpilogue::kSiluMul, normed, true);
      for (uint32_t rows = 1; rows < 16; ++rows) {
        const auto some = run<float>(p, rows, SmallEpilogue::kStoreFloat, normed, true);
        EXPECT_TRUE(same_bits(some.data(), all.data(), some.size()))
            << shape.in << " " << rows << " " << normed;
        const auto less = run<Bf16>(p, rows, SmallEpilogue::kSiluMul, normed, true);
        EXPECT_TRUE(same_bits(less.data(), gated.data(), less.size()))
            << shape.in << " " << rows << " " << normed;
      }
    }
}

TEST_F(LinearSmallTest, PlansDoNotChangeResults) {
  Problem p(problems<Shape>({{3584, 600}}, {{1536, 150}}).front(), 5);
  const auto want = run<float>(p, 4, SmallEpilogue::kStoreFloat, true, false);
  for (const uint32_t blocks : {1U, 7U, 66U, 300U})
    for (const uint32_t chunk : {256U, 512U, 768U})
      for (const uint32_t stages : {1U, 2U, 5U}) {
        SmallPlan o;
        o.blocks = blocks;
        o.chunk = chunk;
        o.stages = stages;
        o.tile_rows = blocks == 7 ? 24 : 0;
        const auto got = run<float>(p, 4, SmallEpilogue::kStoreFloat, true, false, {}, o);
        EXPECT_TRUE(same_bits(got.data(), want.data(), want.size()))
            << blocks << " " << chunk << " " << stages;
      }
}

TEST_F(LinearSmallTest, TakesIndexedRowsForTheHead) {
  Problem p({576, 1000}, 9);
  const std::vector<uint32_t> index = {7, 0, 15, 7};
  DeviceArray<uint32_t> device_index(index);
  DeviceArray<float> out(index.size() * p.shape.out);
  SmallLinear task = p.task(4, SmallEpilogue::kStoreFloat, true, false, out.get());
  task.index = device_index.get();
  ASSERT_CUDA(linear_small(task, plan_small_linear(task, {}), nullptr));
  const auto got = out.read();
  const auto all = run<float>(p, 16, SmallEpilogue::kStoreFloat, true, false);
  for (size_t i = 0; i < index.size(); ++i)
    EXPECT_TRUE(
        same_bits(got.data() + i * p.shape.out, all.data() + index[i] * p.shape.out, p.shape.out));
}

TEST_F(LinearSmallTest, ChainsInAGraph) {
  const Shape sizes = problems<Shape>({{1024, 2816}}, {{256, 704}}).front();
  expect_chains_in_a_graph(3, kSmallRows, sizes.in, sizes.out,
                           [](const SmallLinear& task, cudaStream_t stream) {
                             return linear_small(task, plan_small_linear(task, {}), stream);
                           });
}

TEST_F(LinearSmallTest, Float8WeightsAgreeWithDoublePrecision) {
  for (const Shape shape :
       problems<Shape>({{16, 10}, {48, 80}, {576, 960}, {3584, 4608}, {1104, 300}, {18944, 264}},
                       {{16, 10}, {48, 80}, {144, 4608}, {1104, 60}, {18944, 10}})) {
    SCOPED_TRACE(std::to_string(shape.in) + " x " + std::to_string(shape.out));
    Problem p(shape, static_cast<uint32_t>(shape.in));
    const Fp8Weights fp8(shape, 7);
    const DeviceArray<uint8_t> bits(fp8.bits);
    const DeviceArray<float> scales(fp8.scales);
    for (const bool normed : {false, true}) {
      std::vector<double> input(p.x.size());
      for (size_t i = 0; i < p.x.size(); ++i) input[i] = value_of(p.x[i]);
      if (normed) input = rms_normed(p.residual, p.norm, 1e-5);
      std::vector<double> want(kSmallRows * shape.out);
      for (size_t r = 0; r < kSmallRows; ++r)
        for (size_t o = 0; o < shape.out; ++o) {
          double sum = value_of(p.bias[o]);
          for (size_t i = 0; i < shape.in; ++i)
            sum += input[r * shape.in + i] * fp8.values[o * shape.in + i];
          want[r * shape.out + o] = sum;
        }
      std::vector<Bf16> before;  // the first row's results: the same whatever its company
      for (const uint32_t rows : problems({1U, 3U, 8U, 9U, 16U}, {1U, 8U, 9U})) {
        SCOPED_TRACE("rows " + std::to_string(rows) + (normed ? " normed" : ""));
        DeviceArray<Bf16> out(rows * shape.out), products(rows * shape.out / 2);
        DeviceArray<float> sum(std::vector<float>(rows * shape.out, 1.0F));
        for (const SmallEpilogue epilogue :
             {SmallEpilogue::kStore, SmallEpilogue::kAdd, SmallEpilogue::kSiluMul}) {
          void* result = out.get();
          if (epilogue == SmallEpilogue::kAdd) result = sum.get();
          if (epilogue == SmallEpilogue::kSiluMul) result = products.get();
          SmallLinear task = p.task(rows, epilogue, normed, true, result);
          task.weight = nullptr;
          task.fp8 = bits.get();
          task.scales = scales.get();
          ASSERT_CUDA(linear_small(task, plan_small_linear(task, {}), nullptr));
        }
        const std::vector<double> part(
            want.begin(), want.begin() + static_cast<std::ptrdiff_t>(rows * shape.out));
        std::vector<double> plus(part), gated(part.size() / 2);
        for (double& v : plus) v += 1;
        for (size_t i = 0; i < gated.size(); ++i)
          gated[i] = silu_times(part[2 * i], part[2 * i + 1]);
        const auto got = out.read();
        EXPECT_LT(relative_error(got, part), 5e-3);
        EXPECT_LT(relative_error(sum.read(), plus), 5e-3);
        EXPECT_LT(relative_error(products.read(), gated), 1e-2);
        if (before.empty()) before = got;
        EXPECT_TRUE(same_bits(before.data(), got.data(), shape.out));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
