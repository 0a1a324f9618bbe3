#pragma once

// What transport_process_test and its peer process share.

#include <string>
#include <vector>

#include "tests/unit/transport/suite.h"

namespace tandem::transport::testing {

inline constexpr kv::KvLayout kProcessLayout{6, 4, 64, kv::KvFormat::kInt8};

inline std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}
inline std::string from_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  }
  return bytes;
}

inline Status post_layer(Transport& transport, TransferId id, Pages& from, uint32_t layer) {
  std::vector<std::span<const std::byte>> pages;
  for (uint32_t i = 0; i < from.count(); ++i) pages.push_back(from.page(layer, i));
  return transport.post_pages(id, layer, 0, pages);
}

}  // namespace tandem::transport::testing
