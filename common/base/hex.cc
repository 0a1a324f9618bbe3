#include "common/base/hex.h"

namespace tandem {

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

Result<std::string> from_hex(std::string_view hex) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  if (hex.size() % 2 != 0) return fail(ErrorCode::kCorruptData, "an odd number of digits");
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]);
    const int low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return fail(ErrorCode::kCorruptData, "no hexadecimal digits");
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace tandem
