#pragma once

#include <string>
#include <string_view>

#include "common/base/json_text.h"

namespace tandem::cli {

// Builds one JSON object, members in the order of the calls. Names are literals that need no
// escaping.
class JsonObject {
 public:
  void text(std::string_view name, std::string_view value) {
    append_json_string(member(name), value);
  }
  void number(std::string_view name, double value) { append_json_number(member(name), value); }
  void integer(std::string_view name, uint64_t value) { member(name) += std::to_string(value); }
  void null(std::string_view name) { member(name) += "null"; }
  void object(std::string_view name, const JsonObject& value) { member(name) += value.str(); }
  template <typename Numbers>
  void numbers(std::string_view name, const Numbers& values) {
    std::string& out = member(name);
    out += '[';
    bool first = true;
    for (const auto value : values) {
      if (!first) out += ", ";
      first = false;
      out += std::to_string(value);
    }
    out += ']';
  }
  [[nodiscard]] std::string str() const { return "{" + members_ + "}"; }

 private:
  std::string& member(std::string_view name) {
    if (!members_.empty()) members_ += ", ";
    members_ += '"';
    members_ += name;
    members_ += "\": ";
    return members_;
  }
  std::string members_;
};

}  // namespace tandem::cli
