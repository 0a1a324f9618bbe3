#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tandem::proto {

// One message of a KV transfer: this header, then `payload_bytes` of payload. Little-endian.
//
//   offset size field
//        0    4  magic             "TKVF"
//        4    2  version           kKvFrameVersion
//        6    1  kind              KvFrameKind
//        7    1  format            kv::KvFormat of the pool, for messages to people
//        8    8  transfer_id       issued by the router, never 0
//       16    8  sender            generation of the process that sent this frame
//       24    8  receiver          generation it is meant for
//       32    8  geometry          hash of everything that shapes a page (transport::geometry_hash)
//       40    4  layer             data, tail; else 0
//       44    4  first_page        data; else 0
//       48    4  pages             data: pages in the payload; tail: rows in it; else 0
//       52    4  payload_bytes
//       56    8  payload_checksum  XXH3-64 of the payload, seeded with transfer_id
//       64    8  header_checksum   XXH3-64 of bytes 0 .. 63
//
// A data payload is pages as stored. A tail's is the first rows of the open page: for each KV head
// its K rows, then its V rows. A commit's payload is the caller's. Cancel, error and
// reject carry one byte of ErrorCode and a text; ack has none.
inline constexpr size_t kKvHeaderBytes = 72;
inline constexpr uint32_t kMaxKvPayload = 16u << 20;  // one page must fit
inline constexpr uint32_t kMaxKvCommit = 64u << 10;
inline constexpr uint32_t kMaxKvReason = 1024;
inline constexpr uint32_t kMaxKvFramePages = 256;
inline constexpr uint32_t kMaxKvTailRows = 16;

enum class KvFrameKind : uint8_t {
  kData = 1,    // pages of one layer
  kTail = 2,    // the used rows of one layer's open page
  kCommit = 3,  // no more pages follow
  kCancel = 4,  // the sender gave up on request
  kError = 5,   // the sender could not go on
  kAck = 6,     // receiver to sender: complete and checked
  kReject = 7,  // receiver to sender: this transfer will not complete here
};
[[nodiscard]] std::string_view to_string(KvFrameKind kind);

struct KvFrameHeader {
  KvFrameKind kind = KvFrameKind::kData;
  uint8_t format = 0;
  TransferId transfer = {};
  Generation sender = {};
  Generation receiver = {};
  uint64_t geometry = 0;
  uint32_t layer = 0;
  uint32_t first_page = 0;
  uint32_t pages = 0;  // of a tail: rows
  uint32_t payload_bytes = 0;
  uint64_t payload_checksum = 0;

  friend bool operator==(const KvFrameHeader&, const KvFrameHeader&) = default;
};

using KvHeaderBytes = std::array<std::byte, kKvHeaderBytes>;
[[nodiscard]] KvHeaderBytes encode_kv_header(const KvFrameHeader& header);

// Strict: exactly kKvHeaderBytes of a known version and kind, fields that a kind does not use zero,
// lengths within the limits above. kCorruptData: the header checksum does not hold (nothing else
// can be believed then); kUnsupported: another version; kInvalidArgument: any other fault. Whether
// a transfer, layer or page exists is for the receiver to say.
[[nodiscard]] Result<KvFrameHeader> parse_kv_header(std::span<const std::byte> bytes);

[[nodiscard]] uint64_t kv_payload_checksum(TransferId transfer, std::span<const std::byte> payload);

// Payload of cancel, error and reject frames. Texts are cut to kMaxKvReason and, on reading,
// stripped of anything that is not printable ASCII.
[[nodiscard]] std::string encode_kv_reason(ErrorCode code, std::string_view text);
[[nodiscard]] Error parse_kv_reason(std::span<const std::byte> payload);

}  // namespace tandem::proto
