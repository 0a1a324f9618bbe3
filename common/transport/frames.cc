#include "common/transport/frames.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "common/proto/versions.h"

namespace tandem::transport {
namespace {

using proto::KvFrameHeader;
using proto::KvFrameKind;

KvFrameHeader header_of(const FrameOrigin& origin, KvFrameKind kind) {
  return {.kind = kind,
          .format = origin.format,
          .transfer = origin.transfer,
          .sender = origin.sender,
          .receiver = origin.receiver,
          .geometry = origin.geometry};
}

Frame sealed(KvFrameHeader header, std::vector<std::byte> payload) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.payload_checksum = proto::kv_payload_checksum(header.transfer, payload);
  return {proto::encode_kv_header(header), std::move(payload)};
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

uint64_t geometry_hash(const kv::KvLayout& layout) {
  const uint32_t fields[] = {proto::kKvCodecVersion,
                             kv::kBlockTokens,
                             kv::kV4Group,
                             layout.layers,
                             layout.kv_heads,
                             layout.head_dim,
                             static_cast<uint32_t>(layout.format)};
  return XXH3_64bits(fields, sizeof(fields));
}

// Tail pages hold rows of plain elements: heads, then K and V, then token, then channel. A section
// is then 16 rows without padding (head_dim is even).
TailRuns tail_runs(const kv::KvLayout& layout, uint32_t rows) {
  const kv::KvLayout tail = layout.tail_layout();
  const size_t section = tail.k_section_bytes();
  return {.count = size_t{2} * tail.kv_heads,
          .run_bytes = section / kv::kBlockTokens * rows,
          .stride = section};
}

PageIo::PageIo(kv::PageMemory* memory)
    : device_(memory != nullptr && !memory->device().empty() ? memory : nullptr) {}

Result<std::byte*> PageIo::buffer(size_t bytes) {
  if (buffer_ == nullptr || buffer_->bytes().size() < bytes) {
    TANDEM_ASSIGN(buffer_, device_->host_buffer(std::max(bytes, kTargetPayload)));
  }
  return buffer_->bytes().data();
}

Result<std::vector<std::byte>> PageIo::read(std::span<const std::span<const std::byte>> pages) {
  size_t total = 0;
  for (const auto& page : pages) total += page.size();
  std::vector<std::byte> payload;
  payload.reserve(total);
  if (device_ == nullptr) {
    for (const auto& page : pages) payload.insert(payload.end(), page.begin(), page.end());
    return payload;
  }
  TANDEM_ASSIGN(std::byte* const host, buffer(total));
  std::vector<kv::PageMemory::Piece> pieces;
  size_t at = 0;
  for (const auto& page : pages) {
    // Only read; pieces serve both ways.
    pieces.push_back({const_cast<std::byte*>(page.data()), host + at, page.size()});
    at += page.size();
  }
  TANDEM_TRY(device_->to_host(pieces));
  payload.assign(host, host + total);
  return payload;
}

Result<std::vector<std::byte>> PageIo::read(const TailRuns& runs, std::span<const std::byte> page) {
  std::vector<std::span<const std::byte>> parts;
  for (size_t i = 0; i < runs.count; ++i) {
    parts.push_back(page.subspan(i * runs.stride, runs.run_bytes));
  }
  return read(parts);
}

Status PageIo::write(std::span<const std::span<std::byte>> to, std::span<const std::byte> bytes) {
  size_t at = 0;
  if (device_ == nullptr) {
    for (const auto& part : to) {
      std::memcpy(part.data(), bytes.data() + at, part.size());
      at += part.size();
    }
    return {};
  }
  TANDEM_ASSIGN(std::byte* const host, buffer(bytes.size()));
  std::memcpy(host, bytes.data(), bytes.size());
  std::vector<kv::PageMemory::Piece> pieces;
  for (const auto& part : to) {
    pieces.push_back({part.data(), host + at, part.size()});
    at += part.size();
  }
  return device_->from_host(pieces);
}

Frame make_data_frame(const FrameOrigin& origin, uint32_t layer, uint32_t first_page,
                      std::span<const std::span<const std::byte>> pages) {
  std::vector<std::byte> payload;
  payload.reserve(pages.empty() ? 0 : pages.size() * pages.front().size());
  for (const auto& page : pages) payload.insert(payload.end(), page.begin(), page.end());
  return make_page_frame(origin, KvFrameKind::kData, layer, first_page,
                         static_cast<uint32_t>(pages.size()), std::move(payload));
}

Frame make_page_frame(const FrameOrigin& origin, KvFrameKind kind, uint32_t layer,
                      uint32_t first_page, uint32_t pages, std::vector<std::byte> payload) {
  KvFrameHeader header = header_of(origin, kind);
  header.layer = layer;
  header.first_page = first_page;
  header.pages = pages;
  return sealed(header, std::move(payload));
}

Frame make_offer_frame(const FrameOrigin& origin, KvFrameKind kind, uint32_t layer,
                       uint32_t first_page, uint32_t pages, size_t bytes, std::string_view offer) {
  KvFrameHeader header = header_of(origin, kind);
  header.layer = layer;
  header.first_page = first_page;
  header.pages = pages;
  header.payload_bytes = static_cast<uint32_t>(bytes);
  std::vector<std::byte> payload = bytes_of(offer);
  header.payload_checksum = proto::kv_payload_checksum(header.transfer, payload);
  return {proto::encode_kv_header(header), std::move(payload)};
}

Frame make_commit_frame(const FrameOrigin& origin, std::string_view commit) {
  return sealed(header_of(origin, KvFrameKind::kCommit), bytes_of(commit));
}

Frame make_reason_frame(const FrameOrigin& origin, KvFrameKind kind, const Error& reason) {
  return sealed(header_of(origin, kind),
                bytes_of(proto::encode_kv_reason(reason.code, reason.detail)));
}

Frame make_ack_frame(const FrameOrigin& origin) {
  return sealed(header_of(origin, KvFrameKind::kAck), {});
}

Status check_layout(const kv::KvLayout& layout) {
  TANDEM_TRY(kv::validate(layout));
  const size_t largest = std::max(layout.page_bytes(), layout.tail_layout().page_bytes());
  if (largest > proto::kMaxKvPayload) {
    return fail(ErrorCode::kUnsupported, "KV pages of " + std::to_string(largest) +
                                             " bytes exceed the largest frame of " +
                                             std::to_string(proto::kMaxKvPayload));
  }
  return {};
}

}  // namespace tandem::transport
