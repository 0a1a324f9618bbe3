#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "common/kv/page_memory.h"
#include "common/transport/direct/page_copier.h"

namespace tandem::transport {

// The processor's own copier: a copy is done when add() returns. Checksums are of what was written,
// so that nobody who changes the source meanwhile goes unnoticed; they are not piece_checksum().
class HostCopier final : public PageCopier {
 public:
  // `memory`: the pool, when it lies on a device; its pages are then copied through a pinned
  // buffer. Null: everything is host memory. Outlives the copier.
  explicit HostCopier(kv::PageMemory* memory);

  // Every piece has a `to`.
  Ticket add(std::span<const Piece> pieces) override;
  void flush() override {}
  Result<std::optional<std::vector<uint64_t>>> taken(Ticket ticket) override;
  bool busy() const override { return false; }
  void drain() override;

 private:
  using Sums = std::vector<uint64_t>;
  Result<Sums> copy(std::span<const Piece> pieces);
  Result<Sums> copy_by_device(std::span<const Piece> pieces, bool from_device);
  [[nodiscard]] bool on_device(const std::byte* at) const;

  kv::PageMemory* const device_;  // null: host memory
  std::mutex mutex_;
  std::unique_ptr<kv::PageMemory::HostBuffer> buffer_;
  std::map<Ticket, Result<Sums>> done_;
  Ticket last_ = 0;
};

}  // namespace tandem::transport
