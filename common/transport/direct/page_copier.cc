#include "common/transport/direct/page_copier.h"

#include <algorithm>
#include <cstring>

namespace tandem::transport {
namespace {

uint64_t pair_sum(uint32_t a, uint32_t b) { return uint64_t{a} * b + (uint64_t{a} << 32 | b); }

}  // namespace

uint64_t piece_checksum(std::span<const std::byte> bytes) {
  uint64_t checksum = 0;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    uint32_t words[4] = {};
    std::memcpy(words, bytes.data() + at, std::min<size_t>(16, bytes.size() - at));
    const auto place = static_cast<uint32_t>(at / 16);
    checksum += pair_sum(words[0] + (place * 0x9e3779b1U + 0x85ebca77U),
                         words[1] + (place * 0xc2b2ae3dU + 0x27d4eb2fU));
    checksum += pair_sum(words[2] + (place * 0x165667b1U + 0xd6e8feb8U),
                         words[3] + (place * 0x7f4a7c15U + 0x94d049bbU));
  }
  return checksum;
}

}  // namespace tandem::transport
