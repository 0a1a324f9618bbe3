#include "common/transport/ucx/message.h"

#include <algorithm>
#include <cstring>

namespace tandem::transport {

size_t ucx_message_bytes(std::string_view answer_to, size_t payload_bytes) {
  return sizeof(uint16_t) + answer_to.size() + proto::kKvHeaderBytes + payload_bytes;
}

void write_ucx_message(std::span<std::byte> to, std::string_view answer_to, const Frame& frame) {
  const auto length = static_cast<uint16_t>(answer_to.size());
  std::memcpy(to.data(), &length, sizeof(length));
  std::memcpy(to.data() + sizeof(length), answer_to.data(), answer_to.size());
  const auto rest = to.subspan(sizeof(length) + answer_to.size());
  std::ranges::copy(frame.header, rest.begin());
  if (frame.payload.empty()) return;
  std::memcpy(rest.data() + frame.header.size(), frame.payload.data(), frame.payload.size());
}

std::optional<UcxMessage> parse_ucx_message(std::span<const std::byte> bytes) {
  uint16_t length = 0;
  if (bytes.size() < sizeof(length)) return std::nullopt;
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (bytes.size() < sizeof(length) + length) return std::nullopt;
  const auto frame = bytes.subspan(sizeof(length) + length);
  const size_t header = std::min(frame.size(), proto::kKvHeaderBytes);
  return UcxMessage{
      .answer_to = {reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length},
      .header = frame.first(header),
      .payload = frame.subspan(header)};
}

}  // namespace tandem::transport
