#include "common/kv/memory_region.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace tandem::kv {

Result<MemoryRegion> MemoryRegion::create(size_t bytes, const Options& options) {
  MemoryRegion region;
  if (bytes == 0) return region;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kResourceExhausted, "cannot map " + std::to_string(bytes) +
                                                   " bytes of KV memory: " + std::strerror(errno) +
                                                   "; configure fewer KV blocks");
  }
  region.data_ = static_cast<std::byte*>(data);
  region.bytes_ = bytes;
  // Advice only: where the kernel knows no huge pages the pool works with small ones.
  if (options.huge_pages) (void)madvise(data, bytes, MADV_HUGEPAGE);
  if (options.first_touch) std::memset(data, 0, bytes);
  return region;
}

MemoryRegion::~MemoryRegion() {
  if (data_ != nullptr && munmap(data_, bytes_) != 0) {
    std::fprintf(stderr, "munmap of KV memory failed: %s\n", std::strerror(errno));
  }
}

}  // namespace tandem::kv
