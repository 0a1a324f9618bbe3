#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "common/base/result.h"

// Owners (UniqueHandle) and errors of UCP, for the sources of this folder that call it.
namespace tandem::transport {

struct UcpConfigTraits {
  using Handle = ucp_config_t*;
  static Handle invalid() { return nullptr; }
  static void close(Handle h) noexcept { ucp_config_release(h); }
};
struct UcpContextTraits {
  using Handle = ucp_context_h;
  static Handle invalid() { return nullptr; }
  static void close(Handle h) noexcept { ucp_cleanup(h); }
};
struct UcpWorkerTraits {
  using Handle = ucp_worker_h;
  static Handle invalid() { return nullptr; }
  static void close(Handle h) noexcept { ucp_worker_destroy(h); }
};

[[nodiscard]] inline Error ucx_error(const std::string& what, ucs_status_t status) {
  return make_error(ErrorCode::kTransport, "UCX: " + what + ": " + ucs_status_string(status));
}

}  // namespace tandem::transport
