#include "common/transport/nccl/nccl_build.h"

#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "common/cuda/memory.h"

namespace tandem::transport {
namespace {

constexpr Duration kGreetingNap = std::chrono::microseconds(200);
constexpr Duration kGoodbye = std::chrono::seconds(3);

// A first message, by which NCCL connects the GPUs. `unwanted` is asked while it is under way.
template <typename Unwanted>
Status greet(const NcclApi& api, std::byte* greeting, const NcclBuilder::Plan& plan,
             NcclBuilder::Built& built, Unwanted&& unwanted) {
  constexpr size_t kBytes = NcclBuilder::kGreetingBytes / 2;
  TANDEM_ASSIGN(const auto said, cuda::Event::create());
  const bool self = plan.ranks == 1;
  const int peer = self ? 0 : 1 - plan.rank;
  TANDEM_TRY(api.status(api.ncclGroupStart(), "ncclGroupStart", built.comm()));
  ncclResult_t sent = ncclSuccess;
  ncclResult_t received = ncclSuccess;
  if (plan.rank == 0) {
    sent = api.ncclSend(greeting, kBytes, ncclInt8, peer, built.comm(), built.stream.get());
  }
  if (plan.rank == 1 || self) {
    received =
        api.ncclRecv(greeting + kBytes, kBytes, ncclInt8, peer, built.comm(), built.stream.get());
  }
  TANDEM_TRY(api.status(api.ncclGroupEnd(), "ncclGroupEnd", built.comm()));
  TANDEM_TRY(api.status(sent, "ncclSend", built.comm()));
  TANDEM_TRY(api.status(received, "ncclRecv", built.comm()));
  TANDEM_TRY(said.record(built.stream));
  while (true) {
    TANDEM_ASSIGN(const bool done, said.done());
    if (done) return {};
    if (unwanted()) {
      // The abort ends the kernel.
      built.owner.reset();
      (void)built.stream.synchronize();
      return fail(ErrorCode::kCancelled, "nccl: the connection is gone");
    }
    std::this_thread::sleep_for(kGreetingNap);
  }
}

}  // namespace

struct NcclBuilder::Build::State {
  std::optional<Plan> plan;  // set by begin()
  std::mutex mutex;
  std::condition_variable changed;
  bool unwanted = false;
  bool ended = false;  // what follows is set
  Status outcome;
  Built built;
};

Result<bool> NcclBuilder::Build::done() const {
  std::lock_guard lock(state_->mutex);
  if (state_->ended && !state_->outcome) return fail(state_->outcome.error());
  return state_->ended;
}

NcclBuilder::Built NcclBuilder::Build::take() {
  std::lock_guard lock(state_->mutex);
  return std::exchange(state_->built, {});
}

void NcclBuilder::Build::give_up() {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  state_->unwanted = true;
  state_->changed.notify_all();
  if (!state_->plan) return;
  const cuda::DeviceScope scope(state_->plan->device);
  {
    const Built untaken = std::exchange(state_->built, {});
    lock.unlock();
  }
}

void NcclBuilder::Build::begin(const Plan& plan) {
  std::lock_guard lock(state_->mutex);
  state_->plan = plan;
  state_->changed.notify_all();
}

NcclBuilder::~NcclBuilder() {
  const SteadyClock clock;
  const TimePoint give_up = clock.now() + kGoodbye;
  for (const auto& known : under_way_) {
    const auto state = known.lock();
    if (state == nullptr) continue;
    std::unique_lock lock(state->mutex);
    state->changed.wait_for(lock, give_up - clock.now(), [&] { return state->ended; });
  }
}

Status NcclBuilder::make(const NcclApi& api, std::byte* greeting, const Plan& plan,
                         Build::State& state, Built& built) {
  TANDEM_CUDA_TRY(cudaSetDevice(plan.device));
  TANDEM_ASSIGN(built.stream, cuda::Stream::create(cuda::StreamPriority::kHigh));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (plan.ctas > 0) config.maxCTAs = plan.ctas;
  ncclComm_t comm = nullptr;
  const ncclResult_t made =
      api.ncclCommInitRankConfig(&comm, plan.ranks, plan.id, plan.rank, &config);
  built.owner.reset({comm, api.ncclCommAbort});
  TANDEM_TRY(api.status(made, "ncclCommInitRankConfig", nullptr));
  return greet(api, greeting, plan, built, [&] {
    std::lock_guard lock(state.mutex);
    return state.unwanted;
  });
}

void NcclBuilder::run(const NcclApi& api, std::byte* greeting, Build::State& state) {
  std::optional<Plan> plan;
  {
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock, [&] { return state.plan || state.unwanted; });
    if (!state.unwanted) plan = state.plan;
  }
  Built built;
  Status outcome = plan ? make(api, greeting, *plan, state, built)
                        : fail(ErrorCode::kCancelled, "nccl: the connection is gone");
  {
    std::lock_guard lock(state.mutex);
    if (outcome && !state.unwanted) state.built = std::move(built);
  }
  built.owner.reset();  // of what nobody wants, before it is told to have ended
  std::lock_guard lock(state.mutex);
  state.outcome = std::move(outcome);
  state.ended = true;
  state.changed.notify_all();
}

Result<std::vector<NcclBuilder::Build>> NcclBuilder::prepare(size_t count) {
  std::erase_if(under_way_, [](const auto& known) {
    const auto state = known.lock();
    if (state == nullptr) return true;
    std::lock_guard lock(state->mutex);
    return state->ended;
  });
  if (under_way_.size() + count > kMostUnderWay) {
    return fail(ErrorCode::kResourceExhausted,
                "nccl: " + std::to_string(under_way_.size()) +
                    " communicators are being built already; are peers frozen?");
  }
  std::vector<Build> builds(count);
  for (Build& build : builds) {
    build.state_ = std::make_shared<Build::State>();
    try {
      std::thread([api = api_, greeting = greeting_, state = build.state_] {
        run(*api, greeting.get(), *state);
      }).detach();
    } catch (const std::system_error& error) {
      build.state_.reset();  // those before it end, as nobody has begun them
      return fail(ErrorCode::kResourceExhausted,
                  std::string("nccl: cannot start a thread for a communicator: ") + error.what());
    }
    under_way_.push_back(build.state_);
  }
  return builds;
}

}  // namespace tandem::transport
