#include "common/transport/direct/inbound.h"

#include <algorithm>
#include <utility>

namespace tandem::transport {
namespace {

using proto::KvFrameKind;

}  // namespace

Inbound::~Inbound() {
  if (begun_ == 0) return;
  core_.fabric.copier(false).drain();
  for (size_t i = 0; i < begun_; ++i) {
    if (arrivals_[i].copying) (void)core_.fabric.copier(false).taken(arrivals_[i].ticket);
  }
}

Status Inbound::read() {
  Status received = connection_.receive();
  TANDEM_TRY(handle_input());
  return received;  // last, so that what a peer said before it left is heard
}

Status Inbound::handle_input() {
  while (!full()) {
    TANDEM_ASSIGN(const ParsedMessage parsed, parse_message(connection_.input()));
    if (parsed.taken == 0) break;
    Status handled = on_message(parsed.message);
    connection_.consume(parsed.taken);
    TANDEM_TRY(std::move(handled));
  }
  return {};
}

Status Inbound::on_message(const MessageView& message) {
  switch (message.kind) {
    case MessageKind::kHello: {
      Status greeted = on_hello(message.body);
      if (!greeted) {
        const Error& why = greeted.error();
        (void)connection_.send(
            encode_message(MessageKind::kRefused, proto::encode_kv_reason(why.code, why.detail)));
      }
      return greeted;
    }
    case MessageKind::kFrame: {
      if (link_ == nullptr) return fail(ErrorCode::kCorruptData, "a frame before the hello");
      const auto frame = parse_frame(message.body, core_.counters);
      return frame ? on_frame(*frame) : Status();
    }
    case MessageKind::kMemory: {
      Fd memory = connection_.take_attached();
      if (link_ == nullptr || !memory) {
        return fail(ErrorCode::kCorruptData, "memory before the hello, or none at all");
      }
      return link_->attach(std::move(memory));
    }
    case MessageKind::kSums: {
      if (link_ == nullptr) return fail(ErrorCode::kCorruptData, "checksums before the hello");
      const auto frame = parse_frame(message.body, core_.counters, message.kind);
      return frame ? on_sums(*frame) : Status();
    }
    case MessageKind::kGo:
    case MessageKind::kRefused:
      break;
  }
  return fail(ErrorCode::kCorruptData, "a sender has nothing to permit");
}

Status Inbound::on_hello(std::string_view body) {
  TANDEM_ASSIGN(const Hello hello, parse_hello(body));
  if (link_ != nullptr) return fail(ErrorCode::kCorruptData, "the peer greets twice");
  if (hello.fabric != core_.fabric.name()) {
    return fail(ErrorCode::kMismatch, "the sender's KV transport is " + hello.fabric +
                                          ", the receiver's is " +
                                          std::string(core_.fabric.name()));
  }
  sender_ = hello.generation;
  TANDEM_ASSIGN(const std::string own, core_.fabric.hello(false));
  TANDEM_ASSIGN(link_, core_.fabric.open(false, own, hello.details));
  return connection_.send(encode_message(
      MessageKind::kHello, encode_hello({core_.self, std::string(core_.fabric.name()), own})));
}

Status Inbound::answer(const std::optional<Answer>& answer) {
  if (!answer) return {};
  const Frame frame = answer->frame();
  core_.counters.count_sent(frame.wire_bytes());
  return connection_.send(frame_message(frame));
}

Status Inbound::on_frame(const FrameView& frame) {
  switch (frame.header.kind) {
    case KvFrameKind::kData:
    case KvFrameKind::kTail:
      return on_offer(frame);
    case KvFrameKind::kCommit:
    case KvFrameKind::kCancel:
    case KvFrameKind::kError:
      return answer(core_.receives.deliver(frame.header, frame.payload));
    case KvFrameKind::kAck:
    case KvFrameKind::kReject:
      core_.sends.deliver(frame.header, frame.payload);
      return {};
  }
  return {};
}

Status Inbound::on_offer(const FrameView& frame) {
  const ReceiveTable::Admission admission = core_.receives.admit(frame.header);
  if (!admission.wanted) {
    TANDEM_TRY(answer(admission.answer));
    if (!link_->needs_go() && !link_->gives_back()) return {};
    // Its bytes wait for a go all the same. What is no offer has no bytes that wait.
    Status drained = accept(frame, false);
    return drained || drained.error().code != ErrorCode::kCorruptData ? drained : Status();
  }
  if (proto::kv_payload_checksum(frame.header.transfer, frame.payload) !=
      frame.header.payload_checksum) {
    return answer(core_.receives.break_off(
        frame.header, make_error(ErrorCode::kCorruptData, "an offer does not match its checksum")));
  }
  Status accepted = accept(frame, true);
  if (accepted || accepted.error().code != ErrorCode::kCorruptData) return accepted;
  return answer(core_.receives.break_off(frame.header, accepted.error()));
}

Status Inbound::accept(const FrameView& frame, bool wanted) {
  TANDEM_ASSIGN(Offer offer, parse_offer(frame.payload));
  const size_t count = offer.pieces;
  if (offer.checksums.empty() != link_->sums_follow()) {
    return fail(ErrorCode::kCorruptData, "an offer has checksums where they follow, or has none");
  }
  if (frame.header.payload_bytes % count != 0 || frame.header.payload_bytes / count % 4 != 0) {
    return fail(ErrorCode::kCorruptData, "an offer's pieces do not make up its frame");
  }
  Arrival arrival;
  arrival.header = frame.header;
  arrival.checksums = std::move(offer.checksums);
  arrival.wanted = wanted;
  arrival.summed = !link_->sums_follow();
  arrival.pieces.resize(count, {nullptr, nullptr, frame.header.payload_bytes / count});
  TANDEM_ASSIGN(arrival.id, link_->accept(offer.note, arrival.pieces));
  arrivals_.push_back(std::move(arrival));
  return {};
}

// They come in the order of the offers. An arrival that was passed over gets none any more, which
// is a mismatch; an offer that was refused left no arrival.
Status Inbound::on_sums(const FrameView& frame) {
  if (!link_->sums_follow()) return fail(ErrorCode::kCorruptData, "checksums that nobody awaits");
  const auto is_it = [&](const Arrival& a) {
    return a.header.transfer == frame.header.transfer && a.header.kind == frame.header.kind &&
           a.header.layer == frame.header.layer && a.header.first_page == frame.header.first_page;
  };
  const auto begin = arrivals_.begin() + static_cast<std::ptrdiff_t>(summed_);
  const auto found = std::find_if(begin, arrivals_.end(), is_it);
  if (found == arrivals_.end()) return {};
  for (auto passed = begin; passed != found; ++passed) passed->summed = true;
  if (proto::kv_payload_checksum(frame.header.transfer, frame.payload) ==
      frame.header.payload_checksum) {
    found->checksums = parse_sums(frame.payload);
  }
  found->summed = true;
  summed_ = static_cast<size_t>(found - arrivals_.begin()) + 1;
  return {};
}

Status Inbound::grant_waiting(bool& any) {
  for (; granted_ < arrivals_.size(); ++granted_) {
    Arrival& a = arrivals_[granted_];
    TANDEM_ASSIGN(const bool granted, link_->grant(a.id, a.pieces));
    if (!granted) return {};
    any = true;
    const uint32_t goes = link_->goes(a.id);
    if (goes == 0) continue;
    TANDEM_TRY(connection_.send(encode_message(MessageKind::kGo, encode_go({a.id, goes}))));
  }
  return {};
}

Status Inbound::advance(bool& any) {
  if (link_ == nullptr) return {};
  TANDEM_ASSIGN(const bool ready, link_->ready());
  if (!ready) return {};
  TANDEM_TRY(grant_waiting(any));
  TANDEM_TRY(begin_arrived(any));
  const bool was_full = full();
  TANDEM_TRY(finish_copied(any));
  return was_full ? handle_input() : Status();  // what was read and had to wait
}

// Arrivals whose bytes are within reach are given their destinations and to the copier.
Status Inbound::begin_arrived(bool& any) {
  for (; begun_ < granted_; ++begun_) {
    Arrival& a = arrivals_[begun_];
    TANDEM_ASSIGN(const bool arrived, link_->arrived(a.id));
    if (!arrived) return {};
    any = true;
    if (!a.wanted) continue;
    const auto begun = core_.receives.begin(a.header, [&](auto to) {
      a.misfit = to.size() != a.pieces.size();
      for (size_t i = 0; i < to.size() && !a.misfit; ++i) {
        a.misfit = to[i].size() != a.pieces[i].bytes;
        a.pieces[i].to = to[i].data();
      }
      if (a.misfit) return;
      a.ticket = core_.fabric.copier(false).add(a.pieces);
      a.copying = true;
    });
    a.wanted = begun.started;
    TANDEM_TRY(answer(begun.answer));
  }
  return {};
}

Status Inbound::finish_copied(bool& any) {
  while (begun_ > 0) {
    Arrival& a = arrivals_.front();
    Status outcome;
    if (a.copying) {
      TANDEM_ASSIGN(auto sums, core_.fabric.copier(false).taken(a.ticket));
      if (!sums) return {};
      a.copying = false;
      a.copied = std::move(*sums);
    }
    if (a.misfit) {
      outcome = fail(ErrorCode::kCorruptData, "an offer's pieces are not those of its frame");
    } else if (a.wanted && !a.summed) {
      return {};
    } else if (a.wanted && a.copied != a.checksums) {
      outcome = fail(ErrorCode::kCorruptData, "pages do not match the checksums of their offer");
    }
    any = true;
    const Arrival done = std::move(a);
    arrivals_.pop_front();
    --begun_;
    --granted_;
    if (summed_ > 0) --summed_;
    link_->release(done.id);
    if (link_->gives_back()) {
      TANDEM_TRY(connection_.send(encode_message(MessageKind::kGo, encode_go({done.id}))));
    }
    if (!done.wanted) continue;
    if (outcome) {
      core_.counters.bytes_received.fetch_add(done.header.payload_bytes, std::memory_order_relaxed);
    }
    TANDEM_TRY(answer(core_.receives.finish(done.header, std::move(outcome))));
  }
  return {};
}

}  // namespace tandem::transport
