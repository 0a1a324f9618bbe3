#pragma once

#include <algorithm>
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

// Calls post(first_page, part) -> Status for each frame's share of a layer's `pages`, in order,
// until one fails. Pages are of one size.
template <typename Post>
Status for_each_frame(uint32_t first_page, std::span<const std::span<const std::byte>> pages,
                      const Post& post, size_t target = kTargetPayload) {
  if (pages.empty()) return {};
  const size_t fit = target / std::max<size_t>(pages.front().size(), 1);
  const size_t step = std::clamp<size_t>(fit, 1, proto::kMaxKvFramePages);
  for (size_t at = 0; at < pages.size(); at += step) {
    const auto part = pages.subspan(at, std::min(step, pages.size() - at));
    TANDEM_TRY(post(first_page + static_cast<uint32_t>(at), part));
  }
  return {};
}

// The first `rows` rows of a tail page lie scattered in it, one run of bytes for each head's K and
// V; on the wire the runs follow each other without gaps. Runs are all of run_bytes.
struct TailRuns {
  size_t count = 0;
  size_t run_bytes = 0;  // `rows` rows of one section
  size_t stride = 0;     // between runs in the tail page
  [[nodiscard]] size_t bytes() const { return count * run_bytes; }
};
[[nodiscard]] TailRuns tail_runs(const kv::KvLayout& layout, uint32_t rows);

// Moves bytes between pages and frames: a plain copy on the host, through a pinned buffer where
// pages lie on a device. One thread at a time.
class PageIo {
 public:
  explicit PageIo(kv::PageMemory* memory);
  [[nodiscard]] bool staged() const { return device_ != nullptr; }

  // Pages one behind the other, or a tail's runs, as a frame carries them.
  [[nodiscard]] Result<std::vector<std::byte>> read(
      std::span<const std::span<const std::byte>> pages);
  [[nodiscard]] Result<std::vector<std::byte>> read(const TailRuns& runs,
                                                    std::span<const std::byte> page);
  // `bytes` spread over destinations, which are as long together.
  [[nodiscard]] Status write(std::span<const std::span<std::byte>> to,
                             std::span<const std::byte> bytes);

 private:
  [[nodiscard]] Result<std::byte*> buffer(size_t bytes);
  kv::PageMemory* device_ = nullptr;  // null: host memory
  std::unique_ptr<kv::PageMemory::HostBuffer> buffer_;
};

// What a sender puts into every header.
struct FrameOrigin {
  TransferId transfer;
  Generation sender;
  Generation receiver;
  uint64_t geometry = 0;
  uint8_t format = 0;
};

// Copies `pages` of host memory (each page_bytes long) into one frame and checksums it.
[[nodiscard]] Frame make_data_frame(const FrameOrigin& origin, uint32_t layer, uint32_t first_page,
                                    std::span<const std::span<const std::byte>> pages);
// The same of bytes that PageIo read: `pages` pages, or a tail's rows.
[[nodiscard]] Frame make_page_frame(const FrameOrigin& origin, proto::KvFrameKind kind,
                                    uint32_t layer, uint32_t first_page, uint32_t pages,
                                    std::vector<std::byte> payload);
[[nodiscard]] Frame make_commit_frame(const FrameOrigin& origin, std::string_view commit);
// A data or tail frame whose payload is not the pages but `offer`, by which the receiver fetches
// them. `pages` counts rows for a tail; `bytes` is the length of what is offered.
[[nodiscard]] Frame make_offer_frame(const FrameOrigin& origin, proto::KvFrameKind kind,
                                     uint32_t layer, uint32_t first_page, uint32_t pages,
                                     size_t bytes, std::string_view offer);
// kCancel, kError, kReject
[[nodiscard]] Frame make_reason_frame(const FrameOrigin& origin, proto::KvFrameKind kind,
                                      const Error& reason);
[[nodiscard]] Frame make_ack_frame(const FrameOrigin& origin);

// Layouts whose pages no frame could carry are refused with kUnsupported.
[[nodiscard]] Status check_layout(const kv::KvLayout& layout);

}  // namespace tandem::transport
