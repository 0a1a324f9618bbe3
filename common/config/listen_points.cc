#include "common/config/listen_points.h"

#include "common/config/environment.h"

namespace tandem {
namespace {

std::string section_of(const char* role, size_t index) {
  return std::string(role) + "[" + std::to_string(index) + "].metrics";
}

}  // namespace

std::vector<ListenPoint> listen_points(const ClusterConfig& config) {
  std::vector<ListenPoint> points;
  if (config.router.enabled) {
    points.push_back({"router.http", config.router.http.host, config.router.http.port});
    points.push_back({"router.control", config.router.control.host, config.router.control.port});
  }
  const auto add = [&](const char* role, size_t index, const NodeSettings& node) {
    points.push_back({section_of(role, index), node.metrics.host, node.metrics.port});
  };
  for (size_t i = 0; i < config.prefill.size(); ++i) add("prefill", i, config.prefill[i]);
  for (size_t i = 0; i < config.decode.size(); ++i) add("decode", i, config.decode[i]);
  return points;
}

std::string metrics_section(const ClusterConfig& config, const NodeSettings& node) {
  for (size_t i = 0; i < config.prefill.size(); ++i) {
    if (config.prefill[i].name == node.name) return section_of("prefill", i);
  }
  for (size_t i = 0; i < config.decode.size(); ++i) {
    if (config.decode[i].name == node.name) return section_of("decode", i);
  }
  return "metrics";
}

Error in_section(Error error, std::string_view section) {
  if (error.param != "host" && error.param != "port") return error;
  error.param = std::string(section) + "." + error.param;
  error.detail += "; set by " + error.param + " or " + environment_name(error.param);
  return error;
}

bool collide(const ListenPoint& a, const ListenPoint& b) {
  const auto everywhere = [](const ListenPoint& p) {
    return p.host == "0.0.0.0" || p.host == "::";
  };
  return a.port != 0 && a.port == b.port && (a.host == b.host || everywhere(a) || everywhere(b));
}

}  // namespace tandem
