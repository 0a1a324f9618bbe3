#include <limits>
#include <string>

#include "common/engine/cuda/bench/bench_card.h"
#include "kernels/cuda/sampling.h"

namespace tandem::bench {
namespace {

constexpr uint32_t kRows = 64;
constexpr uint32_t kSets = 6;
constexpr uint32_t kHistory = 2048;

struct Case {
  const char* name;
  float inverse;
  uint32_t top_k;
  double top_p;
  float repetition;
  int32_t logprobs;
};
constexpr Case kCases[] = {
    {"sampling greedy", 0, 0, 1, 1, -1},
    {"sampling temperature", 1, 0, 1, 1, -1},
    {"sampling top-k 50, top-p 0.9", 1.25F, 50, 0.9, 1, -1},
    {"sampling top-p 0.9", 1.25F, 0, 0.9, 1, -1},
    {"sampling top-k 20, penalty over 2048", 1.4F, 20, 0.8, 1.05F, -1},
    {"sampling greedy, 20 logprobs", 0, 0, 1, 1, 20},
};

}  // namespace

Status bench_sampling(BenchCard& card, const RowSink& sink) {
  const auto vocab = static_cast<uint32_t>(kVocab);
  const cuda::SamplingPlan plan = cuda::plan_sampling(vocab);
  TANDEM_CUDA_TRY(cuda::prepare_sampling(plan));
  TANDEM_ASSIGN(const auto logits, card.normal_float(size_t{kSets} * kRows * vocab, 2.5F));
  TANDEM_ASSIGN(const auto history, card.zeros(size_t{kRows} * kHistory * sizeof(int32_t)));
  TANDEM_ASSIGN(const auto tokens, card.zeros(kRows * sizeof(int32_t)));
  TANDEM_ASSIGN(const auto logprobs, card.zeros(kRows * sizeof(float)));
  TANDEM_ASSIGN(const auto top, card.zeros(kRows * 32 * sizeof(cuda::SampleTop)));
  for (const Case& c : kCases) {
    std::vector<cuda::SampleRow> rows(kRows);
    for (uint32_t i = 0; i < kRows; ++i) {
      cuda::SampleRow& row = rows[i];
      row.mode = cuda::SampleMode::kSample;
      row.source = i;
      row.length = kHistory;
      row.prompt = kHistory / 2;
      row.history = c.repetition != 1 ? i : cuda::kNoHistory;
      row.inverse = c.inverse;
      row.top_k = c.top_k;
      row.top_share = c.top_p;
      row.min_p_offset = -std::numeric_limits<float>::infinity();
      row.repetition = c.repetition;
      row.logprobs = c.logprobs;
      row.seed = i;
    }
    TANDEM_ASSIGN(const auto device_rows, card.upload(rows));
    cuda::DeviceSampling io;
    io.rows = device_rows.as<cuda::SampleRow>();
    io.history = history.as<int32_t>();
    io.history_stride = kHistory;
    io.tokens = tokens.as<int32_t>();
    io.logprobs = logprobs.as<float>();
    io.top = top.as<cuda::SampleTop>();
    io.top_capacity = 32;
    for (const uint32_t batch : {1u, 8u, 32u}) {
      TANDEM_ASSIGN(const double s, card.seconds(
                                        [&](uint32_t v) -> Status {
                                          TANDEM_CUDA_TRY(cuda::launch_sampling(
                                              plan, logits.as<float>() + size_t{v} * kRows * vocab,
                                              vocab, batch, io, false, card.stream().get()));
                                          return {};
                                        },
                                        kSets));
      sink(bytes_row(card, c.name, std::to_string(batch) + " x 152064", s,
                     static_cast<double>(batch) * vocab * sizeof(float), 0));
    }
  }
  return {};
}

}  // namespace tandem::bench
