#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::proto {

// XXH3-64, with the widest vectors that this processor has where the library offers a choice: its
// plain functions are built for the oldest one and take three times as long on KV pages.
[[nodiscard]] uint64_t xxh3(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace tandem::proto
