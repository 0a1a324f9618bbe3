#include "kernels/cpu/dispatch.h"

#include <cstdint>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tandem::cpu {

std::string_view to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return "reference";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "unknown";
}

Result<CpuIsa> parse_cpu_isa(std::string_view name) {
  for (const CpuIsa isa : {CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16})
    if (name == to_string(isa)) return isa;
  return fail(ErrorCode::kInvalidArgument, "unknown instruction set '" + std::string(name) +
                                               "': use reference, avx2, avx512 or avx512bf16");
}

namespace {

#if defined(__x86_64__)

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf) {
  Leaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool has(unsigned reg, int bit) { return ((reg >> bit) & 1U) != 0; }

// Register state that the operating system saves on a context switch (XCR0).
uint64_t saved_state() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Bit positions: Intel SDM volume 2, CPUID leaves 1, 7.0 and 7.1.
CpuIsa detect() {
  constexpr uint64_t kYmmState = 0x6;   // SSE and AVX registers
  constexpr uint64_t kZmmState = 0xe6;  // and opmask, upper halves, zmm16..31
  const Leaf one = cpuid(1, 0);
  const Leaf seven = cpuid(7, 0);
  const bool os_saves = has(one.ecx, 27);  // OSXSAVE: xgetbv may be used
  if (!os_saves) return CpuIsa::kReference;
  const uint64_t saved = saved_state();
  const bool avx2 = has(one.ecx, 28) && has(one.ecx, 12) && has(one.ecx, 29) && has(seven.ebx, 5);
  if (!avx2 || (saved & kYmmState) != kYmmState) return CpuIsa::kReference;
  const bool avx512 =
      has(seven.ebx, 16) && has(seven.ebx, 17) && has(seven.ebx, 30) && has(seven.ebx, 31);
  if (!avx512 || (saved & kZmmState) != kZmmState) return CpuIsa::kAvx2;
  return has(cpuid(7, 1).eax, 5) ? CpuIsa::kAvx512Bf16 : CpuIsa::kAvx512;
}

bool intel() {
  const Leaf vendor = cpuid(0, 0);
  return vendor.ebx == signature_INTEL_ebx && vendor.ecx == signature_INTEL_ecx &&
         vendor.edx == signature_INTEL_edx;
}

#else

CpuIsa detect() { return CpuIsa::kReference; }
bool intel() { return false; }

#endif

}  // namespace

std::vector<CpuIsa> supported_isas() {
  std::vector<CpuIsa> isas;
  const CpuIsa widest = detect();
  for (const CpuIsa isa : {CpuIsa::kReference, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16})
    if (isa <= widest) isas.push_back(isa);
  return isas;
}

// Intel's cores (Sapphire Rapids measured) start a bf16 dot product every other cycle and two float
// multiply-adds every cycle: the float kernels do as much there (prefill of 512 tokens 834 against
// 526 to 696 tokens a second), and more exactly. Zen 4 starts one of each per cycle.
CpuIsa best_isa() {
  const CpuIsa widest = detect();
  return widest == CpuIsa::kAvx512Bf16 && intel() ? CpuIsa::kAvx512 : widest;
}

}  // namespace tandem::cpu
