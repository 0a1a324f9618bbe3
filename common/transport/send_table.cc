#include "common/transport/send_table.h"

#include <algorithm>
#include <utility>

#include "common/base/patient_lock.h"

namespace tandem::transport {
namespace {

std::string name_of(TransferId id) { return "transfer " + std::to_string(id.value); }

tl::unexpected<Error> bad_post(TransferId id, const std::string& why) {
  return fail(ErrorCode::kInvalidArgument, name_of(id) + ": " + why);
}

}  // namespace

SendTable::SendTable(const TransportDeps& deps, AtomicCounters& counters)
    : self_(deps.self),
      clock_(deps.clock),
      events_(deps.events),
      capacity_(deps.limits.max_sends),
      counters_(counters) {}

Status SendTable::open(const SendSpec& spec) {
  TANDEM_TRY(check_layout(spec.layout));
  if (spec.id.value == 0 || spec.receiver.value == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "a send needs a transfer id and a receiver generation");
  }
  if (spec.deadline <= Duration::zero()) return bad_post(spec.id, "a send needs a deadline");
  if (spec.tail_rows > kv::kBlockTokens || (spec.tail_rows > 0 && !spec.layout.needs_tail())) {
    return bad_post(spec.id,
                    "this KV format has no tail of " + std::to_string(spec.tail_rows) + " rows");
  }
  Send send;
  send.spec = spec;
  send.route = std::make_shared<const Route>(route_of(spec));
  send.pages = PageSet(size_t{spec.layout.layers} * spec.pages);
  send.tails.resize(spec.tail_rows > 0 ? spec.layout.layers : 0);
  send.missing = send.pages.size() + send.tails.size();
  send.opened = clock_.now();
  send.deadline = send.opened + spec.deadline;

  std::lock_guard lock(mutex_);
  if (open_.contains(spec.id)) return bad_post(spec.id, "is already being sent");
  if (open_.size() >= capacity_) {
    return fail(ErrorCode::kQueueFull,
                "all " + std::to_string(capacity_) + " sends of this transport are open");
  }
  open_.emplace(spec.id, std::move(send));
  return {};
}

Result<SendTable::Send*> SendTable::find(TransferId id) {
  const auto it = open_.find(id);
  if (it == open_.end()) return fail(ErrorCode::kNotFound, name_of(id) + " is not being sent");
  if (it->second.committed) return bad_post(id, "nothing may be posted after the commit");
  return &it->second;
}

SendTable::Route SendTable::route_of(const SendSpec& spec) const {
  return {.origin = {spec.id, self_, spec.receiver, geometry_hash(spec.layout),
                     static_cast<uint8_t>(spec.layout.format)},
          .address = spec.address,
          .tail_rows = spec.tail_rows,
          .tail = tail_runs(spec.layout, spec.tail_rows)};
}

void SendTable::posted(Send& send, size_t pages) {
  if (!send.first_post) send.first_post = clock_.now();
  const size_t bf16_page = send.spec.layout.bf16_block_bytes() / send.spec.layout.layers;
  send.stats.raw_bytes += pages * bf16_page;
  send.missing -= pages;
}

Status SendTable::post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                             std::span<const std::span<const std::byte>> pages) {
  PatientLock lock(mutex_);
  TANDEM_ASSIGN(Send* const send, find(id));
  const SendSpec& spec = send->spec;
  if (layer >= spec.layout.layers || uint64_t{first_page} + pages.size() > spec.pages) {
    return bad_post(id, "layer " + std::to_string(layer) + ", pages " + std::to_string(first_page) +
                            " and on lie outside the transfer");
  }
  const size_t at = size_t{layer} * spec.pages + first_page;
  const size_t page_bytes = spec.layout.page_bytes();  // once: the transport's thread waits
  for (size_t i = 0; i < pages.size(); ++i) {
    if (pages[i].size() != page_bytes) {
      return bad_post(id, "a page has " + std::to_string(pages[i].size()) + " bytes instead of " +
                              std::to_string(page_bytes));
    }
  }
  if (send->pages.any(at, pages.size())) return bad_post(id, "a page was posted twice");
  send->pages.add(at, pages.size());
  posted(*send, pages.size());
  return {};
}

Status SendTable::post_tail(TransferId id, uint32_t layer, std::span<const std::byte> page) {
  std::lock_guard lock(mutex_);
  TANDEM_ASSIGN(Send* const send, find(id));
  if (layer >= send->tails.size()) return bad_post(id, "no tail page was announced for this layer");
  if (send->tails[layer]) return bad_post(id, "a tail page was posted twice");
  if (page.size() != send->spec.layout.tail_layout().page_bytes()) {
    return bad_post(id, "a tail page has " + std::to_string(page.size()) + " bytes");
  }
  send->tails[layer] = true;
  posted(*send, 1);
  return {};
}

Status SendTable::post_commit(TransferId id, size_t commit_bytes) {
  std::lock_guard lock(mutex_);
  TANDEM_ASSIGN(Send* const send, find(id));
  if (commit_bytes > proto::kMaxKvCommit) {
    return bad_post(id, "the commit has " + std::to_string(commit_bytes) + " bytes, more than " +
                            std::to_string(proto::kMaxKvCommit));
  }
  if (send->missing > 0) {
    return bad_post(id, std::to_string(send->missing) + " pages were never posted");
  }
  send->committed = true;
  if (!send->first_post) send->first_post = clock_.now();
  return {};
}

std::shared_ptr<const SendTable::Route> SendTable::route(TransferId id) const {
  PatientLock lock(mutex_);
  const auto it = open_.find(id);
  return it == open_.end() ? nullptr : it->second.route;
}

bool SendTable::is_open(TransferId id) const {
  PatientLock lock(mutex_);
  return open_.contains(id);
}

void SendTable::count_frame(TransferId id, size_t wire_bytes) {
  counters_.count_sent(wire_bytes);
  PatientLock lock(mutex_);
  const auto it = open_.find(id);
  if (it == open_.end()) return;
  ++it->second.stats.frames;
  it->second.stats.wire_bytes += wire_bytes;
}

std::optional<SendTable::Send> SendTable::remove(TransferId id) {
  const auto it = open_.find(id);
  if (it == open_.end()) return std::nullopt;
  Send send = std::move(it->second);
  open_.erase(it);
  return send;
}

void SendTable::deliver(const proto::KvFrameHeader& header, std::span<const std::byte> payload) {
  const bool ack = header.kind == proto::KvFrameKind::kAck;
  if (payload.size() != header.payload_bytes ||
      proto::kv_payload_checksum(header.transfer, payload) != header.payload_checksum) {
    counters_.rejected_checksum.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::optional<Send> send;
  {
    std::lock_guard lock(mutex_);
    const auto it = open_.find(header.transfer);
    if (header.receiver != self_ ||
        (ack && it != open_.end() && header.sender != it->second.spec.receiver)) {
      counters_.rejected_generation.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (it == open_.end()) {
      counters_.rejected_unknown.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (ack && !it->second.committed) {
      counters_.rejected_malformed.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    // A reject counts from any generation: a receiver that was restarted says so under its new one.
    send = remove(header.transfer);
  }
  if (ack) {
    send->stats.last_completion = clock_.now();
    send->stats.elapsed = send->stats.last_completion - send->first_post.value_or(send->opened);
    events_.on_sent(header.transfer, send->stats);
    return;
  }
  Error reason = proto::parse_kv_reason(payload);
  reason.detail = "the receiver refused: " + reason.detail;
  events_.on_send_failed(header.transfer, std::move(reason));
}

std::optional<SendTable::Route> SendTable::end(TransferId id, Error error) {
  std::optional<Route> tell;
  {
    std::lock_guard lock(mutex_);
    const std::optional<Send> send = remove(id);
    if (!send) return std::nullopt;
    tell = *send->route;
  }
  events_.on_send_failed(id, std::move(error));
  return tell;
}

void SendTable::end_all(const std::string& address, std::optional<Generation> receiver,
                        const Error& error) {
  std::vector<TransferId> ended;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, send] : open_) {
      const bool meant = !receiver || send.spec.receiver == *receiver;
      if (send.spec.address == address && meant) ended.push_back(id);
    }
    for (const TransferId id : ended) open_.erase(id);
  }
  std::ranges::sort(ended);
  for (const TransferId id : ended) events_.on_send_failed(id, error);
}

std::vector<SendTable::Route> SendTable::sweep(TimePoint now) {
  std::vector<Route> expired;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, send] : open_) {
      if (send.deadline <= now) expired.push_back(*send.route);
    }
    for (const Route& route : expired) open_.erase(route.origin.transfer);
  }
  std::ranges::sort(expired, {}, [](const Route& r) { return r.origin.transfer; });
  for (const Route& route : expired) {
    counters_.transfers_expired.fetch_add(1, std::memory_order_relaxed);
    events_.on_send_failed(
        route.origin.transfer,
        make_error(ErrorCode::kDeadlineExceeded,
                   name_of(route.origin.transfer) + " was not acknowledged before its deadline"));
  }
  return expired;
}

bool SendTable::uses(const std::string& address) const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(open_,
                             [&](const auto& e) { return e.second.spec.address == address; });
}

size_t SendTable::open_count() const {
  std::lock_guard lock(mutex_);
  return open_.size();
}

}  // namespace tandem::transport
