#pragma once

#include <cstdlib>
#include <string>

namespace tandem {

// A file below tests/data: where the environment says (binaries that travelled to another machine,
// see tests/gpu/run.sh), else in the source tree they were built from.
inline std::string test_data(const std::string& below) {
  const char* moved = std::getenv("TANDEM_TEST_DATA");
  return (moved != nullptr ? moved : TANDEM_TEST_DATA) + ("/" + below);
}

}  // namespace tandem
