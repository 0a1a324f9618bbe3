#include "common/transport/nccl/nccl_lane.h"

#include <utility>

namespace tandem::transport {
namespace {

// A group of messages takes a millisecond at most. Building a communicator takes up to seconds.
constexpr Duration kOperationTime = std::chrono::seconds(2);
constexpr Duration kBuildTime = std::chrono::seconds(20);
constexpr size_t kEnoughFlying = 2;

}  // namespace

NcclLane::NcclLane(const NcclApi& api, NcclBuilder::Build build, const NcclBuilder::Plan& plan,
                   const Limits& limits)
    : api_(api),
      plan_(plan),
      limits_(limits),
      build_(std::move(build)),
      progress_at_(clock_.now()) {}

NcclLane::~NcclLane() {
  if (!ready()) return;
  const cuda::DeviceScope scope(plan_.device);
  built_.owner.reset();
  // The abort has ended the kernels; slots must not be reused before they have.
  (void)built_.stream.synchronize();
}

Status NcclLane::await_communicator() {
  TANDEM_ASSIGN(const bool done, build_.done());
  const TimePoint now = clock_.now();
  if (done) {
    built_ = build_.take();
    progress_at_ = now;
  } else if (now - progress_at_ > kBuildTime) {
    return fail(ErrorCode::kDeadlineExceeded, "nccl: the communicator was not built in time");
  }
  return {};
}

Status NcclLane::advance(std::vector<uint64_t>& ended) {
  if (!ready()) TANDEM_TRY(await_communicator());
  if (!ready()) return {};
  const TimePoint now = clock_.now();
  while (!flying_.empty()) {
    Group& group = flying_.front();
    TANDEM_ASSIGN(const bool done, group.done.done());
    if (!done) {
      TANDEM_TRY(check_communicator());
      break;
    }
    ended.insert(ended.end(), group.messages.begin(), group.messages.end());
    spare_events_.push_back(std::move(group.done));
    flying_.pop_front();
    progress_at_ = now;
  }
  if (flying_.empty()) progress_at_ = now;
  while (!waiting_.empty() && flying_.size() < kEnoughFlying) TANDEM_TRY(launch());
  if (now - progress_at_ > kOperationTime) {
    return fail(ErrorCode::kDeadlineExceeded,
                "nccl: the peer did not take part in a transfer in time");
  }
  return {};
}

// What NCCL's own threads find, or a GPU that gives up, shows nowhere else: the messages under way
// would be waited for until their time is over.
Status NcclLane::check_communicator() const {
  ncclResult_t found = ncclSuccess;
  TANDEM_TRY(api_.status(api_.ncclCommGetAsyncError(built_.comm(), &found), "ncclCommGetAsyncError",
                         built_.comm()));
  return api_.status(found, "nccl: the communicator failed", built_.comm());
}

Status NcclLane::enqueue(const Message& message) {
  const cudaStream_t stream = built_.stream.get();
  const bool self = plan_.ranks == 1;
  const int peer = self ? 0 : 1 - plan_.rank;
  if (plan_.rank == 0) {
    TANDEM_TRY(api_.status(
        api_.ncclSend(message.data, message.bytes, ncclInt8, peer, built_.comm(), stream),
        "ncclSend", built_.comm()));
    if (!self) return {};
  }
  std::byte* const to = self ? message.self_receive : message.data;
  return api_.status(api_.ncclRecv(to, message.bytes, ncclInt8, peer, built_.comm(), stream),
                     "ncclRecv", built_.comm());
}

Status NcclLane::launch() {
  Group group;
  if (spare_events_.empty()) {
    TANDEM_ASSIGN(group.done, cuda::Event::create());
  } else {
    group.done = std::move(spare_events_.back());
    spare_events_.pop_back();
  }
  TANDEM_TRY(api_.status(api_.ncclGroupStart(), "ncclGroupStart", built_.comm()));
  Status enqueued;
  size_t bytes = 0;
  while (enqueued && !waiting_.empty() && group.messages.size() < limits_.messages &&
         (bytes == 0 || bytes + waiting_.front().bytes <= limits_.bytes)) {
    const Message message = waiting_.front();
    waiting_.pop_front();
    bytes += message.bytes;
    group.messages.push_back(message.id);
    enqueued = enqueue(message);
  }
  // A group that was begun is ended in any case.
  TANDEM_TRY(api_.status(api_.ncclGroupEnd(), "ncclGroupEnd", built_.comm()));
  TANDEM_TRY(std::move(enqueued));
  TANDEM_TRY(group.done.record(built_.stream));
  flying_.push_back(std::move(group));
  return {};
}

}  // namespace tandem::transport
