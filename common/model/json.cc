#include "common/model/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <set>
#include <vector>

#include "common/model/bounded.h"

namespace tandem::model {
namespace {

namespace json = boost::json;

// Watches a parse for repeated names; keeps one set of names for every open object.
struct DuplicateHandler {
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);

  std::vector<std::set<std::string, std::less<>>> open;
  std::string partial;
  std::string duplicate;
  bool found = false;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, json::error_code&) {
    open.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(std::size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view s, std::size_t, json::error_code&) {
    partial.append(s.data(), s.size());
    return true;
  }
  bool on_key(json::string_view s, std::size_t, json::error_code& ec) {
    partial.append(s.data(), s.size());
    const bool fresh = open.back().insert(partial).second;
    if (!fresh) {
      found = true;  // the repeated name may be empty
      duplicate = partial;
      ec = json::error::syntax;
    }
    partial.clear();
    return fresh;
  }
  bool on_string_part(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

std::string at(std::string_view text, size_t offset) {
  size_t line = 1;
  for (size_t i = 0; i < offset && i < text.size(); ++i) line += text[i] == '\n' ? 1 : 0;
  return " (line " + std::to_string(line) + ", byte " + std::to_string(offset) + ")";
}

}  // namespace

Result<json::value> parse_json(std::string_view text, std::string_view file) {
  try {
    json::basic_parser<DuplicateHandler> scan{json::parse_options{}};
    json::error_code ec;
    const size_t used = scan.write_some(false, text.data(), text.size(), ec);
    if (scan.handler().found)
      return fail(ErrorCode::kCorruptData, std::string(file) + ": the name \"" +
                                               scan.handler().duplicate +
                                               "\" appears twice in one object" + at(text, used));
    if (!ec) {
      size_t rest = used;
      while (rest < text.size() &&
             std::string_view(" \t\r\n").find(text[rest]) != std::string_view::npos)
        ++rest;
      if (rest < text.size()) ec = json::error::extra_data;
    }
    if (ec)
      return fail(ErrorCode::kCorruptData,
                  std::string(file) + ": is not valid JSON: " + ec.message() + at(text, used));
    return json::parse(json::string_view(text.data(), text.size()));
  } catch (const std::exception& e) {
    return fail(ErrorCode::kCorruptData,
                std::string(file) + ": cannot be read as JSON: " + e.what());
  }
}

std::string excerpt(const json::value& value, size_t limit) {
  std::string text = json::serialize(value);
  if (text.size() > limit) text = text.substr(0, limit) + "…";
  return text;
}

bool JsonFields::has_key(std::string_view key) const {
  return object_.contains({key.data(), key.size()});
}

const json::value* JsonFields::raw(std::string_view key) const {
  const json::value* v = object_.if_contains({key.data(), key.size()});
  return v == nullptr || v->is_null() ? nullptr : v;
}

bool JsonFields::present(std::string_view key) const { return raw(key) != nullptr; }

std::string JsonFields::where(std::string_view key) const {
  std::string text = file_ + ": " + prefix_;
  if (!prefix_.empty()) text += '.';
  text += key;
  return text;
}

Error JsonFields::error(ErrorCode code, std::string_view key, std::string_view what) const {
  return make_error(code, where(key) + " " + std::string(what), std::string(key));
}

Result<std::optional<int64_t>> JsonFields::integer(std::string_view key) const {
  const json::value* v = raw(key);
  if (v == nullptr) return std::nullopt;
  if (v->is_int64()) return v->get_int64();
  // Some writers print whole numbers as 8.0.
  if (v->is_double() && std::abs(v->get_double()) < 0x1p53 &&
      std::floor(v->get_double()) == v->get_double())
    return static_cast<int64_t>(v->get_double());
  return fail(error(ErrorCode::kCorruptData, key, "must be a whole number, is " + excerpt(*v)));
}

Result<std::optional<uint32_t>> JsonFields::u32(std::string_view key, uint32_t low,
                                                uint32_t high) const {
  return bounded_u32(*this, key, low, high);
}

Result<std::optional<double>> JsonFields::number(std::string_view key) const {
  const json::value* v = raw(key);
  if (v == nullptr) return std::nullopt;
  if (v->is_double()) return v->get_double();
  if (v->is_int64()) return static_cast<double>(v->get_int64());
  if (v->is_uint64()) return static_cast<double>(v->get_uint64());
  return fail(error(ErrorCode::kCorruptData, key, "must be a number, is " + excerpt(*v)));
}

Result<std::optional<bool>> JsonFields::boolean(std::string_view key) const {
  const json::value* v = raw(key);
  if (v == nullptr) return std::nullopt;
  if (v->is_bool()) return v->get_bool();
  return fail(error(ErrorCode::kCorruptData, key, "must be true or false, is " + excerpt(*v)));
}

Result<std::optional<std::string>> JsonFields::string(std::string_view key) const {
  const json::value* v = raw(key);
  if (v == nullptr) return std::nullopt;
  if (v->is_string()) return std::string(v->get_string());
  return fail(error(ErrorCode::kCorruptData, key, "must be a string, is " + excerpt(*v)));
}

}  // namespace tandem::model
