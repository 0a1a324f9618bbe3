#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/cuda/stream.h"
#include "common/transport/nccl/nccl_api.h"
#include "common/transport/nccl/nccl_build.h"

namespace tandem::transport {

// One communicator and the messages that go through it, in order. What is ready together is handed
// over as one group: one launch and one event for several messages. While two groups are in the
// stream, more is gathered. Sender and receiver need not group alike: NCCL pairs the messages of a
// peer in their order. Transport thread only.
class NcclLane {
 public:
  struct Limits {
    size_t messages = 0;  // of one group
    size_t bytes = 0;     // likewise; one message may be larger
  };
  struct Message {
    uint64_t id = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    std::byte* self_receive = nullptr;  // sent to ourselves: where it arrives
  };
  // `build`: of this plan, just started.
  NcclLane(const NcclApi& api, NcclBuilder::Build build, const NcclBuilder::Plan& plan,
           const Limits& limits);
  ~NcclLane();  // aborts what is under way
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  [[nodiscard]] bool ready() const { return bool{built_.owner}; }
  [[nodiscard]] bool busy() const { return !ready() || !waiting_.empty() || !flying_.empty(); }
  void post(const Message& message) { waiting_.push_back(message); }
  // Hands over what can go and appends the ids of messages that have ended.
  [[nodiscard]] Status advance(std::vector<uint64_t>& ended);

 private:
  struct Group {
    std::vector<uint64_t> messages;
    cuda::Event done;
  };
  [[nodiscard]] Status await_communicator();
  [[nodiscard]] Status check_communicator() const;
  [[nodiscard]] Status launch();
  [[nodiscard]] Status enqueue(const Message& message);  // within a group

  const NcclApi& api_;
  const NcclBuilder::Plan plan_;
  const Limits limits_;
  SteadyClock clock_;  // of the device's time, not of the cluster's
  NcclBuilder::Build build_;
  NcclBuilder::Built built_;
  std::deque<Message> waiting_;
  std::deque<Group> flying_;  // in the stream
  std::vector<cuda::Event> spare_events_;
  TimePoint progress_at_;  // when something last ended or began to wait
};

}  // namespace tandem::transport
