// Any bytes as a GGUF file's tokenizer metadata: the first four bytes choose model, pre-tokenizer,
// flags and ids; then tokens apart by line feeds, each with its type as first byte; a NUL; merges.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/gguf_vocabulary.h"
#include "common/text/tokenizer.h"

namespace {

template <typename F>
void for_each_line(std::string_view text, F&& f) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    f(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  static constexpr std::array<const char*, 4> kPre{"gpt-2", "smollm", "llama-bpe", "qwen2"};
  tandem::text::GgufVocabulary vocabulary;
  const bool sentence_piece = (data[0] & 1u) != 0;
  vocabulary.model = sentence_piece ? "llama" : "gpt2";
  vocabulary.pre = kPre[(data[0] >> 1u) & 3u];
  if ((data[0] & 8u) != 0) vocabulary.add_bos = true;
  if ((data[0] & 16u) != 0) vocabulary.add_space_prefix = false;
  vocabulary.bos_id = static_cast<int8_t>(data[1]);
  vocabulary.unk_id = static_cast<int8_t>(data[2]);
  vocabulary.pad_id = static_cast<int8_t>(data[3]);
  const std::string_view rest(reinterpret_cast<const char*>(data + 4), size - 4);
  const size_t end = rest.find('\0');
  for_each_line(rest.substr(0, end), [&](std::string_view line) {
    const int kind = line.empty() ? 1 : line.front() - '0';
    vocabulary.token_types.push_back(kind);
    vocabulary.scores.push_back(static_cast<float>(kind) - 0.5f * static_cast<float>(line.size()));
    vocabulary.tokens.emplace_back(line.substr(line.empty() ? 0 : 1));
  });
  if (end != std::string_view::npos) {
    for_each_line(rest.substr(end + 1),
                  [&](std::string_view line) { vocabulary.merges.emplace_back(line); });
  }
  const auto tokenizer = tandem::text::Tokenizer::from_gguf(vocabulary);
  if (!tokenizer) {
    TANDEM_CHECK(!tokenizer.error().detail.empty(), "an error without a message");
    return 0;
  }
  const auto ids = (*tokenizer)->encode("ab abc <s> \xC3\xA9", {.add_special_tokens = true});
  if (!ids) return 0;
  for (const tandem::TokenId id : *ids) {
    TANDEM_CHECK(static_cast<size_t>(id) < (*tokenizer)->vocab_size(), "an id out of range");
  }
  TANDEM_CHECK(tandem::is_valid_utf8((*tokenizer)->decode(*ids, false)), "not UTF-8");
  return 0;
}
