#include "router/dispatch/route_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::router {

namespace {

constexpr double kUnknownPrefillRate = 1000;  // tokens per second, until a node has reported
// A prompt prefilled on a decode node holds up the answers that run there, though no token for
// longer than its node lets a step take: its first token must come by so much sooner.
constexpr double kLocalMargin = 1.2;
// A full prefill node that would be done so much sooner than one with room is waited for.
constexpr double kWaitMargin = 1.2;
// How many times quicker than it says a decode node may be that has not prefilled anything long.
constexpr double kMostDoubt = 10;
// A second until the first token counts as so many of the answer, which its reader may not notice.
constexpr double kFirstTokenWeight = 4;

bool can_hold(const NodeView& node, const RouteQuery& q) {
  const uint64_t tokens = uint64_t{q.prompt_tokens} + q.predicted_new_tokens;
  return node.usable && node.max_context >= q.prompt_tokens &&
         node.free_blocks >= blocks_for(tokens) &&
         node.open_requests < node.max_sequences + q.decode_queue;
}

// Past the deadline a node may queue the request itself, as long as it could ever hold it.
bool can_queue(const NodeView& node, const RouteQuery& q) {
  return node.usable && node.max_context >= q.prompt_tokens &&
         node.total_blocks >= blocks_for(uint64_t{q.prompt_tokens} + 1) &&
         node.open_requests < node.max_sequences + q.decode_queue;
}

bool can_prefill(const NodeView& node, const RouteQuery& q) {
  return node.usable && node.max_context >= q.prompt_tokens &&
         (node.open_prefill_tokens == 0 || node.open_prefill_tokens < node.max_batch_tokens);
}

double uncached(const NodeView& node, const RouteQuery& q) {
  return static_cast<double>(q.prompt_tokens - std::min(q.prompt_tokens, node.cached_tokens));
}

double rate_of(const NodeView& node) {
  return node.prefill_rate > 0 ? node.prefill_rate : kUnknownPrefillRate;
}

double prefill_finish(const NodeView& node, const RouteQuery& q) {
  return (static_cast<double>(node.open_prefill_tokens) + uncached(node, q)) / rate_of(node);
}

double decode_finish(const NodeView& node, const RouteQuery& q) {
  const double l = q.prompt_tokens;
  const double n = q.predicted_new_tokens;
  double seconds = std::max(0.0, node.decode_a * l + node.decode_b * n);
  seconds += node.step_slope * n * node.open_requests;
  if (node.open_requests >= node.max_sequences) {  // waits for a place: a share of an answer's time
    const double ahead = node.open_requests - node.max_sequences + 1;
    seconds += ahead * std::max(node.decode_b * n, 1e-6) / std::max(1U, node.max_sequences);
  }
  // Cached blocks need not be sent or stored again; free room breaks ties.
  seconds -= 1e-5 * std::min(q.prompt_tokens, node.cached_tokens);
  const double fill =
      node.total_blocks == 0 ? 0 : 1.0 - double(node.free_blocks) / node.total_blocks;
  return seconds + 1e-4 * fill + 1e-4 * node.open_requests;
}

// None only if nobody is eligible: nodes may report anything, and a cost that is no number loses.
template <typename Eligible, typename Cost>
std::optional<size_t> cheapest(std::span<const NodeView> nodes, const RouteQuery& q,
                               Eligible&& eligible, Cost&& cost) {
  std::optional<size_t> best;
  double least = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!eligible(nodes[i], q)) continue;
    const double c = cost(nodes[i], q);
    if (!best || c < least) {
      least = std::isnan(c) ? std::numeric_limits<double>::infinity() : c;
      best = i;
    }
  }
  return best;
}

bool any_usable(std::span<const NodeView> nodes, const RouteQuery& q) {
  return std::any_of(nodes.begin(), nodes.end(), [&](const NodeView& n) {
    return n.usable && n.max_context >= q.prompt_tokens;
  });
}

// How soon prompts advance on decode nodes. What such a node says of itself before the router has
// learnt it is of the few short prompts that it was given, by which it may look slow. So an idle
// one is tried as if it were as quick as the prefill nodes, within what it says times kMostDoubt.
class LocalPrefill {
 public:
  explicit LocalPrefill(std::span<const NodeView> prefill) {
    for (const NodeView& p : prefill) {
      if (p.usable && std::isfinite(p.prefill_rate)) {
        elsewhere_ = std::max(elsewhere_, p.prefill_rate);
      }
    }
  }

  // Seconds that the prompts there take, before this one.
  [[nodiscard]] double backlog(const NodeView& node) const {
    return static_cast<double>(node.open_prefill_tokens) / rate(node);
  }
  // Seconds until the first token of a prompt prefilled there.
  [[nodiscard]] double first_token(const NodeView& node, const RouteQuery& q) const {
    return backlog(node) + uncached(node, q) / rate(node);
  }

 private:
  [[nodiscard]] double rate(const NodeView& node) const {
    const double known = rate_of(node);
    if (node.rate_learnt || node.open_prefill_tokens > 0) return known;
    const double most = node.prefill_rate > 0 ? kMostDoubt * known : elsewhere_;
    return std::max(known, std::min(most, elsewhere_));
  }
  double elsewhere_ = 0;
};

}  // namespace

Route PredictedFinishPolicy::choose(const RouteQuery& q, std::span<const NodeView> prefill,
                                    std::span<const NodeView> decode) const {
  const LocalPrefill here(prefill);
  // When an answer ends whose prompt is prefilled here, and one that is handed over: the prompts
  // that are prefilled here hold that up later.
  const auto finish_here = [&](const NodeView& n, const RouteQuery& r) {
    return decode_finish(n, r) + kFirstTokenWeight * here.first_token(n, r);
  };
  const auto finish_handed_over = [&](const NodeView& n, const RouteQuery& r) {
    return decode_finish(n, r) + here.backlog(n);
  };
  if (q.force_local) {
    auto d = cheapest(decode, q, can_hold, finish_here);
    if (!d) d = cheapest(decode, q, can_queue, finish_here);
    if (d) return {RouteKind::kLocalForced, 0, *d};
    return {};
  }
  const std::optional<size_t> p = cheapest(prefill, q, can_prefill, prefill_finish);
  const bool prefill_exists = any_usable(prefill, q);
  if (q.max_new_tokens <= 1 && prefill_exists) {
    if (p) return {RouteKind::kPrefillOnly, *p, 0};
    return {};
  }
  const std::optional<size_t> local = cheapest(decode, q, can_hold, finish_here);
  if (!local) return {};
  if (!prefill_exists) return {RouteKind::kLocalOnly, 0, *local};
  if (uncached(decode[*local], q) < q.local_prefill_below) {
    return {RouteKind::kLocalShort, 0, *local};
  }
  // The nearest prefill node that exists, busy or not: waiting for it is a choice, too.
  const auto nearest = cheapest(
      prefill, q,
      [](const NodeView& n, const RouteQuery& r) {
        return n.usable && n.max_context >= r.prompt_tokens;
      },
      prefill_finish);
  const size_t remote = *cheapest(decode, q, can_hold, finish_handed_over);
  const double at_home = kLocalMargin * kFirstTokenWeight * here.first_token(decode[*local], q) +
                         decode_finish(decode[*local], q);
  const auto local_beats = [&](const NodeView& n) {
    const double elsewhere =
        kFirstTokenWeight * prefill_finish(n, q) + finish_handed_over(decode[remote], q);
    return q.local_prefill_below > 0 && at_home < elsewhere;
  };
  if (local_beats(prefill[*nearest])) return {RouteKind::kLocalSooner, 0, *local};
  // Full, but still sooner than the next one: that is waited for.
  const double soon = kWaitMargin * prefill_finish(prefill[*nearest], q);
  if (!p || (*p != *nearest && prefill_finish(prefill[*p], q) > soon)) return {};
  if (local_beats(prefill[*p])) return {RouteKind::kLocalSooner, 0, *local};
  return {RouteKind::kRemote, *p, remote};
}

Route RoundRobinPolicy::choose(const RouteQuery& q, std::span<const NodeView> prefill,
                               std::span<const NodeView> decode) const {
  auto turn = [&](std::span<const NodeView> nodes, auto eligible) -> std::optional<size_t> {
    for (size_t i = 0; i < nodes.size(); ++i) {
      const size_t at = (q.sequence + i) % nodes.size();
      if (eligible(nodes[at], q)) return at;
    }
    return std::nullopt;
  };
  if (q.force_local) {
    if (auto d = turn(decode, can_queue)) return {RouteKind::kLocalForced, 0, *d};
    return {};
  }
  const std::optional<size_t> p = turn(prefill, can_prefill);
  if (q.max_new_tokens <= 1 && any_usable(prefill, q)) {
    if (p) return {RouteKind::kPrefillOnly, *p, 0};
    return {};
  }
  const std::optional<size_t> d = turn(decode, can_hold);
  if (!d) return {};
  if (!any_usable(prefill, q)) return {RouteKind::kLocalOnly, 0, *d};
  if (uncached(decode[*d], q) < q.local_prefill_below) return {RouteKind::kLocalShort, 0, *d};
  if (!p) return {};
  return {RouteKind::kRemote, *p, *d};
}

}  // namespace tandem::router
