#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/transport/direct/fabric.h"
#include "common/transport/nccl/nccl_api.h"

namespace tandem::transport {

// Messages in device memory: slots of slot_bytes, and twice as many of an eighth, since layers
// of short prompts would leave most of a slot empty. Transport thread only.
class SlotPool {
 public:
  [[nodiscard]] static Result<SlotPool> create(size_t slot_bytes, uint32_t slots);
  [[nodiscard]] std::byte* take(size_t bytes);  // null: none free of the size that holds so many
  void put(std::byte* slot) { (slot < small_begin_ ? free_ : small_).push_back(slot); }
  [[nodiscard]] size_t slot_bytes() const { return slot_bytes_; }

 private:
  cuda::DeviceBuffer memory_;
  size_t slot_bytes_ = 0;
  std::byte* small_begin_ = nullptr;  // of the memory that holds small slots
  std::vector<std::byte*> free_;
  std::vector<std::byte*> small_;
};

// Both ends of a connection within one process: one rank sends to itself. Any thread.
struct SelfPair {
  std::mutex mutex;
  std::map<uint64_t, std::byte*> granted;  // by slot: where it is received
  std::set<uint64_t> arrived;
};

// What a link shares with its fabric, which outlives it.
struct NcclShared {
  const NcclApi& api;
  SlotPool& send_slots;
  SlotPool& receive_slots;
  size_t most_grouped = 0;  // messages of one launch
};

// One communicator and what goes through it, in order. What is ready together is handed over as one
// group: one launch and one event for several messages. While two groups are in the stream, more is
// gathered, so groups grow as far as launching is slower than sending. Sender and receiver need not
// group alike: NCCL pairs the messages of a peer in their order. Transport thread only.
class NcclLink final : public Link {
 public:
  // `self`: null between processes. Starts building the communicator.
  [[nodiscard]] static Result<std::unique_ptr<NcclLink>> create(const NcclShared& shared,
                                                                bool sender, const ncclUniqueId& id,
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
  static constexpr uint64_t kGreeting = 0;  // the first operation, which connects the GPUs
  struct Message {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  struct Operation {
    uint64_t slot = 0;
    Message message;
    std::byte* self_receive = nullptr;
  };
  // Operations of one launch.
  struct Group {
    std::vector<Operation> operations;
    cuda::Event done;
  };
  explicit NcclLink(const NcclShared& shared, bool sender) : shared_(shared), sender_(sender) {}
  Status pump();
  Result<bool> settled();  // the communicator has taken what was last asked of it
  Status issue(std::span<const Operation> operations);
  Status enqueue(const Operation& op);  // within a group
  Status issued_group();                // issuing_ is in the stream: its event follows it
  void complete(const Operation& op);

  const NcclShared shared_;
  const bool sender_;
  std::shared_ptr<SelfPair> self_;
  SteadyClock clock_;  // of the device's time, not of the cluster's
  ncclComm_t comm_ = nullptr;
  cuda::Stream stream_;
  cuda::DeviceBuffer greeting_;
  bool built_ = false;
  bool greeted_ = false;
  std::deque<Operation> waiting_;   // not issued
  std::vector<Operation> issuing_;  // issued and not in the stream yet
  std::deque<Group> flying_;        // in the stream
  std::vector<cuda::Event> spare_events_;
  TimePoint progress_at_{};               // when the last operation ended or began to wait
  std::map<uint64_t, Message> staged_;    // sender: slots that wait for a go or are under way
  std::map<uint64_t, Message> arrivals_;  // receiver: accepted, with a slot once granted
  std::set<uint64_t> arrived_;
  uint64_t last_slot_ = 0;
};

}  // namespace tandem::transport
