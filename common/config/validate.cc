#include "common/config/validate.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "common/config/units.h"

namespace tandem {
namespace {

bool is_name(std::string_view text) {
  constexpr size_t kLongestName = 63;
  if (text.empty() || text.size() > kLongestName) return false;
  for (const char c : text) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.';
    if (!good) return false;
  }
  return true;
}

template <typename Nodes>
void fill_names(Nodes& nodes, std::string_view role, std::set<std::string>& taken) {
  size_t number = 0;
  for (auto& node : nodes) {
    if (!node.name.empty()) continue;
    std::string name;
    do {
      name = std::string(role) + "-" + std::to_string(number++);
    } while (taken.contains(name));
    node.name = name;
    taken.insert(name);
  }
}

void validate_http(const HttpSettings& http, const ProblemSink& report) {
  if (http.tls.certificate.empty() != http.tls.key.empty()) {
    report(http.tls.certificate.empty() ? "router.http.tls.key" : "router.http.tls.certificate",
           "needs both a certificate and a key; give the other one or remove this one");
  }
  for (const auto& key : http.api_keys) {
    if (key.find(' ') != std::string::npos) {
      report("router.http.api_keys", "a key must not contain spaces");
      break;
    }
  }
  for (const auto& origin : http.cors_origins) {
    const bool good = origin == "*" || origin == "null" ||
                      (origin.find("://") != std::string::npos &&
                       origin.find('/', origin.find("://") + 3) == std::string::npos);
    if (!good) {
      report("router.http.cors_origins",
             "'" + origin + "' is not an origin; write scheme://host or scheme://host:port, or *");
    }
  }
}

void validate_control(const ControlSettings& control, const ProblemSink& report) {
  if (!control.shared_key.empty() && !control.shared_key_file.empty()) {
    report("router.control.shared_key_file",
           "stands beside router.control.shared_key; keep one of them");
  }
  if (control.peer_timeout < 2 * control.heartbeat_interval) {
    report("router.control.peer_timeout",
           "must be at least twice router.control.heartbeat_interval (" +
               format_duration(control.heartbeat_interval) + ")");
  }
}

std::string format_share(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.2f", share);
  return text;
}

void validate_node(const NodeSettings& node, uint32_t chunk_tokens, const std::string& key,
                   std::map<std::string, std::string>& names, const ProblemSink& report) {
  if (!is_name(node.name)) {
    report(key + ".name",
           "'" + node.name + "' is not a name; use up to 63 letters, digits, '-', '_' and '.'");
  }
  // Names of files beside the nodes' own in the run directory.
  if (node.name == "router" || node.name == "supervisor") {
    report(key + ".name", "'" + node.name + "' means another process; choose another name");
  }
  const auto [it, added] = names.emplace(node.name, key);
  if (!added) report(key + ".name", "'" + node.name + "' is the name of " + it->second + " too");
  if (!node.router.empty()) {
    const auto address = parse_host_port(node.router);
    if (!address) report(key + ".router", address.error().detail);
  }
  if (const auto device = parse_device(node.device); !device)
    report(key + ".device", device.error().detail);
  if (const auto device = parse_device(node.device);
      device && !device->cuda && node.quantization != QuantizationChoice::kNone)
    report(key + ".quantization",
           "fp8 is for GPUs, and device is " + device->name() + ": use none, or device: cuda");
  if (std::set<uint32_t>(node.cpus.begin(), node.cpus.end()).size() != node.cpus.size()) {
    report(key + ".cpus", "names a CPU twice");
  }
  if (!node.cpus.empty() && node.threads != 0 && node.threads != node.cpus.size()) {
    report(key + ".threads", "is " + std::to_string(node.threads) + " but cpus has " +
                                 std::to_string(node.cpus.size()) + " entries; remove one of them");
  }
  if (chunk_tokens > node.max_batch_tokens) {
    report(key + ".chunk_tokens",
           "must not be above max_batch_tokens (" + std::to_string(node.max_batch_tokens) + ")");
  }
}

// Nodes that name the same card and say how much of it they take must fit on it together.
// A node whose blocks are counted for it takes what they need instead.
void validate_shares(const ClusterConfig& config, const ProblemSink& report) {
  struct Card {
    double share = 0;
    std::string nodes;
    uint32_t count = 0;
  };
  const bool counted = config.kv.blocks != 0 || config.kv.memory.bytes != 0;
  std::map<uint32_t, Card> cards;
  const auto add = [&](const NodeSettings& node, const std::string& key) {
    const auto device = parse_device(node.device);
    if (!device || !device->cuda) return;
    if (counted || node.kv_blocks != 0 || node.kv_memory.bytes != 0) return;
    Card& card = cards[device->index];
    const double share = gpu_memory_share(config, node);
    card.share += share;
    card.nodes += (card.nodes.empty() ? "" : " + ") + format_share(share) + " (" + node.name + ")";
    if (++card.count < 2 || card.share <= 1.0 + 1e-9) return;
    report(key + ".gpu_memory_utilization", "the nodes on " + device->name() + " take " +
                                                card.nodes + " of it, more than there " +
                                                "is: give them shares that add up to at most 0.95");
  };
  for (size_t i = 0; i < config.prefill.size(); ++i)
    add(config.prefill[i], "prefill[" + std::to_string(i) + "]");
  for (size_t i = 0; i < config.decode.size(); ++i)
    add(config.decode[i], "decode[" + std::to_string(i) + "]");
}

void validate_cpu_tail(const ClusterConfig& config, const ProblemSink& report) {
  const CpuTailSettings& tail = config.cpu_tail;
  if (tail.enabled == CpuTailChoice::kTrue && config.decode.empty()) {
    report("cpu_tail.enabled", "is true, but this file has no decode node");
  }
  if (tail.return_above.bytes != 0 && tail.return_above < tail.free_below) {
    report("cpu_tail.return_above", "must not be below cpu_tail.free_below (" +
                                        format_size(tail.free_below) +
                                        "): requests would go to and fro");
  }
}

void require_file(const std::string& path, const std::string& key, const ProblemSink& report) {
  if (path.empty()) return;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    report(key, "there is no file " + path);
  }
}

}  // namespace

void fill_node_names(ClusterConfig& config) {
  std::set<std::string> taken;
  for (const auto& node : config.prefill) taken.insert(node.name);
  for (const auto& node : config.decode) taken.insert(node.name);
  fill_names(config.prefill, "prefill", taken);
  fill_names(config.decode, "decode", taken);
}

void validate(const ClusterConfig& config, const ProblemSink& report) {
  validate_http(config.router.http, report);
  validate_control(config.router.control, report);
  if (config.router.enabled && config.router.http.port != 0 &&
      config.router.http.port == config.router.control.port) {
    report("router.control.port", "is router.http.port too; give each its own");
  }
  std::map<std::string, std::string> names;
  for (size_t i = 0; i < config.prefill.size(); ++i) {
    validate_node(config.prefill[i], config.prefill[i].chunk_tokens,
                  "prefill[" + std::to_string(i) + "]", names, report);
  }
  for (size_t i = 0; i < config.decode.size(); ++i) {
    validate_node(config.decode[i], config.decode[i].chunk_tokens,
                  "decode[" + std::to_string(i) + "]", names, report);
  }
  validate_shares(config, report);
  validate_cpu_tail(config, report);
  if (!config.router.enabled && config.prefill.empty() && config.decode.empty()) {
    report("router.enabled", "is false and there are no nodes: this box would run nothing");
  }
}

void validate_paths(const ClusterConfig& config, const ProblemSink& report) {
  std::error_code error;
  if (!config.model.path.empty() && !std::filesystem::exists(config.model.path, error)) {
    report("model.path", "there is no model at " + config.model.path +
                             "; give a Hugging Face folder or a .gguf file");
  }
  require_file(config.router.http.tls.certificate, "router.http.tls.certificate", report);
  require_file(config.router.http.tls.key, "router.http.tls.key", report);
  require_file(config.router.http.api_keys_file, "router.http.api_keys_file", report);
  require_file(config.router.control.shared_key_file, "router.control.shared_key_file", report);
}

}  // namespace tandem
