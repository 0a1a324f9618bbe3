#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/text/gguf_vocabulary.h"

namespace tandem::text {

class DecodeTable;

struct EncodeOptions {
  // Put the begin (and end) token the model asks for around the text. Off for rendered chats: their
  // template has written those tokens already.
  bool add_special_tokens = false;
  // Read special tokens spelled in the text ("<|im_end|>") as those tokens. Off: they are plain
  // text.
  bool parse_special = true;
};

// Text to token ids and back. Immutable after loading; every function may be called from any
// thread.
class Tokenizer {
 public:
  // `tokenizer_config_json` may be empty. Errors: kCorruptData for contradicting files,
  // kUnsupported, naming it, for a component this build cannot reproduce exactly.
  [[nodiscard]] static Result<std::unique_ptr<Tokenizer>> from_json(
      std::string_view tokenizer_json, std::string_view tokenizer_config_json);
  [[nodiscard]] static Result<std::unique_ptr<Tokenizer>> from_gguf(
      const GgufVocabulary& vocabulary);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument when `text` is not UTF-8.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    EncodeOptions options = {}) const;
  // Always valid UTF-8: bytes that form no character become U+FFFD. Ids outside the vocabulary
  // contribute nothing. Equal to what an IncrementalDetokenizer gives for the same ids.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // Highest token id plus one; the model's own vocabulary may be padded beyond it.
  [[nodiscard]] size_t vocab_size() const;
  [[nodiscard]] bool is_special(TokenId id) const;
  // What the token adds to a text it does not begin: raw bytes, maybe part of a character.
  [[nodiscard]] std::string token_bytes(TokenId id) const;
  // The token's spelling in the vocabulary; empty for an id without token.
  [[nodiscard]] std::string_view token_text(TokenId id) const;
  // The id spelled so in the vocabulary, added tokens included. Linear in the vocabulary.
  [[nodiscard]] std::optional<TokenId> find(std::string_view token_text) const;

  // Hex digest over vocabulary, merges, added tokens and processing steps: equal hashes mean equal
  // ids for every text.
  [[nodiscard]] std::string_view hash() const;
  // Lowest id whose spelling or special flag differs, for the message after unequal hashes; empty
  // when the vocabularies agree.
  [[nodiscard]] std::optional<TokenId> first_difference(const Tokenizer& other) const;

  // What the caller should log once after loading.
  [[nodiscard]] const std::vector<std::string>& warnings() const;

  // The library's own decoding, to check `decode` against in tests.
  [[nodiscard]] Result<std::string> reference_decode(std::span<const TokenId> ids,
                                                     bool skip_special) const;

  // For IncrementalDetokenizer; lives as long as the tokenizer.
  [[nodiscard]] const DecodeTable& decode_table() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  static Result<std::unique_ptr<Tokenizer>> describe(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace tandem::text
