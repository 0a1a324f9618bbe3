#include <algorithm>
#include <cmath>
#include <string>

#include "common/engine/cuda/bench/bench_card.h"
#include "kernels/cuda/attention_prefill.h"

namespace tandem::bench {
namespace {

// Multiplications and additions of q.k and p.v under the causal mask.
double causal_flops(uint32_t rows) {
  const double pairs = static_cast<double>(rows) * (rows + 1) / 2;
  return 4 * pairs * kHeadDim * kHeads;
}

Result<double> attention_seconds(BenchCard& card, uint32_t rows) {
  const cuda::PrefillShape shape{kHeads, kKvHeads, kHeadDim};
  const uint32_t positions = cuda::prefill_span(rows);
  const size_t kv = size_t{kKvHeads} * positions * kHeadDim;
  TANDEM_ASSIGN(const auto q, card.normal_bf16(size_t{rows} * kQkv, 1));
  TANDEM_ASSIGN(const auto keys, card.normal_bf16(kv, 1));
  TANDEM_ASSIGN(const auto values, card.normal_bf16(kv, 1));
  TANDEM_ASSIGN(const auto out, card.zeros(size_t{rows} * kHidden * sizeof(Bf16)));
  TANDEM_ASSIGN(const auto counters, card.zeros(16));
  const cuda::PrefillSequence sequence{.rows = rows};
  std::vector<cuda::PrefillTile> tiles;
  cuda::plan_prefill(shape, {&sequence, 1}, card.info().l2_bytes, tiles);
  TANDEM_ASSIGN(const auto device_tiles, card.upload(tiles));
  cuda::PrefillAttention task;
  task.shape = shape;
  task.scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
  task.q = q.data();
  task.q_stride = kQkv;
  task.q_rows = rows;
  task.keys = keys.data();
  task.values = values.data();
  task.positions = positions;
  task.out = out.data();
  task.out_stride = kHidden;
  task.tiles = device_tiles.as<cuda::PrefillTile>();
  task.tile_count = static_cast<uint32_t>(tiles.size());
  task.counters = counters.as<uint32_t>();
  return card.seconds(
      [&](uint32_t) -> Status {
        TANDEM_CUDA_TRY(cuda::attention_prefill(task, card.stream().get()));
        return {};
      },
      1);
}

}  // namespace

Status bench_prefill_attention(BenchCard& card, const KernelBenchOptions& options,
                               const RowSink& sink) {
  const std::vector<uint32_t> lengths = {512, 2048, 8192};
  std::string missing = "--python names none";
  std::vector<double> peer(lengths.size());
  if (!options.python.empty()) {
    auto measured = cudnn_attention(options.python, options.device, lengths);
    if (measured) {
      peer = *measured;
      missing.clear();
    } else {
      missing = measured.error().detail;
    }
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    TANDEM_ASSIGN(const double s, attention_seconds(card, lengths[i]));
    DeviceRow row =
        flops_row(card, "causal attention", std::to_string(lengths[i]) + " rows, 28/4 heads of 128",
                  s, causal_flops(lengths[i]), lengths[i] == 8192 ? 0.60 : 0);
    row.against = "cuDNN";
    row.ceiling = peer[i];
    row.ratio = peer[i] > 0 ? row.rate / peer[i] : 0;
    if (!missing.empty()) {
      row.target = 0;
      row.note = "cuDNN not measured: " + missing;
    }
    sink(row);
  }
  return {};
}

}  // namespace tandem::bench
