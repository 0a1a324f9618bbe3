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

struct Normal {
  std::mt19937 random;
  std::normal_distribution<float> normal{0.0F, 1.0F};
  float operator()() { return normal(random); }
};
// The same, but draws `first` to `last` are multiplied.
struct NormalBut {
  Normal draw;
  size_t first;
  size_t last;
  float by;
  size_t drawn = 0;
  float operator()() {
    const bool inside = drawn >= first && drawn < last;
    ++drawn;
    return draw() * (inside ? by : 1.0F);
  }
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

// One KV head of one sequence; each writes to places of its own.
void attend_head(const KvScene& scene, std::vector<std::byte>& pool, uint32_t s, uint32_t kv_head,
                 uint32_t window, double scale, std::vector<double>& out) {
  const SceneShape& shape = scene.shape_;
  const uint32_t hd = shape.head_dim;
  const uint32_t group = shape.heads / shape.kv_heads;
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

std::vector<double> expected(const KvScene& scene, std::vector<std::byte> pool, uint32_t window,
                             double scale) {
  std::vector<double> out(size_t{scene.rows_} * scene.shape_.heads * scene.shape_.head_dim);
  std::vector<std::thread> threads;
  for (uint32_t s = 0; s < scene.slots.size(); ++s)
    for (uint32_t h = 0; h < scene.shape_.kv_heads; ++h)
      threads.emplace_back([&, s, h] { attend_head(scene, pool, s, h, window, scale, out); });
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

// Rotation and norms of a scene's heads.
struct Rotation {
  Rotation(const KvScene& scene, uint32_t rotary_dim, bool with_norms)
      : rotary(rotary_dim),
        max_positions(scene.max_context_),
        normed(with_norms),
        table(angles(scene.max_context_, rotary_dim)),
        q(near_one(scene.shape_.head_dim, 5)),
        k(near_one(scene.shape_.head_dim, 6)) {}
  static std::vector<float2> angles(uint32_t positions, uint32_t dims) {
    std::vector<float2> table(std::max<size_t>(size_t{positions} * dims / 2, 1));
    for (size_t i = 0; dims > 0 && i < table.size(); ++i) {
      const auto angle = static_cast<double>(i / (dims / 2)) *
                         std::pow(1e4, -2.0 * static_cast<double>(i % (dims / 2)) / dims);
      table[i] = {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
    }
    return table;
  }
  static std::vector<float> near_one(uint32_t n, uint32_t seed) {
    Normal draw{std::mt19937(seed)};
    std::vector<float> x(n);
    for (float& f : x) f = 1 + draw() / 4;
    return x;
  }
  // DecodeAttention's or KvWrite's.
  template <typename Task>
  void give(Task& task) const {
    task.rope = {table.data(), max_positions, rotary};
    task.q_norm = normed ? q.data() : nullptr;
    task.k_norm = normed ? k.data() : nullptr;
    task.norm_eps = 1e-6F;
  }

  uint32_t rotary;
  uint32_t max_positions;
  bool normed;
  DeviceArray<float2> table;
  DeviceArray<float> q, k;
};

// Everything that attention_decode wants, for one scene.
struct Decode {
  Decode(const KvScene& scene, SceneOnCard& card, uint32_t window, uint32_t blocks)
      : shape{scene.shape_.heads, scene.shape_.kv_heads, scene.shape_.head_dim, window,
              scene.shape_.format},
        plan(planned(shape, scene, blocks)),
        limits(decode_limits(shape, {static_cast<uint32_t>(scene.slots.size()), scene.max_rows_,
                                     scene.rows_, blocks, scene.max_context_})),
        units(plan.units),
        ranges(plan.ranges),
        partials(
            std::vector<std::byte>(decode_partial_bytes(shape, limits.partials), std::byte{0xff})),
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
    plan_decode(shape, scene.slots, blocks, plan);
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

void write_step(const SceneOnCard& card, uint32_t heads, const Rotation& rotation) {
  KvWrite task;
  task.layer = KvScene::kLayer;
  task.heads = heads;
  rotation.give(task);
  task.qkv = card.qkv.data();
  task.kept = card.kept.data();
  ASSERT_CUDA(kv_write(card.step, card.kv, task, nullptr));
}

const std::vector<SceneSequence> kOnes = {{0, 1},   {1, 1},   {14, 1},   {15, 1},  {16, 1},
                                          {31, 1},  {100, 1}, {127, 1},  {255, 1}, {256, 1},
                                          {300, 1}, {511, 1}, {1000, 1}, {2303, 1}};
const std::vector<SceneSequence> kChunks = {{0, 16},  {3, 16},  {13, 5},   {40, 8},
                                            {255, 2}, {500, 1}, {1023, 9}, {600, 16}};
// Within a page, up to its end, across it, from nothing.
const std::vector<SceneSequence> kDrafts = {{0, 1},   {0, 5},    {9, 7},   {13, 8},  {15, 2},
                                            {16, 16}, {250, 4},  {256, 8}, {271, 2}, {300, 3},
                                            {511, 6}, {1015, 9}, {1024, 1}};
constexpr KvFormat kFormats[] = {KvFormat::kBf16, KvFormat::kFp8E4M3, KvFormat::kInt8,
                                 KvFormat::kK8V4, KvFormat::kInt4};

class AttentionDecodeTest : public CardTest {
 protected:
  // The pool's bytes are those of kv_write, results are close to float64's over them.
  void expect_right(const SceneShape& shape, const std::vector<SceneSequence>& sequences,
                    uint32_t window, uint32_t rotary, bool normed, uint32_t blocks) {
    expect_right(KvScene(shape, sequences, Normal{std::mt19937(11)}), window, rotary, normed,
                 blocks);
  }
  void expect_right(KvScene scene, uint32_t window, uint32_t rotary, bool normed, uint32_t blocks) {
    const SceneShape& shape = scene.shape_;
    SCOPED_TRACE(std::string(to_string(shape.format)) + " heads " + std::to_string(shape.heads) +
                 "/" + std::to_string(shape.kv_heads) + " head_dim " +
                 std::to_string(shape.head_dim) + " window " + std::to_string(window) + " blocks " +
                 std::to_string(blocks));
    const Rotation rotation(scene, rotary, normed);
    SceneOnCard apart(scene);
    write_step(apart, shape.heads, rotation);
    SceneOnCard card(scene);
    Decode decode(scene, card, window, blocks);
    rotation.give(decode.task);
    ASSERT_LE(decode.plan.units.size(), decode.limits.units);
    ASSERT_CUDA(attention_decode(card.step, card.kv, decode.task, nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    EXPECT_TRUE(card.pool.host() == apart.pool.host());
    EXPECT_TRUE(card.tail.host() == apart.tail.host());
    for (const uint32_t count : decode.counters.host()) EXPECT_EQ(count, 0U);
    scene.qkv = apart.qkv.host();
    const auto want = expected(scene, card.pool.host(), window, decode.task.scale);
    EXPECT_LT(relative_error(decode.out.host(), want), 5e-3);
  }

  // Slots of several rows, written before.
  void expect_rows_right(const SceneShape& shape, const std::vector<SceneSequence>& sequences,
                         uint32_t window, uint32_t blocks) {
    SCOPED_TRACE(std::string(to_string(shape.format)) + " heads " + std::to_string(shape.heads) +
                 "/" + std::to_string(shape.kv_heads) + " head_dim " +
                 std::to_string(shape.head_dim) + " window " + std::to_string(window) + " blocks " +
                 std::to_string(blocks));
    KvScene scene(shape, sequences, Normal{std::mt19937(12)});
    const Rotation rotation(scene, shape.head_dim, true);
    SceneOnCard card(scene);
    write_step(card, shape.heads, rotation);
    const auto pool = card.pool.host();
    const auto tail = card.tail.host();
    Decode decode(scene, card, window, blocks);
    rotation.give(decode.task);
    decode.task.written = true;
    ASSERT_LE(decode.plan.units.size(), decode.limits.units);
    ASSERT_CUDA(attention_decode(card.step, card.kv, decode.task, nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    EXPECT_TRUE(card.pool.host() == pool);
    EXPECT_TRUE(card.tail.host() == tail);
    for (const uint32_t count : decode.counters.host()) EXPECT_EQ(count, 0U);
    scene.qkv = card.qkv.host();
    const auto want = expected(scene, pool, window, decode.task.scale);
    EXPECT_LT(relative_error(decode.out.host(), want), 5e-3);
  }

  void expect_plain_right(const SceneShape& shape, uint32_t window,
                          const std::vector<SceneSequence>& sequences) {
    SCOPED_TRACE(std::string(to_string(shape.format)) + " head_dim " +
                 std::to_string(shape.head_dim));
    const KvScene scene(shape, sequences, Normal{std::mt19937(11)});
    SceneOnCard card(scene);
    Decode decode(scene, card, window, 1);
    write_step(card, shape.heads, Rotation(scene, 0, false));
    ASSERT_CUDA(attention_decode_plain(card.step, card.kv, decode.task, nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    const auto want = expected(scene, card.pool.host(), window, decode.task.scale);
    EXPECT_LT(relative_error(decode.out.host(), want), 2.5e-3);
  }
};

TEST_F(AttentionDecodeTest, PlainMatchesDoublePrecision) {
  for (const KvFormat format : kAllFormats) {
    expect_plain_right({7, 1, 64, format}, 0, kOnes);
    expect_plain_right({4, 2, 12, format}, 40, kChunks);
    expect_plain_right({2, 1, 256, format}, 0, kChunks);
  }
}

TEST_F(AttentionDecodeTest, EveryFormatGroupAndHeadDimMatchesDoublePrecision) {
  for (const KvFormat format : kFormats) {
    for (const uint32_t blocks : {1U, 23U, 264U})
      expect_right({14, 2, 128, format}, kOnes, 0, 128, false, blocks);
    expect_right({14, 2, 128, format}, kOnes, 40, 128, true, 23);
    expect_right({14, 2, 128, format}, kOnes, 300, 128, true, 23);
    expect_right({14, 2, 128, format}, kOnes, 16, 64, true, 5);
    for (const uint32_t group : {1U, 4U, 8U, 12U})
      expect_right({group, 1, 128, format}, kOnes, 0, 128, group == 4, 7);
    for (const uint32_t head_dim : {64U, 96U, 192U, 256U})
      expect_right({14, 2, head_dim, format}, kOnes, 0, head_dim, true, 23);
  }
  expect_right({4, 2, 128, KvFormat::kF32}, kOnes, 0, 128, true, 23);  // the plain one
}

// Scales that pass what a half holds after a bias is multiplied by them, and tiny ones.
TEST_F(AttentionDecodeTest, ValuesAndKeysOfAnySizeMatchDoublePrecision) {
  constexpr uint32_t kStart = 333;
  for (const KvFormat format : kFormats)
    for (const uint32_t head_dim : {64U, 128U})
      for (const float by : {1e-3F, 300.0F, 30000.0F}) {
        SCOPED_TRACE(by);
        const SceneShape shape{7, 1, head_dim, format};
        const size_t prefix = size_t{kStart} * head_dim;
        const Normal draw{std::mt19937(8)};
        expect_right(KvScene(shape, {{kStart, 1}}, NormalBut{draw, prefix, 2 * prefix, by}), 0, 0,
                     false, 3);
        if (by < 1)
          expect_right(KvScene(shape, {{kStart, 1}}, NormalBut{draw, 0, prefix, by}), 0, 0, false,
                       3);
      }
}

// More sequences than have cuts of their own: blocks end within heads.
TEST_F(AttentionDecodeTest, ManySequencesMatchDoublePrecision) {
  std::vector<SceneSequence> many = kOnes;
  for (uint32_t i = 0; i < 12; ++i) many.push_back({i * 53, 1});
  for (const KvFormat format : kFormats)
    for (const uint32_t blocks : {7U, 61U, 264U})
      expect_right({7, 1, 128, format}, many, blocks == 61 ? 100 : 0, 128, true, blocks);
}

TEST_F(AttentionDecodeTest, SeveralRowsOfASequenceMatchDoublePrecision) {
  for (const KvFormat format : kFormats) {
    for (const uint32_t blocks : {1U, 23U, 264U})
      expect_rows_right({14, 2, 128, format}, kDrafts, 0, blocks);
    for (const uint32_t window : {3U, 16U, 40U, 300U})
      expect_rows_right({14, 2, 128, format}, kDrafts, window, 23);
    for (const uint32_t group : {1U, 4U, 8U, 12U})
      expect_rows_right({group, 1, 128, format}, kDrafts, 0, 7);
    for (const uint32_t head_dim : {64U, 96U, 192U, 256U})
      expect_rows_right({14, 2, head_dim, format}, kDrafts, 0, 23);
    std::vector<SceneSequence> many = kDrafts;
    for (uint32_t i = 0; i < 8; ++i) many.push_back({i * 77, i + 1});
    expect_rows_right({7, 1, 128, format}, many, 0, 61);
  }
  expect_rows_right({4, 2, 128, KvFormat::kF32}, kDrafts, 0, 23);  // the plain one
}

// Rows that are verified together have the bits that they have one step after the other.
TEST_F(AttentionDecodeTest, RowsTogetherAreRowsOneByOne) {
  for (const KvFormat format : kFormats) {
    const SceneShape shape{14, 2, 128, format};
    const std::vector<SceneSequence> drafts = {{0, 8}, {13, 8}, {500, 12}, {2040, 16}, {77, 3}};
    KvScene scene(shape, drafts, Normal{std::mt19937(9)});
    const Rotation rotation(scene, 128, true);
    SceneOnCard together(scene);
    write_step(together, shape.heads, rotation);
    Decode verify(scene, together, 0, 132);
    verify.task.written = true;
    ASSERT_CUDA(attention_decode(together.step, together.kv, verify.task, nullptr));
    const auto got = verify.out.host();

    SceneOnCard apart(scene);
    const KvScene all = scene;
    std::vector<Bf16> want(got.size(), Bf16{0xffff});
    for (uint32_t i = 0; i < 16; ++i) {
      scene.row_sequence.assign(scene.rows_, -1);
      for (uint32_t s = 0; s < drafts.size(); ++s) {
        const SequenceSlot& slot = all.slots[s];
        scene.slots[s].rows = i < slot.rows ? 1 : 0;
        scene.slots[s].start = slot.start + i;
        scene.slots[s].first_row = slot.first_row + i;
        if (i < slot.rows) scene.row_sequence[slot.first_row + i] = static_cast<int32_t>(s);
      }
      apart.slots.upload(scene.slots);
      apart.row_sequence.upload(scene.row_sequence);
      apart.step.max_rows = 1;
      Decode decode(scene, apart, 0, 132);
      rotation.give(decode.task);
      ASSERT_CUDA(attention_decode(apart.step, apart.kv, decode.task, nullptr));
      const auto out = decode.out.host();
      for (size_t e = 0; e < out.size(); ++e)
        if (out[e].bits != 0xffff) want[e] = out[e];
    }
    const size_t row = size_t{shape.heads} * shape.head_dim;
    for (size_t e = 0; e < got.size(); ++e)
      ASSERT_EQ(got[e].bits, want[e].bits) << to_string(format) << " row " << e / row;
  }
}

TEST_F(AttentionDecodeTest, RefusesMoreRowsThanItCan) {
  const KvScene scene({4, 2, 128, KvFormat::kBf16}, {{40, 17}}, Normal{std::mt19937(2)});
  SceneOnCard card(scene);
  Decode decode(scene, card, 0, 4);
  EXPECT_EQ(attention_decode(card.step, card.kv, decode.task, nullptr), cudaErrorInvalidValue);
  decode.task.written = true;
  EXPECT_EQ(attention_decode(card.step, card.kv, decode.task, nullptr), cudaErrorInvalidValue);
  card.step.max_rows = 2;
  decode.task.written = false;
  EXPECT_EQ(attention_decode(card.step, card.kv, decode.task, nullptr), cudaErrorInvalidValue);
}

// A sequence's bits are the same alone and in company, for any number of blocks.
TEST_F(AttentionDecodeTest, RowsDoNotDependOnTheirCompany) {
  for (const KvFormat format : kAllFormats) {
    const SceneShape shape{14, 2, 128, format};
    const KvScene scene(shape, {{3000, 1}, {9000, 1}, {17, 1}, {900, 1}}, Normal{std::mt19937(4)});
    const Rotation rotation(scene, 0, false);
    std::vector<std::vector<Bf16>> results;
    for (const uint32_t blocks : {1U, 7U, 132U, 264U}) {
      SceneOnCard card(scene);
      Decode decode(scene, card, 0, blocks);
      rotation.give(decode.task);
      ASSERT_CUDA(attention_decode(card.step, card.kv, decode.task, nullptr));
      results.push_back(decode.out.host());
    }
    for (size_t i = 1; i < results.size(); ++i) EXPECT_EQ(results[0], results[i]);
    KvScene alone = scene;
    for (const uint32_t s : {0U, 2U, 3U}) {
      alone.slots[s].rows = 0;
      alone.row_sequence[s] = -1;
    }
    SceneOnCard card(scene);
    card.slots.upload(alone.slots);
    card.row_sequence.upload(alone.row_sequence);
    Decode decode(alone, card, 0, 132);
    rotation.give(decode.task);
    ASSERT_CUDA(attention_decode(card.step, card.kv, decode.task, nullptr));
    const auto got = decode.out.host();
    const size_t row = size_t{shape.heads} * shape.head_dim;
    for (size_t i = 0; i < got.size(); ++i) {
      const uint16_t want = i / row == 1 ? results[0][i].bits : uint16_t{0xffff};
      ASSERT_EQ(got[i].bits, want) << "row " << i / row;
    }
  }
}

// Step after step on one pool: what one writes, the next reads.
TEST_F(AttentionDecodeTest, StepsFollowEachOther) {
  for (const KvFormat format : kFormats) {
    const SceneShape shape{7, 1, 128, format};
    KvScene scene(shape, {{45, 1}, {13, 1}}, Normal{std::mt19937(3)});
    SceneOnCard apart(scene);
    SceneOnCard card(scene);
    const Rotation rotation(scene, 0, false);
    for (uint32_t i = 0; i < 3; ++i) {
      for (uint32_t s = 0; s < 2; ++s) scene.slots[s].start = (s == 0 ? 45 : 13) + i;
      scene.max_context_ = 46 + i;
      for (SceneOnCard* c : {&apart, &card}) {
        c->slots.upload(scene.slots);
        c->positions.upload({static_cast<int32_t>(45 + i), static_cast<int32_t>(13 + i)});
        c->qkv.upload(scene.qkv);
        c->step.max_context = scene.max_context_;
      }
      write_step(apart, shape.heads, rotation);
      Decode plain(scene, apart, 0, 9);
      ASSERT_CUDA(attention_decode_plain(apart.step, apart.kv, plain.task, nullptr));
      Decode decode(scene, card, 0, 9);
      ASSERT_CUDA(attention_decode(card.step, card.kv, decode.task, nullptr));
      ASSERT_CUDA(cudaDeviceSynchronize());
      EXPECT_TRUE(card.pool.host() == apart.pool.host()) << to_string(format) << " step " << i;
      EXPECT_TRUE(card.tail.host() == apart.tail.host()) << to_string(format) << " step " << i;
      std::vector<double> want;
      for (const Bf16 x : plain.out.host()) want.push_back(to_float(x));
      EXPECT_LT(relative_error(decode.out.host(), want), 6e-3) << to_string(format);
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
