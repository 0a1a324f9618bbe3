#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem::text {

// The `tokenizer.*` metadata of a GGUF file, as the GGUF reader finds it: absent keys are empty,
// and nothing is checked yet (Tokenizer::from_gguf does). Strings are the file's bytes.
struct GgufVocabulary {
  std::string model;                     // tokenizer.ggml.model: "gpt2", "llama", ...
  std::string pre;                       // tokenizer.ggml.pre
  std::vector<std::string> tokens;       // tokenizer.ggml.tokens; the index is the token id
  std::vector<float> scores;             // tokenizer.ggml.scores
  std::vector<int32_t> token_types;      // tokenizer.ggml.token_type
  std::vector<std::string> merges;       // tokenizer.ggml.merges, "left right"
  std::optional<int64_t> bos_id;         // tokenizer.ggml.bos_token_id
  std::optional<int64_t> eos_id;         // tokenizer.ggml.eos_token_id
  std::optional<int64_t> unk_id;         // tokenizer.ggml.unknown_token_id
  std::optional<int64_t> pad_id;         // tokenizer.ggml.padding_token_id
  std::optional<bool> add_bos;           // tokenizer.ggml.add_bos_token
  std::optional<bool> add_eos;           // tokenizer.ggml.add_eos_token
  std::optional<bool> add_space_prefix;  // tokenizer.ggml.add_space_prefix, "llama" only
  std::string chat_template;             // tokenizer.chat_template
  // tokenizer.chat_template.NAME, by NAME ("tool_use", ...).
  std::map<std::string, std::string> named_chat_templates;
};

}  // namespace tandem::text
