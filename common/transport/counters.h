#pragma once

#include <atomic>

#include "common/transport/transport.h"

namespace tandem::transport {

// Live side of TransportCounters. Any thread.
struct AtomicCounters {
  std::atomic<uint64_t> frames_sent{0}, frames_received{0};
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};
  std::atomic<uint64_t> rejected_checksum{0}, rejected_malformed{0}, rejected_generation{0};
  std::atomic<uint64_t> rejected_unknown{0}, rejected_replayed{0};
  std::atomic<uint64_t> transfers_expired{0};

  void count_sent(size_t bytes) {
    frames_sent.fetch_add(1, std::memory_order_relaxed);
    bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  }
  void count_received(size_t bytes) {
    frames_received.fetch_add(1, std::memory_order_relaxed);
    bytes_received.fetch_add(bytes, std::memory_order_relaxed);
  }
  [[nodiscard]] TransportCounters snapshot() const;
};

}  // namespace tandem::transport
