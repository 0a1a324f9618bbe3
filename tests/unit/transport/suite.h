#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/transport/frames.h"
#include "common/transport/inproc/inproc.h"
#include "common/transport/transport.h"

namespace tandem::transport::testing {

// Keeps every event it is told. Any thread.
class Recorder final : public TransportEvents {
 public:
  void on_received(TransferId id, std::string commit, const ReceiveStats& stats) override {
    std::lock_guard lock(mutex_);
    received_[id] = {std::move(commit), stats};
    ++events_[id];
  }
  void on_receive_failed(TransferId id, Error error) override {
    std::lock_guard lock(mutex_);
    receive_failed_[id] = std::move(error);
    ++events_[id];
  }
  void on_sent(TransferId id, const SendStats& stats) override {
    std::lock_guard lock(mutex_);
    sent_[id] = stats;
    ++events_[id];
  }
  void on_send_failed(TransferId id, Error error) override {
    std::lock_guard lock(mutex_);
    send_failed_[id] = std::move(error);
    ++events_[id];
  }

  struct Received {
    std::string commit;
    ReceiveStats stats;
  };
  std::optional<Received> received(TransferId id) const { return get(received_, id); }
  std::optional<Error> receive_failed(TransferId id) const { return get(receive_failed_, id); }
  std::optional<SendStats> sent(TransferId id) const { return get(sent_, id); }
  std::optional<Error> send_failed(TransferId id) const { return get(send_failed_, id); }
  int events(TransferId id) const { return get(events_, id).value_or(0); }

 private:
  template <typename Map>
  std::optional<typename Map::mapped_type> get(const Map& map, TransferId id) const {
    std::lock_guard lock(mutex_);
    const auto it = map.find(id);
    if (it == map.end()) return std::nullopt;
    return it->second;
  }
  mutable std::mutex mutex_;
  std::map<TransferId, Received> received_;
  std::map<TransferId, Error> receive_failed_;
  std::map<TransferId, SendStats> sent_;
  std::map<TransferId, Error> send_failed_;
  std::map<TransferId, int> events_;
};

// A pool in miniature: pages of one transfer, and its tail pages. Bytes that nobody sends (all of
// them when there is no seed; unused rows of tail pages always) are 0xCC.
class Pages {
 public:
  Pages(const kv::KvLayout& layout, uint32_t pages, uint32_t tail_rows, uint64_t seed = 0)
      : layout_(layout), count_(pages), tail_rows_(tail_rows) {
    data_.resize(size_t{layout.layers} * pages * layout.page_bytes(), std::byte{0xCC});
    if (tail_rows > 0) {
      tail_.resize(size_t{layout.layers} * layout.tail_layout().page_bytes(), std::byte{0xCC});
    }
    if (seed == 0) return;
    uint64_t state = seed;
    const auto fill = [&](std::span<std::byte> bytes) {
      for (std::byte& b : bytes) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        b = static_cast<std::byte>(state >> 56);
      }
    };
    fill(data_);
    const TailRuns runs = tail_runs(layout, tail_rows);
    for (uint32_t layer = 0; tail_rows > 0 && layer < layout.layers; ++layer) {
      for (size_t i = 0; i < runs.count; ++i) {
        fill(this->tail(layer).subspan(i * runs.stride, runs.run_bytes));
      }
    }
  }
  std::span<std::byte> page(uint32_t layer, uint32_t i) {
    const size_t bytes = layout_.page_bytes();
    return std::span(data_).subspan((size_t{layer} * count_ + i) * bytes, bytes);
  }
  std::span<std::byte> tail(uint32_t layer) {
    const size_t bytes = layout_.tail_layout().page_bytes();
    return std::span(tail_).subspan(layer * bytes, bytes);
  }
  bool untouched() const {
    const auto fresh = [](std::byte b) { return b == std::byte{0xCC}; };
    return std::ranges::all_of(data_, fresh) && std::ranges::all_of(tail_, fresh);
  }
  friend bool operator==(const Pages& a, const Pages& b) {
    return a.data_ == b.data_ && a.tail_ == b.tail_;
  }
  uint32_t count() const { return count_; }
  uint32_t tail_rows() const { return tail_rows_; }
  const kv::KvLayout& layout() const { return layout_; }

 private:
  kv::KvLayout layout_;
  uint32_t count_;
  uint32_t tail_rows_;
  std::vector<std::byte> data_;
  std::vector<std::byte> tail_;
};

// One end of the wire with what it saw.
struct Node {
  Recorder events;
  Generation generation;
  std::unique_ptr<Transport> transport;
};

// In-process transports on a simulated clock.
class InprocBackend {
 public:
  // Whether a peer notices a transport that ended while its process goes on.
  static constexpr bool kSeesEndedTransports = true;
  std::unique_ptr<Transport> create(const std::string& name, const Generation self,
                                    TransportEvents& events, const TransportLimits& limits = {}) {
    return hub_.create(name, {.self = self, .clock = clock_, .events = events, .limits = limits});
  }
  template <typename Condition>
  bool until(const Condition& done) {
    for (int i = 0; i < 1'000'000 && !done(); ++i) {
      if (!hub_.step()) break;
    }
    return done();
  }
  // Lets everything that is under way arrive.
  void settle() { hub_.run(); }
  void pass(Duration time) {
    clock_.advance(time);
    hub_.run();
  }
  void inject(Node&, const std::string& name, Frame frame) { hub_.inject(name, std::move(frame)); }
  InprocHub& hub() { return hub_; }

 private:
  ManualClock clock_;
  InprocHub hub_{clock_};
};

}  // namespace tandem::transport::testing
