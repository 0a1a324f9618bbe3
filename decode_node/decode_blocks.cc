#include <algorithm>

#include "common/node/handover.h"
#include "decode_node/decode_state.h"

namespace tandem::decode {
uint32_t DecodeScheduler::State::predicted_blocks(const node::Task& task) const {
  // The next token at least, also when the prediction has been passed.
  const size_t next = task.tokens.size() + std::min(1U, task.new_tokens_left);
  return node::blocks_for(
      std::min<size_t>(std::max(next, task.predicted_length), options.limits.max_context));
}

size_t DecodeScheduler::State::held_blocks(const Sequence& s) const {
  const auto* lease = reservations.find(s.transfer);
  return s.phase == Phase::kReserved && lease != nullptr ? lease->blocks.size() : s.kv.size();
}

uint32_t DecodeScheduler::State::committed_blocks() const {
  uint32_t blocks = 0;
  for (const auto& s : sequences) {
    if (s->dead || s->lane != LaneId::kDevice) continue;
    const auto held = static_cast<uint32_t>(held_blocks(*s));
    const uint32_t wanted = predicted_blocks(s->task);
    blocks += wanted - std::min(wanted, held);
  }
  return blocks;
}

// Taking in a request that the pool cannot carry to its predicted end means preempting others
// later, so it is refused now and the router keeps it or sends it elsewhere. An empty node takes
// anything that fits at all: blocks are not held for predictions.
Status DecodeScheduler::State::check_capacity(const node::Task& task) const {
  const auto usage = deps.device.kv.usage();
  const uint32_t prompt = node::blocks_for(task.tokens.size());
  if (prompt > usage.capacity) {
    return tandem::fail(ErrorCode::kPayloadTooLarge,
                        "the prompt needs " + std::to_string(prompt) +
                            " KV blocks, this node has " + std::to_string(usage.capacity) +
                            "; raise kv_memory",
                        "tokens");
  }
  const bool empty = std::ranges::all_of(sequences, [](const auto& s) { return s->dead; });
  if (empty) return {};
  const uint32_t wanted = predicted_blocks(task) + committed_blocks();
  if (wanted > usage.available()) {
    return tandem::fail(ErrorCode::kResourceExhausted,
                        "KV blocks: " + std::to_string(wanted) + " predicted to be needed, " +
                            std::to_string(usage.available()) + " of " +
                            std::to_string(usage.capacity) + " can be had");
  }
  return {};
}

// In order of arrival, which preempted requests keep; the first that does not fit holds up the
// others, so that large ones are not overtaken for ever. Never preempts: what runs gives blocks
// back by ending.
void DecodeScheduler::State::admit_waiting() {
  size_t ready = 0;
  bool holders = reservations.open_count() > 0;
  for (const auto& s : sequences) {
    if (s->kv.empty() || s->lane != LaneId::kDevice) continue;
    holders = true;
    ready += s->phase == Phase::kReady ? 1 : 0;
  }
  for (auto& s : sequences) {
    if (s->dead || s->phase != Phase::kWaiting) continue;
    const uint32_t needed = node::blocks_for(s->length());
    // One block each for those that run, or the next 16 steps would take these blocks away again.
    if (holders && needed + ready > deps.device.kv.usage().available()) return;
    // Scoring needs logits of every row, so nothing may be skipped then.
    auto blocks = deps.device.kv.acquire(s->task.tokens, s->drawn || !s->task.scores_prompt());
    if (!blocks) return;
    s->kv = std::move(blocks->table);
    s->computed = blocks->reused_tokens;
    if (!s->drawn) s->prompt_cached = s->computed;
    s->phase = Phase::kPrefilling;
    s->scores.clear();
    holders = true;
  }
}

void DecodeScheduler::State::publish(Sequence& s) {
  store(s.lane).publish(std::span(s.task.tokens).first(s.computed), s.kv);
}

void DecodeScheduler::State::preempt(Sequence& s) {
  publish(s);  // what is still cached when it comes back need not be computed again
  s.kv.clear();
  s.lane = LaneId::kDevice;  // where prompts are prefilled
  s.computed = 0;
  s.phase = Phase::kWaiting;
  metrics.preempted();
}

// One more block for a ready sequence, if it needs one. When none is left, the least deserving
// holder gives its blocks up: it goes on in the CPU tail if it can, else it is preempted. False
// when only more deserving ones, leases and running moves hold the blocks: it waits then.
bool DecodeScheduler::State::grow(Sequence& s, const std::vector<Sequence*>& ranked) {
  while (node::blocks_for(s.length()) > s.kv.size()) {
    if (store(s.lane).grow(s.kv)) continue;
    if (leaving(s.lane)) return false;  // which gives blocks back soon
    const auto victim = std::find_if(ranked.rbegin(), ranked.rend(), [&](const Sequence* other) {
      return other == &s || (!other->kv.empty() && other->phase != Phase::kMoving);
    });
    if (victim == ranked.rend()) return false;
    if (s.lane == LaneId::kDevice && begin_move(**victim, LaneId::kTail)) return false;
    if (*victim != &s) {
      preempt(**victim);
      continue;
    }
    // A tail's pool may be too small for one request alone; the device's never is.
    if (s.lane == LaneId::kTail && residents(LaneId::kTail) == 1) preempt(s);
    return false;
  }
  return true;
}

}  // namespace tandem::decode
