#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/kv/layout.h"
#include "common/kv/page_memory.h"

namespace tandem::transport {

// Moves KV pages from a prefill node into blocks that a decode node has reserved.
//
// Life of a transfer:
//   receiver  open_receive(plan)  -> pages land -> on_received, or on_receive_failed
//             close_receive(id)   at any time: afterwards no byte of the plan's pages is written
//   sender    open_send(spec)     -> post_pages per layer -> post_commit -> on_sent /
//   on_send_failed
//             cancel_send(id)     tells the receiver, then on_send_failed(kCancelled)
//
// Both sides may be called from any thread; calls return at once. Events arrive on threads of the
// transport, several at a time: handlers post to their owner and return; they may call back into
// the transport. Every transfer that was opened ends in exactly one event, within its deadline. A
// post that fails ends its transfer: the receiver gets an error frame and on_send_failed follows
// with the same error.
//
// A sender's transfer ends well only once the receiver has acknowledged every page and the commit.
// A receiver that refuses a frame says why, and those words reach on_send_failed.

// Where a layer's pages go, in the receiver's pool.
struct ReceivePlan {
  TransferId id = {};
  Generation sender = {};    // frames of another generation are dropped and counted
  kv::KvLayout layout = {};  // the pool's; a frame of another layout fails the transfer
  // destination(layer, i) of page i (0 .. pages-1): block i of the transfer. `pages` counts full
  // blocks, and the tail (see below) comes on top. The memory outlives close_receive().
  // Called on the transport's thread under its lock: it must not call back. Bytes are verified
  // before they are written.
  std::function<std::span<std::byte>(uint32_t layer, uint32_t page)> destination = {};
  uint32_t pages = 0;
  // Layouts with needs_tail(): of the last, open page the first `tail_rows` rows come as well, in
  // tail_layout() format; the destination is a whole tail page, whose other rows are left alone.
  std::function<std::span<std::byte>(uint32_t layer)> tail_destination = {};
  uint32_t tail_rows = 0;  // 0: no tail; at most kBlockTokens
  Duration deadline{};     // from open_receive
};

struct ReceiveStats {
  uint64_t wire_bytes = 0;  // headers included
  uint32_t frames = 0;
  Duration elapsed{};  // open_receive to last frame
};

struct SendSpec {
  TransferId id = {};
  Generation receiver = {};
  std::string address = {};  // the receiver's address()
  kv::KvLayout layout = {};
  uint32_t pages = 0;      // full pages per layer to send
  uint32_t tail_rows = 0;  // as in ReceivePlan
  Duration deadline{};
};

struct SendStats {
  uint64_t raw_bytes = 0;   // the same pages in bf16, open ones included
  uint64_t wire_bytes = 0;  // headers included
  uint32_t frames = 0;
  Duration elapsed{};  // first post to last completion
  TimePoint last_completion;
};

// kDeviceLost of a failure is this process's own device, never the peer's: nothing will be moved
// from or to it any more.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  // All pages of all layers and the commit have arrived and their checksums hold.
  virtual void on_received(TransferId id, std::string commit, const ReceiveStats& stats) = 0;
  virtual void on_receive_failed(TransferId id, Error error) = 0;
  virtual void on_sent(TransferId id, const SendStats& stats) = 0;
  virtual void on_send_failed(TransferId id, Error error) = 0;
  // What meet() began came to nothing. Any thread.
  virtual void on_meet_failed(const std::string& name, const Error& error) {
    (void)name;
    (void)error;
  }
};

// Monotonic counts for metrics.
struct TransportCounters {
  uint64_t frames_sent = 0, frames_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t frames_rejected_checksum = 0;    // payload or header did not hold
  uint64_t frames_rejected_malformed = 0;   // bad magic, version, length, layer, range
  uint64_t frames_rejected_generation = 0;  // fenced or foreign sender
  uint64_t frames_rejected_unknown = 0;     // no such open transfer
  uint64_t frames_rejected_replayed = 0;    // page already received
  uint64_t transfers_expired = 0;
};

struct TransportLimits {
  size_t max_sends = 256;           // open at once
  size_t max_receives = 1024;       // open at once
  size_t max_queued_frames = 4096;  // posted and not yet handed to the wire
};

// What every transport needs. Clock, events and memory outlive the transport.
struct TransportDeps {
  Generation self = {};  // this process's; never 0
  const Clock& clock;
  TransportEvents& events;
  TransportLimits limits = {};
  // The pool that all pages of this process lie in. Null: ordinary host memory. A pool on a device
  // gives out addresses that only the device can follow.
  kv::PageMemory* memory = nullptr;
};

class Transport {
 public:
  virtual ~Transport() = default;  // no event after; open transfers end silently

  [[nodiscard]] virtual std::string_view name() const = 0;  // "inproc", "ucx"
  // What is really in use, e.g. "ucx 1.13.1: shared memory, tcp". For logs, metrics and the
  // handshake.
  [[nodiscard]] virtual std::string detail() const = 0;
  // Opaque bytes that a sender needs to reach this process.
  [[nodiscard]] virtual std::string address() const = 0;

  [[nodiscard]] virtual Status open_receive(ReceivePlan plan) = 0;
  // Returns once no further byte will be written to the plan's pages (bounded by one frame's copy).
  // No event starts after it returned. Unknown ids are fine: closing is idempotent. Later frames of
  // this transfer are refused, which ends it at the sender.
  virtual void close_receive(TransferId id) = 0;
  // Drops every open receive of that sender (each ends in on_receive_failed) and all its later
  // frames.
  virtual void fence(Generation sender) = 0;
  // That sender was let back in under its old generation: it may be named by open_receive() again.
  // What fence() ended stays ended, and transfer ids never repeat, so nothing of before can land.
  virtual void readmit(Generation sender) = 0;

  // Makes ready what transfers to a receiver will need (connections, mapped memory, communicators;
  // of UCX the endpoint, whose connection UCX makes with the first message), so that the first does
  // not wait for it. Asynchronous: on_meet_failed() says by that name what went wrong, and the
  // first transfer connects anew.
  virtual void meet(const std::string& name, const std::string& receiver) = 0;

  // Fails when too many sends are open (kQueueFull) or the address is malformed; connecting itself
  // is asynchronous and fails through on_send_failed.
  [[nodiscard]] virtual Status open_send(const SendSpec& spec) = 0;
  // Pages first_page .. of one layer, each layout.page_bytes() long. Memory must stay unchanged
  // until the transfer's final event. One call becomes one or more frames (frames.h says of what
  // size).
  [[nodiscard]] virtual Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                                          std::span<const std::span<const std::byte>> pages) = 0;
  // `page` is the whole tail page; its first tail_rows rows are sent.
  [[nodiscard]] virtual Status post_tail(TransferId id, uint32_t layer,
                                         std::span<const std::byte> page) = 0;
  // No more pages follow; `commit` (at most 64 KiB) reaches on_received.
  [[nodiscard]] virtual Status post_commit(TransferId id, std::string commit) = 0;
  virtual void cancel_send(TransferId id, std::string reason) = 0;

  [[nodiscard]] virtual TransportCounters counters() const = 0;
};

}  // namespace tandem::transport
