#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/node/page_mover.h"

namespace tandem::node {

// The copying of one MoveJob, a batch of pages at a time, so that whoever shares the way between
// the two memories waits for one batch at most. Any thread, one at a time.
class PageCopy {
 public:
  // `staging` holds a batch on its way: at least one page of the source's layout (and of its tail
  // layout). Fast where it comes from the device's PageMemory::host_buffer(). Outlives the copy.
  PageCopy(const MoveJob& job, std::span<std::byte> staging);

  // Copies the next batch; false when nothing was left.
  [[nodiscard]] Result<bool> next();
  [[nodiscard]] uint64_t bytes() const { return bytes_; }  // written to the target so far

 private:
  struct Page {
    std::byte* from = nullptr;
    std::byte* to = nullptr;
    kv::KvLayout from_layout;
    kv::KvLayout to_layout;
    uint32_t rows = 0;
  };
  [[nodiscard]] Page page(uint64_t index) const;

  const MoveJob& job_;
  std::span<std::byte> staging_;
  std::vector<std::byte> encoded_;  // a batch in the target's format, if that is another one
  std::vector<Page> batch_;
  std::vector<kv::PageMemory::Piece> pieces_;
  uint32_t per_layer_ = 0;
  uint64_t count_ = 0;
  uint64_t next_ = 0;
  uint64_t bytes_ = 0;
};

// Bytes of staging that PageCopy needs for any move between these layouts.
[[nodiscard]] size_t least_staging(const kv::KvLayout& a, const kv::KvLayout& b);

}  // namespace tandem::node
