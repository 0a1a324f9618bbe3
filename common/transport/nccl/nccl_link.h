#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "common/transport/direct/fabric.h"
#include "common/transport/direct/slot_space.h"
#include "common/transport/nccl/nccl_lane.h"

namespace tandem::transport {

// Both ends of a connection within one process: one rank sends to itself. Any thread.
struct SelfPair {
  std::mutex mutex;
  std::map<uint64_t, std::byte*> granted;  // by slot: where it is received
  std::set<uint64_t> arrived;
};

// What a link shares with its fabric, which outlives it.
struct NcclShared {
  const NcclApi& api;
  NcclBuilder& builder;
  SlotSpace& send_slots;
  SlotSpace& receive_slots;
  int device = 0;
  size_t message_bytes = 0;  // of one message, at most
  int ctas = 0;              // as NcclBuilder::Plan has them
  NcclLane::Limits group;
};

// Slots of one direction, dealt to lanes by their numbers, so that both ends deal alike: one lane's
// launch begins while another's ends. Transport thread only.
class NcclLink final : public Link {
 public:
  // One lane for each id. `self`: null between processes. Starts building the communicators.
  [[nodiscard]] static Result<std::unique_ptr<NcclLink>> create(const NcclShared& shared,
                                                                bool sender,
                                                                std::span<const ncclUniqueId> ids,
                                                                std::shared_ptr<SelfPair> self);
  ~NcclLink() override;  // aborts what is under way

  std::string detail() const override { return self_ ? "one GPU" : "peer GPU"; }
  Result<bool> ready() override;
  bool busy() const override;
  Result<std::optional<Staged>> stage(std::span<Piece> pieces) override;
  Status launch(uint64_t slot) override;
  void abandon(uint64_t slot) override;
  Result<uint64_t> accept(std::string_view note, std::span<Piece> pieces) override;
  Result<bool> grant(uint64_t arrival, std::span<Piece> pieces) override;
  bool needs_go() const override { return true; }
  Result<bool> arrived(uint64_t arrival) override;
  void release(uint64_t arrival) override;

 private:
  struct Message {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  NcclLink(const NcclShared& shared, bool sender, std::shared_ptr<SelfPair> self)
      : shared_(shared), sender_(sender), self_(std::move(self)) {}
  [[nodiscard]] NcclLane& lane_of(uint64_t slot) { return *lanes_[slot % lanes_.size()]; }
  Status pump();
  void complete(uint64_t slot);

  const NcclShared shared_;
  const bool sender_;
  const std::shared_ptr<SelfPair> self_;
  std::vector<std::unique_ptr<NcclLane>> lanes_;  // none at the receiving end of a SelfPair
  std::map<uint64_t, Message> staged_;    // sender: slots that wait for a go or are under way
  std::map<uint64_t, Message> arrivals_;  // receiver: accepted, with a slot once granted
  std::set<uint64_t> arrived_;
  std::vector<uint64_t> ended_;
  uint64_t last_slot_ = 0;
};

}  // namespace tandem::transport
