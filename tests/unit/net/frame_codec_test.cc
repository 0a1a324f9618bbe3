#include "common/net/frame_codec.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <string>
#include <vector>

namespace tandem {
namespace {

constexpr Generation kSender(0x1122334455667788);

std::string frame(uint64_t sequence, std::string_view payload, FrameKind kind = FrameKind::kMessage,
                  Generation generation = kSender) {
  std::string out;
  append_frame(out, kind, sequence, generation, payload);
  return out;
}

TEST(FrameCodec, LayoutIsAsDocumented) {
  const std::string bytes = frame(3, "ab");
  ASSERT_EQ(bytes.size(), 42u);
  EXPECT_EQ(bytes.substr(0, 4), "TDMC");
  EXPECT_EQ(bytes.substr(4, 4), std::string("\x01\x00\x00\x00", 4));
  EXPECT_EQ(bytes.substr(8, 8), std::string("\x02\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(16, 8), std::string("\x03\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(24, 8), "\x88\x77\x66\x55\x44\x33\x22\x11");
  EXPECT_EQ(bytes.substr(40), "ab");
}

TEST(FrameCodec, FramesComeOutWholeHoweverTheyArrive) {
  std::string stream;
  for (uint64_t i = 0; i < 20; ++i)
    stream += frame(i, std::string(i * 37, static_cast<char>('a' + i)));
  for (const size_t step : {size_t{1}, size_t{7}, size_t{41}, stream.size()}) {
    FrameDecoder decoder(1 << 16);
    uint64_t count = 0;
    for (size_t at = 0; at < stream.size(); at += step) {
      decoder.feed(std::string_view(stream).substr(at, step));
      while (const auto got = decoder.next()) {
        EXPECT_EQ(got->payload, std::string(count * 37, static_cast<char>('a' + count)));
        ++count;
      }
    }
    EXPECT_EQ(count, 20u) << step;
    EXPECT_FALSE(decoder.fault());
    EXPECT_TRUE(decoder.at_boundary());
    EXPECT_EQ(decoder.generation(), kSender);
  }
}

FrameFault fault_of(std::string_view stream, uint32_t limit = 1024) {
  FrameDecoder decoder(limit);
  decoder.feed(stream);
  while (decoder.next()) {
  }
  if (!decoder.fault())
    return decoder.at_boundary() ? FrameFault::kVersion : FrameFault::kTruncated;
  decoder.feed(frame(0, "x"));
  EXPECT_FALSE(decoder.next()) << "a fault is final";
  return *decoder.fault();
}

TEST(FrameCodec, EveryFaultIsNamed) {
  EXPECT_EQ(fault_of("GET / HTTP/1.1\r\n"), FrameFault::kMagic);
  EXPECT_EQ(fault_of("GET "), FrameFault::kMagic) << "four bytes suffice";
  EXPECT_EQ(fault_of(frame(0, std::string(1025, 'x'))), FrameFault::kOversized);
  EXPECT_EQ(fault_of(frame(0, "a") + frame(0, "a")), FrameFault::kSequence) << "replayed";
  EXPECT_EQ(fault_of(frame(0, "a") + frame(2, "a")), FrameFault::kSequence) << "lost";
  EXPECT_EQ(fault_of(frame(1, "a")), FrameFault::kSequence) << "starts at 0";
  EXPECT_EQ(fault_of(frame(0, "a") + frame(1, "a", FrameKind::kMessage, Generation(9))),
            FrameFault::kGeneration);
  EXPECT_EQ(fault_of(frame(0, "a", static_cast<FrameKind>(7))), FrameFault::kKind);
  EXPECT_EQ(fault_of(frame(0, "a", FrameKind::kPing)), FrameFault::kKind);
  const std::string good = frame(0, "payload");
  EXPECT_EQ(fault_of(good.substr(0, good.size() - 1)), FrameFault::kTruncated);
}

TEST(FrameCodec, OversizedIsRefusedBeforeItsPayloadArrives) {
  EXPECT_EQ(fault_of(frame(0, std::string(2000, 'x')).substr(0, kFrameHeaderBytes)),
            FrameFault::kOversized);
}

TEST(FrameCodec, AnyFlippedBitIsNoticed) {
  const std::string good = frame(0, "payload");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    FrameDecoder decoder(1 << 20);
    decoder.feed(bad);
    EXPECT_FALSE(decoder.next()) << "bit " << bit;
  }
}

}  // namespace
}  // namespace tandem
