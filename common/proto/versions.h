#pragma once

#include <cstdint>

namespace tandem::proto {

// Peers of different versions refuse each other at the handshake.
inline constexpr uint32_t kControlVersion = 1;
inline constexpr uint32_t kKvFrameVersion = 2;
inline constexpr uint32_t kKvCodecVersion = 1;

}  // namespace tandem::proto
