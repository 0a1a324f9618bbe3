#include "common/transport/shm/host_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/proto/xxh3.h"

namespace tandem::transport {
namespace {

// Checked while it is still in the first-level cache.
constexpr size_t kChunk = 8u << 10;

uint64_t copy_and_check(std::byte* to, const std::byte* from, size_t bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < bytes; at += kChunk) {
    const size_t n = std::min(kChunk, bytes - at);
    std::memcpy(to + at, from + at, n);
    sum = proto::xxh3({to + at, n}, sum);
  }
  return sum;
}

bool within(const std::byte* at, const std::byte* begin, size_t bytes) {
  return begin != nullptr && at >= begin && at < begin + bytes;
}

}  // namespace

HostCopier::HostCopier(kv::PageMemory* memory)
    : device_(memory != nullptr && !memory->device().empty() ? memory : nullptr) {}

PageCopier::Ticket HostCopier::add(std::span<const Piece> pieces) {
  std::lock_guard lock(mutex_);
  done_.emplace(++last_, copy(pieces));
  return last_;
}

Result<std::optional<std::vector<uint64_t>>> HostCopier::taken(Ticket ticket) {
  std::lock_guard lock(mutex_);
  const auto it = done_.find(ticket);
  if (it == done_.end()) return std::nullopt;
  Result<Sums> sums = std::move(it->second);
  done_.erase(it);
  if (!sums) return fail(std::move(sums).error());
  return std::move(*sums);
}

// What add() started is done once it let go of the mutex.
void HostCopier::drain() { std::lock_guard lock(mutex_); }

bool HostCopier::on_device(const std::byte* at) const {
  return device_ != nullptr &&
         (within(at, device_->pages(), device_->bytes() - device_->tail_bytes()) ||
          within(at, device_->tails(), device_->tail_bytes()));
}

Result<HostCopier::Sums> HostCopier::copy(std::span<const Piece> pieces) {
  if (pieces.empty()) return Sums{};
  const bool from_device = on_device(pieces.front().from);
  if (from_device || on_device(pieces.front().to)) return copy_by_device(pieces, from_device);
  Sums sums;
  sums.reserve(pieces.size());
  for (const Piece& p : pieces) sums.push_back(copy_and_check(p.to, p.from, p.bytes));
  return sums;
}

Result<HostCopier::Sums> HostCopier::copy_by_device(std::span<const Piece> pieces,
                                                    bool from_device) {
  size_t total = 0;
  for (const Piece& p : pieces) total += p.bytes;
  if (buffer_ == nullptr || buffer_->bytes().size() < total) {
    TANDEM_ASSIGN(buffer_, device_->host_buffer(total));
  }
  std::vector<kv::PageMemory::Piece> copies;
  copies.reserve(pieces.size());
  std::byte* host = buffer_->bytes().data();
  for (const Piece& p : pieces) {
    // A source is only read; pieces serve both ways.
    copies.push_back({from_device ? const_cast<std::byte*>(p.from) : p.to, host, p.bytes});
    host += p.bytes;
  }
  if (from_device) TANDEM_TRY(device_->to_host(copies));
  Sums sums;
  sums.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& p = pieces[i];
    sums.push_back(from_device ? copy_and_check(p.to, copies[i].host, p.bytes)
                               : copy_and_check(copies[i].host, p.from, p.bytes));
  }
  if (!from_device) TANDEM_TRY(device_->from_host(copies));
  return sums;
}

}  // namespace tandem::transport
