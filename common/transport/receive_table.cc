#include "common/transport/receive_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem::transport {
namespace {

using proto::KvFrameHeader;
using proto::KvFrameKind;

// Late frames come within seconds; what is forgotten here is still refused, only with fewer words.
constexpr size_t kRememberedTransfers = 4096;
constexpr size_t kRememberedGenerations = 1024;

std::string name_of(TransferId id) { return "transfer " + std::to_string(id.value); }

Status check_destination(const KvFrameHeader& header, size_t bytes, size_t expected) {
  if (bytes == expected) return {};
  return fail(ErrorCode::kInternal, name_of(header.transfer) + ": a destination page has " +
                                        std::to_string(bytes) + " bytes instead of " +
                                        std::to_string(expected));
}

}  // namespace

TransportCounters AtomicCounters::snapshot() const {
  TransportCounters c;
  c.frames_sent = frames_sent;
  c.frames_received = frames_received;
  c.bytes_sent = bytes_sent;
  c.bytes_received = bytes_received;
  c.frames_rejected_checksum = rejected_checksum;
  c.frames_rejected_malformed = rejected_malformed;
  c.frames_rejected_generation = rejected_generation;
  c.frames_rejected_unknown = rejected_unknown;
  c.frames_rejected_replayed = rejected_replayed;
  c.transfers_expired = transfers_expired;
  return c;
}

Frame Answer::frame() const {
  return reason ? make_reason_frame(origin, KvFrameKind::kReject, *reason) : make_ack_frame(origin);
}

ReceiveTable::ReceiveTable(const TransportDeps& deps, AtomicCounters& counters)
    : self_(deps.self),
      clock_(deps.clock),
      events_(deps.events),
      capacity_(deps.limits.max_receives),
      counters_(counters),
      pages_(deps.memory) {}

Status ReceiveTable::open(ReceivePlan plan) {
  TANDEM_TRY(check_layout(plan.layout));
  if (plan.id.value == 0 || plan.sender.value == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "a receive needs a transfer id and a sender generation");
  }
  if ((plan.pages > 0 && !plan.destination) || plan.deadline <= Duration::zero()) {
    return fail(ErrorCode::kInvalidArgument, "a receive needs destinations and a deadline");
  }
  if (plan.tail_rows > 0 && !plan.layout.needs_tail()) {
    return fail(ErrorCode::kInvalidArgument, "this KV format has no tail page");
  }
  if (plan.tail_rows > kv::kBlockTokens || (plan.tail_rows > 0) != bool(plan.tail_destination)) {
    return fail(ErrorCode::kInvalidArgument,
                "a receive with a tail needs its destination and 1 to " +
                    std::to_string(kv::kBlockTokens) + " rows");
  }
  Receive receive;
  receive.geometry = geometry_hash(plan.layout);
  receive.pages = PageSet(size_t{plan.layout.layers} * plan.pages);
  receive.tails.resize(plan.tail_rows > 0 ? plan.layout.layers : 0);
  receive.missing = receive.pages.size() + receive.tails.size();
  receive.opened = clock_.now();
  receive.deadline = receive.opened + plan.deadline;
  const TransferId id = plan.id;
  receive.plan = std::move(plan);

  std::lock_guard lock(mutex_);
  if (fenced_.contains(receive.plan.sender)) {
    return fail(ErrorCode::kUnavailable, name_of(id) + ": its sender's generation is fenced");
  }
  if (open_.contains(id) || ended_.contains(id)) {
    return fail(ErrorCode::kInvalidArgument, name_of(id) + " was already opened here",
                "transfer_id");
  }
  if (open_.size() >= capacity_) {
    return fail(ErrorCode::kQueueFull,
                "all " + std::to_string(capacity_) + " receives of this transport are open");
  }
  open_.emplace(id, std::move(receive));
  return {};
}

void ReceiveTable::close(TransferId id) {
  bool writing = false;
  {
    std::lock_guard lock(mutex_);
    const auto it = open_.find(id);
    if (it == open_.end()) return;
    writing = it->second.in_flight > 0;
    open_.erase(it);
    remember(id, {.complete = false, .why = "the receiver closed it"});
  }
  if (writing) drain_();
}

void ReceiveTable::shut_out(Generation sender) {
  std::lock_guard lock(mutex_);
  if (!fenced_.insert(sender).second) return;
  fenced_order_.push_back(sender);
  if (fenced_order_.size() > kRememberedGenerations) {
    fenced_.erase(fenced_order_.front());
    fenced_order_.pop_front();
  }
}

void ReceiveTable::end_shut_out(Generation sender) {
  {
    std::lock_guard lock(mutex_);
    if (!fenced_.contains(sender)) return;
  }
  end_all(sender, make_error(ErrorCode::kTransport, "the sender's generation was fenced"));
}

void ReceiveTable::readmit(Generation sender) {
  std::lock_guard lock(mutex_);
  if (fenced_.erase(sender) > 0) std::erase(fenced_order_, sender);
}

void ReceiveTable::sender_lost(Generation sender, const Error& error) { end_all(sender, error); }

void ReceiveTable::end_all(Generation sender, const Error& error) {
  std::vector<TransferId> ended;
  bool writing = false;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, receive] : open_) {
      if (receive.plan.sender != sender) continue;
      ended.push_back(id);
      writing = writing || receive.in_flight > 0;
    }
    for (const TransferId id : ended) {
      open_.erase(id);
      remember(id, {.complete = false, .why = error.detail});
    }
  }
  if (writing) drain_();
  std::ranges::sort(ended);
  for (const TransferId id : ended) events_.on_receive_failed(id, error);
}

void ReceiveTable::sweep(TimePoint now) {
  std::vector<TransferId> expired;
  bool writing = false;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, receive] : open_) {
      if (receive.deadline > now) continue;
      expired.push_back(id);
      writing = writing || receive.in_flight > 0;
    }
    for (const TransferId id : expired) {
      open_.erase(id);
      remember(id, {.complete = false, .why = "the receive deadline passed"});
    }
  }
  if (writing) drain_();
  std::ranges::sort(expired);
  for (const TransferId id : expired) {
    counters_.transfers_expired.fetch_add(1, std::memory_order_relaxed);
    events_.on_receive_failed(id,
                              make_error(ErrorCode::kDeadlineExceeded,
                                         name_of(id) + " did not complete before its deadline"));
  }
}

void ReceiveTable::remember(TransferId id, Ended ended) {
  if (ended_.insert_or_assign(id, std::move(ended)).second) ended_order_.push_back(id);
  if (ended_order_.size() > kRememberedTransfers) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

Answer ReceiveTable::reject(const KvFrameHeader& header, Error reason) const {
  return {.origin = {header.transfer, self_, header.sender, header.geometry, header.format},
          .reason = std::move(reason)};
}

// `tell`: the sender does not know yet.
ReceiveTable::Outcome ReceiveTable::fail_transfer(const KvFrameHeader& header, Error error,
                                                  bool tell) {
  Outcome outcome;
  if (const auto it = open_.find(header.transfer); it != open_.end()) {
    outcome.writing = it->second.in_flight > 0;
    open_.erase(it);
  }
  remember(header.transfer, {.complete = false, .why = error.detail});
  if (tell) outcome.answer = reject(header, error);
  outcome.failed = std::move(error);
  return outcome;
}

// Everything about a frame but its payload. Empty: it is wanted. Under the mutex.
std::optional<ReceiveTable::Outcome> ReceiveTable::refuse(const KvFrameHeader& header) {
  const auto dropped = [&](std::atomic<uint64_t>& counter, ErrorCode code, std::string why) {
    counter.fetch_add(1, std::memory_order_relaxed);
    Outcome outcome;
    // Whoever sent a cancel or an error has ended the transfer already.
    if (header.kind != KvFrameKind::kCancel && header.kind != KvFrameKind::kError) {
      outcome.answer = reject(header, make_error(code, name_of(header.transfer) + ": " + why));
    }
    return outcome;
  };
  if (header.receiver != self_) {
    return dropped(counters_.rejected_generation, ErrorCode::kUnavailable,
                   "the receiver was restarted since (another generation)");
  }
  if (fenced_.contains(header.sender)) {
    return dropped(counters_.rejected_generation, ErrorCode::kUnavailable,
                   "this sender's generation is fenced");
  }
  const auto it = open_.find(header.transfer);
  if (it == open_.end()) {
    const auto ended = ended_.find(header.transfer);
    if (ended != ended_.end() && ended->second.complete) {
      counters_.rejected_replayed.fetch_add(1, std::memory_order_relaxed);
      return Outcome{};  // a late copy: the sender has its ack
    }
    return dropped(counters_.rejected_unknown, ErrorCode::kCancelled,
                   ended == ended_.end() ? "not open at the receiver" : ended->second.why);
  }
  const Receive& receive = it->second;
  if (header.sender != receive.plan.sender) {
    return dropped(counters_.rejected_generation, ErrorCode::kUnavailable,
                   "reserved for another sender generation");
  }
  const auto broken = [&](ErrorCode code, const std::string& why) {
    counters_.rejected_malformed.fetch_add(1, std::memory_order_relaxed);
    return fail_transfer(header, make_error(code, name_of(header.transfer) + ": " + why), true);
  };
  if (header.geometry != receive.geometry) {
    return broken(ErrorCode::kMismatch, "the sender's KV layout differs from this pool's (" +
                                            receive.plan.layout.describe() + ")");
  }
  if (header.kind == KvFrameKind::kCommit && receive.commit) {
    counters_.rejected_replayed.fetch_add(1, std::memory_order_relaxed);
    return Outcome{};
  }
  const bool data = header.kind == KvFrameKind::kData;
  if (!data && header.kind != KvFrameKind::kTail) return std::nullopt;
  const kv::KvLayout& layout = receive.plan.layout;
  if (header.layer >= layout.layers ||
      (data && uint64_t{header.first_page} + header.pages > receive.plan.pages) ||
      (!data && receive.tails.empty())) {
    return broken(ErrorCode::kCorruptData, "a " + std::string(to_string(header.kind)) +
                                               " frame names pages outside the reservation");
  }
  if (!data && header.pages != receive.plan.tail_rows) {
    return broken(ErrorCode::kCorruptData,
                  "a tail frame has " + std::to_string(header.pages) + " rows, but " +
                      std::to_string(receive.plan.tail_rows) + " were reserved");
  }
  const size_t expected =
      data ? header.pages * layout.page_bytes() : tail_runs(layout, receive.plan.tail_rows).bytes();
  if (header.payload_bytes != expected) {
    return broken(ErrorCode::kCorruptData, "a " + std::string(to_string(header.kind)) +
                                               " frame has the wrong length for its pages");
  }
  const size_t first = size_t{header.layer} * receive.plan.pages + header.first_page;
  const bool replayed =
      data ? receive.pages.any(first, header.pages) : bool{receive.tails[header.layer]};
  if (replayed) {
    counters_.rejected_replayed.fetch_add(1, std::memory_order_relaxed);
    return Outcome{};
  }
  return std::nullopt;
}

ReceiveTable::Admission ReceiveTable::admit(const KvFrameHeader& header) {
  std::optional<Outcome> refused;
  {
    std::lock_guard lock(mutex_);
    refused = refuse(header);
  }
  if (!refused) return {.wanted = true, .answer = {}};
  raise(header.transfer, *refused);
  return {.wanted = false, .answer = std::move(refused->answer)};
}

Status ReceiveTable::write(Receive& receive, const KvFrameHeader& header,
                           std::span<const std::byte> payload) {
  TANDEM_ASSIGN(const auto to, destinations(receive, header));
  TANDEM_TRY(pages_.write(to, payload));
  mark(receive, header);
  receive.missing -= header.kind == KvFrameKind::kData ? header.pages : 1;
  return {};
}

// Taken from now on: a second copy of this frame is a replay.
void ReceiveTable::mark(Receive& receive, const KvFrameHeader& header) {
  if (header.kind == KvFrameKind::kTail) {
    receive.tails[header.layer] = true;
    return;
  }
  const size_t first = size_t{header.layer} * receive.plan.pages + header.first_page;
  receive.pages.add(first, header.pages);
}

// A wanted frame with a payload that holds. Under the mutex.
ReceiveTable::Outcome ReceiveTable::take(const KvFrameHeader& header,
                                         std::span<const std::byte> payload) {
  Receive& receive = open_.find(header.transfer)->second;
  ++receive.stats.frames;
  receive.stats.wire_bytes += proto::kKvHeaderBytes + payload.size();
  switch (header.kind) {
    case KvFrameKind::kData:
    case KvFrameKind::kTail: {
      Status written = write(receive, header, payload);
      if (!written) return fail_transfer(header, std::move(written).error(), true);
      break;
    }
    case KvFrameKind::kCommit:
      receive.commit.emplace(reinterpret_cast<const char*>(payload.data()), payload.size());
      break;
    case KvFrameKind::kCancel:
    case KvFrameKind::kError: {
      Error error = proto::parse_kv_reason(payload);
      if (header.kind == KvFrameKind::kCancel) error.code = ErrorCode::kCancelled;
      error.detail = name_of(header.transfer) + ": the sender gave up: " + error.detail;
      return fail_transfer(header, std::move(error), false);
    }
    case KvFrameKind::kAck:
    case KvFrameKind::kReject:
      return {};
  }
  return complete(header, receive);
}

// The transfer's last frame may have come. Under the mutex.
ReceiveTable::Outcome ReceiveTable::complete(const KvFrameHeader& header, Receive& receive) {
  if (receive.missing > 0 || !receive.commit) return {};
  receive.stats.elapsed = clock_.now() - receive.opened;
  Outcome outcome;
  outcome.answer =
      Answer{.origin = {header.transfer, self_, header.sender, header.geometry, header.format},
             .reason = {}};
  outcome.received = std::move(receive);
  open_.erase(header.transfer);
  remember(header.transfer, {.complete = true, .why = {}});
  return outcome;
}

std::optional<Answer> ReceiveTable::deliver(const KvFrameHeader& header,
                                            std::span<const std::byte> payload) {
  Admission admission = admit(header);
  if (!admission.wanted) return std::move(admission.answer);
  // The slow part, outside the mutex.
  const bool holds =
      payload.size() == header.payload_bytes &&
      proto::kv_payload_checksum(header.transfer, payload) == header.payload_checksum;
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    if (std::optional<Outcome> refused = refuse(header)) {  // closed, or copied, in between
      outcome = std::move(*refused);
    } else if (!holds) {
      counters_.rejected_checksum.fetch_add(1, std::memory_order_relaxed);
      outcome = fail_transfer(
          header,
          make_error(ErrorCode::kCorruptData, name_of(header.transfer) + ": a " +
                                                  std::string(to_string(header.kind)) +
                                                  " frame's payload does not match its checksum"),
          true);
    } else {
      outcome = take(header, payload);
    }
  }
  raise(header.transfer, outcome);
  return std::move(outcome.answer);
}

Result<std::vector<std::span<std::byte>>> ReceiveTable::destinations(Receive& receive,
                                                                     const KvFrameHeader& header) {
  const kv::KvLayout& layout = receive.plan.layout;
  std::vector<std::span<std::byte>> to;
  if (header.kind == KvFrameKind::kData) {
    const size_t page_bytes = layout.page_bytes();
    to.reserve(header.pages);
    for (uint32_t i = 0; i < header.pages; ++i) {
      to.push_back(receive.plan.destination(header.layer, header.first_page + i));
      TANDEM_TRY(check_destination(header, to.back().size(), page_bytes));
    }
    return to;
  }
  const std::span<std::byte> page = receive.plan.tail_destination(header.layer);
  TANDEM_TRY(check_destination(header, page.size(), layout.tail_layout().page_bytes()));
  const TailRuns runs = tail_runs(layout, receive.plan.tail_rows);
  for (size_t i = 0; i < runs.count; ++i)
    to.push_back(page.subspan(i * runs.stride, runs.run_bytes));
  return to;
}

ReceiveTable::Begun ReceiveTable::begin(const KvFrameHeader& header, const Start& start) {
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    if (std::optional<Outcome> refused = refuse(header)) {
      outcome = std::move(*refused);
    } else {
      Receive& receive = open_.find(header.transfer)->second;
      if (auto to = destinations(receive, header); to) {
        ++receive.stats.frames;
        receive.stats.wire_bytes += proto::kKvHeaderBytes + header.payload_bytes;
        ++receive.in_flight;
        mark(receive, header);
        start(*to);
        return {.started = true, .answer = {}};
      } else {
        outcome = fail_transfer(header, std::move(to).error(), true);
      }
    }
  }
  raise(header.transfer, outcome);
  return {.started = false, .answer = std::move(outcome.answer)};
}

std::optional<Answer> ReceiveTable::finish(const KvFrameHeader& header, Status result) {
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    const auto it = open_.find(header.transfer);
    if (it == open_.end() || it->second.plan.sender != header.sender) {
      // Closed meanwhile. The sender may have committed already and is to know.
      const auto ended = ended_.find(header.transfer);
      outcome.answer = reject(
          header,
          make_error(ErrorCode::kCancelled,
                     name_of(header.transfer) + ": " +
                         (ended == ended_.end() ? "not open at the receiver" : ended->second.why)));
    } else if (!result) {
      counters_.rejected_checksum.fetch_add(1, std::memory_order_relaxed);
      --it->second.in_flight;
      outcome = fail_transfer(header, std::move(result).error(), true);
    } else {
      Receive& receive = it->second;
      --receive.in_flight;
      receive.missing -= header.kind == KvFrameKind::kData ? header.pages : 1;
      outcome = complete(header, receive);
    }
  }
  raise(header.transfer, outcome);
  return std::move(outcome.answer);
}

std::optional<Answer> ReceiveTable::break_off(const KvFrameHeader& header, Error error) {
  Outcome outcome;
  {
    std::lock_guard lock(mutex_);
    const auto it = open_.find(header.transfer);
    if (it == open_.end() || it->second.plan.sender != header.sender) return std::nullopt;
    counters_.rejected_checksum.fetch_add(1, std::memory_order_relaxed);
    outcome = fail_transfer(header, std::move(error), true);
  }
  raise(header.transfer, outcome);
  return std::move(outcome.answer);
}

void ReceiveTable::raise(TransferId id, Outcome& outcome) {
  if (outcome.writing) drain_();
  if (outcome.failed) events_.on_receive_failed(id, std::move(*outcome.failed));
  if (outcome.received) {
    events_.on_received(id, std::move(*outcome.received->commit), outcome.received->stats);
  }
}

size_t ReceiveTable::open_count() const {
  std::lock_guard lock(mutex_);
  return open_.size();
}

}  // namespace tandem::transport
