#pragma once

#include <cstring>

#include "common/kv/page_memory.h"
#include "tests/unit/transport/suite.h"

namespace tandem::transport::testing {

// Memory as a device's looks to the host: its addresses cannot be followed, and only its own copies
// reach it. Any thread.
class FarMemory final : public kv::HostCopiedPageMemory, public PageArena {
 public:
  explicit FarMemory(size_t bytes) : memory_(bytes) {
    pages_ = far(memory_.data());
    bytes_ = bytes;
  }
  std::string_view device() const override { return "far:0"; }
  Status to_host(std::span<const Piece> pieces) override {
    for (const Piece& p : pieces) std::memcpy(p.host, near(p.page), p.bytes);
    return {};
  }
  Status from_host(std::span<const Piece> pieces) override {
    for (const Piece& p : pieces) std::memcpy(near(p.page), p.host, p.bytes);
    return {};
  }
  std::byte* allocate(size_t bytes) override {
    EXPECT_LE(used_ + bytes, memory_.size());
    std::byte* const at = far(memory_.data() + used_);
    used_ += (bytes + 63) / 64 * 64;
    return at;
  }
  void upload(std::byte* to, std::span<const std::byte> from) override {
    std::memcpy(near(to), from.data(), from.size());
  }
  void download(std::span<std::byte> to, const std::byte* from) const override {
    std::memcpy(to.data(), near(const_cast<std::byte*>(from)), to.size());
  }

 private:
  // Beyond what a process can map.
  static constexpr uintptr_t kFar = uintptr_t{1} << 60;
  static std::byte* far(std::byte* p) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(p) + kFar);
  }
  static std::byte* near(std::byte* p) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(p) - kFar);
  }
  std::vector<std::byte> memory_;
  size_t used_ = 0;
};

}  // namespace tandem::transport::testing
