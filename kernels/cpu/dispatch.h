#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace tandem::cpu {

// Instruction sets that kernels are compiled for, each including the ones before it. Which one runs
// is decided once, when the engine starts; nothing is compiled for "the machine at hand".
enum class CpuIsa : uint8_t {
  kReference,   // plain C++: every machine, slow; the tests' yardstick
  kAvx2,        // AVX2 + FMA + F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and AVX512_BF16
};

[[nodiscard]] std::string_view to_string(
    CpuIsa isa);  // "reference", "avx2", "avx512", "avx512bf16"
[[nodiscard]] Result<CpuIsa> parse_cpu_isa(std::string_view name);

// What processor and operating system (saved register state) support together, widest last.
[[nodiscard]] std::vector<CpuIsa> supported_isas();
// The fastest of them on this processor.
[[nodiscard]] CpuIsa best_isa();

}  // namespace tandem::cpu
