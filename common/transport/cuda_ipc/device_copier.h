#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/transport/direct/page_copier.h"

namespace tandem::transport {

// A PageCopier on streams of its own of one GPU: batches take them in turns, so that one begins
// while another ends. Pieces lie in memory that this GPU can reach: its own, pinned host memory, or
// a peer's, mapped.
//
// Pages are copied and checked in one pass by a few multiprocessors. Runs of engine_bytes and more
// go to the copy engine instead and are then checked where they landed, while another lane copies.
class DeviceCopier final : public PageCopier {
 public:
  struct Options {
    int device = 0;
    // Multiprocessors that a copy may use beside whatever computes.
    uint32_t blocks = 24;
    // Batches under way at a time, each on `blocks` multiprocessors.
    uint32_t lanes = 3;
    // A batch ends here, so that what depends on its first pages need not wait for all that was
    // added.
    size_t batch_bytes = 32u << 20;
    // Runs at least this long take the copy engine.
    size_t engine_bytes = 1u << 20;
  };
  [[nodiscard]] static Result<std::unique_ptr<DeviceCopier>> create(const Options& options);
  ~DeviceCopier() override;

  [[nodiscard]] Ticket add(std::span<const Piece> pieces) override;
  void flush() override;
  [[nodiscard]] Result<std::optional<std::vector<uint64_t>>> taken(Ticket ticket) override;
  [[nodiscard]] bool busy() const override;
  void drain() override;

  [[nodiscard]] int device() const { return options_.device; }

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
  struct Batch {
    cuda::Event done;
    std::vector<std::pair<Ticket, std::vector<Sums>>> tickets;
    size_t sums = 0;  // of the ring
  };

  explicit DeviceCopier(const Options& options) : options_(options) {}
  // Under the mutex, with the device current.
  void flush_locked();
  bool flush_batch();  // false: nothing more can go now
  [[nodiscard]] Status launch(std::vector<Waiting>& work, Batch& batch, const cuda::Stream& lane);
  [[nodiscard]] Status copy_long_runs(std::vector<Waiting>& work, const cuda::Stream& lane);
  [[nodiscard]] size_t reserve_sums(uint32_t items);
  void collect(bool wait);
  void fail_all(Status status);
  [[nodiscard]] size_t sums_of(const Waiting& work) const;

  const Options options_;
  mutable std::mutex mutex_;
  std::vector<cuda::Stream> lanes_;
  size_t next_lane_ = 0;
  cuda::PinnedBuffer sums_;  // a ring: kernels write, the host adds up
  size_t sums_head_ = 0;     // next free entry, counted without end
  size_t sums_tail_ = 0;     // oldest entry in use
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
  std::deque<Batch> batches_;
  std::vector<cuda::Event> spare_events_;
  std::unordered_map<Ticket, std::vector<uint64_t>> results_;
  Ticket last_ = 0;
  Status status_;  // an error is final
};

}  // namespace tandem::transport
