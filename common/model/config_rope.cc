#include "common/model/config_rope.h"

#include <cmath>

#include "common/base/check.h"

namespace tandem::model {
namespace {

namespace json = boost::json;

Result<RopeType> rope_type(const JsonFields& rope) {
  std::string_view key = "rope_type";
  TANDEM_ASSIGN(auto name, rope.string("rope_type"));
  if (!name) {
    key = "type";
    TANDEM_ASSIGN(name, rope.string("type"));
  }
  if (!name || *name == "default") return RopeType::kDefault;
  for (const RopeType t :
       {RopeType::kLinear, RopeType::kDynamic, RopeType::kLlama3, RopeType::kYarn})
    if (*name == to_string(t)) return t;
  return fail(rope.error(ErrorCode::kUnsupported, key,
                         "\"" + *name +
                             "\" is a rope kind that is not implemented; known are default, "
                             "linear, dynamic, llama3 and yarn"));
}

Status require(const JsonFields& rope, std::string_view key, std::string_view type, double& out) {
  TANDEM_ASSIGN(const auto v, rope.number(key));
  if (!v)
    return fail(rope.error(ErrorCode::kCorruptData, key,
                           "is missing; rope type " + std::string(type) + " needs it"));
  out = *v;
  return {};
}

// The reference treats 0 as absent ("or 32").
Status optional_positive(const JsonFields& rope, std::string_view key, double& out) {
  TANDEM_ASSIGN(const auto v, rope.number(key));
  if (v && *v != 0) out = *v;
  return {};
}

Status read_original_length(const json::object& root, const JsonFields& rope, std::string_view file,
                            ModelConfig& config) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  constexpr uint32_t kMost = 1u << 30;
  TANDEM_ASSIGN(auto length, JsonFields(root, file).u32(kKey, 1, kMost));
  if (!length) {
    TANDEM_ASSIGN(length, rope.u32(kKey, 1, kMost));
  }
  config.rope.original_max_positions = length.value_or(config.max_positions);
  return {};
}

Status read_yarn(const JsonFields& rope, ModelConfig& config) {
  RopeConfig& out = config.rope;
  if (!rope.has_key("factor"))
    return fail(
        rope.error(ErrorCode::kCorruptData, "factor", "is missing; rope type yarn needs it"));
  TANDEM_ASSIGN(const auto factor, rope.number("factor"));
  out.factor = factor.value_or(static_cast<double>(config.max_positions) /
                               static_cast<double>(out.original_max_positions));
  TANDEM_TRY(optional_positive(rope, "beta_fast", out.beta_fast));
  TANDEM_TRY(optional_positive(rope, "beta_slow", out.beta_slow));
  TANDEM_ASSIGN(out.attention_factor, rope.number("attention_factor"));
  TANDEM_ASSIGN(out.mscale, rope.number("mscale"));
  TANDEM_ASSIGN(out.mscale_all_dim, rope.number("mscale_all_dim"));
  TANDEM_ASSIGN(const auto truncate, rope.boolean("truncate"));
  out.truncate = truncate.value_or(true);
  return {};
}

Status read_scaling(const json::object& root, const JsonFields& rope, std::string_view file,
                    ModelConfig& config) {
  RopeConfig& out = config.rope;
  switch (out.type) {
    case RopeType::kDefault:
      return {};
    case RopeType::kLinear:
      return require(rope, "factor", "linear", out.factor);
    case RopeType::kDynamic:
      out.original_max_positions = config.max_positions;
      return require(rope, "factor", "dynamic", out.factor);
    case RopeType::kLlama3:
      TANDEM_TRY(read_original_length(root, rope, file, config));
      TANDEM_TRY(require(rope, "factor", "llama3", out.factor));
      TANDEM_TRY(require(rope, "low_freq_factor", "llama3", out.low_freq_factor));
      return require(rope, "high_freq_factor", "llama3", out.high_freq_factor);
    case RopeType::kYarn:
      TANDEM_TRY(read_original_length(root, rope, file, config));
      return read_yarn(rope, config);
  }
  return {};
}

// A fraction of the head that is rotated: none of the architectures here has one in the reference.
Status refuse_partial(const JsonFields& fields) {
  TANDEM_ASSIGN(const auto fraction, fields.number("partial_rotary_factor"));
  if (fraction && *fraction != 1)
    return fail(
        fields.error(ErrorCode::kUnsupported, "partial_rotary_factor",
                     "is " + std::to_string(*fraction) +
                         "; rotating part of a head is not implemented for this architecture"));
  return {};
}

}  // namespace

std::string_view to_string(RopeType t) {
  switch (t) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kDynamic:
      return "dynamic";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
  }
  TANDEM_CHECK(false, "rope type outside its enumeration");
  return {};
}

Status parse_rope(const json::object& root, std::string_view file, ModelConfig& config) {
  const JsonFields top(root, file);
  TANDEM_TRY(refuse_partial(top));
  TANDEM_ASSIGN(const auto outer_theta, top.number("rope_theta"));
  config.rope.theta = outer_theta.value_or(10000.0);

  // An empty object counts as absent, as in the reference.
  std::string_view key;
  const json::object* object = nullptr;
  for (const std::string_view candidate : {"rope_scaling", "rope_parameters"}) {
    const json::value* v = top.raw(candidate);
    if (v == nullptr || object != nullptr) continue;
    if (!v->is_object())
      return fail(top.error(ErrorCode::kCorruptData, candidate,
                            "must be an object or null, is " + excerpt(*v)));
    if (v->get_object().empty()) continue;
    object = &v->get_object();
    key = candidate;
  }
  if (object == nullptr) return validate_rope(config.rope, top.where("rope_theta"));

  const JsonFields rope(*object, file, key);
  for (const std::string_view nested : {"full_attention", "sliding_attention"})
    if (rope.has_key(nested))
      return fail(rope.error(ErrorCode::kUnsupported, nested,
                             "gives a rope per kind of layer, which is not implemented"));
  TANDEM_TRY(refuse_partial(rope));
  TANDEM_ASSIGN(config.rope.type, rope_type(rope));
  TANDEM_ASSIGN(const auto theta, rope.number("rope_theta"));
  if (theta) config.rope.theta = *theta;
  TANDEM_TRY(read_scaling(root, rope, file, config));
  return validate_rope(config.rope, top.where(key));
}

Status validate_rope(const RopeConfig& rope, std::string_view where) {
  const auto bad = [&](std::string_view what) {
    return fail(ErrorCode::kCorruptData, std::string(where) + ": " + std::string(what));
  };
  if (!(rope.theta > 1) || !std::isfinite(rope.theta)) return bad("rope_theta must be above 1");
  if (rope.type == RopeType::kDefault) return {};
  // Far beyond any use, and close enough to 1 for float32.
  constexpr double kMost = 1e6;
  const auto within = [&](double v) { return std::abs(v) <= kMost; };
  if (!(rope.factor >= 1 / kMost) || !within(rope.factor))
    return bad("factor must be between 1e-6 and 1e6");
  if (rope.type == RopeType::kLlama3 &&
      (!(rope.low_freq_factor > 0) || !(rope.high_freq_factor > rope.low_freq_factor)))
    return bad("high_freq_factor must be above low_freq_factor, and that above 0");
  if (rope.type == RopeType::kYarn) {
    if (!(rope.beta_slow > 0 && within(rope.beta_slow)) ||
        !(rope.beta_fast > 0 && within(rope.beta_fast)))
      return bad("beta_fast and beta_slow must be above 0, and at most 1e6");
    if (rope.attention_factor && !(*rope.attention_factor > 0 && within(*rope.attention_factor)))
      return bad("attention_factor must be above 0, and at most 1e6");
    if (!within(rope.mscale.value_or(0)) || !within(rope.mscale_all_dim.value_or(0)))
      return bad("mscale and mscale_all_dim must be at most 1e6");
  }
  return {};
}

}  // namespace tandem::model
