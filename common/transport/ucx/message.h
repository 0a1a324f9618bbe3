#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "common/transport/frames.h"

namespace tandem::transport {

// A KV frame on its way through a UcxWorker: behind the address to which an answer goes, as nothing
// else tells a receiver who sent it.
//   u16 length of the address | address | frame
struct UcxMessage {
  std::string_view answer_to;
  std::span<const std::byte> header;
  std::span<const std::byte> payload;
};

[[nodiscard]] size_t ucx_message_bytes(std::string_view answer_to, size_t payload_bytes);
void write_ucx_message(std::span<std::byte> to, std::string_view answer_to, const Frame& frame);
// Empty if the bytes are no such message; a header too short is left to whoever parses it.
[[nodiscard]] std::optional<UcxMessage> parse_ucx_message(std::span<const std::byte> bytes);

}  // namespace tandem::transport
