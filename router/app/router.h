#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/config/cluster_config.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"

namespace tandem {
class HttpServer;
class IoThread;
}  // namespace tandem

namespace tandem::router {

class ApiServer;
class ClusterLink;
class RouterMetrics;
class StatusBoard;

// A whole router: the model's metadata, the cluster's loop and the HTTP server. start() once, then
// stop(); both from one thread. `config` and `clock` outlive it.
class Router {
 public:
  Router(const ClusterConfig& config, const Clock& clock, Logger log);
  ~Router();

  // Listens when it returns, and has published its endpoints in `run_dir` unless that is empty.
  // Errors kConfig for what an operator has to change.
  [[nodiscard]] Status start(const std::string& run_dir);
  // Takes no new requests and lets open answers go on for at most `patience`, and no longer than
  // until `hurry` holds; what is left ends with an error that its client sees. Idempotent.
  void stop(Duration patience, const std::function<bool()>& hurry = {});

  [[nodiscard]] uint16_t http_port() const;
  [[nodiscard]] uint16_t control_port() const;

 private:
  [[nodiscard]] Status publish(const std::string& run_dir, const std::string& model) const;

  const ClusterConfig& config_;
  const Clock& clock_;
  const Logger log_;
  // In the order of making; destroyed backwards.
  MetricsRegistry registry_;
  std::unique_ptr<RouterMetrics> metrics_;
  std::unique_ptr<StatusBoard> board_;
  std::unique_ptr<IoThread> cluster_loop_;  // on a small machine HTTP runs on it, too
  std::unique_ptr<ClusterLink> cluster_;
  std::unique_ptr<ApiServer> api_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace tandem::router
