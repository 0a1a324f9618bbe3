#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tandem::text {

// Per-token bytes and the rule for joining them, read once from the tokenizer. Immutable after
// `parse`; any thread.
class DecodeTable {
 public:
  enum class Kind : uint8_t {
    kBytes,   // token bytes are joined and read as UTF-8
    kPieces,  // tokens are whole pieces of text, except byte-fallback tokens
  };

  // `records` as written by the Rust side: per id flags (u8) and three byte strings (u32 length,
  // native order): spelling, bytes, bytes as first token.
  [[nodiscard]] static Result<DecodeTable> parse(std::string_view records, Kind kind,
                                                 size_t strip_left, std::string strip_text);

  [[nodiscard]] size_t size() const { return flags_.size(); }
  [[nodiscard]] bool contains(TokenId id) const { return (flags(id) & kPresent) != 0; }
  [[nodiscard]] bool is_special(TokenId id) const { return (flags(id) & kSpecial) != 0; }
  // One byte of a byte-fallback token.
  [[nodiscard]] bool is_byte(TokenId id) const { return (flags(id) & kByte) != 0; }
  // The bytes are whole characters by themselves.
  [[nodiscard]] bool is_whole(TokenId id) const { return (flags(id) & kWhole) != 0; }

  // Empty for ids outside the table.
  [[nodiscard]] std::string_view spelling(TokenId id) const { return part(id, 0); }
  [[nodiscard]] std::string_view bytes(TokenId id) const { return part(id, 1); }
  [[nodiscard]] std::string_view first_bytes(TokenId id) const { return part(id, 2); }

  [[nodiscard]] Kind kind() const { return kind_; }
  // How many leading `strip_text` are taken off the joined text.
  [[nodiscard]] size_t strip_left() const { return strip_left_; }
  [[nodiscard]] std::string_view strip_text() const { return strip_text_; }

 private:
  static constexpr uint8_t kSpecial = 1;
  static constexpr uint8_t kByte = 4;
  static constexpr uint8_t kPresent = 8;
  static constexpr uint8_t kWhole = 128;

  [[nodiscard]] uint8_t flags(TokenId id) const {
    const auto index = static_cast<size_t>(id);
    return id < 0 || index >= flags_.size() ? uint8_t{0} : flags_[index];
  }
  [[nodiscard]] std::string_view part(TokenId id, size_t which) const {
    const auto index = static_cast<size_t>(id);
    if (id < 0 || index >= flags_.size()) return {};
    const size_t begin = offsets_[index * 3 + which];
    return std::string_view(arena_).substr(begin, offsets_[index * 3 + which + 1] - begin);
  }

  Kind kind_ = Kind::kBytes;
  size_t strip_left_ = 0;
  std::string strip_text_;
  std::vector<uint8_t> flags_;
  std::vector<uint32_t> offsets_;  // three per id and one more: where each part begins in `arena_`
  std::string arena_;
};

}  // namespace tandem::text
