#include "common/transport/direct/page_copier.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tandem::transport {
namespace {

// MurmurHash3's finalizer (public domain constants).
uint64_t mixed(uint64_t h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  return h ^ h >> 33;
}

}  // namespace

uint64_t piece_checksum(std::span<const std::byte> bytes) {
  uint64_t checksum = 0;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    uint64_t words[2] = {};
    std::memcpy(words, bytes.data() + at, std::min<size_t>(16, bytes.size() - at));
    checksum += mixed((words[0] ^ std::rotl(words[1] * 0xd6e8feb86659fd93ULL, 29)) +
                      (at / 16 + 1) * 0x9e3779b97f4a7c15ULL);
  }
  return checksum;
}

}  // namespace tandem::transport
