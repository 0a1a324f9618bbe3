#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/kernels.h"

namespace tandem::cpu {
namespace {

constexpr KernelTable kReference{CpuIsa::kReference, kLinearReference, kRowsReference,
                                 kPackReference,     kKvReference,     kAttentionReference};
#if defined(__x86_64__)
// Packing and KV pages are bound by memory or done once per token: wider vectors do not pay.
constexpr KernelTable kAvx2{CpuIsa::kAvx2, kLinearAvx2, kRowsAvx2,
                            kPackAvx2,     kKvAvx2,     kAttentionAvx2};
constexpr KernelTable kAvx512{CpuIsa::kAvx512, kLinearAvx512, kRowsAvx512,
                              kPackAvx2,       kKvAvx2,       kAttentionAvx512};
constexpr KernelTable kAvx512Bf16{CpuIsa::kAvx512Bf16, kLinearAvx512Bf16, kRowsAvx512,
                                  kPackAvx2,           kKvAvx2,           kAttentionAvx512};
#endif

}  // namespace

const KernelTable& kernels(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
      return kReference;
#if defined(__x86_64__)
    case CpuIsa::kAvx2:
      return kAvx2;
    case CpuIsa::kAvx512:
      return kAvx512;
    case CpuIsa::kAvx512Bf16:
      return kAvx512Bf16;
#else
    case CpuIsa::kAvx2:
    case CpuIsa::kAvx512:
    case CpuIsa::kAvx512Bf16:
      break;  // never supported here
#endif
  }
  return kReference;
}

}  // namespace tandem::cpu
