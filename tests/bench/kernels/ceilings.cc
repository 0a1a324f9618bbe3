#include "tests/bench/kernels/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "common/base/check.h"

namespace tandem::bench {
namespace {

constexpr size_t kBytes = size_t{512} << 20;
constexpr int64_t kPieces = 1024;

double peak_f32_plain(int64_t iterations) {
  float a[8] = {};
  for (int64_t i = 0; i < iterations; ++i)
    for (float& x : a) x = x * 0.5F + 1.0F;
  volatile float sink = a[0] + a[7];
  (void)sink;
  return static_cast<double>(iterations) * 16;
}

uint64_t read_plain(const uint64_t* p, size_t words) {
  uint64_t sum = 0;
  for (size_t i = 0; i < words; ++i) sum += p[i];
  return sum;
}

}  // namespace

Ceilings::Ceilings(uint32_t threads, const std::vector<int>& cpus, cpu::CpuIsa isa,
                   const Clock& clock)
    : isa_(isa), clock_(clock), buffer_(kBytes / sizeof(uint64_t) + (2U << 20) / sizeof(uint64_t)) {
  auto pool = engine::ThreadPool::create(threads, cpus);
  TANDEM_CHECK(pool.has_value(), "cannot start the ceiling's threads");
  pool_ = std::move(*pool);
  madvise(buffer_.data(), buffer_.size() * sizeof(uint64_t), MADV_HUGEPAGE);
  std::fill(buffer_.begin(), buffer_.end(), 1);
}

double Ceilings::read_stream(int rounds) {
  double best = 0;
  std::atomic<uint64_t> sink{0};
  for (int r = 0; r < rounds; ++r)
    for (const auto read : isa_ == cpu::CpuIsa::kReference ? std::array{read_plain, read_plain}
                                                           : std::array{read_two, read_eight}) {
      const TimePoint start = clock_.now();
      pool_->stream(kPieces, 1, [&](uint32_t, int64_t begin, int64_t end) {
        const size_t words = kBytes / sizeof(uint64_t) / kPieces;
        sink += read(buffer_.data() + static_cast<size_t>(begin) * words,
                     static_cast<size_t>(end - begin) * words);
      });
      best = std::max(best, static_cast<double>(kBytes) / to_seconds(clock_.now() - start));
    }
  return best;
}

double Ceilings::flops(double (*loop)(int64_t), int rounds) {
  double best = 0;
  for (int r = 0; r < rounds; ++r) {
    std::vector<double> done(pool_->threads() * 16);  // a cache line each
    const TimePoint start = clock_.now();
    pool_->split(int64_t{pool_->threads()} * 16, 1,
                 [&](uint32_t thread, int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) done[thread * 16] += loop(100000);
                 });
    double total = 0;
    for (const double d : done) total += d;
    best = std::max(best, total / to_seconds(clock_.now() - start));
  }
  return best;
}

double Ceilings::flops_f32() {
  switch (isa_) {
    case cpu::CpuIsa::kReference:
      return flops(peak_f32_plain, 3);
    case cpu::CpuIsa::kAvx2:
      return flops(peak_f32_avx2, 3);
    case cpu::CpuIsa::kAvx512:
    case cpu::CpuIsa::kAvx512Bf16:
      return flops(peak_f32_avx512, 3);
  }
  return 0;
}

double Ceilings::flops_bf16() {
  return isa_ == cpu::CpuIsa::kAvx512Bf16 ? flops(peak_bf16_avx512, 3) : flops_f32();
}

}  // namespace tandem::bench
