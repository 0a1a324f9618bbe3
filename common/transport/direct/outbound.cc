#include "common/transport/direct/outbound.h"

#include <utility>

namespace tandem::transport {
namespace {

using proto::KvFrameKind;

// Enough to keep copies going while offers and answers are under way; what is staged of a transfer
// that ends meanwhile was checked for nothing.
constexpr size_t kMostStaged = 64;
// What is staged in one round of the thread: the copier begins at its end.
constexpr size_t kRoundBytes = 16u << 20;
// Where offers need not wait for the copier; less after a pause, so that the receiver begins soon.
constexpr size_t kEarlyRound = 64u << 20;
constexpr size_t kFirstRound = 8u << 20;

// Pages, or a tail's runs.
std::vector<Piece> pieces_of(const KvPost& post, const SendTable::Route& route) {
  std::vector<Piece> pieces;
  if (post.kind == KvFrameKind::kData) {
    for (const auto& page : post.pages) pieces.push_back({page.data(), nullptr, page.size()});
    return pieces;
  }
  const std::span<const std::byte> page = post.pages.front();
  for (size_t i = 0; i < route.tail.count; ++i) {
    pieces.push_back({page.data() + i * route.tail.stride, nullptr, route.tail.run_bytes});
  }
  return pieces;
}

}  // namespace

std::optional<FrameView> parse_frame(std::string_view body, AtomicCounters& counters,
                                     MessageKind kind) {
  if (kind == MessageKind::kFrame) counters.count_received(body.size());
  const auto bytes = std::as_bytes(std::span(body));
  const size_t head = std::min(bytes.size(), proto::kKvHeaderBytes);
  auto header = proto::parse_kv_header(bytes.first(head));
  if (header) return FrameView{*header, bytes.subspan(head)};
  const bool checksum = header.error().code == ErrorCode::kCorruptData;
  (checksum ? counters.rejected_checksum : counters.rejected_malformed).fetch_add(1);
  return std::nullopt;
}

std::string frame_message(const Frame& frame, MessageKind kind) {
  std::string body(reinterpret_cast<const char*>(frame.header.data()), frame.header.size());
  body.append(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
  return encode_message(kind, body);
}

Result<std::unique_ptr<Outbound>> Outbound::open(DirectCore& core, const std::string& address) {
  TANDEM_ASSIGN(const DirectAddress parsed, parse_direct_address(address));
  TANDEM_ASSIGN(Connection connection, Connection::open(parsed.socket));
  auto peer = std::unique_ptr<Outbound>(new Outbound(core, std::move(connection)));
  TANDEM_ASSIGN(peer->own_hello_, core.fabric.hello(true));
  const Hello hello{core.self, std::string(core.fabric.name()), peer->own_hello_};
  TANDEM_TRY(peer->connection_.send(encode_message(MessageKind::kHello, encode_hello(hello))));
  return peer;
}

Outbound::~Outbound() {
  if (staging_.empty()) return;
  core_.fabric.copier(true).drain();
  for (const Staging& s : staging_) {
    if (!s.pieces.empty()) (void)core_.fabric.copier(true).taken(s.ticket);
  }
}

Status Outbound::read() {
  Status received = connection_.receive();
  while (true) {
    TANDEM_ASSIGN(const ParsedMessage parsed, parse_message(connection_.input()));
    if (parsed.taken == 0) break;
    Status handled = on_message(parsed.message);
    connection_.consume(parsed.taken);
    TANDEM_TRY(std::move(handled));
  }
  return received;  // last, so that what a peer said before it left is heard
}

Status Outbound::on_message(const MessageView& message) {
  switch (message.kind) {
    case MessageKind::kHello:
      return on_hello(message.body);
    case MessageKind::kRefused: {
      Error reason = proto::parse_kv_reason(std::as_bytes(std::span(message.body)));
      reason.detail = "the receiver refused the connection: " + reason.detail;
      return fail(std::move(reason));
    }
    case MessageKind::kGo: {
      TANDEM_ASSIGN(const Go go, parse_go(message.body));
      if (link_ == nullptr) return fail(ErrorCode::kCorruptData, "a go before the peer's hello");
      return link_->launch_run(go.last, go.count);
    }
    case MessageKind::kMemory:
    case MessageKind::kSums:
      return fail(ErrorCode::kCorruptData, "a receiver has nothing to offer");
    case MessageKind::kFrame:
      break;
  }
  const auto frame = parse_frame(message.body, core_.counters);
  if (!frame) return {};
  const bool answer =
      frame->header.kind == KvFrameKind::kAck || frame->header.kind == KvFrameKind::kReject;
  if (!answer) return fail(ErrorCode::kCorruptData, "a receiver sends no pages");
  core_.sends.deliver(frame->header, frame->payload);
  return {};
}

Status Outbound::on_hello(std::string_view body) {
  TANDEM_ASSIGN(const Hello hello, parse_hello(body));
  if (link_ != nullptr) return fail(ErrorCode::kCorruptData, "the peer greets twice");
  if (hello.fabric != core_.fabric.name()) {
    return fail(ErrorCode::kMismatch, "the peer's KV transport is " + hello.fabric +
                                          ", this process's is " +
                                          std::string(core_.fabric.name()));
  }
  receiver_ = hello.generation;
  TANDEM_ASSIGN(link_, core_.fabric.open(true, own_hello_, hello.details));
  return {};
}

Status Outbound::tell(const SendTable::Route& route, KvFrameKind kind, const Error& error) {
  const Frame frame = make_reason_frame(route.origin, kind, error);
  core_.counters.count_sent(frame.wire_bytes());
  return connection_.send(frame_message(frame));
}

Status Outbound::advance(bool& any) {
  if (link_ == nullptr) return {};
  TANDEM_ASSIGN(const bool ready, link_->ready());
  if (!ready) return {};
  stands_ = true;
  TANDEM_TRY(offer(any));  // first: the receiver waits for it
  return stage(any);
}

Status Outbound::stage(bool& any) {
  if (pending_.empty()) {
    paused_ = paused_ || staging_.empty();
    return {};
  }
  size_t bytes = 0;
  const bool first = std::exchange(paused_, false);
  const size_t most = !link_->sums_follow() ? kRoundBytes : first ? kFirstRound : kEarlyRound;
  while (!pending_.empty() && staging_.size() < kMostStaged && bytes < most) {
    for (const auto& page : pending_.front().pages) bytes += page.size();
    auto route = core_.sends.route(pending_.front().id);
    bool room = true;
    if (route && pending_.front().kind == KvFrameKind::kCommit) {
      staging_.push_back({std::move(pending_.front()), std::move(route), {}, {}, 0});
    } else if (route) {
      TANDEM_TRY(stage_pages(std::move(pending_.front()), std::move(route), room));
    }
    if (!room) return {};
    pending_.pop_front();
    ++started_;
    any = true;
  }
  return {};
}

Status Outbound::stage_pages(KvPost&& post, std::shared_ptr<const SendTable::Route> route,
                             bool& room) {
  std::vector<Piece> pieces = pieces_of(post, *route);
  auto staged = link_->stage(pieces);
  if (!staged && staged.error().code == ErrorCode::kInvalidArgument) {
    // This post's fault, not the peer's.
    if (const auto ended = core_.sends.end(post.id, staged.error())) {
      return tell(*ended, KvFrameKind::kError, staged.error());
    }
    return {};
  }
  if (!staged) return fail(std::move(staged).error());
  room = staged->has_value();
  if (!room) return {};
  if (Fd memory = link_->memory()) {
    TANDEM_TRY(connection_.send(encode_message(MessageKind::kMemory, {}), std::move(memory)));
  }
  const PageCopier::Ticket ticket = core_.fabric.copier(true).add(pieces);
  staging_.push_back(
      {std::move(post), std::move(route), std::move(pieces), std::move(**staged), ticket});
  return link_->sums_follow() ? send_offer(staging_.back(), {}) : Status();
}

Status Outbound::offer(bool& any) {
  while (!staging_.empty()) {
    Staging& s = staging_.front();
    const bool wanted = core_.sends.is_open(s.post.id);
    const TransferId id = s.post.id;
    if (s.post.kind == KvFrameKind::kCommit) {
      const Frame frame = make_commit_frame(s.route->origin, s.post.commit);
      staging_.pop_front();
      any = true;
      if (!wanted) continue;
      core_.sends.count_frame(id, frame.wire_bytes());
      TANDEM_TRY(connection_.send(frame_message(frame)));
      continue;
    }
    TANDEM_ASSIGN(auto sums, core_.fabric.copier(true).taken(s.ticket));
    if (!sums) return {};
    any = true;
    const Staging done = std::move(s);
    staging_.pop_front();
    if (!wanted) link_->abandon(done.staged.slot);
    if (link_->sums_follow()) {
      // Pages of a transfer that ended may be others by now: their checksums say nothing.
      if (!wanted) sums->clear();
      TANDEM_TRY(send_pages(MessageKind::kSums, done, encode_sums(*sums)));
    } else if (wanted) {
      TANDEM_TRY(send_offer(done, std::move(*sums)));
    }
  }
  return {};
}

Status Outbound::send_offer(const Staging& staging, std::vector<uint64_t> sums) {
  const size_t bytes = staging.pieces.size() * staging.pieces.front().bytes;
  core_.sends.count_frame(staging.post.id, proto::kKvHeaderBytes + bytes);
  const Offer offer{static_cast<uint16_t>(staging.pieces.size()), std::move(sums),
                    staging.staged.note};
  return send_pages(MessageKind::kFrame, staging, encode_offer(offer));
}

Status Outbound::send_pages(MessageKind kind, const Staging& staging, std::string_view payload) {
  const size_t count = staging.pieces.size();
  const bool data = staging.post.kind == KvFrameKind::kData;
  const auto pages = data ? static_cast<uint32_t>(count) : staging.route->tail_rows;
  const Frame frame = make_offer_frame(staging.route->origin, staging.post.kind, staging.post.layer,
                                       staging.post.first_page, pages,
                                       count * staging.pieces.front().bytes, payload);
  return connection_.send(frame_message(frame, kind));
}

}  // namespace tandem::transport
