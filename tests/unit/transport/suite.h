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
  void on_meet_failed(const std::string& name, const Error& error) override {
    std::lock_guard lock(mutex_);
    not_met_[name] = error;
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
  std::optional<Error> not_met(const std::string& name) const { return get(not_met_, name); }

 private:
  template <typename Map>
  std::optional<typename Map::mapped_type> get(const Map& map,
                                               const typename Map::key_type& id) const {
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
  std::map<std::string, Error> not_met_;
};

// Where Pages lie when not on the host: a piece of memory that a backend's transports can reach.
class PageArena {
 public:
  virtual ~PageArena() = default;
  virtual std::byte* allocate(size_t bytes) = 0;  // zeroed or not; freed with the arena
  virtual void upload(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, const std::byte* from) const = 0;
};
inline PageArena*& page_arena() {  // null: host memory
  static PageArena* arena = nullptr;
  return arena;
}

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
    if (seed != 0) fill(seed);
    if (page_arena() == nullptr) return;
    for (auto [host, device] :
         {std::pair(&data_, &device_data_), std::pair(&tail_, &device_tail_)}) {
      if (host->empty()) continue;
      *device = page_arena()->allocate(host->size());
      page_arena()->upload(*device, *host);
    }
  }
  std::span<std::byte> page(uint32_t layer, uint32_t i) {
    return here(host_page(layer, i), data_, device_data_);
  }
  std::span<std::byte> tail(uint32_t layer) { return here(host_tail(layer), tail_, device_tail_); }
  // The bytes as they were made.
  std::span<std::byte> host_page(uint32_t layer, uint32_t i) {
    const size_t bytes = layout_.page_bytes();
    return std::span(data_).subspan((size_t{layer} * count_ + i) * bytes, bytes);
  }
  std::span<std::byte> host_tail(uint32_t layer) {
    const size_t bytes = layout_.tail_layout().page_bytes();
    return std::span(tail_).subspan(layer * bytes, bytes);
  }
  bool untouched() const {
    const auto fresh = [](std::byte b) { return b == std::byte{0xCC}; };
    return std::ranges::all_of(data(), fresh) && std::ranges::all_of(tails(), fresh);
  }
  friend bool operator==(const Pages& a, const Pages& b) {
    return a.data() == b.data() && a.tails() == b.tails();
  }
  uint32_t count() const { return count_; }
  uint32_t tail_rows() const { return tail_rows_; }
  const kv::KvLayout& layout() const { return layout_; }

 private:
  void fill(uint64_t state) {
    const auto fill = [&](std::span<std::byte> bytes) {
      for (std::byte& b : bytes) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        b = static_cast<std::byte>(state >> 56);
      }
    };
    fill(data_);
    const TailRuns runs = tail_runs(layout_, tail_rows_);
    for (uint32_t layer = 0; tail_rows_ > 0 && layer < layout_.layers; ++layer) {
      for (size_t i = 0; i < runs.count; ++i) {
        fill(host_tail(layer).subspan(i * runs.stride, runs.run_bytes));
      }
    }
  }
  std::span<std::byte> here(std::span<std::byte> host, const std::vector<std::byte>& area,
                            std::byte* device) {
    if (device == nullptr) return host;
    return {device + (host.data() - area.data()), host.size()};
  }
  // The bytes as they are now.
  std::vector<std::byte> data() const { return now(data_, device_data_); }
  std::vector<std::byte> tails() const { return now(tail_, device_tail_); }
  std::vector<std::byte> now(const std::vector<std::byte>& host, const std::byte* device) const {
    if (device == nullptr) return host;
    std::vector<std::byte> bytes(host.size());
    page_arena()->download(bytes, device);
    return bytes;
  }

  kv::KvLayout layout_;
  uint32_t count_;
  uint32_t tail_rows_;
  std::vector<std::byte> data_;
  std::vector<std::byte> tail_;
  std::byte* device_data_ = nullptr;
  std::byte* device_tail_ = nullptr;
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
