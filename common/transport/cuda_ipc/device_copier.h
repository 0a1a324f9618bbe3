#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/cuda/stream_flags.h"
#include "common/transport/direct/page_copier.h"

namespace tandem::transport {

// A PageCopier on streams of its own of one GPU: batches take them in turns, so that one begins
// while another ends. Pieces lie in memory that this GPU can reach: its own, pinned host memory, or
// a peer's, mapped.
//
// Pages are copied and checked in one pass by a few multiprocessors. Runs of engine_bytes and more
// in batches of kernel_bytes and more go to the copy engine instead, on streams that hold nothing
// but copies, and are checked where they landed while the next batch is copied. The engine pauses
// for some 4 us between copies, so batches are as large as what waits allows.
class DeviceCopier final : public PageCopier {
 public:
  struct Options {
    int device = 0;
    // Multiprocessors that a copy may use beside whatever computes.
    uint32_t blocks = 24;
    // The same for checks of what the engine copied, and of what is offered.
    uint32_t check_blocks = 48;
    // Streams of kernels, each on `blocks` multiprocessors, and of the copy engine's copies.
    uint32_t lanes = 3;
    uint32_t engines = 2;
    // Batches under way: three of any size, more of those that are not small, since each costs the
    // host some 20 us. The checks of some take place while others are copied.
    uint32_t ahead = 6;
    // A batch takes half of what waits, between these: the last ones are small, so that little is
    // left to check when the last copy ends.
    size_t least_batch_bytes = 32u << 20;
    size_t batch_bytes = 128u << 20;
    // Smaller batches than this are left to multiprocessors: a copy and a check cost two starts.
    size_t kernel_bytes = 8u << 20;
    // Runs at least this long take the copy engine.
    size_t engine_bytes = 1u << 20;
    // For copies within one card, where the engine is slower than multiprocessors.
    [[nodiscard]] static Options within(int device) {
      return {.device = device, .blocks = 48, .engine_bytes = SIZE_MAX};
    }
  };
  [[nodiscard]] static Result<std::unique_ptr<DeviceCopier>> create(const Options& options);
  [[nodiscard]] static Result<CopierPair> create_pair(const Options& options);
  ~DeviceCopier() override;

  [[nodiscard]] Ticket add(std::span<const Piece> pieces) override;
  void flush() override;
  [[nodiscard]] Result<std::optional<std::vector<uint64_t>>> taken(Ticket ticket) override;
  [[nodiscard]] bool busy() const override;
  void drain() override;

 private:
  struct Waiting {
    Ticket ticket;
    std::vector<Piece> pieces;
  };
  // Where the parts of the checksums of `count` pieces in a row will be in the ring.
  struct Sums {
    size_t at = 0;
    uint32_t items = 0;  // of each piece
    uint32_t count = 0;
  };
  // A stream of copies, and where its last one ends.
  struct Engine {
    cuda::Stream stream;
    cuda::Event copied;
    bool used = false;  // by the batch that is being started
  };
  struct Batch {
    cuda::Event done;
    uint32_t number = 0;  // its flag has this value when it is done
    std::vector<std::pair<Ticket, std::vector<Sums>>> tickets;
    size_t sums = 0;  // of the ring
  };

  explicit DeviceCopier(const Options& options) : options_(options) {}
  // Under the mutex, with the device current.
  [[nodiscard]] bool may_start() const;
  [[nodiscard]] size_t next_batch_bytes() const;
  bool flush_batch();  // false: nothing more can go now
  [[nodiscard]] Status start(std::vector<Waiting>& work, size_t bytes, Batch& batch);
  [[nodiscard]] Status copy_long_runs(std::vector<Waiting>& work, Engine& engine);
  void reserve(const std::vector<Waiting>& work, Batch& batch);
  [[nodiscard]] Status launch(const std::vector<Waiting>& work, const Batch& batch, bool copies,
                              const cuda::Stream& lane);
  [[nodiscard]] size_t reserve_sums(uint32_t items);
  void collect(bool wait);
  [[nodiscard]] Result<bool> is_done(const Batch& batch);
  void fail_all(Status status);
  void settle() const;
  [[nodiscard]] size_t sums_of(const Waiting& work) const;

  const Options options_;
  mutable std::mutex mutex_;
  std::vector<cuda::Stream> lanes_;
  std::vector<Engine> engines_;
  size_t next_lane_ = 0;
  size_t next_engine_ = 0;
  cuda::PinnedBuffer sums_;  // a ring: kernels write, the host adds up
  size_t sums_head_ = 0;     // next free entry, counted without end
  size_t sums_tail_ = 0;     // oldest entry in use
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
  std::deque<Batch> batches_;
  cuda::StreamFlags flags_;  // [number % kEvents]
  uint32_t last_batch_ = 0;
  uint32_t looks_ = 0;  // at the oldest batch's flag, since its event was asked
  std::vector<cuda::Event> spare_events_;
  std::unordered_map<Ticket, std::vector<uint64_t>> results_;
  Ticket last_ = 0;
  Status status_;  // an error is final
};

}  // namespace tandem::transport
