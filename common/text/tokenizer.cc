#include "common/text/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "common/base/check.h"
#include "common/text/decode_table.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/rust_abi.h"
#include "common/text/utf8.h"

namespace tandem::text {
namespace {

struct RustTokenizerDeleter {
  void operator()(TandemTokenizer* tokenizer) const { tandem_tokenizer_free(tokenizer); }
};

std::string digest(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  std::array<char, 33> hex{};
  std::snprintf(hex.data(), hex.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return std::string(hex.data(), 32);
}

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::vector<TandemSlice> slices(const std::vector<std::string>& strings) {
  std::vector<TandemSlice> out;
  out.reserve(strings.size());
  for (const std::string& s : strings) out.push_back(to_slice(s));
  return out;
}

int32_t tristate(std::optional<bool> flag) { return flag ? (*flag ? 1 : 0) : -1; }

// Ids as Rust takes them; a negative one becomes one that no vocabulary has.
std::vector<uint32_t> unsigned_ids(std::span<const TokenId> ids) {
  std::vector<uint32_t> out;
  out.reserve(ids.size());
  for (const TokenId id : ids) out.push_back(static_cast<uint32_t>(id));
  return out;
}

}  // namespace

struct Tokenizer::State {
  std::unique_ptr<TandemTokenizer, RustTokenizerDeleter> rust;
  DecodeTable table;
  std::string hash;
  std::vector<std::string> warnings;
};

namespace {

// What makes the library panic while it reads tokenizer.json, or with any text, is the file's
// fault.
Error blame_file(Error error) {
  if (error.code != ErrorCode::kInternal) return error;
  error.code = ErrorCode::kCorruptData;
  error.detail = "tokenizer.json: " + error.detail;
  return error;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                        std::string_view tokenizer_config_json) {
  auto state = std::make_unique<State>();
  TandemTokenizer* rust = nullptr;
  RustBuffer error;
  const int32_t status = tandem_tokenizer_from_json(
      to_slice(tokenizer_json), to_slice(tokenizer_config_json), &rust, error.out());
  if (status != 0) return fail(blame_file(rust_error(status, error)));
  state->rust.reset(rust);
  TANDEM_ASSIGN(auto tokenizer, describe(std::move(state)));
  // Some steps load although they can be applied to nothing, such as replacing the empty string.
  const auto probe = tokenizer->encode("A\u00e9 b\n1", {.add_special_tokens = true});
  if (!probe && probe.error().code == ErrorCode::kInternal) return fail(blame_file(probe.error()));
  return tokenizer;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_gguf(const GgufVocabulary& vocabulary) {
  auto state = std::make_unique<State>();
  const std::vector<TandemSlice> tokens = slices(vocabulary.tokens);
  const std::vector<TandemSlice> merges = slices(vocabulary.merges);
  const TandemGgufVocabulary raw{
      .model = to_slice(vocabulary.model),
      .pre = to_slice(vocabulary.pre),
      .tokens = tokens.data(),
      .token_count = tokens.size(),
      .merges = merges.data(),
      .merge_count = merges.size(),
      .scores = vocabulary.scores.data(),
      .score_count = vocabulary.scores.size(),
      .token_types = vocabulary.token_types.data(),
      .type_count = vocabulary.token_types.size(),
      .bos = vocabulary.bos_id.value_or(-1),
      .eos = vocabulary.eos_id.value_or(-1),
      .unk = vocabulary.unk_id.value_or(-1),
      .pad = vocabulary.pad_id.value_or(-1),
      .add_bos = tristate(vocabulary.add_bos),
      .add_eos = tristate(vocabulary.add_eos),
      .add_space_prefix = tristate(vocabulary.add_space_prefix),
  };
  TandemTokenizer* rust = nullptr;
  RustBuffer error;
  const int32_t status = tandem_tokenizer_from_gguf(&raw, &rust, error.out());
  if (status != 0) return fail(rust_error(status, error));
  state->rust.reset(rust);
  return describe(std::move(state));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::describe(std::unique_ptr<State> state) {
  TandemDecodeScheme scheme{};
  RustBuffer vocabulary, fingerprint, warnings, error;
  const int32_t status = tandem_tokenizer_describe(state->rust.get(), &scheme, vocabulary.out(),
                                                   fingerprint.out(), warnings.out(), error.out());
  if (status != 0) return fail(rust_error(status, error));
  const auto kind = scheme.kind == 0 ? DecodeTable::Kind::kBytes : DecodeTable::Kind::kPieces;
  TANDEM_ASSIGN(state->table, DecodeTable::parse(vocabulary.view(), kind, scheme.strip_left,
                                                 encode_utf8(scheme.strip_char)));
  state->hash = digest(fingerprint.view());
  state->warnings = lines(warnings.view());
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(state)));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  TandemIds ids{nullptr, 0, 0};
  RustBuffer error;
  const int32_t status =
      tandem_tokenizer_encode(state_->rust.get(), to_slice(text), options.add_special_tokens,
                              options.parse_special, &ids, error.out());
  if (status != 0) return fail(rust_error(status, error));
  std::vector<TokenId> out(ids.data, ids.data + ids.size);
  tandem_ids_free(&ids);
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  IncrementalDetokenizer detokenizer(state_->table, skip_special);
  std::string out;
  for (const TokenId id : ids) detokenizer.push(id, out);
  return out + detokenizer.finish();
}

Result<std::string> Tokenizer::reference_decode(std::span<const TokenId> ids,
                                                bool skip_special) const {
  const std::vector<uint32_t> raw = unsigned_ids(ids);
  RustBuffer text, error;
  const int32_t status = tandem_tokenizer_decode(state_->rust.get(), raw.data(), raw.size(),
                                                 skip_special, text.out(), error.out());
  if (status != 0) return fail(rust_error(status, error));
  return std::string(text.view());
}

size_t Tokenizer::vocab_size() const { return state_->table.size(); }
bool Tokenizer::is_special(TokenId id) const { return state_->table.is_special(id); }
std::string Tokenizer::token_bytes(TokenId id) const {
  return std::string(state_->table.bytes(id));
}
std::string_view Tokenizer::token_text(TokenId id) const { return state_->table.spelling(id); }
std::string_view Tokenizer::hash() const { return state_->hash; }
const std::vector<std::string>& Tokenizer::warnings() const { return state_->warnings; }
const DecodeTable& Tokenizer::decode_table() const { return state_->table; }

std::optional<TokenId> Tokenizer::find(std::string_view token_text) const {
  const auto size = static_cast<TokenId>(state_->table.size());
  for (TokenId id = 0; id < size; ++id) {
    if (state_->table.contains(id) && state_->table.spelling(id) == token_text) return id;
  }
  return std::nullopt;
}

std::optional<TokenId> Tokenizer::first_difference(const Tokenizer& other) const {
  const auto size = static_cast<TokenId>(std::max(vocab_size(), other.vocab_size()));
  for (TokenId id = 0; id < size; ++id) {
    if (state_->table.contains(id) != other.state_->table.contains(id) ||
        token_text(id) != other.token_text(id) || is_special(id) != other.is_special(id)) {
      return id;
    }
  }
  return std::nullopt;
}

}  // namespace tandem::text
