#include <algorithm>
#include <utility>

#include "common/node/handover.h"
#include "decode_node/decode_state.h"

namespace tandem::decode {
namespace {

// Room to grow that a request needs besides its own blocks before it is worth moving it: 64 tokens.
constexpr uint32_t kHeadroomBlocks = 4;

node::PageSet page_set(const node::KvStore& kv, const kv::BlockTable& table) {
  return {.pages = kv.pages(),
          .memory = &kv.memory(),
          .blocks = {table.ids().begin(), table.ids().end()},
          .tail = table.tail ? table.tail.slot() : 0};
}

}  // namespace

uint64_t DecodeScheduler::State::free_bytes() const {
  const node::KvStore& kv = deps.device.kv;
  return uint64_t{kv.usage().available()} * kv.layout().block_bytes();
}

size_t DecodeScheduler::State::residents(LaneId lane) const {
  return static_cast<size_t>(std::ranges::count_if(sequences, [&](const auto& s) {
    return !s->kv.empty() && (s->move ? s->move->to : s->lane) == lane;
  }));
}

bool DecodeScheduler::State::leaving(LaneId lane) const {
  return std::ranges::any_of(sequences, [&](const auto& s) { return s->move && s->lane == lane; });
}

std::vector<Sequence*> DecodeScheduler::State::movable(LaneId lane) const {
  std::vector<Sequence*> result;
  for (const auto& s : sequences) {
    if (s->dead || s->lane != lane || s->phase != Phase::kReady) continue;
    if (!s->in_step && !s->alone && !s->stays) result.push_back(s.get());
  }
  std::ranges::stable_sort(result, std::ranges::greater{}, &Sequence::generated);
  return result;
}

bool DecodeScheduler::State::has_room(LaneId lane, const Sequence& s) {
  const size_t others = residents(lane);
  if (others >= options.max_sequences) return false;
  const size_t end =
      std::min<size_t>(s.length() + size_t{s.task.new_tokens_left}, options.limits.max_context);
  const uint32_t wanted =
      std::min(node::blocks_for(end), node::blocks_for(s.length()) + kHeadroomBlocks);
  return wanted + others <= store(lane).usage().available();  // and a block for each of the others
}

bool DecodeScheduler::State::begin_move(Sequence& s, LaneId to) {
  if (!deps.tail || s.phase != Phase::kReady || s.in_step || s.alone || s.stays) return false;
  if (!has_room(to, s)) return false;
  publish(s);  // what is still cached when it comes back need not be copied again
  auto there = store(to).acquire(s.task.tokens, true);
  if (!there) return false;
  Move move{.id = next_move++,
            .to = to,
            .kv = std::move(there->table),
            .cancelled = std::make_shared<std::atomic<bool>>(false),
            .began = deps.clock.now()};
  node::MoveJob job{.id = move.id,
                    .from = page_set(store(s.lane), s.kv),
                    .to = page_set(store(to), move.kv),
                    .tokens = s.computed,
                    .first_block = there->reused_tokens / kv::kBlockTokens,
                    .cancelled = move.cancelled};
  if (!deps.tail->mover.submit(std::move(job))) return false;
  s.move = std::move(move);
  s.phase = Phase::kMoving;
  return true;
}

void DecodeScheduler::State::start_moves() {
  if (!deps.tail) return;
  move_out();
  move_back();
}

void DecodeScheduler::State::move_out() {
  const uint64_t block_bytes = deps.device.kv.layout().block_bytes();
  uint64_t free = free_bytes();
  for (const auto& s : sequences) {
    if (s->move && s->lane == LaneId::kDevice) free += s->kv.size() * block_bytes;
  }
  for (Sequence* s : movable(LaneId::kDevice)) {
    if (free >= options.cpu_tail.free_below) return;
    if (s->generated() <= options.cpu_tail.after_tokens) return;  // nor is any behind it longer
    if (begin_move(*s, LaneId::kTail)) free += s->kv.size() * block_bytes;
  }
}

// Only what the device can then keep: with what its own requests are predicted to need, free_below
// stays free.
void DecodeScheduler::State::move_back() {
  const std::vector<Sequence*> candidates = movable(LaneId::kTail);
  if (candidates.empty() || free_bytes() < options.cpu_tail.return_above) return;
  const bool waiting = std::ranges::any_of(
      sequences, [](const auto& s) { return !s->dead && s->phase == Phase::kWaiting; });
  if (waiting) return;
  const uint64_t block_bytes = deps.device.kv.layout().block_bytes();
  for (Sequence* s : candidates) {
    const uint64_t free = free_bytes();
    if (free < options.cpu_tail.return_above) return;
    const uint64_t blocks = committed_blocks() + node::blocks_for(s->length());
    if (free < blocks * block_bytes + options.cpu_tail.free_below) continue;
    (void)begin_move(*s, LaneId::kDevice);  // it stays if there is no place for it
  }
}

void DecodeScheduler::State::finish_move(node::MoveResult result) {
  const auto found = std::ranges::find_if(
      sequences, [&](const auto& s) { return s->move && s->move->id == result.id; });
  if (found == sequences.end()) return;
  Sequence& s = **found;
  Move move = std::move(*s.move);
  s.move.reset();
  if (s.dead) return;
  s.phase = Phase::kReady;  // `ready_since` stands: the time of a move counts as waiting
  if (!result.outcome) {
    metrics.move_failed();
    s.stays = true;
    return;
  }
  metrics.moved(move.to == LaneId::kTail, result.bytes, deps.clock.now() - move.began);
  s.kv = std::move(move.kv);
  s.lane = move.to;
}

}  // namespace tandem::decode
