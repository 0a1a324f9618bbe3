#include "common/proto/kv_frame.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <functional>
#include <vector>

namespace tandem::proto {
namespace {

KvFrameHeader data_header() {
  return {.kind = KvFrameKind::kData,
          .format = 2,
          .transfer = TransferId{0x1122334455667788},
          .sender = Generation{3},
          .receiver = Generation{4},
          .geometry = 5,
          .layer = 6,
          .first_page = 7,
          .pages = 8,
          .payload_bytes = 9,
          .payload_checksum = 10};
}

// Rewrites bytes at an offset of the documented field table and makes the checksum hold again.
template <typename T>
KvHeaderBytes patched(KvHeaderBytes bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  const uint64_t sum = XXH3_64bits(bytes.data(), 64);
  std::memcpy(bytes.data() + 64, &sum, sizeof(sum));
  return bytes;
}

TEST(KvFrame, FieldsLieWhereTheTableSays) {
  const KvHeaderBytes bytes = encode_kv_header(data_header());
  EXPECT_EQ(std::memcmp(bytes.data(), "TKVF\x04\x00\x01\x02\x88\x77\x66\x55\x44\x33\x22\x11", 16),
            0);
  const auto at = [&](size_t offset) {
    uint32_t v = 0;
    std::memcpy(&v, bytes.data() + offset, 4);
    return v;
  };
  EXPECT_EQ(at(16), 3u);
  EXPECT_EQ(at(24), 4u);
  EXPECT_EQ(at(32), 5u);
  EXPECT_EQ(at(40), 6u);
  EXPECT_EQ(at(44), 7u);
  EXPECT_EQ(at(48), 8u);
  EXPECT_EQ(at(52), 9u);
  EXPECT_EQ(at(56), 10u);
}

TEST(KvFrame, RoundTrips) {
  EXPECT_EQ(parse_kv_header(encode_kv_header(data_header())).value(), data_header());
}

TEST(KvFrame, EverySingleFlippedBitIsNoticed) {
  const KvHeaderBytes good = encode_kv_header(data_header());
  for (size_t bit = 0; bit < kKvHeaderBytes * 8; ++bit) {
    KvHeaderBytes bad = good;
    bad[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    EXPECT_FALSE(parse_kv_header(bad)) << bit;
  }
}

TEST(KvFrame, AnyOtherLengthIsRefused) {
  const KvHeaderBytes good = encode_kv_header(data_header());
  std::vector<std::byte> bytes(good.begin(), good.end());
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_EQ(parse_kv_header(std::span(bytes).first(n)).error().param, "header");
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(parse_kv_header(bytes).error().param, "header");
}

TEST(KvFrame, FaultsAreToldApart) {
  const KvHeaderBytes good = encode_kv_header(data_header());
  KvHeaderBytes flipped = good;
  flipped[20] ^= std::byte{1};
  EXPECT_EQ(parse_kv_header(flipped).error().code, ErrorCode::kCorruptData);
  EXPECT_EQ(parse_kv_header(patched(good, 4, uint16_t{3})).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(parse_kv_header(patched(good, 0, 'X')).error().param, "magic");
}

TEST(KvFrame, FieldsThatContradictTheKindAreRefusedByName) {
  const KvHeaderBytes good = encode_kv_header(data_header());
  const auto field = [](const KvHeaderBytes& bytes) {
    const auto header = parse_kv_header(bytes);
    return header ? std::string("accepted") : header.error().param;
  };
  EXPECT_EQ(field(patched(good, 6, uint8_t{0})), "kind");
  EXPECT_EQ(field(patched(good, 6, uint8_t{8})), "kind");
  EXPECT_EQ(field(patched(good, 8, uint64_t{0})), "transfer_id");
  EXPECT_EQ(field(patched(good, 48, uint32_t{0})), "pages");
  EXPECT_EQ(field(patched(good, 48, kMaxKvFramePages + 1)), "pages");
  EXPECT_EQ(field(patched(good, 52, uint32_t{0})), "payload_bytes");
  EXPECT_EQ(field(patched(good, 52, kMaxKvPayload + 1)), "payload_bytes");
  EXPECT_EQ(field(patched(good, 52, 0xffffffffu)), "payload_bytes");
  KvFrameHeader commit{.kind = KvFrameKind::kCommit, .transfer = TransferId{1}};
  EXPECT_EQ(field(encode_kv_header(commit)), "accepted");
  EXPECT_EQ(field(patched(encode_kv_header(commit), 40, 1u)), "pages");
  EXPECT_EQ(field(patched(encode_kv_header(commit), 52, kMaxKvCommit + 1)), "payload_bytes");
  KvFrameHeader ack{.kind = KvFrameKind::kAck, .transfer = TransferId{1}};
  EXPECT_EQ(field(patched(encode_kv_header(ack), 52, 1u)), "payload_bytes");
  KvFrameHeader tail = data_header();
  tail.kind = KvFrameKind::kTail;
  EXPECT_EQ(field(encode_kv_header(tail)), "first_page");
  tail.first_page = 0;
  EXPECT_EQ(field(encode_kv_header(tail)), "accepted");
  tail.pages = kMaxKvTailRows + 1;
  EXPECT_EQ(field(encode_kv_header(tail)), "pages");
}

TEST(KvFrame, PayloadChecksumIsBoundToItsTransfer) {
  const std::vector<std::byte> payload(100, std::byte{3});
  EXPECT_NE(kv_payload_checksum(TransferId{1}, payload),
            kv_payload_checksum(TransferId{2}, payload));
  EXPECT_EQ(kv_payload_checksum(TransferId{9}, payload),
            XXH3_64bits_withSeed(payload.data(), 100, 9));
}

TEST(KvFrame, ReasonsCarryTheCodeAndThePeersWords) {
  const std::string payload = encode_kv_reason(ErrorCode::kResourceExhausted, "pool full");
  const Error error = parse_kv_reason(std::as_bytes(std::span(payload)));
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(error.detail, "pool full");
  EXPECT_EQ(encode_kv_reason(ErrorCode::kIo, std::string(5000, 'x')).size(), kMaxKvReason + 1);
}

TEST(KvFrame, APeersLostDeviceIsNotOurs) {
  const std::string payload = encode_kv_reason(ErrorCode::kDeviceLost, "illegal memory access");
  const Error error = parse_kv_reason(std::as_bytes(std::span(payload)));
  EXPECT_EQ(error.code, ErrorCode::kTransport);
  EXPECT_EQ(error.detail, "illegal memory access");
}

TEST(KvFrame, HostileReasonsAreMadeHarmless) {
  const std::string payload = "\xfe\x1b[31m\n\xff";
  const Error error = parse_kv_reason(std::as_bytes(std::span(payload)));
  EXPECT_EQ(error.code, ErrorCode::kTransport);
  EXPECT_EQ(error.detail, "?[31m??");
  EXPECT_EQ(parse_kv_reason({}).code, ErrorCode::kTransport);
}

}  // namespace
}  // namespace tandem::proto
