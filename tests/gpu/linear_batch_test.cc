#include "kernels/cuda/linear_batch.h"

#include <string>

#include "tests/gpu/linear_problem.h"

namespace tandem::cuda {
namespace {

// How far off a result may be. Half a unit in the last place of bf16, relative; a row that was
// normed has been rounded to bf16 once, and so have bf16 results.
constexpr double kBf16 = 1.0 / 256;
// An addition within the tensor cores cuts off less than this much of what it adds up.
constexpr double kAddition = 1.0 / (1 << 22);

// What a problem's outputs must be and, for bounds, the sums of their products' sizes.
struct Reference {
  Reference(Problem& p, bool normed)
      : plain(p.reference(normed, false)), rounding(normed ? kBf16 : 0.0) {
    std::vector<double> sizes(p.x.size());
    if (normed)
      sizes = rms_normed(p.residual, p.norm, 1e-5);
    else
      for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = value_of(p.x[i]);
    for (double& v : sizes) v = std::abs(v);
    std::vector<Bf16> weights(p.weight);
    for (Bf16& w : weights) w = to_bf16(std::abs(to_float(w)));
    errors = matmul(sizes, weights, {}, p.most, p.shape.in, p.shape.out);
    const double additions = static_cast<double>(p.shape.in) / 16 + 16;
    for (double& e : errors) e *= rounding + additions * kAddition;
    biased = plain;
    for (size_t i = 0; i < biased.size(); ++i) biased[i] += value_of(p.bias[i % p.shape.out]);
  }

  std::vector<double> plain, biased;
  std::vector<double> errors;  // at most, of a sum
  double rounding;
};

// The worst of |got - want| / bound.
template <typename T, typename Want, typename Bound>
double worst(const std::vector<T>& got, const Want& want, const Bound& bound) {
  double most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(value_of(got[i]) - want(i)) / bound(i);
    if (!(off <= most)) most = off;  // also NaN
  }
  return most;
}

class LinearBatchTest : public CardTest {
 protected:
  void SetUp() override {
    CardTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_CUDA(prepare_batch_linear());
  }

  template <typename T>
  std::vector<T> run(Problem& p, uint32_t rows, SmallEpilogue epilogue, bool normed, bool biased,
                     const std::vector<T>& before = {}, const BatchPlan& overrides = {}) {
    return result_of(p, rows, epilogue, normed, biased, before, [&](const SmallLinear& task) {
      const BatchPlan plan = plan_batch_linear(task, {}, overrides);
      EXPECT_EQ(linear_batch(task, plan, nullptr), cudaSuccess);
    });
  }
};

TEST_F(LinearBatchTest, AgreesWithDoublePrecision) {
  const auto shapes = problems<Shape>(
      {{32, 96},
       {40, 6},
       {56, 66},
       {112, 352},
       {576, 960},
       {248, 330},
       {1000, 52},
       {3584, 1024},
       {4096, 514},
       {18944, 300},
       {8, 2},
       {136, 17000},
       {200, 38000},
       {1536, 9000},
       {320, 16}},
      {{32, 96}, {40, 6}, {56, 66}, {1000, 52}, {4096, 66}, {8, 2}, {24, 17000}, {24, 38000}});
  const auto row_counts =
      problems({1U, 9U, 16U, 23U, 32U, 41U, kBatchRows}, {1U, 9U, 23U, 32U, 41U});
  uint32_t seed = 1;
  for (const Shape& shape : shapes) {
    Problem p(shape, seed++, kBatchRows);
    for (const bool normed : {false, true}) {
      const Reference want(p, normed);
      const std::vector<float> before = p.random.floats(kBatchRows * shape.out);
      for (const uint32_t rows : row_counts) {
        SCOPED_TRACE(std::to_string(shape.in) + " x " + std::to_string(shape.out) + ", rows " +
                     std::to_string(rows) + (normed ? ", normed" : ""));
        const auto stored = run<Bf16>(p, rows, SmallEpilogue::kStore, normed, true);
        EXPECT_LE(worst(
                      stored, [&](size_t i) { return want.biased[i]; },
                      [&](size_t i) {
                        return want.errors[i] + kBf16 * (std::abs(want.biased[i]) + want.errors[i]);
                      }),
                  1);
        const auto floats = run<float>(p, rows, SmallEpilogue::kStoreFloat, normed, false);
        EXPECT_LE(worst(
                      floats, [&](size_t i) { return want.plain[i]; },
                      [&](size_t i) { return want.errors[i]; }),
                  1);
        const auto sums = run<float>(p, rows, SmallEpilogue::kAdd, normed, false, before);
        EXPECT_LE(worst(
                      sums, [&](size_t i) { return value_of(before[i]) + want.plain[i]; },
                      [&](size_t i) {
                        return want.errors[i] + kAddition * std::abs(value_of(before[i]));
                      }),
                  1);
        const auto gated = run<Bf16>(p, rows, SmallEpilogue::kSiluMul, normed, true);
        EXPECT_LE(
            worst(
                gated,
                [&](size_t i) { return silu_times(want.biased[2 * i], want.biased[2 * i + 1]); },
                [&](size_t i) {
                  const double gate = want.biased[2 * i];
                  const double up = want.biased[2 * i + 1];
                  // SiLU is nowhere steeper than 1.1.
                  const double off =
                      1.1 * want.errors[2 * i] * (std::abs(up) + want.errors[2 * i + 1]) +
                      std::abs(silu_times(gate, 1)) * want.errors[2 * i + 1];
                  return off + kBf16 * (std::abs(silu_times(gate, up)) + off) + 1e-30;
                }),
            1);
      }
    }
  }
}

// Additions within the tensor cores cut off instead of rounding: on average half a unit in the last
// place, 2^-24, of partial sums that on average are no larger than the last. So n of them in a row
// are n 2^-24 off, relative to the results; an error of float8 or bf16 sums would be far larger.
TEST_F(LinearBatchTest, SumsInFloat32) {
  for (const Shape& shape : {Shape{3584, 1024}, Shape{18944, 300}, Shape{512, 17024}}) {
    Problem p(shape, 3, kBatchRows);
    const auto got = run<float>(p, kBatchRows, SmallEpilogue::kStoreFloat, false, true);
    const BatchPlan plan =
        plan_batch_linear(p.task(kBatchRows, SmallEpilogue::kStoreFloat, false, true, nullptr), {});
    const double additions = static_cast<double>(shape.in) / 16 / (plan.split * plan.sharers) + 8;
    EXPECT_LT(relative_error(got, p.reference(false, true)), additions / (1 << 24))
        << shape.in << " x " << shape.out;
  }
}

TEST_F(LinearBatchTest, ARowDoesNotDependOnItsCompany) {
  for (const Shape& shape :
       problems<Shape>({{3584, 512}, {18944, 128}, {6000, 60}, {576, 200}, {264, 17000}},
                       {{6000, 12}, {264, 200}, {40, 17000}}))
    for (const bool normed : {false, true}) {
      Problem p(shape, 77, kBatchRows);
      const auto all = run<float>(p, kBatchRows, SmallEpilogue::kStoreFloat, normed, true);
      const auto gated = run<Bf16>(p, kBatchRows, SmallEpilogue::kSiluMul, normed, true);
      for (const uint32_t rows : {1U, 7U, 8U, 9U, 15U, 16U, 17U, 24U, 25U, 32U, 33U, 47U}) {
        const auto some = run<float>(p, rows, SmallEpilogue::kStoreFloat, normed, true);
        EXPECT_TRUE(same_bits(some.data(), all.data(), some.size()))
            << shape.in << " " << rows << " " << normed;
        const auto less = run<Bf16>(p, rows, SmallEpilogue::kSiluMul, normed, true);
        EXPECT_TRUE(same_bits(less.data(), gated.data(), less.size()))
            << shape.in << " " << rows << " " << normed;
      }
    }
}

// Every way in which blocks and warpgroups may divide the inputs gives the same sums to float32,
// and any range of outputs the same bits.
TEST_F(LinearBatchTest, PlansAgree) {
  Problem p({1600, 900}, 5, kBatchRows);
  const std::vector<double> want = p.reference(false, true);
  for (const uint32_t split : {1U, 2U, 4U})
    for (const auto& [groups, sharers] :
         {std::pair{1U, 2U}, std::pair{2U, 1U}, std::pair{3U, 1U}}) {
      std::vector<float> first;
      for (const uint32_t stages : {4U, 5U, 16U}) {
        BatchPlan o;
        o.split = split;
        o.groups = groups;
        o.sharers = sharers;
        o.stages = stages;
        o.shared_bytes = 200 * 1024;
        const auto got = run<float>(p, kBatchRows, SmallEpilogue::kStoreFloat, false, true, {}, o);
        SCOPED_TRACE(std::to_string(split) + " " + std::to_string(groups) + " " +
                     std::to_string(sharers) + " " + std::to_string(stages));
        EXPECT_LT(relative_error(got, want), (1600.0 / 16 + 8) / (1 << 24));
        if (first.empty()) first = got;
        EXPECT_TRUE(same_bits(first.data(), got.data(), got.size()));
      }
    }
}

TEST_F(LinearBatchTest, TakesIndexedRowsForTheHead) {
  Problem p({576, 18000}, 9, kBatchRows);
  std::vector<uint32_t> index(20);
  for (uint32_t i = 0; i < index.size(); ++i) index[i] = i * 7 % kBatchRows;
  DeviceArray<uint32_t> device_index(index);
  DeviceArray<float> out(index.size() * p.shape.out);
  SmallLinear task = p.task(20, SmallEpilogue::kStoreFloat, true, false, out.get());
  task.index = device_index.get();
  ASSERT_CUDA(linear_batch(task, plan_batch_linear(task, {}), nullptr));
  const auto got = out.read();
  const auto all = run<float>(p, kBatchRows, SmallEpilogue::kStoreFloat, true, false);
  for (size_t i = 0; i < index.size(); ++i)
    EXPECT_TRUE(
        same_bits(got.data() + i * p.shape.out, all.data() + index[i] * p.shape.out, p.shape.out));
}

TEST_F(LinearBatchTest, ChainsInAGraph) {
  const Shape sizes = problems<Shape>({{1024, 9088}}, {{128, 9088}}).front();
  expect_chains_in_a_graph(40, kBatchRows, sizes.in, sizes.out,
                           [](const SmallLinear& task, cudaStream_t stream) {
                             return linear_batch(task, plan_batch_linear(task, {}), stream);
                           });
}

TEST_F(LinearBatchTest, Float8WeightsAgreeWithDoublePrecision) {
  for (const Shape shape : problems<Shape>(
           {{16, 10}, {48, 80}, {576, 960}, {3584, 1152}, {1104, 300}, {18944, 264}, {208, 17000}},
           {{16, 10}, {48, 80}, {1104, 60}, {32, 17000}})) {
    SCOPED_TRACE(std::to_string(shape.in) + " x " + std::to_string(shape.out));
    Problem p(shape, static_cast<uint32_t>(shape.in), kBatchRows);
    const Fp8Weights fp8(shape, 7);
    const DeviceArray<uint8_t> bits(fp8.bits);
    const DeviceArray<float> scales(fp8.scales);
    for (const bool normed : {false, true}) {
      std::vector<double> input(p.x.size());
      for (size_t i = 0; i < p.x.size(); ++i) input[i] = value_of(p.x[i]);
      if (normed) input = rms_normed(p.residual, p.norm, 1e-5);
      std::vector<double> want(kBatchRows * shape.out);
      for (size_t r = 0; r < kBatchRows; ++r)
        for (size_t o = 0; o < shape.out; ++o) {
          double sum = value_of(p.bias[o]);
          for (size_t i = 0; i < shape.in; ++i)
            sum += input[r * shape.in + i] * fp8.values[o * shape.in + i];
          want[r * shape.out + o] = sum;
        }
      std::vector<Bf16> first;  // the first row's results: the same whatever its company
      for (const uint32_t rows : {1U, 9U, 16U, 24U, 31U, kBatchRows}) {
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
          ASSERT_CUDA(linear_batch(task, plan_batch_linear(task, {}), nullptr));
        }
        const std::vector<double> part = first_rows(want, rows, shape.out);
        std::vector<double> plus(part), gated(part.size() / 2);
        for (double& v : plus) v += 1;
        for (size_t i = 0; i < gated.size(); ++i)
          gated[i] = silu_times(part[2 * i], part[2 * i + 1]);
        const auto got = out.read();
        EXPECT_LT(relative_error(got, part), 5e-3);
        EXPECT_LT(relative_error(sum.read(), plus), 5e-3);
        EXPECT_LT(relative_error(products.read(), gated), 1e-2);
        if (first.empty()) first = got;
        EXPECT_TRUE(same_bits(first.data(), got.data(), shape.out));
      }
    }
  }
}

TEST_F(LinearBatchTest, RefusesWhatItsCopiesCannotTake) {
  Problem p({36, 16}, 1, kBatchRows);
  DeviceArray<float> out(kBatchRows * 16);
  const SmallLinear odd = p.task(9, SmallEpilogue::kStoreFloat, false, false, out.get());
  EXPECT_EQ(linear_batch(odd, plan_batch_linear(odd, {}), nullptr), cudaErrorInvalidValue);
  SmallLinear many = odd;
  many.in = 32;
  many.rows = kBatchRows + 1;
  EXPECT_EQ(linear_batch(many, plan_batch_linear(many, {}), nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tandem::cuda
