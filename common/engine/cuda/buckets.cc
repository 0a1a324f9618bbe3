#include "common/engine/cuda/buckets.h"

#include <algorithm>

namespace tandem::engine {

std::vector<uint32_t> decode_buckets(uint32_t most) {
  std::vector<uint32_t> out;
  for (uint32_t rows = 1; rows < most;) {
    out.push_back(rows);
    if (rows < 8) {
      rows *= 2;
    } else if (rows < 32) {
      rows += 8;
    } else if (rows < 64) {
      rows += 16;
    } else if (rows < 128) {
      rows += 32;
    } else {
      rows += 64;
    }
  }
  if (most > 0) out.push_back(most);
  return out;
}

std::vector<uint32_t> verify_buckets(uint32_t most) {
  constexpr uint32_t kFewest = 8;
  std::vector<uint32_t> out = decode_buckets(most == 0 ? 0 : std::max(most, kFewest));
  std::erase_if(out, [](uint32_t rows) { return rows < kFewest; });
  return out;
}

size_t bucket_of(const std::vector<uint32_t>& buckets, uint32_t rows) {
  return static_cast<size_t>(std::ranges::lower_bound(buckets, rows) - buckets.begin());
}

}  // namespace tandem::engine
