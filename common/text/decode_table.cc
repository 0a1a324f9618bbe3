#include "common/text/decode_table.h"

#include <cstring>
#include <limits>
#include <utility>

#include "common/base/utf8.h"

namespace tandem::text {
namespace {

// Takes `count` bytes off the front of `rest`; false when there are fewer.
bool take(std::string_view& rest, size_t count, std::string_view& out) {
  if (rest.size() < count) return false;
  out = rest.substr(0, count);
  rest.remove_prefix(count);
  return true;
}

}  // namespace

Result<DecodeTable> DecodeTable::parse(std::string_view records, Kind kind, size_t strip_left,
                                       std::string strip_text) {
  DecodeTable table;
  table.kind_ = kind;
  table.strip_left_ = strip_left;
  table.strip_text_ = std::move(strip_text);
  table.arena_.reserve(records.size());
  table.offsets_.push_back(0);
  std::string_view rest = records;
  while (!rest.empty()) {
    uint8_t flags = static_cast<uint8_t>(rest.front());
    rest.remove_prefix(1);
    std::string_view parts[3];
    for (std::string_view& part : parts) {
      std::string_view length_bytes;
      uint32_t length = 0;
      if (!take(rest, sizeof length, length_bytes)) {
        return fail(ErrorCode::kInternal, "tokenizer vocabulary record is cut short");
      }
      std::memcpy(&length, length_bytes.data(), sizeof length);
      if (!take(rest, length, part)) {
        return fail(ErrorCode::kInternal, "tokenizer vocabulary record is cut short");
      }
      if (table.arena_.size() + length > std::numeric_limits<uint32_t>::max()) {
        return fail(ErrorCode::kUnsupported, "tokenizer vocabulary is above 4 GiB");
      }
      table.arena_.append(part);
      table.offsets_.push_back(static_cast<uint32_t>(table.arena_.size()));
    }
    if (is_valid_utf8(parts[1]) && is_valid_utf8(parts[2])) flags |= kWhole;
    table.flags_.push_back(flags);
  }
  return table;
}

}  // namespace tandem::text
