#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tandem {

void check_failed(const char* expression, std::string_view message, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s: %.*s\n", file, line, expression,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace tandem
