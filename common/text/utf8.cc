#include "common/text/utf8.h"

namespace tandem::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the sequence a lead byte begins (0: it begins none) and the range of its second byte
// (Unicode 15, table 3-7).
struct Lead {
  size_t length;
  unsigned char low, high;
};

constexpr Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

std::string encode_utf8(char32_t c) {
  const auto byte = [](char32_t v) { return static_cast<char>(static_cast<unsigned char>(v)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | (c >> 6)), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) {
    return {byte(0xE0 | (c >> 12)), byte(0x80 | ((c >> 6) & 0x3F)), byte(0x80 | (c & 0x3F))};
  }
  return {byte(0xF0 | (c >> 18)), byte(0x80 | ((c >> 12) & 0x3F)), byte(0x80 | ((c >> 6) & 0x3F)),
          byte(0x80 | (c & 0x3F))};
}

void Utf8Assembler::start(unsigned char byte, std::string& out) {
  const Lead lead = lead_of(byte);
  if (lead.length == 0) {
    out.append(kReplacement);
    return;
  }
  if (lead.length == 1) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  pending_[0] = static_cast<char>(byte);
  held_ = 1;
  length_ = lead.length;
  low_ = lead.low;
  high_ = lead.high;
}

void Utf8Assembler::feed(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (held_ > 0) {
      if (byte >= low_ && byte <= high_) {
        pending_[held_++] = c;
        low_ = 0x80;
        high_ = 0xBF;
        if (held_ == length_) {
          out.append(pending_.data(), held_);
          held_ = 0;
        }
        continue;
      }
      flush(out);
    }
    start(byte, out);
  }
}

void Utf8Assembler::flush(std::string& out) {
  if (held_ == 0) return;
  const size_t marks = replacement_ == Replacement::kPerByte ? held_ : 1;
  for (size_t i = 0; i < marks; ++i) out.append(kReplacement);
  held_ = 0;
}

}  // namespace tandem::text
