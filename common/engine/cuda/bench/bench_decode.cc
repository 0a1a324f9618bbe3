#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/cuda/cuda_status.h"
#include "common/engine/cuda/bench/bench_card.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/kv_write.h"

namespace tandem::bench {
namespace {

using kv::KvFormat;

struct Shape {
  uint32_t sequences;
  uint32_t context;
};
constexpr Shape kShapes[] = {{32, 8192}, {64, 2048}, {32, 1024}, {8, 8192},
                             {8, 1024},  {1, 32768}, {1, 8192},  {1, 1024}};

// One shape's pool of several layers, whose contents are made up (scales are halves near one), and
// everything that the kernels are given.
struct Scene {
  kv::KvLayout layout;
  uint32_t layers = 0;
  std::vector<cuda::SequenceSlot> slots;
  cuda::DeviceBuffer pages, tails, kept, blocks, positions, row_sequence, device_slots, qkv, out,
      rope;
  cuda::DeviceStep step;
  cuda::DeviceKv kv;
  double bytes = 0;  // that one layer's attention must read
};

Result<Scene> make_scene(BenchCard& card, KvFormat format, Shape shape) {
  Scene s;
  const uint32_t pages = shape.context / kv::kBlockTokens;
  const uint32_t blocks = pages * shape.sequences;
  kv::KvLayout one{1, kKvHeads, kHeadDim, format};
  s.bytes = static_cast<double>(one.page_bytes()) * blocks;
  s.layers = std::clamp<uint32_t>(static_cast<uint32_t>(400e6 / s.bytes), 1, 28);
  s.layout = {s.layers, kKvHeads, kHeadDim, format};
  TANDEM_ASSIGN(s.pages, card.normal_bf16(s.layers * blocks * s.layout.page_bytes() / 2, 1));
  if (s.layout.needs_tail()) {
    TANDEM_ASSIGN(
        s.tails,
        card.normal_bf16(s.layers * shape.sequences * s.layout.tail_layout().page_bytes() / 2, 1));
  }
  TANDEM_ASSIGN(s.kept, card.zeros(cuda::kv_kept_bytes(s.layout, shape.sequences) + 16));
  std::vector<uint32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0U);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  std::vector<int32_t> positions;
  std::vector<int32_t> row_sequence;
  for (uint32_t i = 0; i < shape.sequences; ++i) {
    // Somewhere in its last page, each elsewhere.
    const uint32_t start = shape.context - 1 - (i + 8) % kv::kBlockTokens;
    s.slots.push_back({i, 1, start, i * pages, i});
    positions.push_back(static_cast<int32_t>(start));
    row_sequence.push_back(static_cast<int32_t>(i));
  }
  TANDEM_ASSIGN(s.blocks, card.upload(table));
  TANDEM_ASSIGN(s.positions, card.upload(positions));
  TANDEM_ASSIGN(s.row_sequence, card.upload(row_sequence));
  TANDEM_ASSIGN(s.device_slots, card.upload(s.slots));
  TANDEM_ASSIGN(s.qkv, card.normal_bf16(size_t{shape.sequences} * kQkv, 1));
  TANDEM_ASSIGN(s.out, card.zeros(size_t{shape.sequences} * kHidden * sizeof(Bf16)));
  TANDEM_ASSIGN(s.rope, card.normal_float(size_t{shape.context} * kHeadDim, 0.5F));
  s.step.positions = s.positions.as<int32_t>();
  s.step.row_sequence = s.row_sequence.as<int32_t>();
  s.step.slots = s.device_slots.as<cuda::SequenceSlot>();
  s.step.blocks = s.blocks.as<uint32_t>();
  s.step.rows = s.step.sequences = shape.sequences;
  s.step.max_rows = 1;
  s.step.max_context = shape.context;
  s.kv = {s.layout, s.pages.data(), blocks, s.tails.data(), shape.sequences};
  return s;
}

// One layer: norms, RoPE, the step's keys and values into the pool, attention.
Result<double> attention_seconds(BenchCard& card, const Scene& s) {
  const cuda::DecodeShape shape{kHeads, kKvHeads, kHeadDim, 0, s.layout.format};
  const uint32_t blocks =
      cuda::decode_blocks(s.step.sequences, static_cast<uint32_t>(card.info().multiprocessors));
  cuda::DecodePlan plan;
  cuda::plan_decode(shape, s.slots, blocks, plan);
  const cuda::DecodeLimits limits = cuda::decode_limits(shape, {.sequences = s.step.sequences,
                                                                .rows = s.step.sequences,
                                                                .blocks = blocks,
                                                                .max_context = s.step.max_context});
  TANDEM_ASSIGN(const auto units, card.upload(plan.units));
  TANDEM_ASSIGN(const auto ranges, card.upload(plan.ranges));
  TANDEM_ASSIGN(const auto partials,
                card.zeros(cuda::decode_partial_bytes(shape, limits.partials)));
  TANDEM_ASSIGN(const auto counters, card.zeros(limits.counters * sizeof(uint32_t)));
  cuda::DecodeAttention task;
  task.shape = shape;
  task.scale = 1.0F / std::sqrt(static_cast<float>(kHeadDim));
  task.rope = {s.rope.as<float2>(), s.step.max_context, kHeadDim};
  task.qkv = s.qkv.as<Bf16>();
  task.kept = s.kept.data();
  task.out = s.out.as<Bf16>();
  task.units = units.as<cuda::DecodeUnit>();
  task.ranges = ranges.as<uint32_t>();
  task.blocks = blocks;
  task.partials = partials.data();
  task.counters = counters.as<uint32_t>();
  return card.seconds(
      [&](uint32_t v) -> Status {
        task.layer = v;
        TANDEM_CUDA_TRY(cuda::attention_decode(s.step, s.kv, task, card.stream().get()));
        return {};
      },
      s.layers);
}

}  // namespace

Status bench_decode_attention(BenchCard& card, const RowSink& sink) {
  struct Target {
    KvFormat format;
    double ratio;  // of 32 x 8192
  };
  for (const Target target : {Target{KvFormat::kBf16, 0.80}, Target{KvFormat::kFp8E4M3, 0.70},
                              Target{KvFormat::kInt8, 0.70}, Target{KvFormat::kK8V4, 0.65},
                              Target{KvFormat::kInt4, 0.60}})
    for (const Shape& shape : kShapes) {
      TANDEM_ASSIGN(const Scene scene, make_scene(card, target.format, shape));
      TANDEM_ASSIGN(const double s, attention_seconds(card, scene));
      sink(bytes_row(card, "decode attention " + std::string(kv::to_string(target.format)),
                     std::to_string(shape.sequences) + " x " + std::to_string(shape.context), s,
                     scene.bytes, shape.sequences * shape.context == 32 * 8192 ? target.ratio : 0));
    }
  return {};
}

}  // namespace tandem::bench
