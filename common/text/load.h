#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/text/chat_template.h"
#include "common/text/gguf_vocabulary.h"
#include "common/text/tokenizer.h"

namespace tandem::text {

// Everything about text that a model brings along. Shared by all threads of a process.
struct TextModel {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the model has none
  std::vector<std::string> warnings;                  // to be logged once
};

// Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja of a
// Hugging Face folder; all but the first may be absent. Errors name the file. `clock` must outlive
// the result.
[[nodiscard]] Result<TextModel> load_from_folder(const std::filesystem::path& folder,
                                                 const Clock& clock);

// The same from a GGUF file's metadata.
[[nodiscard]] Result<TextModel> load_from_gguf(const GgufVocabulary& vocabulary,
                                               const Clock& clock);

}  // namespace tandem::text
