#include "common/engine/cuda/linear.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/cuda/device.h"
#include "tests/gpu/device_data.h"

namespace tandem::engine {
namespace {

using cuda::DeviceArray;
using cuda::Random;

constexpr double kTolerance = 5e-3;

struct Layer {
  Layer(Random& random, size_t in_size, size_t out_size, bool biased)
      : in(in_size),
        out(out_size),
        weight(random.bf16(in * out, 0.05F)),
        bias(biased ? random.bf16(out) : std::vector<Bf16>{}),
        device_weight(weight),
        device_bias(bias) {}
  LinearRef ref() const {
    return {device_weight.get(), bias.empty() ? nullptr : device_bias.get(),
            static_cast<int64_t>(in), static_cast<int64_t>(out)};
  }
  size_t in, out;
  std::vector<Bf16> weight, bias;
  DeviceArray<Bf16> device_weight, device_bias;
};

class LinearTest : public cuda::CardTest {
 protected:
  void SetUp() override {
    CardTest::SetUp();
    if (IsSkipped()) return;
    auto lt = cuda::CublasLt::create();
    ASSERT_TRUE(lt) << lt.error().to_string();
    lt_ = std::move(*lt);
    auto stream = cuda::Stream::create();
    ASSERT_TRUE(stream);
    stream_ = std::move(*stream);
  }

  std::unique_ptr<LinearRunner> runner(const LinearRunner::Limits& limits,
                                       const std::string& cache = {}) {
    scratch_ = std::make_unique<DeviceArray<std::byte>>(LinearRunner::scratch_bytes(limits));
    auto result = LinearRunner::create({&lt_, scratch_->get(), limits, "test card", 132, cache});
    EXPECT_TRUE(result);
    return std::make_unique<LinearRunner>(std::move(*result));
  }

  cuda::CublasLt lt_;
  cuda::Stream stream_;
  std::unique_ptr<DeviceArray<std::byte>> scratch_;
};

#define ASSERT_OK(expression)                                          \
  do {                                                                 \
    const Status status_of_call = (expression);                        \
    ASSERT_TRUE(status_of_call) << status_of_call.error().to_string(); \
  } while (false)

TEST_F(LinearTest, AgreesWithDoublePrecisionAtAnyNumberOfRows) {
  struct Sizes {
    size_t hidden, inner, qkv, vocab;
  };
  for (const Sizes& s : {Sizes{576, 1536, 960, 1000}, Sizes{56, 64, 72, 96},
                         Sizes{1024, 700, 1536, 514}, Sizes{37, 19, 45, 53}}) {
    Random random(static_cast<uint32_t>(s.hidden));
    constexpr uint32_t kMost = 200;
    const auto x = random.floats(kMost * s.hidden, 2.0F);
    const auto norm = random.floats(s.hidden);
    const auto normed = cuda::rms_normed(x, norm, 1e-6);
    const Layer qkv(random, s.hidden, s.qkv, true);
    const Layer gate_up(random, s.hidden, 2 * s.inner, true);
    const Layer down(random, s.inner, s.hidden, true);
    const Layer head(random, s.hidden, s.vocab, false);
    const auto mid = random.bf16(kMost * s.inner);
    DeviceArray<float> device_x(x), device_norm(norm);
    DeviceArray<Bf16> device_mid(mid);
    LinearRunner::Limits limits{kMost, static_cast<int64_t>(s.hidden),
                                static_cast<int64_t>(2 * s.inner)};
    const auto linear = runner(limits);
    std::vector<double> mid_values(mid.size());
    for (size_t i = 0; i < mid.size(); ++i) mid_values[i] = cuda::value_of(mid[i]);
    const auto want_qkv = cuda::matmul(normed, qkv.weight, qkv.bias, kMost, s.hidden, s.qkv);
    const auto pairs =
        cuda::matmul(normed, gate_up.weight, gate_up.bias, kMost, s.hidden, 2 * s.inner);
    auto want_down = cuda::matmul(mid_values, down.weight, down.bias, kMost, s.inner, s.hidden);
    for (size_t i = 0; i < want_down.size(); ++i) want_down[i] += cuda::value_of(x[i]);
    const auto want_head = cuda::matmul(normed, head.weight, {}, kMost, s.hidden, s.vocab);
    std::vector<double> want_mid(kMost * s.inner);
    for (size_t i = 0; i < want_mid.size(); ++i)
      want_mid[i] = cuda::silu_times(pairs[2 * i], pairs[2 * i + 1]);
    const auto first = [](const std::vector<double>& v, size_t n) {
      return std::vector<double>(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(n));
    };
    for (const uint32_t rows : {1U, 4U, 5U, 16U, 17U, 32U, 33U, 130U, kMost}) {
      SCOPED_TRACE(std::to_string(s.hidden) + " rows " + std::to_string(rows));
      const NormInput input{device_x.get(), nullptr, device_norm.get(), 1e-6F};
      DeviceArray<Bf16> out(rows * s.qkv);
      ASSERT_OK(linear->norm_linear(rows, input, qkv.ref(), out.get(), stream_.get()));
      EXPECT_LT(cuda::relative_error(out.read(), first(want_qkv, out.count())), kTolerance);

      DeviceArray<Bf16> products(rows * s.inner);
      ASSERT_OK(linear->norm_gate_up(rows, input, gate_up.ref(), products.get(), stream_.get()));
      EXPECT_LT(cuda::relative_error(products.read(), first(want_mid, products.count())), 8e-3);

      DeviceArray<float> sum(
          std::vector<float>(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(rows * s.hidden)));
      ASSERT_OK(linear->linear_add(rows, device_mid.get(), down.ref(), sum.get(), stream_.get()));
      EXPECT_LT(cuda::relative_error(sum.read(), first(want_down, sum.count())), kTolerance);

      DeviceArray<float> logits(rows * s.vocab);
      ASSERT_OK(linear->logits(rows, input, head.ref(), logits.get(), stream_.get()));
      EXPECT_LT(cuda::relative_error(logits.read(), first(want_head, logits.count())), kTolerance);
    }
  }
}

TEST_F(LinearTest, SplitsLongGateUpSteps) {
  constexpr size_t kHidden = 64;
  constexpr size_t kInner = 48;
  constexpr uint32_t kRows = 2 * 2048 + 3;
  Random random(5);
  const Layer gate_up(random, kHidden, 2 * kInner, false);
  const auto x = random.floats(kRows * kHidden);
  const auto norm = random.floats(kHidden);
  DeviceArray<float> device_x(x), device_norm(norm);
  DeviceArray<Bf16> out(kRows * kInner);
  const auto linear = runner({kRows, kHidden, 2 * kInner});
  ASSERT_OK(linear->norm_gate_up(kRows, {device_x.get(), nullptr, device_norm.get(), 1e-6F},
                                 gate_up.ref(), out.get(), stream_.get()));
  const auto pairs =
      cuda::matmul(cuda::rms_normed(x, norm, 1e-6), gate_up.weight, {}, kRows, kHidden, 2 * kInner);
  std::vector<double> want(kRows * kInner);
  for (size_t i = 0; i < want.size(); ++i)
    want[i] = cuda::silu_times(pairs[2 * i], pairs[2 * i + 1]);
  EXPECT_LT(cuda::relative_error(out.read(), want), 8e-3);
}

TEST_F(LinearTest, KeepsAlgorithmsInAFileAndSurvivesABadOne) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) /
                                     ("algorithms_" + std::to_string(::getpid()) + ".txt");
  std::filesystem::remove(path);
  Random random(6);
  const Layer qkv(random, 512, 768, true);
  const Layer down(random, 768, 512, false);
  const Layer gate_up(random, 512, 1536, false);
  const Layer head(random, 512, 3000, false);
  const LinearRunner::Shapes shapes{{qkv.ref()}, {down.ref()}, {gate_up.ref()}, {head.ref()}, 64};
  constexpr uint32_t kMost = 256;
  DeviceArray<Bf16> input(random.bf16(kMost * 768));
  DeviceArray<float> result(kMost * 3000);
  const auto prepare = [&] {
    auto linear = runner({kMost, 512, 1536}, path.string());
    const Status status =
        linear->prepare(shapes, {input.get(), result.get(), result.bytes()}, stream_);
    EXPECT_TRUE(status) << status.error().to_string();
    return linear;
  };
  const auto first = prepare();
  EXPECT_GT(first->wide().timed(), 0U);
  EXPECT_TRUE(first->wide().warnings().empty());
  ASSERT_TRUE(std::filesystem::exists(path));
  const auto second = prepare();
  EXPECT_EQ(second->wide().timed(), 0U);
  std::ofstream(path, std::ios::trunc) << "junk";
  const auto third = prepare();
  EXPECT_EQ(third->wide().timed(), first->wide().timed());
  EXPECT_EQ(third->wide().warnings().size(), 1U);
  const auto fourth = prepare();
  EXPECT_EQ(fourth->wide().timed(), 0U);
  EXPECT_TRUE(fourth->wide().warnings().empty());
  std::filesystem::remove(path);

  // Prepared algorithms give right results.
  const auto x = random.floats(100 * 512);
  const auto norm = random.floats(512);
  DeviceArray<float> device_x(x), device_norm(norm);
  DeviceArray<Bf16> out(100 * 768);
  ASSERT_OK(fourth->norm_linear(100, {device_x.get(), nullptr, device_norm.get(), 1e-6F}, qkv.ref(),
                                out.get(), stream_.get()));
  EXPECT_LT(cuda::relative_error(out.read(), cuda::matmul(cuda::rms_normed(x, norm, 1e-6),
                                                          qkv.weight, qkv.bias, 100, 512, 768)),
            kTolerance);
}

}  // namespace
}  // namespace tandem::engine
