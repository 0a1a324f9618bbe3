#include "kernels/cuda/kv_write.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/kv_gather.h"
#include "tests/gpu/kv_scene.h"

namespace tandem::cuda {
namespace {

using kv::KvFormat;
using kv::KvSide;

// What draws the inputs of a case.
enum class Kind { kNormal, kConstant, kExtreme };

struct Draw {
  Kind kind;
  std::mt19937 random{7};
  std::normal_distribution<float> normal{0.0F, 1.0F};
  float operator()() {
    static constexpr float kOdd[] = {0.0F,
                                     -0.0F,
                                     1e-30F,
                                     -1e-8F,
                                     65504,
                                     -70000,
                                     1e30F,
                                     std::numeric_limits<float>::infinity(),
                                     -std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN(),
                                     0x1p-24F,
                                     448.0F};
    if (kind == Kind::kConstant) return 0.37F;
    if (kind == Kind::kExtreme && random() % 9 == 0) return kOdd[random() % std::size(kOdd)];
    return normal(random);
  }
};

// cos differs in every pair and sin is 0: one rounded product, whether or not fused, so the host
// knows the floats that the encoders got.
std::vector<float2> scaling_table(uint32_t positions, uint32_t half) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.25F, 4.0F);
  std::vector<float2> table(size_t{positions} * half);
  for (float2& x : table) x = {uniform(random), 0.0F};
  return table;
}

using Write = cudaError_t (*)(const DeviceStep&, const DeviceKv&, const KvWrite&, cudaStream_t);

class KvWriteTest : public CardTest {
 protected:
  // `half`: channels that turn with as many others; the rest of the head passes. The formats that
  // keep NaNs as they are get them unturned, for arithmetic would change their payload.
  void expect_encoded(const SceneShape& shape, std::vector<SceneSequence> sequences, Kind kind,
                      uint32_t half, Write write = kv_write, uint32_t first_sequence = 0) {
    SCOPED_TRACE(std::string(to_string(shape.format)) + " heads " + std::to_string(shape.heads) +
                 "/" + std::to_string(shape.kv_heads) + " of " + std::to_string(shape.head_dim) +
                 " kind " + std::to_string(static_cast<int>(kind)) + " half " +
                 std::to_string(half));
    KvScene scene(shape, std::move(sequences), Draw{kind});
    if (kind == Kind::kExtreme) {  // signalling NaNs, which no conversion to bf16 gives
      for (size_t i = 3; i < scene.qkv.size(); i += 97)
        scene.qkv[i].bits = i % 2 == 0 ? 0x7f81 : 0xffa3;
      const bool verbatim = shape.format == KvFormat::kF32 || shape.format == KvFormat::kBf16 ||
                            shape.format == KvFormat::kInt4;
      if (verbatim) half = 0;
    }
    SceneOnCard card(scene);
    const auto table = scaling_table(scene.max_context_, half);
    const DeviceArray<float2> rope(table);
    KvWrite task;
    task.layer = KvScene::kLayer;
    task.heads = shape.heads;
    task.first_sequence = first_sequence;
    task.rope = {rope.data(), scene.max_context_, 2 * half};
    task.qkv = card.qkv.data();
    task.kept = card.kept.data();
    ASSERT_CUDA(write(card.step, card.kv, task, nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());

    for (uint32_t s = first_sequence; s < scene.slots.size(); ++s) append(scene, s, table, half);
    EXPECT_EQ(first_difference(card.pool.host(), scene.pool), scene.pool.size());
    EXPECT_EQ(first_difference(card.tail.host(), scene.tail), scene.tail.size());
    expect_rotated(scene, card, table, half, first_sequence);
  }

  static size_t first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
  }

  static std::vector<float> turned(const Bf16* row, uint32_t head_dim, uint32_t position,
                                   const std::vector<float2>& table, uint32_t half) {
    std::vector<float> x(head_dim);
    for (uint32_t c = 0; c < head_dim; ++c) x[c] = to_float(row[c]);
    for (uint32_t i = 0; i < half; ++i) {
      const float2 cs = table[size_t{position} * half + i];
      const float a = x[i];
      const float b = x[i + half];
      x[i] = a * cs.x - b * cs.y;
      x[i + half] = b * cs.x + a * cs.y;
    }
    return x;
  }

  // The rows of the step into the host's pool, as CpuOps does.
  static void append(KvScene& scene, uint32_t s, const std::vector<float2>& table, uint32_t half) {
    const SequenceSlot& slot = scene.slots[s];
    const uint32_t hd = scene.shape_.head_dim;
    const kv::KvLayout& layout = scene.layout_;
    const kv::KvLayout tail_layout = layout.tail_layout();
    for (uint32_t position = slot.start; position < slot.start + slot.rows; ++position) {
      const uint32_t token = position % 16;
      const uint32_t p = position / 16;
      const bool fills = slot.start + slot.rows >= (p + 1) * 16;
      for (uint32_t h = 0; h < layout.kv_heads; ++h)
        for (const KvSide side : {KvSide::kK, KvSide::kV}) {
          const Bf16* from = side == KvSide::kK ? scene.row_key(scene.qkv, s, position, h)
                                                : scene.row_value(scene.qkv, s, position, h);
          std::vector<float> x = turned(from, hd, position, table, side == KvSide::kK ? half : 0);
          if (!layout.needs_tail()) {
            kv::encode_row(layout, side, token, x.data(),
                           scene.page(scene.pool, s, p) + kv::section_offset(layout, h, side));
            continue;
          }
          for (float& v : x) v = rounded(v);
          auto& all = side == KvSide::kK ? scene.keys[s] : scene.vals[s];
          const size_t at = size_t{position} * scene.width() + h * hd;
          if (all.size() < at + hd) all.resize(size_t{position + 1} * scene.width());
          std::copy(x.begin(), x.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
          if (!fills) {
            kv::encode_row(
                tail_layout, side, token, x.data(),
                scene.tail_page(scene.tail, s) + kv::section_offset(tail_layout, h, side));
          } else if (token == 15) {
            kv::encode_section(layout, side, all.data() + size_t{p} * 16 * scene.width() + h * hd,
                               scene.width(),
                               scene.page(scene.pool, s, p) + kv::section_offset(layout, h, side));
          }
        }
    }
  }

  static void expect_rotated(const KvScene& scene, const SceneOnCard& card,
                             const std::vector<float2>& table, uint32_t half,
                             uint32_t first_sequence) {
    const std::vector<Bf16> got = card.qkv.host();
    const uint32_t hd = scene.shape_.head_dim;
    for (uint32_t r = 0; r < scene.rows_; ++r)
      for (uint32_t h = 0; h < scene.shape_.heads + 2 * scene.shape_.kv_heads; ++h) {
        const size_t at = size_t{r} * scene.columns() + h * hd;
        const bool stays = h >= scene.shape_.heads + scene.shape_.kv_heads ||
                           scene.row_sequence[r] < static_cast<int32_t>(first_sequence);
        const auto want =
            turned(scene.qkv.data() + at, hd, static_cast<uint32_t>(scene.positions[r]), table,
                   stays ? 0 : half);
        for (uint32_t c = 0; c < hd; ++c)
          ASSERT_TRUE(got[at + c] == to_bf16(want[c]) || std::isnan(want[c]))
              << "row " << r << " head " << h << " channel " << c;
      }
  }
};

// One row everywhere; then chunks: whole pages, over page ends, inside a page, reopening.
const std::vector<SceneSequence> kSingle = {{0, 1}, {15, 1}, {16, 1}, {37, 1}, {63, 1}};
const std::vector<SceneSequence> kChunks = {{0, 33}, {5, 3},   {5, 11}, {5, 12},
                                            {31, 2}, {16, 16}, {9, 60}, {40, 7}};

TEST_F(KvWriteTest, BytesAreThoseOfTheCodec) {
  for (const KvFormat format : kAllFormats)
    for (const Kind kind : {Kind::kNormal, Kind::kConstant, Kind::kExtreme})
      for (const uint32_t head_dim : {4U, 6U, 12U, 16U, 64U, 80U, 96U, 128U, 192U, 256U}) {
        expect_encoded({6, 2, head_dim, format}, kSingle, kind, head_dim / 4);
        expect_encoded({2, 2, head_dim, format}, kChunks, kind, head_dim / 4);
        expect_encoded({1, 1, head_dim, format}, kChunks, kind, head_dim / 2);
      }
}

TEST_F(KvWriteTest, PlainFormGivesTheSameBytes) {
  for (const KvFormat format : kAllFormats)
    for (const Kind kind : {Kind::kNormal, Kind::kExtreme})
      for (const uint32_t head_dim : {64U, 128U}) {
        expect_encoded({6, 2, head_dim, format}, kSingle, kind, head_dim / 2, kv_write_plain);
        expect_encoded({2, 2, head_dim, format}, kChunks, kind, head_dim / 2, kv_write_plain);
      }
}

TEST_F(KvWriteTest, ManyRowsOverHeadsOfEveryCount) {
  const SceneShape shapes[] = {{28, 4, 128}, {5, 3, 64},  {1, 1, 128}, {14, 2, 64},
                               {16, 8, 80},  {3, 1, 256}, {9, 3, 32}};
  for (const KvFormat format : kAllFormats)
    for (SceneShape shape : shapes) {
      shape.format = format;
      expect_encoded(shape, {{7, 290}, {33, 1}, {3, 2}, {0, 77}, {15, 1}}, Kind::kNormal,
                     shape.head_dim / 2);
    }
}

void expect_normed(const SceneShape& shape, uint32_t half, Write write) {
  SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim) + " half " + std::to_string(half));
  KvScene scene(shape, {{100, 3}, {7, 2}}, Draw{Kind::kNormal});
  SceneOnCard card(scene);
  std::vector<float2> table(size_t{scene.max_context_} * half);
  for (uint32_t p = 0; p < scene.max_context_; ++p)
    for (uint32_t i = 0; i < half; ++i) {
      const double angle = p * std::pow(1e4, -static_cast<double>(i) / half);
      table[size_t{p} * half + i] = {static_cast<float>(std::cos(angle)),
                                     static_cast<float>(std::sin(angle))};
    }
  const DeviceArray<float2> rope(table);
  std::mt19937 random(5);
  std::vector<float> norms(2 * shape.head_dim);
  for (float& x : norms) x = std::uniform_real_distribution<float>(0.5F, 1.5F)(random);
  const DeviceArray<float> norm(norms);
  KvWrite task;
  task.layer = KvScene::kLayer;
  task.heads = shape.heads;
  task.rope = {rope.data(), scene.max_context_, 2 * half};
  task.q_norm = norm.data();
  task.k_norm = norm.data() + shape.head_dim;
  task.norm_eps = 1e-6F;
  task.qkv = card.qkv.data();
  ASSERT_CUDA(write(card.step, card.kv, task, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  const auto got = card.qkv.host();
  const auto pool = card.pool.host();
  for (uint32_t r = 0; r < scene.rows_; ++r)
    for (uint32_t h = 0; h < shape.heads + shape.kv_heads; ++h) {
      const size_t at = size_t{r} * scene.columns() + h * shape.head_dim;
      std::vector<double> x(shape.head_dim);
      double squares = 0;
      for (uint32_t c = 0; c < shape.head_dim; ++c) {
        x[c] = to_float(scene.qkv[at + c]);
        squares += x[c] * x[c];
      }
      const double factor = 1 / std::sqrt(squares / shape.head_dim + 1e-6);
      for (uint32_t c = 0; c < shape.head_dim; ++c)
        x[c] *= factor * norms[c + (h < shape.heads ? 0 : shape.head_dim)];
      const auto position = static_cast<uint32_t>(scene.positions[r]);
      for (uint32_t i = 0; i < half; ++i) {
        const float2 cs = table[size_t{position} * half + i];
        const double a = x[i];
        const double b = x[i + half];
        x[i] = a * cs.x - b * cs.y;
        x[i + half] = b * cs.x + a * cs.y;
      }
      for (uint32_t c = 0; c < shape.head_dim; ++c)
        EXPECT_NEAR(to_float(got[at + c]), x[c], std::abs(x[c]) * 0x1p-8 + 1e-6);
      if (h < shape.heads) continue;
      const auto s = static_cast<uint32_t>(scene.row_sequence[r]);
      const auto* stored = reinterpret_cast<const float*>(
          scene.page(const_cast<std::vector<std::byte>&>(pool), s, position / 16) +
          kv::section_offset(scene.layout_, h - shape.heads, KvSide::kK));
      for (uint32_t c = 0; c < shape.head_dim; ++c)
        EXPECT_NEAR(stored[position % 16 * shape.head_dim + c], x[c], 2e-6);
    }
}

TEST_F(KvWriteTest, LeavesTheFirstSequencesAlone) {
  for (const KvFormat format : kAllFormats)
    for (const uint32_t head_dim : {12U, 64U, 128U})
      for (const uint32_t first : {1U, 3U, 8U})
        expect_encoded({6, 2, head_dim, format}, kChunks, Kind::kNormal, head_dim / 2, kv_write,
                       first);
}

TEST_F(KvWriteTest, NormsAndRotatesLikeDoublePrecision) {
  for (const uint32_t head_dim : {64U, 80U, 96U, 128U, 256U})
    for (const uint32_t half : {head_dim / 8 * 3, head_dim / 2, 0U})
      expect_normed({4, 2, head_dim, KvFormat::kF32}, half, kv_write);
  expect_normed({4, 2, 64, KvFormat::kF32}, 24, kv_write_plain);
}

TEST_F(KvWriteTest, PaddingRowsAndSlotsTouchNothing) {
  for (const KvFormat format : kAllFormats) {
    KvScene scene({2, 2, 64, format}, {{20, 1}, {33, 1}}, Draw{Kind::kNormal});
    scene.slots[1].rows = 0;
    scene.row_sequence[1] = -1;
    SceneOnCard card(scene);
    KvWrite task;
    task.layer = KvScene::kLayer;
    task.heads = 2;
    task.qkv = card.qkv.data();
    task.kept = card.kept.data();
    ASSERT_CUDA(kv_write(card.step, card.kv, task, nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    auto got = card.pool.host();
    for (uint32_t p = 0; p < 3; ++p) {
      const auto* want = scene.page(scene.pool, 1, p);
      EXPECT_TRUE(std::equal(want, want + scene.layout_.page_bytes(), scene.page(got, 1, p)));
    }
  }
}

TEST_F(KvWriteTest, GatherGivesWhatTheCodecDecodes) {
  for (const KvFormat format : kAllFormats)
    for (const uint32_t head_dim : {6U, 64U, 128U}) {
      SCOPED_TRACE(std::string(to_string(format)) + " head_dim " + std::to_string(head_dim));
      KvScene scene({2, 2, head_dim, format}, {{0, 40}, {5, 60}, {200, 9}, {31, 1}, {250, 6}},
                    Draw{Kind::kNormal});
      SceneOnCard card(scene);
      KvWrite write;
      write.layer = KvScene::kLayer;
      write.heads = 2;
      write.qkv = card.qkv.data();
      write.kept = card.kept.data();
      std::vector<PrefillSequence> sequences(scene.slots.size());
      uint32_t positions = 0;
      uint32_t exact = 0;
      for (uint32_t s = 0; s < scene.slots.size(); ++s) {
        const SequenceSlot& slot = scene.slots[s];
        sequences[s] = {slot.first_row, slot.rows, slot.start, positions, exact};
        positions += prefill_span(slot.start + slot.rows);
        exact += prefill_span(slot.start % 16 + slot.rows);
      }
      const size_t size = size_t{2} * head_dim;
      const DeviceArray<Bf16> keys(std::vector<Bf16>(size * positions, Bf16{0xffff}));
      const DeviceArray<Bf16> values(std::vector<Bf16>(size * positions, Bf16{0xffff}));
      const DeviceArray<Bf16> exact_keys(std::vector<Bf16>(size * exact, Bf16{0xffff}));
      const DeviceArray<Bf16> exact_values(std::vector<Bf16>(size * exact, Bf16{0xffff}));
      const DeviceArray<PrefillSequence> on_card(sequences);
      KvGather gather;
      gather.layer = KvScene::kLayer;
      gather.heads = 2;
      gather.sequences = on_card.data();
      gather.keys = keys.data();
      gather.values = values.data();
      gather.positions = positions;
      gather.exact_keys = exact_keys.data();
      gather.exact_values = exact_values.data();
      gather.exact_positions = exact;
      gather.qkv = card.qkv.data();
      gather.kept = card.kept.data();
      ASSERT_CUDA(kv_write(card.step, card.kv, write, nullptr));
      ASSERT_CUDA(kv_gather(card.step, card.kv, gather, nullptr));
      ASSERT_CUDA(cudaDeviceSynchronize());
      auto pool = card.pool.host();
      const std::vector<Bf16> got[2] = {keys.host(), values.host()};
      const std::vector<Bf16> got_exact[2] = {exact_keys.host(), exact_values.host()};
      const bool tails = scene.layout_.needs_tail();
      for (uint32_t s = 0; s < scene.slots.size(); ++s)
        for (uint32_t h = 0; h < 2; ++h)
          for (const KvSide side : {KvSide::kK, KvSide::kV}) {
            const SequenceSlot& slot = scene.slots[s];
            const uint32_t context = slot.start + slot.rows;
            const uint32_t stored = tails ? context / 16 * 16 : context;
            std::vector<float> row(head_dim);
            for (uint32_t p = 0; p < prefill_span(context); ++p) {
              std::fill(row.begin(), row.end(), 0.0F);
              if (p < stored)
                kv::decode_row(
                    scene.layout_, side,
                    scene.page(pool, s, p / 16) + kv::section_offset(scene.layout_, h, side),
                    p % 16, row.data());
              const size_t at = (size_t{h} * positions + sequences[s].kv_offset + p) * head_dim;
              for (uint32_t c = 0; c < head_dim; ++c)
                ASSERT_EQ(got[side == KvSide::kV][at + c].bits, to_bf16(row[c]).bits)
                    << "sequence " << s << " position " << p;
            }
            if (!tails) continue;
            const uint32_t before = slot.start % 16;
            for (uint32_t i = 0; i < prefill_span(before + slot.rows); ++i) {
              const uint32_t position = slot.start - before + i;
              const size_t at = (size_t{h} * exact + sequences[s].exact_offset + i) * head_dim;
              for (uint32_t c = 0; c < head_dim; ++c) {
                Bf16 want{0};
                const auto& prefix = side == KvSide::kK ? scene.keys[s] : scene.vals[s];
                if (position < slot.start)
                  want = to_bf16(prefix[size_t{position} * scene.width() + h * head_dim + c]);
                else if (position < context)
                  want = side == KvSide::kK ? scene.row_key(scene.qkv, s, position, h)[c]
                                            : scene.row_value(scene.qkv, s, position, h)[c];
                ASSERT_EQ(got_exact[side == KvSide::kV][at + c].bits, want.bits)
                    << "sequence " << s << " position " << position;
              }
            }
          }
    }
}

}  // namespace
}  // namespace tandem::cuda
