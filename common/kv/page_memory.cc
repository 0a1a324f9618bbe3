#include "common/kv/page_memory.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace tandem::kv {
namespace {

class PlainBuffer final : public PageMemory::HostBuffer {
 public:
  explicit PlainBuffer(size_t bytes) : memory_(bytes) { bytes_ = memory_; }

 private:
  std::vector<std::byte> memory_;
};

class HostPageMemory final : public HostCopiedPageMemory {
 public:
  HostPageMemory(MemoryRegion pages, MemoryRegion tails)
      : page_region_(std::move(pages)), tail_region_(std::move(tails)) {
    pages_ = page_region_.data();
    tails_ = tail_region_.data();
    bytes_ = page_region_.bytes() + tail_region_.bytes();
    tail_bytes_ = tail_region_.bytes();
  }

  std::string_view device() const override { return {}; }

  Status to_host(std::span<const Piece> pieces) override {
    for (const Piece& p : pieces) std::memcpy(p.host, p.page, p.bytes);
    return {};
  }
  Status from_host(std::span<const Piece> pieces) override {
    for (const Piece& p : pieces) std::memcpy(p.page, p.host, p.bytes);
    return {};
  }

 private:
  MemoryRegion page_region_;
  MemoryRegion tail_region_;
};

Result<size_t> area_bytes(const KvLayout& layout, uint64_t slots) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(layout.block_bytes(), slots, &bytes)) {
    return fail(ErrorCode::kInvalidArgument,
                "KV pool: " + std::to_string(slots) + " blocks of " +
                    std::to_string(layout.block_bytes()) + " bytes exceed the address space",
                "blocks");
  }
  return bytes;
}

}  // namespace

Result<PageMemory::Ticket> HostCopiedPageMemory::start_to_host(std::span<const Piece> pieces) {
  TANDEM_TRY(to_host(pieces));
  return Ticket{0};
}

Result<PageMemory::Ticket> HostCopiedPageMemory::start_from_host(std::span<const Piece> pieces) {
  TANDEM_TRY(from_host(pieces));
  return Ticket{0};
}

Result<std::unique_ptr<PageMemory::HostBuffer>> HostCopiedPageMemory::host_buffer(size_t bytes) {
  return std::make_unique<PlainBuffer>(bytes);
}

Result<PageBytes> page_bytes_of(const KvLayout& layout, uint64_t blocks, uint64_t tails) {
  PageBytes out;
  TANDEM_ASSIGN(out.pages, area_bytes(layout, blocks));
  if (tails > 0) {
    TANDEM_ASSIGN(out.tails, area_bytes(layout.tail_layout(), tails));
  }
  return out;
}

Result<std::unique_ptr<PageMemory>> create_host_page_memory(const KvLayout& layout, uint32_t blocks,
                                                            uint32_t tails,
                                                            const MemoryRegion::Options& options) {
  TANDEM_ASSIGN(const PageBytes bytes, page_bytes_of(layout, blocks, tails));
  TANDEM_ASSIGN(MemoryRegion pages, MemoryRegion::create(bytes.pages, options));
  TANDEM_ASSIGN(MemoryRegion open_pages, MemoryRegion::create(bytes.tails, options));
  return std::make_unique<HostPageMemory>(std::move(pages), std::move(open_pages));
}

}  // namespace tandem::kv
