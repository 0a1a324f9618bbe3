#include "common/config/config.h"
#include "common/net/tls.h"
#include "common/obs/log.h"
#include "common/preflight/rules.h"

namespace tandem::preflight {
namespace {

void add(const Error& error, std::string_view fallback, Findings& out) {
  out.push_back(finding_of(error.param.empty() ? std::string(fallback) : error.param, error));
}

}  // namespace

void check_files(const ClusterConfig& config, Findings& out) {
  if (const Status log = LogSink::check(config.log.file); !log) add(log.error(), "log.file", out);
  if (const auto key = load_shared_key(config.router.control); !key)
    add(key.error(), "router.control.shared_key_file", out);
  if (!config.router.enabled) return;
  if (const auto keys = load_api_keys(config.router.http); !keys)
    add(keys.error(), "router.http.api_keys_file", out);
  if (const Status tls = check_tls(config.router.http.tls); !tls)
    add(tls.error(), "router.http.tls.certificate", out);
}

}  // namespace tandem::preflight
