#include "common/model/host_tensor.h"

#include <cstring>

#include "common/base/check.h"
#include "common/base/dtype.h"

namespace tandem::model {
namespace {

constexpr size_t kBlockValues = 32;

// Exact for every finite half, subnormals included; written without branches so that it vectorizes.
float fast_half(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const uint32_t special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u | magnitude : 0u;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t value = special != 0u ? special : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(value | sign);
}

uint16_t load_u16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

void read_q8_0(const std::byte* p, std::span<float> out) {
  for (size_t i = 0; i < out.size(); i += kBlockValues, p += 34) {
    const float d = fast_half(load_u16(p));
    const auto* q = reinterpret_cast<const int8_t*>(p + 2);
    for (size_t j = 0; j < kBlockValues; ++j) out[i + j] = d * static_cast<float>(q[j]);
  }
}

// Low nibbles are values 0..15 of a block, high nibbles 16..31.
void read_q4(const std::byte* p, std::span<float> out, bool has_minimum) {
  const size_t header = has_minimum ? 4 : 2;
  for (size_t i = 0; i < out.size(); i += kBlockValues, p += header + kBlockValues / 2) {
    const float d = fast_half(load_u16(p));
    const float m = has_minimum ? fast_half(load_u16(p + 2)) : d * -8.0F;
    const auto* q = reinterpret_cast<const uint8_t*>(p + header);
    for (size_t j = 0; j < kBlockValues / 2; ++j) {
      out[i + j] = d * static_cast<float>(q[j] & 0xf) + m;
      out[i + j + kBlockValues / 2] = d * static_cast<float>(q[j] >> 4) + m;
    }
  }
}

}  // namespace

std::string_view to_string(StorageType t) {
  switch (t) {
    case StorageType::kF32:
      return "f32";
    case StorageType::kF16:
      return "f16";
    case StorageType::kBf16:
      return "bf16";
    case StorageType::kQ8_0:
      return "q8_0";
    case StorageType::kQ4_0:
      return "q4_0";
    case StorageType::kQ4_1:
      return "q4_1";
  }
  TANDEM_CHECK(false, "storage type outside its enumeration");
  return {};
}

size_t storage_bytes(StorageType t, size_t values) {
  switch (t) {
    case StorageType::kF32:
      return values * 4;
    case StorageType::kF16:
    case StorageType::kBf16:
      return values * 2;
    case StorageType::kQ8_0:
      return values / kBlockValues * 34;
    case StorageType::kQ4_0:
      return values / kBlockValues * 18;
    case StorageType::kQ4_1:
      return values / kBlockValues * 20;
  }
  TANDEM_CHECK(false, "storage type outside its enumeration");
  return 0;
}

int64_t HostTensor::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

int64_t stored_row(const HostTensor& t, int64_t row) {
  if (t.interleaved_heads == 0) return row;
  const int64_t head_dim = t.rows() / t.interleaved_heads;
  const int64_t half = head_dim / 2;
  const int64_t in_head = row % head_dim;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

void read_row(const HostTensor& t, int64_t row, std::span<float> out) {
  const bool vector = t.shape.size() < 2;
  const size_t row_bytes = storage_bytes(t.type, out.size());
  // A vector is one row, unless it was permuted along its only dimension (a q or k bias).
  if (vector && t.interleaved_heads != 0) {
    HostTensor flat = t;
    flat.interleaved_heads = 0;
    std::vector<float> stored(out.size());
    read_row(flat, 0, stored);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = stored[static_cast<size_t>(stored_row(t, static_cast<int64_t>(i)))];
    return;
  }
  const size_t offset = vector ? 0 : static_cast<size_t>(stored_row(t, row)) * row_bytes;
  TANDEM_CHECK(offset + row_bytes <= t.bytes.size(), "row outside its tensor");
  const std::byte* p = t.bytes.data() + offset;
  switch (t.type) {
    case StorageType::kF32:
      std::memcpy(out.data(), p, row_bytes);
      return;
    case StorageType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = fast_half(load_u16(p + 2 * i));
      return;
    case StorageType::kBf16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(Bf16{load_u16(p + 2 * i)});
      return;
    case StorageType::kQ8_0:
      read_q8_0(p, out);
      return;
    case StorageType::kQ4_0:
      read_q4(p, out, false);
      return;
    case StorageType::kQ4_1:
      read_q4(p, out, true);
      return;
  }
}

}  // namespace tandem::model
