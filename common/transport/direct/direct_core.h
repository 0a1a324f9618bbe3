#pragma once

#include "common/transport/direct/fabric.h"
#include "common/transport/direct/wire_format.h"
#include "common/transport/receive_table.h"
#include "common/transport/send_table.h"

namespace tandem::transport {

// What the two ends of a direct transport's connections share. Transport thread only.
struct DirectCore {
  Generation self;
  const Clock& clock;
  AtomicCounters& counters;
  ReceiveTable& receives;
  SendTable& sends;
  Fabric& fabric;
};

// Splits the body of a kFrame, or a kSums, which is not counted as a frame of its own; counts and
// drops what is no frame.
struct FrameView {
  proto::KvFrameHeader header;
  std::span<const std::byte> payload;
};
[[nodiscard]] std::optional<FrameView> parse_frame(std::string_view body, AtomicCounters& counters,
                                                   MessageKind kind = MessageKind::kFrame);
[[nodiscard]] std::string frame_message(const Frame& frame, MessageKind kind = MessageKind::kFrame);

}  // namespace tandem::transport
