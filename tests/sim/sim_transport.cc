#include "tests/sim/sim_transport.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"

namespace tandem::sim {
namespace {

constexpr uint64_t kHeaderBytes = 64;

}  // namespace

SimTransport::SimTransport(SimNetwork& network, std::string address, Generation generation)
    : network_(network), address_(std::move(address)), generation_(generation) {
  network_.endpoints[address_] = this;
}

SimTransport::~SimTransport() {
  *alive_ = false;
  if (network_.endpoints[address_] == this) network_.endpoints.erase(address_);
}

Status SimTransport::open_receive(transport::ReceivePlan plan) {
  const TransferId id = plan.id;
  if (fenced_.contains(plan.sender)) return fail(ErrorCode::kUnavailable, "sender is fenced");
  Receive receive;
  const Duration deadline = plan.deadline;
  receive.plan = std::move(plan);
  receive.opened = network_.world.now();
  if (!receives_.emplace(id, std::move(receive)).second) {
    return fail(ErrorCode::kInvalidArgument, "transfer is open");
  }
  network_.world.after(deadline, [this, id, alive = alive_, opened = network_.world.now()] {
    if (!*alive) return;
    const auto found = receives_.find(id);
    if (found == receives_.end() || found->second.opened != opened) return;
    ++counters_.transfers_expired;
    fail_receive(id, make_error(ErrorCode::kDeadlineExceeded, "receive deadline"));
  });
  return {};
}

void SimTransport::close_receive(TransferId id) { receives_.erase(id); }

void SimTransport::fence(Generation sender) {
  fenced_.insert(sender);
  std::vector<TransferId> gone;
  for (const auto& [id, r] : receives_) {
    if (r.plan.sender == sender) gone.push_back(id);
  }
  for (const TransferId id : gone) fail_receive(id, make_error(ErrorCode::kUnavailable, "fenced"));
}

Status SimTransport::open_send(const transport::SendSpec& spec) {
  if (spec.address.empty()) return fail(ErrorCode::kInvalidArgument, "empty address");
  if (!sends_.emplace(spec.id, Send{.spec = spec}).second) {
    return fail(ErrorCode::kInvalidArgument, "transfer is open");
  }
  network_.world.after(spec.deadline, [this, id = spec.id, alive = alive_] {
    if (!*alive) return;
    abort_send(id, make_error(ErrorCode::kDeadlineExceeded, "send deadline"));
  });
  return {};
}

Status SimTransport::post(TransferId id, Frame frame) {
  const auto found = sends_.find(id);
  if (found == sends_.end()) return fail(ErrorCode::kNotFound, "no such send");
  Send& send = found->second;
  if (send.frames == 0) send.first_post = network_.world.now();
  ++send.frames;
  ++send.unacknowledged;
  send.wire += kHeaderBytes + frame.bytes.size() + frame.text.size();
  ++counters_.frames_sent;
  counters_.bytes_sent += kHeaderBytes + frame.bytes.size();
  frame.id = id;
  frame.sender = generation_;
  frame.sender_address = address_;
  frame.layout = send.spec.layout;
  const LinkFaults& f = network_.faults;
  frame.corrupt = network_.world.chance(f.corrupt);
  const int copies = network_.world.chance(f.lose) ? 0 : network_.world.chance(f.duplicate) ? 2 : 1;
  if (copies > 0) send_copy(send.spec.address, frame, nullptr);
  if (copies > 1) {
    // A replay may come at any later time; it carries the bytes as they were.
    auto bytes = std::make_shared<std::vector<std::byte>>(frame.bytes.begin(), frame.bytes.end());
    frame.bytes = *bytes;
    send_copy(send.spec.address, frame, std::move(bytes));
  }
  return {};
}

void SimTransport::send_copy(const std::string& to, const Frame& frame,
                             std::shared_ptr<std::vector<std::byte>> replay) {
  const LinkFaults& f = network_.faults;
  const Duration delay = network_.world.draw(f.min_delay, replay ? 50 * f.max_delay : f.max_delay);
  network_.world.after(delay, [this, alive = alive_, to, frame, replay] {
    // A dead sender's memory is gone, and what was still on its way is lost with it.
    if (!*alive) return;
    // After a transfer's final event nothing may read its pages any more.
    const bool abort = frame.kind == Frame::Kind::kAbort;
    if (!replay && !abort && !sends_.contains(frame.id)) return;
    const auto peer = network_.endpoints.find(to);
    if (peer == network_.endpoints.end()) return;
    peer->second->deliver(frame);
    if (!replay) acknowledge(frame.id);
  });
}

Status SimTransport::post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                                std::span<const std::span<const std::byte>> pages) {
  if (network_.world.chance(network_.faults.refuse_post)) {
    return fail(ErrorCode::kTransport, "could not post");
  }
  for (uint32_t i = 0; i < pages.size(); ++i) {
    TANDEM_TRY(post(id, Frame{.layer = layer,
                              .page = first_page + i,
                              .kind = Frame::Kind::kPage,
                              .bytes = pages[i]}));
    Send& send = sends_.at(id);
    send.raw += send.spec.layout.bf16_block_bytes() / send.spec.layout.layers;
  }
  return {};
}

Status SimTransport::post_tail(TransferId id, uint32_t layer, std::span<const std::byte> page) {
  TANDEM_TRY(post(id, Frame{.layer = layer, .kind = Frame::Kind::kTail, .bytes = page}));
  Send& send = sends_.at(id);
  send.raw += send.spec.layout.bf16_block_bytes() / send.spec.layout.layers;
  return {};
}

Status SimTransport::post_commit(TransferId id, std::string commit) {
  const auto found = sends_.find(id);
  if (found == sends_.end()) return fail(ErrorCode::kNotFound, "no such send");
  found->second.committed = true;
  return post(id, Frame{.kind = Frame::Kind::kCommit, .text = std::move(commit)});
}

void SimTransport::cancel_send(TransferId id, std::string reason) {
  abort_send(id, make_error(ErrorCode::kCancelled, std::move(reason)));
}

void SimTransport::abort_send(TransferId id, Error error) {
  if (!sends_.contains(id)) return;
  TANDEM_CHECK(
      post(id, Frame{.kind = Frame::Kind::kAbort, .text = error.detail, .code = error.code})
          .has_value(),
      "the send is open");
  end_send(id, std::move(error));
}

void SimTransport::acknowledge(TransferId id) {
  const auto found = sends_.find(id);
  if (found == sends_.end()) return;
  Send& send = found->second;
  if (--send.unacknowledged > 0 || !send.committed) return;
  transport::SendStats stats;
  stats.raw_bytes = send.raw;
  stats.wire_bytes = send.wire;
  stats.frames = send.frames;
  stats.elapsed = network_.world.now() - send.first_post;
  stats.last_completion = network_.world.now();
  sends_.erase(found);
  network_.world.after(Duration{0}, [this, alive = alive_, id, stats] {
    if (*alive) events->on_sent(id, stats);
  });
}

void SimTransport::end_send(TransferId id, Error error) {
  if (sends_.erase(id) == 0) return;
  network_.world.after(Duration{0}, [this, alive = alive_, id, error = std::move(error)] {
    if (*alive) events->on_send_failed(id, error);
  });
}

void SimTransport::fail_receive(TransferId id, Error error) {
  if (receives_.erase(id) == 0) return;
  network_.world.after(Duration{0}, [this, alive = alive_, id, error = std::move(error)] {
    if (*alive) events->on_receive_failed(id, error);
  });
}

Status SimTransport::accept(Receive& r, const Frame& f) {
  ++r.frames;
  r.wire += kHeaderBytes + f.bytes.size();
  if (f.layout != r.plan.layout) return fail(ErrorCode::kMismatch, "layouts differ");
  if (f.corrupt) {
    ++counters_.frames_rejected_checksum;
    return fail(ErrorCode::kCorruptData, "checksum does not hold");
  }
  std::span<std::byte> to;
  switch (f.kind) {
    case Frame::Kind::kAbort:
      return fail(f.code, f.text);
    case Frame::Kind::kCommit:
      r.commit = f.text;
      return {};
    case Frame::Kind::kPage:
      if (f.page >= r.plan.pages || f.layer >= r.plan.layout.layers) {
        ++counters_.frames_rejected_malformed;
        return fail(ErrorCode::kCorruptData, "page out of range");
      }
      if (!r.pages.emplace(f.layer, f.page).second) {
        ++counters_.frames_rejected_replayed;
        return {};
      }
      to = r.plan.destination(f.layer, f.page);
      break;
    case Frame::Kind::kTail:
      if (!r.plan.tail_destination) return fail(ErrorCode::kCorruptData, "unexpected tail");
      if (!r.tails.insert(f.layer).second) return {};
      to = r.plan.tail_destination(f.layer);
      break;
  }
  if (to.size() != f.bytes.size()) return fail(ErrorCode::kCorruptData, "page size differs");
  std::memcpy(to.data(), f.bytes.data(), to.size());
  ++pages_written;
  return {};
}

void SimTransport::deliver(const Frame& frame) {
  ++counters_.frames_received;
  if (fenced_.contains(frame.sender)) {
    ++counters_.frames_rejected_generation;
    return;
  }
  const auto found = receives_.find(frame.id);
  const auto refuse = [&](Error error) {
    const auto sender = network_.endpoints.find(frame.sender_address);
    if (sender != network_.endpoints.end()) sender->second->end_send(frame.id, std::move(error));
  };
  if (found == receives_.end()) {
    ++counters_.frames_rejected_unknown;
    if (frame.kind != Frame::Kind::kAbort) {
      refuse(make_error(ErrorCode::kNotFound, "the receiver knows no such transfer"));
    }
    return;
  }
  if (found->second.plan.sender != frame.sender) {
    ++counters_.frames_rejected_generation;
    return;
  }
  if (auto status = accept(found->second, frame); !status) {
    refuse(status.error());
    fail_receive(frame.id, status.error());
    return;
  }
  complete(frame.id, found->second);
}

void SimTransport::complete(TransferId id, Receive& r) {
  const size_t layers = r.plan.layout.layers;
  if (!r.commit || r.pages.size() < layers * r.plan.pages) return;
  if (r.plan.tail_destination && r.tails.size() < layers) return;
  transport::ReceiveStats stats;
  stats.wire_bytes = r.wire;
  stats.frames = r.frames;
  stats.elapsed = network_.world.now() - r.opened;
  network_.world.after(Duration{0}, [this, alive = alive_, id, commit = *r.commit, stats] {
    if (*alive) events->on_received(id, commit, stats);
  });
  receives_.erase(id);
}

}  // namespace tandem::sim
