#include "common/engine/cpu/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::engine {

void MoeRunner::run(int64_t rows, const LinearInput& in, const MoeShape& shape,
                    const CpuMoe& weight, Activation x) {
  const auto experts = static_cast<size_t>(shape.experts);
  const auto per_token = static_cast<size_t>(shape.experts_per_token);
  const auto members = static_cast<size_t>(rows) * per_token;
  const auto hidden_size = x.cols;
  logits_.resize(static_cast<size_t>(rows) * experts);
  linear_.run(rows, in, *weight.router,
              {Epilogue::kStore, logits_.data(), static_cast<int64_t>(experts)});
  route(rows, shape);

  hidden_.resize(members * shape.intermediate);
  results_.resize(members * static_cast<size_t>(hidden_size));
  for (size_t e = 0; e < experts; ++e) {
    const uint32_t begin = offsets_[e];
    const int64_t count = offsets_[e + 1] - begin;
    if (count == 0) continue;
    LinearInput chosen = in;
    chosen.rows = std::span(members_).subspan(begin, static_cast<size_t>(count));
    float* hidden = hidden_.data() + size_t{begin} * shape.intermediate;
    linear_.run(count, chosen, *weight.gate_up[e],
                {Epilogue::kSiluMul, hidden, int64_t{shape.intermediate}});
    LinearInput down;
    down.x = hidden;
    down.stride = int64_t{shape.intermediate};
    linear_.run(count, down, *weight.down[e],
                {Epilogue::kStore, results_.data() + int64_t{begin} * hidden_size, hidden_size});
  }

  pool_.split(rows, 16, [&](uint32_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (size_t s = 0; s < per_token; ++s) {
        const size_t at = static_cast<size_t>(r) * per_token + s;
        kernels_.rows.axpy(results_.data() + int64_t{places_[at]} * hidden_size,
                           choices_[at].weight, hidden_size,
                           static_cast<float*>(x.data) + r * x.cols);
      }
  });
}

void MoeRunner::route(int64_t rows, const MoeShape& shape) {
  const auto per_token = static_cast<size_t>(shape.experts_per_token);
  const size_t members = static_cast<size_t>(rows) * per_token;
  choices_.resize(members);
  pool_.split(rows, 16, [&](uint32_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      choose(logits_.data() + r * int64_t{shape.experts}, shape,
             choices_.data() + static_cast<size_t>(r) * per_token);
  });
  offsets_.assign(shape.experts + size_t{1}, 0);
  for (const Choice& c : choices_) ++offsets_[c.expert + size_t{1}];
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  members_.resize(members);
  places_.resize(members);
  std::vector<uint32_t> fill(offsets_.begin(), offsets_.end() - 1);
  for (size_t i = 0; i < members; ++i) {
    places_[i] = fill[choices_[i].expert]++;
    members_[places_[i]] = static_cast<uint32_t>(i / per_token);
  }
}

// Softmax over all experts, then the best ones; the lower number wins a tie.
void MoeRunner::choose(const float* logits, const MoeShape& shape, Choice* choices) const {
  const uint32_t n = shape.experts;
  const float top = *std::max_element(logits, logits + n);
  double total = 0;
  std::vector<float> weights(n);
  for (uint32_t e = 0; e < n; ++e) {
    weights[e] = std::exp(logits[e] - top);
    total += static_cast<double>(weights[e]);
  }
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  const auto better = [&](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + shape.experts_per_token, order.end(), better);
  std::sort(order.begin(), order.begin() + shape.experts_per_token);
  if (shape.normalize_top_k) {
    total = 0;
    for (uint32_t s = 0; s < shape.experts_per_token; ++s)
      total += static_cast<double>(weights[order[s]]);
  }
  for (uint32_t s = 0; s < shape.experts_per_token; ++s)
    choices[s] = {order[s], static_cast<float>(static_cast<double>(weights[order[s]]) / total)};
}

}  // namespace tandem::engine
