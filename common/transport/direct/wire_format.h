#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

// What the processes of a direct transport (shm, cuda_ipc, nccl) say to each other over a local
// socket, and how they find it. All from peers: parsed strictly, fuzzed.
namespace tandem::transport {

// Transport::address():
//   "TDIR" | u8 version 1 | u64 host | str fabric | str socket | u64 XXH3-64 of all before
// with str = u16 length + bytes.
struct DirectAddress {
  uint64_t host = 0;   // this_host(): equal for processes that can reach each other's sockets
  std::string fabric;  // "cuda_ipc"
  std::string socket;  // name in the abstract namespace of Unix sockets
};
[[nodiscard]] std::string encode_direct_address(const DirectAddress& address);
// kInvalidArgument for anything that encode_direct_address did not make.
[[nodiscard]] Result<DirectAddress> parse_direct_address(std::string_view bytes);

// A message: u32 "TDM1" | u8 kind | u8[3] 0 | u32 body bytes | body.
enum class MessageKind : uint8_t {
  kHello = 1,    // both ways, first
  kFrame = 2,    // a KV frame (common/proto/kv_frame.h); data and tail payloads are offers
  kGo = 3,       // receiver to sender: u64 slot | u32 count: the bytes of so many slots, of which
                 // this is the last, may be sent as one message (shm: were read)
  kRefused = 4,  // receiver to sender instead of its hello: why not (encode_kv_reason)
  kMemory = 5,   // sender to receiver, before offers of it: a descriptor comes along; no body
  kSums = 6,     // sender to receiver: the frame of an offer, with its checksums alone
};
inline constexpr size_t kMessageHeaderBytes = 12;
inline constexpr size_t kMaxMessageBody = 128u << 10;
[[nodiscard]] std::string encode_message(MessageKind kind, std::string_view body);

struct MessageView {
  MessageKind kind = MessageKind::kHello;
  std::string_view body;  // points into what was parsed
};
// The first message of `bytes` and how many bytes it takes; taken == 0: more bytes are needed.
// kCorruptData: this is no peer of ours, hang up.
struct ParsedMessage {
  size_t taken = 0;
  MessageView message;
};
[[nodiscard]] Result<ParsedMessage> parse_message(std::string_view bytes);

struct Hello {
  Generation generation = {};
  std::string fabric;
  std::string details;  // Fabric::hello()
};
[[nodiscard]] std::string encode_hello(const Hello& hello);
[[nodiscard]] Result<Hello> parse_hello(std::string_view body);

// An offer, the payload of a data or tail frame: u16 pieces | u16 checksums | u64 each | note.
// Pieces are pages or, of a tail, runs; all of one length. Each has a checksum, or none has: then
// they follow.
struct Offer {
  uint16_t pieces = 0;
  std::vector<uint64_t> checksums;
  std::string note;
};
[[nodiscard]] std::string encode_offer(const Offer& offer);
[[nodiscard]] Result<Offer> parse_offer(std::span<const std::byte> payload);

struct Go {
  uint64_t last = 0;
  uint32_t count = 1;  // slots, at least 1
};
[[nodiscard]] std::string encode_go(const Go& go);
[[nodiscard]] Result<Go> parse_go(std::string_view body);

// The payload of a kSums frame; empty when the sender's transfer has ended before they were known.
[[nodiscard]] std::string encode_sums(std::span<const uint64_t> checksums);
[[nodiscard]] std::vector<uint64_t> parse_sums(std::span<const std::byte> payload);

// Little-endian fields one after another; reading past the end says so once, at the end.
class FieldWriter {
 public:
  void reserve(size_t bytes) { out_.reserve(bytes); }
  template <typename T>
  FieldWriter& put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  FieldWriter& text(std::string_view value) {  // at most 64 KiB
    put(static_cast<uint16_t>(value.size()));
    out_ += value;
    return *this;
  }
  FieldWriter& bytes(std::string_view value) {
    out_ += value;
    return *this;
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  std::string out_;
};
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : left_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    const std::string_view raw = bytes(sizeof(T));
    if (good_) __builtin_memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::string_view text() { return bytes(get<uint16_t>()); }
  std::string_view bytes(size_t count) {
    if (count > left_.size()) {
      good_ = false;
      left_ = {};
      return {};
    }
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  [[nodiscard]] std::string_view rest() const { return left_; }
  [[nodiscard]] bool complete() const { return good_ && left_.empty(); }
  [[nodiscard]] bool good() const { return good_; }

 private:
  std::string_view left_;
  bool good_ = true;
};

}  // namespace tandem::transport
