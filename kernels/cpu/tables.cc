#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/kernels.h"

namespace tandem::cpu {
namespace {

constexpr KernelTable kReference{CpuIsa::kReference, kLinearReference, kRowsReference,
                                 kPackReference,     kKvReference,     kAttentionReference};

}  // namespace

const KernelTable& kernels(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kReference:
    case CpuIsa::kAvx2:
    case CpuIsa::kAvx512:
    case CpuIsa::kAvx512Bf16:
      return kReference;
  }
  return kReference;
}

}  // namespace tandem::cpu
