#include "common/transport/nccl/nccl_link.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "common/transport/direct/wire_format.h"

namespace tandem::transport {

Result<std::unique_ptr<NcclLink>> NcclLink::create(const NcclShared& shared, bool sender,
                                                   std::span<const ncclUniqueId> ids,
                                                   std::shared_ptr<SelfPair> self) {
  auto link = std::unique_ptr<NcclLink>(new NcclLink(shared, sender, std::move(self)));
  if (link->self_ && !sender) return link;  // the sender's rank does the receiving as well
  for (const ncclUniqueId& id : ids) {
    const NcclBuilder::Plan plan{.device = shared.device,
                                 .ranks = link->self_ ? 1 : 2,
                                 .rank = sender ? 0 : 1,
                                 .id = id,
                                 .ctas = shared.ctas};
    TANDEM_ASSIGN(NcclBuilder::Build build, shared.builder.start(plan));
    link->lanes_.push_back(
        std::make_unique<NcclLane>(shared.api, std::move(build), plan, shared.group));
  }
  return link;
}

NcclLink::~NcclLink() {
  {
    std::vector<std::jthread> ends;  // half a second each, of which most is waiting
    for (auto& lane : lanes_) {
      try {
        ends.emplace_back([&lane] { lane.reset(); });
      } catch (const std::system_error&) {
        lane.reset();  // no thread to be had: one after the other
      }
    }
  }
  for (const auto& [slot, message] : staged_) shared_.send_slots.put(message.data);
  for (const auto& [slot, message] : arrivals_) {
    if (message.data != nullptr) shared_.receive_slots.put(message.data);
  }
}

Status NcclLink::pump() {
  ended_.clear();
  for (const auto& lane : lanes_) TANDEM_TRY(lane->advance(ended_));
  for (const uint64_t slot : ended_) complete(slot);
  return {};
}

void NcclLink::complete(uint64_t slot) {
  if (!sender_) {
    arrived_.insert(slot);
    return;
  }
  if (self_) {
    std::lock_guard lock(self_->mutex);
    self_->arrived.insert(slot);
  }
  abandon(slot);
}

Result<bool> NcclLink::ready() {
  TANDEM_TRY(pump());
  return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->ready(); });
}

bool NcclLink::busy() const {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane->busy(); });
}

Result<std::optional<Link::Staged>> NcclLink::stage(std::span<Piece> pieces) {
  const size_t bytes = pieces.size() * pieces.front().bytes;
  if (bytes > shared_.message_bytes) {
    return fail(ErrorCode::kInvalidArgument, "nccl: a page of " + std::to_string(bytes) +
                                                 " bytes is larger than a message may be");
  }
  std::byte* const slot = shared_.send_slots.take(bytes);
  if (slot == nullptr) return std::nullopt;
  staged_[++last_slot_] = {slot, bytes};
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].to = slot + i * pieces[i].bytes;
  return Staged{last_slot_, encode_go(last_slot_)};
}

void NcclLink::abandon(uint64_t slot) {
  const auto it = staged_.find(slot);
  if (it == staged_.end()) return;
  shared_.send_slots.put(it->second.data);
  staged_.erase(it);
}

Status NcclLink::launch(uint64_t slot) {
  const auto it = staged_.find(slot);
  if (it == staged_.end()) {
    return fail(ErrorCode::kCorruptData, "nccl: a go for a slot that was not offered");
  }
  NcclLane::Message message{
      .slot = slot, .data = it->second.data, .bytes = it->second.bytes, .self_receive = nullptr};
  if (self_) {
    std::lock_guard lock(self_->mutex);
    const auto granted = self_->granted.find(slot);
    if (granted == self_->granted.end()) return fail(ErrorCode::kCorruptData, "nccl: no grant");
    message.self_receive = granted->second;
    self_->granted.erase(granted);
  }
  lane_of(slot).post(message);
  return {};
}

Result<uint64_t> NcclLink::accept(std::string_view note, std::span<Piece> pieces) {
  TANDEM_ASSIGN(const uint64_t slot, parse_go(note));
  const size_t bytes = pieces.size() * pieces.front().bytes;
  if (slot <= last_slot_ || bytes > shared_.message_bytes) {
    return fail(ErrorCode::kCorruptData, "nccl: an offer names an impossible slot");
  }
  last_slot_ = slot;
  arrivals_[slot] = {nullptr, bytes};
  return slot;
}

Result<bool> NcclLink::grant(uint64_t arrival, std::span<Piece> pieces) {
  Message& message = arrivals_.at(arrival);
  message.data = shared_.receive_slots.take(message.bytes);
  if (message.data == nullptr) return false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].from = message.data + i * pieces[i].bytes;
  }
  if (self_) {
    std::lock_guard lock(self_->mutex);
    self_->granted[arrival] = message.data;
    return true;
  }
  lane_of(arrival).post(
      {.slot = arrival, .data = message.data, .bytes = message.bytes, .self_receive = nullptr});
  return true;
}

Result<bool> NcclLink::arrived(uint64_t arrival) {
  if (self_) {
    std::lock_guard lock(self_->mutex);
    return self_->arrived.erase(arrival) > 0;
  }
  return arrived_.erase(arrival) > 0;
}

void NcclLink::release(uint64_t arrival) {
  const auto it = arrivals_.find(arrival);
  if (it == arrivals_.end()) return;
  if (it->second.data != nullptr) shared_.receive_slots.put(it->second.data);
  arrivals_.erase(it);
}

}  // namespace tandem::transport
