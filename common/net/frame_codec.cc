#include "common/net/frame_codec.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "common/base/check.h"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are written in memory order");

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr size_t kChecksumOffset = 32;

uint64_t checksum(const char* header, std::string_view payload) {
  const uint64_t of_header = XXH3_64bits(header, kChecksumOffset);
  return XXH3_64bits_withSeed(payload.data(), payload.size(), of_header);
}

}  // namespace

std::string_view to_string(FrameFault fault) {
  switch (fault) {
    case FrameFault::kMagic:
      return "bad_magic";
    case FrameFault::kVersion:
      return "bad_version";
    case FrameFault::kKind:
      return "bad_kind";
    case FrameFault::kOversized:
      return "oversized";
    case FrameFault::kChecksum:
      return "bad_checksum";
    case FrameFault::kSequence:
      return "bad_sequence";
    case FrameFault::kGeneration:
      return "bad_generation";
    case FrameFault::kTruncated:
      return "truncated";
  }
  TANDEM_CHECK(false, "frame fault outside its enumeration");
  return {};
}

void append_frame(std::string& out, FrameKind kind, uint64_t sequence, Generation generation,
                  std::string_view payload) {
  TANDEM_CHECK(payload.size() <= UINT32_MAX, "a frame's payload fits in 32 bits");
  out.reserve(out.size() + kFrameHeaderBytes + payload.size());
  const size_t start = out.size();
  append(out, kFrameMagic);
  append(out, kFrameVersion);
  append(out, static_cast<uint16_t>(kind));
  append(out, static_cast<uint32_t>(payload.size()));
  append(out, uint32_t{0});
  append(out, sequence);
  append(out, generation.value);
  append(out, checksum(out.data() + start, payload));
  out += payload;
}

void FrameDecoder::feed(std::string_view bytes) {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_ += bytes;
}

std::optional<Frame> FrameDecoder::refuse(FrameFault fault) {
  fault_ = fault;
  return std::nullopt;
}

std::optional<Frame> FrameDecoder::next() {
  if (fault_) return std::nullopt;
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  // A stranger's first bytes are refused at once, not after 40 of them.
  if (rest.size() >= sizeof kFrameMagic && load<uint32_t>(rest.data()) != kFrameMagic) {
    return refuse(FrameFault::kMagic);
  }
  if (rest.size() < kFrameHeaderBytes) return std::nullopt;
  const char* header = rest.data();
  const auto version = load<uint16_t>(header + 4);
  const auto kind = load<uint16_t>(header + 6);
  const auto length = load<uint32_t>(header + 8);
  const auto reserved = load<uint32_t>(header + 12);
  const auto sequence = load<uint64_t>(header + 16);
  const Generation generation(load<uint64_t>(header + 24));
  if (version != kFrameVersion || reserved != 0) return refuse(FrameFault::kVersion);
  if (length > max_payload_) return refuse(FrameFault::kOversized);
  if (rest.size() - kFrameHeaderBytes < length) return std::nullopt;
  const std::string_view payload = rest.substr(kFrameHeaderBytes, length);
  if (checksum(header, payload) != load<uint64_t>(header + kChecksumOffset)) {
    return refuse(FrameFault::kChecksum);
  }
  // From here on the bytes are what the sender meant.
  const bool known = kind == static_cast<uint16_t>(FrameKind::kMessage) ||
                     (kind == static_cast<uint16_t>(FrameKind::kPing) && length == 0);
  if (!known) return refuse(FrameFault::kKind);
  if (sequence != expected_sequence_) return refuse(FrameFault::kSequence);
  if (generation_.value_or(generation) != generation) return refuse(FrameFault::kGeneration);
  generation_ = generation;
  ++expected_sequence_;
  begin_ += kFrameHeaderBytes + length;
  return Frame{static_cast<FrameKind>(kind), payload};
}

}  // namespace tandem
