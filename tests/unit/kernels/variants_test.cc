#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "tests/unit/kernels/test_util.h"

// Every kernel of every instruction set that this machine runs, against the plain one, over shapes
// that do not fit vectors and tiles. Outputs start poisoned and are followed by a fence.
namespace tandem::testing {
namespace {

using cpu::CpuIsa;
using cpu::KernelTable;
using cpu::KvElement;

constexpr size_t kFence = 64;
constexpr float kFenceValue = 12345.0F;

// n poisoned floats, then a fence that check() expects untouched.
class Output {
 public:
  explicit Output(int64_t n) : size_(static_cast<size_t>(n)), values_(poison(size_ + kFence)) {
    std::fill(values_.begin() + n, values_.end(), kFenceValue);
  }
  float* data() { return values_.data(); }
  [[nodiscard]] std::span<const float> view() const { return std::span(values_).first(size_); }
  void check() const {
    for (size_t i = size_; i < values_.size(); ++i) ASSERT_EQ(values_[i], kFenceValue) << i - size_;
  }

 private:
  size_t size_;
  std::vector<float> values_;
};

class CpuKernels : public ::testing::TestWithParam<CpuIsa> {
 protected:
  const KernelTable& plain_ = cpu::kernels(CpuIsa::kReference);
  const KernelTable& table_ = cpu::kernels(GetParam());
};

TEST_P(CpuKernels, TheTableIsTheOneThatWasAskedFor) { EXPECT_EQ(table_.isa, GetParam()); }

TEST_P(CpuKernels, PackingGivesTheSameBytes) {
  for (const int64_t in : {1, 2, 7, 8, 15, 16, 17, 33, 64, 100})
    for (const int64_t count : {1, 5, 8, 9, 16}) {
      auto rows = random_floats(static_cast<size_t>(16 * (in + 3)), 1);
      rows[0] = std::numeric_limits<float>::quiet_NaN();
      const auto n32 = static_cast<size_t>(cpu::panel_elements_f32(in));
      const auto n16 = static_cast<size_t>(cpu::panel_elements_bf16(in));
      std::vector<float> f[2] = {poison(n32), poison(n32)};
      std::vector<uint16_t> b[2] = {std::vector<uint16_t>(n16, 0x7fff),
                                    std::vector<uint16_t>(n16, 0x7fff)};
      plain_.pack.pack_f32(rows.data(), in + 3, count, in, f[0].data());
      table_.pack.pack_f32(rows.data(), in + 3, count, in, f[1].data());
      EXPECT_TRUE(same_bits(f[0], f[1])) << in << " x " << count;
      plain_.pack.pack_bf16(rows.data(), in + 3, count, in, b[0].data());
      table_.pack.pack_bf16(rows.data(), in + 3, count, in, b[1].data());
      EXPECT_EQ(b[0], b[1]) << in << " x " << count;
      for (int64_t lane = 0; lane < count; ++lane) {
        Output out(in);
        table_.pack.unpack_f32(f[1].data(), lane, in, out.data());
        EXPECT_TRUE(
            same_bits(out.view(), std::span(rows).subspan(static_cast<size_t>(lane * (in + 3)),
                                                          static_cast<size_t>(in))));
        table_.pack.unpack_bf16(b[1].data(), lane, in, out.data());
        for (int64_t k = 1; k < in; ++k)  // element 0 of row 0 is NaN
          EXPECT_EQ(out.view()[static_cast<size_t>(k)],
                    to_float(to_bf16(rows[static_cast<size_t>(lane * (in + 3) + k)])));
        out.check();
      }
    }
}

// Packed random weights of `panels` panels.
template <typename T>
std::vector<T> packed(int64_t panels, int64_t in, uint64_t seed) {
  const auto& pack = cpu::kernels(CpuIsa::kReference).pack;
  const auto rows = random_floats(static_cast<size_t>(panels * 16 * in), seed, 0.3F);
  constexpr bool wide = sizeof(T) == 4;
  const int64_t size = wide ? cpu::panel_elements_f32(in) : cpu::panel_elements_bf16(in);
  std::vector<T> out(static_cast<size_t>(panels * size));
  for (int64_t p = 0; p < panels; ++p) {
    const float* from = rows.data() + p * 16 * in;
    if constexpr (wide)
      pack.pack_f32(from, in, 16, in, out.data() + p * size);
    else
      pack.pack_bf16(from, in, 16, in, out.data() + p * size);
  }
  return out;
}

enum class Linear { kF32, kBf16, kBf16Rounded };

std::vector<Linear> linears(const KernelTable& table) {
  std::vector<Linear> out{Linear::kF32, Linear::kBf16};
  if (table.linear.bf16_rounded != nullptr) out.push_back(Linear::kBf16Rounded);
  return out;
}

// Runs a linear kernel on rows of floats, rounded first where the kernel wants them so.
void run_linear(const KernelTable& table, Linear kind, const std::vector<float>& x, int64_t rows,
                int64_t in, const void* panels, int64_t panel_count, float* c, int64_t c_stride) {
  const int64_t stride = (in + 1) / 2 * 2;
  std::vector<float> padded(static_cast<size_t>(rows * stride));
  std::vector<uint16_t> rounded(padded.size());
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(x.begin() + r * in, in, padded.begin() + r * stride);
    table.rows.round_to_bf16(x.data() + r * in, in, rounded.data() + r * stride);
  }
  cpu::LinearTask t;
  t.x = kind == Linear::kBf16Rounded ? static_cast<const void*>(rounded.data()) : padded.data();
  t.x_stride = stride;
  t.rows = rows;
  t.panels = panels;
  t.panel_count = panel_count;
  t.in = in;
  t.c = c;
  t.c_stride = c_stride;
  switch (kind) {
    case Linear::kF32:
      return table.linear.f32(t);
    case Linear::kBf16:
      return table.linear.bf16(t);
    case Linear::kBf16Rounded:
      return table.linear.bf16_rounded(t);
  }
}

TEST_P(CpuKernels, LinearMatchesThePlainKernel) {
  for (const Linear kind : linears(table_))
    for (const int64_t in : {1, 2, 3, 16, 31, 64, 257, 576, 1025, 2050})
      for (const int64_t panels : {1, 2, 3, 5}) {
        const auto w32 = packed<float>(panels, in, 3);
        const auto w16 = packed<uint16_t>(panels, in, 3);
        const void* w = kind != Linear::kF32 ? static_cast<const void*>(w16.data()) : w32.data();
        const auto x = random_floats(static_cast<size_t>(70 * in), 4);
        auto reference_x = x;
        if (kind == Linear::kBf16Rounded)
          for (float& v : reference_x) v = to_float(to_bf16(v));
        for (const int64_t rows : {1, 2, 4, 5, 6, 7, 11, 12, 13, 24, 70}) {
          const int64_t stride = panels * 16 + 5;
          Output got(rows * stride);
          Output want(rows * stride);
          run_linear(table_, kind, x, rows, in, w, panels, got.data(), stride);
          run_linear(plain_, kind == Linear::kF32 ? kind : Linear::kBf16, reference_x, rows, in, w,
                     panels, want.data(), stride);
          got.check();
          for (int64_t r = 0; r < rows; ++r) {
            const auto at = static_cast<size_t>(r * stride);
            const auto n = static_cast<size_t>(panels * 16);
            EXPECT_LT(relative_error(got.view().subspan(at, n), want.view().subspan(at, n)), 2e-6)
                << in << " inputs, " << panels << " panels, row " << r << " of " << rows;
            EXPECT_TRUE(std::isnan(got.view()[at + n])) << "wrote beyond its columns";
          }
        }
      }
}

TEST_P(CpuKernels, LinearGivesARowTheSameBitsInEveryTile) {
  for (const Linear kind : linears(table_))
    for (const int64_t in : {31, 576, 1537, 2500}) {
      constexpr int64_t kPanels = 5;
      const auto w32 = packed<float>(kPanels, in, 3);
      const auto w16 = packed<uint16_t>(kPanels, in, 3);
      const auto panel = [&](int64_t p) {
        return kind != Linear::kF32
                   ? static_cast<const void*>(w16.data() + p * cpu::panel_elements_bf16(in))
                   : w32.data() + p * cpu::panel_elements_f32(in);
      };
      const auto x = random_floats(static_cast<size_t>(64 * in), 4);
      std::vector<std::vector<float>> alone;
      for (int64_t r = 0; r < 64; ++r) {
        alone.emplace_back(kPanels * 16);
        const std::vector<float> one(x.begin() + r * in, x.begin() + (r + 1) * in);
        for (int64_t p = 0; p < kPanels; ++p)  // one panel at a time
          run_linear(table_, kind, one, 1, in, panel(p), 1, alone.back().data() + p * 16, 16);
      }
      for (int64_t rows = 2; rows <= 64; ++rows) {
        std::vector<float> c(static_cast<size_t>(rows * kPanels * 16));
        run_linear(table_, kind, x, rows, in, panel(0), kPanels, c.data(), kPanels * 16);
        for (int64_t r = 0; r < rows; ++r)
          ASSERT_TRUE(
              same_bits(std::span(c).subspan(static_cast<size_t>(r * kPanels * 16), kPanels * 16),
                        alone[static_cast<size_t>(r)]))
              << in << " inputs, row " << r << " of " << rows;
      }
    }
}

TEST_P(CpuKernels, RowOperationsMatchThePlainOnes) {
  for (const int64_t n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 80, 576, 1537}) {
    const auto size = static_cast<size_t>(n);
    const auto a = random_floats(size, 1, 3);
    const auto b = random_floats(size, 2, 3);
    const auto c = random_floats(size, 3);
    const auto d = random_floats(size, 4);
    const auto compare = [&](const char* what, auto&& run) {
      Output got(n);
      Output want(n);
      std::copy(d.begin(), d.end(), got.data());
      std::copy(d.begin(), d.end(), want.data());
      run(table_.rows, got.data());
      run(plain_.rows, want.data());
      got.check();
      EXPECT_LT(relative_error(got.view(), want.view()), 1e-6) << what << ' ' << n;
    };
    compare("rms_norm",
            [&](const auto& k, float* out) { k.rms_norm(a.data(), b.data(), 1e-5F, n, out); });
    for (const float* bias : {static_cast<const float*>(nullptr), c.data()}) {
      compare("store", [&](const auto& k, float* out) { k.store(a.data(), bias, n, out); });
      compare("add", [&](const auto& k, float* out) { k.add(a.data(), bias, n, out); });
      compare("silu_mul", [&](const auto& k, float* out) {
        k.silu_mul(a.data(), b.data(), bias, bias, n, out);
      });
    }
    compare("axpy", [&](const auto& k, float* out) { k.axpy(a.data(), 0.7F, n, out); });
    if (n % 2 == 0)
      compare("rope", [&](const auto& k, float* out) { k.rope(out, a.data(), b.data(), n / 2); });

    std::vector<uint16_t> rounded(size + 2, 0xabcd);
    table_.rows.round_to_bf16(a.data(), n, rounded.data());
    for (size_t i = 0; i < size; ++i) EXPECT_EQ(rounded[i], to_bf16(a[i]).bits);
    EXPECT_EQ(rounded[size], n % 2 == 0 ? 0xabcd : 0);
    EXPECT_EQ(rounded[size + 1], 0xabcd);
  }
}

TEST_P(CpuKernels, SiluHoldsAtTheEndsOfTheRange) {
  const std::vector<float> gate = {-1000, -100, -88.5F, -20, -1e-6F, 0,
                                   1e-6F, 20,   88.5F,  100, 1000};
  const std::vector<float> up(gate.size(), 1);
  std::vector<float> out(gate.size());
  table_.rows.silu_mul(gate.data(), up.data(), nullptr, nullptr, static_cast<int64_t>(gate.size()),
                       out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = static_cast<double>(gate[i]);
    EXPECT_NEAR(out[i], g / (1 + std::exp(-g)), 1e-6 * std::max(1.0, std::abs(g))) << gate[i];
  }
}

// ---- KV pages ----

constexpr int64_t kHeadDims[] = {2, 6, 12, 16, 30, 32, 34, 64, 80, 96, 128, 256};

size_t section_bytes(KvElement e, bool value, int64_t head_dim) {
  const kv::KvFormat format = e == KvElement::kF32    ? kv::KvFormat::kF32
                              : e == KvElement::kBf16 ? kv::KvFormat::kBf16
                              : e == KvElement::kInt8 ? kv::KvFormat::kInt8
                              : e == KvElement::kFp8  ? kv::KvFormat::kFp8E4M3
                                                      : kv::KvFormat::kInt4;
  const kv::KvLayout layout{1, 1, static_cast<uint32_t>(head_dim), format};
  return value ? layout.v_section_bytes() : layout.k_section_bytes();
}

// Values that make encoders stumble: ordinary, tiny, huge, constant, not numbers.
std::vector<float> tricky_rows(int64_t head_dim, uint64_t seed) {
  const auto n = static_cast<size_t>(16 * head_dim);
  auto rows = random_floats(n, seed, seed % 3 == 0 ? 1e-4F : 2.0F);
  std::mt19937 random(static_cast<unsigned>(seed));
  const float odd[] = {0.0F,
                       -0.0F,
                       1e-30F,
                       -1e-8F,
                       65504,
                       -70000,
                       1e30F,
                       std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  if (seed % 4 == 1)
    for (int i = 0; i < 6; ++i) rows[random() % n] = odd[random() % std::size(odd)];
  if (seed % 4 == 2)  // constant rows and channels
    for (size_t i = 0; i < n; ++i)
      if (i / static_cast<size_t>(head_dim) == 3 || i % static_cast<size_t>(head_dim) == 1)
        rows[i] = 0.37F;
  if (seed % 8 == 7) std::fill(rows.begin(), rows.end(), 0.0F);
  return rows;
}

TEST_P(CpuKernels, EncodersGiveTheBytesOfTheCodec) {
  for (const int64_t hd : kHeadDims)
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const auto rows = tricky_rows(hd, seed);
      for (const KvElement e :
           {KvElement::kF32, KvElement::kBf16, KvElement::kInt8, KvElement::kInt4, KvElement::kFp8})
        for (const bool value : {false, true}) {
          const size_t size = section_bytes(e, value, hd);
          std::vector<std::byte> got(size + 32, std::byte{0x5a});
          auto want = got;
          const auto encode = [&](const KernelTable& k, std::byte* to) {
            if (e == KvElement::kInt4 && !value)
              return k.kv.store_keys_int4(rows.data(), hd, hd, to);
            for (int64_t t = 0; t < 16; ++t)
              (value ? k.kv.store_value : k.kv.store_key)(e, rows.data() + t * hd, hd, t, to);
          };
          encode(table_, got.data());
          encode(plain_, want.data());
          ASSERT_EQ(got, want) << "element " << static_cast<int>(e) << (value ? " value" : " key")
                               << " head_dim " << hd << " seed " << seed;
        }
    }
}

TEST_P(CpuKernels, DecodersGiveTheFloatsOfTheCodecAndZeroBeyondTheValidTokens) {
  for (const int64_t hd : kHeadDims)
    for (const KvElement e :
         {KvElement::kF32, KvElement::kBf16, KvElement::kInt8, KvElement::kInt4, KvElement::kFp8}) {
      const auto rows = random_floats(static_cast<size_t>(16 * hd), 9);
      std::vector<std::byte> key(section_bytes(e, false, hd));
      std::vector<std::byte> value(section_bytes(e, true, hd));
      if (e == KvElement::kInt4) plain_.kv.store_keys_int4(rows.data(), hd, hd, key.data());
      for (int64_t t = 0; t < 16; ++t) {
        if (e != KvElement::kInt4) plain_.kv.store_key(e, rows.data() + t * hd, hd, t, key.data());
        plain_.kv.store_value(e, rows.data() + t * hd, hd, t, value.data());
      }
      for (const int64_t valid : {1, 7, 8, 9, 15, 16}) {
        if (e != KvElement::kInt4)  // what lies beyond is not a number
          for (int64_t t = valid; t < 16; ++t)
            for (auto* section : {&key, &value}) {
              const size_t row = section->size() / 16;
              if (e == KvElement::kInt8 || e == KvElement::kFp8) {
                const uint16_t nan = 0x7e00;
                std::memcpy(section->data() + 16 * hd + 2 * t, &nan, 2);
              } else {
                std::memset(section->data() + static_cast<size_t>(t) * row, 0xff, row);
              }
            }
        Output keys[2] = {Output(hd * 16), Output(hd * 16)};
        Output values[2] = {Output(16 * cpu::value_stride(hd)), Output(16 * cpu::value_stride(hd))};
        table_.kv.load_keys(e, key.data(), hd, valid, keys[0].data());
        plain_.kv.load_keys(e, key.data(), hd, valid, keys[1].data());
        table_.kv.load_values(e, value.data(), hd, valid, values[0].data());
        plain_.kv.load_values(e, value.data(), hd, valid, values[1].data());
        for (const Output& o : keys) o.check();
        for (const Output& o : values) o.check();
        for (size_t i = 0; i < keys[0].view().size(); ++i)
          ASSERT_EQ(keys[0].view()[i], keys[1].view()[i])
              << static_cast<int>(e) << " head_dim " << hd << " valid " << valid << " at " << i;
        for (size_t i = 0; i < values[0].view().size(); ++i)
          ASSERT_EQ(values[0].view()[i], values[1].view()[i])
              << static_cast<int>(e) << " head_dim " << hd;
        // Restore for the next, larger count.
        if (e != KvElement::kInt4)
          for (int64_t t = 0; t < 16; ++t) {
            plain_.kv.store_key(e, rows.data() + t * hd, hd, t, key.data());
            plain_.kv.store_value(e, rows.data() + t * hd, hd, t, value.data());
          }
      }
    }
}

// ---- attention ----

struct AttendData {
  AttendData(int64_t rows_, int64_t head_dim_, uint64_t seed)
      : rows(rows_),
        head_dim(head_dim_),
        stride(cpu::value_stride(head_dim_)),
        q(random_floats(static_cast<size_t>(rows * head_dim), seed, 0.5F)),
        keys(random_floats(static_cast<size_t>(128 * head_dim), seed + 1)),
        values(random_floats(static_cast<size_t>(128 * stride), seed + 2)) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (int64_t r = 0; r < rows; ++r) {
      const auto a = static_cast<int32_t>(random() % 129);
      const auto b = static_cast<int32_t>(random() % 129);
      first.push_back(r % 5 == 0 ? 0 : std::min(a, b));
      last.push_back(r % 7 == 3 ? first.back() : std::max(a, b));  // some see nothing
    }
    for (size_t i = 0; i < values.size(); ++i)
      if (static_cast<int64_t>(i) % stride >= head_dim) values[i] = 0;
  }
  struct State {
    std::vector<float> max, sum, acc;
  };
  [[nodiscard]] State empty() const {
    const auto n = static_cast<size_t>(rows);
    return {std::vector<float>(n, -INFINITY), std::vector<float>(n, 0),
            std::vector<float>(static_cast<size_t>(rows * stride), 0)};
  }
  void run(const KernelTable& table, int64_t begin, int64_t count, State& s) const {
    std::vector<float> scratch = poison(static_cast<size_t>(cpu::attend_scratch(stride)));
    cpu::AttendTask t;
    t.q = q.data() + begin * head_dim;
    t.rows = count;
    t.first = first.data() + begin;
    t.last = last.data() + begin;
    t.keys = keys.data();
    t.values = values.data();
    t.head_dim = head_dim;
    t.value_stride = stride;
    t.scratch = scratch.data();
    t.max = s.max.data() + begin;
    t.sum = s.sum.data() + begin;
    t.acc = s.acc.data() + begin * stride;
    table.attention.attend(t);
  }

  int64_t rows, head_dim, stride;
  std::vector<float> q, keys, values;
  std::vector<int32_t> first, last;
};

TEST_P(CpuKernels, AttentionMatchesThePlainKernel) {
  for (const int64_t hd : kHeadDims)
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 21}) {
      const AttendData data(rows, hd, static_cast<uint64_t>(hd + rows));
      AttendData::State got = data.empty();
      AttendData::State want = data.empty();
      for (int round = 0; round < 2; ++round) {  // the second merges into the first
        data.run(table_, 0, rows, got);
        data.run(plain_, 0, rows, want);
      }
      for (int64_t r = 0; r < rows; ++r) {
        const auto at = static_cast<size_t>(r);
        if (std::isinf(want.max[at])) {
          EXPECT_TRUE(std::isinf(got.max[at]));
          EXPECT_EQ(got.sum[at], 0);
          continue;
        }
        EXPECT_NEAR(got.max[at], want.max[at], 1e-5);
        std::vector<float> out[2] = {std::vector<float>(static_cast<size_t>(hd)),
                                     std::vector<float>(static_cast<size_t>(hd))};
        table_.attention.finish(got.acc.data() + r * data.stride, got.sum[at], hd, out[0].data());
        plain_.attention.finish(want.acc.data() + r * data.stride, want.sum[at], hd, out[1].data());
        EXPECT_LT(relative_error(out[0], out[1]), 2e-5) << "head_dim " << hd << " row " << r;
      }
    }
}

TEST_P(CpuKernels, AttentionGivesARowTheSameBitsInEveryTile) {
  const AttendData data(23, 64, 11);
  AttendData::State together = data.empty();
  data.run(table_, 0, 23, together);
  AttendData::State alone = data.empty();
  for (int64_t r = 0; r < 23; ++r) data.run(table_, r, 1, alone);
  EXPECT_TRUE(same_bits(together.acc, alone.acc));
  EXPECT_TRUE(same_bits(together.sum, alone.sum));
  EXPECT_TRUE(same_bits(together.max, alone.max));
}

TEST_P(CpuKernels, MergingPartsIsMergingInPlace) {
  const AttendData data(6, 80, 2);
  AttendData::State in_place = data.empty();
  data.run(table_, 0, 6, in_place);
  data.run(table_, 0, 6, in_place);
  AttendData::State part = data.empty();
  data.run(table_, 0, 6, part);
  AttendData::State merged = data.empty();
  for (int round = 0; round < 2; ++round)
    for (int64_t r = 0; r < 6; ++r) {
      const auto at = static_cast<size_t>(r);
      table_.attention.merge(part.max[at], part.sum[at], part.acc.data() + r * data.stride,
                             data.stride, &merged.max[at], &merged.sum[at],
                             merged.acc.data() + r * data.stride);
    }
  EXPECT_TRUE(same_bits(in_place.acc, merged.acc));
  EXPECT_TRUE(same_bits(in_place.sum, merged.sum));
}

TEST(CpuIsaNames, AreReadBack) {
  for (const CpuIsa isa : cpu::supported_isas())
    EXPECT_EQ(*cpu::parse_cpu_isa(to_string(isa)), isa);
  const auto unknown = cpu::parse_cpu_isa("sse9");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().detail.find("sse9"), std::string::npos);
  const auto isas = cpu::supported_isas();
  EXPECT_EQ(std::count(isas.begin(), isas.end(), cpu::best_isa()), 1);
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuKernels, ::testing::ValuesIn(cpu::supported_isas()), isa_name);

}  // namespace
}  // namespace tandem::testing
