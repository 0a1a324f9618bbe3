#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/base/result.h"
#include "common/kv/layout.h"
#include "common/kv/memory_region.h"

namespace tandem::kv {

// The memory of one pool, wherever it lies: on the host, or on a device, whose addresses only the
// device and libraries that know it may follow. Addresses never change. Pages are laid out as
// engine::KvPages says. Unmapped with its owner.
class PageMemory {
 public:
  virtual ~PageMemory() = default;

  [[nodiscard]] std::byte* pages() const { return pages_; }
  [[nodiscard]] std::byte* tails() const { return tails_; }  // null: the layout has none
  [[nodiscard]] size_t bytes() const { return bytes_; }      // of both
  [[nodiscard]] size_t tail_bytes() const { return tail_bytes_; }
  // "" for host memory, else the device's name as configuration has it: "cuda:0".
  [[nodiscard]] virtual std::string_view device() const = 0;

  // One contiguous piece of a copy between these pages and host memory.
  struct Piece {
    std::byte* page = nullptr;
    std::byte* host = nullptr;
    size_t bytes = 0;
  };
  // Copies page -> host (to_host) or host -> page (from_host); all pieces are in place on return.
  // Not ordered with steps that still run: callers know from a layer's hook or a finished step that
  // what they read is complete. Any thread. Fast where the host memory comes from host_buffer().
  [[nodiscard]] virtual Status to_host(std::span<const Piece> pieces) = 0;
  [[nodiscard]] virtual Status from_host(std::span<const Piece> pieces) = 0;

  // The same, enqueued: returns a ticket at once. Tickets of one PageMemory finish in order; host
  // memory stays untouched until done() said so. Calls come from one thread at a time.
  using Ticket = uint64_t;
  [[nodiscard]] virtual Result<Ticket> start_to_host(std::span<const Piece> pieces) = 0;
  [[nodiscard]] virtual Result<Ticket> start_from_host(std::span<const Piece> pieces) = 0;
  [[nodiscard]] virtual Result<bool> done(Ticket ticket) = 0;

  // Host memory that the device copies from and to without a detour (pinned). Freed with its owner.
  class HostBuffer {
   public:
    virtual ~HostBuffer() = default;
    [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

   protected:
    std::span<std::byte> bytes_;
  };
  [[nodiscard]] virtual Result<std::unique_ptr<HostBuffer>> host_buffer(size_t bytes) = 0;

 protected:
  std::byte* pages_ = nullptr;
  std::byte* tails_ = nullptr;
  size_t bytes_ = 0;
  size_t tail_bytes_ = 0;
};

// Page memory whose copies are the host's own: each is complete when its call returns.
class HostCopiedPageMemory : public PageMemory {
 public:
  Result<Ticket> start_to_host(std::span<const Piece> pieces) final;
  Result<Ticket> start_from_host(std::span<const Piece> pieces) final;
  Result<bool> done(Ticket) final { return true; }
  Result<std::unique_ptr<HostBuffer>> host_buffer(size_t bytes) final;
};

// Bytes of both areas of a pool. kInvalidArgument when they exceed the address space.
struct PageBytes {
  size_t pages = 0;
  size_t tails = 0;
};
[[nodiscard]] Result<PageBytes> page_bytes_of(const KvLayout& layout, uint64_t blocks,
                                              uint64_t tails);

[[nodiscard]] Result<std::unique_ptr<PageMemory>> create_host_page_memory(
    const KvLayout& layout, uint32_t blocks, uint32_t tails, const MemoryRegion::Options& options);

}  // namespace tandem::kv
