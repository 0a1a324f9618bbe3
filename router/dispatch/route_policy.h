#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tandem::router {

// A node as far as one routing decision needs it.
struct NodeView {
  bool usable =
      false;  // connected, not draining, breaker closed, has not just refused this request
  uint32_t cached_tokens = 0;  // of this prompt, probably there already
  uint32_t max_context = 0;
  // prefill
  uint64_t open_prefill_tokens = 0;  // sent and not done
  uint32_t max_batch_tokens = 0;
  double prefill_rate = 0;   // tokens per second, what else it does included; 0: not known
  bool rate_learnt = false;  // from its first tokens; else it is what the node says
  // decode
  uint32_t free_blocks = 0;
  uint32_t total_blocks = 0;
  uint32_t open_requests = 0;
  uint32_t max_sequences = 0;
  double decode_a = 0, decode_b = 0;  // DecodeTimeModel
  double step_slope = 0;              // seconds a step grows by per sequence
};

struct RouteQuery {
  uint32_t prompt_tokens = 0;  // to be prefilled, a resumed answer included
  uint32_t predicted_new_tokens = 0;
  uint32_t max_new_tokens = 0;
  uint32_t decode_queue = 0;
  uint32_t local_prefill_below = 0;
  bool force_local = false;  // the queue deadline has passed
  uint64_t sequence = 0;     // counts decisions
};

enum class RouteKind : uint8_t {
  kWait,         // nobody can take it now
  kRemote,       // prefill there, decode here
  kPrefillOnly,  // nothing to hand over: scoring, or one token
  kLocalShort,   // prefill on the decode node: a short uncached prompt
  kLocalSooner,  // … predicted to be done sooner
  kLocalOnly,    // … no prefill node is usable
  kLocalForced,  // … the queue deadline has passed
};

struct Route {
  RouteKind kind = RouteKind::kWait;
  size_t prefill = 0;  // index into the views
  size_t decode = 0;
};

// A pure function of its arguments: same views, same route.
class RoutePolicy {
 public:
  virtual ~RoutePolicy() = default;
  [[nodiscard]] virtual Route choose(const RouteQuery& query, std::span<const NodeView> prefill,
                                     std::span<const NodeView> decode) const = 0;
};

// The least predicted finish time, with the time until the first token counted four times, cached
// prefixes and queues considered.
class PredictedFinishPolicy final : public RoutePolicy {
 public:
  [[nodiscard]] Route choose(const RouteQuery& query, std::span<const NodeView> prefill,
                             std::span<const NodeView> decode) const override;
};

// Takes turns among the nodes that can take the request; the comparison for benchmarks.
class RoundRobinPolicy final : public RoutePolicy {
 public:
  [[nodiscard]] Route choose(const RouteQuery& query, std::span<const NodeView> prefill,
                             std::span<const NodeView> decode) const override;
};

// Blocks for that many tokens.
[[nodiscard]] constexpr uint32_t blocks_for(uint64_t tokens) {
  return static_cast<uint32_t>((tokens + 15) / 16);
}

}  // namespace tandem::router
