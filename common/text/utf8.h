#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::text {

[[nodiscard]] std::string encode_utf8(char32_t code_point);

// Joins bytes that arrive in pieces into characters. Bytes that form none become U+FFFD: one per
// longest prefix of a well-formed sequence (as in the WHATWG encoding standard), or one per byte.
// Not thread-safe.
class Utf8Assembler {
 public:
  enum class Replacement : uint8_t { kPerSequence, kPerByte };

  explicit Utf8Assembler(Replacement replacement) : replacement_(replacement) {}

  // Appends every character that is now complete, and U+FFFD for what no longer can be one.
  void feed(std::string_view bytes, std::string& out);
  // Nothing more will follow: an incomplete character becomes U+FFFD.
  void flush(std::string& out);
  [[nodiscard]] bool empty() const { return held_ == 0; }

 private:
  void start(unsigned char lead, std::string& out);

  Replacement replacement_;
  std::array<char, 4> pending_{};
  size_t held_ = 0;                   // bytes in `pending_`
  size_t length_ = 0;                 // bytes the pending character needs in all
  unsigned char low_ = 0, high_ = 0;  // what its next byte must lie within
};

}  // namespace tandem::text
