#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>

namespace tandem::rundir {

// Members of files and answers that another process wrote: what is missing or of another type
// reads as empty.
inline std::string text_of(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

inline int64_t number_of(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? value->get_int64() : 0;
}

inline bool flag_of(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_bool() && value->get_bool();
}

}  // namespace tandem::rundir
