#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/kv/codec.h"
#include "tests/unit/kernels/test_util.h"

// Key/value writing and attention through the engine seam, against a plain double-precision account
// of the rules in common/kv/layout.h and common/engine/ops.h.
namespace tandem::testing {
namespace {

using cpu::CpuIsa;
using engine::Activation;

struct Shape {
  uint32_t heads = 3;
  uint32_t kv_heads = 1;
  uint32_t head_dim = 16;
  uint32_t window = 0;
  bool qk_norm = false;
  [[nodiscard]] int64_t columns() const { return int64_t{heads + 2 * kv_heads} * head_dim; }
  [[nodiscard]] int64_t out_columns() const { return int64_t{heads} * head_dim; }
};

constexpr uint32_t kMaxPositions = 1024;

// Rope factors and norm scales; any numbers do.
struct Tables {
  explicit Tables(const Shape& s) {
    const uint32_t half = s.head_dim / 2;
    for (uint32_t p = 0; p < kMaxPositions; ++p)
      for (uint32_t i = 0; i < half; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / s.head_dim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    q_norm = random_floats(s.head_dim, 77);
    k_norm = random_floats(s.head_dim, 78);
  }
  std::vector<float> cos, sin, q_norm, k_norm;
};

model::HostTensor vector_tensor(const std::vector<float>& values) {
  model::HostTensor t;
  t.name = "norm";
  t.shape = {static_cast<int64_t>(values.size())};
  t.bytes = std::as_bytes(std::span(values));
  return t;
}

// One sequence after its turn: positions, its blocks in a pool that others share, its own tail
// slot.
struct Sequence {
  std::vector<float> qkv;  // [tokens][columns], before norms and rope
  std::vector<BlockId> blocks;
  uint32_t tokens = 0;
  uint32_t tail = 0;
  uint32_t done = 0;
  std::vector<float> out;  // [tokens][out_columns]
};

// A pool, and an engine that runs one attention layer of it.
class Layer {
 public:
  Layer(engine::Ops& ops, const Shape& shape, kv::KvFormat format)
      : ops_(ops), shape_(shape), tables_(shape) {
    kv_.layout = {2, shape.kv_heads, shape.head_dim, format};
    kv_.blocks = 160;
    kv_.tails = 8;
    pages_.assign(kv_.layout.block_bytes() * kv_.blocks,
                  std::byte{0xff});  // NaN in every float type
    tails_.assign(kv_.layout.tail_layout().block_bytes() * kv_.tails, std::byte{0xff});
    kv_.pages = pages_.data();
    kv_.tail = tails_.data();
    params_.shape = {shape.heads, shape.kv_heads, shape.head_dim,
                     1.0F / std::sqrt(static_cast<float>(shape.head_dim)), shape.window};
    params_.rope = {tables_.cos.data(), tables_.sin.data(), kMaxPositions, shape.head_dim};
    params_.norm_eps = 1e-6F;
    if (shape.qk_norm) {
      q_norm_ = *ops.load_vector(vector_tensor(tables_.q_norm));
      k_norm_ = *ops.load_vector(vector_tensor(tables_.k_norm));
      params_.q_norm = q_norm_.get();
      params_.k_norm = k_norm_.get();
    }
    qkv_ = *ops.allocate(1024, shape.columns());
    out_ = *ops.allocate(1024, shape.out_columns());
  }

  Sequence sequence(uint32_t tokens, uint64_t seed) {
    Sequence s;
    s.tokens = tokens;
    s.tail = next_tail_++;
    s.qkv = random_floats(static_cast<size_t>(tokens * shape_.columns()), seed);
    for (uint32_t i = 0; i * kv::kBlockTokens < tokens; ++i)
      s.blocks.push_back(BlockId{(next_block_ += 7) % kv_.blocks});  // scattered over the pool
    s.out = poison(static_cast<size_t>(tokens * shape_.out_columns()));
    return s;
  }

  // Runs the next rows[i] tokens of sequences[i] in one step.
  void step(std::vector<std::pair<Sequence*, uint32_t>> parts) {
    std::vector<TokenId> tokens;
    std::vector<uint32_t> positions;
    std::vector<engine::SequenceView> views;
    auto* qkv = static_cast<float*>(qkv_.data);
    for (const auto& [s, rows] : parts) {
      engine::SequenceView v;
      v.first_row = static_cast<uint32_t>(tokens.size());
      v.rows = rows;
      v.start = s->done;
      v.blocks = std::span(s->blocks).first((s->done + rows + 15) / 16);
      v.tail = s->tail;
      std::copy_n(s->qkv.begin() + s->done * shape_.columns(), rows * shape_.columns(),
                  qkv + v.first_row * shape_.columns());
      for (uint32_t r = 0; r < rows; ++r) {
        tokens.push_back(0);
        positions.push_back(s->done + r);
      }
      views.push_back(v);
    }
    const engine::StepView step{tokens, positions, views};
    std::fill_n(static_cast<float*>(out_.data), tokens.size() * static_cast<size_t>(out_.cols),
                std::nanf(""));
    ops_.write_kv(step, 1, params_, qkv_, kv_);
    ops_.attention(step, 1, params_.shape, qkv_, kv_, out_);
    for (size_t i = 0; i < parts.size(); ++i) {
      auto& [s, rows] = parts[i];
      std::copy_n(static_cast<float*>(out_.data) + views[i].first_row * out_.cols, rows * out_.cols,
                  s->out.begin() + s->done * out_.cols);
      s->done += rows;
    }
  }

  void run(Sequence& s, const std::vector<uint32_t>& chunks) {
    for (const uint32_t rows : chunks) step({{&s, rows}});
  }

  // What the rules ask for, in double precision, from the bytes that are in the pool now.
  std::vector<double> expected(const Sequence& s) const;
  [[nodiscard]] std::vector<std::byte> stored(const Sequence& s) const;

 private:
  std::vector<double> rotated(const Sequence& s, uint32_t position, uint32_t head,
                              const std::vector<float>* norm) const;
  std::vector<double> key_or_value(const Sequence& s, uint32_t position, uint32_t head,
                                   kv::KvSide side, uint32_t reader) const;
  [[nodiscard]] const std::byte* page(const Sequence& s, uint32_t index) const {
    return kv_.pages + (kv_.blocks + s.blocks[index].value) * kv_.layout.page_bytes();
  }

  engine::Ops& ops_;
  Shape shape_;
  Tables tables_;
  engine::KvPages kv_;
  engine::QkvParams params_;
  std::unique_ptr<engine::VectorWeight> q_norm_, k_norm_;
  std::vector<std::byte> pages_, tails_;
  Activation qkv_, out_;
  uint32_t next_block_ = 3;
  uint32_t next_tail_ = 1;
};

std::vector<double> Layer::rotated(const Sequence& s, uint32_t position, uint32_t head,
                                   const std::vector<float>* norm) const {
  const size_t hd = shape_.head_dim;
  const float* from = s.qkv.data() + position * shape_.columns() + head * shape_.head_dim;
  std::vector<double> x(from, from + hd);
  if (norm != nullptr) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(hd) + 1e-6);
    for (size_t i = 0; i < hd; ++i) x[i] *= factor * static_cast<double>((*norm)[i]);
  }
  std::vector<double> y(hd);
  for (size_t i = 0; i < hd / 2; ++i) {
    const double c = static_cast<double>(tables_.cos[position * (hd / 2) + i]);
    const double n = static_cast<double>(tables_.sin[position * (hd / 2) + i]);
    y[i] = x[i] * c - x[i + hd / 2] * n;
    y[i + hd / 2] = x[i + hd / 2] * c + x[i] * n;
  }
  return y;
}

std::vector<double> Layer::key_or_value(const Sequence& s, uint32_t position, uint32_t head,
                                        kv::KvSide side, uint32_t reader) const {
  const bool exact = kv_.layout.needs_tail() && position / 16 == reader / 16;
  std::vector<float> row(shape_.head_dim);
  if (!exact) {
    kv::decode_row(kv_.layout, side,
                   page(s, position / 16) + kv::section_offset(kv_.layout, head, side),
                   position % 16, row.data());
  } else {
    const uint32_t column = shape_.heads + (side == kv::KvSide::kK ? 0 : shape_.kv_heads) + head;
    std::vector<double> x;
    if (side == kv::KvSide::kK) {
      x = rotated(s, position, column, shape_.qk_norm ? &tables_.k_norm : nullptr);
    } else {
      const float* from = s.qkv.data() + position * shape_.columns() + column * shape_.head_dim;
      x.assign(from, from + shape_.head_dim);
    }
    for (size_t i = 0; i < row.size(); ++i) row[i] = to_float(to_bf16(static_cast<float>(x[i])));
  }
  return {row.begin(), row.end()};
}

std::vector<double> Layer::expected(const Sequence& s) const {
  std::vector<double> out(static_cast<size_t>(s.tokens * shape_.out_columns()));
  const size_t hd = shape_.head_dim;
  for (uint32_t p = 0; p < s.tokens; ++p)
    for (uint32_t h = 0; h < shape_.heads; ++h) {
      const uint32_t kv_head = h / (shape_.heads / shape_.kv_heads);
      const auto q = rotated(s, p, h, shape_.qk_norm ? &tables_.q_norm : nullptr);
      const uint32_t first =
          shape_.window == 0 || p + 1 < shape_.window ? 0 : p + 1 - shape_.window;
      double total = 0;
      std::vector<double> sum(hd);
      for (uint32_t j = first; j <= p; ++j) {
        const auto k = key_or_value(s, j, kv_head, kv::KvSide::kK, p);
        const auto v = key_or_value(s, j, kv_head, kv::KvSide::kV, p);
        const double score = std::inner_product(q.begin(), q.end(), k.begin(), 0.0) /
                             std::sqrt(static_cast<double>(hd));
        const double weight = std::exp(score);
        total += weight;
        for (size_t i = 0; i < hd; ++i) sum[i] += weight * v[i];
      }
      for (size_t i = 0; i < hd; ++i)
        out[static_cast<size_t>(p * shape_.out_columns()) + h * hd + i] = sum[i] / total;
    }
  return out;
}

std::vector<std::byte> Layer::stored(const Sequence& s) const {
  std::vector<std::byte> all;
  for (uint32_t i = 0; i < s.tokens / 16; ++i)  // full pages
    all.insert(all.end(), page(s, i), page(s, i) + kv_.layout.page_bytes());
  return all;
}

constexpr kv::KvFormat kFormats[] = {kv::KvFormat::kF32,  kv::KvFormat::kBf16,
                                     kv::KvFormat::kInt8, kv::KvFormat::kK8V4,
                                     kv::KvFormat::kInt4, kv::KvFormat::kFp8E4M3};

class CpuAttention : public ::testing::TestWithParam<CpuIsa> {
 protected:
  std::unique_ptr<engine::Ops> ops_ = make_ops(GetParam(), DType::kF32, 2);
};

TEST_P(CpuAttention, MatchesTheRulesForEveryFormatAndShape) {
  const Shape shapes[] = {{3, 1, 16, 0, false}, {7, 1, 64, 0, true},  {4, 2, 32, 40, false},
                          {2, 2, 12, 0, true},  {8, 2, 80, 17, true}, {3, 3, 96, 0, false},
                          {2, 1, 128, 0, true}, {2, 1, 6, 9, false}};
  for (const Shape& shape : shapes)
    for (const kv::KvFormat format : kFormats) {
      Layer layer(*ops_, shape, format);
      Sequence s = layer.sequence(140, shape.head_dim);
      layer.run(s, {37, 11, 64, 1, 27});
      EXPECT_LT(relative_error(s.out, layer.expected(s)), 2e-5)
          << to_string(format) << " head_dim " << shape.head_dim << " window " << shape.window;
    }
}

TEST_P(CpuAttention, DoesNotDependOnHowAPromptIsCut) {
  const Shape shapes[] = {{3, 1, 64, 0, false}, {7, 1, 16, 50, true}};
  for (const Shape& shape : shapes)
    for (const kv::KvFormat format : kFormats) {
      Layer layer(*ops_, shape, format);
      Sequence whole = layer.sequence(301, 5);
      layer.run(whole, {301});
      const std::vector<std::vector<uint32_t>> cuts = {{1, 300},
                                                       {16, 285},
                                                       {15, 1, 285},
                                                       {100, 60, 141},
                                                       {200, 100, 1},
                                                       {7, 9, 30, 2, 252, 1},
                                                       std::vector<uint32_t>(301, 1)};
      for (const auto& cut : cuts) {
        Layer other(*ops_, shape, format);
        Sequence s = other.sequence(301, 5);
        other.run(s, cut);
        EXPECT_TRUE(same_bits(s.out, whole.out)) << to_string(format) << " first cut " << cut[0];
        EXPECT_EQ(other.stored(s), layer.stored(whole)) << to_string(format);
      }
    }
}

TEST_P(CpuAttention, DoesNotDependOnBatchCompanyOrThreads) {
  const Shape shape{7, 1, 64, 0, false};
  for (const kv::KvFormat format : kFormats) {
    auto alone_ops = make_ops(GetParam(), DType::kF32, 1);
    Layer alone(*alone_ops, shape, format);
    Sequence reference = alone.sequence(280, 9);
    alone.run(reference, {270, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});

    auto many_ops = make_ops(GetParam(), DType::kF32, 3);
    Layer together(*many_ops, shape, format);
    Sequence s = together.sequence(280, 9);
    Sequence a = together.sequence(100, 1);
    Sequence b = together.sequence(333, 2);
    together.step({{&a, 40}, {&s, 190}, {&b, 300}});
    together.step({{&b, 20}, {&s, 80}});
    for (int i = 0; i < 10; ++i) together.step({{&a, 6}, {&b, 1}, {&s, 1}});
    EXPECT_TRUE(same_bits(s.out, reference.out)) << to_string(format);
  }
}

TEST_P(CpuAttention, LongContextIsSharedOverThreadsWithTheSameResult) {
  const Shape shape{9, 3, 64, 0, false};
  auto one = make_ops(GetParam(), DType::kF32, 1);
  auto four = make_ops(GetParam(), DType::kF32, 4);
  Layer alone(*one, shape, kv::KvFormat::kBf16);
  Layer shared(*four, shape, kv::KvFormat::kBf16);
  Sequence a = alone.sequence(700, 3);
  Sequence b = shared.sequence(700, 3);
  alone.run(a, {698, 1, 1});
  shared.run(b, {698, 1, 1});
  EXPECT_TRUE(same_bits(a.out, b.out));
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuAttention, ::testing::ValuesIn(cpu::supported_isas()), isa_name);

}  // namespace
}  // namespace tandem::testing
