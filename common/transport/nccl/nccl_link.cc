#include "common/transport/nccl/nccl_link.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/transport/direct/wire_format.h"

namespace tandem::transport {
namespace {

// A message of 8 MiB takes well under a millisecond. Building a communicator takes up to seconds.
constexpr Duration kOperationTime = std::chrono::seconds(2);
constexpr Duration kBuildTime = std::chrono::seconds(20);
constexpr size_t kGreetingBytes = 256;
constexpr uint32_t kSmallerBy = 8;
constexpr uint32_t kSmallSlots = 2;
constexpr size_t kEnoughFlying = 2;

}  // namespace

Result<SlotPool> SlotPool::create(size_t slot_bytes, uint32_t slots) {
  SlotPool pool;
  pool.slot_bytes_ = slot_bytes;
  const size_t small_bytes = slot_bytes / kSmallerBy;
  const size_t small_slots = size_t{slots} * kSmallSlots;
  TANDEM_ASSIGN(pool.memory_,
                cuda::DeviceBuffer::create(slot_bytes * slots + small_bytes * small_slots));
  for (uint32_t i = 0; i < slots; ++i) pool.free_.push_back(pool.memory_.data() + i * slot_bytes);
  pool.small_begin_ = pool.memory_.data() + slots * slot_bytes;
  for (size_t i = 0; i < small_slots; ++i)
    pool.small_.push_back(pool.small_begin_ + i * small_bytes);
  return pool;
}

std::byte* SlotPool::take(size_t bytes) {
  std::vector<std::byte*>& from = bytes <= slot_bytes_ / kSmallerBy ? small_ : free_;
  if (from.empty()) return nullptr;
  std::byte* const slot = from.back();
  from.pop_back();
  return slot;
}

Result<std::unique_ptr<NcclLink>> NcclLink::create(const NcclShared& shared, bool sender,
                                                   const ncclUniqueId& id,
                                                   std::shared_ptr<SelfPair> self) {
  auto link = std::unique_ptr<NcclLink>(new NcclLink(shared, sender));
  link->self_ = std::move(self);
  link->progress_at_ = link->clock_.now();
  if (link->self_ && !sender) {  // the sender's rank does the receiving as well
    link->built_ = link->greeted_ = true;
    return link;
  }
  TANDEM_ASSIGN(link->stream_, cuda::Stream::create(cuda::StreamPriority::kHigh));
  TANDEM_ASSIGN(link->greeting_, cuda::DeviceBuffer::create(2 * kGreetingBytes));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const int ranks = link->self_ ? 1 : 2;
  TANDEM_TRY(shared.api.status(
      shared.api.ncclCommInitRankConfig(&link->comm_, ranks, id, sender ? 0 : 1, &config),
      "ncclCommInitRankConfig", link->comm_));
  Operation greeting{.slot = kGreeting,
                     .message = {link->greeting_.data(), kGreetingBytes},
                     .self_receive = link->greeting_.data() + kGreetingBytes};
  link->waiting_.push_back(std::move(greeting));
  return link;
}

NcclLink::~NcclLink() {
  if (comm_ != nullptr) (void)shared_.api.ncclCommAbort(comm_);
  // The abort has ended the kernels; slots must not be reused before they have.
  if (stream_.get() != nullptr) (void)stream_.synchronize();
  for (const auto& [slot, message] : staged_) shared_.send_slots.put(message.data);
  for (const auto& [slot, message] : arrivals_) {
    if (message.data != nullptr) shared_.receive_slots.put(message.data);
  }
}

Result<bool> NcclLink::settled() {
  ncclResult_t state = ncclSuccess;
  TANDEM_TRY(shared_.api.status(shared_.api.ncclCommGetAsyncError(comm_, &state),
                                "ncclCommGetAsyncError", comm_));
  TANDEM_TRY(shared_.api.status(state, "nccl", comm_));
  return state == ncclSuccess;
}

Status NcclLink::enqueue(const Operation& op) {
  const NcclApi& api = shared_.api;
  const auto peer = sender_ ? 1 : 0;
  const auto send = [&](int to) {
    return api.status(
        api.ncclSend(op.message.data, op.message.bytes, ncclInt8, to, comm_, stream_.get()),
        "ncclSend", comm_);
  };
  const auto receive = [&](std::byte* data, int from) {
    return api.status(api.ncclRecv(data, op.message.bytes, ncclInt8, from, comm_, stream_.get()),
                      "ncclRecv", comm_);
  };
  if (!self_) return sender_ ? send(peer) : receive(op.message.data, peer);
  TANDEM_TRY(send(0));
  return receive(op.self_receive, 0);
}

Status NcclLink::issue(std::span<const Operation> operations) {
  const NcclApi& api = shared_.api;
  TANDEM_TRY(api.status(api.ncclGroupStart(), "ncclGroupStart", comm_));
  Status enqueued;
  for (const Operation& op : operations) {
    if (enqueued) enqueued = enqueue(op);
  }
  // A group that was begun is ended in any case.
  TANDEM_TRY(api.status(api.ncclGroupEnd(), "ncclGroupEnd", comm_));
  return enqueued;
}

Status NcclLink::issued_group() {
  Group group{.operations = std::move(issuing_), .done = {}};
  issuing_.clear();
  if (spare_events_.empty()) {
    TANDEM_ASSIGN(group.done, cuda::Event::create());
  } else {
    group.done = std::move(spare_events_.back());
    spare_events_.pop_back();
  }
  TANDEM_TRY(group.done.record(stream_));
  flying_.push_back(std::move(group));
  return {};
}

// Moves operations from waiting to the stream and out of it, one group being issued at a time.
Status NcclLink::pump() {
  if (comm_ == nullptr) return {};
  const TimePoint now = clock_.now();
  if (!built_) {
    TANDEM_ASSIGN(built_, settled());
    if (!built_ && now - progress_at_ > kBuildTime) {
      return fail(ErrorCode::kDeadlineExceeded, "nccl: the communicator was not built in time");
    }
    if (!built_) return {};
    progress_at_ = now;
  }
  while (!flying_.empty()) {
    TANDEM_ASSIGN(const bool done, flying_.front().done.done());
    if (!done) break;
    for (const Operation& op : flying_.front().operations) complete(op);
    spare_events_.push_back(std::move(flying_.front().done));
    flying_.pop_front();
    progress_at_ = now;
  }
  while (true) {
    if (!issuing_.empty()) {
      TANDEM_ASSIGN(const bool in_stream, settled());
      if (!in_stream) break;
      TANDEM_TRY(issued_group());
    }
    if (waiting_.empty() || flying_.size() >= kEnoughFlying) break;
    if (flying_.empty()) progress_at_ = now;
    const auto count = static_cast<ptrdiff_t>(std::min(waiting_.size(), shared_.most_grouped));
    issuing_.assign(std::make_move_iterator(waiting_.begin()),
                    std::make_move_iterator(waiting_.begin() + count));
    waiting_.erase(waiting_.begin(), waiting_.begin() + count);
    TANDEM_TRY(issue(issuing_));
  }
  const bool waits = !issuing_.empty() || !flying_.empty();
  if (waits && now - progress_at_ > (greeted_ ? kOperationTime : kBuildTime)) {
    return fail(ErrorCode::kDeadlineExceeded,
                "nccl: the peer did not take part in a transfer in time");
  }
  return {};
}

void NcclLink::complete(const Operation& op) {
  if (op.slot == kGreeting) {
    greeted_ = true;
    return;
  }
  if (!sender_) {
    arrived_.insert(op.slot);
    return;
  }
  if (self_) {
    std::lock_guard lock(self_->mutex);
    self_->arrived.insert(op.slot);
  }
  abandon(op.slot);
}

Result<bool> NcclLink::ready() {
  TANDEM_TRY(pump());
  return greeted_;
}

bool NcclLink::busy() const {
  return !greeted_ || !issuing_.empty() || !waiting_.empty() || !flying_.empty();
}

Result<std::optional<Link::Staged>> NcclLink::stage(std::span<Piece> pieces) {
  const size_t bytes = pieces.size() * pieces.front().bytes;
  if (bytes > shared_.send_slots.slot_bytes()) {
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
  Operation op{.slot = slot, .message = it->second, .self_receive = nullptr};
  if (self_) {
    std::lock_guard lock(self_->mutex);
    const auto granted = self_->granted.find(slot);
    if (granted == self_->granted.end()) return fail(ErrorCode::kCorruptData, "nccl: no grant");
    op.self_receive = granted->second;
    self_->granted.erase(granted);
  }
  waiting_.push_back(std::move(op));
  return pump();
}

Result<uint64_t> NcclLink::accept(std::string_view note, std::span<Piece> pieces) {
  TANDEM_ASSIGN(const uint64_t slot, parse_go(note));
  const size_t bytes = pieces.size() * pieces.front().bytes;
  if (slot == kGreeting || slot <= last_slot_ || bytes > shared_.receive_slots.slot_bytes()) {
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
  waiting_.push_back({.slot = arrival, .message = message, .self_receive = nullptr});
  TANDEM_TRY(pump());
  return true;
}

Result<bool> NcclLink::arrived(uint64_t arrival) {
  if (self_) {
    std::lock_guard lock(self_->mutex);
    return self_->arrived.erase(arrival) > 0;
  }
  TANDEM_TRY(pump());
  return arrived_.erase(arrival) > 0;
}

void NcclLink::release(uint64_t arrival) {
  const auto it = arrivals_.find(arrival);
  if (it == arrivals_.end()) return;
  if (it->second.data != nullptr) shared_.receive_slots.put(it->second.data);
  arrivals_.erase(it);
}

}  // namespace tandem::transport
