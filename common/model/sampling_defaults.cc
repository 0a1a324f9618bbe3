#include "common/model/sampling_defaults.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "common/model/checkpoint.h"
#include "common/model/gguf.h"
#include "common/model/json.h"
#include "common/model/mapped_file.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr size_t kMaxBytes = 16u << 20;

// What both kinds of file call these values.
struct Names {
  std::string_view temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens;
};
constexpr Names kHuggingFace{"temperature",        "top_p",         "top_k", "min_p",
                             "repetition_penalty", "max_new_tokens"};
constexpr Names kGguf{"general.sampling.temp",           "general.sampling.top_p",
                      "general.sampling.top_k",          "general.sampling.min_p",
                      "general.sampling.penalty_repeat", {}};

template <typename Fields>
Status read_number(const Fields& fields, std::string_view key, double low, double high,
                   std::optional<double>& out) {
  TANDEM_ASSIGN(out, fields.number(key));
  if (!out || (*out >= low && *out <= high)) return {};
  return fail(fields.error(ErrorCode::kCorruptData, key,
                           "is " + std::to_string(*out) + ", which is not from " +
                               std::to_string(low) + " to " + std::to_string(high)));
}

// `fields`: JsonFields or GgufFile, whose reads are alike.
template <typename Fields>
Result<SamplingDefaults> read(const Fields& fields, const Names& names) {
  SamplingDefaults out;
  TANDEM_TRY(read_number(fields, names.temperature, 0, 100, out.temperature));
  TANDEM_TRY(read_number(fields, names.top_p, 0, 1, out.top_p));
  TANDEM_TRY(read_number(fields, names.min_p, 0, 1, out.min_p));
  TANDEM_TRY(read_number(fields, names.repetition_penalty, 0.01, 100, out.repetition_penalty));
  TANDEM_ASSIGN(const auto top_k, fields.integer(names.top_k));
  if (top_k && (*top_k < -1 || *top_k > INT32_MAX)) {
    return fail(fields.error(ErrorCode::kCorruptData, names.top_k,
                             "is " + std::to_string(*top_k) + ", which is no number of tokens"));
  }
  if (top_k) out.top_k = static_cast<uint32_t>(std::max<int64_t>(*top_k, 0));  // -1: off, too
  if (!names.max_new_tokens.empty()) {
    TANDEM_ASSIGN(out.max_new_tokens, fields.u32(names.max_new_tokens, 1, INT32_MAX));
  }
  return out;
}

}  // namespace

Result<SamplingDefaults> parse_generation_config(std::string_view text, std::string_view file) {
  TANDEM_ASSIGN(const json::value root, parse_json(text, file));
  if (!root.is_object()) {
    return fail(ErrorCode::kCorruptData, std::string(file) + ": must be a JSON object");
  }
  return read(JsonFields(root.get_object(), file), kHuggingFace);
}

Result<SamplingDefaults> gguf_sampling_defaults(const GgufFile& file) { return read(file, kGguf); }

Result<SamplingDefaults> load_sampling_defaults(const Checkpoint& checkpoint) {
  if (checkpoint.gguf() != nullptr) return gguf_sampling_defaults(*checkpoint.gguf());
  const fs::path path = checkpoint.path() / "generation_config.json";
  std::error_code error;
  if (!fs::exists(path, error)) return SamplingDefaults{};
  TANDEM_ASSIGN(const std::string text, read_text_file(path, kMaxBytes));
  return parse_generation_config(text, path.string());
}

Result<SamplingDefaults> recommended_sampling(const SamplingSettings& settings,
                                              const Checkpoint& checkpoint) {
  if (!settings.from_model) return SamplingDefaults{};
  auto read = load_sampling_defaults(checkpoint);
  if (read) return read;
  return fail(ErrorCode::kConfig,
              read.error().detail + "; with router.sampling.from_model: false it is not read",
              "router.sampling.from_model");
}

}  // namespace tandem::model
