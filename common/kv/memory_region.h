#pragma once

#include <cstddef>
#include <utility>

#include "common/base/result.h"

namespace tandem::kv {

// Zeroed anonymous memory, page-aligned, unmapped with its owner. Movable; the address never
// changes.
class MemoryRegion {
 public:
  struct Options {
    bool huge_pages = true;  // ask for transparent huge pages; the kernel may decline
    bool first_touch =
        false;  // fault every page in now (start-up cost instead of first-request cost)
  };
  [[nodiscard]] static Result<MemoryRegion> create(size_t bytes, const Options& options);

  MemoryRegion() = default;
  MemoryRegion(MemoryRegion&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryRegion& operator=(MemoryRegion&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryRegion();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tandem::kv
