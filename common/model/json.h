#pragma once

// Private to common/model: the only header here that includes Boost.JSON.

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem::model {

// Parses one JSON document. Refuses names that appear twice in an object (readers differ on which
// counts), nesting past 32 and trailing text; `file` names the document in errors.
[[nodiscard]] Result<boost::json::value> parse_json(std::string_view text, std::string_view file);

// Typed reads of one object's fields; every error names file and field. An absent field and null
// both give `nullopt`: writers use them alike.
class JsonFields {
 public:
  JsonFields(const boost::json::object& object, std::string_view file, std::string_view prefix = {})
      : object_(object), file_(file), prefix_(prefix) {}

  [[nodiscard]] bool present(std::string_view key) const;  // and not null
  [[nodiscard]] bool has_key(std::string_view key) const;  // null counts
  [[nodiscard]] Result<std::optional<int64_t>> integer(std::string_view key) const;
  // Within [low, high].
  [[nodiscard]] Result<std::optional<uint32_t>> u32(std::string_view key, uint32_t low,
                                                    uint32_t high) const;
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::string>> string(std::string_view key) const;
  [[nodiscard]] const boost::json::value* raw(
      std::string_view key) const;  // null if absent or null

  // "config.json: rope_parameters.factor"
  [[nodiscard]] std::string where(std::string_view key) const;
  [[nodiscard]] Error error(ErrorCode code, std::string_view key, std::string_view what) const;

 private:
  const boost::json::object& object_;
  std::string file_;
  std::string prefix_;
};

// At most `limit` characters of the value's text, for messages.
[[nodiscard]] std::string excerpt(const boost::json::value& value, size_t limit = 60);

}  // namespace tandem::model
