#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "common/engine/cuda/bench/bench_card.h"
#include "kernels/cuda/kv_gather.h"
#include "kernels/cuda/kv_write.h"

namespace tandem::bench {
namespace {

using kv::KvFormat;

constexpr uint32_t kSequences = 32;
constexpr uint32_t kContext = 8192;
constexpr uint32_t kPages = kContext / kv::kBlockTokens;

// A step on the card: `sequences` sequences of the pool with `rows` new rows each.
struct Step {
  std::vector<cuda::SequenceSlot> slots;
  cuda::DeviceBuffer positions, row_sequence, device_slots, tokens;
  cuda::DeviceStep view;
};

// A pool of one layer that holds kSequences contexts on scattered blocks.
struct Pool {
  kv::KvLayout layout;
  cuda::DeviceBuffer pages, tails, kept, blocks;
  cuda::DeviceKv view;

  [[nodiscard]] double context_bytes() const {
    return static_cast<double>(layout.page_bytes()) * kPages;
  }
};

Result<Pool> make_pool(BenchCard& card, KvFormat format) {
  Pool pool;
  pool.layout = {1, kKvHeads, kHeadDim, format};
  const uint32_t blocks = kSequences * kPages;
  TANDEM_ASSIGN(pool.pages, card.zeros(blocks * pool.layout.page_bytes()));
  if (pool.layout.needs_tail()) {
    TANDEM_ASSIGN(pool.tails, card.zeros(kSequences * pool.layout.tail_layout().page_bytes()));
  }
  TANDEM_ASSIGN(pool.kept, card.zeros(cuda::kv_kept_bytes(pool.layout, kSequences)));
  std::vector<uint32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0u);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  TANDEM_ASSIGN(pool.blocks, card.upload(table));
  pool.view = {pool.layout, pool.pages.data(), blocks, pool.tails.data(), kSequences};
  return pool;
}

Result<Step> make_step(BenchCard& card, const Pool& pool, uint32_t first, uint32_t sequences,
                       uint32_t start, uint32_t rows) {
  Step step;
  std::vector<int32_t> positions;
  std::vector<int32_t> row_sequence;
  for (uint32_t i = 0; i < sequences; ++i) {
    step.slots.push_back({i * rows, rows, start, (first + i) * kPages, first + i});
    for (uint32_t r = 0; r < rows; ++r) {
      positions.push_back(static_cast<int32_t>(start + r));
      row_sequence.push_back(static_cast<int32_t>(i));
    }
  }
  TANDEM_ASSIGN(step.positions, card.upload(positions));
  TANDEM_ASSIGN(step.row_sequence, card.upload(row_sequence));
  TANDEM_ASSIGN(step.device_slots, card.upload(step.slots));
  step.view.positions = step.positions.as<int32_t>();
  step.view.row_sequence = step.row_sequence.as<int32_t>();
  step.view.slots = step.device_slots.as<cuda::SequenceSlot>();
  step.view.blocks = pool.blocks.as<uint32_t>();
  step.view.rows = sequences * rows;
  step.view.sequences = sequences;
  step.view.max_rows = rows;
  step.view.max_context = start + rows;
  return step;
}

cuda::KvWrite write_task(const Pool& pool, const cuda::DeviceBuffer& qkv,
                         const cuda::DeviceBuffer& rope) {
  cuda::KvWrite task;
  task.heads = kHeads;
  task.rope = {rope.as<float2>(), kContext, kHeadDim};
  task.qkv = qkv.as<Bf16>();
  task.kept = pool.kept.data();
  return task;
}

std::string name_of(KvFormat format) { return std::string(kv::to_string(format)); }

// Fills every sequence up to its last position, then times the step's parts around the pool.
Status bench_encode(BenchCard& card, const Pool& pool, const cuda::DeviceBuffer& rope,
                    const RowSink& sink) {
  TANDEM_ASSIGN(const auto qkv, card.normal_bf16(size_t{kContext} * kQkv, 1));
  const cuda::KvWrite task = write_task(pool, qkv, rope);
  for (uint32_t s = 0; s < kSequences; ++s) {
    TANDEM_ASSIGN(const auto fill, make_step(card, pool, s, 1, 0, kContext - 1));
    TANDEM_CUDA_TRY(cuda::kv_write(fill.view, pool.view, task, card.stream().get()));
    TANDEM_TRY(card.stream().synchronize());
  }
  std::vector<Step> steps;
  constexpr uint32_t kSets = 8;
  for (uint32_t s = 0; s < kSets; ++s) {
    TANDEM_ASSIGN(auto step, make_step(card, pool, s, 1, 0, kContext - 1));
    steps.push_back(std::move(step));
  }
  TANDEM_ASSIGN(const double s, card.seconds(
                                    [&](uint32_t v) -> Status {
                                      TANDEM_CUDA_TRY(cuda::kv_write(steps[v].view, pool.view, task,
                                                                     card.stream().get()));
                                      return {};
                                    },
                                    kSets));
  // q and k read and written back roped, v read, pages written.
  const double rows = kContext - 1;
  const double bytes = rows * sizeof(Bf16) * kHeadDim * (2.0 * (kHeads + kKvHeads) + kKvHeads) +
                       pool.context_bytes();
  sink(bytes_row(card, "RoPE + KV encode " + name_of(pool.layout.format), "8192 rows", s, bytes,
                 0.50));
  // A decode step: too little to fill the card, so what counts is how long one launch takes.
  TANDEM_ASSIGN(const auto decode, make_step(card, pool, 0, kSequences, kContext - 8, 1));
  TANDEM_ASSIGN(const double one, card.seconds(
                                      [&](uint32_t) -> Status {
                                        TANDEM_CUDA_TRY(cuda::kv_write(decode.view, pool.view, task,
                                                                       card.stream().get()));
                                        return {};
                                      },
                                      1));
  sink(bytes_row(card, "RoPE + KV encode " + name_of(pool.layout.format), "32 x 1 row", one,
                 bytes / rows * kSequences, 0));
  return {};
}

Status bench_gather(BenchCard& card, const Pool& pool, const RowSink& sink) {
  TANDEM_ASSIGN(const auto step, make_step(card, pool, 0, kSequences, kContext - 16, 16));
  const uint32_t positions = kSequences * cuda::prefill_span(kContext);
  const size_t side = size_t{kKvHeads} * positions * kHeadDim;
  TANDEM_ASSIGN(const auto keys, card.zeros(side * sizeof(Bf16)));
  TANDEM_ASSIGN(const auto values, card.zeros(side * sizeof(Bf16)));
  TANDEM_ASSIGN(const auto qkv, card.normal_bf16(size_t{16} * kSequences * kQkv, 1));
  std::vector<cuda::PrefillSequence> sequences;
  for (uint32_t i = 0; i < kSequences; ++i)
    sequences.push_back({.first_row = 16 * i,
                         .rows = 16,
                         .start = kContext - 16,
                         .kv_offset = i * cuda::prefill_span(kContext)});
  TANDEM_ASSIGN(const auto device_sequences, card.upload(sequences));
  cuda::KvGather task;
  task.heads = kHeads;
  task.sequences = device_sequences.as<cuda::PrefillSequence>();
  task.keys = keys.data();
  task.values = values.data();
  task.positions = positions;
  task.qkv = qkv.as<Bf16>();
  task.kept = pool.kept.data();
  TANDEM_ASSIGN(const double s, card.seconds(
                                    [&](uint32_t) -> Status {
                                      TANDEM_CUDA_TRY(cuda::kv_gather(step.view, pool.view, task,
                                                                      card.stream().get()));
                                      return {};
                                    },
                                    1));
  const double bytes =
      kSequences * pool.context_bytes() + 2.0 * sizeof(Bf16) * static_cast<double>(side);
  DeviceRow row = bytes_row(card, "KV gather " + name_of(pool.layout.format) + " to bf16",
                            "32 x 8192 positions", s, bytes, 0.50);
  row.against = "copy";
  row.ceiling = card.ceilings.copy_bytes * 1e-9;
  row.ratio = row.rate / row.ceiling;
  sink(row);
  return {};
}

}  // namespace

Status bench_kv(BenchCard& card, const RowSink& sink) {
  std::vector<float> angles;
  for (uint32_t p = 0; p < kContext; ++p)
    for (uint32_t i = 0; i < kHeadDim / 2; ++i) {
      const double angle = p * std::pow(1e6, -2.0 * i / kHeadDim);
      angles.push_back(static_cast<float>(std::cos(angle)));
      angles.push_back(static_cast<float>(std::sin(angle)));
    }
  TANDEM_ASSIGN(const auto rope, card.upload(angles));
  for (const KvFormat format :
       {KvFormat::kBf16, KvFormat::kFp8E4M3, KvFormat::kInt8, KvFormat::kK8V4, KvFormat::kInt4}) {
    TANDEM_ASSIGN(const auto pool, make_pool(card, format));
    TANDEM_TRY(bench_encode(card, pool, rope, sink));
    if (!pool.layout.needs_tail()) TANDEM_TRY(bench_gather(card, pool, sink));
  }
  return {};
}

}  // namespace tandem::bench
