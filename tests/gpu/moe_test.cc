#include "kernels/cuda/moe.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "tests/gpu/device_data.h"

namespace tandem::cuda {
namespace {

struct Mixture {
  Mixture(const MoeShapes& s, uint32_t max_rows, uint32_t seed)
      : shapes(s),
        random(seed),
        hidden(static_cast<size_t>(s.hidden)),
        inner(static_cast<size_t>(s.intermediate)),
        router(random.floats(s.experts * hidden, 0.1F)),
        gate_up(random.bf16(s.experts * 2 * inner * hidden, 0.1F)),
        down(random.bf16(s.experts * hidden * inner, 0.1F)),
        norm(random.floats(hidden)),
        x(random.floats(max_rows * hidden, 2.0F)),
        device_router(router),
        device_gate_up(gate_up),
        device_down(down),
        device_norm(norm),
        device_x(x),
        memory(moe_buffer_bytes(s, max_rows)),
        max(max_rows) {}

  Moe task(uint32_t rows) {
    Moe t;
    t.shapes = shapes;
    t.weights = {device_router.get(), device_gate_up.get(), device_down.get()};
    t.buffers = moe_buffers(shapes, max, memory.get());
    t.rows = rows;
    t.x = device_x.get();
    t.norm = device_norm.get();
    t.eps = 1e-6F;
    return t;
  }

  // What one row becomes, in double precision.
  std::vector<double> reference(size_t row) const {
    std::vector<double> out(hidden);
    const std::vector<float> one(x.begin() + static_cast<std::ptrdiff_t>(row * hidden),
                                 x.begin() + static_cast<std::ptrdiff_t>((row + 1) * hidden));
    const std::vector<double> in = rms_normed(one, norm, 1e-6);
    std::vector<double> weight(shapes.experts);
    double top = -1e300;
    for (size_t e = 0; e < weight.size(); ++e) {
      for (size_t i = 0; i < hidden; ++i) weight[e] += in[i] * value_of(router[e * hidden + i]);
      top = std::max(top, weight[e]);
    }
    double total = 0;
    for (double& w : weight) total += w = std::exp(w - top);
    std::vector<size_t> order(weight.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return weight[a] > weight[b]; });
    order.resize(shapes.experts_per_token);
    if (shapes.normalize_top_k) {
      total = 0;
      for (const size_t e : order) total += weight[e];
    }
    for (size_t i = 0; i < hidden; ++i) out[i] = value_of(one[i]);
    for (const size_t e : order) {
      std::vector<double> mid(inner);
      for (size_t i = 0; i < inner; ++i) {
        double g = 0;
        double u = 0;
        const Bf16* rows = gate_up.data() + (e * 2 * inner + 2 * i) * hidden;
        for (size_t j = 0; j < hidden; ++j) {
          g += in[j] * value_of(rows[j]);
          u += in[j] * value_of(rows[hidden + j]);
        }
        mid[i] = silu_times(g, u);
      }
      for (size_t i = 0; i < hidden; ++i) {
        double sum = 0;
        for (size_t j = 0; j < inner; ++j)
          sum += mid[j] * value_of(down[(e * hidden + i) * inner + j]);
        out[i] += weight[e] / total * sum;
      }
    }
    return out;
  }

  MoeShapes shapes;
  Random random;
  size_t hidden, inner;
  std::vector<float> router;
  std::vector<Bf16> gate_up, down;
  std::vector<float> norm, x;
  DeviceArray<float> device_router;
  DeviceArray<Bf16> device_gate_up, device_down;
  DeviceArray<float> device_norm, device_x;
  DeviceArray<std::byte> memory;
  uint32_t max;
};

class MoeTest : public CardTest {
 protected:
  void SetUp() override {
    CardTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_CUDA(prepare_moe());
  }
  static std::vector<float> run(Mixture& m, uint32_t rows, const int32_t* row_sequence = nullptr) {
    m.device_x.write(m.x);
    m.memory.poison();
    Moe task = m.task(rows);
    task.row_sequence = row_sequence;
    EXPECT_EQ(moe(task, {}, nullptr), cudaSuccess);
    return m.device_x.read();
  }
};

// The mixture's share is compared, without the residual that hides errors.
double mixture_error(const Mixture& m, const std::vector<float>& got, size_t row) {
  std::vector<double> want = m.reference(row);
  std::vector<float> change(m.hidden);
  for (size_t i = 0; i < m.hidden; ++i) {
    want[i] -= value_of(m.x[row * m.hidden + i]);
    change[i] = got[row * m.hidden + i] - m.x[row * m.hidden + i];
  }
  return relative_error(change, want);
}

TEST_F(MoeTest, AgreesWithDoublePrecision) {
  for (const MoeShapes& shapes :
       {MoeShapes{64, 48, 8, 2, true}, MoeShapes{32, 24, 6, 3, false},
        MoeShapes{256, 96, 128, 8, true}, MoeShapes{136, 40, 300, 5, false},
        MoeShapes{2048, 128, 16, 4, true}, MoeShapes{72, 328, 3, 3, true}}) {
    Mixture m(shapes, 300, shapes.experts);
    for (const uint32_t rows : {1U, 2U, 7U, 16U, 17U, 65U, 300U}) {
      const auto got = run(m, rows);
      double worst = 0;
      for (size_t r = 0; r<rows; r += rows> 16 ? 7 : 1)
        worst = std::max(worst, mixture_error(m, got, r));
      EXPECT_LT(worst, 1e-2) << shapes.experts << " experts, rows " << rows;
      // Rows past the last stay as they were.
      EXPECT_TRUE(same_bits(got.data() + rows * m.hidden, m.x.data() + rows * m.hidden,
                            (m.max - rows) * m.hidden));
    }
  }
}

TEST_F(MoeTest, ARowDoesNotDependOnItsCompany) {
  Mixture m({256, 96, 32, 4, true}, 200, 3);
  const auto all = run(m, 16);
  for (uint32_t rows = 1; rows < 16; ++rows) {
    const auto some = run(m, rows);
    EXPECT_TRUE(same_bits(some.data(), all.data(), rows * m.hidden)) << rows;
  }
  const auto wide = run(m, 200);
  const auto again = run(m, 200);
  EXPECT_TRUE(same_bits(wide.data(), again.data(), wide.size()));
  const auto less = run(m, 50);
  EXPECT_TRUE(same_bits(less.data(), wide.data(), 50 * m.hidden));
}

TEST_F(MoeTest, PaddingRowsChooseNobody) {
  Mixture m({256, 96, 32, 4, true}, 64, 4);
  for (const uint32_t rows : {8U, 40U}) {
    std::vector<int32_t> sequence(rows, 0);
    for (size_t r = rows - 3; r < rows; ++r) sequence[r] = -1;
    // Whatever a padding row holds must do no harm.
    for (size_t i = (rows - 2) * m.hidden; i < (rows - 1) * m.hidden; ++i)
      m.x[i] = std::numeric_limits<float>::quiet_NaN();
    DeviceArray<int32_t> device_sequence(sequence);
    const auto got = run(m, rows, device_sequence.get());
    const auto want = run(m, rows - 3);
    EXPECT_TRUE(same_bits(got.data(), want.data(), (rows - 3) * m.hidden));
    EXPECT_TRUE(same_bits(got.data() + (rows - 3) * m.hidden, m.x.data() + (rows - 3) * m.hidden,
                          3 * m.hidden));
  }
}

TEST_F(MoeTest, TheLowerExpertWinsATie) {
  Mixture m({64, 48, 40, 4, true}, 8, 5);
  // All router rows alike: every expert ties, so 0 to 3 are chosen with a quarter each.
  for (size_t e = 1; e < m.shapes.experts; ++e)
    std::copy_n(m.router.begin(), m.hidden,
                m.router.begin() + static_cast<std::ptrdiff_t>(e * m.hidden));
  m.device_router.write(m.router);
  ASSERT_CUDA(moe_route(m.task(8), nullptr));
  const MoeBuffers b = moe_buffers(m.shapes, m.max, m.memory.get());
  std::vector<int32_t> chosen(32);
  std::vector<float> weights(32);
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_CUDA(cudaMemcpy(chosen.data(), b.chosen, 128, cudaMemcpyDeviceToHost));
  ASSERT_CUDA(cudaMemcpy(weights.data(), b.weights, 128, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(chosen[i], static_cast<int32_t>(i % 4));
    EXPECT_FLOAT_EQ(weights[i], 0.25F);
  }
}

TEST_F(MoeTest, CanBeRecorded) {
  Mixture m({256, 96, 32, 4, true}, 64, 6);
  for (const uint32_t rows : {4U, 50U}) {
    const auto want = run(m, rows);
    m.device_x.write(m.x);
    cudaStream_t stream = nullptr;
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ASSERT_CUDA(moe(m.task(rows), {}, stream));
    ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    ASSERT_CUDA(cudaGraphLaunch(exec, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    const auto got = m.device_x.read();
    EXPECT_TRUE(same_bits(got.data(), want.data(), want.size()));
    ASSERT_CUDA(cudaGraphExecDestroy(exec));
    ASSERT_CUDA(cudaGraphDestroy(graph));
    ASSERT_CUDA(cudaStreamDestroy(stream));
  }
}

}  // namespace
}  // namespace tandem::cuda
