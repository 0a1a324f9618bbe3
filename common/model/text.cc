#include "common/model/text.h"

#include "common/model/checkpoint.h"
#include "common/model/gguf.h"

namespace tandem::model {
namespace {

Status read_string(const GgufFile& file, std::string_view key, std::string& out) {
  TANDEM_ASSIGN(const auto v, file.string(key));
  if (v) out = *v;
  return {};
}

Status read_strings(const GgufFile& file, std::string_view key, std::vector<std::string>& out) {
  TANDEM_ASSIGN(const auto v, file.strings(key));
  if (v) out.assign(v->begin(), v->end());
  return {};
}

// "None" is written as 2^32 - 1.
Status read_id(const GgufFile& file, std::string_view key, std::optional<int64_t>& out) {
  TANDEM_ASSIGN(out, file.integer(key));
  if (out == 0xffffffff) out.reset();
  return {};
}

Status read_templates(const GgufFile& file, text::GgufVocabulary& out) {
  TANDEM_TRY(read_string(file, "tokenizer.chat_template", out.chat_template));
  TANDEM_ASSIGN(const auto names, file.strings("tokenizer.chat_templates"));
  if (!names) return {};
  for (const std::string_view name : *names) {
    std::string text;
    TANDEM_TRY(read_string(file, "tokenizer.chat_template." + std::string(name), text));
    if (!text.empty()) out.named_chat_templates.emplace(name, std::move(text));
  }
  return {};
}

}  // namespace

Result<text::GgufVocabulary> gguf_vocabulary(const GgufFile& file) {
  text::GgufVocabulary out;
  TANDEM_TRY(read_string(file, "tokenizer.ggml.model", out.model));
  TANDEM_TRY(read_string(file, "tokenizer.ggml.pre", out.pre));
  TANDEM_TRY(read_strings(file, "tokenizer.ggml.tokens", out.tokens));
  TANDEM_TRY(read_strings(file, "tokenizer.ggml.merges", out.merges));
  TANDEM_ASSIGN(auto scores, file.floats("tokenizer.ggml.scores"));
  if (scores) out.scores = std::move(*scores);
  TANDEM_ASSIGN(const auto types, file.integers("tokenizer.ggml.token_type"));
  if (types)
    for (const int64_t t : *types) {
      if (t < INT32_MIN || t > INT32_MAX)
        return fail(file.error(ErrorCode::kCorruptData, "tokenizer.ggml.token_type",
                               "holds " + std::to_string(t) + ", no token type"));
      out.token_types.push_back(static_cast<int32_t>(t));
    }
  TANDEM_TRY(read_id(file, "tokenizer.ggml.bos_token_id", out.bos_id));
  TANDEM_TRY(read_id(file, "tokenizer.ggml.eos_token_id", out.eos_id));
  TANDEM_TRY(read_id(file, "tokenizer.ggml.unknown_token_id", out.unk_id));
  TANDEM_TRY(read_id(file, "tokenizer.ggml.padding_token_id", out.pad_id));
  TANDEM_ASSIGN(out.add_bos, file.boolean("tokenizer.ggml.add_bos_token"));
  TANDEM_ASSIGN(out.add_eos, file.boolean("tokenizer.ggml.add_eos_token"));
  TANDEM_ASSIGN(out.add_space_prefix, file.boolean("tokenizer.ggml.add_space_prefix"));
  TANDEM_TRY(read_templates(file, out));
  return out;
}

Result<text::TextModel> load_text(const Checkpoint& checkpoint, const Clock& clock) {
  const GgufFile* gguf = checkpoint.gguf();
  if (gguf == nullptr) return text::load_from_folder(checkpoint.path(), clock);
  TANDEM_ASSIGN(const text::GgufVocabulary vocabulary, gguf_vocabulary(*gguf));
  auto text = text::load_from_gguf(vocabulary, clock);
  if (!text) {
    Error error = std::move(text).error();
    error.detail = gguf->name() + ": " + error.detail;
    return fail(std::move(error));
  }
  return text;
}

}  // namespace tandem::model
