// Prints docs/configuration.md. Part of the build, not installed.
#include <cstdio>

#include "common/config/config.h"

int main() {
  const std::string docs = tandem::generate_config_docs();
  return std::fwrite(docs.data(), 1, docs.size(), stdout) == docs.size() ? 0 : 1;
}
