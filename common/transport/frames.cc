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

Frame make_data_frame(const FrameOrigin& origin, uint32_t layer, uint32_t first_page,
                      std::span<const std::span<const std::byte>> pages) {
  KvFrameHeader header = header_of(origin, KvFrameKind::kData);
  header.layer = layer;
  header.first_page = first_page;
  header.pages = static_cast<uint32_t>(pages.size());
  std::vector<std::byte> payload;
  payload.reserve(pages.empty() ? 0 : pages.size() * pages.front().size());
  for (const auto& page : pages) payload.insert(payload.end(), page.begin(), page.end());
  return sealed(header, std::move(payload));
}

Frame make_tail_frame(const FrameOrigin& origin, uint32_t layer, uint32_t rows,
                      const TailRuns& runs, std::span<const std::byte> page) {
  KvFrameHeader header = header_of(origin, KvFrameKind::kTail);
  header.layer = layer;
  header.pages = rows;
  std::vector<std::byte> payload;
  payload.reserve(runs.bytes());
  for (size_t i = 0; i < runs.count; ++i) {
    const auto run = page.subspan(i * runs.stride, runs.run_bytes);
    payload.insert(payload.end(), run.begin(), run.end());
  }
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
