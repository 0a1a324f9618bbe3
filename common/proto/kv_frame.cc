#include "common/proto/kv_frame.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/proto/versions.h"
#include "common/proto/xxh3.h"

namespace tandem::proto {
namespace {

static_assert(std::endian::native == std::endian::little, "KV frames are little-endian");

constexpr uint32_t kMagic = 0x46564B54;  // "TKVF"
constexpr size_t kChecksummedBytes = 64;

// As on the wire.
struct Packed {
  uint32_t magic;
  uint16_t version;
  uint8_t kind;
  uint8_t format;
  uint64_t transfer_id;
  uint64_t sender;
  uint64_t receiver;
  uint64_t geometry;
  uint32_t layer;
  uint32_t first_page;
  uint32_t pages;
  uint32_t payload_bytes;
  uint64_t payload_checksum;
  uint64_t header_checksum;
};
static_assert(sizeof(Packed) == kKvHeaderBytes && offsetof(Packed, geometry) == 32 &&
              offsetof(Packed, header_checksum) == kChecksummedBytes);

tl::unexpected<Error> malformed(std::string_view field, const std::string& why) {
  return fail(ErrorCode::kInvalidArgument, "KV frame: " + std::string(field) + " " + why,
              std::string(field));
}

struct KindRules {
  bool pages;  // carries layer and pages
  uint32_t min_payload;
  uint32_t max_payload;
};

Result<KindRules> rules_of(uint8_t kind) {
  switch (static_cast<KvFrameKind>(kind)) {
    case KvFrameKind::kData:
    case KvFrameKind::kTail:
      return KindRules{true, 1, kMaxKvPayload};
    case KvFrameKind::kCommit:
      return KindRules{false, 0, kMaxKvCommit};
    case KvFrameKind::kCancel:
    case KvFrameKind::kError:
    case KvFrameKind::kReject:
      return KindRules{false, 1, kMaxKvReason + 1};
    case KvFrameKind::kAck:
      return KindRules{false, 0, 0};
  }
  return malformed("kind", "is " + std::to_string(kind) + ", which is unknown");
}

Status check_fields(const Packed& p) {
  TANDEM_ASSIGN(const KindRules rules, rules_of(p.kind));
  if (p.transfer_id == 0) return malformed("transfer_id", "is 0");
  if (p.payload_bytes < rules.min_payload || p.payload_bytes > rules.max_payload) {
    return malformed("payload_bytes", "is " + std::to_string(p.payload_bytes) + ", but " +
                                          std::to_string(rules.min_payload) + " to " +
                                          std::to_string(rules.max_payload) + " are allowed");
  }
  if (!rules.pages && (p.layer != 0 || p.first_page != 0 || p.pages != 0)) {
    return malformed("pages", "are named by a frame that carries none");
  }
  const bool tail = static_cast<KvFrameKind>(p.kind) == KvFrameKind::kTail;
  const uint32_t most = tail ? kMaxKvTailRows : kMaxKvFramePages;
  if (rules.pages && (p.pages == 0 || p.pages > most)) {
    return malformed("pages", "is " + std::to_string(p.pages) + ", but 1 to " +
                                  std::to_string(most) + " are allowed");
  }
  if (tail && p.first_page != 0) return malformed("first_page", "of a tail frame is not 0");
  return {};
}

}  // namespace

std::string_view to_string(KvFrameKind kind) {
  switch (kind) {
    case KvFrameKind::kData:
      return "data";
    case KvFrameKind::kTail:
      return "tail";
    case KvFrameKind::kCommit:
      return "commit";
    case KvFrameKind::kCancel:
      return "cancel";
    case KvFrameKind::kError:
      return "error";
    case KvFrameKind::kAck:
      return "ack";
    case KvFrameKind::kReject:
      return "reject";
  }
  TANDEM_CHECK(false, "KV frame kind outside its enumeration");
  return {};
}

KvHeaderBytes encode_kv_header(const KvFrameHeader& h) {
  Packed p{.magic = kMagic,
           .version = static_cast<uint16_t>(kKvFrameVersion),
           .kind = static_cast<uint8_t>(h.kind),
           .format = h.format,
           .transfer_id = h.transfer.value,
           .sender = h.sender.value,
           .receiver = h.receiver.value,
           .geometry = h.geometry,
           .layer = h.layer,
           .first_page = h.first_page,
           .pages = h.pages,
           .payload_bytes = h.payload_bytes,
           .payload_checksum = h.payload_checksum,
           .header_checksum = 0};
  p.header_checksum = XXH3_64bits(&p, kChecksummedBytes);
  return std::bit_cast<KvHeaderBytes>(p);
}

Result<KvFrameHeader> parse_kv_header(std::span<const std::byte> bytes) {
  if (bytes.size() != kKvHeaderBytes) {
    return malformed("header", "has " + std::to_string(bytes.size()) + " bytes, but " +
                                   std::to_string(kKvHeaderBytes) + " are needed");
  }
  Packed p;
  std::memcpy(&p, bytes.data(), sizeof(p));
  if (p.magic != kMagic) return malformed("magic", "is not that of a KV frame");
  if (p.version != kKvFrameVersion) {
    return fail(ErrorCode::kUnsupported,
                "KV frame: version " + std::to_string(p.version) + ", this process speaks " +
                    std::to_string(kKvFrameVersion),
                "version");
  }
  if (p.header_checksum != XXH3_64bits(&p, kChecksummedBytes)) {
    return fail(ErrorCode::kCorruptData, "KV frame: the header's checksum does not hold",
                "header_checksum");
  }
  TANDEM_TRY(check_fields(p));
  return KvFrameHeader{.kind = static_cast<KvFrameKind>(p.kind),
                       .format = p.format,
                       .transfer = TransferId{p.transfer_id},
                       .sender = Generation{p.sender},
                       .receiver = Generation{p.receiver},
                       .geometry = p.geometry,
                       .layer = p.layer,
                       .first_page = p.first_page,
                       .pages = p.pages,
                       .payload_bytes = p.payload_bytes,
                       .payload_checksum = p.payload_checksum};
}

uint64_t kv_payload_checksum(TransferId transfer, std::span<const std::byte> payload) {
  return xxh3(payload, transfer.value);
}

std::string encode_kv_reason(ErrorCode code, std::string_view text) {
  std::string payload(1, static_cast<char>(code));
  payload += text.substr(0, kMaxKvReason);
  return payload;
}

Error parse_kv_reason(std::span<const std::byte> payload) {
  const auto code = payload.empty() ? uint8_t{0xff} : static_cast<uint8_t>(payload[0]);
  std::string text;
  for (const std::byte b : payload.subspan(std::min<size_t>(payload.size(), 1))) {
    const char c = static_cast<char>(b);
    text += c >= ' ' && c <= '~' ? c : '?';
  }
  const bool known = code <= static_cast<uint8_t>(kLastErrorCode);
  const ErrorCode said = known ? static_cast<ErrorCode>(code) : ErrorCode::kTransport;
  // The peer's device, not one of this process, which would end for the loss of its own.
  return make_error(said == ErrorCode::kDeviceLost ? ErrorCode::kTransport : said, std::move(text));
}

}  // namespace tandem::proto
