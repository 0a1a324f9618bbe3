#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "common/engine/cpu/thread_pool.h"
#include "kernels/cpu/dispatch.h"

namespace tandem::bench {

// What this machine can do at best right now, with the same number of threads as the engine: every
// figure is a ratio to one of these, measured in the same run.
class Ceilings {
 public:
  Ceilings(uint32_t threads, const std::vector<int>& cpus, cpu::CpuIsa isa, const Clock& clock);

  // Bytes per second of reading a buffer far larger than the caches, once; best of `rounds`.
  [[nodiscard]] double read_stream(int rounds = 3);
  // Multiply-add operations per second times two, in registers: float32, and bf16 pairs where the
  // instruction set has them (else equal).
  [[nodiscard]] double flops_f32();
  [[nodiscard]] double flops_bf16();

 private:
  double flops(double (*loop)(int64_t), int rounds);

  std::unique_ptr<engine::ThreadPool> pool_;
  cpu::CpuIsa isa_;
  const Clock& clock_;
  std::vector<uint64_t> buffer_;
};

// Loops of one instruction set: run `iterations` rounds, return the flops done.
double peak_f32_avx2(int64_t iterations);
double peak_f32_avx512(int64_t iterations);
double peak_bf16_avx512(int64_t iterations);
// Sum up the buffer: two streams that are fetched ahead, and eight left to the hardware prefetcher.
// Which is faster depends on the processor; the ceiling is the better one.
uint64_t read_two(const uint64_t* p, size_t words);
uint64_t read_eight(const uint64_t* p, size_t words);

}  // namespace tandem::bench
