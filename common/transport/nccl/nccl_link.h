#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "common/transport/direct/slot_link.h"
#include "common/transport/nccl/nccl_lane.h"

namespace tandem::transport {

// Both ends of a connection within one process: one rank sends to itself. Any thread.
struct SelfPair {
  std::mutex mutex;
  std::map<uint64_t, std::byte*> granted;  // by message: where it is received
  std::set<uint64_t> arrived;
};

// What a link shares with its fabric, which outlives it.
struct NcclShared {
  const NcclApi& api;
  NcclBuilder& builder;
  SlotLink::Slots slots;
  int device = 0;
  int ctas = 0;  // as NcclBuilder::Plan has them
  NcclLane::Limits group;
};

// Messages of one direction, dealt to lanes in turns, at both ends alike: one lane's launch begins
// while another's ends. Transport thread only.
class NcclLink final : public SlotLink {
 public:
  // One lane for each id. `self`: null between processes. Begins to build the communicators, in
  // `builds`, which a sender prepared before it told the ids, or in its own.
  [[nodiscard]] static Result<std::unique_ptr<NcclLink>> create(
      const NcclShared& shared, bool sender, std::span<const ncclUniqueId> ids,
      std::shared_ptr<SelfPair> self, std::vector<NcclBuilder::Build> builds = {});
  ~NcclLink() override;  // aborts what is under way

  std::string detail() const override { return self_ ? "one GPU" : "peer GPU"; }
  Result<bool> ready() override;
  bool busy() const override;

 private:
  NcclLink(const NcclShared& shared, bool sender, std::shared_ptr<SelfPair> self)
      : SlotLink(shared.slots, sender), shared_(shared), self_(std::move(self)) {}
  [[nodiscard]] NcclLane& next_lane() { return *lanes_[messages_++ % lanes_.size()]; }
  Status send(const Message& message) override;
  Status receive(const Message& message) override;
  Status pump();

  const NcclShared shared_;
  const std::shared_ptr<SelfPair> self_;
  std::vector<std::unique_ptr<NcclLane>> lanes_;  // none at the receiving end of a SelfPair
  std::vector<uint64_t> ended_;
  uint64_t messages_ = 0;  // so far
};

}  // namespace tandem::transport
