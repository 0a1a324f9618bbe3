#include "kernels/cuda/rows.h"

#include "tests/gpu/device_data.h"

namespace tandem::cuda {
namespace {

class RowsTest : public CardTest {};

constexpr double kTolerance = 4e-3;

TEST_F(RowsTest, EmbedsTokensAndLeavesPaddingRowsZero) {
  for (const size_t hidden : {32U, 56U, 576U, 3584U, 13U, 4097U}) {
    Random random(static_cast<uint32_t>(hidden));
    const auto table = random.bf16(50 * hidden);
    const std::vector<int32_t> tokens = {3, 49, 0, 3, 17};
    const std::vector<int32_t> sequence = {0, 0, 1, -1, 2};
    DeviceArray<Bf16> device_table(table);
    DeviceArray<int32_t> device_tokens(tokens);
    DeviceArray<int32_t> device_sequence(sequence);
    DeviceArray<float> x(5 * hidden);
    DeviceStep step;
    step.tokens = device_tokens.get();
    step.row_sequence = device_sequence.get();
    step.rows = 5;
    ASSERT_CUDA(embed(step, device_table.get(), static_cast<int64_t>(hidden), x.get(), nullptr));
    const auto got = x.read();
    for (size_t r = 0; r < 5; ++r)
      for (size_t i = 0; i < hidden; ++i)
        ASSERT_EQ(got[r * hidden + i],
                  r == 3 ? 0.0F : to_float(table[static_cast<size_t>(tokens[r]) * hidden + i]))
            << hidden << " " << r << " " << i;
  }
}

TEST_F(RowsTest, NormsRows) {
  for (const size_t hidden : {32U, 56U, 112U, 576U, 3584U, 8192U, 13U, 1026U}) {
    Random random(static_cast<uint32_t>(hidden));
    const auto x = random.floats(7 * hidden, 4.0F);
    const auto norm = random.floats(hidden);
    DeviceArray<float> device_x(x);
    DeviceArray<float> device_norm(norm);
    DeviceArray<Bf16> out(7 * hidden);
    RmsNorm task{device_x.get(), nullptr, device_norm.get(), 1e-6F, 7, static_cast<int64_t>(hidden),
                 out.get()};
    ASSERT_CUDA(rms_norm(task, nullptr));
    EXPECT_LT(relative_error(out.read(), rms_normed(x, norm, 1e-6)), kTolerance) << hidden;

    const std::vector<uint32_t> index = {6, 1};
    DeviceArray<uint32_t> device_index(index);
    const auto all = out.read();
    out.poison();
    task.index = device_index.get();
    task.rows = 2;
    ASSERT_CUDA(rms_norm(task, nullptr));
    const auto some = out.read();
    EXPECT_TRUE(same_bits(some.data(), all.data() + 6 * hidden, hidden));
    EXPECT_TRUE(same_bits(some.data() + hidden, all.data() + hidden, hidden));
  }
}

TEST_F(RowsTest, MultipliesGateAndUp) {
  for (const size_t inner : {24U, 64U, 176U, 1536U, 13U, 1001U})
    for (const size_t rows : {1U, 3U, 70U}) {
      Random random(static_cast<uint32_t>(inner + rows));
      const auto in = random.bf16(rows * inner * 2, 2.0F);
      DeviceArray<Bf16> device_in(in);
      DeviceArray<Bf16> out(rows * inner);
      ASSERT_CUDA(silu_mul(static_cast<uint32_t>(rows), static_cast<int64_t>(inner),
                           device_in.get(), out.get(), nullptr));
      std::vector<double> want(rows * inner);
      for (size_t i = 0; i < want.size(); ++i)
        want[i] = silu_times(value_of(in[2 * i]), value_of(in[2 * i + 1]));
      EXPECT_LT(relative_error(out.read(), want), kTolerance) << inner << " " << rows;
    }
}

TEST_F(RowsTest, AddsBiases) {
  Random random(4);
  const auto x = random.floats(5 * 51);
  const auto bias = random.bf16(51);
  DeviceArray<float> device_x(x);
  DeviceArray<Bf16> device_bias(bias);
  ASSERT_CUDA(add_bias(5, 51, device_bias.get(), device_x.get(), nullptr));
  const auto added = device_x.read();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(added[i], x[i] + to_float(bias[i % 51]));
}

}  // namespace
}  // namespace tandem::cuda
