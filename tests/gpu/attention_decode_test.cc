#include "kernels/cuda/attention_decode.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/kv_write.h"
#include "tests/gpu/kv_scene.h"

// Decode attention against float64 over the decoded pages. What nobody has written is NaN.
namespace tandem::cuda {
namespace {

using kv::KvFormat;
using kv::KvSide;

struct Case {
  SceneShape shape;
  uint32_t window = 0;
  std::vector<SceneSequence> sequences;
};

struct Normal {
  std::mt19937 random;
  std::normal_distribution<float> normal{0.0F, 1.0F};
  float operator()() { return normal(random); }
};

// Keys and values of one head that a query in page `own` sees at 0 .. count-1.
class Visible {
 public:
  Visible(const KvScene& scene, std::vector<std::byte>& pool, uint32_t sequence, uint32_t head,
          uint32_t count, uint32_t own)
      : hd_(scene.shape_.head_dim), keys_(size_t{count} * hd_), values_(keys_.size()) {
    const bool tails = scene.layout_.needs_tail();
    const uint32_t start = scene.slots[sequence].start;
    for (uint32_t p = 0; p < count; ++p)
      for (const KvSide side : {KvSide::kK, KvSide::kV}) {
        float* to = (side == KvSide::kK ? keys_ : values_).data() + size_t{p} * hd_;
        if (!tails || p / 16 != own) {
          kv::decode_row(
              scene.layout_, side,
              scene.page(pool, sequence, p / 16) + kv::section_offset(scene.layout_, head, side),
              p % 16, to);
          continue;
        }
        const auto& prefix = (side == KvSide::kK ? scene.keys : scene.vals)[sequence];
        const Bf16* row = p < start            ? nullptr
                          : side == KvSide::kK ? scene.row_key(scene.qkv, sequence, p, head)
                                               : scene.row_value(scene.qkv, sequence, p, head);
        for (uint32_t c = 0; c < hd_; ++c)
          to[c] = row != nullptr ? to_float(row[c])
                                 : prefix[size_t{p} * scene.width() + head * hd_ + c];
      }
  }
  [[nodiscard]] const float* key(uint32_t p) const { return keys_.data() + size_t{p} * hd_; }
  [[nodiscard]] const float* value(uint32_t p) const { return values_.data() + size_t{p} * hd_; }

 private:
  uint32_t hd_;
  std::vector<float> keys_, values_;
};

void attend(const Visible& seen, const Bf16* q, uint32_t from, uint32_t to, uint32_t hd,
            double scale, double* out) {
  std::vector<double> scores(to - from);
  double max = -INFINITY;
  for (uint32_t p = from; p < to; ++p) {
    double dot = 0;
    for (uint32_t c = 0; c < hd; ++c) dot += static_cast<double>(to_float(q[c])) * seen.key(p)[c];
    scores[p - from] = dot * scale;
    max = std::max(max, scores[p - from]);
  }
  double sum = 0;
  for (uint32_t p = from; p < to; ++p) {
    const double w = std::exp(scores[p - from] - max);
    sum += w;
    for (uint32_t c = 0; c < hd; ++c) out[c] += w * seen.value(p)[c];
  }
  for (uint32_t c = 0; c < hd; ++c) out[c] /= sum;
}

// The rows of one sequence; sequences write to places of their own.
void attend_sequence(const KvScene& scene, std::vector<std::byte>& pool, uint32_t s,
                     uint32_t window, double scale, std::vector<double>& out) {
  const SceneShape& shape = scene.shape_;
  const uint32_t hd = shape.head_dim;
  const uint32_t group = shape.heads / shape.kv_heads;
  for (uint32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    const SequenceSlot& slot = scene.slots[s];
    for (uint32_t first = slot.start; first < slot.start + slot.rows;) {
      const uint32_t page_end = std::min(slot.start + slot.rows, (first / 16 + 1) * 16);
      const Visible seen(scene, pool, s, kv_head, page_end, first / 16);
      for (uint32_t p = first; p < page_end; ++p)
        for (uint32_t g = 0; g < group; ++g) {
          const size_t row = slot.first_row + p - slot.start;
          const uint32_t head = kv_head * group + g;
          attend(seen, scene.qkv.data() + row * scene.columns() + head * hd,
                 window == 0 || p < window ? 0 : p + 1 - window, p + 1, hd, scale,
                 out.data() + (row * shape.heads + head) * hd);
        }
      first = page_end;
    }
  }
}

std::vector<double> expected(const KvScene& scene, std::vector<std::byte> pool, uint32_t window,
                             double scale) {
  std::vector<double> out(size_t{scene.rows_} * scene.shape_.heads * scene.shape_.head_dim);
  std::vector<std::thread> threads;
  for (uint32_t s = 0; s < scene.slots.size(); ++s)
    threads.emplace_back([&, s] { attend_sequence(scene, pool, s, window, scale, out); });
  for (std::thread& t : threads) t.join();
  return out;
}

double relative_error(const std::vector<Bf16>& got, const std::vector<double>& want) {
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(to_float(got[i])) - want[i];
    error += d * d;
    power += want[i] * want[i];
  }
  return std::sqrt(error / power);  // NaN stays NaN
}

// Everything that attention_decode wants, for one scene.
struct Decode {
  Decode(const KvScene& scene, SceneOnCard& card, uint32_t window, uint32_t blocks)
      : shape{scene.shape_.heads, scene.shape_.kv_heads, scene.shape_.head_dim, window,
              scene.shape_.format},
        plan(planned(shape, scene, blocks)),
        limits(decode_limits(shape, static_cast<uint32_t>(scene.slots.size()), scene.max_rows_,
                             scene.max_context_)),
        units(plan.units),
        ranges(plan.ranges),
        partials(std::vector<std::byte>(
            decode_partial_bytes(shape, scene.max_rows_, limits.partials), std::byte{0xff})),
        counters(std::vector<uint32_t>(limits.counters, 0)),
        out(std::vector<Bf16>(size_t{scene.rows_} * shape.heads * shape.head_dim, Bf16{0xffff})) {
    task.shape = shape;
    task.layer = KvScene::kLayer;
    task.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
    task.qkv = card.qkv.data();
    task.kept = card.kept.data();
    task.out = out.data();
    task.units = units.data();
    task.ranges = ranges.data();
    task.blocks = blocks;
    task.partials = partials.data();
    task.counters = counters.data();
  }
  static DecodePlan planned(const DecodeShape& shape, const KvScene& scene, uint32_t blocks) {
    DecodePlan plan;
    plan_decode(shape, scene.slots, scene.max_rows_, blocks, plan);
    return plan;
  }

  DecodeShape shape;
  DecodePlan plan;
  DecodeLimits limits;
  DeviceArray<DecodeUnit> units;
  DeviceArray<uint32_t> ranges;
  DeviceArray<std::byte> partials;
  DeviceArray<uint32_t> counters;
  DeviceArray<Bf16> out;
  DecodeAttention task;
};

void write_step(const SceneOnCard& card, uint32_t heads) {
  KvWrite task;
  task.layer = KvScene::kLayer;
  task.heads = heads;
  task.qkv = card.qkv.data();
  task.kept = card.kept.data();
  ASSERT_CUDA(kv_write(card.step, card.kv, task, nullptr));
}

class AttentionDecodeTest : public CardTest {
 protected:
  using Launch = cudaError_t (*)(const DeviceStep&, const DeviceKv&, const DecodeAttention&,
                                 cudaStream_t);

  void expect_close(const Case& c, Launch launch, double tolerance) {
    SCOPED_TRACE(std::string(to_string(c.shape.format)) + " heads " +
                 std::to_string(c.shape.heads) + "/" + std::to_string(c.shape.kv_heads) +
                 " head_dim " + std::to_string(c.shape.head_dim) + " window " +
                 std::to_string(c.window));
    const KvScene scene(c.shape, c.sequences, Normal{std::mt19937(11)});
    SceneOnCard card(scene);
    Decode decode(scene, card, c.window, 23);
    write_step(card, c.shape.heads);
    ASSERT_LE(decode.plan.units.size(), decode.limits.units);
    ASSERT_CUDA(launch(card.step, card.kv, decode.task, nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    const auto want = expected(scene, card.pool.host(), c.window, decode.task.scale);
    EXPECT_LT(relative_error(decode.out.host(), want), tolerance);
    for (const uint32_t count : decode.counters.host()) EXPECT_EQ(count, 0U);
  }
};

const std::vector<SceneSequence> kRagged = {{0, 1},   {1, 1},   {14, 1},  {15, 1},   {16, 1},
                                            {100, 1}, {255, 1}, {256, 1}, {1000, 1}, {4999, 1}};
const std::vector<SceneSequence> kChunks = {{0, 16},  {3, 16},  {13, 5},   {40, 8},
                                            {255, 2}, {500, 1}, {1023, 9}, {600, 16}};

constexpr KvFormat kPagedFormats[] = {KvFormat::kBf16, KvFormat::kFp8E4M3, KvFormat::kInt8,
                                      KvFormat::kK8V4, KvFormat::kInt4};

TEST_F(AttentionDecodeTest, PlainMatchesDoublePrecision) {
  for (const KvFormat format : kAllFormats) {
    expect_close({{7, 1, 64, format}, 0, kRagged}, attention_decode_plain, 2.5e-3);
    expect_close({{4, 2, 12, format}, 40, kChunks}, attention_decode_plain, 2.5e-3);
    expect_close({{2, 1, 256, format}, 0, kChunks}, attention_decode_plain, 2.5e-3);
  }
}

TEST_F(AttentionDecodeTest, EveryFormatGroupAndHeadDimMatchesDoublePrecision) {
  for (const KvFormat format : kPagedFormats)
    for (const uint32_t head_dim : {128U, 64U, 256U, 96U})
      for (const uint32_t group : {7U, 1U, 3U, 4U, 8U}) {
        // Every head dim with groups of 7, every group with the usual head dim.
        if (group != 7 && head_dim != 128) continue;
        const SceneShape shape{2 * group, 2, head_dim, format};
        expect_close({shape, 0, kRagged}, attention_decode, 5e-3);
        if (group != 7) continue;
        expect_close({shape, 0, kChunks}, attention_decode, 5e-3);
        expect_close({shape, 100, kChunks}, attention_decode, 5e-3);
        expect_close({shape, 300, kRagged}, attention_decode, 5e-3);
      }
}

TEST_F(AttentionDecodeTest, EveryCountOfRows) {
  for (const KvFormat format : kPagedFormats)
    for (uint32_t rows = 1; rows <= kDecodeMaxRows; ++rows)
      expect_close({{7, 1, 128, format}, 0, {{rows * 37, rows}, {700 + rows, rows}}},
                   attention_decode, 5e-3);
}

// A sequence's bits are the same alone and in company, for any number of blocks.
TEST_F(AttentionDecodeTest, RowsDoNotDependOnTheirCompany) {
  for (const KvFormat format : kAllFormats) {
    const SceneShape shape{14, 2, 128, format};
    const KvScene scene(shape, {{3000, 1}, {5000, 1}, {17, 1}, {900, 1}}, Normal{std::mt19937(4)});
    SceneOnCard card(scene);
    write_step(card, shape.heads);
    std::vector<std::vector<Bf16>> results;
    for (const uint32_t blocks : {1U, 7U, 132U}) {
      Decode decode(scene, card, 0, blocks);
      ASSERT_CUDA(attention_decode(card.step, card.kv, decode.task, nullptr));
      results.push_back(decode.out.host());
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
    KvScene alone = scene;
    for (const uint32_t s : {0U, 2U, 3U}) {
      alone.slots[s].rows = 0;
      alone.row_sequence[s] = -1;
    }
    card.slots.upload(alone.slots);
    card.row_sequence.upload(alone.row_sequence);
    Decode decode(alone, card, 0, 132);
    ASSERT_CUDA(attention_decode(card.step, card.kv, decode.task, nullptr));
    const auto got = decode.out.host();
    const size_t row = size_t{shape.heads} * shape.head_dim;
    for (size_t i = 0; i < got.size(); ++i) {
      const uint16_t want = i / row == 1 ? results[0][i].bits : uint16_t{0xffff};
      ASSERT_EQ(got[i].bits, want) << "row " << i / row;
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
