#include "common/config/cache_folder.h"

namespace tandem {

std::string cache_folder(const Environment& environment) {
  const auto absolute = [&](const char* name) -> std::string {
    const auto it = environment.find(name);
    return it != environment.end() && it->second.starts_with('/') ? it->second : std::string();
  };
  if (const std::string cache = absolute("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/tandem";
  if (const std::string home = absolute("HOME"); !home.empty()) return home + "/.cache/tandem";
  return {};
}

}  // namespace tandem
