#include "kernels/cuda/attention_prefill.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/card.h"

// Prefill attention against a float64 loop over the same bf16 inputs. Everything that must not be
// read is NaN, everything that must not be written is checked afterwards.
namespace tandem::cuda {
namespace {

constexpr uint32_t kPage = 16;
constexpr uint16_t kPoison = 0xFFFF;  // a NaN

uint16_t to_bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

double from_bf16(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float f = 0;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : size_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(1, size_) * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> out(size_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return out;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

struct Sequence {
  uint32_t rows;
  uint32_t start;
};

struct Case {
  std::string name;
  uint32_t head_dim;
  uint32_t heads;
  uint32_t kv_heads;
  std::vector<Sequence> sequences;
  uint32_t window = 0;
  bool exact = false;
  // Scores of about this standard deviation: large ones make the softmax pick single keys.
  float spread = 1.0F;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// keys or values as the kernel and the reference see them: [kv_heads][positions][head_dim].
struct Side {
  std::vector<uint16_t> data;
  uint32_t positions = 0;
};

class Problem {
 public:
  explicit Problem(const Case& c) : case_(c), random_(std::hash<std::string>{}(c.name)) {
    uint32_t row = 1;  // a row of nobody first and between sequences
    uint32_t offset = kPrefillAlign;
    uint32_t exact = 0;
    for (const Sequence& s : c.sequences) {
      sequences_.push_back({row, s.rows, s.start, offset, exact});
      row += s.rows + 1;
      offset += prefill_span(s.start + s.rows) + kPrefillAlign;
      exact += prefill_span(s.start % kPage + s.rows) + kPrefillAlign;
    }
    rows_ = row;
    stride_ = (c.heads + 2 * c.kv_heads) * c.head_dim;
    stride_ = (stride_ + 7) / 8 * 8;
    q_.assign(size_t{rows_} * stride_, kPoison);
    for (const PrefillSequence& s : sequences_)
      for (uint32_t r = 0; r < s.rows; ++r)
        for (uint32_t i = 0; i < c.heads * c.head_dim; ++i)
          q_[size_t{s.first_row + r} * stride_ + i] = normal(c.spread);
    fill(keys_, offset, false);
    fill(values_, offset, false);
    if (c.exact) {
      fill(exact_keys_, exact, true);
      fill(exact_values_, exact, true);
    }
  }

  // Runs the kernel and compares.
  void check() {
    const PrefillShape shape{case_.heads, case_.kv_heads, case_.head_dim};
    std::vector<PrefillTile> tiles;
    plan_prefill(shape, sequences_, size_t{50} << 20, tiles);
    ASSERT_LE(tiles.size(),
              prefill_max_tiles(shape, rows_, static_cast<uint32_t>(sequences_.size())));
    const OnDevice<uint16_t> q(q_);
    const OnDevice<uint16_t> keys(keys_.data);
    const OnDevice<uint16_t> values(values_.data);
    const OnDevice<uint16_t> exact_keys(exact_keys_.data);
    const OnDevice<uint16_t> exact_values(exact_values_.data);
    const OnDevice<PrefillTile> device_tiles(tiles);
    const OnDevice<uint32_t> counters(std::vector<uint32_t>(2, 0));
    const uint32_t out_stride = (case_.heads * case_.head_dim + 7) / 8 * 8 + 8;
    PrefillAttention args;
    args.shape = shape;
    args.window = case_.window;
    args.scale = 1.0F / std::sqrt(static_cast<float>(case_.head_dim));
    args.q = q.data();
    args.q_stride = stride_;
    args.q_rows = rows_;
    args.keys = keys.data();
    args.values = values.data();
    args.positions = keys_.positions;
    if (case_.exact) {
      args.exact_keys = exact_keys.data();
      args.exact_values = exact_values.data();
      args.exact_positions = exact_keys_.positions;
    }
    args.out_stride = out_stride;
    args.tiles = device_tiles.data();
    args.tile_count = static_cast<uint32_t>(tiles.size());
    args.counters = counters.data();
    std::vector<uint16_t> first;
    for (int run = 0; run < 2; ++run) {  // the second run meets what the first left in `counters`
      const OnDevice<uint16_t> out(std::vector<uint16_t>(size_t{rows_} * out_stride, kPoison));
      args.out = out.data();
      ASSERT_EQ(attention_prefill(args, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      std::vector<uint16_t> result = out.host();
      if (run == 0)
        first = std::move(result);
      else
        EXPECT_EQ(first, result) << "two runs differ";
    }
    compare(first, out_stride);
    EXPECT_EQ(counters.host(), std::vector<uint32_t>(2, 0));
  }

 private:
  uint16_t normal(float spread) { return to_bf16(spread * distribution_(random_)); }

  void fill(Side& side, uint32_t positions, bool exact) {
    side.positions = positions;
    side.data.assign(size_t{case_.kv_heads} * positions * case_.head_dim, kPoison);
    for (const PrefillSequence& s : sequences_) {
      const uint32_t count = exact ? s.start % kPage + s.rows : s.start + s.rows;
      for (uint32_t head = 0; head < case_.kv_heads; ++head)
        for (uint32_t p = 0; p < prefill_span(count); ++p) {
          const uint32_t at = (exact ? s.exact_offset : s.kv_offset) + p;
          uint16_t* row = &side.data[(size_t{head} * positions + at) * case_.head_dim];
          for (uint32_t d = 0; d < case_.head_dim; ++d)
            row[d] = p < count ? normal(1.0F) : uint16_t{0};
        }
    }
  }

  void compare(const std::vector<uint16_t>& out, uint32_t out_stride) const {
    std::vector<bool> written(rows_, false);
    double error = 0;
    double norm = 0;
    double worst = 0;
    for (const PrefillSequence& s : sequences_)
      for (uint32_t r = 0; r < s.rows; ++r) {
        written[s.first_row + r] = true;
        const bool sampled = s.rows <= 320 || r % 61 == 0 || r + 3 >= s.rows || r % 128 == 127;
        for (uint32_t head = 0; head < case_.heads; ++head) {
          const uint16_t* got =
              &out[size_t{s.first_row + r} * out_stride + size_t{head} * case_.head_dim];
          if (!sampled) {
            for (uint32_t d = 0; d < case_.head_dim; ++d)
              ASSERT_TRUE(std::isfinite(from_bf16(got[d]))) << "row " << r << " head " << head;
            continue;
          }
          const std::vector<double> want = reference(s, r, head);
          double row_error = 0;
          double row_norm = 0;
          for (uint32_t d = 0; d < case_.head_dim; ++d) {
            const double difference = from_bf16(got[d]) - want[d];
            row_error += difference * difference;
            row_norm += want[d] * want[d];
          }
          ASSERT_TRUE(std::isfinite(row_error)) << "row " << r << " head " << head;
          worst = std::max(worst, std::sqrt(row_error / row_norm));
          error += row_error;
          norm += row_norm;
        }
      }
    EXPECT_LT(std::sqrt(error / norm), 5e-3);
    EXPECT_LT(worst, 1.2e-2);
    for (uint32_t row = 0; row < rows_; ++row)
      for (uint32_t i = written[row] ? case_.heads * case_.head_dim : 0; i < out_stride; ++i)
        ASSERT_EQ(out[size_t{row} * out_stride + i], kPoison) << "row " << row << " column " << i;
  }

  std::vector<double> reference(const PrefillSequence& s, uint32_t r, uint32_t head) const {
    const uint32_t kv_head = head / (case_.heads / case_.kv_heads);
    const uint32_t position = s.start + r;
    const uint32_t first =
        case_.window != 0 && position >= case_.window ? position - case_.window + 1 : 0;
    const uint16_t* q = &q_[size_t{s.first_row + r} * stride_ + size_t{head} * case_.head_dim];
    const auto row = [&](const Side& stored, const Side& exact, uint32_t p) {
      const bool own = case_.exact && p / kPage == position / kPage;
      const Side& side = own ? exact : stored;
      const uint32_t at = own ? s.exact_offset + p - s.start / kPage * kPage : s.kv_offset + p;
      return &side.data[(size_t{kv_head} * side.positions + at) * case_.head_dim];
    };
    std::vector<double> scores;
    double max = -std::numeric_limits<double>::infinity();
    for (uint32_t p = first; p <= position; ++p) {
      const uint16_t* key = row(keys_, exact_keys_, p);
      double dot = 0;
      for (uint32_t d = 0; d < case_.head_dim; ++d) dot += from_bf16(q[d]) * from_bf16(key[d]);
      scores.push_back(dot / std::sqrt(static_cast<double>(case_.head_dim)));
      max = std::max(max, scores.back());
    }
    double sum = 0;
    std::vector<double> out(case_.head_dim, 0.0);
    for (uint32_t p = first; p <= position; ++p) {
      const double weight = std::exp(scores[p - first] - max);
      sum += weight;
      const uint16_t* value = row(values_, exact_values_, p);
      for (uint32_t d = 0; d < case_.head_dim; ++d) out[d] += weight * from_bf16(value[d]);
    }
    for (double& x : out) x /= sum;
    return out;
  }

  Case case_;
  std::mt19937_64 random_;
  std::normal_distribution<float> distribution_;
  std::vector<PrefillSequence> sequences_;
  uint32_t rows_ = 0;
  uint32_t stride_ = 0;
  std::vector<uint16_t> q_;
  Side keys_;
  Side values_;
  Side exact_keys_;
  Side exact_values_;
};

class PrefillAttentionTest : public CardTest, public testing::WithParamInterface<Case> {};

TEST_P(PrefillAttentionTest, MatchesFloat64) { Problem(GetParam()).check(); }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](Case c) {
    c.name = "d" + std::to_string(c.head_dim) + "_" + std::to_string(c.heads) + "x" +
             std::to_string(c.kv_heads) + "_" + c.name;
    all.push_back(std::move(c));
  };
  for (const uint32_t d : {4U, 8U, 16U, 24U, 32U, 64U, 80U, 96U, 128U, 192U, 256U}) {
    add({.name = "one", .head_dim = d, .heads = 2, .kv_heads = 1, .sequences = {{1, 0}}});
    add({.name = "ragged",
         .head_dim = d,
         .heads = 4,
         .kv_heads = 2,
         .sequences = {{17, 0}, {1, 40}, {200, 0}, {64, 64}, {3, 125}, {130, 1}}});
    add({.name = "window",
         .head_dim = d,
         .heads = 2,
         .kv_heads = 2,
         .sequences = {{300, 0}, {140, 259}, {5, 1000}},
         .window = 100});
    add({.name = "exact",
         .head_dim = d,
         .heads = 2,
         .kv_heads = 1,
         .sequences = {{300, 0}, {140, 259}, {5, 75}, {16, 160}, {1, 31}, {1, 32}},
         .exact = true});
    add({.name = "spiky",
         .head_dim = d,
         .heads = 2,
         .kv_heads = 1,
         .sequences = {{257, 300}},
         .spread = 12.0F});
  }
  for (const uint32_t group : {1U, 3U, 4U, 7U, 8U})
    add({.name = "group" + std::to_string(group),
         .head_dim = 128,
         .heads = 2 * group,
         .kv_heads = 2,
         .sequences = {{129, 0}, {127, 130}}});
  Case lengths{.name = "lengths", .head_dim = 128, .heads = 1, .kv_heads = 1, .sequences = {}};
  for (uint32_t n = 1; n <= 300; n += 13) lengths.sequences.push_back({n, n * 7 % 53});
  add(lengths);
  lengths.head_dim = 64;
  lengths.window = 33;
  add(lengths);
  for (const uint32_t window : {1U, 2U, 64U, 127U, 128U, 129U, 4000U})
    add({.name = "window" + std::to_string(window),
         .head_dim = 128,
         .heads = 1,
         .kv_heads = 1,
         .sequences = {{270, 0}, {130, 500}},
         .window = window});
  add({.name = "windowexact",
       .head_dim = 128,
       .heads = 2,
       .kv_heads = 1,
       .sequences = {{270, 0}, {130, 505}},
       .window = 9,
       .exact = true});
  for (const uint32_t d : {64U, 96U, 128U, 192U, 256U}) {
    add({.name = "long",
         .head_dim = d,
         .heads = 2,
         .kv_heads = 1,
         .sequences = {{4096, 0}, {1000, 3111}}});
    add({.name = "longwindow",
         .head_dim = d,
         .heads = 2,
         .kv_heads = 1,
         .sequences = {{2000, 2000}},
         .window = 1024});
  }
  // More tiles than multiprocessors, so that blocks take several each.
  add({.name = "many", .head_dim = 128, .heads = 28, .kv_heads = 4, .sequences = {{1500, 100}}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrefillAttentionTest, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem::cuda
