#include "router/api/json_reader.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <utility>

namespace tandem::router {
namespace json = boost::json;

namespace {

std::string describe_parse_error(const json::error_code& ec, size_t byte, bool empty) {
  if (empty) return "the body is empty; send a JSON object";
  std::string what = ec.message();
  if (ec == json::error::too_deep) {
    what = fmt::format("arrays and objects are nested more than {} deep", kMaxJsonDepth);
  } else if (ec == json::error::incomplete) {
    what = "the text ends too early";
  } else if (ec == json::error::illegal_leading_surrogate ||
             ec == json::error::illegal_trailing_surrogate ||
             ec == json::error::expected_utf16_escape) {
    what = "half a surrogate pair in a string";
  } else if (ec == json::error::exponent_overflow) {
    what = "a number's exponent is too large";
  }
  return fmt::format("the body is not valid JSON: {} (near byte {})", what, byte);
}

}  // namespace

Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::error_code ec;
  try {
    json::parser parser({}, options);
    size_t used = parser.write(text.data(), text.size(), ec);
    if (ec) {
      return fail(ErrorCode::kInvalidArgument,
                  describe_parse_error(ec, used, text.find_first_not_of(" \t\r\n") == text.npos));
    }
    return parser.release();
  } catch (const std::exception& e) {  // allocation, or a limit of the library
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the body could not be read as JSON: {}", e.what()));
  }
}

Result<json::object> parse_json_object(std::string_view text) {
  TANDEM_ASSIGN(json::value value, parse_json(text));
  if (!value.is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the body must be a JSON object, not {}", json_kind_name(value)));
  }
  return std::move(value.get_object());
}

std::string_view json_kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "an unknown kind of value";
}

std::optional<int64_t> json_integer(const json::value& value) {
  if (const int64_t* i = value.if_int64()) return *i;
  if (const uint64_t* u = value.if_uint64()) {
    if (*u <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return static_cast<int64_t>(*u);
    }
    return std::nullopt;
  }
  if (const double* d = value.if_double()) {
    constexpr double kExact = 9007199254740992.0;  // 2^53: beyond, a double names several integers
    if (std::abs(*d) <= kExact && std::trunc(*d) == *d) return static_cast<int64_t>(*d);
  }
  return std::nullopt;
}

ObjectReader::ObjectReader(const json::object& object, std::string path)
    : object_(object), path_(std::move(path)) {}

std::string ObjectReader::path_of(std::string_view key) const {
  if (path_.empty()) return std::string(key);
  return fmt::format("{}.{}", path_, key);
}

void ObjectReader::fault(Error error) {
  if (!error_) error_ = std::move(error);
}

void ObjectReader::fault(std::string_view key, std::string detail, ErrorCode code) {
  if (!error_) error_ = make_error(code, std::move(detail), path_of(key));
}

Status ObjectReader::status() const {
  if (error_) return fail(*error_);
  return {};
}

const json::value* ObjectReader::find(std::string_view key) const {
  const json::value* value = object_.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void ObjectReader::wrong_type(std::string_view key, std::string_view wanted,
                              const json::value& value) {
  fault(key, fmt::format("{} must be {}, not {}", path_of(key), wanted, json_kind_name(value)));
}

bool ObjectReader::read(std::string_view key, bool& out) {
  const json::value* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_bool()) return wrong_type(key, "a boolean", *value), false;
  out = value->get_bool();
  return true;
}

bool ObjectReader::read(std::string_view key, std::string& out) {
  const json::value* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_string()) return wrong_type(key, "a string", *value), false;
  out = std::string_view(value->get_string());
  return true;
}

bool ObjectReader::read_integer(std::string_view key, int64_t min, int64_t max, int64_t& out) {
  const json::value* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_number()) return wrong_type(key, "an integer", *value), false;
  const std::optional<int64_t> integer = json_integer(*value);
  const double* d = value->if_double();
  if (!integer && d != nullptr && std::trunc(*d) != *d)
    return wrong_type(key, "an integer", *value), false;
  if (!integer || *integer < min || *integer > max) {
    fault(key, fmt::format("{} must lie between {} and {}", path_of(key), min, max));
    return false;
  }
  out = *integer;
  return true;
}

bool ObjectReader::read_number(std::string_view key, double min, double max, double& out) {
  const json::value* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_number()) return wrong_type(key, "a number", *value), false;
  const double number = value->to_number<double>();
  if (!std::isfinite(number) || number < min || number > max) {
    fault(key, fmt::format("{} must lie between {} and {}", path_of(key), min, max));
    return false;
  }
  out = number;
  return true;
}

const json::array* ObjectReader::read_array(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) return wrong_type(key, "an array", *value), nullptr;
  return &value->get_array();
}

const json::object* ObjectReader::read_object(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) return wrong_type(key, "an object", *value), nullptr;
  return &value->get_object();
}

void ObjectReader::refuse(std::string_view key, std::string_view why) {
  const json::value* value = find(key);
  if (value == nullptr) return;
  if (value->is_bool() && !value->get_bool()) return;
  if (value->is_string() && value->get_string().empty()) return;
  if (value->is_array() && value->get_array().empty()) return;
  if (value->is_object() && value->get_object().empty()) return;
  fault(key, fmt::format("{} is not supported: {}", path_of(key), why), ErrorCode::kUnsupported);
}

}  // namespace tandem::router
