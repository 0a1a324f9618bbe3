#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/cuda/stream.h"
#include "common/transport/nccl/nccl_api.h"

namespace tandem::transport {

// Makes communicators, each on a thread of its own: NCCL's calls wait for the peer until the GPUs
// are connected. From then on they only enqueue, in some 10 us, and the transport's thread makes
// them itself (a communicator that never blocks makes a thread for each call, 70 us).
class NcclBuilder {
 public:
  static constexpr size_t kMostUnderWay = 32;
  struct Plan {
    int device = 0;
    int ranks = 2;
    int rank = 0;
    ncclUniqueId id{};
    int ctas = 0;  // multiprocessors at most; 0: as NCCL likes
  };
  // What was built. Dropped with the plan's device current; the communicator ends before its
  // stream.
  struct Built {
    cuda::Stream stream;
    NcclComm owner;
    Built() = default;
    Built(Built&&) = default;
    Built& operator=(Built&& other) noexcept {
      owner = std::move(other.owner);
      stream = std::move(other.stream);
      return *this;
    }
    [[nodiscard]] ncclComm_t comm() const { return owner.get().comm; }
  };
  // One under way. Its thread may outlive it, since nothing gets it out of a call that waits for a
  // frozen peer; it then cleans up itself.
  class Build {
   public:
    Build() = default;
    ~Build() { give_up(); }
    Build(Build&&) = default;
    Build& operator=(Build&& other) noexcept {
      give_up();
      state_ = std::move(other.state_);
      return *this;
    }
    void begin(const Plan& plan);  // once; the thread waits for it
    // Whether it can be taken. An error: it will never be built.
    [[nodiscard]] Result<bool> done() const;
    [[nodiscard]] Built take();  // once, when done()

   private:
    friend class NcclBuilder;
    struct State;
    void give_up();  // ends what was built and not taken
    std::shared_ptr<State> state_;
  };

  // What is sent first over a communicator, and where that arrives.
  static constexpr size_t kGreetingBytes = 512;
  // `greeting`: kGreetingBytes of the device, shared by all builds, whose bytes mean nothing;
  // taking memory of a device or giving it back would hold up whatever works on it.
  NcclBuilder(std::shared_ptr<const NcclApi> api, std::shared_ptr<std::byte> greeting)
      : api_(std::move(api)), greeting_(std::move(greeting)) {}
  ~NcclBuilder();  // waits a while for threads whose work nobody wants any more
  NcclBuilder(const NcclBuilder&) = delete;
  NcclBuilder& operator=(const NcclBuilder&) = delete;

  // Threads for so many communicators, all of them or none, before a peer counts on them.
  // kResourceExhausted: too many are under way, of which frozen peers hold the threads, or the
  // system gives no thread.
  [[nodiscard]] Result<std::vector<Build>> prepare(size_t count);

 private:
  static void run(const NcclApi& api, std::byte* greeting, Build::State& state);
  static Status make(const NcclApi& api, std::byte* greeting, const Plan& plan, Build::State& state,
                     Built& built);

  const std::shared_ptr<const NcclApi> api_;
  const std::shared_ptr<std::byte> greeting_;  // a thread may outlive the builder
  std::vector<std::weak_ptr<Build::State>> under_way_;
};

}  // namespace tandem::transport
