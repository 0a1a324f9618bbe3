#include "tests/support/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "common/kv/codec.h"

namespace tandem::testing {
namespace {

using namespace engine;  // NOLINT: this file implements that namespace's interface

struct RefLinear final : LinearWeight {
  std::vector<float> rows;  // [out, in]
  std::vector<float> bias;  // empty or [out]
};
struct RefVector final : VectorWeight {
  std::vector<float> values;
};
struct RefEmbedding final : EmbeddingWeight {
  std::vector<float> rows;
};
struct RefMoe final : MoeWeight {
  RefLinear router;
  std::vector<RefLinear> gate, up, down;
};

float* row_of(Activation a, int64_t row) { return static_cast<float*>(a.data) + row * a.cols; }

float dot(const float* a, const float* b, size_t n) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t j = 0; j < 8; ++j)
      lanes[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  for (; i < n; ++i) lanes[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return static_cast<float>(std::accumulate(lanes, lanes + 8, 0.0));
}

void apply(const RefLinear& w, const float* in, float* out) {
  for (int64_t o = 0; o < w.out; ++o) {
    out[o] = dot(w.rows.data() + o * w.in, in, static_cast<size_t>(w.in));
    if (!w.bias.empty()) out[o] += w.bias[static_cast<size_t>(o)];
  }
}

void rms_norm(const float* in, const float* scale, float eps, size_t n, float* out) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(in[i]) * static_cast<double>(in[i]);
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(eps));
  for (size_t i = 0; i < n; ++i)
    out[i] = static_cast<float>(static_cast<double>(in[i]) * inverse) * scale[i];
}

float silu(float x) { return x / (1.0F + std::exp(-x)); }

class ReferenceOps final : public engine::HostOps {
 public:
  explicit ReferenceOps(DType weights) : weights_(weights) {}

  Result<std::unique_ptr<LinearWeight>> load_linear(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases) override {
    auto w = std::make_unique<RefLinear>();
    for (size_t i = 0; i < parts.size(); ++i) {
      append(*parts[i], *w);
      if (biases.empty()) continue;
      std::vector<float> bias(static_cast<size_t>(parts[i]->rows()), 0.0F);
      if (biases[i] != nullptr) model::read_row(*biases[i], 0, bias);
      w->bias.insert(w->bias.end(), bias.begin(), bias.end());
    }
    return w;
  }

  Result<std::unique_ptr<VectorWeight>> load_vector(const model::HostTensor& t) override {
    auto w = std::make_unique<RefVector>();
    w->size = t.elements();
    w->values.resize(static_cast<size_t>(w->size));
    model::read_row(t, 0, w->values);
    return w;
  }

  Result<std::unique_ptr<EmbeddingWeight>> load_embedding(const model::HostTensor& t) override {
    RefLinear rows;
    append(t, rows);
    auto w = std::make_unique<RefEmbedding>();
    w->vocab = rows.out;
    w->hidden = rows.in;
    w->rows = std::move(rows.rows);
    return w;
  }

  Result<std::unique_ptr<LinearWeight>> load_tied_head(const EmbeddingWeight& table) override {
    auto w = std::make_unique<RefLinear>();
    w->in = table.hidden;
    w->out = table.vocab;
    w->rows = static_cast<const RefEmbedding&>(table).rows;
    return w;
  }

  Result<std::unique_ptr<MoeWeight>> load_moe(
      const MoeShape& shape, const model::HostTensor& router,
      std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
      std::span<const model::HostTensor* const> down) override {
    auto w = std::make_unique<RefMoe>();
    // Which experts a token gets is a discrete choice: the router stays float32.
    append(router, w->router, DType::kF32);
    w->gate.resize(shape.experts);
    w->up.resize(shape.experts);
    w->down.resize(shape.experts);
    for (size_t e = 0; e < shape.experts; ++e) {
      append(*gate[e], w->gate[e]);
      append(*up[e], w->up[e]);
      append(*down[e], w->down[e]);
    }
    return w;
  }

  Result<Activation> allocate(int64_t rows, int64_t cols) override {
    auto& buffer = buffers_.emplace_back(static_cast<size_t>(rows * cols));
    return Activation{buffer.data(), rows, cols};
  }

  void embed(const StepView& step, const EmbeddingWeight& table, Activation out) override {
    const auto& rows = static_cast<const RefEmbedding&>(table).rows;
    for (uint32_t r = 0; r < step.rows(); ++r)
      std::copy_n(rows.data() + int64_t{step.tokens[r]} * table.hidden, table.hidden,
                  row_of(out, r));
  }

  void norm_linear(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                   const LinearWeight& weight, Activation out) override {
    std::vector<float> normed(static_cast<size_t>(x.cols));
    for (uint32_t r = 0; r < rows; ++r) {
      rms_norm(row_of(x, r), values(norm), eps, normed.size(), normed.data());
      apply(static_cast<const RefLinear&>(weight), normed.data(), row_of(out, r));
    }
  }

  void write_kv(const StepView& step, uint32_t layer, const QkvParams& params, Activation qkv,
                const KvPages& kv) override;
  void attention(const StepView& step, uint32_t layer, const AttentionShape& shape, Activation qkv,
                 const KvPages& kv, Activation out) override;

  void linear_add(uint32_t rows, Activation in, const LinearWeight& weight, Activation x) override {
    std::vector<float> out(static_cast<size_t>(weight.out));
    for (uint32_t r = 0; r < rows; ++r) {
      apply(static_cast<const RefLinear&>(weight), row_of(in, r), out.data());
      for (size_t i = 0; i < out.size(); ++i) row_of(x, r)[i] += out[i];
    }
  }

  void norm_gate_up(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                    const LinearWeight& gate_up, Activation out) override {
    std::vector<float> normed(static_cast<size_t>(x.cols));
    std::vector<float> both(static_cast<size_t>(gate_up.out));
    const size_t half = both.size() / 2;
    for (uint32_t r = 0; r < rows; ++r) {
      rms_norm(row_of(x, r), values(norm), eps, normed.size(), normed.data());
      apply(static_cast<const RefLinear&>(gate_up), normed.data(), both.data());
      for (size_t i = 0; i < half; ++i) row_of(out, r)[i] = silu(both[i]) * both[half + i];
    }
  }

  void norm_moe(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                const MoeShape& shape, const MoeWeight& weight) override;

  void logits(std::span<const uint32_t> rows, Activation x, const VectorWeight& norm, float eps,
              const LinearWeight& head, float* out) override {
    std::vector<float> normed(static_cast<size_t>(x.cols));
    for (size_t i = 0; i < rows.size(); ++i) {
      rms_norm(row_of(x, rows[i]), values(norm), eps, normed.size(), normed.data());
      apply(static_cast<const RefLinear&>(head), normed.data(),
            out + static_cast<int64_t>(i) * head.out);
    }
  }

  [[nodiscard]] size_t weight_bytes() const override { return weight_bytes_; }
  [[nodiscard]] std::string_view name() const override { return "reference"; }

 private:
  static const float* values(const VectorWeight& v) {
    return static_cast<const RefVector&>(v).values.data();
  }

  void append(const model::HostTensor& t, RefLinear& w) { append(t, w, weights_); }
  void append(const model::HostTensor& t, RefLinear& w, DType type) {
    w.in = t.cols();
    std::vector<float> row(static_cast<size_t>(w.in));
    for (int64_t r = 0; r < t.rows(); ++r) {
      model::read_row(t, r, row);
      if (type == DType::kBf16)
        for (float& f : row) f = to_float(to_bf16(f));
      w.rows.insert(w.rows.end(), row.begin(), row.end());
    }
    w.out += t.rows();
    weight_bytes_ += static_cast<size_t>(t.elements()) * dtype_bytes(type);
  }

  // This step's exact rows of one layer, for reads of the page a query lies in; and the open page's
  // rows from before this step.
  struct Kept {
    std::vector<float> rows;  // [rows][2 * kv_heads * head_dim], rounded as a tail page would
    std::vector<std::vector<std::byte>> tails;  // per sequence
  };

  DType weights_;
  size_t weight_bytes_ = 0;
  std::vector<std::vector<float>> buffers_;
  std::map<uint32_t, Kept> kept_;
};

std::byte* page_of(const KvPages& kv, uint32_t layer, BlockId block) {
  return kv.pages + (size_t{layer} * kv.blocks + block.value) * kv.layout.page_bytes();
}
std::byte* tail_of(const KvPages& kv, uint32_t layer, uint32_t slot) {
  return kv.tail + (size_t{layer} * kv.tails + slot) * kv.layout.tail_layout().page_bytes();
}

void rotate(float* head, const RopeTable& rope, uint32_t position) {
  const size_t half = rope.rotary_dim / 2;
  for (size_t i = 0; i < half; ++i) {
    const float c = rope.cos[position * half + i];
    const float s = rope.sin[position * half + i];
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * c - b * s;
    head[i + half] = b * c + a * s;
  }
}

void ReferenceOps::write_kv(const StepView& step, uint32_t layer, const QkvParams& params,
                            Activation qkv, const KvPages& kv) {
  const AttentionShape& shape = params.shape;
  const size_t d = shape.head_dim;
  const size_t k_at = shape.heads * d;
  const size_t v_at = k_at + shape.kv_heads * d;
  const kv::KvLayout tail_layout = kv.layout.tail_layout();
  Kept& kept = kept_[layer];
  kept.rows.assign(step.rows() * 2 * shape.kv_heads * d, 0.0F);
  kept.tails.clear();
  for (const SequenceView& s : step.sequences) {
    kept.tails.emplace_back();
    if (kv.layout.needs_tail()) {
      const std::byte* tail = tail_of(kv, layer, s.tail);
      kept.tails.back().assign(tail, tail + tail_layout.page_bytes());
    }
    for (uint32_t i = 0; i < s.rows; ++i) {
      float* row = row_of(qkv, s.first_row + i);
      const uint32_t position = s.start + i;
      for (size_t h = 0; h < shape.heads + shape.kv_heads; ++h) {
        const VectorWeight* norm = h < shape.heads ? params.q_norm : params.k_norm;
        if (norm != nullptr) rms_norm(row + h * d, values(*norm), params.norm_eps, d, row + h * d);
        rotate(row + h * d, params.rope, position);
      }
      std::copy(row + k_at, row + k_at + 2 * shape.kv_heads * d,
                kept.rows.begin() +
                    static_cast<std::ptrdiff_t>((s.first_row + i) * 2 * shape.kv_heads * d));
      const bool tailed = kv.layout.needs_tail();
      const kv::KvLayout& layout = tailed ? tail_layout : kv.layout;
      std::byte* page = tailed ? tail_of(kv, layer, s.tail)
                               : page_of(kv, layer, s.blocks[position / kv::kBlockTokens]);
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        const uint32_t token = position % kv::kBlockTokens;
        kv::encode_row(layout, kv::KvSide::kK, token, row + k_at + h * d,
                       page + kv::section_offset(layout, h, kv::KvSide::kK));
        kv::encode_row(layout, kv::KvSide::kV, token, row + v_at + h * d,
                       page + kv::section_offset(layout, h, kv::KvSide::kV));
      }
      if (tailed && position % kv::kBlockTokens == kv::kBlockTokens - 1)
        kv::seal_tail(kv.layout, page, page_of(kv, layer, s.blocks[position / kv::kBlockTokens]));
    }
  }
}

void ReferenceOps::attention(const StepView& step, uint32_t layer, const AttentionShape& shape,
                             Activation qkv, const KvPages& kv, Activation out) {
  const size_t d = shape.head_dim;
  const uint32_t group = shape.heads / shape.kv_heads;
  const kv::KvLayout tail_layout = kv.layout.tail_layout();
  const Kept& kept = kept_[layer];
  std::vector<float> value(d);
  const auto load = [&](size_t index, uint32_t head, kv::KvSide side, uint32_t query,
                        uint32_t key) {
    const SequenceView& s = step.sequences[index];
    const uint32_t token = key % kv::kBlockTokens;
    const bool exact = kv.layout.needs_tail() && key / kv::kBlockTokens == query / kv::kBlockTokens;
    if (exact && key >= s.start) {
      const size_t at =
          ((s.first_row + key - s.start) * 2 + (side == kv::KvSide::kV ? size_t{1} : size_t{0})) *
              shape.kv_heads * d +
          head * d;
      for (size_t i = 0; i < d; ++i) value[i] = to_float(to_bf16(kept.rows[at + i]));
    } else if (exact) {
      kv::decode_row(tail_layout, side,
                     kept.tails[index].data() + kv::section_offset(tail_layout, head, side), token,
                     value.data());
    } else {
      const std::byte* page = page_of(kv, layer, s.blocks[key / kv::kBlockTokens]);
      kv::decode_row(kv.layout, side, page + kv::section_offset(kv.layout, head, side), token,
                     value.data());
    }
  };
  for (size_t index = 0; index < step.sequences.size(); ++index) {
    const SequenceView& s = step.sequences[index];
    for (uint32_t i = 0; i < s.rows; ++i) {
      const uint32_t query = s.start + i;
      const uint32_t first =
          shape.window == 0 || query < shape.window ? 0 : query - shape.window + 1;
      for (uint32_t h = 0; h < shape.heads; ++h) {
        const float* q = row_of(qkv, s.first_row + i) + h * d;
        std::vector<double> weights;
        double top = -INFINITY;
        for (uint32_t key = first; key <= query; ++key) {
          load(index, h / group, kv::KvSide::kK, query, key);
          weights.push_back(static_cast<double>(dot(q, value.data(), d) * shape.scale));
          top = std::max(top, weights.back());
        }
        double sum = 0;
        for (double& w : weights) sum += w = std::exp(w - top);
        std::vector<double> mixed(d);
        for (uint32_t key = first; key <= query; ++key) {
          load(index, h / group, kv::KvSide::kV, query, key);
          for (size_t c = 0; c < d; ++c)
            mixed[c] += weights[key - first] * static_cast<double>(value[c]);
        }
        float* target = row_of(out, s.first_row + i) + h * d;
        for (size_t c = 0; c < d; ++c) target[c] = static_cast<float>(mixed[c] / sum);
      }
    }
  }
}

void ReferenceOps::norm_moe(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                            const MoeShape& shape, const MoeWeight& weight) {
  const auto& w = static_cast<const RefMoe&>(weight);
  const auto hidden = static_cast<size_t>(x.cols);
  std::vector<float> normed(hidden), scores(shape.experts), gate(shape.intermediate),
      up(shape.intermediate), down(hidden);
  for (uint32_t r = 0; r < rows; ++r) {
    rms_norm(row_of(x, r), values(norm), eps, hidden, normed.data());
    apply(w.router, normed.data(), scores.data());
    const float top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (float& s : scores) sum += static_cast<double>(s = std::exp(s - top));
    std::vector<uint32_t> order(shape.experts);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    order.resize(shape.experts_per_token);
    double kept = 0;
    for (const uint32_t e : order) kept += static_cast<double>(scores[e]);
    for (const uint32_t e : order) {
      const auto share =
          static_cast<float>(static_cast<double>(scores[e]) / (shape.normalize_top_k ? kept : sum));
      apply(w.gate[e], normed.data(), gate.data());
      apply(w.up[e], normed.data(), up.data());
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = silu(gate[i]) * up[i];
      apply(w.down[e], gate.data(), down.data());
      for (size_t i = 0; i < hidden; ++i) row_of(x, r)[i] += share * down[i];
    }
  }
}

}  // namespace

std::unique_ptr<engine::Ops> create_reference_ops(DType weights) {
  TANDEM_CHECK(weights != DType::kF16, "engines keep float32 or bf16");
  return std::make_unique<ReferenceOps>(weights);
}

}  // namespace tandem::testing
