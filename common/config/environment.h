#pragma once

#include <map>
#include <string>
#include <string_view>

namespace tandem {

// A copy of the environment. Passed in, so that tests choose it.
using Environment = std::map<std::string, std::string, std::less<>>;

// Call before other threads start.
[[nodiscard]] Environment process_environment();

// "router.http.port" -> "TANDEM_ROUTER_HTTP_PORT", "prefill[0].name" -> "TANDEM_PREFILL_0_NAME".
[[nodiscard]] std::string environment_name(std::string_view key);

// Whether Kubernetes put this variable there for a Service whose name happens to begin with
// "tandem" (NAME_SERVICE_HOST, NAME_PORT, NAME_PORT_80_TCP_ADDR, …): those are nobody's setting.
[[nodiscard]] bool is_service_link(const Environment& environment, std::string_view name);

}  // namespace tandem
