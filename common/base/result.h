#pragma once

#include <tl/expected.hpp>

#include "common/base/error.h"

namespace tandem {

// Every fallible function returns one of these; exceptions stay inside start-up code and foreign
// libraries and are turned into a Result at the module's edge.
template <typename T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

// return fail(ErrorCode::kCorruptData, "…");
[[nodiscard]] inline tl::unexpected<Error> fail(
    ErrorCode code, std::string detail, std::string param = {},
    std::source_location location = std::source_location::current()) {
  return tl::unexpected<Error>(make_error(code, std::move(detail), std::move(param), location));
}

[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace tandem

// Propagates an error to the caller; the expression must yield a Status or Result.
#define TANDEM_TRY(expression)                                                             \
  do {                                                                                     \
    auto tandem_try_result_ = (expression);                                                \
    if (!tandem_try_result_) return ::tandem::fail(std::move(tandem_try_result_).error()); \
  } while (false)

#define TANDEM_CONCAT_INNER_(a, b) a##b
#define TANDEM_CONCAT_(a, b) TANDEM_CONCAT_INNER_(a, b)

// TANDEM_ASSIGN(auto config, load_config(path)); declares or assigns, or propagates the error.
#define TANDEM_ASSIGN(target, expression)                                               \
  auto TANDEM_CONCAT_(tandem_result_, __LINE__) = (expression);                         \
  if (!TANDEM_CONCAT_(tandem_result_, __LINE__))                                        \
    return ::tandem::fail(std::move(TANDEM_CONCAT_(tandem_result_, __LINE__)).error()); \
  target = std::move(*TANDEM_CONCAT_(tandem_result_, __LINE__))
