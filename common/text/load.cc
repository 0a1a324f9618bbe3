#include "common/text/load.h"

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "common/text/utf8.h"

namespace tandem::text {
namespace {

namespace fs = std::filesystem;

// Above any real tokenizer.json (the largest known are near 40 MB).
constexpr uintmax_t kMaxFileBytes = uintmax_t{512} << 20;

// Empty when the file does not exist.
Result<std::optional<std::string>> read_optional(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return fail(ErrorCode::kIo, path.string() + ": " + error.message());
  if (size > kMaxFileBytes) {
    return fail(ErrorCode::kCorruptData, path.string() + " is larger than 512 MiB");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) return fail(ErrorCode::kIo, path.string() + ": cannot be read");
  return text;
}

Error in_folder(Error error, const fs::path& folder) {
  error.detail = folder.string() + ": " + error.detail;
  return error;
}

// Adds the roles that older folders keep in special_tokens_map.json to the configuration.
Result<std::string> merged_config(std::string config, const std::optional<std::string>& map) {
  if (!map) return config;
  namespace json = boost::json;
  boost::system::error_code error;
  json::value roles = json::parse(*map, error);
  if (error || !roles.is_object()) {
    return fail(ErrorCode::kCorruptData, "special_tokens_map.json is not a JSON object");
  }
  json::value root = config.empty() ? json::value(json::object()) : json::parse(config, error);
  if (error || !root.is_object()) {
    return fail(ErrorCode::kCorruptData, "tokenizer_config.json is not a JSON object");
  }
  for (const auto& [key, value] : roles.as_object()) root.as_object().insert({{key, value}});
  return json::serialize(root);
}

Result<TextModel> read_folder(const fs::path& folder, const Clock& clock) {
  TANDEM_ASSIGN(const auto tokenizer_json, read_optional(folder / "tokenizer.json"));
  if (!tokenizer_json) {
    std::error_code ignored;
    const bool other = fs::exists(folder / "tokenizer.model", ignored) ||
                       fs::exists(folder / "vocab.json", ignored);
    return fail(ErrorCode::kNotFound,
                other
                    ? "tokenizer.json is missing; other tokenizer files are not read, so save the "
                      "tokenizer in the fast format first"
                    : "tokenizer.json is missing");
  }
  TANDEM_ASSIGN(auto config, read_optional(folder / "tokenizer_config.json"));
  if (config && config->find_first_not_of(" \t\r\n") == std::string::npos)
    return fail(ErrorCode::kCorruptData, "tokenizer_config.json is empty");
  TANDEM_ASSIGN(const auto roles, read_optional(folder / "special_tokens_map.json"));
  TANDEM_ASSIGN(const auto jinja, read_optional(folder / "chat_template.jinja"));
  TANDEM_ASSIGN(const std::string merged, merged_config(config ? *std::move(config) : "", roles));

  TextModel model;
  TANDEM_ASSIGN(model.tokenizer, Tokenizer::from_json(*tokenizer_json, merged));
  model.warnings = model.tokenizer->warnings();
  auto chat = ChatTemplate::from_config(merged, jinja, clock);
  if (chat) {
    model.chat_template = *std::move(chat);
  } else if (chat.error().code != ErrorCode::kNotFound) {
    return fail(std::move(chat).error());
  }
  return model;
}

}  // namespace

Result<TextModel> load_from_folder(const fs::path& folder, const Clock& clock) {
  Result<TextModel> model = read_folder(folder, clock);
  if (!model) return fail(in_folder(std::move(model).error(), folder));
  return model;
}

Result<TextModel> load_from_gguf(const GgufVocabulary& vocabulary, const Clock& clock) {
  TextModel model;
  TANDEM_ASSIGN(model.tokenizer, Tokenizer::from_gguf(vocabulary));
  model.warnings = model.tokenizer->warnings();
  auto chat = ChatTemplate::from_gguf(vocabulary, clock);
  if (chat) {
    model.chat_template = *std::move(chat);
  } else if (chat.error().code != ErrorCode::kNotFound) {
    return fail(std::move(chat).error());
  }
  return model;
}

}  // namespace tandem::text
