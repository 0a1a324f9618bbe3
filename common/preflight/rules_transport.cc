#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/node/node_transport.h"
#include "common/preflight/rules.h"

namespace tandem::preflight {
namespace {

// The transport that a node will use where the file alone says it; else empty: the cards' links do.
std::optional<TransportChoice> definite_kind(const Node& node, std::span<const Node> nodes) {
  const TransportChoice kind = node.settings->transport.kind;
  if (kind != TransportChoice::kAuto) return kind;
  const bool on_host =
      std::ranges::any_of(nodes, [](const Node& other) { return !other.device.cuda; });
  return on_host ? std::optional(TransportChoice::kUcx) : std::nullopt;
}

std::string name_of(TransportChoice kind) {
  return std::string(kTransportChoiceNames[static_cast<size_t>(kind)]);
}

// What UCX says of each list of words; asking takes it some milliseconds.
class UcxAnswers {
 public:
  explicit UcxAnswers(const Machine& machine) : machine_(machine) {}
  void check(const Node& node, Findings& out) {
    const std::string& tls = node.settings->transport.ucx_tls;
    // A device's pages go another way first, which only a process that holds the card can try.
    if (node.device.cuda && tls.find("cuda") != std::string::npos) return;
    auto answer = answers_.find(tls);
    if (answer == answers_.end()) {
      answer = answers_.emplace(tls, Answer{}).first;
      answer->second.usable = machine_.check_ucx(tls, answer->second.warnings);
    }
    const std::string key = node.key("transport.ucx_tls");
    if (!answer->second.usable) {
      out.push_back(finding_of(key, answer->second.usable.error()));
      return;
    }
    for (const std::string& line : answer->second.warnings) out.push_back(warning(key, line, ""));
  }

 private:
  struct Answer {
    Status usable;
    std::vector<std::string> warnings;
  };
  const Machine& machine_;
  std::map<std::string, Answer> answers_;
};

// NCCL joins no two processes on one GPU.
void check_nccl(const Node& node, std::span<const Node> nodes, Findings& out) {
  if (node.settings->transport.kind != TransportChoice::kNccl) return;
  for (const Node& other : nodes) {
    if (&other == &node || other.device != node.device) continue;
    out.push_back(warning(node.key("transport.kind"),
                          "NCCL joins no two processes on one GPU, and " + other.settings->name +
                              " is on " + node.device.name() + " too: no KV moves between them",
                          "use auto or cuda_ipc"));
    return;
  }
}

}  // namespace

void check_transports(std::span<const Node> nodes, const Machine& machine, Findings& out) {
  const Node* first = nullptr;  // whose transport is definite
  UcxAnswers ucx(machine);
  for (const Node& node : nodes) {
    const TransportChoice configured = node.settings->transport.kind;
    if (const Status possible = node::check_kind(configured, node.device); !possible) {
      out.push_back(finding_of(node.key("transport.kind"), possible.error()));
      continue;
    }
    check_nccl(node, nodes, out);
    const auto kind = definite_kind(node, nodes);
    if (!kind) continue;
    if (*kind == TransportChoice::kUcx) ucx.check(node, out);
    if (first == nullptr) {
      first = &node;
      continue;
    }
    const TransportChoice other = *definite_kind(*first, nodes);
    if (*kind == other) continue;
    Finding differs = warning(node.key("transport.kind"),
                              "is " + name_of(*kind) + " here and " + name_of(other) + " on " +
                                  first->settings->name + ": the router admits only one",
                              "give all nodes the same");
    differs.refuses = true;
    out.push_back(std::move(differs));
  }
}

}  // namespace tandem::preflight
