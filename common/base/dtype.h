#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

// Element types of weights and activations. Packed GGUF blocks have their own type in common/model.
enum class DType : uint8_t { kF32, kF16, kBf16 };

[[nodiscard]] constexpr size_t dtype_bytes(DType t) { return t == DType::kF32 ? 4 : 2; }
[[nodiscard]] std::string_view to_string(DType t);  // "float32", "float16", "bfloat16"

// bfloat16 is the upper half of a float32; rounding is to nearest, ties to even; NaN stays NaN.
struct Bf16 {
  uint16_t bits = 0;
  friend constexpr bool operator==(Bf16, Bf16) = default;
};
[[nodiscard]] constexpr float to_float(Bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}
[[nodiscard]] constexpr Bf16 to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// IEEE 754 binary16.
[[nodiscard]] float half_to_float(uint16_t bits);
[[nodiscard]] uint16_t float_to_half(float f);

}  // namespace tandem
