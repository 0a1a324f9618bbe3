#include <algorithm>
#include <optional>
#include <set>

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

void check_ucx_words(const Node& node, const Machine& machine, std::set<std::string>& seen,
                     Findings& out) {
  const std::string& tls = node.settings->transport.ucx_tls;
  if (!seen.insert(tls).second) return;
  std::vector<std::string> warnings;
  const Status usable = machine.check_ucx(tls, warnings);
  if (!usable) {
    out.push_back(finding_of(node.key("transport.ucx_tls"), usable.error()));
    return;
  }
  for (const std::string& line : warnings)
    out.push_back(warning(node.key("transport.ucx_tls"), line, ""));
}

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
  std::set<std::string> seen;
  for (const Node& node : nodes) {
    const TransportChoice configured = node.settings->transport.kind;
    if (const Status possible = node::check_kind(configured, node.device); !possible) {
      out.push_back(finding_of(node.key("transport.kind"), possible.error()));
      continue;
    }
    check_nccl(node, nodes, out);
    const auto kind = definite_kind(node, nodes);
    if (!kind) continue;
    if (*kind == TransportChoice::kUcx) check_ucx_words(node, machine, seen, out);
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
