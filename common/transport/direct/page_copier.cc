#include "common/transport/direct/page_copier.h"

#include <algorithm>
#include <cstring>

namespace tandem::transport {
namespace {

// MurmurHash3's finalizer (public domain constants), over word + place * 2^64/golden ratio.
uint64_t mixed(uint64_t word, uint64_t place) {
  uint64_t h = word + (place + 1) * 0x9e3779b97f4a7c15ULL;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  h ^= h >> 33;
  return h;
}

}  // namespace

uint64_t piece_checksum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    sum += mixed(word, at / 8);
  }
  return sum;
}

}  // namespace tandem::transport
