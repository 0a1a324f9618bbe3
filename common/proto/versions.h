#pragma once

#include <cstdint>

namespace tandem::proto {

// Peers of different versions refuse each other at the handshake. Raised with every change of what
// travels, however small: a cluster runs one release.
inline constexpr uint32_t kControlVersion = 2;  // control.proto; 2 introduces decode nodes
inline constexpr uint32_t kKvFrameVersion = 4;  // kv_frame.h and what each transport says beside
inline constexpr uint32_t kKvCodecVersion = 1;

}  // namespace tandem::proto
