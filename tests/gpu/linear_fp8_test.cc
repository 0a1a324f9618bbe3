// FP8 projections on a card: the quantizing kernels against the host's, products against double
// precision over the same quantized operands, and how far they are from bf16.
#include "kernels/cuda/linear_fp8.h"

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "common/cuda/device.h"
#include "common/engine/cuda/fp8_row.h"
#include "common/engine/cuda/linear.h"
#include "common/kv/codec.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/rows.h"
#include "tests/gpu/device_data.h"

namespace tandem::engine {
namespace {

using cuda::DeviceArray;
using cuda::Random;

#define ASSERT_OK(expression)                                          \
  do {                                                                 \
    const Status status_of_call = (expression);                        \
    ASSERT_TRUE(status_of_call) << status_of_call.error().to_string(); \
  } while (false)

// A matrix in FP8 as the host makes it, and the values that stand for it.
struct Quantized {
  explicit Quantized(const std::vector<float>& x, size_t cols)
      : bits(x.size()), scales(x.size() / cols), values(x.size()) {
    for (size_t r = 0; r < scales.size(); ++r) {
      scales[r] = quantize_fp8_row(std::span(x).subspan(r * cols, cols), bits.data() + r * cols);
      for (size_t c = 0; c < cols; ++c)
        values[r * cols + c] = static_cast<double>(kv::e4m3_to_float(bits[r * cols + c])) *
                               static_cast<double>(scales[r]);
    }
  }
  std::vector<uint8_t> bits;
  std::vector<float> scales;
  std::vector<double> values;
};

std::vector<float> as_floats(const std::vector<Bf16>& x) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = to_float(x[i]);
  return out;
}

std::vector<double> product(const std::vector<double>& x, const std::vector<double>& weight,
                            const std::vector<Bf16>& bias, size_t rows, size_t in, size_t out) {
  std::vector<double> y(rows * out);
  for (size_t r = 0; r < rows; ++r)
    for (size_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0 : cuda::value_of(bias[o]);
      for (size_t i = 0; i < in; ++i) sum += x[r * in + i] * weight[o * in + i];
      y[r * out + o] = sum;
    }
  return y;
}

std::vector<float> rounded_to_bf16(const std::vector<double>& x) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = to_float(to_bf16(static_cast<float>(x[i])));
  return out;
}

struct Layer {
  Layer(Random& random, size_t in_size, size_t out_size, bool biased)
      : in(in_size),
        out(out_size),
        plain(as_floats(random.bf16(in * out, 0.05F))),
        fp8(plain, in),
        bias(biased ? random.bf16(out) : std::vector<Bf16>{}),
        device_bits(fp8.bits),
        device_scales(fp8.scales),
        device_bias(bias) {}
  LinearRef ref() const {
    LinearRef r;
    r.bias = bias.empty() ? nullptr : device_bias.get();
    r.in = static_cast<int64_t>(in);
    r.out = static_cast<int64_t>(out);
    r.fp8 = device_bits.get();
    r.scales = device_scales.get();
    return r;
  }
  size_t in, out;
  std::vector<float> plain;
  Quantized fp8;
  std::vector<Bf16> bias;
  DeviceArray<uint8_t> device_bits;
  DeviceArray<float> device_scales;
  DeviceArray<Bf16> device_bias;
};

class LinearFp8Test : public cuda::CardTest {
 protected:
  void SetUp() override {
    CardTest::SetUp();
    if (IsSkipped()) return;
    auto lt = cuda::CublasLt::create();
    ASSERT_TRUE(lt) << lt.error().to_string();
    lt_ = std::move(*lt);
    auto device = cuda::Device::open(0);
    ASSERT_TRUE(device);
    if (const Status able = check_fp8(device->info(), lt_.version()); !able)
      GTEST_SKIP() << able.error().detail;
    ASSERT_CUDA(cuda::prepare_fp8_rows());
    auto stream = cuda::Stream::create();
    ASSERT_TRUE(stream);
    stream_ = std::move(*stream);
  }

  std::unique_ptr<LinearRunner> runner(const LinearRunner::Limits& limits) {
    scratch_ = std::make_unique<DeviceArray<std::byte>>(LinearRunner::scratch_bytes(limits));
    auto result = LinearRunner::create({&lt_, scratch_->get(), limits, "test card", 132, {}});
    EXPECT_TRUE(result);
    return std::make_unique<LinearRunner>(std::move(*result));
  }

  cuda::CublasLt lt_;
  cuda::Stream stream_;
  std::unique_ptr<DeviceArray<std::byte>> scratch_;
};

TEST_F(LinearFp8Test, RowsAreQuantizedAsOnTheHost) {
  for (const size_t cols : {16UL, 64UL, 3584UL, 18944UL, 51200UL}) {
    constexpr size_t kRows = 9;
    Random random(static_cast<uint32_t>(cols));
    auto x = random.bf16(kRows * cols, 3.0F);
    for (size_t c = 0; c < cols; ++c) x[cols + c] = to_bf16(0.0F);        // zeros
    for (size_t c = 0; c < cols; ++c) x[2 * cols + c] = to_bf16(1e-30F);  // tiny
    x[3 * cols + cols / 2] = to_bf16(-5000.0F);                           // an outlier
    const Quantized want(as_floats(x), cols);
    DeviceArray<Bf16> device_x(x);
    DeviceArray<uint8_t> bits(x.size());
    DeviceArray<float> scales(kRows);
    ASSERT_CUDA(cuda::quantize_rows(
        {device_x.get(), kRows, static_cast<int64_t>(cols), {bits.get(), scales.get()}},
        stream_.get()));
    EXPECT_EQ(scales.read(), want.scales) << cols;
    EXPECT_EQ(bits.read(), want.bits) << cols;
  }
}

// What the norm's and the gate's own kernels make of the same rows, quantized on the host.
TEST_F(LinearFp8Test, NormedRowsAreThoseOfTheNorm) {
  for (const size_t hidden : {16UL, 576UL, 3584UL, 5120UL, 51200UL}) {
    constexpr size_t kRows = 9;
    Random random(static_cast<uint32_t>(hidden));
    auto x = random.floats(kRows * hidden, 3.0F);
    for (size_t c = 0; c < hidden; ++c) x[hidden + c] = 0;
    x[3 * hidden + hidden / 2] = -5000.0F;
    DeviceArray<float> device_x(x), norm(random.floats(hidden)), scales(kRows);
    DeviceArray<uint32_t> index(std::vector<uint32_t>{8, 1, 3, 3, 0, 2, 7, 6, 5});
    DeviceArray<Bf16> normed(x.size());
    DeviceArray<uint8_t> bits(x.size());
    const std::array<const uint32_t*, 2> choices{nullptr, index.get()};
    for (const uint32_t* rows : choices) {
      const auto size = static_cast<int64_t>(hidden);
      ASSERT_CUDA(cuda::rms_norm(
          {device_x.get(), rows, norm.get(), 1e-6F, kRows, size, normed.get()}, stream_.get()));
      ASSERT_CUDA(cuda::quantize_normed(
          {device_x.get(), rows, norm.get(), 1e-6F, kRows, size, {bits.get(), scales.get()}},
          stream_.get()));
      const Quantized want(as_floats(normed.read()), hidden);
      EXPECT_EQ(scales.read(), want.scales) << hidden;
      EXPECT_EQ(bits.read(), want.bits) << hidden;
    }
  }
}

TEST_F(LinearFp8Test, GatedRowsAreThoseOfTheGate) {
  for (const size_t inner : {16UL, 1536UL, 4104UL, 18944UL, 51200UL}) {
    constexpr size_t kRows = 7;
    Random random(static_cast<uint32_t>(inner));
    auto pairs = random.bf16(kRows * 2 * inner, 2.0F);
    for (size_t c = 0; c < 2 * inner; ++c) pairs[2 * inner + c] = to_bf16(0.0F);
    pairs[6 * inner + 2] = to_bf16(300.0F);  // a gate that is far open, in row 3
    DeviceArray<Bf16> gate_up(pairs), products(kRows * inner);
    DeviceArray<uint8_t> bits(kRows * inner);
    DeviceArray<float> scales(kRows);
    const auto size = static_cast<int64_t>(inner);
    ASSERT_CUDA(cuda::silu_mul(kRows, size, gate_up.get(), products.get(), stream_.get()));
    ASSERT_CUDA(cuda::quantize_silu({gate_up.get(), kRows, size, {bits.get(), scales.get()}},
                                    stream_.get()));
    const Quantized want(as_floats(products.read()), inner);
    EXPECT_EQ(scales.read(), want.scales) << inner;
    EXPECT_EQ(bits.read(), want.bits) << inner;
  }
}

constexpr uint32_t kMost = 160;
constexpr uint32_t kFew = own_rows(true).batch;

struct Sizes {
  size_t hidden, inner, qkv;
};

// A layer's projections on random rows, and in double precision what comes of them.
struct Block {
  explicit Block(const Sizes& sizes)
      : s(sizes),
        random(static_cast<uint32_t>(s.hidden)),
        x(random.floats(kMost * s.hidden, 2.0F)),
        norm(random.floats(s.hidden)),
        normed(cuda::rms_normed(x, norm, 1e-6)),
        qkv(random, s.hidden, s.qkv, true),
        gate_up(random, s.hidden, 2 * s.inner, true),
        down(random, s.inner, s.hidden, true),
        mid(random.bf16(kMost * s.inner)) {}

  struct Results {
    std::vector<double> qkv;    // of normed rows
    std::vector<double> mid;    // gate and up of normed rows
    std::vector<double> chain;  // x + down of that
    std::vector<double> sum;    // x + down of `mid` given
  };
  // Steps of more than kFew rows. What the norm rounds to bf16 is what is quantized.
  Results quantized() const {
    const Quantized in(rounded_to_bf16(normed), s.hidden);
    Results r;
    r.qkv = product(in.values, qkv.fp8.values, qkv.bias, kMost, s.hidden, s.qkv);
    r.mid = gated(in.values, kMost);
    r.chain = added(Quantized(rounded_to_bf16(r.mid), s.inner).values, kMost);
    r.sum = added(Quantized(as_floats(mid), s.inner).values, kMost);
    return r;
  }
  // Up to kFew rows: the same weights, rows in bf16.
  Results in_bf16() const {
    const std::vector<float> given = as_floats(mid);
    Results r;
    r.qkv = product(normed, qkv.fp8.values, qkv.bias, kFew, s.hidden, s.qkv);
    r.mid = gated(normed, kFew);
    r.chain = added(r.mid, kFew);
    r.sum = added({given.begin(), given.end()}, kFew);
    return r;
  }
  // QKV of weights as they were.
  std::vector<double> unquantized() const {
    const std::vector<float> rows = rounded_to_bf16(normed);
    return product({rows.begin(), rows.end()}, {qkv.plain.begin(), qkv.plain.end()}, qkv.bias,
                   kMost, s.hidden, s.qkv);
  }

  std::vector<double> gated(const std::vector<double>& rows, size_t count) const {
    const auto pairs =
        product(rows, gate_up.fp8.values, gate_up.bias, count, s.hidden, 2 * s.inner);
    std::vector<double> out(count * s.inner);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = cuda::silu_times(pairs[2 * i], pairs[2 * i + 1]);
    return out;
  }
  std::vector<double> added(const std::vector<double>& rows, size_t count) const {
    auto out = product(rows, down.fp8.values, down.bias, count, s.inner, s.hidden);
    for (size_t i = 0; i < out.size(); ++i) out[i] += cuda::value_of(x[i]);
    return out;
  }

  Sizes s;
  Random random;
  std::vector<float> x, norm;
  std::vector<double> normed;
  Layer qkv, gate_up, down;
  std::vector<Bf16> mid;
};

TEST_F(LinearFp8Test, AgreesWithDoublePrecisionAtAnyNumberOfRows) {
  for (const Sizes& s : {Sizes{576, 1536, 960}, Sizes{64, 48, 80}, Sizes{1024, 704, 1536}}) {
    const Block block(s);
    const Block::Results many = block.quantized(), few = block.in_bf16();
    const std::vector<double> exact = block.unquantized();
    DeviceArray<float> device_x(block.x), device_norm(block.norm);
    DeviceArray<Bf16> device_mid(block.mid);
    const auto longest = static_cast<int64_t>(std::max(s.hidden, s.inner));
    LinearRunner::Limits limits{kMost, static_cast<int64_t>(s.hidden),
                                static_cast<int64_t>(2 * s.inner), longest};
    const auto linear = runner(limits);
    for (const uint32_t rows : {1U, 8U, 9U, 16U, 33U, kFew, kFew + 1, 130U, kMost}) {
      SCOPED_TRACE(std::to_string(s.hidden) + " rows " + std::to_string(rows));
      const bool is_few = rows <= kFew;
      const Block::Results& want = is_few ? few : many;
      const auto off = [](const auto& got, const std::vector<double>& all) {
        const auto part = static_cast<std::ptrdiff_t>(got.count());
        return cuda::relative_error(got.read(), {all.begin(), all.begin() + part});
      };
      const NormInput input{device_x.get(), nullptr, device_norm.get(), 1e-6F};
      DeviceArray<Bf16> out(rows * s.qkv);
      ASSERT_OK(linear->norm_linear(rows, input, block.qkv.ref(), out.get(), stream_.get()));
      // A normed element on the edge between two bf16 may round the other way: hence not 4e-3.
      EXPECT_LT(off(out, want.qkv), is_few ? 5e-3 : 1e-2);
      if (rows == kMost) {
        const double error = off(out, exact);
        std::printf("[ FIGURE   ] %zu x %zu: fp8 is %.4f off the unquantized product\n", s.hidden,
                    s.qkv, error);
        EXPECT_LT(error, 5e-2);
      }
      DeviceArray<Bf16> products(rows * s.inner);
      ASSERT_OK(
          linear->norm_gate_up(rows, input, block.gate_up.ref(), products.get(), stream_.get()));
      const std::vector<float> residual(
          block.x.begin(), block.x.begin() + static_cast<std::ptrdiff_t>(rows * s.hidden));
      DeviceArray<float> chained(residual);
      ASSERT_OK(
          linear->linear_add(rows, products.get(), block.down.ref(), chained.get(), stream_.get()));
      // An element on the edge between two float8 may round the other way, too.
      EXPECT_LT(off(chained, want.chain), is_few ? 5e-3 : 2e-2);
      if (is_few) {
        EXPECT_LT(off(products, want.mid), 1e-2);
      }
      DeviceArray<float> sum(residual);
      ASSERT_OK(
          linear->linear_add(rows, device_mid.get(), block.down.ref(), sum.get(), stream_.get()));
      EXPECT_LT(off(sum, want.sum), 5e-3);
    }
  }
}

// Which products cuBLASLt has: what it lacks goes through the plain kernel, which is slow.
TEST_F(LinearFp8Test, CublasLtHasEveryKindOfProduct) {
  constexpr size_t kSize = 512;
  constexpr uint32_t kRows = 96;
  Random random(3);
  const Layer layer(random, kSize, kSize, true);
  const Quantized x(as_floats(random.bf16(kRows * kSize)), kSize);
  DeviceArray<uint8_t> bits(x.bits);
  DeviceArray<float> scales(x.scales);
  DeviceArray<std::byte> workspace(WideLinear::kWorkspaceBytes);
  auto wide = WideLinear::create(
      {&lt_, workspace.get(), WideLinear::kWorkspaceBytes, "test card", {}, false});
  ASSERT_TRUE(wide);
  for (const WideOutput output : {WideOutput::kStore, WideOutput::kAdd, WideOutput::kStoreFloat}) {
    for (const bool biased : {false, true}) {
      if (biased && output != WideOutput::kStore) continue;
      WideTask task;
      task.weight = layer.device_bits.get();
      task.bias = biased ? layer.device_bias.get() : nullptr;
      task.in = task.out = kSize;
      task.rows = kRows;
      task.x = bits.get();
      task.output = output;
      task.weight_scales = layer.device_scales.get();
      task.x_scales = scales.get();
      DeviceArray<float> result(std::vector<float>(kRows * kSize, 0.0F));
      task.result = result.get();
      const Status status = wide->run(task, stream_.get());
      EXPECT_TRUE(status) << "output " << static_cast<int>(output) << " bias " << biased << ": "
                          << status.error().to_string();
      if (!status || output == WideOutput::kStore) continue;
      const auto want = product(x.values, layer.fp8.values, {}, kRows, kSize, kSize);
      EXPECT_LT(cuda::relative_error(result.read(), want), 1e-3) << static_cast<int>(output);
    }
  }
}

// cuBLASLt keeps fewer bits of its sums where it may (fast accumulation): long sums show it.
TEST_F(LinearFp8Test, SumsKeepTheBitsOfFloat32) {
  constexpr size_t kIn = 18944, kOut = 64;
  constexpr uint32_t kRows = 64;
  Random random(5);
  const Layer layer(random, kIn, kOut, false);
  const Quantized x(as_floats(random.bf16(kRows * kIn)), kIn);
  DeviceArray<uint8_t> bits(x.bits);
  DeviceArray<float> scales(x.scales), result(kRows * kOut);
  DeviceArray<std::byte> workspace(WideLinear::kWorkspaceBytes);
  const auto want = product(x.values, layer.fp8.values, {}, kRows, kIn, kOut);
  for (const bool fast : {true, false}) {
    auto wide = WideLinear::create({.lt = &lt_,
                                    .workspace = workspace.get(),
                                    .workspace_bytes = WideLinear::kWorkspaceBytes,
                                    .gpu = "test card",
                                    .cache_path = {},
                                    .fast_accumulation = fast});
    ASSERT_TRUE(wide);
    WideTask task;
    task.weight = layer.device_bits.get();
    task.in = kIn;
    task.out = kOut;
    task.rows = kRows;
    task.x = bits.get();
    task.output = WideOutput::kStoreFloat;
    task.result = result.get();
    task.weight_scales = layer.device_scales.get();
    task.x_scales = scales.get();
    ASSERT_OK(wide->run(task, stream_.get()));
    const double off = cuda::relative_error(result.read(), want);
    std::printf("[ FIGURE   ] %s accumulation of %zu products is %.2e off\n",
                fast ? "fast" : "exact", kIn, off);
    if (!fast) {
      EXPECT_LT(off, 1e-3);
    }
  }
}

TEST_F(LinearFp8Test, ThePlainKernelAgrees) {
  constexpr size_t kIn = 80, kOut = 48;
  constexpr uint32_t kRows = 5;
  Random random(4);
  const Layer layer(random, kIn, kOut, true);
  const Quantized x(as_floats(random.bf16(kRows * kIn)), kIn);
  DeviceArray<uint8_t> bits(x.bits);
  DeviceArray<float> scales(x.scales), out(kRows * kOut);
  cuda::Fp8Linear task;
  task.weight = layer.device_bits.get();
  task.weight_scales = layer.device_scales.get();
  task.bias = layer.device_bias.get();
  task.x = bits.get();
  task.x_scales = scales.get();
  task.in = kIn;
  task.out = kOut;
  task.rows = kRows;
  task.epilogue = cuda::SmallEpilogue::kStoreFloat;
  task.result = out.get();
  ASSERT_CUDA(cuda::linear_fp8_plain(task, stream_.get()));
  EXPECT_LT(cuda::relative_error(out.read(),
                                 product(x.values, layer.fp8.values, layer.bias, kRows, kIn, kOut)),
            1e-5);
}

}  // namespace
}  // namespace tandem::engine
