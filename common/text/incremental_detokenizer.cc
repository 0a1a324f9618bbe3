#include "common/text/incremental_detokenizer.h"

#include <string_view>
#include <utility>

#include "common/text/decode_table.h"
#include "common/text/tokenizer.h"

namespace tandem::text {
namespace {

// Byte-level decoders read all bytes as one UTF-8 text; byte fallback marks every lost byte.
Utf8Assembler::Replacement replacement_of(const DecodeTable& table) {
  return table.kind() == DecodeTable::Kind::kBytes ? Utf8Assembler::Replacement::kPerSequence
                                                   : Utf8Assembler::Replacement::kPerByte;
}

}  // namespace

IncrementalDetokenizer::IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                               bool skip_special)
    : IncrementalDetokenizer(tokenizer->decode_table(), skip_special) {
  tokenizer_ = std::move(tokenizer);
}

IncrementalDetokenizer::IncrementalDetokenizer(const DecodeTable& table, bool skip_special)
    : table_(&table),
      skip_special_(skip_special),
      strip_left_(table.strip_left()),
      assembler_(replacement_of(table)) {}

std::string IncrementalDetokenizer::push(TokenId id) {
  std::string out;
  push(id, out);
  return out;
}

void IncrementalDetokenizer::push(TokenId id, std::string& out) {
  const DecodeTable& table = *table_;
  if (!table.contains(id) || (skip_special_ && table.is_special(id))) return;
  const std::string_view bytes = started_ ? table.bytes(id) : table.first_bytes(id);
  started_ = true;
  const size_t from = out.size();
  if (table.kind() == DecodeTable::Kind::kPieces && !table.is_byte(id)) {
    assembler_.flush(out);
    out.append(bytes);
  } else if (assembler_.empty() && table.is_whole(id)) {
    out.append(bytes);
  } else {
    assembler_.feed(bytes, out);
  }
  if (strip_left_ > 0) strip_front(out, from);
}

std::string IncrementalDetokenizer::finish() {
  std::string out;
  assembler_.flush(out);
  if (strip_left_ > 0) strip_front(out, 0);
  started_ = false;
  strip_left_ = table_->strip_left();
  return out;
}

// Takes the text's leading strip characters off `out`, whose new part begins at `from`; the first
// other character ends the stripping for good.
void IncrementalDetokenizer::strip_front(std::string& out, size_t from) {
  const std::string_view unit = table_->strip_text();
  size_t cut = 0;
  while (strip_left_ > 0 && from + cut < out.size()) {
    if (std::string_view(out).substr(from + cut, unit.size()) != unit) {
      strip_left_ = 0;
      break;
    }
    cut += unit.size();
    --strip_left_;
  }
  out.erase(from, cut);
}

}  // namespace tandem::text
