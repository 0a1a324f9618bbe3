#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem::router {

// Deepest nesting of arrays and objects in a body; the reader recurses, so this bounds its stack.
inline constexpr size_t kMaxJsonDepth = 64;

// Strict RFC 8259. A repeated key means its last value, everywhere. Errors are kInvalidArgument and
// say at which byte. Lone surrogates, invalid UTF-8 and deeper nesting than kMaxJsonDepth are
// errors.
[[nodiscard]] Result<boost::json::value> parse_json(std::string_view text);
// The same, and the top must be an object.
[[nodiscard]] Result<boost::json::object> parse_json_object(std::string_view text);

// "string", "integer", … for messages.
[[nodiscard]] std::string_view json_kind_name(const boost::json::value& value);

// The value as a 64-bit integer; 2.0 counts as 2, as in JSON Schema. Empty: not integral, or beyond
// int64.
[[nodiscard]] std::optional<int64_t> json_integer(const boost::json::value& value);

// Reads the fields of one object. Each read leaves `out` alone when the key is absent or null and
// returns whether there was a value of the right type and range; the first fault is kept in
// status() and names the field by its full path, so a parser reads everything and checks once.
class ObjectReader {
 public:
  // `object` must outlive the reader. `path` is empty for the body itself.
  ObjectReader(const boost::json::object& object, std::string path);

  // Null when absent or null.
  [[nodiscard]] const boost::json::value* find(std::string_view key) const;

  bool read(std::string_view key, bool& out);
  bool read(std::string_view key, std::string& out);
  bool read_integer(std::string_view key, int64_t min, int64_t max, int64_t& out);
  bool read_number(std::string_view key, double min, double max, double& out);
  // The value if it is of that kind, else null.
  const boost::json::array* read_array(std::string_view key);
  const boost::json::object* read_object(std::string_view key);

  // Faults with kUnsupported if the key holds anything but null, false, "" or an empty array or
  // object.
  void refuse(std::string_view key, std::string_view why);

  void fault(Error error);
  void fault(std::string_view key, std::string detail,
             ErrorCode code = ErrorCode::kInvalidArgument);
  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  [[nodiscard]] Status status() const;
  // "messages[2].content"
  [[nodiscard]] std::string path_of(std::string_view key) const;

 private:
  void wrong_type(std::string_view key, std::string_view wanted, const boost::json::value& value);

  const boost::json::object& object_;
  std::string path_;
  std::optional<Error> error_;
};

}  // namespace tandem::router
