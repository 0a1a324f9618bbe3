#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/ids.h"

namespace tandem {

// Frames of the control channel. All numbers little-endian:
//   0 u32 magic "TDMC"   4 u16 version      6 u16 kind       8 u32 payload bytes   12 u32 zero
//  16 u64 sequence      24 u64 generation  32 u64 XXH3-64 of bytes 0..31 and the payload
// `sequence` counts a sender's frames on one connection from 0, so a repeated or lost frame shows;
// `generation` is the sender's and must not change within a connection.
inline constexpr uint32_t kFrameMagic = 0x434d4454;
inline constexpr uint16_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 40;

enum class FrameKind : uint16_t { kMessage = 0, kPing = 1 };

enum class FrameFault : uint8_t {
  kMagic,       // not a Tandem control connection, or out of step
  kVersion,     // another frame format
  kKind,        // unknown kind, or a ping with a payload
  kOversized,   // over the receiver's limit
  kChecksum,    // damaged
  kSequence,    // repeated, or one is missing
  kGeneration,  // another process's frame
  kTruncated,   // the connection ended within a frame
};
[[nodiscard]] std::string_view to_string(FrameFault fault);  // metric label: "bad_magic", …

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  std::string_view payload;  // valid until the next call to the decoder
};

// Appends one frame to `out`. `payload_bytes` must fit in 32 bits.
void append_frame(std::string& out, FrameKind kind, uint64_t sequence, Generation generation,
                  std::string_view payload);

// Cuts a stream of bytes into frames. A fault is final. Holds at most one frame of the allowed size
// plus what one read brought.
class FrameDecoder {
 public:
  explicit FrameDecoder(uint32_t max_payload) : max_payload_(max_payload) {}

  void set_max_payload(uint32_t bytes) { max_payload_ = bytes; }
  void feed(std::string_view bytes);
  // The next whole frame; nullopt if more bytes are needed or a fault was found.
  [[nodiscard]] std::optional<Frame> next();
  // What is wrong with the stream, if anything.
  [[nodiscard]] std::optional<FrameFault> fault() const { return fault_; }
  // Whether the stream may end here.
  [[nodiscard]] bool at_boundary() const { return begin_ == buffer_.size(); }
  // The sender's, once a frame has come.
  [[nodiscard]] Generation generation() const { return generation_.value_or(Generation{}); }

 private:
  std::optional<Frame> refuse(FrameFault fault);

  uint32_t max_payload_;
  std::string buffer_;
  size_t begin_ = 0;  // of what is not consumed
  uint64_t expected_sequence_ = 0;
  std::optional<Generation> generation_;
  std::optional<FrameFault> fault_;
};

}  // namespace tandem
