#include "kernels/cpu/linear_avx512.h"

#include "kernels/cpu/linear_tiles.h"

namespace tandem::cpu {
namespace {

void linear_f32(const LinearTask& t) { linear_tiles<F32Tile>(t); }
void linear_bf16(const LinearTask& t) { linear_expanded<ExpandTile, F32Tile>(t); }

}  // namespace

constexpr LinearKernels kLinearAvx512{linear_f32, linear_bf16, nullptr};

}  // namespace tandem::cpu
