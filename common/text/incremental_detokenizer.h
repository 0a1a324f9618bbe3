#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "common/base/ids.h"
#include "common/text/utf8.h"

namespace tandem::text {

class DecodeTable;
class Tokenizer;

// Turns one stream of token ids into text as they arrive. What is returned is whole characters:
// an incomplete one is held until it is complete or certain never to be, and then becomes U+FFFD.
// All returned texts joined, with `finish()`, equal Tokenizer::decode of the same ids. Constant
// work per byte. One stream, one thread at a time; keeps the tokenizer alive.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special);

  // The text that is certain now and was not before; often empty or one token's text.
  [[nodiscard]] std::string push(TokenId id);
  // The same, appended to `out`.
  void push(TokenId id, std::string& out);
  // No more tokens: what was held. The object then begins a new text.
  [[nodiscard]] std::string finish();

 private:
  friend class Tokenizer;
  IncrementalDetokenizer(const DecodeTable& table, bool skip_special);
  void strip_front(std::string& out, size_t from);

  std::shared_ptr<const Tokenizer> tokenizer_;  // empty inside Tokenizer::decode
  const DecodeTable* table_;
  bool skip_special_;
  bool started_ = false;
  size_t strip_left_;
  Utf8Assembler assembler_;
};

}  // namespace tandem::text
