#include "router/api/parse_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <limits>
#include <utility>

#include "common/base/json_text.h"

namespace tandem::router {
namespace json = boost::json;

namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxLogitBias = 4096;
constexpr size_t kMaxStopTokens = 256;
// Below this, exp(gap / temperature) has decided for the best token in float32 for any gap that
// matters.
constexpr double kGreedyBelow = 1e-3;

void read_stop(ObjectReader& reader, const ApiLimits& limits, GenerationFields& out) {
  const json::value* value = reader.find("stop");
  if (value == nullptr) return;
  auto add = [&](const json::string& text, const std::string& key) {
    if (text.size() > kMaxStopBytes) {
      reader.fault(key, fmt::format("{} is longer than {} bytes", key, kMaxStopBytes));
    } else if (!text.empty()) {  // an empty string would match at once: it means no stop
      out.stop.emplace_back(std::string_view(text));
    }
  };
  if (value->is_string()) return add(value->get_string(), "stop");
  if (!value->is_array()) {
    reader.fault("stop", fmt::format("stop must be a string or an array of strings, not {}",
                                     json_kind_name(*value)));
    return;
  }
  const json::array& list = value->get_array();
  if (list.size() > limits.max_stop) {
    reader.fault("stop", fmt::format("stop holds {} strings; at most {} are allowed", list.size(),
                                     limits.max_stop));
    return;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string key = fmt::format("stop[{}]", i);
    if (!list[i].is_string()) {
      reader.fault(key, fmt::format("{} must be a string, not {}", key, json_kind_name(list[i])));
      return;
    }
    add(list[i].get_string(), key);
  }
}

void read_logit_bias(ObjectReader& reader, const ApiLimits& limits, SamplingFields& out) {
  const json::object* map = reader.read_object("logit_bias");
  if (map == nullptr) return;
  if (map->size() > kMaxLogitBias) {
    return reader.fault("logit_bias",
                        fmt::format("logit_bias holds {} entries; at most {} are allowed",
                                    map->size(), kMaxLogitBias));
  }
  for (const json::key_value_pair& entry : *map) {
    const std::string_view key = entry.key();
    int64_t id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0 || id >= limits.vocab) {
      return reader.fault(
          "logit_bias",
          fmt::format("logit_bias names the token \"{}\"; keys are token ids from 0 to {}",
                      key.substr(0, 40), limits.vocab - 1));
    }
    if (!entry.value().is_number()) {
      return reader.fault("logit_bias", fmt::format("logit_bias[{}] must be a number, not {}", id,
                                                    json_kind_name(entry.value())));
    }
    const double bias = entry.value().to_number<double>();
    if (!(bias >= -100 && bias <= 100)) {
      return reader.fault("logit_bias",
                          fmt::format("logit_bias[{}] must lie between -100 and 100", id));
    }
    out.logit_bias.emplace_back(static_cast<TokenId>(id), static_cast<float>(bias));
  }
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
}

void read_seed(ObjectReader& reader, SamplingFields& out) {
  int64_t seed = 0;
  if (reader.read_integer("seed", std::numeric_limits<int64_t>::min(),
                          std::numeric_limits<int64_t>::max(), seed)) {
    out.seed = seed;
  }
}

void apply_defaults(const SamplingDefaults& defaults, uint32_t vocab, SamplingFields& out) {
  out.temperature = defaults.temperature.value_or(out.temperature);
  out.top_p = defaults.top_p.value_or(out.top_p);
  if (defaults.top_k) out.top_k = static_cast<int32_t>(std::min(*defaults.top_k, vocab));
  out.min_p = defaults.min_p.value_or(out.min_p);
  out.repetition_penalty = defaults.repetition_penalty.value_or(out.repetition_penalty);
}

void read_sampling(ObjectReader& reader, const ApiLimits& limits, SamplingFields& out) {
  apply_defaults(limits.sampling, limits.vocab, out);
  reader.read_number("temperature", 0, kMaxTemperature, out.temperature);
  reader.read_number("top_p", 0, 1, out.top_p);
  int64_t top_k = 0;
  if (reader.read_integer("top_k", -1, kInt32Max, top_k)) {
    out.top_k = static_cast<int32_t>(std::clamp<int64_t>(top_k, 0, limits.vocab));
  }
  reader.read_number("min_p", 0, 1, out.min_p);
  reader.read_number("repetition_penalty", 0.01, 100, out.repetition_penalty);
  reader.read_number("presence_penalty", -2, 2, out.presence_penalty);
  reader.read_number("frequency_penalty", -2, 2, out.frequency_penalty);
  read_logit_bias(reader, limits, out);
  read_seed(reader, out);
  if (out.temperature < kGreedyBelow) out.temperature = 0;
  if (out.top_p <
      1e-6) {  // the smallest set that reaches a mass of nothing is the best token alone
    out.top_p = 1;
    out.top_k = 1;
  }
}

void read_stream(ObjectReader& reader, GenerationFields& out) {
  reader.read("stream", out.stream);
  const json::object* options = reader.read_object("stream_options");
  if (options == nullptr) return;
  ObjectReader inner(*options, "stream_options");
  inner.read("include_usage", out.include_usage);
  inner.refuse("continuous_usage_stats", "usage is sent once, in the last chunk");
  if (Status status = inner.status(); !status) return reader.fault(status.error());
  if (!out.stream && out.include_usage) {
    reader.fault("stream_options", "stream_options needs \"stream\": true");
  }
}

// What neither this server nor a plain reading of the request can honour: refused by name, so that
// nobody takes an unconstrained answer for a constrained one.
void refuse_unsupported(ObjectReader& reader) {
  constexpr std::string_view kGuided = "constrained decoding is not implemented";
  for (std::string_view key :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
        "guided_decoding_backend", "regex", "ebnf", "grammar", "structural_tag", "json_schema"}) {
    reader.refuse(key, kGuided);
  }
  reader.refuse("use_beam_search", "beam search is not implemented");
  reader.refuse("logits_processors", "custom logits processors are not implemented");
  reader.refuse("truncate_prompt_tokens", "prompts are never shortened; send a shorter one");
  for (std::string_view key : {"lora", "lora_path", "lora_request"})
    reader.refuse(key, "adapters are not implemented");
  reader.refuse("n_predict", "use max_tokens");
  reader.refuse("repeat_penalty", "use repetition_penalty");
  reader.refuse("bad_words", "use logit_bias");
  reader.refuse("allowed_token_ids", "use logit_bias");
  reader.refuse("prompt_logprobs", "use /v1/completions with echo and logprobs");
  reader.refuse("cache_salt", "what is cached of a prompt serves every request that begins alike");
  reader.refuse("return_token_ids", "use /tokenize");
  reader.refuse("return_tokens_as_token_ids", "use /tokenize");
  reader.refuse("kv_transfer_params", "the router itself chooses who computes the prompt");
  if (const json::value* best_of = reader.find("best_of")) {
    const json::value* n = reader.find("n");
    const std::optional<int64_t> want = json_integer(*best_of);
    const std::optional<int64_t> have = n == nullptr ? 1 : json_integer(*n);
    if (!want || want != have) {
      reader.fault("best_of",
                   "best_of is not supported unless it equals n: every choice is returned",
                   ErrorCode::kUnsupported);
    }
  }
  if (const json::object* format = reader.read_object("response_format")) {
    ObjectReader inner(*format, "response_format");
    std::string type;
    if (!inner.read("type", type)) inner.fault("type", "response_format.type is missing");
    if (inner.ok() && type != "text") {
      inner.fault("type",
                  fmt::format("response_format \"{}\" is not supported: {}; only \"text\" is",
                              type.substr(0, 40), kGuided),
                  ErrorCode::kUnsupported);
    }
    if (Status status = inner.status(); !status) reader.fault(status.error());
  }
}

}  // namespace

void read_max_tokens(ObjectReader& reader, std::string_view key, uint32_t min,
                     const ApiLimits& limits, GenerationFields& out) {
  int64_t tokens = 0;
  if (!reader.read_integer(key, min, kInt32Max, tokens)) return;
  if (limits.max_tokens != 0 && tokens > limits.max_tokens) {
    return reader.fault(key, fmt::format("{} is {}; this server allows at most {}", key, tokens,
                                         limits.max_tokens));
  }
  if (tokens > limits.context) {
    return reader.fault(
        key, fmt::format("{} is {}; the model's maximum context length is {} tokens", key, tokens,
                         limits.context));
  }
  out.max_tokens = static_cast<uint32_t>(tokens);
}

void read_generation_fields(ObjectReader& reader, const ApiLimits& limits, GenerationFields& out) {
  if (!reader.read("model", out.model) || out.model.empty()) {
    reader.fault("model", "model is missing: name one of the models that /v1/models lists");
  }
  read_stream(reader, out);
  int64_t n = 1;
  if (reader.read_integer("n", 1, limits.max_n, n)) out.n = static_cast<uint32_t>(n);
  int64_t min_tokens = 0;
  if (reader.read_integer("min_tokens", 0, kInt32Max, min_tokens)) {
    out.min_tokens = static_cast<uint32_t>(min_tokens);
  }
  read_stop(reader, limits, out);
  if (const json::array* ids = reader.read_array("stop_token_ids")) {
    if (ids->size() > kMaxStopTokens) {
      reader.fault("stop_token_ids",
                   fmt::format("stop_token_ids holds more than {} ids", kMaxStopTokens));
    } else if (auto read = read_token_ids(*ids, "stop_token_ids", limits)) {
      out.stop_token_ids = std::move(*read);
    } else {
      reader.fault(read.error());
    }
  }
  reader.read("include_stop_str_in_output", out.include_stop_in_output);
  reader.read("ignore_eos", out.ignore_eos);
  reader.read("skip_special_tokens", out.skip_special_tokens);
  read_sampling(reader, limits, out.sampling);
  refuse_unsupported(reader);
}

Result<std::vector<TokenId>> read_token_ids(const json::array& array, const std::string& path,
                                            const ApiLimits& limits) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    const std::optional<int64_t> id =
        array[i].is_number() ? json_integer(array[i]) : std::optional<int64_t>();
    if (!id || *id < 0 || *id >= limits.vocab) {
      const std::string field = fmt::format("{}[{}]", path, i);
      return fail(
          ErrorCode::kInvalidArgument,
          array[i].is_number()
              ? fmt::format("{} is {}; token ids are integers from 0 to {}", field,
                            json::serialize(array[i]), limits.vocab - 1)
              : fmt::format("{} must be a token id, not {}", field, json_kind_name(array[i])),
          field);
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

Result<uint32_t> resolve_max_tokens(const GenerationFields& fields, size_t prompt_tokens,
                                    const ApiLimits& limits, std::string_view prompt_field,
                                    uint32_t fallback) {
  const bool scoring = fields.max_tokens == 0U;
  if (prompt_tokens > limits.context || (!scoring && prompt_tokens == limits.context)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("This model's maximum context length is {} tokens; {} holds {} tokens{}. "
                    "Send a shorter prompt",
                    limits.context, prompt_field, prompt_tokens,
                    prompt_tokens == limits.context ? ", which leaves none to generate" : ""),
        std::string(prompt_field));
  }
  const auto left = static_cast<uint32_t>(limits.context - prompt_tokens);
  uint32_t wanted = 0;
  if (fields.max_tokens) {
    wanted = *fields.max_tokens;
    if (wanted > left) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("This model's maximum context length is {} tokens; {} holds {} and "
                              "max_tokens asks for {} more. Ask for at most {}",
                              limits.context, prompt_field, prompt_tokens, wanted, left),
                  "max_tokens");
    }
  } else {
    wanted = limits.default_max_tokens != 0 ? limits.default_max_tokens : fallback;
    if (wanted == 0) wanted = limits.max_tokens == 0 ? left : limits.max_tokens;
    wanted = std::min(wanted, left);
    if (limits.max_tokens != 0) wanted = std::min(wanted, limits.max_tokens);
  }
  if (fields.min_tokens > wanted) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("min_tokens is {}, but at most {} tokens can be generated",
                            fields.min_tokens, wanted),
                "min_tokens");
  }
  return wanted;
}

std::string sampling_defaults_json(const SamplingDefaults& defaults) {
  std::string out = "{";
  const auto add = [&out](std::string_view name, std::optional<double> value) {
    if (!value) return;
    if (out.size() > 1) out += ',';
    append_json_string(out, name);
    out += ':';
    append_json_number(out, *value);
  };
  add("temperature", defaults.temperature);
  add("top_p", defaults.top_p);
  add("top_k", defaults.top_k);
  add("min_p", defaults.min_p);
  add("repetition_penalty", defaults.repetition_penalty);
  if (defaults.chat_max_tokens != 0) add("max_tokens", defaults.chat_max_tokens);
  return out + '}';
}

SamplingDefaults chat_sampling(const SamplingDefaults& defaults) {
  if (defaults.temperature) return {};
  SamplingDefaults out{.temperature = 0.7};
  if (!defaults.top_p) out.top_p = 0.9;
  return out;
}

std::string sampling_members_json(const SamplingDefaults& defaults) {
  return "\"default_sampling_params\":" + sampling_defaults_json(defaults) +
         ",\"chat_sampling_params\":" + sampling_defaults_json(chat_sampling(defaults));
}

uint64_t choice_seed(int64_t seed, uint32_t choice) {
  const auto base = static_cast<uint64_t>(seed);
  if (choice == 0) return base;
  // SplitMix64's finaliser (Steele, Lea, Flood 2014): neighbouring inputs give unrelated outputs.
  uint64_t z = base + 0x9e3779b97f4a7c15ULL * choice;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace tandem::router
