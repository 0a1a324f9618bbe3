#include <algorithm>
#include <map>

#include "common/config/units.h"
#include "common/cuda/memory_plan.h"
#include "common/model/sampling_defaults.h"
#include "common/model/text.h"
#include "common/node/cpu_tail.h"
#include "common/node/node_engine.h"
#include "common/node/node_model.h"
#include "common/node/node_transport.h"
#include "common/preflight/rules.h"

namespace tandem::preflight {
namespace {

// A node with what it makes of the model.
struct Planned {
  const Node* node = nullptr;
  node::NodeModel model;
  uint64_t weight_bytes = 0;  // at least
  [[nodiscard]] uint64_t kv_bytes() const {
    return uint64_t{model.blocks} * model.layout.block_bytes();
  }
};

Finding of_the_model(const Error& error) {
  Finding finding =
      finding_of(error.param == "load_format" ? "model.load_format" : "model.path", error);
  if (finding.remedy.empty()) finding.remedy = "give a Hugging Face folder or a .gguf file";
  return finding;
}

void check_context(const ClusterConfig& config, const model::ModelConfig& model, Findings& out) {
  if (config.model.max_context <= model.max_positions) return;
  out.push_back(warning("model.max_context",
                        "the model's context is " + std::to_string(model.max_positions) +
                            " tokens: requests get no more",
                        "lower it or remove it"));
}

// Nodes do not read what the model recommends.
void check_sampling(const ClusterConfig& config, const model::Checkpoint& checkpoint,
                    Findings& out) {
  if (!config.router.enabled) return;
  const auto read = model::recommended_sampling(config.router.sampling, checkpoint);
  if (!read) out.push_back(finding_of(read.error().param, read.error()));
}

// True when the pool can be filled.
bool check_pool(const ClusterConfig& config, const Planned& plan, uint32_t context,
                const Machine& machine, Findings& out) {
  const Node& node = *plan.node;
  const std::string key = node.key(node::pool_size_key(config, *node.settings));
  if (!node.device.cuda) {
    const Status fits =
        node::check_pool_memory(config, *node.settings, plan.model, machine.memory_bytes);
    if (!fits) {
      out.push_back(finding_of(key, fits.error()));
      return false;
    }
  }
  if (plan.model.blocks == 0 || plan.model.max_context >= context) return true;
  const uint64_t whole = (uint64_t{context} + kv::kBlockTokens - 1) / kv::kBlockTokens;
  out.push_back(warning(key,
                        "node " + node.settings->name + " has room for " +
                            std::to_string(plan.model.max_context) +
                            " tokens of one sequence, and the context is " +
                            std::to_string(context) + ": longer ones cannot run",
                        "raise it to " + approximate_size(whole * plan.model.layout.block_bytes()) +
                            " or more, or lower model.max_context"));
  return true;
}

// kv.format is judged with the cards.
void check_engine(const ClusterConfig& config, const Planned& plan, const model::ModelConfig& model,
                  Findings& out) {
  const Node& node = *plan.node;
  const Status runs = node::check_engine(config, *node.settings, plan.model, model);
  if (runs || runs.error().param == "kv.format") return;
  const std::string& param = runs.error().param;
  const bool own = param == "max_batch_tokens" || param == "quantization";
  out.push_back(finding_of(node.key(own ? param : "device"), runs.error()));
}

void check_tail(const ClusterConfig& config, const Planned& plan, Findings& out) {
  if (!plan.node->has_tail || plan.model.blocks == 0) return;
  const auto tail = node::plan_tail(config.cpu_tail, plan.model);
  if (!tail) out.push_back(finding_of(plan.node->key(tail.error().param), tail.error()));
}

// What all processes of the file hold in host memory once their pools are full.
void check_host_memory(const ClusterConfig& config, const std::vector<Planned>& plans,
                       const Machine& machine, Findings& out) {
  uint64_t sum = 0;
  std::string parts;
  for (const Planned& plan : plans) {
    uint64_t bytes = plan.node->device.cuda ? 0 : plan.kv_bytes() + plan.weight_bytes;
    if (plan.node->has_tail) bytes += config.cpu_tail.memory.bytes + plan.weight_bytes;
    if (bytes == 0) continue;
    sum += bytes;
    parts +=
        (parts.empty() ? "" : ", ") + plan.node->settings->name + " " + approximate_size(bytes);
  }
  if (machine.memory_bytes == 0 || sum <= machine.memory_bytes) return;
  out.push_back(warning("kv.memory",
                        "weights and full KV blocks of all nodes take " + approximate_size(sum) +
                            " (" + parts + "), and this machine has " +
                            approximate_size(machine.memory_bytes) +
                            ": the system will end a process",
                        "give the nodes less KV memory, or run fewer"));
}

// The least that each node takes of its card, one after the other.
void check_card_memory(const ClusterConfig& config, const std::vector<Planned>& plans,
                       const Machine& machine, Findings& out) {
  struct Card {
    uint64_t taken = 0;
    std::string by;
  };
  std::map<uint32_t, Card> cards;
  for (const Planned& plan : plans) {
    const Node& node = *plan.node;
    if (!node.device.cuda || node.device.index >= machine.devices.size()) continue;
    const uint64_t total = machine.devices[node.device.index].memory_bytes;
    Card& card = cards[node.device.index];
    // The least: whether UCX keeps messages on the card only a process that holds it can ask.
    const auto later = node::transport_memory(node.settings->transport.kind, node.device, false,
                                              node::transport_peers(config, node.is_prefill));
    const auto blocks = cuda::plan_kv_blocks(
        {.device = node.device.name(),
         .total_bytes = total,
         .free_bytes = total - std::min(total, card.taken),
         .taken = false,
         .utilization = gpu_memory_share(config, *node.settings),
         .reserve_bytes = 0,
         .parts = {{.name = "weights", .bytes = plan.weight_bytes, .remedy = {}}},
         .later = later,
         .kv_block_bytes = plan.model.layout.block_bytes(),
         .kv_tail_bytes = 0,
         .kv_blocks = plan.model.blocks,
         .neighbours = {}});
    const uint64_t least = plan.weight_bytes + plan.kv_bytes() + cuda::bytes_of(later);
    if (!blocks) {
      const std::string key = plan.model.blocks == 0 ? "gpu_memory_utilization"
                                                     : node::pool_size_key(config, *node.settings);
      Finding finding = finding_of(node.key(key), blocks.error());
      if (!card.by.empty()) {
        finding.reason = node.device.name() + " has " + approximate_size(total) + ", " + card.by +
                         " of it " + approximate_size(card.taken) + ", and " + node.settings->name +
                         " needs at least " + approximate_size(least);
        finding.remedy = "lower " + key + ", or give it another card";
      }
      out.push_back(std::move(finding));
      continue;
    }
    card.taken += least;
    card.by += (card.by.empty() ? "" : " and ") + node.settings->name;
  }
}

uint64_t least_weight_bytes(const NodeSettings& node, const node::NodeModel& model,
                            uint64_t parameters) {
  if (node.quantization == QuantizationChoice::kFp8) return parameters;
  return parameters * (model.weights == DType::kF32 ? 4 : 2);
}

}  // namespace

void check_model(const ClusterConfig& config, std::span<const Node> nodes, const Machine& machine,
                 const Clock& clock, Findings& out) {
  const auto checkpoint = node::open_checkpoint(config.model);
  if (!checkpoint) return out.push_back(of_the_model(checkpoint.error()));
  if (const auto text = model::load_text(**checkpoint, clock); !text)
    return out.push_back(of_the_model(text.error()));
  const model::ModelConfig& model = (*checkpoint)->config();
  check_context(config, model, out);
  check_sampling(config, **checkpoint, out);
  std::vector<Planned> plans;
  bool each_fits = true;
  for (const Node& node : nodes) {
    auto planned = node::plan_node_model(config, *node.settings, model);
    if (!planned) {
      out.push_back(finding_of(node.key(planned.error().param), planned.error()));
      continue;
    }
    const uint64_t weights =
        least_weight_bytes(*node.settings, *planned, (*checkpoint)->summary().parameters);
    plans.push_back({.node = &node, .model = std::move(*planned), .weight_bytes = weights});
    each_fits &=
        check_pool(config, plans.back(), node::wanted_context(config.model, model), machine, out);
    check_tail(config, plans.back(), out);
    check_engine(config, plans.back(), model, out);
  }
  if (each_fits) check_host_memory(config, plans, machine, out);
  check_card_memory(config, plans, machine, out);
}

}  // namespace tandem::preflight
