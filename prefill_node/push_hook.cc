#include <span>
#include <utility>

#include "prefill_node/prefill_job.h"

namespace tandem::prefill {
namespace {

Status push_layer(transport::Transport& transport, const engine::KvPages& kv, const PushPlan& plan,
                  uint32_t layer) {
  if (!plan.blocks.empty()) {
    std::vector<std::span<const std::byte>> pages;
    pages.reserve(plan.blocks.size());
    for (const BlockId block : plan.blocks) pages.push_back(kv.page(layer, block));
    TANDEM_TRY(transport.post_pages(plan.transfer, layer, plan.first_page, pages));
  }
  if (plan.tail)
    TANDEM_TRY(transport.post_tail(plan.transfer, layer, kv.open_page(layer, *plan.tail)));
  return {};
}

}  // namespace

engine::LayerHook make_push_hook(transport::Transport& transport, const engine::KvPages& pages,
                                 std::vector<PushPlan> plans) {
  if (plans.empty()) return {};
  return [&transport, pages, plans = std::move(plans)](uint32_t layer) {
    for (const PushPlan& plan : plans) {
      SendGate& gate = *plan.gate;
      if (gate.closed.load(std::memory_order_acquire) || gate.error) continue;
      if (layer < gate.layers_posted) continue;
      auto status = push_layer(transport, pages, plan, layer);
      gate.layers_posted = layer + 1;
      // Posting races with cancellation by design; only a refusal while still open is a failure.
      if (!status && !gate.closed.load(std::memory_order_acquire)) {
        gate.error = std::move(status).error();
      }
    }
  };
}

}  // namespace tandem::prefill
