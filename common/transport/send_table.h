#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/transport/counters.h"
#include "common/transport/frames.h"
#include "common/transport/page_set.h"
#include "common/transport/transport.h"

namespace tandem::transport {

// Sending half of every transport: which transfers are open, what was posted, how they end. Knows
// no wire: a transport asks it what to send and tells it what came back. Any thread; events are
// raised on the thread that calls deliver(), end(), end_all() or sweep(), outside the mutex.
class SendTable {
 public:
  SendTable(const TransportDeps& deps, AtomicCounters& counters);

  [[nodiscard]] Status open(const SendSpec& spec);

  // Check a post and record it. An error here leaves the transfer open; the transport ends it.
  [[nodiscard]] Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                                  std::span<const std::span<const std::byte>> pages);
  [[nodiscard]] Status post_tail(TransferId id, uint32_t layer, std::span<const std::byte> page);
  [[nodiscard]] Status post_commit(TransferId id, size_t commit_bytes);

  // Where a transfer's frames go and what their headers hold; none once it has ended.
  struct Route {
    FrameOrigin origin;
    std::string address;
    uint32_t tail_rows = 0;
    TailRuns tail;
  };
  [[nodiscard]] std::shared_ptr<const Route> route(TransferId id) const;
  [[nodiscard]] bool is_open(TransferId id) const;
  void count_frame(TransferId id, size_t wire_bytes);

  // An ack or reject from the receiver.
  void deliver(const proto::KvFrameHeader& header, std::span<const std::byte> payload);

  // Ends one transfer with on_send_failed. Returns where to send the cancel or error frame; empty
  // if it was not open.
  std::optional<Route> end(TransferId id, Error error);
  // The peer is gone: every transfer to this address fails, or only those meant for one generation
  // where a later start may have taken over the address.
  void end_all(const std::string& address, std::optional<Generation> receiver, const Error& error);
  // Transfers past their deadline fail; returns whom to tell.
  [[nodiscard]] std::vector<Route> sweep(TimePoint now);

  [[nodiscard]] size_t open_count() const;
  [[nodiscard]] bool uses(const std::string& address) const;  // by any open transfer

 private:
  struct Send {
    SendSpec spec;
    std::shared_ptr<const Route> route;
    PageSet pages;  // [layer * spec.pages + page] posted
    std::vector<bool> tails;
    size_t missing = 0;
    bool committed = false;
    std::optional<TimePoint> first_post;
    TimePoint opened;
    TimePoint deadline;
    SendStats stats;
  };
  Result<Send*> find(TransferId id);
  [[nodiscard]] Route route_of(const SendSpec& spec) const;
  void posted(Send& send, size_t pages);
  std::optional<Send> remove(TransferId id);

  const Generation self_;
  const Clock& clock_;
  TransportEvents& events_;
  const size_t capacity_;
  AtomicCounters& counters_;

  mutable std::mutex mutex_;
  std::unordered_map<TransferId, Send> open_;
};

}  // namespace tandem::transport
