#include "common/transport/nccl/nccl_link.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "common/transport/direct/wire_format.h"

namespace tandem::transport {

Result<std::unique_ptr<NcclLink>> NcclLink::create(const NcclShared& shared, bool sender,
                                                   std::span<const ncclUniqueId> ids,
                                                   std::shared_ptr<SelfPair> self,
                                                   std::vector<NcclBuilder::Build> builds) {
  auto link = std::unique_ptr<NcclLink>(new NcclLink(shared, sender, std::move(self)));
  if (link->self_ && !sender) return link;  // the sender's rank does the receiving as well
  // A communicator of one rank takes 390 MiB, and a self-test wants no speed.
  const auto lanes = link->self_ ? ids.first(1) : ids;
  if (builds.size() < lanes.size()) {
    TANDEM_ASSIGN(builds, shared.builder.prepare(lanes.size()));
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const NcclBuilder::Plan plan{.device = shared.device,
                                 .ranks = link->self_ ? 1 : 2,
                                 .rank = sender ? 0 : 1,
                                 .id = lanes[i],
                                 .ctas = shared.ctas};
    builds[i].begin(plan);
    link->lanes_.push_back(
        std::make_unique<NcclLane>(shared.api, std::move(builds[i]), plan, shared.group));
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
}

Status NcclLink::pump() {
  ended_.clear();
  for (const auto& lane : lanes_) TANDEM_TRY(lane->advance(ended_));
  if (self_) {
    std::lock_guard lock(self_->mutex);
    if (sender()) {
      self_->arrived.insert(ended_.begin(), ended_.end());
    } else {
      ended_.assign(self_->arrived.begin(), self_->arrived.end());
      self_->arrived.clear();
    }
  }
  for (const uint64_t message : ended_) ended(message);
  return {};
}

Result<bool> NcclLink::ready() {
  TANDEM_TRY(pump());
  return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->ready(); });
}

bool NcclLink::busy() const {
  return std::ranges::any_of(lanes_, [](const auto& lane) { return lane->busy(); });
}

Status NcclLink::send(const Message& message) {
  NcclLane::Message task{.id = message.id, .data = message.data, .bytes = message.bytes};
  if (self_) {
    std::lock_guard lock(self_->mutex);
    const auto granted = self_->granted.find(message.id);
    if (granted == self_->granted.end()) return fail(ErrorCode::kCorruptData, "nccl: no grant");
    task.self_receive = granted->second;
    self_->granted.erase(granted);
  }
  next_lane().post(task);
  return {};
}

Status NcclLink::receive(const Message& message) {
  if (self_) {
    std::lock_guard lock(self_->mutex);
    self_->granted[message.id] = message.data;
    return {};
  }
  next_lane().post({.id = message.id, .data = message.data, .bytes = message.bytes});
  return {};
}

}  // namespace tandem::transport
