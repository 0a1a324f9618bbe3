#include "common/config/environment.h"

#include <unistd.h>

namespace tandem {

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string environment_name(std::string_view key) {
  std::string name = "TANDEM_";
  for (const char c : key) {
    if (c == '.' || c == '[') {
      name += '_';
    } else if (c != ']') {
      name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }
  }
  return name;
}

bool is_service_link(const Environment& environment, std::string_view name) {
  constexpr std::string_view kHost = "_SERVICE_HOST";
  for (const auto& [candidate, value] : environment) {
    if (!candidate.ends_with(kHost)) continue;
    const std::string_view service =
        std::string_view(candidate).substr(0, candidate.size() - kHost.size());
    if (!name.starts_with(service)) continue;
    const std::string_view rest = name.substr(service.size());
    if (rest.starts_with("_SERVICE_") || rest.starts_with("_PORT_")) return true;
    if (rest == "_PORT") {
      const auto it = environment.find(name);
      return it != environment.end() && it->second.find("://") != std::string::npos;
    }
  }
  return false;
}

}  // namespace tandem
