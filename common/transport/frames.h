#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/proto/kv_frame.h"
#include "common/transport/transport.h"

namespace tandem::transport {

// Equal on both sides or the pages cannot be exchanged: block tokens, group size, codec version,
// layers, heads, head_dim and format.
[[nodiscard]] uint64_t geometry_hash(const kv::KvLayout& layout);

// One whole frame in memory.
struct Frame {
  proto::KvHeaderBytes header{};
  std::vector<std::byte> payload;
  [[nodiscard]] size_t wire_bytes() const { return header.size() + payload.size(); }
};

// Frames aim at this payload: large enough that per-frame costs vanish, small enough to overlap
// copying, checking and sending, and to stay in a core's cache.
inline constexpr size_t kTargetPayload = 256u << 10;
[[nodiscard]] uint32_t pages_per_frame(const kv::KvLayout& layout);

// What a sender puts into every header.
struct FrameOrigin {
  TransferId transfer;
  Generation sender;
  Generation receiver;
  uint64_t geometry = 0;
  uint8_t format = 0;
};

// Copies `pages` (each page_bytes long) into one frame and checksums it.
[[nodiscard]] Frame make_data_frame(const FrameOrigin& origin, uint32_t layer, uint32_t first_page,
                                    std::span<const std::span<const std::byte>> pages);
[[nodiscard]] Frame make_tail_frame(const FrameOrigin& origin, uint32_t layer,
                                    std::span<const std::byte> page);
[[nodiscard]] Frame make_commit_frame(const FrameOrigin& origin, std::string_view commit);
// kCancel, kError, kReject
[[nodiscard]] Frame make_reason_frame(const FrameOrigin& origin, proto::KvFrameKind kind,
                                      const Error& reason);
[[nodiscard]] Frame make_ack_frame(const FrameOrigin& origin);

// Layouts whose pages no frame could carry are refused with kUnsupported.
[[nodiscard]] Status check_layout(const kv::KvLayout& layout);

}  // namespace tandem::transport
