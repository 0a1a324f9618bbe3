#include "common/base/dtype.h"
#include "kernels/cpu/kernels.h"

namespace tandem::cpu {
namespace {

void pack_f32(const float* rows, int64_t stride, int64_t count, int64_t in, float* panel) {
  for (int64_t k = 0; k < in; ++k)
    for (int64_t i = 0; i < kPanel; ++i)
      panel[k * kPanel + i] = i < count ? rows[i * stride + k] : 0.0F;
}

void pack_bf16(const float* rows, int64_t stride, int64_t count, int64_t in, uint16_t* panel) {
  for (int64_t k = 0; k < (in + 1) / 2 * 2; ++k)
    for (int64_t i = 0; i < kPanel; ++i)
      panel[k / 2 * 2 * kPanel + i * 2 + k % 2] =
          i < count && k < in ? to_bf16(rows[i * stride + k]).bits : uint16_t{0};
}

void unpack_f32(const float* panel, int64_t lane, int64_t in, float* out) {
  for (int64_t k = 0; k < in; ++k) out[k] = panel[k * kPanel + lane];
}

void unpack_bf16(const uint16_t* panel, int64_t lane, int64_t in, float* out) {
  for (int64_t k = 0; k < in; ++k)
    out[k] = to_float(Bf16{panel[k / 2 * 2 * kPanel + lane * 2 + k % 2]});
}

}  // namespace

constexpr PackKernels kPackReference{pack_f32, pack_bf16, unpack_f32, unpack_bf16};

}  // namespace tandem::cpu
